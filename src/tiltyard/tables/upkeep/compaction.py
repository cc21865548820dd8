"""Compact small fragments, in tiers: each row is rewritten a few times in all, however small the commits are.

Lance joins adjacent fragments that the same index segments cover, and remaps these segments in the commit. Segments
of the kinds that it cannot remap (ZONEMAP, BLOOMFILTER, FM) cover nothing then, and are extended again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lance.optimize import Compaction

from tiltyard.model.columns.blob_columns import has_blobs
from tiltyard.model.columns.blob_sizes import measure_blobs
from tiltyard.storage.errors import lance_errors
from tiltyard.tables.schema.stats import SMALL_FRAGMENT_ROWS

if TYPE_CHECKING:
    from collections.abc import Sequence

    import lance
    from lance.optimize import CompactionPlan

_TIERS = (100, 1_600, 25_600, SMALL_FRAGMENT_ROWS)
"""Rows of the fragments that come of each tier: each is sixteen times the one before, but for the last."""
_MOST_FRAGMENT_BYTES = 256 << 20
"""Bytes of a fragment beyond which it counts as large, whatever its rows."""
_MOST_ROUND_BYTES = 1 << 30
"""Bytes that one commit rewrites at most."""
_BATCH_BYTES, _MOST_BATCH_ROWS = 8 << 20, 8192
_DELETED_SHARE = 0.2
"""The share of a fragment's rows from which on its deleted rows are worth rewriting it."""


@dataclass(frozen=True, slots=True)
class PlannedCompaction:
    """A compaction: Lance's plan, and the options that it was made by."""

    plan: CompactionPlan
    options: Any

    @property
    def fragments(self) -> int:
        """Return how many fragments it replaces."""
        return sum(len(task.fragments) for task in self.plan.tasks)


@dataclass(frozen=True, slots=True)
class _Fragment:
    number: int
    physical_rows: int
    deleted_rows: int

    @property
    def is_worn(self) -> bool:
        """Return whether so many of its rows are deleted that it is rewritten."""
        return self.deleted_rows >= _DELETED_SHARE * max(self.physical_rows, 1)


def plan_compaction(dataset: lance.LanceDataset, small_fragments: int) -> PlannedCompaction | None:
    """Return what to compact: `small_fragments` of a tier or more, or fragments of many deleted rows. None if nothing.

    Reads the manifest alone, and of a table with blobs their sizes, where fragments are small or worn.
    """
    with lance_errors(dataset):
        details = [fragment.metadata for fragment in dataset.get_fragments()]
        fragments = [_Fragment(each.id, int(each.physical_rows), int(each.num_deletions)) for each in details]
        rows = max(1, sum(fragment.physical_rows for fragment in fragments))
        file_bytes = sum(file.file_size_bytes or 0 for each in details for file in each.files) / rows
        sizes = _RowSizes(file_bytes, file_bytes)
        small = sum(each.physical_rows < SMALL_FRAGMENT_ROWS for each in fragments)
        if has_blobs(dataset.schema) and (small >= small_fragments or any(each.is_worn for each in fragments)):
            sizes = _RowSizes(file_bytes + measure_blobs(dataset) / rows, file_bytes)
        return _plan_tier(dataset, fragments, sizes, small_fragments) or _plan_worn(dataset, fragments, sizes)


@dataclass(frozen=True, slots=True)
class _RowSizes:
    """Bytes of a row on average: with its blobs, and in the data files, which are those that Lance counts."""

    bytes: float
    file_bytes: float

    def counted(self, most: float) -> int:
        """Return what Lance counts of so many bytes."""
        return max(1, int(most * max(self.file_bytes, 1) / max(self.bytes, 1)))


def _plan_tier(
    dataset: lance.LanceDataset, fragments: Sequence[_Fragment], sizes: _RowSizes, small_fragments: int
) -> PlannedCompaction | None:
    most_rows = max(2, int(_MOST_FRAGMENT_BYTES / max(sizes.bytes, 1)))
    for tier in _TIERS:
        target = min(tier, most_rows)
        if sum(fragment.physical_rows < target for fragment in fragments) < small_fragments:
            continue
        planned = _plan(dataset, target, sizes, materialize_deletions=False)
        if planned.fragments >= small_fragments:
            return planned
    return None


def _plan_worn(
    dataset: lance.LanceDataset, fragments: Sequence[_Fragment], sizes: _RowSizes
) -> PlannedCompaction | None:
    """Plan to rewrite fragments of many deleted rows, each for itself: no other fragment is touched."""
    worn = [fragment for fragment in fragments if fragment.is_worn]
    if not worn:
        return None
    others = [fragment.number for fragment in fragments if not fragment.is_worn]
    largest = max(fragment.physical_rows for fragment in worn)
    planned = _plan(
        dataset,
        largest,
        sizes,
        materialize_deletions=True,
        materialize_deletions_threshold=_DELETED_SHARE / 2,
        excluded_fragment_ids=others,
        max_source_bytes=sizes.counted(max(_MOST_ROUND_BYTES, 2 * largest * sizes.bytes)),
    )
    return planned if planned.fragments else None


def _plan(dataset: lance.LanceDataset, target: int, sizes: _RowSizes, **further: Any) -> PlannedCompaction:
    options: Any = {
        "target_rows_per_fragment": target,
        "num_threads": 1,
        "batch_size": max(1, min(_MOST_BATCH_ROWS, int(_BATCH_BYTES / max(sizes.bytes, 1)))),
        "max_source_bytes": sizes.counted(_MOST_ROUND_BYTES),
        **further,
    }
    return PlannedCompaction(Compaction.plan(dataset, options), options)


def compact(dataset: lance.LanceDataset, planned: PlannedCompaction) -> tuple[int, int]:
    """Rewrite fragments, and commit; return how many were removed and added.

    Raises ConcurrentModificationError: a writer changed one of them meanwhile, and keeps its change.
    """
    with lance_errors(dataset):
        results = [task.execute(dataset) for task in planned.plan.tasks]
        metrics = Compaction.commit(dataset, results, planned.options)
    return metrics.fragments_removed, metrics.fragments_added
