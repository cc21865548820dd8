"""Statistics of a table: rows, bytes and fragments."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tiltyard.access.needs import on_table
from tiltyard.model.branches import Branch
from tiltyard.model.operations import operation
from tiltyard.model.principals import Privilege
from tiltyard.model.spec import models
from tiltyard.storage.errors import lance_errors
from tiltyard.tables.opening import open_for_reading
from tiltyard.upkeep.thresholds import SMALL_FRAGMENT_ROWS

if TYPE_CHECKING:
    from collections.abc import Sequence

    import lance

    from tiltyard.context import Context


def basic_stats(dataset: lance.LanceDataset) -> models.TableBasicStats:
    """Return the statistics that DescribeTable's response has."""
    stats = dataset.stats.dataset_stats()
    return models.TableBasicStats(num_deleted_rows=stats["num_deleted_rows"], num_fragments=stats["num_fragments"])


@operation(needs=on_table(Privilege.USE), changes=False)
def get_table_stats(ctx: Context, request: models.GetTableStatsRequest) -> models.GetTableStatsResponse:
    """Count rows, bytes and indexes, and summarize the lengths of the fragments; every figure is an integer.

    Bytes are those of whole data and index files, whatever part of them this version still refers to. Deleted rows are
    those that lie in files of this version: a compaction removes them, and a fragment goes with its last row.
    Raises NamespaceNotFoundError, TableNotFoundError, TableBranchNotFoundError, InvalidTableStateError (declared
    only).
    """
    dataset = open_for_reading(ctx, request.id, branch=Branch.parse(request.branch)).dataset
    with lance_errors(dataset):
        lengths = sorted(fragment.count_rows() for fragment in dataset.get_fragments())
        deleted = basic_stats(dataset).num_deleted_rows
        indices = dataset.describe_indices()
        total_bytes = stored_bytes(dataset)
    return models.GetTableStatsResponse(
        total_bytes=total_bytes,
        num_rows=sum(lengths),
        num_deleted_rows=deleted,
        num_indices=len(indices),
        fragment_stats=models.FragmentStats(
            num_fragments=len(lengths),
            num_small_fragments=sum(length < SMALL_FRAGMENT_ROWS for length in lengths),
            lengths=_summary(lengths),
        ),
    )


def stored_bytes(dataset: lance.LanceDataset) -> int:
    """Return the bytes of a version's data files and indexes."""
    return _data_bytes(dataset) + sum(index.total_size_bytes or 0 for index in dataset.describe_indices())


def _data_bytes(dataset: lance.LanceDataset) -> int:
    """Return the bytes of a version's data files by its manifest, or of all its columns where an old writer has left
    some files' sizes out.
    """
    sizes = [file.file_size_bytes for fragment in dataset.get_fragments() for file in fragment.metadata.files]
    if all(sizes):
        return sum(size or 0 for size in sizes)
    fields = dataset.stats.data_stats().fields
    # pylance declares one FieldStatistics there, and gives a list of them
    return sum(field.bytes_on_disk for field in fields)  # type: ignore[attr-defined]


def _summary(lengths: Sequence[int]) -> models.FragmentSummary:
    """Return minimum, maximum, mean and percentiles (nearest rank) of sorted lengths; zeros without fragments."""
    if not lengths:
        return models.FragmentSummary(min=0, max=0, mean=0, p25=0, p50=0, p75=0, p99=0)

    def percentile(share: float) -> int:
        return lengths[max(0, math.ceil(share * len(lengths)) - 1)]

    return models.FragmentSummary(
        min=lengths[0],
        max=lengths[-1],
        mean=round(sum(lengths) / len(lengths)),
        p25=percentile(0.25),
        p50=percentile(0.5),
        p75=percentile(0.75),
        p99=percentile(0.99),
    )
