"""Rows that are not files, of a DataFrame or of an Arrow stream in this process: ingest and upsert them.

A DataFrame's partitions are written by Spark's tasks. An Arrow stream is written by this process as it is read, batch
by batch, without Spark and without temporary files; the commit is the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
from lance_namespace.errors import InvalidInputError, TableNotFoundError

from tiltyard.model.refusals import RefusedError
from tiltyard.pipeline.catalog_client import Table
from tiltyard.pipeline.runs import Run, RunCanceledError
from tiltyard.pipeline.session import LazySession
from tiltyard.pipeline.sources.casts import check_time_zones, select_columns
from tiltyard.pipeline.sources.text_blocks import RejectedRow
from tiltyard.pipeline.upsert.job import upsert_fragments
from tiltyard.pipeline.writing.commit import KEY_ERRORS, check_column_list
from tiltyard.pipeline.writing.fragments import parse_fragments
from tiltyard.pipeline.writing.options import (
    WriteOptions,
    check_written,
    count_written,
    make_write_spec,
)
from tiltyard.pipeline.writing.target_table import TargetTable, WriteMode, prepare_target
from tiltyard.pipeline.writing.tasks import WriteResult, WriteSpec, transform_rows, write_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tiltyard.model.lineage import JobLineage

MAX_BATCH_ROWS = 1 << 16
"""A batch of an Arrow stream is written in slices of at most so many rows, between which a run can be canceled."""

_REFUSALS = (RefusedError, InvalidInputError, RunCanceledError, *KEY_ERRORS)
"""Errors of a commit after which nothing is visible; after any other one, what happened may be unknown."""


class Rows(Protocol):
    """Rows to write, which can be read once."""

    def write_spec(self, run: Run, target: TargetTable, options: WriteOptions) -> WriteSpec:
        """Return how the rows become rows of the table. Raises RefusedError."""

    def write(self, run: Run, spec: WriteSpec) -> list[WriteResult]:
        """Write the rows, without a version that names them. Raises RefusedError, RunCanceledError."""

    @property
    def session(self) -> SparkSession | None:
        """The Spark session that the rows come from; None for rows of this process."""

    @property
    def check_session(self) -> SparkSession | LazySession:
        """The Spark session that checks more keys than this process holds."""


@dataclass(frozen=True, slots=True)
class FrameRows:
    """The rows of a DataFrame of Spark."""

    frame: DataFrame

    def write_spec(self, run: Run, target: TargetTable, options: WriteOptions) -> WriteSpec:
        from tiltyard.pipeline.datasource.dataframes import frame_write_spec  # noqa: PLC0415  # an extra: PySpark

        return frame_write_spec(run, self.frame, target, options)

    def write(self, run: Run, spec: WriteSpec) -> list[WriteResult]:
        from tiltyard.pipeline.datasource.dataframes import write_partitions  # noqa: PLC0415  # an extra: PySpark

        return write_partitions(run, self.frame, spec)

    @property
    def session(self) -> SparkSession | None:
        return self.frame.sparkSession

    @property
    def check_session(self) -> SparkSession | LazySession:
        return self.frame.sparkSession


@dataclass(slots=True)
class StreamRows:
    """The rows of an Arrow stream; `start_session` is called where a check counts more keys than this process holds."""

    reader: pa.RecordBatchReader
    start_session: Callable[[], SparkSession]
    _first: pa.RecordBatch | None = None

    def write_spec(self, run: Run, target: TargetTable, options: WriteOptions) -> WriteSpec:
        """Return how the rows become rows of the table; a user's function is tried on the first ones."""
        columns = tuple(select_columns(self.reader.schema, options.columns))
        schema = pa.schema([column.field for column in columns])
        storage = dict(target.table.connection.storage)
        if options.udf is not None:
            trial = WriteSpec(run.id, target.fragment_target(schema), columns, options.udf, rejects=options.rejects)
            self._first = next((batch for batch in self._slices() if batch.num_rows), None)
            results = transform_rows(trial, [] if self._first is None else [self._first])
            inferred = next((batch.schema for batch in results if not isinstance(batch, RejectedRow)), None)
            if inferred is None:
                raise RefusedError("The UDF takes none of the first rows.")
            schema = inferred
        spec = make_write_spec(run, target, options, chosen_schema=schema, columns=columns, storage=storage)
        if options.udf is None:
            check_time_zones(schema, spec.target.schema)
        return spec

    def write(self, run: Run, spec: WriteSpec) -> list[WriteResult]:
        return [write_rows(spec, self._counted(run), "stream")]

    @property
    def session(self) -> SparkSession | None:
        return None

    @property
    def check_session(self) -> SparkSession | LazySession:
        return LazySession(self.start_session)

    def _slices(self) -> Iterator[pa.RecordBatch]:
        for batch in self.reader:
            for start in range(0, batch.num_rows, MAX_BATCH_ROWS):
                yield batch.slice(start, MAX_BATCH_ROWS)

    def _counted(self, run: Run) -> Iterator[pa.RecordBatch]:
        """Yield the rows; they are the run's figures. Raises RunCanceledError."""
        rows = 0
        for batch in itertools.chain([] if self._first is None else [self._first], self._slices()):
            rows += batch.num_rows
            run.progress(rows=rows)
            yield batch


def ingest_rows(
    run: Run, rows: Rows, table: Table, options: WriteOptions, lineage: JobLineage | None = None
) -> Mapping[str, object]:
    """Write rows to a table in one commit, checked; return the figures.

    Raises InvalidInputError, RunCanceledError, what `prepare_target`, the rows themselves and the commit raise; nothing
    is visible then.
    """
    target = prepare_target(run, table, options.mode, lineage)
    with _discarding(target) as results:
        spec = rows.write_spec(run, target, options)
        results.extend(rows.write(run, spec))
        figures = count_written(results)
        run.progress(**{name: figures[name] for name in ("rows", "fragments", "bytes")})
        checked = check_written(run, rows.check_session, target, spec, results)
    with _discarding(target, results, _REFUSALS):
        version = target.commit(run, _fragments(results), spec.target.schema, checked.properties)
    return {**figures, "version": version, **checked.figures}


def upsert_rows(
    run: Run,
    rows: Rows,
    table: Table,
    options: WriteOptions,
    on: Sequence[str],
    lineage: JobLineage | None = None,
) -> Mapping[str, object]:
    """Replace the rows of a table that have a key of these, and insert the others; return the figures.

    Raises TableNotFoundError, what `upsert_fragments` and the rows themselves raise; nothing is visible then.
    """
    target = prepare_target(run, table, WriteMode.APPEND)
    if target.schema is None:
        raise TableNotFoundError(f"{table} has no rows yet: ingest into it first.")
    with _discarding(target) as results:
        check_column_list(target.schema, on, "The key (on)")
        spec = rows.write_spec(run, target, replace(options, mode=WriteMode.APPEND))
        results.extend(rows.write(run, spec))
    with _discarding(target, results, _REFUSALS):
        fragments = parse_fragments(_fragments(results))
        upserted = upsert_fragments(run, table, rows.session, fragments, on, since=target.base, lineage=lineage)
    return {**upserted.figures(), "rejected": sum(result.rejected for result in results)}


def _fragments(results: Sequence[WriteResult]) -> list[str]:
    return [fragment for result in results for fragment in result.fragments]


@contextmanager
def _discarding(
    target: TargetTable,
    results: list[WriteResult] | None = None,
    errors: tuple[type[BaseException], ...] = (BaseException,),
) -> Iterator[list[WriteResult]]:
    """Yield the list of what is written; if the block fails with one of these errors, nothing of it was committed.

    Its files are deleted then, with the table where this run has declared it. A RefusedError becomes InvalidInputError.
    """
    written = [] if results is None else results
    try:
        yield written
    except errors as error:
        target.discard_writes(_fragments(written))
        if isinstance(error, RefusedError):
            raise InvalidInputError(str(error)) from error
        raise
