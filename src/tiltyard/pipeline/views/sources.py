"""The tables that a view is made of, at pinned versions, and the rows that came into them since it was made."""

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
from tiltyard.model.view_definitions import Origin
from tiltyard.pipeline import catalog_client
from tiltyard.pipeline.table_location import Connection, TableLocation
from tiltyard.pipeline.version_diff import fragments_by_id, is_same_fragment
from tiltyard.pipeline.views.history import keeps_rows

if TYPE_CHECKING:
    import lance
    from lance.fragment import FragmentMetadata

_LOOKS = 20


class NotByRowsError(Exception):
    """New rows are not enough: the view has to be made anew. The message says why."""


@dataclass(frozen=True, slots=True)
class Source:
    """A table at the version that a refresh reads."""

    name: str
    location: TableLocation
    dataset: lance.LanceDataset

    @property
    def origin(self) -> Origin:
        """As the view remembers it."""
        return Origin(self.location.uri, int(self.dataset.version))

    @property
    def fragments(self) -> list[int]:
        """All its fragments."""
        return [one.fragment_id for one in self.dataset.get_fragments()]


def pinned(
    where: Connection, names: Collection[str], allowed: Mapping[str, str] | None, version: int | None
) -> dict[str, Source]:
    """Tables at the versions that they have at one and the same moment; with `version`, the one table at that one.

    `allowed` are the locations of tables that may be read; None for whatever the client may read. Raises
    InvalidInputError, TableVersionNotFoundError, PermissionDeniedError (another table has the name by now),
    ConcurrentModificationError (no two looks were alike).
    """
    lowered = {name.lower() for name in names}
    if len(lowered) < len(names):
        raise InvalidInputError("Spark takes no notice of case: name no two tables that differ in nothing else.")
    if version is not None and len(names) != 1:
        raise InvalidInputError(f"A source_version is of one table, and the view reads {len(names)}.")
    for _ in range(_LOOKS):
        found = {name: _opened(where, name, allowed, version) for name in names}
        if len(found) < 2 or all(_is_latest(where, one) for one in found.values()):
            return found
    raise ConcurrentModificationError(f"The tables {', '.join(names)} change all the time: run the job again.")


def reopened(where: Connection, origins: Mapping[str, Origin]) -> dict[str, Source] | None:
    """The tables that an earlier driver has pinned; None if one is not there any more. Raises PermissionDeniedError."""
    allowed = {name: one.location for name, one in origins.items()}
    try:
        return {name: _opened(where, name, allowed, one.version) for name, one in origins.items()}
    except TableVersionNotFoundError:
        return None


def _opened(where: Connection, name: str, allowed: Mapping[str, str] | None, version: int | None) -> Source:
    table = catalog_client.table(where, name)
    location = table.location()
    if allowed is not None and allowed.get(name) != location.uri:
        raise PermissionDeniedError(f"Another table is called {name} by now: ask for the refresh again.")
    return Source(name, location, table.dataset(version))


def _is_latest(where: Connection, source: Source) -> bool:
    return int(catalog_client.table(where, source.name).dataset().version) == int(source.dataset.version)


def arrived(source: Source, before: Origin | None) -> list[int]:
    """The fragments whose rows came in since `before`, while all rows that were there are there as they were.

    That is told by the two lists of fragments: files never change, so fragments with the same files and the same
    deletions hold the same rows. Fragments that were compacted are followed through the commits that did it, as long
    as each put together either new rows or old ones. Raises NotByRowsError for anything else.
    """
    name, dataset = source.name, source.dataset
    if before is None or before.location != source.location.uri:
        raise NotByRowsError(f"{name} is not the table that the view was made of")
    now = int(dataset.version)
    if now == before.version:
        return []
    if now < before.version:
        raise NotByRowsError(f"the view was made of version {before.version} of {name}, and {now} is older")
    try:
        old = dataset.checkout_version(before.version)
    except ValueError as error:
        raise NotByRowsError(f"version {before.version} of {name} is not kept any more") from error
    if not old.schema.equals(dataset.schema):
        raise NotByRowsError(f"columns of {name} were changed")
    there, here = fragments_by_id(old), fragments_by_id(dataset)
    if all(number in here and is_same_fragment(one, here[number]) for number, one in there.items()):
        return [number for number in here if number not in there]
    known = _followed(name, old, dataset)
    return [number for number, one in here.items() if _files(one) not in known]


def _followed(name: str, old: lance.LanceDataset, new: lance.LanceDataset) -> set[frozenset[str]]:
    """The files of the fragments that hold the rows of `old` in `new`, through compactions. Raises NotByRowsError."""
    known = {_files(one) for one in fragments_by_id(old).values()}
    for version in range(int(old.version) + 1, int(new.version) + 1):
        entry = read_transaction(new, version)
        if entry is None:
            raise NotByRowsError(f"what version {version} of {name} changed is not known any more")
        if not isinstance(entry.operation, LanceOperation.Rewrite):
            if isinstance(entry.operation, LanceOperation.Append) or keeps_rows(new, version, entry):
                continue
            kind = type(entry.operation).__name__
            raise NotByRowsError(f"rows of {name} were changed or deleted (version {version}: {kind})")
        for group in entry.operation.groups:
            told = {_files(one) in known for one in group.old_fragments}
            if len(told) > 1:
                raise NotByRowsError(f"a compaction of {name} (version {version}) put old and new rows together")
            if told == {True}:
                known |= {_files(one) for one in group.new_fragments}
    return known


def _files(fragment: FragmentMetadata) -> frozenset[str]:
    """What tells a fragment from all others that ever were."""
    return frozenset(str(file.path) for file in fragment.files)
