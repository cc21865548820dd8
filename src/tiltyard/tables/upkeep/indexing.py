"""Extend indexes to new rows, in segments that are merged as they grow.

Each kind of index takes new rows as a further segment, for about the cost of these rows. Searches look into every
segment, so the last ones are merged where they have together no more than `_MERGE_RATIO` times the new rows: each row
is merged a few times in all, and there are as many segments as the table's rows have digits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tiltyard.storage.errors import lance_errors
from tiltyard.tables.indexes.indexes import user_indexes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import lance
    from lance.lance.indices import IndexDescription

_MERGE_RATIO = 2
_SMALL_SEGMENT = 1000
"""Rows up to which a segment is always merged with the next one."""


@dataclass(frozen=True, slots=True)
class IndexState:
    """An index: how many rows it has and lacks, and those of its segments, in the order in which they were made."""

    name: str
    indexed: int
    missing: int
    segments: tuple[int, ...]


def index_states(dataset: lance.LanceDataset) -> list[IndexState]:
    """Return the state of each index of users. Reads manifests alone."""
    with lance_errors(dataset):
        indexes = user_indexes(dataset)
        if not indexes:
            return []
        rows = dataset.count_rows()
        sizes = {fragment.fragment_id: live_rows(fragment) for fragment in dataset.get_fragments()}
    return [_state(index, rows, sizes) for index in indexes]


def live_rows(fragment: lance.LanceFragment) -> int:
    """Return the rows of a fragment that are not deleted, by its manifest."""
    return int(fragment.metadata.num_rows)


def _state(index: IndexDescription, rows: int, sizes: Mapping[int, int]) -> IndexState:
    segments = tuple(sum(sizes.get(number, 0) for number in segment.fragment_ids) for segment in index.segments)
    return IndexState(index.name, index.num_rows_indexed, max(rows - index.num_rows_indexed, 0), segments)


def count_segments_to_merge(segments: Sequence[int], new_rows: int) -> int:
    """Return how many of the last segments are merged with new rows."""
    merged, count = new_rows, 0
    for rows in reversed(segments):
        if rows > max(_MERGE_RATIO * merged, _SMALL_SEGMENT):
            break
        merged += rows
        count += 1
    return count


def extend_index(dataset: lance.LanceDataset, state: IndexState) -> None:
    """Add the rows that an index lacks, and commit. Raises what `lance_errors` makes of Lance's."""
    with lance_errors(dataset):
        count = count_segments_to_merge(state.segments, state.missing)
        dataset.optimize.optimize_indices(index_names=[state.name], num_indices_to_merge=count)
