"""Rows of Lance files as DataFrames: each task reads the fragments that it is told of, with pylance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import lance
import pyarrow as pa

from tiltyard.pipeline.datasource.reader import grouped
from tiltyard.pipeline.datasource.spark_types import batch_schema, for_spark, spark_schema
from tiltyard.pipeline.driver.environment import set_in_task
from tiltyard.pipeline.session import task_slots
from tiltyard.pipeline.spark_tasks import task_variables
from tiltyard.pipeline.table_location import TableLocation
from tiltyard.pipeline.writing.fragments import FragmentRows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def rows_of_version(
    spark: SparkSession, location: TableLocation, dataset: lance.LanceDataset, only: frozenset[int] | None = None
) -> list[FragmentRows]:
    """Tasks for all fragments of a version, or for some of them."""
    parts = [part for part in dataset.get_fragments() if only is None or part.fragment_id in only]
    sizes = [(part.fragment_id, part.metadata.num_rows) for part in parts]
    return [FragmentRows(location, int(dataset.version), group) for group in grouped(sizes, task_slots(spark) * 2)]


def shown(
    spark: SparkSession, schema: pa.Schema, tasks: Sequence[FragmentRows], needed: frozenset[str] | None = None
) -> DataFrame:
    """The rows of tasks as a DataFrame. Columns that are not `needed` are null: they are not read.

    Raises RefusedError for a column that Spark has no type for; a task raises it for such a value.
    """
    shape = spark_schema(schema)
    wanted = batch_schema(shape)
    read = [name for name in wanted.names if needed is None or name in needed] or wanted.names[:1]

    variables = task_variables(spark)

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        set_in_task(variables)
        for number in (number for batch in batches for number in batch.column(0).to_pylist()):
            yield from for_spark(tasks[number].read(read), wanted, read)

    return spark.range(0, len(tasks), 1, max(1, len(tasks))).mapInArrow(rows, shape)
