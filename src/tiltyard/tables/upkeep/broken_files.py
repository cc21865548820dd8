"""Find what a full disk has left broken of tables on disks: files that are not whole, and versions that name some.

Since commits check what they bring (docs/architecture.md, Durability), no new version names such a file. Tables of
earlier releases may have some, and tables that others commit to without this catalog.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import unquote

from lance_namespace.errors import InvalidInputError

from tiltyard.model.branches import MAIN, Branch
from tiltyard.runtime.durability import MISSING, describe_fault
from tiltyard.storage.errors import lance_errors
from tiltyard.storage.locations import is_local
from tiltyard.tables.versions.records import stored_versions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tiltyard.context import Context
    from tiltyard.store import TableRecord

_REFERENCES = ("tags", "branches")


@dataclass(frozen=True, slots=True)
class BrokenReference:
    """The file of a tag or a branch that is not whole: none of the table's tags, or branches, can be read."""

    location: str
    kind: str
    name: str


@dataclass(slots=True)
class BrokenVersions:
    """Versions of a branch that name files which are not whole, and the last one that names none."""

    files: dict[str, str] = field(default_factory=dict)
    """Their locations, and what is wrong with each."""
    versions: list[int] = field(default_factory=list)
    last_whole: int | None = None
    latest: int = 0


def find_broken_references(ctx: Context, location: str) -> Iterator[BrokenReference]:
    """Iterate over the files of tags and branches that are not whole."""
    if not is_local(location):
        return
    files = ctx.storage.files(location)
    for folder in _REFERENCES:
        for name in files.list_names(f"{location}/_refs/{folder}"):
            file = f"{location}/_refs/{folder}/{name}"
            if name.endswith(".json") and describe_fault(file) is not None:
                yield BrokenReference(file, "tag" if folder == "tags" else "branch", unquote(name[: -len(".json")]))


def branches_by_file(ctx: Context, location: str) -> list[Branch]:
    """Return main, and all branches that have a file, without opening the table."""
    names = ctx.storage.files(location).list_names(f"{location}/_refs/branches")
    return [MAIN, *(Branch(unquote(name[: -len(".json")])) for name in sorted(names) if name.endswith(".json"))]


def find_broken_manifests(ctx: Context, table: TableRecord, branch: Branch) -> dict[int, str]:
    """Return the locations of the manifests of a branch that are not whole, by version; they are final ones."""
    if not is_local(table.location):
        return {}
    stored = stored_versions(ctx, table, branch)
    locations = {version: f"{table.location}/{each.path(branch)}" for version, each in stored.items()}
    with lance_errors(table.location):
        return {version: place for version, place in locations.items() if describe_fault(place) is not None}


def find_broken_versions(ctx: Context, table: TableRecord, branch: Branch) -> BrokenVersions:
    """Check the files of all versions of a branch, but for missing ones. Raises ServiceUnavailableError.

    Each file is looked at where it is new; a version's own names are only compared once a file has turned out broken.
    """
    found, manifests = BrokenVersions(), ctx.storage.manifests
    if not is_local(table.location):
        return found
    for version in sorted(stored_versions(ctx, table, branch)):
        found.latest = version
        try:
            new = manifests.version_files(table.location, branch, version)
        except InvalidInputError:
            found.versions.append(version)  # its manifest is damaged
            continue
        for file in new:
            with lance_errors(table.location):
                fault = describe_fault(file)
            if fault is not None and fault != MISSING and not file.is_copy:
                found.files[file.location] = fault
        if found.files and not found.files.keys().isdisjoint(manifests.named_files(table.location, branch, version)):
            found.versions.append(version)
        else:
            found.last_whole = version
    return found
