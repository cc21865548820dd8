"""Files to read and write, local or on an object store: by path or URI, with Lance's storage options."""

from __future__ import annotations

import fnmatch
import io
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import obstore
import pyarrow as pa
from obstore.exceptions import BaseError

from tiltyard.model.object_store_options import open_object_store
from tiltyard.pipeline.task_errors import RefusedError, in_words

READ_AHEAD = 4 << 20
"""Bytes that one request to an object store reads at least."""

_GLOB = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class Found:
    """A file: its path or URI, its size in bytes, and what changes when it is written anew."""

    path: str
    size: int
    mark: str


def is_remote(path: str) -> bool:
    """Whether a path is on an object store."""
    return "://" in path and not path.startswith("file://")


def local(path: str) -> Path:
    """A local path, also from a file URI."""
    return Path(path.removeprefix("file://"))


def absolute(path: str) -> str:
    """The same path for processes that have another working directory: tasks do."""
    return path if is_remote(path) else str(local(path).absolute())


def root_of(path: str) -> str:
    """The folder that a pattern's files are below, spelt as in their paths; a path that is no pattern as it is."""
    if not is_remote(path):
        place = local(path)
        return str(place) if place.is_file() else str(Path(_split(str(place))[0]))
    return _split(path)[0].rstrip("/")


def list_files(path: str, options: Mapping[str, str], *, missing_ok: bool = False) -> list[Found]:
    """The files at a path: one, all below a folder, or those that a pattern (`*`, `**`, `?`) matches; sorted.

    Hidden ones (a part beginning with "." or "_", but for folders like `_day=1`) are left out. Raises RefusedError if
    there is none, unless that is fine, or the store does not answer.
    """
    try:
        found = sorted(_remote(path, options) if is_remote(path) else _local(path), key=lambda one: one.path)
    except BaseError as error:
        raise RefusedError(
            f"{path} cannot be listed: {in_words(error)}. Look at the address, and at its store's options (--storage)."
        ) from error
    if not found and not missing_ok:
        raise RefusedError(f"There is no file at {path}.")
    return found


def open_file(path: str, options: Mapping[str, str]) -> pa.NativeFile:
    """A file to read from anywhere in it."""
    if not is_remote(path):
        return pa.memory_map(str(local(path)))
    return pa.PythonFile(io.BufferedReader(_Object(*open_store(path, options)), READ_AHEAD), mode="r")


def exists(path: str, options: Mapping[str, str]) -> bool:
    """Whether a file is there."""
    if not is_remote(path):
        return local(path).is_file()
    store, key = open_store(path, options)
    try:
        obstore.head(store, key)
    except FileNotFoundError:
        return False
    return True


def write_file(path: str, content: bytes, options: Mapping[str, str]) -> None:
    """Write a small file whole; readers see it whole or not at all."""
    if is_remote(path):
        store, key = open_store(path, options)
        obstore.put(store, key, content)
        return
    target = local(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    making = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    making.write_bytes(content)
    making.replace(target)


def delete_files(paths: list[str], options: Mapping[str, str]) -> None:
    """Delete files; those that are gone already are fine."""
    if not paths:
        return
    if not is_remote(paths[0]):
        for path in paths:
            local(path).unlink(missing_ok=True)
        return
    keyed = [open_store(path, options) for path in paths]
    obstore.delete(keyed[0][0], [key for _, key in keyed])


class _Object(io.RawIOBase):
    """An object of a store as a file to read: each read is a request for a range."""

    def __init__(self, store: Any, key: str) -> None:
        self._store, self._key = store, key
        self._size = int(obstore.head(store, key)["size"])
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        end = min(self._at + len(buffer), self._size)
        if end <= self._at:
            return 0
        found = memoryview(obstore.get_range(self._store, self._key, start=self._at, end=end))
        buffer[: len(found)] = found
        self._at += len(found)
        return len(found)


def _local(path: str) -> Iterator[Found]:
    place = local(path)
    if place.is_file():
        yield _found(place)
        return
    root, pattern = _split(str(place))
    for file in Path(root).rglob("*"):
        inside = file.relative_to(root).as_posix()
        if file.is_file() and not _hidden(inside) and _matches(inside, pattern):
            yield _found(file)


def _found(file: Path) -> Found:
    told = file.stat()
    return Found(str(file), told.st_size, str(told.st_mtime_ns))


def _remote(path: str, options: Mapping[str, str]) -> Iterator[Found]:
    root, pattern = _split(path)
    store, prefix = open_store(root, options)
    bucket = path[: path.index("://") + 3] + urlsplit(path).netloc
    for page in obstore.list(store, prefix or None):
        for one in page:
            inside = one["path"][len(prefix) :].lstrip("/")
            if (not inside or not _hidden(inside)) and _matches(inside, pattern):
                yield Found(f"{bucket}/{one['path']}", one["size"], str(one["e_tag"] or one["last_modified"]))


def _split(path: str) -> tuple[str, str]:
    """The folder above the first pattern, and the pattern."""
    parts = path.split("/")
    first = next((i for i, part in enumerate(parts) if _GLOB & set(part)), len(parts))
    return "/".join(parts[:first]) or "/", "/".join(parts[first:])


def _matches(inside: str, pattern: str) -> bool:
    """Whether a path is below the pattern: one part of it matches one part of the pattern, `**` any number."""
    return not pattern or _parts_match(inside.split("/"), pattern.split("/"))


def _parts_match(parts: list[str], patterns: list[str]) -> bool:
    if not patterns:
        return not parts
    if patterns[0] == "**":
        return any(_parts_match(parts[skip:], patterns[1:]) for skip in range(len(parts) + 1))
    return bool(parts) and fnmatch.fnmatchcase(parts[0], patterns[0]) and _parts_match(parts[1:], patterns[1:])


def _hidden(inside: str) -> bool:
    *folders, name = inside.split("/")
    return name.startswith((".", "_")) or any(
        part.startswith(".") or (part.startswith("_") and "=" not in part) for part in folders
    )


def open_store(path: str, options: Mapping[str, str]) -> tuple[Any, str]:
    """The store of a URI's bucket, and the key in it."""
    parts = urlsplit(path)
    return _opened(f"{parts.scheme}://{parts.netloc}", tuple(sorted(options.items()))), parts.path.lstrip("/")


@lru_cache(maxsize=16)
def _opened(url: str, options: tuple[tuple[str, str], ...]) -> Any:
    try:
        return open_object_store(url, dict(options))
    except BaseError as error:  # nothing was sent yet: it is what was asked for
        raise RefusedError(f"{url} cannot be opened: {in_words(error)}.") from error
