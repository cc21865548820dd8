"""Verify a backup: each file is as it was written, versions have all their files, and tables can be opened."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import lance
from lance_namespace.errors import InvalidInputError, LanceNamespaceError

from tiltyard.backup.create import FILE_THREADS
from tiltyard.backup.points import fetch_part, read_tables, table_label
from tiltyard.backup.selection import version_of_manifest
from tiltyard.backup.target import digest_chunks
from tiltyard.runtime.pool import run_together
from tiltyard.storage.errors import lance_errors
from tiltyard.storage.manifests.manifest_format import is_detached, parse_manifest
from tiltyard.storage.manifests.manifest_references import files_of_bases, referenced_files

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tiltyard.backup.points import BackupPoint, StoredFile, StoredTable
    from tiltyard.backup.target import BackupTarget


@dataclass(slots=True)
class Verification:
    """What was verified: how many tables and files of how many bytes, and what is wrong, a sentence each.

    `elsewhere` are the locations of files in other tables' folders that shallow clones use, with the clones' labels.
    """

    tables: int
    files: int
    size: int
    problems: list[str]
    elsewhere: dict[str, set[str]] = field(default_factory=dict)


def verify_point(target: BackupTarget, point: BackupPoint) -> Verification:
    """Read all files of a backup, and open the latest version of each table in it.

    Raises InvalidInputError where the backup's own lists are damaged, and what the storage raises.
    """
    result = Verification(0, 0, 0, [f"{name}: {reason}." for name, reason in point.problems.items()])
    with (
        tempfile.TemporaryDirectory(prefix="tiltyard-verify-") as folder,
        lance_errors(target.location),
    ):
        fetch_part(target, point, "catalog", Path(folder))
        list_file = fetch_part(target, point, "files", Path(folder))
        for table in read_tables(list_file):
            problems = run_together(partial(_check_file, target, table), table.files, FILE_THREADS)
            result.problems += [problem for problem in problems if problem]
            if not any(problems):
                result.problems += _check_versions(target, table, result.elsewhere)
            result.tables += table.id != 0
            result.files += len(table.files)
            result.size += sum(file.size for file in table.files)
        result.problems += _find_missing(result.elsewhere, list_file, point)
    return result


def _find_missing(elsewhere: dict[str, set[str]], list_file: Path, point: BackupPoint) -> Iterator[str]:
    """Yield which shallow clones use files that no table of the backup has, one file for each that no problem names."""
    missing = dict(elsewhere)
    for table in read_tables(list_file) if missing else ():
        for file in table.files:
            missing.pop(f"{table.location}/{file.path}", None)
    for label, location in {label: location for location, labels in missing.items() for label in labels}.items():
        if label not in point.problems:
            yield f"{label}: it needs {location}, which the backup has not."


def _check_file(target: BackupTarget, table: StoredTable, file: StoredFile) -> str:
    """Return what is wrong with a file; "" if nothing is."""
    try:
        stored = digest_chunks(target.read_chunks(file.key(table.folder)))
    except FileNotFoundError:
        return f"{table.name}: the file {file.key(table.folder)} is missing."
    if stored != (file.size, file.sha256):
        return f"{table.name}: the file {file.key(table.folder)} is not as it was written."
    return ""


def _check_versions(target: BackupTarget, table: StoredTable, elsewhere: dict[str, set[str]]) -> Iterator[str]:
    """Yield what is wrong with the versions of a table whose files are sound; add what they use of other tables."""
    paths, latest = {file.path for file in table.files}, 0
    for file in table.files:
        folder, _, name = file.path.rpartition("/")
        if not folder.endswith("_versions") or not name.endswith(".manifest") or is_detached(file.path):
            continue
        branch, version = version_of_manifest(file.path)
        prefix = file.path[: file.path.index("_versions/")]
        content = target.read(file.key(table.folder))
        try:
            parse_manifest(content, version)
        except InvalidInputError:
            yield f"{table.name}: {file.path} is no manifest of version {version}."
            continue
        own = f"{table.location}/"
        for location in files_of_bases(content):
            if location.startswith(own) and location.removeprefix(own) in paths:
                continue  # of the branch that this one began at
            elsewhere.setdefault(location, set()).add(table_label(table.name, table.location))
        missing = [path for path in referenced_files(content) if prefix + path not in paths]
        if missing:
            yield f"{table.name}: version {version} needs {prefix}{missing[0]}, which the backup has not."
        elif not branch:
            latest = max(latest, version)
    if latest and (problem := _open(target, table, latest)):
        yield problem


def _open(target: BackupTarget, table: StoredTable, version: int) -> str:
    """Open a version where it lies in the backup; return what is wrong, "" if nothing is."""
    uri = f"{target.location}/files/{table.folder}"
    try:
        with lance_errors(uri):
            lance.dataset(uri, version=version, storage_options=target.options or None).count_rows()
    except (LanceNamespaceError, OSError) as error:
        return f"{table.name}: version {version} cannot be opened: {error}"
    return ""
