"""What changed between two versions of a table, fragment by fragment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lance import LanceOperation

from tiltyard.model.table_history import read_transactions

if TYPE_CHECKING:
    import lance
    from lance.fragment import FragmentMetadata

_MAX_TRANSACTIONS_READ = 16


@dataclass(frozen=True, slots=True)
class FragmentChanges:
    """Fragments that differ: those of the newer version (`came`: new or altered), and those that it lost (`gone`)."""

    changed: Mapping[int, FragmentMetadata]
    removed: tuple[int, ...]


def get_fragment(dataset: lance.LanceDataset, number: int) -> lance.LanceFragment:
    """A fragment that is known to be there."""
    found = dataset.get_fragment(number)
    assert found is not None
    return found


def fragments_by_id(dataset: lance.LanceDataset) -> dict[int, FragmentMetadata]:
    """The fragments of a version, by their number."""
    return {one.fragment_id: one.metadata for one in dataset.get_fragments()}


def field_ids(dataset: lance.LanceDataset, column: str) -> frozenset[int]:
    """The id of a column's field, and of all inside it; none if there is no such column."""
    return frozenset(number for one in dataset.lance_schema.fields() if one.name() == column for number in _ids(one))


def path_ids(dataset: lance.LanceDataset, path: str) -> frozenset[int]:
    """The ids of the field at a path (`a`, `a.b`, "`a.b`.c") that there is, and of all inside it."""
    return frozenset(_ids(dataset.lance_schema.field(path)))


def _ids(field: Any) -> list[int]:
    return [field.id(), *(number for child in field.children() for number in _ids(child))]


def diff_fragments(old: lance.LanceDataset, new: lance.LanceDataset) -> FragmentChanges:
    """How `new` differs from `old`."""
    before, after = fragments_by_id(old), fragments_by_id(new)
    changed = {
        number: one
        for number, one in after.items()
        if number not in before or not is_same_fragment(before[number], one)
    }
    return FragmentChanges(changed, tuple(number for number in before if number not in after))


def fragments_with_new_rows(old: lance.LanceDataset, new: lance.LanceDataset) -> list[FragmentMetadata] | None:
    """The fragments in which rows came in, were moved or copied since `old`; None if values changed in place.

    Told by the few commits in between, or else by the two lists of fragments.
    """
    if old.schema != new.schema:
        return None
    if new.version - old.version <= _MAX_TRANSACTIONS_READ:
        told = [_new_rows_of(entry.operation) for _, entry in read_transactions(new, old.version)]
        if len(told) < new.version - old.version or None in told:
            return None
        return [one for found in told for one in found or ()]
    changed = diff_fragments(old, new)
    before = fragments_by_id(old)
    if any(number in before and before[number].files != one.files for number, one in changed.changed.items()):
        return None
    return [one for number, one in changed.changed.items() if number not in before]


def _new_rows_of(operation: LanceOperation.BaseOperation) -> list[FragmentMetadata] | None:
    if isinstance(operation, LanceOperation.Append):
        return list(operation.fragments)
    if isinstance(operation, LanceOperation.Update):
        return list(operation.new_fragments) if operation.update_mode != "rewrite_columns" else None
    harmless = (LanceOperation.Delete, LanceOperation.Rewrite, LanceOperation.CreateIndex)
    return [] if isinstance(operation, harmless) else None


def is_same_fragment(one: FragmentMetadata, other: FragmentMetadata) -> bool:
    """Whether two fragments of one number hold the same: their files, and what is deleted of them."""
    return one.files == other.files and one.deletion_file == other.deletion_file


def group_fragments(rows: Mapping[int, int], most: int, tasks: int) -> list[tuple[int, ...]]:
    """Neighbouring fragments (their rows by their number) in groups of about the same rows.

    They hold about `most` rows at most, and are as many as fill so many slots evenly; fewer if there are few fragments.
    """
    total = max(1, sum(rows.values()))
    count = -(-total // (most * tasks)) * tasks
    groups: dict[int, list[int]] = {}
    seen = 0
    for number, held in rows.items():
        middle = seen + held // 2
        groups.setdefault(middle * count // total, []).append(number)
        seen += held
    return [tuple(group) for group in groups.values()]
