"""Whether keys are unique in rows that are not committed yet, together with those that are: counted by Spark itself.

Tasks read only the key columns, and hand them to a Spark aggregation, which spills and shuffles as far as it must.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from tiltyard.pipeline.driver.environment import set_in_task
from tiltyard.pipeline.spark_tasks import task_variables
from tiltyard.pipeline.table_location import TableLocation
from tiltyard.pipeline.writing.fragments import FragmentRows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TASKS = 64


def count_duplicate_keys(
    spark: SparkSession, location: TableLocation, columns: Sequence[str], fresh: Sequence[str], version: int
) -> int:
    """How many keys are there more than once, in the fragments `fresh` and the table at `version` (0: none)."""
    old = [part.fragment_id for part in location.open(version).get_fragments()] if version else []
    tasks = [FragmentRows(location, files=part) for part in _split(fresh)]
    tasks += [FragmentRows(location, version, part) for part in _split(old)]
    if not tasks:
        return 0
    count = len(tasks)
    keys = spark.range(0, count, 1, count).mapInArrow(_read_keys(tasks, columns, task_variables(spark)), "k binary")
    found = keys.groupBy("k").count().where("count > 1").count()
    return int(found)


def _split(parts: Sequence[Any]) -> list[tuple[Any, ...]]:
    size = -(-len(parts) // _TASKS)
    return [tuple(parts[first : first + size]) for first in range(0, len(parts), size)] if parts else []


def _read_keys(tasks: Sequence[FragmentRows], columns: Sequence[str], variables: Mapping[str, str]) -> Any:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        set_in_task(variables)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for keys in tasks[number].read(columns):
                    yield pa.record_batch([_to_binary(keys)], ["k"])

    return run


def _to_binary(keys: pa.RecordBatch) -> pa.Array:
    """Keys as bytes, without those that have a null. Two keys are the same bytes only if they are the same.

    Of several columns, each text but the last has its length before it.
    """
    valid = [column.is_valid() for column in keys.columns]
    keys = keys.filter(functools.reduce(pc.and_, valid))
    texts = [_to_text(column) for column in keys.columns]
    found = texts[-1]
    for text in reversed(texts[:-1]):
        length = pc.binary_length(text).cast(pa.string()).cast(pa.binary())
        found = pc.binary_join_element_wise(length, text, found, b":")
    return found


def _to_text(column: pa.Array) -> pa.Array:
    """Values as the bytes of their text; bytes as they are."""
    plain = pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)
    return (column if plain else column.cast(pa.string())).cast(pa.binary())
