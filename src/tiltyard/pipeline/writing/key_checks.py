"""Check the keys of new rows against other rows: those of the table (`unique`), or of another one (`foreign_key`).

Tasks read only the key columns, and Spark aggregates or joins them, which spills and shuffles as needed; few keys are
compared in this process. Keys that contain a null equal no other, and refer to none.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from tiltyard.model.refusals import RefusedError
from tiltyard.model.typed_ids import parse_typed_id
from tiltyard.pipeline.private_variables import set_task_variables
from tiltyard.pipeline.spark_tasks import task_variables
from tiltyard.pipeline.writing.fragments import FragmentRows
from tiltyard.pipeline.writing.quality_checks import QualityCheck

if TYPE_CHECKING:
    import lance
    from pyspark.sql import DataFrame, SparkSession

    from tiltyard.pipeline.catalog_client import Table
    from tiltyard.pipeline.table_location import TableLocation

_MAX_SCAN_TASKS = 64
MAX_KEYS_IN_DRIVER = 1_000_000
"""Up to so many keys are counted in this process: starting Spark's tasks takes longer."""


@dataclass(frozen=True, slots=True)
class ReferencedColumn:
    """The column of another table that a foreign key refers to, at the version that is the newest now."""

    column: str
    location: TableLocation
    dataset: lance.LanceDataset

    @classmethod
    def find(cls, check: QualityCheck, table: Table, schema: pa.Schema) -> ReferencedColumn:
        """Return the column that a check of rows for `table` names. Raises RefusedError, TableNotFoundError."""
        try:
            *path, column = parse_typed_id(check.arguments[1])
        except ValueError as error:
            raise RefusedError(f"The check {check.text}: {error}") from error
        if not path:
            raise RefusedError(f"The check {check.text}: name a column of a table, as genres.name.")
        other = replace(table, path=tuple(path))
        dataset = other.dataset()
        if column not in dataset.schema.names:
            raise RefusedError(f"The check {check.text}: {other} has no column '{column}'.")
        own, referenced = schema.field(check.arguments[0]).type, dataset.schema.field(column).type
        if own != referenced and not (pa.types.is_integer(own) and pa.types.is_integer(referenced)):
            raise RefusedError(f"The check {check.text}: '{check.arguments[0]}' is {own}, and '{column}' {referenced}.")
        return cls(column, other.location(), dataset)

    def read(self) -> list[FragmentRows]:
        """Return the tasks that read it."""
        return _table_rows(self.location, int(self.dataset.version))


def count_duplicate_keys(
    spark: SparkSession | None, location: TableLocation, columns: Sequence[str], fresh: Sequence[str], version: int
) -> int:
    """Count the keys that occur more than once in the fragments `fresh` and the table at `version` (0: none).

    Without a session they are counted in this process, whose memory then holds them.
    """
    tasks = new_rows(location, fresh) + _table_rows(location, version)
    if not tasks:
        return 0
    if spark is None:
        counts = pc.value_counts(_read_here(tasks, columns)).field("counts")
        return int(pc.sum(pc.greater(counts, 1)).as_py() or 0)
    keys = _read_in_tasks(spark, tasks, columns)
    return int(keys.groupBy("k").count().where("count > 1").count())


def count_missing_keys(
    spark: SparkSession | None, location: TableLocation, column: str, fresh: Sequence[str], other: ReferencedColumn
) -> int:
    """Count the keys in the fragments `fresh` that the other column does not have, each once; see above for `spark`."""
    tasks, known_tasks = new_rows(location, fresh), other.read()
    if not tasks:
        return 0
    if spark is None:
        keys = pc.unique(_read_here(tasks, [column]))
        is_known = pc.is_in(keys, value_set=_read_here(known_tasks, [other.column]))
        return int(pc.sum(pc.invert(is_known)).as_py() or 0)
    new_keys = _read_in_tasks(spark, tasks, [column]).distinct()
    if not known_tasks:
        return int(new_keys.count())
    return int(new_keys.join(_read_in_tasks(spark, known_tasks, [other.column]), "k", "left_anti").count())


def new_rows(location: TableLocation, fresh: Sequence[str]) -> list[FragmentRows]:
    """Return the tasks that read fragments of no version yet."""
    return [FragmentRows(location, files=part) for part in _split(fresh)]


def _table_rows(location: TableLocation, version: int) -> list[FragmentRows]:
    numbers = [part.fragment_id for part in location.open(version).get_fragments()] if version else []
    return [FragmentRows(location, version, part) for part in _split(numbers)]


def _read_here(tasks: Sequence[FragmentRows], columns: Sequence[str]) -> pa.ChunkedArray:
    return pa.chunked_array([_to_binary(batch) for task in tasks for batch in task.read(columns)], pa.binary())


def _read_in_tasks(spark: SparkSession, tasks: Sequence[FragmentRows], columns: Sequence[str]) -> DataFrame:
    """Return the keys in the column `k`, a Spark task for each."""
    count = len(tasks)
    return spark.range(0, count, 1, count).mapInArrow(_read_keys(tasks, columns, task_variables(spark)), "k binary")


def _split(parts: Sequence[Any]) -> list[tuple[Any, ...]]:
    size = -(-len(parts) // _MAX_SCAN_TASKS)
    return [tuple(parts[first : first + size]) for first in range(0, len(parts), size)] if parts else []


def _read_keys(tasks: Sequence[FragmentRows], columns: Sequence[str], variables: Mapping[str, str]) -> Any:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        set_task_variables(variables)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for keys in tasks[number].read(columns):
                    yield pa.record_batch([_to_binary(keys)], ["k"])

    return run


def _to_binary(keys: pa.RecordBatch) -> pa.Array:
    """Encode keys as bytes, equal only for equal keys; keys with a null are left out.

    Of several columns, each text but the last is preceded by its length.
    """
    valid = [column.is_valid() for column in keys.columns]
    keys = keys.filter(functools.reduce(pc.and_, valid))
    texts = [_to_text(column) for column in keys.columns]
    encoded = texts[-1]
    for text in reversed(texts[:-1]):
        length = pc.binary_length(text).cast(pa.string()).cast(pa.binary())
        encoded = pc.binary_join_element_wise(length, text, encoded, b":")
    return encoded


def _to_text(column: pa.Array) -> pa.Array:
    """Return values as the bytes of their text; binary values as they are."""
    is_binary = pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)
    return (column if is_binary else column.cast(pa.string())).cast(pa.binary())
