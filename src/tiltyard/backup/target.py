"""A folder of a disk or of an object store that files are copied to: a backup, or the place where one is restored."""

from __future__ import annotations

import hashlib
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import obstore
from obstore.exceptions import AlreadyExistsError
from obstore.store import LocalStore

from tiltyard.model.settings.object_stores import open_object_store
from tiltyard.runtime.durability import Durability, atomic_file
from tiltyard.runtime.failpoints import Point, reach
from tiltyard.storage.files import CHUNK_BYTES, FileEntry, LocalFiles
from tiltyard.storage.locations import is_local
from tiltyard.storage.objects import MAX_DELETED_AT_ONCE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


class DigestError(Exception):
    """A copied file has not the size and digest that it should have: it was removed again."""


def digest_chunks(chunks: Iterable[bytes]) -> tuple[int, str]:
    """Return how many bytes chunks have, and their SHA-256 in hexadecimal."""
    digest, size = hashlib.sha256(), 0
    for chunk in chunks:
        digest.update(chunk)
        size += len(chunk)
    return size, digest.hexdigest()


class BackupTarget:
    """A folder, by its canonical location. Its methods take keys: paths below it. Safe to use from several threads.

    A file appears with all of its content or not at all. Raises OSError and obstore's errors.
    """

    def __init__(self, location: str, options: Mapping[str, str]) -> None:
        """Open a folder, which is made with its first file; `options` are Lance's storage options."""
        self.location = location
        self.options = dict(options)
        self._is_local = is_local(location)
        self._store: Any
        if self._is_local:
            Path(location).mkdir(parents=True, exist_ok=True, mode=0o700)
            self._disk = Durability()
            self._disk.make_folder(location)
            self._store = LocalStore(location)
        else:
            self._store = open_object_store(location, options)

    def write(self, key: str, chunks: Iterable[bytes], expected: tuple[int, str] | None = None) -> tuple[int, str]:
        """Write a file, durably; return its size and its SHA-256 in hexadecimal.

        Raises DigestError, and leaves no file, where these are not as expected.
        """
        digest, size = hashlib.sha256(), 0
        with self._new_file(key) as file:
            for chunk in chunks:
                digest.update(chunk)
                size += len(chunk)
                file.write(chunk)
            if expected is not None and (size, digest.hexdigest()) != expected:
                raise DigestError(key)
        return size, digest.hexdigest()

    @contextmanager
    def _new_file(self, key: str) -> Iterator[Any]:
        """Open a file for writing, which is there, durably, when the block ends without an exception.

        On a disk its content is durable before it has its name: a backup takes files that are there as they are.
        """
        if not self._is_local:
            # One that is not closed, as after an exception, leaves no file.
            writer = obstore.open_writer(self._store, key, buffer_size=2 * CHUNK_BYTES, max_concurrency=2)
            yield writer
            reach(Point.WRITE)
            writer.close()
            return
        path = Path(self.location, key)
        path.parent.mkdir(parents=True, exist_ok=True)
        name = f"{path.name}#{uuid4().int}"  # one that object_store itself gives and never lists
        with atomic_file(path, name) as temporary, temporary.open("xb") as file:
            yield file
        self._disk.make_durable([], self.location, folders=[str(path.parent)])

    def write_new(self, key: str, content: bytes) -> bool:
        """Write a file unless there is one; return whether it was written."""
        if self._is_local:
            path = f"{self.location}/{key}"
            is_new = LocalFiles().write_if_not_exists(path, content) is not None
            self._disk.make_durable([], self.location, folders=[path.rpartition("/")[0]])
            return is_new
        reach(Point.WRITE)
        try:
            obstore.put(self._store, key, content, mode="create", use_multipart=False)
        except AlreadyExistsError:
            return False
        return True

    def read(self, key: str) -> bytes:
        """Read a file. Raises FileNotFoundError."""
        return bytes(obstore.get(self._store, key).bytes())

    def read_chunks(self, key: str) -> Iterator[bytes]:
        """Iterate over the content of a file of any size. Raises FileNotFoundError."""
        yield from map(bytes, obstore.get(self._store, key).stream(min_chunk_size=CHUNK_BYTES))

    def size(self, key: str) -> int | None:
        """Return the bytes of a file; None if there is none."""
        try:
            size: int = obstore.head(self._store, key)["size"]
        except FileNotFoundError:
            return None
        return size

    def walk(self, folder: str = "") -> Iterator[FileEntry]:
        """Iterate over all files below a folder; paths are keys."""
        for page in obstore.list(self._store, prefix=folder or None):
            for entry in page:
                yield FileEntry(entry["path"], entry["size"], int(entry["last_modified"].timestamp() * 1000))

    def list_folders(self, folder: str) -> list[str]:
        """List the names of the folders directly in a folder."""
        listing = obstore.list_with_delimiter(self._store, prefix=folder)
        return [path.rstrip("/").rpartition("/")[2] for path in listing["common_prefixes"]]

    def delete(self, keys: Iterable[str]) -> None:
        """Delete files, and folders of a disk that are empty then; ignore missing ones."""
        paths = list(keys)
        for start in range(0, len(paths), MAX_DELETED_AT_ONCE):
            reach(Point.WRITE)
            try:
                obstore.delete(self._store, paths[start : start + MAX_DELETED_AT_ONCE])
            except FileNotFoundError:
                self._delete_each(paths[start : start + MAX_DELETED_AT_ONCE])
        if self._is_local:
            for folder in {Path(path).parent for path in paths}:
                self._delete_empty(folder)

    def _delete_empty(self, folder: Path) -> None:
        """Delete a folder, and those above it, as far as they are empty."""
        for each in (folder, *folder.parents[:-1]):
            try:
                Path(self.location, each).rmdir()
            except OSError:
                return

    def _delete_each(self, paths: list[str]) -> None:
        for path in paths:
            if self.size(path) is not None:
                reach(Point.WRITE)
                obstore.delete(self._store, path)
