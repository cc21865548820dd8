"""Compact small fragments, and those of many deleted rows: plan it, rewrite them, commit.

By itself a table is compacted in tiers (`plan_compaction`): each row is rewritten a few times in all, however small the
commits are. When asked, it is compacted as a whole (`plan_whole_compaction`). Lance joins adjacent fragments that the
same index segments cover, and remaps these segments in the commit: it reads and writes all of their entries in one
process. Segments of the kinds that it cannot remap (ZONEMAP, BLOOMFILTER, FM) cover nothing then, and are extended
again.

So are all others where `reason_to_leave_indexes` says that the commit leaves them: they do not cover the rows that were
moved any more, whose entries lead nowhere, and whoever compacts adds these rows to them again.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lance import LanceOperation
from lance.dataset import Transaction
from lance.optimize import Compaction
from lance_namespace.errors import ConcurrentModificationError

from tiltyard.model.columns.blob_columns import has_blobs, measure_blobs
from tiltyard.upkeep.indexing import INTERNAL_PREFIX
from tiltyard.upkeep.thresholds import DELETED_SHARE, SMALL_FRAGMENT_ROWS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import lance
    from lance.optimize import CompactionPlan, RewriteResult

_TIERS = (100, 1_600, 25_600, SMALL_FRAGMENT_ROWS)
"""Rows of the fragments that come of each tier: each is sixteen times the one before, but for the last."""
MAX_FRAGMENT_BYTES = 256 << 20
"""Bytes of a fragment beyond which it counts as large, whatever its rows."""
MAX_ROUND_BYTES = 1 << 30
"""Bytes that one commit of a tier rewrites."""
MAX_BATCH_BYTES, MAX_BATCH_ROWS = 8 << 20, 8192
"""What one thread holds of the rows that it rewrites."""
MAX_REMAPPED_ROWS = 1 << 24
"""Entries of indexes that the commit of a compaction rewrites, in one process: 40 s, at 420,000 a second of a BTREE."""
MAX_LEFT_SHARE = 1 / 8
"""The share of these entries that may be made anew instead: until they are, searches read so many rows."""
_REUSE_INDEX = f"{INTERNAL_PREFIX}frag_reuse"
"""Where Lance records what a compaction with `defer_index_remap` has moved.

pylance 14.0.2 loses rows of BTREE and INVERTED indexes in a remap that follows: docs/table-jobs.md, and a test.
"""
_LANCE_DELETED_SHARE = DELETED_SHARE * 0.99
"""Lance rewrites fragments of more than the share that it is given."""


@dataclass(frozen=True, slots=True)
class PlannedCompaction:
    """A compaction: Lance's plan, and the options that it was made by."""

    plan: CompactionPlan
    options: Any
    is_of_worn: bool = False
    """Whether it rewrites fragments for their deleted rows alone."""

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
        return self.deleted_rows >= DELETED_SHARE * max(self.physical_rows, 1)


def plan_compaction(dataset: lance.LanceDataset, small_fragments: int) -> PlannedCompaction | None:
    """Return what to compact: `small_fragments` of a tier or more, or fragments of many deleted rows. None if nothing.

    Reads the manifest alone, and of a table with blobs their sizes, where fragments are small or worn. Raises what
    Lance raises.
    """
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
    most_rows = max(2, int(MAX_FRAGMENT_BYTES / max(sizes.bytes, 1)))
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
        materialize_deletions_threshold=_LANCE_DELETED_SHARE,
        excluded_fragment_ids=others,
        max_source_bytes=sizes.counted(max(MAX_ROUND_BYTES, 2 * largest * sizes.bytes)),
    )
    return replace(planned, is_of_worn=True) if planned.fragments else None


def plan_rewrite_of_deleted(dataset: lance.LanceDataset) -> PlannedCompaction | None:
    """Plan to rewrite fragments that have any deleted row, up to MAX_ROUND_BYTES of them; None if there is none.

    Then no file of the version has a row that is deleted. Raises what Lance raises.
    """
    details = [fragment.metadata for fragment in dataset.get_fragments()]
    worn = [each for each in details if each.num_deletions]
    if not worn:
        return None
    file_bytes = sum(file.file_size_bytes or 0 for each in worn for file in each.files)
    blob_bytes = measure_blobs(dataset, {each.id for each in worn}) if has_blobs(dataset.schema) else 0
    rows, largest = sum(int(each.physical_rows) for each in worn), max(int(each.physical_rows) for each in worn)
    sizes = _RowSizes((file_bytes + blob_bytes) / max(rows, 1), file_bytes / max(rows, 1))
    planned = _plan(
        dataset,
        largest,
        sizes,
        materialize_deletions=True,
        materialize_deletions_threshold=0.0,
        excluded_fragment_ids=[each.id for each in details if not each.num_deletions],
        max_source_bytes=sizes.counted(max(MAX_ROUND_BYTES, 2 * largest * sizes.bytes)),
    )
    return planned if planned.fragments else None


def _plan(dataset: lance.LanceDataset, target: int, sizes: _RowSizes, **further: Any) -> PlannedCompaction:
    options: Any = {
        "target_rows_per_fragment": target,
        "num_threads": 1,
        "batch_size": _batch_rows(sizes.bytes),
        "max_source_bytes": sizes.counted(MAX_ROUND_BYTES),
        **further,
    }
    return PlannedCompaction(Compaction.plan(dataset, options), options)


def _batch_rows(row_bytes: float) -> int:
    return max(1, min(MAX_BATCH_ROWS, int(MAX_BATCH_BYTES / max(row_bytes, 1))))


def plan_whole_compaction(dataset: lance.LanceDataset, rows_per_fragment: int) -> PlannedCompaction:
    """Return how to join all fragments with fewer rows, and to rewrite those of many deleted rows; perhaps nothing.

    Raises what Lance raises.
    """
    options: Any = {
        "target_rows_per_fragment": rows_per_fragment,
        "materialize_deletions": True,
        "materialize_deletions_threshold": _LANCE_DELETED_SHARE,
    }
    fragments = [fragment for task in Compaction.plan(dataset, options).tasks for fragment in task.fragments]
    size = sum(file.file_size_bytes or 0 for fragment in fragments for file in fragment.files)
    if fragments and has_blobs(dataset.schema):
        size += measure_blobs(dataset, {fragment.id for fragment in fragments})
    rows = sum(int(fragment.physical_rows) for fragment in fragments)
    options["batch_size"] = _batch_rows(size / max(rows, 1))
    return PlannedCompaction(Compaction.plan(dataset, options), options)


def compact(
    dataset: lance.LanceDataset, planned: PlannedCompaction, *, extends_indexes: bool = False
) -> tuple[int, int]:
    """Rewrite fragments in this process, and commit; return and raise what `commit_compaction` does."""
    results = (task.execute(dataset) for task in planned.plan.tasks)
    return commit_compaction(dataset, planned, results, extends_indexes=extends_indexes)


def commit_compaction(
    dataset: lance.LanceDataset,
    planned: PlannedCompaction,
    results: Iterable[RewriteResult],
    *,
    extends_indexes: bool = False,
) -> tuple[int, int]:
    """Commit what the tasks of a plan have rewritten; return how many fragments were removed and added.

    `extends_indexes` says that the caller adds the rows that indexes lack to them afterwards, so that large ones may be
    left as they are. Raises ConcurrentModificationError: a writer changed one of the fragments meanwhile, and keeps its
    change.
    """
    results = list(results)
    try:
        if reason_to_leave_indexes(dataset, planned, extends_indexes=extends_indexes):
            return _commit_without_indexes(dataset, results)
        metrics = Compaction.commit(dataset, results, planned.options)
    except (OSError, RuntimeError, ValueError) as error:
        if "conflict" not in str(error).lower():
            raise
        raise ConcurrentModificationError(str(error)) from error
    return metrics.fragments_removed, metrics.fragments_added


def reason_to_leave_indexes(dataset: lance.LanceDataset, planned: PlannedCompaction, *, extends_indexes: bool) -> str:
    """Return why the commit of a compaction leaves indexes as they are; empty where Lance remaps them.

    Indexes of stable row ids have nothing to remap. Reads the manifest alone. Raises what Lance raises.
    """
    if dataset.has_stable_row_ids:
        return ""
    indexes = dataset.describe_indices()
    if any(index.name == _REUSE_INDEX for index in indexes):
        return "another client has compacted it and deferred the remap of indexes, which a further remap would lose"
    if not extends_indexes:
        return ""
    rows = {fragment.fragment_id: int(fragment.metadata.num_rows) for fragment in dataset.get_fragments()}
    moved = {fragment.id for task in planned.plan.tasks for fragment in task.fragments}
    entries = again = 0
    for segment in (segment for index in indexes for segment in index.segments):
        if to_index := moved & set(segment.fragment_ids):
            entries += sum(rows.get(number, 0) for number in segment.fragment_ids)
            again += sum(rows.get(number, 0) for number in to_index)
    if entries <= MAX_REMAPPED_ROWS or again > entries * MAX_LEFT_SHARE:
        return ""
    return f"a remap would rewrite {entries} entries of indexes, and {again} of them are made anew instead"


def _commit_without_indexes(dataset: lance.LanceDataset, results: Sequence[RewriteResult]) -> tuple[int, int]:
    """Commit fragments that replace others; indexes cover none of these any more."""
    replaced: list[Any] = [result.original_fragments for result in results]  # type: ignore[attr-defined]  # wrong stubs
    groups = [
        LanceOperation.RewriteGroup(old, result.new_fragments) for old, result in zip(replaced, results, strict=True)
    ]
    transaction = Transaction(int(dataset.version), LanceOperation.Rewrite(groups, []), str(uuid.uuid4()))
    type(dataset).commit(dataset, transaction)
    dataset.checkout_latest()  # type: ignore[no-untyped-call]  # pylance has no annotation here
    return sum(map(len, replaced)), sum(len(result.new_fragments) for result in results)
