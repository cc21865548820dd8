"""Which files of a table are what, and which its versions refer to: those of main, of branches, and of shallow clones.

Versions refer to units: a file, or a folder or group of files that belong together.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import pyarrow as pa

from tiltyard.model.branches import MAIN, Branch
from tiltyard.storage.errors import lance_errors
from tiltyard.storage.manifests.manifest_format import FINAL_NAME, versions_folder
from tiltyard.storage.reference_files import list_references

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import lance

    from tiltyard.context import Context
    from tiltyard.storage.files import FileEntry

_STAGED = re.compile(r"^(?:\.|d?\d+\.manifest[-.])")
_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_ABANDONED = r"(?:#\d+)?$|^\.tmp\w+$"
"""What Lance's writers append to a name, or use instead, until a file is whole."""
_MAX_REPEATED_ROWS = 1 << 20
"""Rows that are read of Lance's list of files before repetitions go: each version repeats those of the one before."""


class FileKind(StrEnum):
    """What a file of a table is."""

    DATA = "data"
    DELETION = "deletion"
    INDEX = "index"
    TRANSACTION = "transaction"
    STAGED = "staged manifest"
    UNFINISHED = "unfinished write"
    MANIFEST = "manifest"
    OTHER = "other"
    """Not Lance's by its name, though it is in a folder of Lance's: a user's own file, which is never deleted."""


_UNFINISHED = "_creating-", "_publishing-"
"""Prefixes of folders that exist while a table is created, or a publication's block is open (publishing.staged)."""

_FOLDERS = {
    "data": FileKind.DATA,
    "_deletions": FileKind.DELETION,
    "_indices": FileKind.INDEX,
    "_transactions": FileKind.TRANSACTION,
}

_LANCE_NAMES = {
    FileKind.DATA: re.compile(rf"^[0-9a-f-]{{32,}}[./]|^[^/]+\.lance{_ABANDONED}"),
    FileKind.DELETION: re.compile(rf"^\d+-\d+-\d+\.(?:arrow|bin){_ABANDONED}"),
    FileKind.INDEX: re.compile(rf"^{_UUID}/"),
    FileKind.TRANSACTION: re.compile(rf"^\d+-{_UUID}\.txn{_ABANDONED}"),
}
"""How Lance names files in its folders."""


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file of a table and its kind; `unit` is what versions refer to: the file, or a folder or group of files."""

    entry: FileEntry
    kind: FileKind
    unit: str


def classify(entry: FileEntry, branch_names: Iterable[str]) -> TableFile | None:
    """Return what a file of a table is, by its path; None for what is no part of a Lance table."""
    prefix = _branch_prefix(entry.path, branch_names)
    folder, _, name = entry.path.removeprefix(prefix).partition("/")
    if folder in _FOLDERS:
        kind = _FOLDERS[folder]
        is_lance = _LANCE_NAMES[kind].match(name)
        return TableFile(entry, kind if is_lance else FileKind.OTHER, prefix + _unit(folder, name))
    if folder == "_versions" and FINAL_NAME.match(name):
        return TableFile(entry, FileKind.MANIFEST, entry.path)
    if folder == "_versions" and _STAGED.match(name):
        return TableFile(entry, FileKind.STAGED, entry.path)
    if folder.startswith(_UNFINISHED):
        return TableFile(entry, FileKind.UNFINISHED, entry.path)
    return None


def kind_of(path: str) -> FileKind:
    """Return what a file of main or of a branch is, by the folder that it is in."""
    return next((_FOLDERS[part] for part in path.split("/")[:-1] if part in _FOLDERS), FileKind.OTHER)


def _branch_prefix(path: str, branch_names: Iterable[str]) -> str:
    """Return the folder of the branch that a path is in, with a slash; "" for main."""
    return next((prefix for name in branch_names if path.startswith(prefix := f"tree/{name}/")), "")


def _unit(folder: str, name: str) -> str:
    """Return the unit of a file: an index by its folder, a data file with the files of the same stem."""
    first = name.partition("/")[0]
    if folder == "_indices":
        return f"{folder}/{first}"
    if folder == "data":
        return f"{folder}/{first.partition('.')[0]}"
    return f"{folder}/{name}"


def table_files(ctx: Context, location: str, branches: Iterable[Branch]) -> list[TableFile]:
    """Return the files in a table's folder whose kind is known; `branches` are main and all others."""
    names = _without_main(branches)
    files = (classify(entry, names) for entry in ctx.storage.files(location).walk(location))
    return [file for file in files if file is not None]


def open_branches(ctx: Context, location: str) -> dict[Branch, lance.LanceDataset]:
    """Open main and all other branches; none without data.

    Raises what opening a table raises, except for a table without data.
    """
    if not ctx.storage.has_table(location):
        return {}
    main = ctx.storage.datasets.open_for_writing(location)
    ctx.storage.manifests.check_references(location)
    with lance_errors(main):
        branches = [Branch.parse(name) for name in sorted(list_references(main.branches), key=len, reverse=True)]
        for branch in (MAIN, *branches):
            ctx.storage.manifests.check_history(location, branch)
        return {MAIN: main, **{branch: main.checkout_version((branch.lance_name, None)) for branch in branches}}


def _without_main(branches: Iterable[Branch]) -> list[str]:
    """Return the names of branches other than main, the longest first: one may be in the folder of another."""
    return sorted((branch.name for branch in branches if not branch.is_main), key=len, reverse=True)


def referenced_units(
    ctx: Context, location: str, branches: dict[Branch, lance.LanceDataset], tracked: set[str]
) -> set[str]:
    """Return the units that any version refers to: of main, of a branch, or of a shallow clone in the catalog.

    `tracked` are those that `tracked_units` tells of the table itself.
    """
    units, names = set(tracked), _without_main(branches)
    for branch, dataset in branches.items():
        if not branch.is_main:
            _add_inherited(units, dataset, names)
    for clone in ctx.store.clone_locations(location):
        for dataset in open_branches(ctx, clone).values():
            _add_tracked(units, dataset, location, names)
            _add_inherited(units, dataset, names)
    return units


def tracked_units(location: str, branches: dict[Branch, lance.LanceDataset]) -> set[str]:
    """Return the units in a table's folder that its own versions refer to."""
    return tracked_files(location, branches)[0]


def tracked_files(location: str, branches: dict[Branch, lance.LanceDataset]) -> tuple[set[str], set[str]]:
    """Return the units in a table's folder that its own versions refer to, and the locations of files elsewhere."""
    units, elsewhere = set[str](), set[str]()
    for dataset in branches.values():
        elsewhere |= _add_tracked(units, dataset, location, _without_main(branches))
    return units, elsewhere


def _add_tracked(units: set[str], dataset: lance.LanceDataset, location: str, branch_names: list[str]) -> set[str]:
    """Add the units of a table's folder that the versions of one branch refer to; return the locations of others."""
    elsewhere = set[str]()
    with lance_errors(dataset):
        for base, path in _distinct_files(dataset):
            if (prefix := _prefix_below(base, location)) is not None:
                units.add(unit_of(prefix + path, branch_names))
            else:
                elsewhere.add(f"{base.removeprefix('file://').rstrip('/')}/{path}")
    return elsewhere


def units_of_versions(
    location: str, branches: dict[Branch, lance.LanceDataset], is_kept: Callable[[Branch, int], bool]
) -> tuple[set[str], set[str]]:
    """Return the units in a table's folder that its kept versions refer to, and those that its other versions do."""
    kept, others, names = set[str](), set[str](), _without_main(branches)
    for branch, dataset in branches.items():
        with lance_errors(dataset):
            for batch in dataset.tracked_files():
                columns = (batch.column(name).to_pylist() for name in ("version", "base_uri", "path"))
                for version, base, path in zip(*columns, strict=True):
                    if (prefix := _prefix_below(base, location)) is not None:
                        (kept if is_kept(branch, version) else others).add(unit_of(prefix + path, names))
    return kept, others


def _distinct_files(dataset: lance.LanceDataset) -> Iterator[tuple[str, str]]:
    """Return the base and the path of each file that any version of a branch refers to, once."""
    columns = ["base_uri", "path"]
    batches, rows = list[pa.RecordBatch](), 0
    for batch in dataset.tracked_files():
        batches.append(batch.select(columns))
        rows += len(batch)
        if rows >= _MAX_REPEATED_ROWS:
            batches, rows = _distinct(batches), 0
    for batch in _distinct(batches) if batches else ():
        yield from zip(*(batch.column(name).to_pylist() for name in columns), strict=True)


def _distinct(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    table = pa.Table.from_batches(batches).unify_dictionaries()
    distinct: list[pa.RecordBatch] = table.group_by(table.column_names).aggregate([]).to_batches()
    return distinct


def _add_inherited(units: set[str], dataset: lance.LanceDataset, branch_names: list[str]) -> None:
    """Add the indexes of a branch or a clone, wherever they are: Lance tracks none of another location."""
    with lance_errors(dataset):
        uuids = [segment.uuid for index in dataset.describe_indices() for segment in index.segments]
    prefixes = ["", *(f"tree/{name}/" for name in branch_names)]
    units.update(f"{prefix}_indices/{uuid}" for prefix in prefixes for uuid in uuids)


def unit_of(path: str, branch_names: Iterable[str]) -> str:
    """Return the unit of a path in a table's folder, whichever base Lance has reported it under."""
    prefix = _branch_prefix(path, branch_names)
    folder, _, name = path.removeprefix(prefix).partition("/")
    return prefix + _unit(folder, name) if folder in _FOLDERS else path


def _prefix_below(base: str, location: str) -> str | None:
    """Return where a base is below a table's location, as a prefix of paths; None for elsewhere."""
    base = base.removeprefix("file://").rstrip("/")
    if base == location:
        return ""
    return f"{base[len(location) + 1 :]}/" if base.startswith(f"{location}/") else None


def unknown_manifests(files: Iterable[TableFile], units: set[str], branches: Iterable[Branch]) -> list[str]:
    """Return manifests of known branches that Lance has not reported: its paths and ours differ then."""
    folders = {versions_folder(branch) for branch in branches}
    return [
        file.unit
        for file in files
        if file.kind is FileKind.MANIFEST and file.unit.rpartition("/")[0] in folders and file.unit not in units
    ]
