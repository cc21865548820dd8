"""Backups of a target: each is a point to which the catalog and its tables can be restored.

points/ID/point.json         what the backup is; written last: without it, there is no backup
points/ID/catalog.jsonl.gz   the rows of the catalog (store/dump.py)
points/ID/files.jsonl.gz     a line for each table: which files it has, with their digests
files/FOLDER/…               immutable files of a table by their names, shared by all points
contents/SHA-256             other files, such as tags, by their content
running/ID.json              a backup or a removal that is under way
"""

from __future__ import annotations

import gzip
import hashlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from uuid import uuid4

import msgspec
from lance_namespace.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tiltyard.backup.target import BackupTarget

FORMAT = 1


class StoredFile(msgspec.Struct, frozen=True, array_like=True):
    """A file of a table: its path below the table's folder, size, time of modification (ms since 1970), SHA-256.

    One that is immutable lies in the table's folder of the backup under its path, any other under its digest.
    """

    path: str
    size: int
    modified: int
    sha256: str
    immutable: bool

    def key(self, folder: str) -> str:
        """Return where the file lies in the target."""
        return f"files/{folder}/{self.path}" if self.immutable else f"contents/{self.sha256}"


class StoredTable(msgspec.Struct, frozen=True):
    """A table, or the folder of a function's source (whose `id` is 0): what it is called, where it lay, its files.

    `folder` is its folder below `files/`.
    """

    id: int
    name: str
    location: str
    folder: str
    files: list[StoredFile]


class BackupFile(msgspec.Struct, frozen=True):
    """A file of a point: its size and SHA-256."""

    size: int
    sha256: str


class BackupPoint(msgspec.Struct, frozen=True):
    """A backup. `root` is where the catalog's root was, `problems` say which tables are not whole in it, and why.

    `expires_at` (ms since 1970) is from when on it may be removed as expired; 0 for one without such a date.
    """

    id: str
    format: int
    taken_at: int
    tiltyard: str
    schema: int
    root: str
    catalog: BackupFile
    files: BackupFile
    tables: int
    num_files: int
    num_bytes: int
    copied_files: int
    copied_bytes: int
    problems: dict[str, str]
    expires_at: int = 0


def table_label(name: str, location: str) -> str:
    """Return what a table is called in the problems of a point."""
    return f"{name} ({location})"


def new_point_id(taken_at: int) -> str:
    """Return the id of a point: ids sort by the time at which points were taken (ms since 1970)."""
    at = datetime.fromtimestamp(taken_at / 1000, UTC)
    return f"{at:%Y%m%dT%H%M%S}{taken_at % 1000:03}Z-{uuid4().hex[:8]}"


def list_points(target: BackupTarget) -> list[str]:
    """Return the ids of all points, oldest first."""
    ids = sorted(target.list_folders("points"))
    return [point_id for point_id in ids if target.size(f"points/{point_id}/point.json") is not None]


def read_point(target: BackupTarget, point_id: str) -> BackupPoint:
    """Return a point, the latest for an empty id. Raises InvalidInputError."""
    if not point_id:
        ids = list_points(target)
        if not ids:
            raise InvalidInputError(f"There is no backup at {target.location}.")
        point_id = ids[-1]
    if "/" in point_id:
        raise InvalidInputError(f"'{point_id}' is no backup: `tiltyard backup list` lists them.")
    try:
        point = msgspec.json.decode(target.read(f"points/{point_id}/point.json"), type=BackupPoint)
    except FileNotFoundError as error:
        raise InvalidInputError(f"There is no backup {point_id}: `tiltyard backup list` lists them.") from error
    except msgspec.DecodeError as error:
        raise InvalidInputError(f"The backup {point_id} is damaged: its point.json cannot be read.") from error
    if point.format > FORMAT:
        raise InvalidInputError(f"The backup {point_id} was made by a newer version ({point.tiltyard}): use that one.")
    return point


def fetch_part(target: BackupTarget, point: BackupPoint, name: str, folder: Path) -> Path:
    """Download a file of a point (`catalog`, `files`) and check it. Raises InvalidInputError where it is damaged."""
    part: BackupFile = getattr(point, name)
    file = folder / f"{point.id}-{name}.jsonl.gz"
    digest, size = hashlib.sha256(), 0
    try:
        with file.open("wb") as output:
            for chunk in target.read_chunks(f"points/{point.id}/{name}.jsonl.gz"):
                digest.update(chunk)
                size += len(chunk)
                output.write(chunk)
    except FileNotFoundError as error:
        raise InvalidInputError(f"The backup {point.id} is damaged: its file {name}.jsonl.gz is missing.") from error
    if (size, digest.hexdigest()) != (part.size, part.sha256):
        raise InvalidInputError(f"The backup {point.id} is damaged: its file {name}.jsonl.gz is not as it was written.")
    return file


def read_tables(file: Path) -> Iterator[StoredTable]:
    """Iterate over the tables of a downloaded list of files."""
    decoder = msgspec.json.Decoder(StoredTable)
    with gzip.open(file, "rb") as lines:
        yield from map(decoder.decode, lines)
