"""Write a table from Spark: tasks write Lance files, the driver commits them at once.

Spark commits in a separate Python process without a session: an upsert looks its keys up there, in threads.
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

from tiltyard.model.lineage import JobLineage, LineageSource
from tiltyard.model.refusals import RefusedError
from tiltyard.pipeline.datasource.spark_types import arrow_schema, batch_schema
from tiltyard.pipeline.runs import LocalRun
from tiltyard.pipeline.sources.casts import ColumnMapping, map_to_table
from tiltyard.pipeline.spark_tasks import tune_allocator
from tiltyard.pipeline.writing.fragments import ROWS_PER_FILE, check_lance_types, parse_fragments
from tiltyard.pipeline.writing.tasks import WriteSpec, write_rows

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from tiltyard.pipeline.catalog_client import Table
    from tiltyard.pipeline.datasource.options import DataSourceOptions
    from tiltyard.pipeline.writing.target_table import TargetTable, WriteMode

_LINEAGE = JobLineage("write", (LineageSource("memory:pyspark.DataFrame"),))
"""Spark tells a data source nothing of where the rows that it writes come from."""


@dataclass
class WrittenPartition(WriterCommitMessage):
    """The fragments that a task has written."""

    fragments: tuple[str, ...]
    rows: int


class TableWriter(DataSourceArrowWriter):
    """Appends rows (creating a missing table), replaces all rows, or upserts by a key."""

    def __init__(self, options: DataSourceOptions, schema: StructType, overwrite: bool, run: str | None = None) -> None:
        from tiltyard.pipeline.catalog_client import connection, table  # noqa: PLC0415  # tasks do not import the client
        from tiltyard.pipeline.writing.target_table import WriteMode, prepare_target  # noqa: PLC0415  # the same

        self._stream, self._batch = options.values.get("stream"), options.number("batch")
        if self._batch is not None and not self._stream:
            raise RefusedError("Set the option 'stream', too: batches are identified by its name and their number.")
        if options.branch or options.version is not None:
            raise RefusedError("Rows are written to the newest version of main: leave out version, tag and branch.")
        self._run = run or uuid.uuid4().hex
        catalog = connection(options.uri, options.properties, options.storage)
        catalog_table, self._on = table(catalog, options.table), _key_columns(options, overwrite)
        mode: WriteMode = (
            WriteMode.OVERWRITE if overwrite else WriteMode.APPEND if self._on else _append_mode(catalog_table)
        )
        target = prepare_target(LocalRun(self._run), catalog_table, mode, _LINEAGE)
        _check_key(self._on, target)
        self._target = pickle.dumps(target)  # tasks receive it too, and would import the client to unpickle it
        try:
            self._spec = _write_spec(self._run, target, schema, options)
        except RefusedError:
            target.discard_writes([])  # drops the table, if it was declared just now
            raise

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenPartition:
        """Write a partition. Runs in a task. Raises RefusedError for a value that the table cannot hold."""
        tune_allocator()
        context = TaskContext.get()
        number = 0 if context is None else context.partitionId()
        written = write_rows(self._spec, iterator, f"partition-{number}")
        return WrittenPartition(written.fragments, written.rows)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit all rows at once; a batch that the options name, only once."""
        if self._stream and self._batch is not None:
            self.commit_batch(messages, self._stream, self._batch)
            return
        self._commit(LocalRun(self._run), _fragments_of(messages))

    def commit_batch(self, messages: Sequence[WriterCommitMessage | None], stream: str, batch: int) -> None:
        """Commit a batch of a stream, unless it or a later one is committed already."""
        target = self._unpickle_target()
        last = target.last_run_suffix(f"stream-{stream}-")
        if last is not None and int(last) >= batch:
            target.discard_writes(_fragments_of(messages))
            return
        self._commit(LocalRun(f"stream-{stream}-{batch}"), _fragments_of(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Delete the files of tasks that had ended.

        Where all had ended, the commit was tried: it may have happened, with its response lost. Then the files stay,
        and gc deletes those that no version names.
        """
        if not all(isinstance(message, WrittenPartition) for message in messages):
            self._unpickle_target().discard_writes(_fragments_of(messages))

    def _commit(self, run: LocalRun, fragments: Sequence[str]) -> None:
        from lance_namespace.errors import (  # noqa: PLC0415  # tasks do not import the client
            InvalidInputError,
            TableAlreadyExistsError,
        )

        from tiltyard.pipeline.upsert.job import upsert_fragments  # noqa: PLC0415  # the same
        from tiltyard.pipeline.writing.commit import KEY_ERRORS  # noqa: PLC0415  # the same

        target = self._unpickle_target()
        try:
            if self._on:
                written = parse_fragments(fragments)
                upsert_fragments(run, target.table, None, written, self._on, since=target.base, lineage=target.lineage)
            else:
                target.commit(run, fragments, self._spec.target.schema)
        except (RefusedError, InvalidInputError, TableAlreadyExistsError, *KEY_ERRORS):  # nothing was committed
            target.discard_writes(fragments)
            raise

    def _unpickle_target(self) -> TargetTable:
        target: TargetTable = pickle.loads(self._target)  # noqa: S301  # from __init__
        return target


def _append_mode(table: Table) -> WriteMode:
    """Return APPEND, or CREATE for a missing table."""
    from lance_namespace.errors import TableNotFoundError  # noqa: PLC0415  # tasks do not import the client

    from tiltyard.pipeline.writing.target_table import WriteMode  # noqa: PLC0415  # the same

    try:
        table.describe()
    except TableNotFoundError:
        return WriteMode.CREATE
    return WriteMode.APPEND


def _key_columns(options: DataSourceOptions, overwrite: bool) -> tuple[str, ...]:
    """Return the columns to upsert by; () to append rows. Raises RefusedError."""
    on = tuple(options.names("on") or ())
    if on and overwrite:
        raise RefusedError("With the option 'on' rows are upserted: write in the mode append.")
    return on


def _check_key(on: Sequence[str], target: TargetTable) -> None:
    """Raise RefusedError or InvalidInputError if the table lacks one of the columns."""
    from tiltyard.pipeline.writing.commit import check_column_list  # noqa: PLC0415  # tasks do not import the client

    if not on:
        return
    if target.schema is None:
        raise RefusedError(f"{target.table} has no rows yet: append to it first, then upsert.")
    check_column_list(target.schema, on, "The option on")


def _write_spec(run: str, target_table: TargetTable, schema: StructType, options: DataSourceOptions) -> WriteSpec:
    """Return how Spark's batches become rows of the table."""
    rows_per_file = options.number("rows_per_file") or ROWS_PER_FILE
    target = target_table.fragment_target(arrow_schema(schema), rows_per_file)
    target_table.check_names(target.schema)
    check_lance_types(target.schema)
    source = batch_schema(schema)
    columns = tuple(ColumnMapping(field.with_nullable(True), field.name) for field in source)
    table_columns = map_to_table(source.names, target.schema, options.names("null") or ())
    return WriteSpec(run, target, columns, table_columns=tuple(table_columns))


def _fragments_of(messages: Sequence[WriterCommitMessage | None]) -> list[str]:
    return [fragment for message in messages if isinstance(message, WrittenPartition) for fragment in message.fragments]
