"""Check the keys of new rows against other rows: those of the table (`unique`), or of another one (`foreign_key`).

Tasks read only the key columns, and Spark aggregates or joins them, which spills and shuffles as needed; few keys are
compared in this process. Keys that contain a null equal no other, and refer to none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from tiltyard.contracts.checks import QualityCheck
from tiltyard.model.refusals import RefusedError
from tiltyard.model.text.typed_ids import parse_typed_id
from tiltyard.pipeline.private_variables import set_task_variables
from tiltyard.pipeline.spark_tasks import task_variables
from tiltyard.pipeline.writing.fragments import FragmentRows

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
    spark: SparkSession | None,
    location: TableLocation,
    columns: Sequence[str],
    fresh: Sequence[str],
    version: int,
    on: Sequence[str] = (),
    deleted: pa.Table | None = None,
) -> int:
    """Count the keys that occur more than once in the fragments `fresh` and the table at `version` (0: none).

    With `on`, rows of the table that have one of these values of the new rows are left out: an upsert replaces them. So
    are, without a session, those with the values `deleted` of `on`: the change deletes them. Without a session they are
    counted in this process, whose memory then holds them.
    """
    new, old = new_rows(location, fresh), _table_rows(location, version)
    if not new and not old:
        return 0
    if spark is None:
        gone = [_to_binary(batch) for batch in deleted.select(on).to_batches()] if deleted is not None else []
        replaced = pa.chunked_array([*_read_here(new, on).chunks, *gone], pa.binary()) if on else None
        keys = [*_read_here(new, columns).chunks, *_read_here(old, columns, on, replaced).chunks]
        counts = pc.value_counts(pa.chunked_array(keys, pa.binary())).field("counts")
        return int(pc.sum(pc.greater(counts, 1)).as_py() or 0)
    known = _read_in_tasks(spark, old, columns, on) if old else None
    if known is not None and on and new:
        known = known.join(_read_in_tasks(spark, new, on).selectExpr("k AS o").distinct(), "o", "left_anti")
    parts = [frame.select("k") for frame in (_read_in_tasks(spark, new, columns) if new else None, known) if frame]
    keys_of_all = parts[0] if len(parts) == 1 else parts[0].unionAll(parts[1])
    return int(keys_of_all.where("k IS NOT NULL").groupBy("k").count().where("count > 1").count())


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
    new_keys = _read_in_tasks(spark, tasks, [column]).where("k IS NOT NULL").distinct()
    if not known_tasks:
        return int(new_keys.count())
    return int(new_keys.join(_read_in_tasks(spark, known_tasks, [other.column]), "k", "left_anti").count())


def new_rows(location: TableLocation, fresh: Sequence[str]) -> list[FragmentRows]:
    """Return the tasks that read fragments of no version yet."""
    return [FragmentRows(location, files=part) for part in _split(fresh)]


def _table_rows(location: TableLocation, version: int) -> list[FragmentRows]:
    numbers = [part.fragment_id for part in location.open(version).get_fragments()] if version else []
    return [FragmentRows(location, version, part) for part in _split(numbers)]


def _read_here(
    tasks: Sequence[FragmentRows],
    columns: Sequence[str],
    on: Sequence[str] = (),
    replaced: pa.ChunkedArray | None = None,
) -> pa.ChunkedArray:
    """Return the keys; not those of rows whose values of `on` are among the `replaced` ones."""
    chunks = []
    for batch in (batch for task in tasks for batch in task.read([*dict.fromkeys((*columns, *on))])):
        keys = _to_binary(batch.select(columns))
        if replaced is not None:
            keys = keys.filter(pc.invert(pc.is_in(_to_binary(batch.select(on)), value_set=replaced)))
        chunks.append(keys.drop_null())
    return pa.chunked_array(chunks, pa.binary())


def _read_in_tasks(
    spark: SparkSession, tasks: Sequence[FragmentRows], columns: Sequence[str], on: Sequence[str] = ()
) -> DataFrame:
    """Return the keys in the column `k`, and with `on` those of these columns in `o`, a Spark task for each."""
    count, schema = len(tasks), "k binary, o binary" if on else "k binary"
    read = _read_keys(tasks, columns, on, task_variables(spark))
    return spark.range(0, count, 1, count).mapInArrow(read, schema)


def _split(parts: Sequence[Any]) -> list[tuple[Any, ...]]:
    size = -(-len(parts) // _MAX_SCAN_TASKS)
    return [tuple(parts[first : first + size]) for first in range(0, len(parts), size)] if parts else []


def _read_keys(
    tasks: Sequence[FragmentRows], columns: Sequence[str], on: Sequence[str], variables: Mapping[str, str]
) -> Any:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        set_task_variables(variables)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for rows in tasks[number].read([*dict.fromkeys((*columns, *on))]):
                    keys = {"k": _to_binary(rows.select(columns)), **({"o": _to_binary(rows.select(on))} if on else {})}
                    yield pa.record_batch(keys)

    return run


def _to_binary(keys: pa.RecordBatch) -> pa.Array:
    """Encode keys as bytes, equal only for equal keys; null for keys with a null.

    Of several columns, each text but the last is preceded by its length.
    """
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
