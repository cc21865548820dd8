"""Which files of a table belong to a backup: those of its versions as the catalog's snapshot has them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
from lance_namespace.errors import InvalidInputError

from tiltyard.model.branches import MAIN
from tiltyard.storage.errors import lance_errors
from tiltyard.storage.locations import is_within
from tiltyard.storage.manifests.manifest_format import LAST_VERSION, NamingScheme, naming_scheme_of, versions_folder
from tiltyard.tables.commits.finalizing import finalize_pending
from tiltyard.tables.upkeep.references import (
    FileKind,
    TableFile,
    classify,
    open_branches,
    referenced_units,
    tracked_files,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tiltyard.context import Context
    from tiltyard.storage.files import FileEntry

IMMUTABLE = (FileKind.DATA, FileKind.DELETION, FileKind.INDEX, FileKind.TRANSACTION, FileKind.MANIFEST)
"""Kinds of files that Lance never changes."""
_REFERENCES = ("_refs/tags/", "_refs/branches/")


@dataclass(slots=True)
class TableState:
    """A table in a snapshot of the catalog.

    `latest` are the last recorded versions by branch ("" is main), none for a table that is not managed: its versions
    are what storage has. `is_pending` says whether some recorded version was not final.
    """

    id: int
    name: str
    location: str
    is_declared: bool = False
    latest: dict[str, int] = field(default_factory=dict)
    is_pending: bool = False


class IncompleteError(Exception):
    """A table has not all that its versions need; the message says what is missing."""


class _Reference(msgspec.Struct, rename="camel"):
    """A tag or a branch, as Lance writes it: the version that it names, and the branch of that."""

    branch: str | None = None
    version: int | None = None
    parent_branch: str | None = None
    parent_version: int | None = None


@dataclass(frozen=True, slots=True)
class SelectedFile:
    """A file to back up."""

    entry: FileEntry
    immutable: bool


@dataclass(frozen=True, slots=True)
class BackupSelection:
    """The files of a table's folder to back up, and the locations of files elsewhere that a shallow clone uses."""

    files: list[SelectedFile]
    elsewhere: set[str]


def select_files(ctx: Context, table: TableState) -> BackupSelection:
    """Return the files that the versions of a table in the snapshot need.

    Versions that were committed after the snapshot are left out, and files of writes that are not committed. Raises
    IncompleteError, and what opening a table raises.
    """
    if table.is_pending:
        finalize_pending(ctx, table.id)
    branches = open_branches(ctx, table.location)
    tracked, elsewhere = tracked_files(table.location, branches)
    units = referenced_units(ctx, table.location, branches, tracked)
    names = sorted((branch.name for branch in branches if not branch.is_main), key=len, reverse=True)
    files = ctx.storage.files(table.location)
    with lance_errors(table.location):
        entries = list(files.walk(table.location))
    classified = [(entry, classify(entry, names)) for entry in entries]
    selected = [
        SelectedFile(entry, file is not None and file.kind in IMMUTABLE)
        for entry, file in classified
        if (_is_needed(table, file, units) if file is not None else _is_reference(ctx, table, entry))
    ]
    found = {file.unit for _, file in classified if file is not None}
    _check_complete(table, {branch.key for branch in branches}, found, tracked, selected)
    return BackupSelection(selected, elsewhere)


def _is_needed(table: TableState, file: TableFile, units: set[str]) -> bool:
    """Return whether a file of a known kind belongs to the backup."""
    if file.kind is FileKind.MANIFEST:
        return file.unit in units and _is_in_snapshot(table, *version_of_manifest(file.entry.path))
    return file.kind in IMMUTABLE and file.unit in units


def _is_in_snapshot(table: TableState, branch: str, version: int) -> bool:
    latest = table.latest.get(branch)
    return latest is None or version <= latest


def version_of_manifest(path: str) -> tuple[str, int]:
    """Return the branch ("" is main) and the version of a manifest by its path; 0 for a detached one."""
    folder, _, name = path.rpartition("/")
    branch = folder.removesuffix("/_versions").removeprefix("tree/") if folder != versions_folder(MAIN) else ""
    digits = name.partition(".")[0]
    if not digits.isdigit():
        return branch, 0
    number = int(digits)
    return branch, LAST_VERSION - number if naming_scheme_of(name) is NamingScheme.V2 else number


def _is_reference(ctx: Context, table: TableState, entry: FileEntry) -> bool:
    """Return whether a file is a tag or a branch of a version in the snapshot. Other files are no part of a table."""
    if not entry.path.startswith(_REFERENCES):
        return False
    with lance_errors(table.location):
        try:
            content = ctx.storage.files(table.location).read(f"{table.location}/{entry.path}")
        except FileNotFoundError:  # deleted meanwhile
            return False
    try:
        reference = msgspec.json.decode(content, type=_Reference)
    except msgspec.DecodeError:
        return True
    if entry.path.startswith("_refs/tags/"):
        return _is_in_snapshot(table, reference.branch or "", reference.version or 0)
    return _is_in_snapshot(table, reference.parent_branch or "", reference.parent_version or 0)


def _check_complete(
    table: TableState, branches: set[str], found: set[str], tracked: Iterable[str], selected: list[SelectedFile]
) -> None:
    """Raise IncompleteError unless all files that versions refer to are there, and the latest versions are.

    `branches` are the keys of those that exist: the catalog may have records of one whose creation a loss of power has
    ended, or whose deletion bypassed the server.
    """
    kinds = ("data/", "_deletions/", "_indices/")
    if missing := next((unit for unit in tracked if unit not in found and _below_branch(unit).startswith(kinds)), None):
        raise IncompleteError(f"the file {missing} is missing")
    paths = {file.entry.path for file in selected}
    manifests = {version_of_manifest(path) for path in paths if path.endswith(".manifest")}
    if not manifests and not table.is_declared:
        raise IncompleteError("it has no versions in storage")
    for branch, version in table.latest.items():
        if (branch, version) not in manifests and branch in {"", *branches}:
            raise IncompleteError(f"version {version}{f' of the branch {branch}' if branch else ''} is missing")


def _below_branch(unit: str) -> str:
    """Return a unit without the folder of the branch that it is in."""
    for kind in ("/data/", "/_deletions/", "/_indices/"):
        if unit.startswith("tree/") and kind in unit:
            return unit[unit.index(kind) + 1 :]
    return unit


def check_target(ctx: Context, location: str) -> None:
    """Raise InvalidInputError for a target that is one of the catalog's roots, or lies in one, or around one."""
    own = (ctx.storage.root, *ctx.storage.roots.own_locations)
    for root in own:
        if is_within(root, location) or (is_within(location, root) and root == ctx.storage.root):
            raise InvalidInputError("The backup has to lie outside the catalog's root, and the root outside of it.")
