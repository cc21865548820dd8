"""What a refresh of a materialized view has to read: the fragments that were added to its sources since the last one.

For the pipeline's refreshes and the server's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lance import LanceOperation

from tiltyard.change_feed.table_history import (
    field_ids,
    files_by_field,
    fragments_by_id,
    is_same_fragment,
    open_version,
    read_transaction,
)
from tiltyard.model.views.definitions import SourceVersion, ViewLineage, query_columns

if TYPE_CHECKING:
    from collections.abc import Sequence

    import lance
    from lance.dataset import Transaction
    from lance.fragment import FragmentMetadata


class FullRefreshRequiredError(Exception):
    """The rows that were added are not enough: all rows have to be computed again. The message is the reason."""


class RowsChangedError(FullRefreshRequiredError):
    """Rows that the view was made of were changed or deleted, which the source's change feed tells."""


def find_last_refresh(view: lance.LanceDataset) -> ViewLineage | str:
    """Return what the last refresh read, if its rows are unchanged; or else the reason why all rows are needed.

    Columns that were added to the view since, and their values, are none of the query's rows.
    """
    columns = query_columns(view.schema)
    for version in range(int(view.version), 0, -1):
        transaction = read_transaction(view, version)
        if transaction is None:
            return "the record of the last refresh no longer exists"
        made = ViewLineage.from_properties(transaction.transaction_properties)
        if made is not None:
            return made
        if not leaves_rows_unchanged(view, version, transaction, columns):
            return (
                "it is the first refresh"
                if version == 1
                else f"another writer changed the view (version {version}: {type(transaction.operation).__name__})"
            )
    return "it is the first refresh"


def find_added_fragments(
    name: str, location: str, dataset: lance.LanceDataset, before: SourceVersion | None
) -> list[int]:
    """Return the ids of fragments whose rows were added since `before`, if no earlier row was changed or deleted.

    The two lists of fragments show that: files never change, so fragments with the same files and the same deletions
    hold the same rows. Fragments that were compacted are followed through the commits that did it, as long as each
    compacted either only new rows or only old ones. Raises RowsChangedError otherwise, and FullRefreshRequiredError
    where the two versions cannot be compared.
    """
    if before is None or before.location != location:
        raise FullRefreshRequiredError(f"{name} is not the view's source table")
    version = int(dataset.version)
    if version == before.version:
        return []
    if version < before.version:
        raise FullRefreshRequiredError(
            f"the view was made of version {before.version} of {name}, and {version} is older"
        )
    old_dataset = open_version(dataset, before.version)
    if old_dataset is None:
        raise FullRefreshRequiredError(f"version {before.version} of {name} no longer exists")
    if not old_dataset.schema.equals(dataset.schema):
        raise FullRefreshRequiredError(f"columns of {name} were changed")
    old, new = fragments_by_id(old_dataset), fragments_by_id(dataset)
    if all(number in new and is_same_fragment(fragment, new[number]) for number, fragment in old.items()):
        return [number for number in new if number not in old]
    old_files = _follow_compactions(name, old_dataset, dataset)
    return [number for number, fragment in new.items() if _files(fragment) not in old_files]


def _follow_compactions(name: str, old: lance.LanceDataset, new: lance.LanceDataset) -> set[frozenset[str]]:
    """Return the files of the fragments that hold the rows of `old`, up to `new`. Raises as `find_added_fragments`."""
    old_files = {_files(fragment) for fragment in fragments_by_id(old).values()}
    for version in range(int(old.version) + 1, int(new.version) + 1):
        transaction = read_transaction(new, version)
        if transaction is None:
            raise FullRefreshRequiredError(f"what version {version} of {name} changed is no longer recorded")
        operation = transaction.operation
        if not isinstance(operation, LanceOperation.Rewrite):
            if isinstance(operation, LanceOperation.Append) or leaves_rows_unchanged(new, version, transaction):
                continue
            kind = type(operation).__name__
            raise RowsChangedError(f"rows of {name} were changed or deleted (version {version}: {kind})")
        for group in operation.groups:
            are_old = {_files(fragment) in old_files for fragment in group.old_fragments}
            if len(are_old) > 1:
                raise RowsChangedError(f"a compaction of {name} (version {version}) merged old and new rows")
            if are_old == {True}:
                old_files |= {_files(fragment) for fragment in group.new_fragments}
    return old_files


def _files(fragment: FragmentMetadata) -> frozenset[str]:
    """Return the paths of a fragment's files, which no other fragment ever had."""
    return frozenset(str(file.path) for file in fragment.files)


def leaves_rows_unchanged(
    dataset: lance.LanceDataset, version: int, commit: Transaction | None, columns: Sequence[str] | None = None
) -> bool:
    """Return whether a commit left all rows as they were: an index, a compaction, or one that changed no fragment.

    With `columns`, only the values of these are compared.
    """
    if commit is None:
        return False
    if isinstance(commit.operation, (LanceOperation.CreateIndex, LanceOperation.Rewrite)):
        return True
    if version == 1:
        return False
    old, new = (open_version(dataset, number) for number in (version - 1, version))
    if old is None or new is None:  # removed, so that they cannot be compared
        return False
    before, after = fragments_by_id(old), fragments_by_id(new)
    if before.keys() != after.keys():
        return False
    if columns is None:
        return all(is_same_fragment(fragment, after[number]) for number, fragment in before.items())
    fields = {name: field_ids(new, name) for name in columns}
    if any(not ids or ids != field_ids(old, name) for name, ids in fields.items()):
        return False
    compared = frozenset[int]().union(*fields.values())
    return all(_has_same_values(fragment, after[number], compared) for number, fragment in before.items())


def _has_same_values(left: FragmentMetadata, right: FragmentMetadata, fields: frozenset[int]) -> bool:
    """Return whether two fragments of one id have the same rows, and the same values in fields of these ids."""
    if left.deletion_file != right.deletion_file or left.overlays != right.overlays:
        return False
    return files_by_field(left, fields) == files_by_field(right, fields)
