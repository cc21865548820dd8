"""The sources of a write job: files, a DataFrame of Spark, an Arrow stream of this process.

Files are read by Spark's tasks, or by threads of this process where they are small, piece by piece; what pieces have
become is kept, so that a driver that goes on does not repeat it. A DataFrame's partitions are written by Spark's tasks.
A stream is written by this process as it is read, batch by batch, without temporary files.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tiltyard.model.columns.lineage import ReadColumns
from tiltyard.model.lineage import LineageSource
from tiltyard.model.refusals import RefusedError
from tiltyard.pipeline.runs import Run
from tiltyard.pipeline.session import LazySession, started, task_slots
from tiltyard.pipeline.sources.casts import ColumnSelection
from tiltyard.pipeline.sources.discovery import FileSource, SourceOptions, find_source, group_pieces, spark_inspector
from tiltyard.pipeline.sources.file_options import SPARK_FORMATS, FileOptions, given_options, pick_options
from tiltyard.pipeline.sources.filesystem import absolute_path
from tiltyard.pipeline.sources.inspection import adapt_to_table, inferred_casts
from tiltyard.pipeline.spark_tasks import run_partitions, run_tasks
from tiltyard.pipeline.task_errors import clean_message
from tiltyard.pipeline.writing.fragments import delete_fragment_files, fragment_files_exist, sync_fragments
from tiltyard.pipeline.writing.options import WriteOptions
from tiltyard.pipeline.writing.tasks import (
    PieceGroup,
    WriteResult,
    WriteSpec,
    infer_partition_schema,
    infer_schema,
    write_partition,
    write_pieces,
    write_rows,
)
from tiltyard.pipeline.writing.write_job import RowSource, fragments_of, saved_results, show_written
from tiltyard.runtime.pool import start_thread

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

    from tiltyard.pipeline.table_location import CatalogConnection

MAX_DRIVER_BYTES = 128 << 20
"""Files of up to so many bytes are written by threads of this process: starting Spark's tasks takes longer."""
MAX_BATCH_ROWS = 1 << 16
"""A batch of an Arrow stream is written in slices of at most so many rows, between which a run can be canceled."""
_TRIAL_ROWS = 100
"""Rows of a DataFrame on which a user's function is tried, to learn its columns."""
_SLOTS_KEY = "shares"


def open_files(
    run: Run,
    catalog: CatalogConnection,
    spark: SparkSession | LazySession,
    path: str,
    arguments: Mapping[str, Any],
    selection: ColumnSelection,
) -> RowSource:
    """Open files by the arguments of a job: as a DataFrame where Spark reads them. Raises RefusedError."""
    files, path = pick_options(FileOptions, arguments), absolute_path(path)
    if (kind := _spark_format(path, files.get("format"))) is not None:
        frame = _read_spark_files(started(spark), path, kind, files)
        return FrameRows((LineageSource.of_uri(path),), frame)
    options = SourceOptions.of(path, files, selection, dict(catalog.storage))
    found = find_source(options, spark_inspector(run, spark))
    return FileRows((LineageSource.of_uri(path),), found, spark, options.task_bytes)


def _spark_format(path: str, format_: str | None) -> str | None:
    """Return the format of files that Spark reads, by its name or by that of the files; None for any other one."""
    if format_ is not None:
        return format_ if format_ in SPARK_FORMATS else None
    extension = path.lower().rpartition(".")[2]
    return extension if extension in SPARK_FORMATS else None


def _read_spark_files(spark: SparkSession, path: str, format_: str, options: FileOptions) -> DataFrame:
    """Return the rows of files as a DataFrame.

    `options` are those of other formats, none of which may be set but `format` itself. Raises RefusedError, also for
    files that are not there, and where Spark lacks the format's package.
    """
    from pyspark.errors import AnalysisException  # noqa: PLC0415  # an extra

    if given := [name for name in given_options(options) if name != "format"]:
        raise RefusedError(f"{given[0]} is no option of {format_}, which Spark reads: leave it out.")
    try:
        return spark.read.format(format_).load(path)
    except AnalysisException as error:
        if format_ == "avro" and "avro" in str(error).lower() and "path" not in str(error.getCondition() or "").lower():
            raise RefusedError(
                "Spark reads Avro by a package of its own: name it by --conf "
                f"spark.jars.packages=org.apache.spark:spark-avro_2.13:{spark.version}."
            ) from error
        raise RefusedError(f"{path} cannot be read as {format_}: {clean_message(error).splitlines()[0]}.") from error


@dataclass(slots=True)
class FileRows(RowSource):
    """The rows of files."""

    can_resume = True
    source: FileSource
    spark: SparkSession | LazySession
    task_bytes: int

    @property
    def schema(self) -> pa.Schema:
        return self.source.reader.schema

    @property
    def session(self) -> SparkSession | LazySession:
        return self.spark

    def adapt(self, table: pa.Schema, options: WriteOptions) -> None:
        self.source = replace(self.source, reader=adapt_to_table(self.source.reader, table, options.columns))

    def try_function(self, run: Run, trial: WriteSpec) -> pa.Schema | None:
        work = partial(infer_schema, trial, self.source.reader)
        resources = trial.resources
        return run_tasks(self.spark, run, work, self.source.pieces[:1], name="try the UDF", resources=resources)[0]

    def figures(self) -> dict[str, object]:
        """Return the figure `guessed` where types were inferred: options that would choose them."""
        text = inferred_casts(self.source.reader)
        return {"guessed": text} if text else {}

    def write(self, run: Run, spec: WriteSpec) -> list[WriteResult]:
        """Write all piece groups.

        Groups that an earlier driver of this run has written are skipped if their files still exist.
        """
        is_small = spec.udf is None and self.source.size <= MAX_DRIVER_BYTES
        session = None if is_small else self.spark
        syncs_later = is_small and spec.may_sync_later
        spec = replace(spec, target=replace(spec.target, syncs_later=syncs_later))
        checkpoints = run.checkpoints()
        slots = int(checkpoints[_SLOTS_KEY]) if _SLOTS_KEY in checkpoints else task_slots(session)  # of all drivers
        if _SLOTS_KEY not in checkpoints:
            run.save_checkpoint(_SLOTS_KEY, str(slots))
        key, pieces = self.source.reader.key, group_pieces(self.source.pieces, slots, self.task_bytes)
        groups = [PieceGroup(part, key) for part in pieces]
        saved, location = saved_results(run), spec.target.location
        reusable = {group.key: saved[group.key] for group in groups if group.key in saved}
        results = {key: result for key, result in reusable.items() if fragment_files_exist(location, result.fragments)}
        remaining = [group for group in groups if group.key not in results]
        stale = [result for key, result in saved.items() if key not in reusable]  # their source files have changed
        delete_fragment_files(location, fragments_of(stale))

        syncs: list[Future[None] | None] = []

        def sync_and_save(key: str, result: WriteResult) -> None:
            sync_fragments(spec.target, result.fragments)
            run.save_checkpoint(key, result.to_json())

        def save(position: int, result: WriteResult) -> None:
            key = remaining[position].key
            if syncs_later:
                result = replace(result, sync=start_thread("sync", partial(sync_and_save, key, result)))
                syncs.append(result.sync)
            else:
                run.save_checkpoint(key, result.to_json())
            results[key] = result
            show_written(run, list(results.values()), tasks=len(results), tasks_total=len(groups))

        work, name = partial(write_pieces, spec, self.source.reader), f"write {run.id}"
        try:
            run_tasks(session, run, work, remaining, on_result=save, name=name, resources=spec.resources)
        except BaseException:
            wait(filter(None, syncs))
            raise
        return [results[group.key] for group in groups]


@dataclass(slots=True)
class FrameRows(RowSource):
    """The rows of a DataFrame of Spark."""

    frame: DataFrame
    read: ReadColumns | None = None
    """What its columns are made from; None where they are those of its one source."""

    @property
    def columns(self) -> ReadColumns:
        return self.read or ReadColumns.of_source(self.frame.columns)

    @property
    def schema(self) -> pa.Schema:
        from tiltyard.pipeline.datasource.spark_types import arrow_schema  # noqa: PLC0415  # an extra: PySpark

        return arrow_schema(self.frame.schema)

    @property
    def session(self) -> SparkSession:
        return self.frame.sparkSession

    def try_function(self, run: Run, trial: WriteSpec) -> pa.Schema | None:
        rows, work = self.frame.limit(_TRIAL_ROWS).coalesce(1), partial(infer_partition_schema, trial)
        schemas = run_partitions(self.session, run, rows, work, name="try the UDF", resources=trial.resources)
        return next((inferred for inferred in schemas if inferred is not None), None)

    def write(self, run: Run, spec: WriteSpec) -> list[WriteResult]:
        return write_partitions(run, self.frame, spec)


def write_partitions(run: Run, frame: DataFrame, spec: WriteSpec) -> list[WriteResult]:
    """Write the rows of each partition, without a version that names them. Raises RefusedError, RunCanceledError."""
    work, name = partial(write_partition, spec), f"write {run.id}"
    outcomes = run_partitions(
        frame.sparkSession, run, frame, work, name=name, reports_tasks=True, resources=spec.resources
    )
    results = [outcome for outcome in outcomes if isinstance(outcome, WriteResult)]
    if len(results) < len(outcomes):
        delete_fragment_files(spec.target.location, fragments_of(results))
        raise RefusedError(next(outcome for outcome in outcomes if isinstance(outcome, str)))
    return results


@dataclass(slots=True)
class StreamRows(RowSource):
    """The rows of an Arrow stream; `start_session` is called where a check counts more keys than this process holds."""

    reader: pa.RecordBatchReader
    start_session: Callable[[], SparkSession]
    read: ReadColumns | None = None
    """What its columns are made from; None where they are those of its one source."""
    _first: pa.RecordBatch | None = None

    @property
    def columns(self) -> ReadColumns:
        return self.read or ReadColumns.of_source(self.reader.schema.names)

    @property
    def schema(self) -> pa.Schema:
        return self.reader.schema

    @property
    def session(self) -> LazySession:
        return LazySession(self.start_session)

    @property
    def lookup(self) -> None:
        """Return None: rows of this process need no Spark."""

    def try_function(self, run: Run, trial: WriteSpec) -> pa.Schema | None:
        self._first = next((batch for batch in self._slices() if batch.num_rows), None)
        return infer_partition_schema(trial, 0, iter([] if self._first is None else [self._first]))

    def write(self, run: Run, spec: WriteSpec) -> list[WriteResult]:
        return [write_rows(spec, self._counted(run), "stream")]

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
