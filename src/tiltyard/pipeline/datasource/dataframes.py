"""DataFrames of jobs: write any (SQL, JDBC, a join) to a table, and read Lance fragments as one.

Arrow batches of Spark's partitions become Lance files in tasks, and one commit; each task reads its fragments with
pylance.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

import lance
import pyarrow as pa

from tiltyard.model.refusals import RefusedError
from tiltyard.pipeline.catalog_client import Table
from tiltyard.pipeline.datasource.spark_types import arrow_schema, batch_schema, cast_for_spark, spark_schema
from tiltyard.pipeline.private_variables import set_task_variables
from tiltyard.pipeline.runs import Run
from tiltyard.pipeline.session import task_slots
from tiltyard.pipeline.sources.casts import select_columns
from tiltyard.pipeline.spark_tasks import run_partitions, task_variables
from tiltyard.pipeline.table_location import TableLocation
from tiltyard.pipeline.writing.fragments import FragmentRows, group_by_rows
from tiltyard.pipeline.writing.options import WriteOptions, make_write_spec
from tiltyard.pipeline.writing.target_table import TargetTable
from tiltyard.pipeline.writing.tasks import WriteResult, WriteSpec, infer_partition_schema, write_partition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TRIAL_ROWS = 100
"""Rows on which a user's function is tried, to learn its columns."""


class TaskRows(Protocol):
    """The input of a task: rows of a table."""

    def read(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows, with these columns."""


def write_frame(run: Run, frame: DataFrame, table: Table, options: WriteOptions) -> Mapping[str, object]:
    """Write a DataFrame's rows to a table; return the figures.

    Each partition becomes a fragment, or several if it is large.

    Nothing is visible until all rows are written and checked. Raises InvalidInputError, RunCanceledError, what
    `prepare_target` and the commit raise.
    """
    from tiltyard.pipeline.writing.row_sources import FrameRows, ingest_rows  # noqa: PLC0415  # it uses this module

    return ingest_rows(run, FrameRows(frame), table, options)


def write_partitions(run: Run, frame: DataFrame, spec: WriteSpec) -> list[WriteResult]:
    """Write the rows of each partition, without a version that names them. Raises RefusedError, RunCanceledError."""
    work = partial(write_partition, spec)
    return run_partitions(
        frame.sparkSession, run, frame, work, name=f"write {run.id}", reports_tasks=True, resources=spec.resources
    )


def frame_write_spec(run: Run, frame: DataFrame, target: TargetTable, options: WriteOptions) -> WriteSpec:
    """Return how a DataFrame's rows become rows of the table. A user's function is tried on the first rows."""
    columns = tuple(select_columns(arrow_schema(frame.schema), options.columns))
    schema = pa.schema([column.field for column in columns])
    if options.udf is not None:
        trial = WriteSpec(run.id, target.fragment_target(schema), columns, options.udf, rejects=options.rejects)
        first_rows = frame.limit(_TRIAL_ROWS).coalesce(1)
        schemas = run_partitions(
            frame.sparkSession,
            run,
            first_rows,
            partial(infer_partition_schema, trial),
            name="try the UDF",
            resources=options.udf.resources,
        )
        schema = next((inferred for inferred in schemas if inferred is not None), None)
        if schema is None:
            raise RefusedError(f"The UDF takes none of the first {_TRIAL_ROWS} rows.")
    storage = dict(target.table.connection.storage)
    return make_write_spec(run, target, options, chosen_schema=schema, columns=columns, storage=storage)


def plan_version_scan(
    spark: SparkSession, location: TableLocation, dataset: lance.LanceDataset, only: frozenset[int] | None = None
) -> list[FragmentRows]:
    """Return tasks that read all fragments of a version, or some of them."""
    fragments = [fragment for fragment in dataset.get_fragments() if only is None or fragment.fragment_id in only]
    sizes = [(fragment.fragment_id, fragment.metadata.num_rows) for fragment in fragments]
    return [
        FragmentRows(location, int(dataset.version), group) for group in group_by_rows(sizes, task_slots(spark) * 2)
    ]


def read_frame(
    spark: SparkSession, schema: pa.Schema, tasks: Sequence[TaskRows], needed: frozenset[str] | None = None
) -> DataFrame:
    """Return the rows of tasks as a DataFrame. Columns that are not `needed` are null, and not read.

    Raises RefusedError for a column that Spark has no type for; a task raises it for a value that does not fit.
    """
    columns = spark_schema(schema)
    arrow_columns = batch_schema(columns)
    names = [name for name in arrow_columns.names if needed is None or name in needed] or arrow_columns.names[:1]

    variables = task_variables(spark)

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        set_task_variables(variables)
        for number in (number for batch in batches for number in batch.column(0).to_pylist()):
            yield from cast_for_spark(tasks[number].read(names), arrow_columns, names)

    return spark.range(0, len(tasks), 1, max(1, len(tasks))).mapInArrow(rows, columns)
