"""Files on object stores, through the Rust object_store crate that Lance uses, too, so the options are the same."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

import obstore
from obstore.exceptions import AlreadyExistsError

from tiltyard.model.object_store_options import open_object_store
from tiltyard.storage.files import LARGEST_FILE, FileStat, FoundFile, WholeFile, check_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_DELETE_AT_ONCE = 1000
_FIRST_FILES = 50


class ObjectFiles:
    """Files below one bucket or container: the part of a location before its path."""

    def __init__(self, base: str, options: Mapping[str, str], largest: int = LARGEST_FILE) -> None:
        """Be ready to connect to `base`, such as s3://bucket, and read no object of more than `largest` bytes whole.

        Raises obstore's errors for options it cannot use.
        """
        self._base = base
        self._largest = largest
        self._store = open_object_store(base, options)

    def _path(self, location: str) -> str:
        return location.removeprefix(self._base).strip("/")

    def names(self, folder: str) -> list[str]:
        """See Files."""
        prefix = self._path(folder) + "/"
        found = obstore.list_with_delimiter(self._store, prefix=prefix)
        paths = [*found["common_prefixes"], *(entry["path"] for entry in found["objects"])]
        return [path.removeprefix(prefix).strip("/") for path in paths]

    def folders(self, folder: str) -> list[str]:
        """See Files."""
        prefix = self._path(folder) + "/"
        found = obstore.list_with_delimiter(self._store, prefix=prefix)
        return [path.removeprefix(prefix).strip("/") for path in found["common_prefixes"]]

    def walk(self, folder: str) -> Iterator[FoundFile]:
        """See Files."""
        prefix = self._path(folder) + "/"
        for page in obstore.list(self._store, prefix=prefix):
            for entry in page:
                written = int(entry["last_modified"].timestamp() * 1000)
                yield FoundFile(entry["path"].removeprefix(prefix), entry["size"], written)

    def first_files(self, folder: str) -> dict[str, int | None]:
        """See Files: those of one page."""
        prefix = self._path(folder) + "/"
        page = next(iter(obstore.list(self._store, prefix=prefix, chunk_size=_FIRST_FILES)), ())
        return {entry["path"].removeprefix(prefix): entry["size"] for entry in page}

    def is_file(self, location: str) -> bool:
        """See Files."""
        return self.stat(location) is not None

    def read(self, location: str) -> bytes:
        """See Files."""
        return self.read_plain(location).content

    def read_plain(self, location: str, most: int | None = None) -> WholeFile:
        """See Files: object stores have no links. An answer's head tells the size before its body is taken."""
        found = obstore.get(self._store, self._path(location))
        stat = FileStat(found.meta["size"], found.meta["e_tag"])
        check_size(location, stat.size, self._largest if most is None else min(most, self._largest))
        return WholeFile(bytes(found.bytes()), stat)

    def stat(self, location: str) -> FileStat | None:
        """See Files."""
        try:
            found = obstore.head(self._store, self._path(location))
        except FileNotFoundError:
            return None
        return FileStat(found["size"], found["e_tag"])

    def write_new(self, location: str, content: bytes) -> bool:
        """See Files: a conditional put."""
        try:
            obstore.put(self._store, self._path(location), content, mode="create", use_multipart=False)
        except AlreadyExistsError:
            return False
        return True

    def move_new(self, source: str, target: str) -> bool:
        """See Files: a conditional put of the content, then the old object goes."""
        if not self.write_new(target, self.read(source)):
            return False
        self.delete([source])
        return True

    def delete(self, locations: Iterable[str]) -> None:
        """See Files."""
        paths = [self._path(location) for location in locations]
        for start in range(0, len(paths), _DELETE_AT_ONCE):
            obstore.delete(self._store, paths[start : start + _DELETE_AT_ONCE])

    def delete_folder(self, folder: str) -> None:
        """See Files: until a list comes back empty, for a write under way may add to it."""
        prefix = self._path(folder) + "/"
        while paths := [entry["path"] for entry in next(iter(obstore.list(self._store, prefix=prefix)), ())]:
            obstore.delete(self._store, paths)

    def probe(self, root: str) -> None:
        """See Files: a list of one entry, the cheapest question that needs bucket, network and credentials."""
        next(iter(obstore.list(self._store, prefix=self._path(root) + "/.tiltyard-probe", chunk_size=1)), None)

    def prepare(self, root: str) -> None:
        """See Files."""
        path = self._path(f"{root}/.tiltyard-probe-{uuid4().hex}")
        obstore.put(self._store, path, b"probe", use_multipart=False)
        obstore.delete(self._store, [path])
