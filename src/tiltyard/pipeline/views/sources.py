"""The source tables of a view, pinned at the versions that a refresh reads."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    PermissionDeniedError,
    TableVersionNotFoundError,
)

from tiltyard.model.views.definitions import SourceVersion
from tiltyard.pipeline import catalog_client
from tiltyard.pipeline.table_location import CatalogConnection, TableLocation

if TYPE_CHECKING:
    import lance

_MAX_TRIES = 20


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
