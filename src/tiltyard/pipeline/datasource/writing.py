"""Writing a table: tasks write Lance files, the driver commits them at once."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.taskcontext import TaskContext

from tiltyard.pipeline.casts import Column, fitted_columns
from tiltyard.pipeline.fragments import ROWS_PER_FILE
from tiltyard.pipeline.refusing import RefusedError
from tiltyard.pipeline.runs import LocalRun
from tiltyard.pipeline.spark_types import arrow_schema, batch_schema
from tiltyard.pipeline.writing import Recipe, write_rows

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from tiltyard.pipeline.connecting import Table
    from tiltyard.pipeline.datasource.options import Options
    from tiltyard.pipeline.landing import Landing, WriteMode


@dataclass
class Message(WriterCommitMessage):
    """What a task has written."""

    fragments: tuple[str, ...]
    rows: int


class TableWriter(DataSourceArrowWriter):
    """Appends (a table that is not there is made), or puts the rows in the place of all others."""

    def __init__(self, options: Options, schema: StructType, overwrite: bool, run: str | None = None) -> None:
        from tiltyard.pipeline.connecting import connection, table  # noqa: PLC0415  # tasks do without the client
        from tiltyard.pipeline.landing import WriteMode, land  # noqa: PLC0415  # the same

        if options.given.get("on"):
            raise RefusedError("Upsert (the option 'on') is a job: tiltyard job upsert SOURCE TABLE --on KEY.")
        if options.branch or options.version is not None:
            raise RefusedError("Rows are written to the newest version of main: leave out version, tag and branch.")
        self._run = run or uuid.uuid4().hex
        where = connection(options.uri, options.properties, options.storage)
        mode: WriteMode = WriteMode.OVERWRITE if overwrite else _appending(table(where, options.table))
        landing = land(LocalRun(self._run), table(where, options.table), mode)
        self._landing = pickle.dumps(landing)  # tasks get it too, and would import the client to read it
        self._recipe = _recipe(self._run, landing, schema, options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Message:
        """Write a partition. Runs in a task. Raises RefusedError for a value that the table cannot hold."""
        context = TaskContext.get()
        number = 0 if context is None else context.partitionId()
        written = write_rows(self._recipe, iterator, f"partition-{number}")
        return Message(written.fragments, written.rows)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Make all of it visible by one commit."""
        self._opened().commit(LocalRun(self._run), _fragments(messages), self._recipe.target.schema)

    def commit_batch(self, messages: Sequence[WriterCommitMessage | None], stream: str, batch: int) -> None:
        """Commit a batch of a stream, unless this one, or a later one, is there already."""
        landing = self._opened()
        last = landing.last_of(f"stream-{stream}-")
        if last is not None and int(last) >= batch:
            landing.withdraw(_fragments(messages))
            return
        landing.commit(LocalRun(f"stream-{stream}-{batch}"), _fragments(messages), self._recipe.target.schema)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Leave nothing behind of tasks that had ended."""
        self._opened().withdraw(_fragments(messages))

    def _opened(self) -> Landing:
        landing: Landing = pickle.loads(self._landing)  # noqa: S301  # from __init__
        return landing


def _appending(found: Table) -> WriteMode:
    """Append, or create a table that is not there."""
    from lance_namespace.errors import TableNotFoundError  # noqa: PLC0415  # tasks do without the client

    from tiltyard.pipeline.landing import WriteMode  # noqa: PLC0415  # the same

    try:
        found.describe()
    except TableNotFoundError:
        return WriteMode.CREATE
    return WriteMode.APPEND


def _recipe(run: str, landing: Landing, schema: StructType, options: Options) -> Recipe:
    """From Spark's batches to the table's columns."""
    rows_per_file = options.number("rows_per_file") or ROWS_PER_FILE
    target = landing.target(arrow_schema(schema), rows_per_file)
    carried = batch_schema(schema)
    columns = tuple(Column(field.with_nullable(True), field.name) for field in carried)
    return Recipe(run, target, columns, fitted=tuple(fitted_columns(carried.names, target.schema, ())))


def _fragments(messages: Sequence[WriterCommitMessage | None]) -> list[str]:
    return [fragment for message in messages if isinstance(message, Message) for fragment in message.fragments]
