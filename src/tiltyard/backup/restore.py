"""Restore a catalog and its tables from a backup, into an empty root and an empty database.

Files come first and the catalog last, in one transaction: until then there is nothing that a server could serve. A
restore that was interrupted goes on where it was when it is run again with the same backup.
"""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from lance_namespace.errors import InvalidInputError

from tiltyard.backup.create import FILE_THREADS
from tiltyard.backup.points import fetch_part, read_tables
from tiltyard.backup.selection import version_of_manifest
from tiltyard.backup.target import BackupTarget, DigestError
from tiltyard.model.modes import TransactionStatus
from tiltyard.runtime.failpoints import Point as Failpoint
from tiltyard.runtime.failpoints import reach
from tiltyard.runtime.pool import run_together
from tiltyard.storage.errors import lance_errors
from tiltyard.storage.files import CASE_PROBE, PROBE
from tiltyard.storage.locations import is_within
from tiltyard.storage.manifests.manifest_format import parse_manifest, with_bases
from tiltyard.store import NotEmptyError, is_empty_database, load_dump, read_header, read_rows
from tiltyard.store.schema import refuse_newer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tiltyard.backup.points import BackupPoint, StoredFile, StoredTable
    from tiltyard.storage import Storage

MARK = ".tiltyard-restore.json"
_LEFT = PROBE, CASE_PROBE, f".{MARK}."
"""How the names of files begin that a restore leaves which is killed before its mark is there."""
_RESTORED = "The catalog was restored from a backup, which has none of this job's uncommitted work: start it again."
_LOCATIONS = {
    "tables": "location",
    "removed_tables": "location",
    "doomed_folders": "location",
    "clone_sources": "location",
    "function_versions": "artifact",
}
"""Columns of the catalog that hold locations."""
_VERSIONS = "table_versions", "removed_versions"
Values = dict[str, Any]


class _Mark(msgspec.Struct, frozen=True):
    """What lies in a root while a backup is restored there."""

    backup: str


@dataclass(slots=True)
class _Restore:
    """A restore under way. `sizes` are those of all manifests, by the table's id and their path."""

    target: BackupTarget
    storage: Storage
    mapping: Mapping[str, str]
    sizes: dict[int, dict[str, int]] = field(default_factory=dict)
    num_files: int = 0

    def map_location(self, location: str) -> str:
        """Return where a location of the backup is now; the innermost folder of the mapping decides."""
        folders = [old for old in self.mapping if is_within(location, old)]
        if not folders:
            return location
        old = max(folders, key=len)
        return self.mapping[old] + location[len(old) :]

    def map_base(self, base: str) -> str:
        """Return where a base of a manifest is now; it may be written as a URI of a local file."""
        scheme = "file://" if base.startswith("file://") else ""
        return scheme + self.map_location(base.removeprefix(scheme))


def restore_point(
    target: BackupTarget,
    point: BackupPoint,
    storage: Storage,
    database_url: str,
    mapping: Mapping[str, str],
    progress: Callable[[str], None] = lambda line: None,
) -> int:
    """Restore a backup below the roots of `storage` and into a database; return the number of files.

    `mapping` says where folders of the backup are now (canonical locations); the catalog's root is in it. Raises
    InvalidInputError unless root and database are empty, for a damaged backup, and for a table outside the roots.
    """
    restore = _Restore(target, storage, mapping)
    root = BackupTarget(storage.root, storage.roots.root_of(storage.root).options)
    with (
        tempfile.TemporaryDirectory(prefix="tiltyard-restore-") as folder,
        lance_errors(target.location),
    ):
        dump_file = fetch_part(target, point, "catalog", Path(folder))
        list_file = fetch_part(target, point, "files", Path(folder))
        refuse_newer(read_header(dump_file).version)
        _check_empty(restore, root, point, database_url, list_file)
        for number, table in enumerate(read_tables(list_file), 1):
            _restore_table(restore, table)
            if number % 100 == 0:
                progress(f"{number} tables.")
        reach(Failpoint.BEFORE_RESTORED_CATALOG)
        _load_catalog(restore, dump_file, database_url)
        root.delete([MARK])
    return restore.num_files


def _check_empty(restore: _Restore, root: BackupTarget, point: BackupPoint, database_url: str, list_file: Path) -> None:
    """Raise InvalidInputError unless all that is to be written is empty, or a restore of this backup has begun there.

    Marks the root.
    """
    if not is_empty_database(database_url):
        raise InvalidInputError("The database has a catalog already: restore into an empty one.")
    mark = msgspec.json.encode(_Mark(point.id))
    begun = root.size(MARK) is not None
    if begun and root.read(MARK) != mark:
        raise InvalidInputError("Another backup was being restored into this root: remove what is there first.")
    left = []
    for entry in () if begun else root.walk():
        if entry.path.startswith(_LEFT):
            left.append(entry.path)
        elif not _is_of_database(entry.path, restore.storage.root, database_url):
            raise InvalidInputError(f"The root {restore.storage.root} is not empty: restore into an empty one.")
    root.delete(left)
    for table in read_tables(list_file):
        location = restore.map_location(table.location)
        restore.storage.roots.root_of(location)
        if not begun and not is_within(location, restore.storage.root) and not restore.storage.is_empty(location):
            raise InvalidInputError(f"{location} is not empty: remove it, or restore the table elsewhere with --map.")
    if not begun:
        root.write_new(MARK, mark)


def _is_of_database(name: str, root: str, database_url: str) -> bool:
    """Return whether a file of the root is one of an empty SQLite database there: it has several beside its own."""
    file = Path(database_url.removeprefix("sqlite:///"))
    return file.parent == Path(root) and name.startswith(file.name)


def _restore_table(restore: _Restore, table: StoredTable) -> None:
    """Restore the files of a table: manifests first, since tags and branches tell their sizes."""
    location = restore.map_location(table.location)
    destination = BackupTarget(location, restore.storage.roots.root_of(location).options)
    sizes = restore.sizes.setdefault(table.id, {}) if table.id else {}
    manifests = [file for file in table.files if file.path.endswith(".manifest")]
    others = [file for file in table.files if not file.path.endswith(".manifest")]

    def copy_manifest(file: StoredFile) -> tuple[str, int]:
        return file.path, _restore_manifest(restore, table, destination, file)

    sizes.update(run_together(copy_manifest, manifests, FILE_THREADS))
    versions = {version_of_manifest(path): size for path, size in sizes.items()}
    run_together(lambda file: _restore_file(restore, table, destination, file, versions), others, FILE_THREADS)
    restore.num_files += len(table.files)


def _restore_manifest(restore: _Restore, table: StoredTable, destination: BackupTarget, file: StoredFile) -> int:
    """Restore a manifest, with the locations that it names as they are now; return its size."""
    content = _read_checked(restore.target, table, file)
    version = version_of_manifest(file.path)[1]
    if version:
        bases = parse_manifest(content, version).bases
        if any(restore.map_base(base) != base for base in bases):
            content = with_bases(content, restore.map_base)
    if destination.size(file.path) != len(content):
        destination.write(file.path, [content])
    return len(content)


def _restore_file(
    restore: _Restore,
    table: StoredTable,
    destination: BackupTarget,
    file: StoredFile,
    versions: Mapping[tuple[str, int], int],
) -> None:
    key, expected = file.key(table.folder), (file.size, file.sha256)
    if file.path.startswith("_refs/"):
        content = _with_manifest_size(_read_checked(restore.target, table, file), versions)
        destination.delete([file.path])
        destination.write(file.path, [content])
    elif destination.size(file.path) != file.size:
        try:
            destination.write(file.path, restore.target.read_chunks(key), expected)
        except (DigestError, FileNotFoundError) as error:
            raise _damaged(table, file) from error


def _with_manifest_size(content: bytes, versions: Mapping[tuple[str, int], int]) -> bytes:
    """Return a tag or branch with the size that the manifest of its version has now."""
    try:
        reference = msgspec.json.decode(content, type=dict[str, Any])
    except msgspec.DecodeError:
        return content
    branch, version = ("parentBranch", "parentVersion") if "parentVersion" in reference else ("branch", "version")
    size = versions.get((reference.get(branch) or "", reference.get(version) or 0))
    if size is None or reference.get("manifestSize") == size:
        return content
    return msgspec.json.encode({**reference, "manifestSize": size})


def _read_checked(target: BackupTarget, table: StoredTable, file: StoredFile) -> bytes:
    try:
        content = target.read(file.key(table.folder))
    except FileNotFoundError as error:
        raise _damaged(table, file) from error
    if hashlib.sha256(content).hexdigest() != file.sha256:
        raise _damaged(table, file)
    return content


def _damaged(table: StoredTable, file: StoredFile) -> InvalidInputError:
    return InvalidInputError(
        f"The backup is damaged: {file.key(table.folder)} of {table.name} is missing or not as it was written. "
        "`tiltyard backup verify` lists all that is; restore another backup."
    )


def _load_catalog(restore: _Restore, dump_file: Path, database_url: str) -> None:
    """Load the rows of the catalog with the locations as they are now."""
    with_parts = {row["transaction_id"] for _, row in read_rows(dump_file, "job_parts")}
    ended = {
        row["id"]
        for _, row in read_rows(dump_file, "transactions")
        if row["id"] in with_parts and not TransactionStatus(row["status"]).is_final
    }

    def convert(table: str, row: Values) -> Values | None:
        if table in _LOCATIONS:
            column = _LOCATIONS[table]
            row = row | {column: restore.map_location(row[column])}
        if table == "tables" and row["declared"]:
            row["declared"] = not any(path.startswith("_versions/") for path in restore.sizes.get(row["id"], {}))
        if table in _VERSIONS:
            return _convert_version(restore, row)
        if table in ("uploads", "upload_parts"):  # what they have written is in no version, and so in no backup
            return None
        if table == "schedules":  # the catalog that the backup is of may go on, and run them, too
            return row | {"paused": True}
        if table == "job_parts" and row["transaction_id"] in ended:
            return None
        if table == "transactions" and row["id"] in ended:
            return row | {"status": TransactionStatus.CANCELED.value, "error": _RESTORED, "lease_owner": None}
        return row

    try:
        load_dump(database_url, dump_file, convert)
    except NotEmptyError as error:
        raise InvalidInputError("The database has a catalog already: restore into an empty one.") from error


def _convert_version(restore: _Restore, row: Values) -> Values | None:
    """Return a recorded version as one that is final; None where storage had it no more.

    The tags that storages give files (`e_tag`) are other ones now, and a manifest that the catalog keeps until it is
    known to be on a disk is there.
    """
    size = restore.sizes.get(row["table_id"], {}).get(row["manifest_path"])
    if size is None:
        return None
    changed = {
        "staged_path": restore.map_location(row["staged_path"]),
        "finalized": True,
        "manifest_size": size,
        "e_tag": None,
    }
    return row | changed | ({"manifest": None} if "manifest" in row else {})
