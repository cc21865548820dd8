"""The copy of one table: a folder with its files, and their checksums."""

from __future__ import annotations

import hashlib
import os
import shutil
import weakref
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import lance
import msgspec

from tiltyard.runtime.pool import run_together
from tiltyard.storage.caches.version_cache import CachedVersion
from tiltyard.storage.disk_cache.version_files import manifest_path
from tiltyard.storage.pylance_internals import native_dataset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from tiltyard.storage.files import Files

CHECKSUMS = "checksums.json"
_DOWNLOADS = 8
"""Files that are copied at once."""
_PART = ".part"


class CopyError(Exception):
    """A copy differs from what the object store has; the message says in what."""


class CopiedFile(msgspec.Struct, frozen=True):
    """Size of a file in bytes, and its SHA-256 in hexadecimal digits."""

    size: int
    sha256: str


class _Checksums(msgspec.Struct):
    location: str
    files: dict[str, CopiedFile]


class TableCopy:
    """A folder with copies of a table's files. One thread writes it; its snapshots are read by any.

    Files keep the paths that they have below the table's folder, so that the folder is a table itself, which Lance
    opens like any other.
    """

    def __init__(self, folder: Path, location: str, files: Mapping[str, CopiedFile]) -> None:
        self.folder = folder
        self.location = location
        self._files = dict(files)
        self._versions: list[tuple[weakref.ref[lance.LanceDataset], frozenset[str]]] = []
        """Versions that somebody may still read, and their files."""

    @classmethod
    def create(cls, parent: Path, location: str) -> TableCopy:
        """Create an empty copy."""
        digest = hashlib.sha256(location.encode()).hexdigest()[:24]
        folder = parent / f"{digest}-{uuid4().hex[:8]}"
        folder.mkdir()
        return cls(folder, location, {})

    @classmethod
    def read(cls, folder: Path) -> TableCopy | None:
        """Return the copy that an earlier process has left, whose files nobody has checked yet; None for none."""
        try:
            known = msgspec.json.decode((folder / CHECKSUMS).read_bytes(), type=_Checksums)
        except (FileNotFoundError, NotADirectoryError, msgspec.DecodeError):
            return None
        return cls(folder, known.location, known.files)

    @property
    def size(self) -> int:
        """Bytes of its files."""
        return sum(file.size for file in list(self._files.values()))

    @property
    def is_read(self) -> bool:
        """Whether somebody may still read one of its versions."""
        return any(version() is not None for version, _ in self._versions)

    def is_intact(self) -> bool:
        """Read all files, and return whether they are what was copied."""
        return all(_is_intact(self.folder / path, file) for path, file in list(self._files.items()))

    def forget_damaged(self) -> None:
        """Read all files, and forget those that are not what was copied; delete all others below the folder."""
        for path, file in list(self._files.items()):
            if not _is_intact(self.folder / path, file):
                del self._files[path]
        for parent, _, names in os.walk(self.folder):
            for name in names:
                found = Path(parent, name)
                if found.relative_to(self.folder).as_posix() not in self._files and name != CHECKSUMS:
                    found.unlink()

    def missing(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return those files of a version that are not here yet."""
        return {path: size for path, size in sizes.items() if path not in self._files}

    def download(self, files: Files, sizes: Mapping[str, int], check: Callable[[], None]) -> None:
        """Copy files of the table; `check` is called between their parts, and may raise to stop.

        Raises CopyError for a file of another size than expected, OSError, and what the storage raises.
        """

        copied: dict[str, CopiedFile] = {}

        def copy(path: str) -> None:
            copied[path] = _copy(files, f"{self.location}/{path}", self.folder / path, sizes[path], check)

        try:
            run_together(copy, sizes, _DOWNLOADS)
        finally:
            self._files |= copied
            self._write_checksums()

    def open(self, source: lance.LanceDataset, paths: frozenset[str], session: lance.Session) -> CachedVersion:
        """Open the version of a dataset. Raises CopyError if the copy's manifest is another one."""
        dataset = lance.dataset(str(self.folder), version=int(source.version), session=session)
        if native_dataset(dataset).serialized_manifest() != native_dataset(source).serialized_manifest():
            raise CopyError("its manifest is not that of the version")
        self._versions.append((weakref.ref(dataset), paths))
        return CachedVersion(dataset)

    def has_files(self, paths: Iterable[str]) -> bool:
        """Whether files are there, with their sizes."""
        try:
            return all((self.folder / path).stat().st_size == self._files[path].size for path in paths)
        except (FileNotFoundError, NotADirectoryError, KeyError):
            return False

    def has_manifest(self, version: int) -> bool:
        """Whether the folder is still there, which anybody may delete at any time."""
        return os.access(f"{self.folder}/{manifest_path(version)}", os.F_OK)

    def sweep(self) -> None:
        """Delete the files that no version needs which somebody may read."""
        self._versions = [(version, paths) for version, paths in self._versions if version() is not None]
        needed = frozenset[str]().union(*(paths for _, paths in self._versions))
        unneeded = self._files.keys() - needed
        for path in unneeded:
            (self.folder / path).unlink(missing_ok=True)
            del self._files[path]
        if unneeded:
            self._write_checksums()

    def delete(self) -> None:
        """Delete the folder."""
        self._files = {}
        shutil.rmtree(self.folder, ignore_errors=True)

    def _write_checksums(self) -> None:
        content = msgspec.json.encode(_Checksums(self.location, self._files))
        part = self.folder / f"{CHECKSUMS}{_PART}"
        part.write_bytes(content)
        part.rename(self.folder / CHECKSUMS)


def _copy(files: Files, source: str, target: Path, size: int, check: Callable[[], None]) -> CopiedFile:
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}{_PART}")
    digest, written = hashlib.sha256(), 0
    try:
        with part.open("wb") as sink:
            for chunk in files.read_chunks(source):
                check()
                written += len(chunk)
                if written > size:
                    break
                sink.write(chunk)
                digest.update(chunk)
        if written != size:
            raise CopyError(f"{target.name} does not have the {size:,} bytes that it should have")
        part.rename(target)
    finally:
        part.unlink(missing_ok=True)
    return CopiedFile(size, digest.hexdigest())


def _is_intact(path: Path, file: CopiedFile) -> bool:
    try:
        if path.stat().st_size != file.size:
            return False
        with path.open("rb") as source:
            return hashlib.file_digest(source, "sha256").hexdigest() == file.sha256
    except (FileNotFoundError, NotADirectoryError):
        return False
