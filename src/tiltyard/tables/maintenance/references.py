"""Which files of a table its versions need: those of main, of branches, and of shallow clones elsewhere."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from tiltyard.model.ids import MAIN_BRANCH
from tiltyard.storage.errors import lance_errors
from tiltyard.storage.manifest_format import FINAL_NAME, versions_folder

if TYPE_CHECKING:
    from collections.abc import Iterable

    import lance

    from tiltyard.context import Context
    from tiltyard.storage.files import FileEntry

_STAGED = re.compile(r"^(?:\.|d?\d+\.manifest[-.])")
_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_ABANDONED = r"(?:#\d+)?$|^\.tmp\w+$"
"""What Lance's writers append to a name, or use instead, until a file is whole."""


class Kind(StrEnum):
    """What a file of a table is."""

    DATA = "data"
    DELETION = "deletion"
    INDEX = "index"
    TRANSACTION = "transaction"
    STAGED = "staged manifest"
    UNFINISHED = "unfinished write"
    MANIFEST = "manifest"
    OTHER = "other"
    """Not Lance's by its name, though it lies in a folder of Lance's: somebody's own, and nobody else's to delete."""


_UNFINISHED = "_creating-", "_publishing-"
"""How folders begin that somebody has while a table is made, or a publication's block is open (publishing.changes)."""

_FOLDERS = {
    "data": Kind.DATA,
    "_deletions": Kind.DELETION,
    "_indices": Kind.INDEX,
    "_transactions": Kind.TRANSACTION,
}

_OWN = {
    Kind.DATA: re.compile(rf"^[0-9a-f-]{{32,}}[./]|^[^/]+\.lance{_ABANDONED}"),
    Kind.DELETION: re.compile(rf"^\d+-\d+-\d+\.(?:arrow|bin){_ABANDONED}"),
    Kind.INDEX: re.compile(rf"^{_UUID}/"),
    Kind.TRANSACTION: re.compile(rf"^\d+-{_UUID}\.txn{_ABANDONED}"),
}
"""How Lance names files in its folders."""


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file of a table, and what it is; `unit` is what versions refer to: the file, or a folder or group of files."""

    found: FileEntry
    kind: Kind
    unit: str


def table_file(found: FileEntry, branches: Iterable[str]) -> TableFile | None:
    """What a file of a table is, by its path; None for what is no part of a Lance table."""
    start = _start(found.path, branches)
    head, _, rest = found.path.removeprefix(start).partition("/")
    if head in _FOLDERS:
        kind = _FOLDERS[head]
        return TableFile(found, kind if _OWN[kind].match(rest) else Kind.OTHER, start + _unit(head, rest))
    if head == "_versions" and FINAL_NAME.match(rest):
        return TableFile(found, Kind.MANIFEST, found.path)
    if head == "_versions" and _STAGED.match(rest):
        return TableFile(found, Kind.STAGED, found.path)
    if head.startswith(_UNFINISHED):
        return TableFile(found, Kind.UNFINISHED, found.path)
    return None


def kind_of(path: str) -> Kind:
    """What a file of main or of a branch is, by the folder that it lies in."""
    return next((_FOLDERS[part] for part in path.split("/")[:-1] if part in _FOLDERS), Kind.OTHER)


def _start(path: str, branches: Iterable[str]) -> str:
    """The folder of the branch that a path lies in, with a slash; "" for main."""
    return next((start for name in branches if path.startswith(start := f"tree/{name}/")), "")


def _unit(folder: str, rest: str) -> str:
    """What versions refer to: an index by its folder, a data file with what lies beside it under the same name."""
    first = rest.partition("/")[0]
    if folder == "_indices":
        return f"{folder}/{first}"
    if folder == "data":
        return f"{folder}/{first.partition('.')[0]}"
    return f"{folder}/{rest}"


def table_files(ctx: Context, location: str, lines: Iterable[str]) -> list[TableFile]:
    """The files in a table's folder that are known for what they are; `lines` names main and its branches."""
    branches = branches_of(lines)
    files = (table_file(found, branches) for found in ctx.storage.files(location).walk(location))
    return [file for file in files if file is not None]


def old_versions(location: str) -> str:
    """The lock of whoever begins to use an old version, or takes some away."""
    return f"old versions of {location}"


def open_lines(ctx: Context, location: str) -> dict[str, lance.LanceDataset]:
    """Handles of main and of all branches, by their names; none without data.

    Raises what opening a table raises, other than that it has no data.
    """
    if not ctx.storage.has_table(location):
        return {}
    main = ctx.storage.datasets.open_for_writing(location, ctx.storage.options(location))
    ctx.storage.manifests.check_references(location)
    with lance_errors(main):
        names = sorted(main.branches.list(), key=len, reverse=True)
        for name in (MAIN_BRANCH, *names):
            ctx.storage.manifests.check_history(location, name)
        return {MAIN_BRANCH: main, **{name: main.checkout_version((name, None)) for name in names}}


def branches_of(lines: Iterable[str]) -> list[str]:
    """The branches beside main, the longest names first: one may lie in the folder of another."""
    return sorted((name for name in lines if name != MAIN_BRANCH), key=len, reverse=True)


def references(ctx: Context, location: str, lines: dict[str, lance.LanceDataset]) -> set[str]:
    """The units that any version needs: of main, of a branch, or of a shallow clone that the catalog knows."""
    units, branches = tracked(location, lines), branches_of(lines)
    for name, dataset in lines.items():
        if name != MAIN_BRANCH:
            _add_inherited(units, dataset, branches)
    for clone in ctx.store.clone_locations(location):
        for dataset in open_lines(ctx, clone).values():
            _add_tracked(units, dataset, location, branches)
            _add_inherited(units, dataset, branches)
    return units


def tracked(location: str, lines: dict[str, lance.LanceDataset]) -> set[str]:
    """The units in a table's folder that its own versions need."""
    units: set[str] = set()
    for dataset in lines.values():
        _add_tracked(units, dataset, location, branches_of(lines))
    return units


def _add_tracked(units: set[str], dataset: lance.LanceDataset, location: str, branches: list[str]) -> None:
    """Add what one line of versions needs of a table's folder."""
    with lance_errors(dataset):
        for batch in dataset.tracked_files():
            columns = (batch.column(name).to_pylist() for name in ("base_uri", "path"))
            for base, path in set(zip(*columns, strict=True)):
                if (prefix := _below(base, location)) is not None:
                    units.add(unit_of(prefix + path, branches))


def _add_inherited(units: set[str], dataset: lance.LanceDataset, branches: list[str]) -> None:
    """Add the indices of a branch or a clone, wherever they lie: those from elsewhere are no tracked files."""
    with lance_errors(dataset):
        uuids = [segment.uuid for index in dataset.describe_indices() for segment in index.segments]
    starts = ["", *(f"tree/{name}/" for name in branches)]
    units.update(f"{start}_indices/{uuid}" for start in starts for uuid in uuids)


def unit_of(path: str, branches: Iterable[str]) -> str:
    """What a path in a table's folder belongs to, however the base was told that it is under."""
    start = _start(path, branches)
    head, _, rest = path.removeprefix(start).partition("/")
    return start + _unit(head, rest) if head in _FOLDERS else path


def _below(base: str, location: str) -> str | None:
    """Where a base lies below a table's location, as a prefix of paths; None for elsewhere."""
    base = base.removeprefix("file://").rstrip("/")
    if base == location:
        return ""
    return f"{base[len(location) + 1 :]}/" if base.startswith(f"{location}/") else None


def lost_manifests(files: Iterable[TableFile], units: set[str], lines: Iterable[str]) -> list[str]:
    """Manifests in the folders of known lines that Lance did not speak of: its paths and ours are not the same then."""
    folders = {versions_folder(name) for name in lines}
    return [
        file.unit
        for file in files
        if file.kind is Kind.MANIFEST and file.unit.rpartition("/")[0] in folders and file.unit not in units
    ]
