"""Write a table from Spark: tasks write Lance files, the driver commits them at once.

Spark commits in a separate Python process without a session: an upsert looks its keys up there, in threads.
"""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.taskcontext import TaskContext

from tiltyard.model.columns.lineage import ReadColumns
from tiltyard.model.lineage import JobLineage, LineageSource
from tiltyard.model.refusals import RefusedError
from tiltyard.pipeline.datasource.spark_types import arrow_schema
from tiltyard.pipeline.runs import LocalRun
from tiltyard.pipeline.spark_tasks import tune_allocator
from tiltyard.pipeline.writing.tasks import WriteResult, write_rows

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from tiltyard.pipeline.catalog_client import Table
    from tiltyard.pipeline.datasource.options import DataSourceOptions
    from tiltyard.pipeline.writing.options import WriteOptions
    from tiltyard.pipeline.writing.target_table import TargetTable, WriteMode

_LINEAGE = JobLineage("write", (LineageSource("memory:pyspark.DataFrame"),))
"""Spark tells a data source nothing of where the rows that it writes come from."""


@dataclass
class WrittenPartition(WriterCommitMessage):
    """What a task has written."""

    result: WriteResult


class TableWriter(DataSourceArrowWriter):
    """Appends rows (creating a missing table), replaces all rows, or upserts by a key."""

    def __init__(self, options: DataSourceOptions, schema: StructType, overwrite: bool, run: str | None = None) -> None:
        from tiltyard.pipeline.catalog_client import connection, table  # noqa: PLC0415  # tasks do not import the client
        from tiltyard.pipeline.writing.commit import check_column_list  # noqa: PLC0415  # the same
        from tiltyard.pipeline.writing.options import WriteOptions  # noqa: PLC0415  # the same
        from tiltyard.pipeline.writing.target_table import WriteMode, prepare_target  # noqa: PLC0415  # the same
        from tiltyard.pipeline.writing.write_job import lineage_of_columns, plan_rows  # noqa: PLC0415  # the same

        self._stream, self._batch = options.values.get("stream"), options.number("batch")
        if self._batch is not None and not self._stream:
            raise RefusedError("Set the option 'stream', too: batches are identified by its name and their number.")
        if options.branch or options.version is not None:
            raise RefusedError("Rows are written to the newest version of main: leave out version, tag and branch.")
        self._run = run or uuid.uuid4().hex
        catalog = connection(options.uri, options.properties, options.storage)
        catalog_table, on = table(catalog, options.table), options.names("on") or []
        if on and overwrite:
            raise RefusedError("With the option 'on' rows are upserted: write in the mode append.")
        mode: WriteMode = WriteMode.OVERWRITE if overwrite else WriteMode.APPEND if on else _append_mode(catalog_table)
        target = prepare_target(LocalRun(self._run), catalog_table, mode, _LINEAGE)
        if on and target.schema is None:
            raise RefusedError(f"{target.table} has no rows yet: append to it first, then upsert.")
        if on and target.schema is not None:
            check_column_list(target.schema, on, "The option on")
        try:
            rows = WriteOptions.of(options.row_arguments(), mode, on or None, must_exist=options.must_exist)
            self._spec = plan_rows(LocalRun(self._run), arrow_schema(schema), target, rows)
        except Exception:
            target.discard_writes([])  # drops the table, if it was declared just now
            raise
        read = ReadColumns.of_source(schema.names)
        target = replace(target, lineage=lineage_of_columns(_LINEAGE, self._spec, read, rows))
        self._plan = pickle.dumps((target, rows))  # tasks receive it too, and would import the client to unpickle it

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenPartition:
        """Write a partition. Runs in a task. Raises RefusedError for a value that the table cannot hold."""
        tune_allocator()
        context = TaskContext.get()
        number = 0 if context is None else context.partitionId()
        return WrittenPartition(write_rows(self._spec, iterator, f"partition-{number}"))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit all rows at once; a batch that the options name, only once."""
        if self._stream and self._batch is not None:
            self.commit_batch(messages, self._stream, self._batch)
            return
        self._commit(LocalRun(self._run), _results_of(messages))

    def commit_batch(self, messages: Sequence[WriterCommitMessage | None], stream: str, batch: int) -> None:
        """Commit a batch of a stream, unless it or a later one is committed already."""
        target, _ = self._unpickle_plan()
        last = target.last_run_suffix(f"stream-{stream}-")
        if last is not None and int(last) >= batch:
            target.discard_writes(_fragments_of(messages))
            return
        self._commit(LocalRun(f"stream-{stream}-{batch}"), _results_of(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Delete the files of tasks that had ended.

        Where all had ended, the commit was tried: it may have happened, with its response lost. Then the files stay,
        and gc deletes those that no version names.
        """
        if not all(isinstance(message, WrittenPartition) for message in messages):
            self._unpickle_plan()[0].discard_writes(_fragments_of(messages))

    def _commit(self, run: LocalRun, results: Sequence[WriteResult]) -> None:
        from tiltyard.pipeline.writing.write_job import check_rows, commit_rows, discarding  # noqa: PLC0415  # see above

        target, options = self._unpickle_plan()
        with discarding(run, target, results, can_resume=False, is_committing=True):
            written = check_rows(run, None, target, self._spec, results, options.on)
            commit_rows(run, target, written, options, None)

    def _unpickle_plan(self) -> tuple[TargetTable, WriteOptions]:
        plan: tuple[TargetTable, WriteOptions] = pickle.loads(self._plan)  # noqa: S301  # from __init__
        return plan


def _append_mode(table: Table) -> WriteMode:
    """Return APPEND, or CREATE for a missing table."""
    from lance_namespace.errors import TableNotFoundError  # noqa: PLC0415  # tasks do not import the client

    from tiltyard.pipeline.writing.target_table import WriteMode  # noqa: PLC0415  # the same

    try:
        table.describe()
    except TableNotFoundError:
        return WriteMode.CREATE
    return WriteMode.APPEND


def _results_of(messages: Sequence[WriterCommitMessage | None]) -> list[WriteResult]:
    return [message.result for message in messages if isinstance(message, WrittenPartition)]


def _fragments_of(messages: Sequence[WriterCommitMessage | None]) -> list[str]:
    return [fragment for result in _results_of(messages) for fragment in result.fragments]
