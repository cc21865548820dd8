"""Read and write files on object stores, through the Rust object_store crate that Lance uses, with the same options."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

import msgspec
import obstore
from obstore.exceptions import AlreadyExistsError

from tiltyard.model.settings.object_stores import open_object_store
from tiltyard.runtime.failpoints import Point, reach
from tiltyard.runtime.pool import run_together
from tiltyard.storage.files import CHUNK_BYTES, MAX_FILE_BYTES, PROBE, FileContent, FileEntry, FileStat, check_size

if TYPE_CHECKING:
    import re
    from collections.abc import Iterable, Iterator, Mapping, Sequence

MAX_DELETED_AT_ONCE = 1000
_FIRST_PAGE = 50


class FileRange(msgspec.Struct, frozen=True):
    """Some bytes of an object, and the stat of all of it."""

    content: memoryview
    stat: FileStat


class ObjectFiles:
    """Files of one bucket or container: the part of a location before its path."""

    def __init__(self, base: str, options: Mapping[str, str], max_bytes: int = MAX_FILE_BYTES) -> None:
        """Create a client of `base`, such as s3://bucket, that refuses to read objects of more than `max_bytes`.

        Raises obstore's errors for options it cannot use.
        """
        self._base = base
        self._max_bytes = max_bytes
        self._store = open_object_store(base, options)

    def _path(self, location: str) -> str:
        return location.removeprefix(self._base).strip("/")

    def list_names(self, folder: str) -> list[str]:
        prefix = self._path(folder) + "/"
        listing = obstore.list_with_delimiter(self._store, prefix=prefix)
        paths = [*listing["common_prefixes"], *(entry["path"] for entry in listing["objects"])]
        return [path.removeprefix(prefix).strip("/") for path in paths]

    def list_folders(self, folder: str) -> list[str]:
        prefix = self._path(folder) + "/"
        listing = obstore.list_with_delimiter(self._store, prefix=prefix)
        return [path.removeprefix(prefix).strip("/") for path in listing["common_prefixes"]]

    def walk(self, folder: str) -> Iterator[FileEntry]:
        prefix = self._path(folder) + "/"
        for page in obstore.list(self._store, prefix=prefix):
            for entry in page:
                modified = int(entry["last_modified"].timestamp() * 1000)
                yield FileEntry(entry["path"].removeprefix(prefix), entry["size"], modified, entry["e_tag"])

    def walk_targets(self, folder: str, name: re.Pattern[str]) -> Iterator[FileEntry]:
        return (entry for entry in self.walk(folder) if name.match(entry.path.rpartition("/")[2]))

    def list_first_files(self, folder: str) -> dict[str, int | None]:
        """List one page; see Files."""
        prefix = self._path(folder) + "/"
        page = next(iter(obstore.list(self._store, prefix=prefix, chunk_size=_FIRST_PAGE)), ())
        return {entry["path"].removeprefix(prefix): entry["size"] for entry in page}

    def is_file(self, location: str) -> bool:
        return self.stat(location) is not None

    def read(self, location: str) -> bytes:
        return self.read_nofollow(location).content

    def read_chunks(self, location: str) -> Iterator[bytes]:
        yield from map(bytes, obstore.get(self._store, self._path(location)).stream(min_chunk_size=CHUNK_BYTES))

    async def read_range(self, location: str, start: int, end: int) -> FileRange:
        """Read an object from `start` up to `end`, or up to its end; raises obstore's errors."""
        response = await obstore.get_async(self._store, self._path(location), options={"range": (start, end)})
        content = memoryview(await response.bytes_async())
        return FileRange(content, FileStat(response.meta["size"], response.meta["e_tag"]))

    async def stat_soon(self, location: str) -> FileStat:
        """Return an object's size and entity tag, without a thread that waits; raises obstore's errors."""
        meta = await obstore.head_async(self._store, self._path(location))
        return FileStat(meta["size"], meta["e_tag"])

    def read_nofollow(self, location: str, max_bytes: int | None = None) -> FileContent:
        """Read an object: there are no links. A response's headers have the size before its body is read; see Files."""
        response = obstore.get(self._store, self._path(location))
        stat = FileStat(response.meta["size"], response.meta["e_tag"])
        check_size(location, stat.size, self._max_bytes if max_bytes is None else min(max_bytes, self._max_bytes))
        return FileContent(bytes(response.bytes()), stat)

    def stat(self, location: str) -> FileStat | None:
        try:
            meta = obstore.head(self._store, self._path(location))
        except FileNotFoundError:
            return None
        return FileStat(meta["size"], meta["e_tag"])

    def stat_all(self, locations: Sequence[str]) -> list[FileStat | None]:
        return run_together(self.stat, locations, len(locations))

    def write_if_not_exists(self, location: str, content: bytes) -> FileStat | None:
        """Put conditionally: the response has the entity tag; see Files."""
        reach(Point.WRITE)
        try:
            result = obstore.put(self._store, self._path(location), content, mode="create", use_multipart=False)
        except AlreadyExistsError:
            return None
        return FileStat(len(content), result["e_tag"])

    def rename_if_not_exists(self, source: str, target: str) -> bool:
        """Put the content conditionally, then delete the old object; see Files."""
        if not self.write_if_not_exists(target, self.read(source)):
            return False
        self.delete([source])
        return True

    def copy(self, source: str, target: str) -> None:
        """Let the object store copy the object; see Files."""
        reach(Point.WRITE)
        obstore.copy(self._store, self._path(source), self._path(target))

    def delete(self, locations: Iterable[str]) -> None:
        paths = [self._path(location) for location in locations]
        for start in range(0, len(paths), MAX_DELETED_AT_ONCE):
            reach(Point.WRITE)
            obstore.delete(self._store, paths[start : start + MAX_DELETED_AT_ONCE])

    def delete_folder(self, folder: str) -> None:
        """Delete until a listing is empty, for a running write may add objects; see Files."""
        prefix = self._path(folder) + "/"
        while paths := [entry["path"] for entry in next(iter(obstore.list(self._store, prefix=prefix)), ())]:
            reach(Point.WRITE)
            obstore.delete(self._store, paths)

    def probe(self, root: str) -> None:
        """List one entry, the cheapest request that needs bucket, network and credentials; see Files."""
        next(iter(obstore.list(self._store, prefix=self._path(root) + "/.tiltyard-probe", chunk_size=1)), None)

    def prepare(self, root: str) -> None:
        path = self._path(f"{root}/{PROBE}{uuid4().hex}")
        obstore.put(self._store, path, b"probe", use_multipart=False)
        obstore.delete(self._store, [path])
