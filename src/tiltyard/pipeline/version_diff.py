"""Compare two versions of a table, fragment by fragment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from lance import LanceOperation

from tiltyard.change_feed.table_history import (
    fragments_by_id,
    ids_of_field,
    is_same_fragment,
    read_transactions,
)

if TYPE_CHECKING:
    import lance
    from lance.fragment import FragmentMetadata

T = TypeVar("T")

_MAX_TRANSACTIONS_READ = 16


@dataclass(frozen=True, slots=True)
class FragmentChanges:
    """Fragments that differ: `changed` are new or altered ones of the newer version, `removed` those that it lacks."""

    changed: Mapping[int, FragmentMetadata]
    removed: tuple[int, ...]


def path_ids(dataset: lance.LanceDataset, path: str) -> frozenset[int]:
    """Return the ids of the field at an existing path (`a`, `a.b`, "`a.b`.c") and of its descendants."""
    return frozenset(ids_of_field(dataset.lance_schema.field(path)))


def diff_fragments(old: lance.LanceDataset, new: lance.LanceDataset) -> FragmentChanges:
    """Return how `new` differs from `old`."""
    before, after = fragments_by_id(old), fragments_by_id(new)
    changed = {
        number: fragment
        for number, fragment in after.items()
        if number not in before or not is_same_fragment(before[number], fragment)
    }
    return FragmentChanges(changed, tuple(number for number in before if number not in after))


def forget_changed(found: dict[int, T], old: lance.LanceDataset, new: lance.LanceDataset) -> list[int]:
    """Remove what was found in fragments of `old` that differ in `new`; return those that are to be searched there."""
    difference = diff_fragments(old, new)
    for number in (*difference.removed, *difference.changed):
        found.pop(number, None)
    return list(difference.changed)


def fragments_with_new_rows(old: lance.LanceDataset, new: lance.LanceDataset) -> list[FragmentMetadata] | None:
    """Return the fragments with rows that were added, moved or copied since `old`; None if values changed in place.

    Reads the transactions in between if they are few, else compares the two lists of fragments.
    """
    if old.schema != new.schema:
        return None
    if new.version - old.version <= _MAX_TRANSACTIONS_READ:
        added = [_new_rows_of(entry.operation) for _, entry in read_transactions(new, old.version)]
        if len(added) < new.version - old.version or None in added:
            return None
        return [fragment for fragments in added for fragment in fragments or ()]
    difference = diff_fragments(old, new)
    before = fragments_by_id(old)
    if any(
        number in before and before[number].files != fragment.files for number, fragment in difference.changed.items()
    ):
        return None
    return [fragment for number, fragment in difference.changed.items() if number not in before]


def _new_rows_of(operation: LanceOperation.BaseOperation) -> list[FragmentMetadata] | None:
    if isinstance(operation, LanceOperation.Append):
        return list(operation.fragments)
    if isinstance(operation, LanceOperation.Update):
        return list(operation.new_fragments) if operation.update_mode != "rewrite_columns" else None
    without_new_rows = (LanceOperation.Delete, LanceOperation.Rewrite, LanceOperation.CreateIndex)
    return [] if isinstance(operation, without_new_rows) else None


def has_only_appends(old: lance.LanceDataset, new: lance.LanceDataset) -> bool:
    """Return whether all commits after `old`, up to `new`, are appends."""
    operations = [transaction.operation for _, transaction in read_transactions(new, old.version)]
    return len(operations) == new.version - old.version and all(
        isinstance(operation, LanceOperation.Append) for operation in operations
    )
