"""Writing a table: tasks write Lance files, the driver commits them at once.

Spark commits in a Python process of its own, which has no session: an upsert looks its keys up there, in threads.
"""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.taskcontext import TaskContext

from tiltyard.pipeline.datasource.spark_types import arrow_schema, batch_schema
from tiltyard.pipeline.runs import LocalRun
from tiltyard.pipeline.spark_tasks import tune_allocator
from tiltyard.pipeline.task_errors import RefusedError
from tiltyard.pipeline.writing.casts import ColumnMapping, map_to_table
from tiltyard.pipeline.writing.fragments import ROWS_PER_FILE, check_lance_types, parse_fragments
from tiltyard.pipeline.writing.tasks import WriteSpec, write_rows

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from tiltyard.pipeline.catalog_client import Table
    from tiltyard.pipeline.datasource.options import Options
    from tiltyard.pipeline.writing.target_table import TargetTable, WriteMode


@dataclass
class Message(WriterCommitMessage):
    """What a task has written."""

    fragments: tuple[str, ...]
    rows: int


class TableWriter(DataSourceArrowWriter):
    """Appends (a table that is not there is made), puts the rows in the place of all others, or upserts by a key."""

    def __init__(self, options: Options, schema: StructType, overwrite: bool, run: str | None = None) -> None:
        from tiltyard.pipeline.catalog_client import connection, table  # noqa: PLC0415  # tasks do without the client
        from tiltyard.pipeline.writing.target_table import WriteMode, prepare_target  # noqa: PLC0415  # the same

        self._stream, self._batch = options.given.get("stream"), options.number("batch")
        if self._batch is not None and not self._stream:
            raise RefusedError("Set the option 'stream', too: batches are told by its name and their number.")
        if options.branch or options.version is not None:
            raise RefusedError("Rows are written to the newest version of main: leave out version, tag and branch.")
        self._run = run or uuid.uuid4().hex
        where = connection(options.uri, options.properties, options.storage)
        found, self._on = table(where, options.table), _key(options, overwrite)
        mode: WriteMode = WriteMode.OVERWRITE if overwrite else WriteMode.APPEND if self._on else _appending(found)
        landing = prepare_target(LocalRun(self._run), found, mode)
        _check_key(self._on, landing)
        self._landing = pickle.dumps(landing)  # tasks get it too, and would import the client to read it
        try:
            self._recipe = _recipe(self._run, landing, schema, options)
        except RefusedError:
            landing.discard_writes([])  # the name, if it was given just now
            raise

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Message:
        """Write a partition. Runs in a task. Raises RefusedError for a value that the table cannot hold."""
        tune_allocator()
        context = TaskContext.get()
        number = 0 if context is None else context.partitionId()
        written = write_rows(self._recipe, iterator, f"partition-{number}")
        return Message(written.fragments, written.rows)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Make all of it visible by one commit; a batch that the options name, once."""
        if self._stream and self._batch is not None:
            self.commit_batch(messages, self._stream, self._batch)
            return
        self._commit(LocalRun(self._run), _fragments(messages))

    def commit_batch(self, messages: Sequence[WriterCommitMessage | None], stream: str, batch: int) -> None:
        """Commit a batch of a stream, unless this one, or a later one, is there already."""
        landing = self._opened()
        last = landing.last_run_suffix(f"stream-{stream}-")
        if last is not None and int(last) >= batch:
            landing.discard_writes(_fragments(messages))
            return
        self._commit(LocalRun(f"stream-{stream}-{batch}"), _fragments(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Leave nothing behind of tasks that had ended.

        Where all had, the commit was tried: it may have come to be, with its answer lost. Then the files stay, and gc
        takes those that no version names.
        """
        if not all(isinstance(message, Message) for message in messages):
            self._opened().discard_writes(_fragments(messages))

    def _commit(self, run: LocalRun, fragments: Sequence[str]) -> None:
        from lance_namespace.errors import (  # noqa: PLC0415  # tasks do without the client
            InvalidInputError,
            TableAlreadyExistsError,
        )

        from tiltyard.pipeline.upsert.job import upsert_fragments  # noqa: PLC0415  # the same

        landing = self._opened()
        try:
            if self._on:
                upsert_fragments(run, landing.table, None, parse_fragments(fragments), self._on, since=landing.base)
            else:
                landing.commit(run, fragments, self._recipe.target.schema)
        except (RefusedError, InvalidInputError, TableAlreadyExistsError):  # nothing was committed, nor ever will be
            landing.discard_writes(fragments)
            raise

    def _opened(self) -> TargetTable:
        landing: TargetTable = pickle.loads(self._landing)  # noqa: S301  # from __init__
        return landing


def _appending(found: Table) -> WriteMode:
    """Append, or create a table that is not there."""
    from lance_namespace.errors import TableNotFoundError  # noqa: PLC0415  # tasks do without the client

    from tiltyard.pipeline.writing.target_table import WriteMode  # noqa: PLC0415  # the same

    try:
        found.describe()
    except TableNotFoundError:
        return WriteMode.CREATE
    return WriteMode.APPEND


def _key(options: Options, overwrite: bool) -> tuple[str, ...]:
    """The columns to upsert by; () for rows that are only added. Raises RefusedError."""
    on = tuple(options.names("on") or ())
    if on and overwrite:
        raise RefusedError("With the option 'on' rows are put among those that are there: write in the mode append.")
    return on


def _check_key(on: Sequence[str], landing: TargetTable) -> None:
    """Raise RefusedError or InvalidInputError if the table has no such columns."""
    from tiltyard.pipeline.writing.commit import check_column_list  # noqa: PLC0415  # tasks do without the client

    if not on:
        return
    if landing.schema is None:
        raise RefusedError(f"{landing.table} has no rows yet: append to it first, then upsert.")
    check_column_list(landing.schema, on, "The option on")


def _recipe(run: str, landing: TargetTable, schema: StructType, options: Options) -> WriteSpec:
    """From Spark's batches to the table's columns."""
    rows_per_file = options.number("rows_per_file") or ROWS_PER_FILE
    target = landing.fragment_target(arrow_schema(schema), rows_per_file)
    landing.check_names(target.schema)
    check_lance_types(target.schema)
    carried = batch_schema(schema)
    columns = tuple(ColumnMapping(field.with_nullable(True), field.name) for field in carried)
    return WriteSpec(run, target, columns, table_columns=tuple(map_to_table(carried.names, target.schema, ())))


def _fragments(messages: Sequence[WriterCommitMessage | None]) -> list[str]:
    return [fragment for message in messages if isinstance(message, Message) for fragment in message.fragments]
