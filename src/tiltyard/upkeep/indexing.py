"""Extend indexes to new rows, in segments that are merged as they grow.

Each kind of index takes new rows as a further segment, for about the cost of these rows. Searches look into every
segment, so the last ones are merged where they have together no more than `_MERGE_RATIO` times the new rows: each row
is merged a few times in all, and there are as many segments as the table's rows have digits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import lance
    from lance.lance.indices import IndexDescription

INTERNAL_PREFIX = "__lance_"
"""How the names of indexes begin that Lance creates for itself."""
_MERGE_RATIO = 2
SMALL_SEGMENT_ROWS = 1000
"""Rows up to which a segment is always merged with the next one."""


@dataclass(frozen=True, slots=True)
class IndexState:
    """An index: how many rows it has and lacks, and those of its segments, in the order in which they were made."""

    name: str
    indexed: int
    missing: int
    segments: tuple[int, ...]


def user_indexes(dataset: lance.LanceDataset) -> list[IndexDescription]:
    """Return the indexes of users, without those that Lance creates for itself. Raises what Lance raises."""
    return [index for index in dataset.describe_indices() if not index.name.startswith(INTERNAL_PREFIX)]


def index_states(dataset: lance.LanceDataset) -> list[IndexState]:
    """Return the state of each index of users. Reads manifests alone. Raises what Lance raises."""
    indexes = user_indexes(dataset)
    if not indexes:
        return []
    rows = dataset.count_rows()
    sizes = {fragment.fragment_id: int(fragment.metadata.num_rows) for fragment in dataset.get_fragments()}
    return [_state(index, rows, sizes) for index in indexes]


def _state(index: IndexDescription, rows: int, sizes: Mapping[int, int]) -> IndexState:
    segments = tuple(sum(sizes.get(number, 0) for number in segment.fragment_ids) for segment in index.segments)
    return IndexState(index.name, index.num_rows_indexed, max(rows - index.num_rows_indexed, 0), segments)


def count_segments_to_merge(
    segments: Sequence[int], new_rows: int, small_segment_rows: int = SMALL_SEGMENT_ROWS
) -> int:
    """Return how many of the last segments are merged with new rows."""
    merged, count = new_rows, 0
    for rows in reversed(segments):
        if rows > max(_MERGE_RATIO * merged, small_segment_rows):
            break
        merged += rows
        count += 1
    return count


def extend_index(dataset: lance.LanceDataset, state: IndexState, small_segment_rows: int = SMALL_SEGMENT_ROWS) -> None:
    """Add the rows that an index lacks, and commit. Raises what Lance raises.

    Segments of up to `small_segment_rows` are always merged: whoever joins fragments of up to so many rows afterwards
    needs that, for Lance joins none that are in different segments.
    """
    count = count_segments_to_merge(state.segments, state.missing, small_segment_rows)
    dataset.optimize.optimize_indices(index_names=[state.name], num_indices_to_merge=count)
