"""Read Lance fragments as a DataFrame: each task reads its own with pylance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

import lance
import pyarrow as pa

from tiltyard.pipeline.datasource.spark_types import batch_schema, cast_for_spark, spark_schema
from tiltyard.pipeline.private_variables import set_task_variables
from tiltyard.pipeline.session import task_slots
from tiltyard.pipeline.spark_tasks import group_neighbors, task_variables
from tiltyard.pipeline.table_location import TableLocation
from tiltyard.pipeline.writing.fragments import FragmentRows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class TaskRows(Protocol):
    """The input of a task: rows of a table."""

    def read(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows, with these columns."""


def plan_version_scan(
    spark: SparkSession, location: TableLocation, dataset: lance.LanceDataset, only: frozenset[int] | None = None
) -> list[FragmentRows]:
    """Return tasks that read all fragments of a version, or some of them."""
    fragments = [fragment for fragment in dataset.get_fragments() if only is None or fragment.fragment_id in only]
    sizes = [(fragment.fragment_id, fragment.metadata.num_rows) for fragment in fragments]
    return [
        FragmentRows(location, int(dataset.version), group) for group in group_neighbors(sizes, task_slots(spark) * 2)
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
