"""The source tables of a view: pin their versions, and find the fragments that were added since the last refresh."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lance import LanceOperation
from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    PermissionDeniedError,
    TableVersionNotFoundError,
)

from tiltyard.model.table_history import read_transaction
from tiltyard.model.view_definitions import SourceVersion
from tiltyard.pipeline import catalog_client
from tiltyard.pipeline.table_location import CatalogConnection, TableLocation
from tiltyard.pipeline.version_diff import fragments_by_id, is_same_fragment

if TYPE_CHECKING:
    import lance
    from lance.dataset import Transaction
    from lance.fragment import FragmentMetadata

_MAX_TRIES = 20


class FullRefreshRequiredError(Exception):
    """The rows that were added are not enough: all rows have to be computed again. The message is the reason."""


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A table at the version that a refresh reads."""

    name: str
    location: TableLocation
    dataset: lance.LanceDataset

    @property
    def origin(self) -> SourceVersion:
        """Return the table and version, as the view's commit records it."""
        return SourceVersion(self.location.uri, int(self.dataset.version))

    @property
    def fragments(self) -> list[int]:
        """Return the ids of all fragments."""
        return [fragment.fragment_id for fragment in self.dataset.get_fragments()]


def pin_sources(
    catalog: CatalogConnection, names: Collection[str], allowed: Mapping[str, str] | None, version: int | None
) -> dict[str, SourceTable]:
    """Open tables at the versions that they have at one moment; with `version`, a single table at that version.

    `allowed` are the locations of tables that may be read; None for all that the client may read. Raises
    InvalidInputError, TableVersionNotFoundError, PermissionDeniedError (another table has the name by now),
    ConcurrentModificationError (a table changed during each attempt).
    """
    lowercase = {name.lower() for name in names}
    if len(lowercase) < len(names):
        raise InvalidInputError("Spark ignores case: name no two tables that differ only in case.")
    if version is not None and len(names) != 1:
        raise InvalidInputError(f"A source_version is of one table, and the view reads {len(names)}.")
    for _ in range(_MAX_TRIES):
        sources = {name: _open_source(catalog, name, allowed, version) for name in names}
        if len(sources) < 2 or all(_is_latest(catalog, source) for source in sources.values()):
            return sources
    raise ConcurrentModificationError(f"The tables {', '.join(names)} keep changing: run the job again.")


def reopen_sources(catalog: CatalogConnection, origins: Mapping[str, SourceVersion]) -> dict[str, SourceTable] | None:
    """Open the versions that an earlier driver pinned; None if one no longer exists. Raises PermissionDeniedError."""
    allowed = {name: origin.location for name, origin in origins.items()}
    try:
        return {name: _open_source(catalog, name, allowed, origin.version) for name, origin in origins.items()}
    except TableVersionNotFoundError:
        return None


def _open_source(
    catalog: CatalogConnection, name: str, allowed: Mapping[str, str] | None, version: int | None
) -> SourceTable:
    table = catalog_client.table(catalog, name)
    location = table.location()
    if allowed is not None and allowed.get(name) != location.uri:
        raise PermissionDeniedError(f"Another table is called {name} by now: submit the refresh again.")
    return SourceTable(name, location, table.dataset(version))


def _is_latest(catalog: CatalogConnection, source: SourceTable) -> bool:
    return int(catalog_client.table(catalog, source.name).dataset().version) == int(source.dataset.version)


def find_added_fragments(source: SourceTable, before: SourceVersion | None) -> list[int]:
    """Return the ids of fragments whose rows were added since `before`, if no earlier row was changed or deleted.

    The two lists of fragments show that: files never change, so fragments with the same files and the same deletions
    hold the same rows. Fragments that were compacted are followed through the commits that did it, as long as each
    compacted either only new rows or only old ones. Raises FullRefreshRequiredError otherwise.
    """
    name, dataset = source.name, source.dataset
    if before is None or before.location != source.location.uri:
        raise FullRefreshRequiredError(f"{name} is not the view's source table")
    version = int(dataset.version)
    if version == before.version:
        return []
    if version < before.version:
        raise FullRefreshRequiredError(
            f"the view was made of version {before.version} of {name}, and {version} is older"
        )
    try:
        old_dataset = dataset.checkout_version(before.version)
    except ValueError as error:
        raise FullRefreshRequiredError(f"version {before.version} of {name} no longer exists") from error
    if not old_dataset.schema.equals(dataset.schema):
        raise FullRefreshRequiredError(f"columns of {name} were changed")
    old, new = fragments_by_id(old_dataset), fragments_by_id(dataset)
    if all(number in new and is_same_fragment(fragment, new[number]) for number, fragment in old.items()):
        return [number for number in new if number not in old]
    old_files = _follow_compactions(name, old_dataset, dataset)
    return [number for number, fragment in new.items() if _files(fragment) not in old_files]


def _follow_compactions(name: str, old: lance.LanceDataset, new: lance.LanceDataset) -> set[frozenset[str]]:
    """Return the files of the fragments that hold the rows of `old`, up to `new`. Raises FullRefreshRequiredError."""
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
            raise FullRefreshRequiredError(f"rows of {name} were changed or deleted (version {version}: {kind})")
        for group in operation.groups:
            are_old = {_files(fragment) in old_files for fragment in group.old_fragments}
            if len(are_old) > 1:
                raise FullRefreshRequiredError(f"a compaction of {name} (version {version}) merged old and new rows")
            if are_old == {True}:
                old_files |= {_files(fragment) for fragment in group.new_fragments}
    return old_files


def _files(fragment: FragmentMetadata) -> frozenset[str]:
    """Return the paths of a fragment's files, which no other fragment ever had."""
    return frozenset(str(file.path) for file in fragment.files)


def leaves_rows_unchanged(dataset: lance.LanceDataset, version: int, commit: Transaction | None) -> bool:
    """Return whether a commit left all rows as they were: an index, a compaction, or one that changed no fragment."""
    if commit is None:
        return False
    if isinstance(commit.operation, (LanceOperation.CreateIndex, LanceOperation.Rewrite)):
        return True
    if version == 1:
        return False
    try:
        before, after = (fragments_by_id(dataset.checkout_version(number)) for number in (version - 1, version))
    except ValueError:  # one of them was removed, so that they cannot be compared
        return False
    return before.keys() == after.keys() and all(
        is_same_fragment(fragment, after[number]) for number, fragment in before.items()
    )
