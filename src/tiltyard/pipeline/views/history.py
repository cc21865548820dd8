"""What a table's commits did to its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lance import LanceOperation

from tiltyard.pipeline.version_diff import fragments_by_id, is_same_fragment

if TYPE_CHECKING:
    import lance
    from lance.dataset import Transaction


def keeps_rows(dataset: lance.LanceDataset, version: int, commit: Transaction | None) -> bool:
    """Whether a commit left the rows as they were: an index, a compaction, or one that left all fragments alone."""
    if commit is None:
        return False
    if isinstance(commit.operation, (LanceOperation.CreateIndex, LanceOperation.Rewrite)):
        return True
    if version == 1:
        return False
    try:
        before, after = (fragments_by_id(dataset.checkout_version(one)) for one in (version - 1, version))
    except ValueError:  # one of them was removed: then nobody can tell
        return False
    return before.keys() == after.keys() and all(is_same_fragment(one, after[number]) for number, one in before.items())
