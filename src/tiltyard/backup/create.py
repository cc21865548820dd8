"""Take a backup: a snapshot of the catalog, then the files of its tables, while servers go on writing.

A file that the last backup has is not read again. A table that loses files between the snapshot and their copy (it is
dropped, or old versions are removed) makes the backup take another snapshot, from which most files are there already.
"""

from __future__ import annotations

import gzip
import hashlib
import logging
import re
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import msgspec
from lance_namespace.errors import InvalidInputError, LanceNamespaceError

from tiltyard import __version__
from tiltyard.backup.points import (
    FORMAT,
    BackupFile,
    BackupPoint,
    StoredFile,
    StoredTable,
    fetch_part,
    list_points,
    new_point_id,
    read_point,
    read_tables,
    table_label,
)
from tiltyard.backup.selection import IncompleteError, TableState, check_target, select_files
from tiltyard.backup.target import digest_chunks
from tiltyard.config import DAY_MS
from tiltyard.runtime.failpoints import Point as Failpoint
from tiltyard.runtime.failpoints import reach
from tiltyard.runtime.pool import run_together
from tiltyard.storage.errors import lance_errors
from tiltyard.store import read_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tiltyard.backup.selection import SelectedFile
    from tiltyard.backup.target import BackupTarget
    from tiltyard.context import Context
    from tiltyard.store import DumpHeader

log = logging.getLogger("tiltyard.backup")

ATTEMPTS = 4
"""Snapshots that are taken at most until all tables are whole in one."""
TABLE_THREADS, FILE_THREADS = 4, 4
"""Tables at once, and files of one table."""
_TABLES_AT_ONCE = 100
"""Tables between two looks at how far it is."""
SETTLED_MS = 60_000
"""How long before the last backup a manifest has to be written to be known by its time of modification: storages keep
whole seconds, and their clocks differ from the server's.
"""
CREATING, PRUNING = "creating", "pruning"


class Copied(msgspec.Struct):
    """How much one run has copied."""

    files: int = 0
    size: int = 0


@dataclass(slots=True)
class _Backup:
    """A backup that is being taken; `known` are the tables of the last one, and of earlier snapshots, by location.

    `known_at` is when the last one was taken (ms since 1970), 0 if there is none. `elsewhere` are the locations of
    files in other tables' folders that shallow clones use, by the clone's location.
    """

    ctx: Context
    target: BackupTarget
    id: str
    known: dict[str, StoredTable]
    known_at: int
    expires_at: int
    elsewhere: dict[str, set[str]] = field(default_factory=dict)
    copied: Copied = field(default_factory=Copied)


def create_backup(
    ctx: Context, target: BackupTarget, progress: Callable[[str], None] = lambda line: None, *, expire_days: int = 0
) -> BackupPoint:
    """Take a backup and return it; `progress` gets lines for people. It expires after so many days, with 0 never.

    Tables that are not whole in the catalog itself are named in its `problems`. Raises InvalidInputError for a target
    that cannot be one, and what the storage raises.
    """
    check_target(ctx, target.location)
    with (
        tempfile.TemporaryDirectory(prefix="tiltyard-backup-") as folder,
        lance_errors(target.location),
        running(target, CREATING),
    ):
        dump_file = Path(folder, "catalog.jsonl.gz")
        known, known_at = _known_tables(target, Path(folder))
        now = ctx.clock()
        expires_at = now + expire_days * DAY_MS if expire_days else 0
        backup = _Backup(ctx, target, new_point_id(now), known, known_at, expires_at)
        problems: dict[str, str] | None = None
        for _ in range(ATTEMPTS):
            before, header = problems, ctx.store.dump(dump_file)
            tables, problems = _copy_tables(backup, dump_file, progress)
            if not problems or problems == before:
                break
            progress(f"Tables that changed while they were copied: {len(problems)}. They are looked at again.")
        assert problems is not None
        return _write_point(backup, header, dump_file, tables, problems)


@contextmanager
def running(target: BackupTarget, what: str) -> Iterator[None]:
    """Say in a target that a backup, or a removal of backups, is under way. Raises InvalidInputError for both at once.

    A mark that a killed process left is to be removed by an operator: `tiltyard backup prune --force` does.
    """
    key = f"running/{what}-{uuid4().hex}.json"
    target.write_new(key, msgspec.json.encode({"what": what}))
    try:
        other = PRUNING if what == CREATING else CREATING
        if any(entry.path.startswith(f"running/{other}-") for entry in target.walk("running")):
            raise InvalidInputError(
                "Backups are being removed from this target, or were when the command was killed: try again later, or "
                "end it with `tiltyard backup prune --force`."
                if what == CREATING
                else "A backup is being taken, or was when the command was killed: try again later, or with --force."
            )
        yield
    finally:
        target.delete([key])


def _known_tables(target: BackupTarget, folder: Path) -> tuple[dict[str, StoredTable], int]:
    """Return the tables of the last backup by their locations, and when it was taken; none and 0 without one."""
    if not list_points(target):
        return {}, 0
    point = read_point(target, "")
    tables = read_tables(fetch_part(target, point, "files", folder))
    return {table.location: table for table in tables}, point.taken_at


def read_states(dump_file: Path) -> list[TableState]:
    """Return the tables of a dump, also those that can be brought back; not those below mounts."""
    tables = dict[int, TableState]()
    kinds = "tables", "table_versions", "removed_tables"
    for kind, row in read_rows(dump_file, *kinds):
        if kind == "table_versions":
            _add_version(tables, row)
        elif row.get("mount_id") is None:
            tables[row["id"]] = TableState(row["id"], row["name"], row["location"], row["declared"])
    return list(tables.values())


def _add_version(tables: dict[int, TableState], row: dict[str, object]) -> None:
    """Add a recorded version to the state of its table."""
    table_id, branch, version = row["table_id"], row["branch"], row["version"]
    assert isinstance(table_id, int) and isinstance(branch, str) and isinstance(version, int)  # noqa: PT018
    if (table := tables.get(table_id)) is not None:
        table.latest[branch] = max(version, table.latest.get(branch, 0))
        table.is_pending |= not row["finalized"]


def _read_sources(dump_file: Path) -> set[str]:
    """Return the folders of functions' sources."""
    return {row["artifact"] for _, row in read_rows(dump_file, "function_versions")}


def _copy_tables(
    backup: _Backup, dump_file: Path, progress: Callable[[str], None]
) -> tuple[list[StoredTable], dict[str, str]]:
    """Copy the files of all tables of a snapshot; return them, and those that are not whole with the reason."""
    states, problems = read_states(dump_file), dict[str, str]()
    stored = [_copy_source(backup, location) for location in sorted(_read_sources(dump_file))]

    def copy(state: TableState) -> StoredTable | Exception:
        try:
            return _copy_table(backup, state)
        except (IncompleteError, LanceNamespaceError, FileNotFoundError) as error:
            return error

    for start in range(0, len(states), _TABLES_AT_ONCE):
        part = states[start : start + _TABLES_AT_ONCE]
        outcomes = run_together(copy, part, TABLE_THREADS)
        for number, (state, outcome) in enumerate(zip(part, outcomes, strict=True), start + 1):
            if isinstance(outcome, Exception):
                problems[table_label(state.name, state.location)] = (
                    str(outcome) or "a file vanished while it was copied"
                )
            else:
                stored.append(outcome)
                backup.known[outcome.location] = outcome
            if number % 500 == 0:
                progress(f"{number} of {len(states)} tables.")
    return stored, _find_missing(backup, states, stored) | problems


def _find_missing(backup: _Backup, states: list[TableState], stored: list[StoredTable]) -> dict[str, str]:
    """Return the shallow clones that use files which are in no table of the backup, with the reason."""
    clones = [(state, files) for state in states if (files := backup.elsewhere.get(state.location))]
    if not clones:
        return {}
    locations = {f"{table.location}/{file.path}" for table in stored for file in table.files}
    return {
        table_label(state.name, state.location): f"it uses the file {min(missing)}, which is in no table of the backup"
        for state, files in clones
        if (missing := files - locations)
    }


def _copy_table(backup: _Backup, state: TableState) -> StoredTable:
    selection = select_files(backup.ctx, state)
    selected, backup.elsewhere[state.location] = selection.files, selection.elsewhere
    known = backup.known.get(state.location)
    folder = known.folder if known is not None and not _is_replaced(backup, known, selected) else ""
    if not folder:
        known, folder = None, f"{_slug(state.location)}-{backup.id.rpartition('-')[2]}"
    by_path = {file.path: file for file in known.files} if known is not None else {}

    def copy(file: SelectedFile) -> StoredFile:
        return _copy_file(backup, state.location, folder, file, by_path.get(file.entry.path))

    files = sorted(run_together(copy, selected, FILE_THREADS), key=lambda file: file.path)
    return StoredTable(state.id, state.name, state.location, folder, files)


def _slug(location: str) -> str:
    """Return a folder's name for a table: its own name, readable, and a digest of the whole location."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "_", location.rpartition("/")[2].removesuffix(".lance"))[:80]
    return f"{name}-{hashlib.sha256(location.encode()).hexdigest()[:12]}"


def _is_replaced(backup: _Backup, known: StoredTable, selected: list[SelectedFile]) -> bool:
    """Return whether a location has other immutable files than the target has under these names.

    Names of manifests are numbers of versions: another table that was written to the location has the same ones, and so
    have versions that came after others were lost. All other names are unique. Raises FileNotFoundError.
    """
    stored = {file.path: file for file in known.files if file.immutable}
    doubtful: list[SelectedFile] = []
    for file in selected:
        entry, before = file.entry, stored.get(file.entry.path)
        if not file.immutable:
            continue
        if before is not None and before.size != entry.size:
            return True
        is_settled = before is not None and before.modified == entry.modified < backup.known_at - SETTLED_MS
        if entry.path.endswith(".manifest") and not is_settled:
            doubtful.append(file)

    def is_other(file: SelectedFile) -> bool:
        path = file.entry.path
        if path in stored:
            digest = stored[path].sha256
        elif backup.target.size(key := f"files/{known.folder}/{path}") is not None:  # an earlier backup's
            _, digest = digest_chunks(backup.target.read_chunks(key))
        else:
            return False
        chunks = backup.ctx.storage.files(known.location).read_chunks(f"{known.location}/{path}")
        return digest_chunks(chunks)[1] != digest

    return any(run_together(is_other, doubtful, FILE_THREADS))


def _copy_file(backup: _Backup, location: str, folder: str, file: SelectedFile, known: StoredFile | None) -> StoredFile:
    """Copy a file unless the target has it; return what is stored. Raises FileNotFoundError."""
    entry, source = file.entry, f"{location}/{file.entry.path}"
    if file.immutable:
        if known is not None and known.size == entry.size:
            return known
        reach(Failpoint.BEFORE_BACKUP_COPY)
        chunks = backup.ctx.storage.files(location).read_chunks(source)
        size, digest = backup.target.write(f"files/{folder}/{entry.path}", chunks)
    else:
        content = backup.ctx.storage.files(location).read(source)
        size, digest = len(content), hashlib.sha256(content).hexdigest()
        if not backup.target.write_new(f"contents/{digest}", content):
            return StoredFile(entry.path, size, entry.modified, digest, immutable=False)
    backup.copied.files += 1
    backup.copied.size += size
    return StoredFile(entry.path, size, entry.modified, digest, immutable=file.immutable)


def _copy_source(backup: _Backup, location: str) -> StoredTable:
    """Copy the source of a function."""
    files = []
    with lance_errors(location):
        for entry in backup.ctx.storage.files(location).walk(location):
            content = backup.ctx.storage.files(location).read(f"{location}/{entry.path}")
            digest = hashlib.sha256(content).hexdigest()
            if backup.target.write_new(f"contents/{digest}", content):
                backup.copied.files += 1
                backup.copied.size += len(content)
            files.append(StoredFile(entry.path, len(content), entry.modified, digest, immutable=False))
    return StoredTable(0, "source of a function", location, _slug(location), files)


def _write_point(
    backup: _Backup, header: DumpHeader, dump_file: Path, tables: list[StoredTable], problems: dict[str, str]
) -> BackupPoint:
    """Write the files of a point, and last of all what makes it one."""
    list_file = dump_file.with_name("files.jsonl.gz")
    encoder = msgspec.json.Encoder()
    with gzip.open(list_file, "wb", compresslevel=3) as lines:
        for table in sorted(tables, key=lambda table: (table.id, table.location)):
            lines.write(encoder.encode(table) + b"\n")
    folder, target = f"points/{backup.id}", backup.target
    parts = [BackupFile(*target.write(f"{folder}/{file.name}", _read_chunks(file))) for file in (dump_file, list_file)]
    files = [file for table in tables for file in table.files]
    point = BackupPoint(
        id=backup.id,
        format=FORMAT,
        taken_at=header.taken_at,
        tiltyard=__version__,
        schema=header.version,
        root=backup.ctx.storage.root,
        catalog=parts[0],
        files=parts[1],
        tables=sum(table.id != 0 for table in tables),
        num_files=len(files),
        num_bytes=sum(file.size for file in files),
        copied_files=backup.copied.files,
        copied_bytes=backup.copied.size,
        problems=problems,
        expires_at=backup.expires_at,
    )
    reach(Failpoint.BEFORE_BACKUP_POINT)
    target.write_new(f"{folder}/point.json", msgspec.json.encode(point))
    return point


def _read_chunks(file: Path) -> Iterator[bytes]:
    with file.open("rb") as opened:
        while chunk := opened.read(4 << 20):
            yield chunk
