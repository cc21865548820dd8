"""Near-duplicates among the vectors of a version: the pairs that are close, and the rows to leave out for them.

Lance compares the rows of a partition of the index with each other, by what the index has of their vectors; rows of
different partitions are not compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from lance.vector import find_duplicate_pairs_in_partition
from lance_namespace.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import lance
    from numpy.typing import NDArray

MAX_PAIRS = 5_000_000
"""Pairs among which rows to leave out are chosen: 16 bytes each, and a moment of Python."""
MAX_PARTITION_NUMBERS = 10**12
"""Numbers that are compared in one partition, which takes some minutes: its pairs of rows, times the dimension."""
PAIRS = pa.schema(
    [
        pa.field("row_id_a", pa.uint64(), nullable=False),
        pa.field("row_id_b", pa.uint64(), nullable=False),
        pa.field("distance", pa.float32(), nullable=False),
    ]
)
"""The columns of pairs."""
_STAGED_BYTES = 64 << 20
"""Vectors of a partition that Lance holds in memory; of a larger one, it writes them to a file."""


def check_vectors(schema: pa.Schema, column: str) -> None:
    """Raise InvalidInputError for what is no column with one vector in each row."""
    if column not in schema.names or not pa.types.is_fixed_size_list(schema.field(column).type):
        raise InvalidInputError(f"Near-duplicates are of a column with one vector in each row, and '{column}' is none.")


def find_partitions(dataset: lance.LanceDataset, column: str) -> list[tuple[str, int]]:
    """Return the partitions to compare: a segment of the column's index, and a number.

    Raises InvalidInputError unless one vector index covers all rows, in partitions that are small enough.
    """
    check_vectors(dataset.schema, column)
    indexes = [index for index in dataset.describe_indices() if list(index.field_names) == [column]]
    names = [index.name for index in indexes if "metric_type" in index.details]
    if len(names) != 1:
        raise InvalidInputError(f"Near-duplicates are found by the vector index of '{column}', which has {len(names)}.")
    figures = dataset.stats.index_stats(names[0])
    if figures["num_unindexed_rows"]:
        raise InvalidInputError(
            f"The index of '{column}' lacks {figures['num_unindexed_rows']} rows of this version: wait for upkeep, or "
            "create it again, and name a later version."
        )
    dimension = dataset.schema.field(column).type.list_size
    partitions = [
        (segment["uuid"], number, partition["size"])
        for segment in figures["indices"]
        for number, partition in enumerate(segment["partitions"])
    ]
    if (largest := max((size for *_, size in partitions), default=0)) ** 2 // 2 * dimension > MAX_PARTITION_NUMBERS:
        raise InvalidInputError(
            f"A partition of the index of '{column}' has {largest} rows, too many to compare each with each: create it "
            "with more partitions."
        )
    return [(uuid, number) for uuid, number, size in partitions if size > 1]


def find_pairs(
    dataset: lance.LanceDataset, column: str, threshold: float, check: Callable[[], object]
) -> Iterator[pa.RecordBatch]:
    """Yield `row_id_a`, `row_id_b` and `distance` of pairs up to a distance, each once; call `check` in between.

    Raises as `find_partitions`, and what `check` raises.
    """
    for uuid, number in find_partitions(dataset, column):
        check()
        options = {"memory_limit": _STAGED_BYTES, "max_concurrency": 1}
        with find_duplicate_pairs_in_partition(dataset, column, uuid, number, threshold, **options) as pairs:
            for batch in pairs:
                check()
                yield batch


def find_duplicates(
    dataset: lance.LanceDataset, column: str, threshold: float, check: Callable[[], object]
) -> NDArray[np.uint64]:
    """Return the ids of the rows that are left out, in order: of each pair one goes whose other one stays.

    The row of the smallest id stays, those that pair with it go, and so on: of a chain A-B-C without a pair A-C, A and
    C stay. Raises as `find_pairs`, InvalidInputError for too many pairs.
    """
    lows, highs, count = [np.empty(0, np.uint64)], [np.empty(0, np.uint64)], 0
    for batch in find_pairs(dataset, column, threshold, check):
        first, second = (batch[name].to_numpy() for name in ("row_id_a", "row_id_b"))
        lows.append(np.minimum(first, second))
        highs.append(np.maximum(first, second))
        if (count := count + batch.num_rows) > MAX_PAIRS:
            raise InvalidInputError(
                f"More than {MAX_PAIRS:,} pairs are within {threshold}: choose a smaller distance_threshold."
            )
    low, high = np.concatenate(lows), np.concatenate(highs)
    order = np.argsort(low, kind="stable")
    ids, starts = np.unique(low[order], return_index=True)
    removed: set[int] = set()
    for kept, others in zip(ids.tolist(), np.split(high[order], starts[1:]), strict=False):
        if kept not in removed:
            removed.update(others.tolist())
    return np.array(sorted(removed), np.uint64)


def leave_out(batch: pa.RecordBatch, removed: NDArray[np.uint64]) -> pa.RecordBatch:
    """Return the rows of a batch with `_rowid` that are not among some, which are in order."""
    if not len(removed):
        return batch
    ids = batch["_rowid"].to_numpy()
    places = np.minimum(np.searchsorted(removed, ids), len(removed) - 1)
    return batch.filter(removed[places] != ids)
