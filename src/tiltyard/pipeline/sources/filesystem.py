"""List, open, write and delete files of local disks and object stores, by path or URI.

Options are Lance's storage options.
"""

from __future__ import annotations

import fnmatch
import io
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import obstore
import pyarrow as pa
from obstore.exceptions import BaseError

from tiltyard.model.refusals import RefusedError
from tiltyard.model.settings.object_stores import open_object_store
from tiltyard.pipeline.task_errors import clean_message
from tiltyard.runtime.cache import cached
from tiltyard.runtime.durability import Durability, replace_file

READ_AHEAD_BYTES = 4 << 20
"""Minimum bytes that a request to an object store reads."""

_GLOB = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A file: its path or URI, its size in bytes, and a revision that changes when the file is written anew."""

    path: str
    size: int
    revision: str


def is_remote(path: str) -> bool:
    """Return whether a path is on an object store."""
    return "://" in path and not path.startswith("file://")


def local_path(path: str) -> Path:
    """Return the local path of a path or file URI."""
    return Path(path.removeprefix("file://"))


def absolute_path(path: str) -> str:
    """Return the path for processes with another working directory, as Spark's tasks have."""
    return path if is_remote(path) else str(local_path(path).absolute())


def base_folder(path: str) -> str:
    """Return the folder above a glob pattern, spelt as in the paths of its files; a path without a pattern as it is."""
    if not is_remote(path):
        file = local_path(path)
        return str(file) if file.is_file() else str(Path(_split_glob(str(file))[0]))
    return _split_glob(path)[0].rstrip("/")


def list_files(path: str, options: Mapping[str, str], *, missing_ok: bool = False) -> list[FileInfo]:
    """List the files at a path, sorted: a file, all below a folder, or those that a glob (`*`, `**`, `?`) matches.

    Hidden files (a part begins with "." or "_", except folders such as `_day=1`) are left out. Raises RefusedError if
    there is no file, unless `missing_ok`, or if the object store does not answer.
    """
    try:
        files = sorted(
            _list_objects(path, options) if is_remote(path) else _list_local(path), key=lambda file: file.path
        )
    except BaseError as error:
        raise RefusedError(
            f"{path} cannot be listed: {clean_message(error)}. Look at the address, and at its store's options "
            "(--storage)."
        ) from error
    if not files and not missing_ok:
        raise RefusedError(f"There is no file at {path}.")
    return files


def open_file(path: str, options: Mapping[str, str]) -> pa.NativeFile:
    """Open a file for random reads."""
    if not is_remote(path):
        return pa.memory_map(str(local_path(path)))
    return pa.PythonFile(io.BufferedReader(_ObjectReader(*open_store(path, options)), READ_AHEAD_BYTES), mode="r")


def file_exists(path: str, options: Mapping[str, str]) -> bool:
    """Return whether a file exists."""
    if not is_remote(path):
        return local_path(path).is_file()
    store, key = open_store(path, options)
    try:
        obstore.head(store, key)
    except FileNotFoundError:
        return False
    return True


def write_file(path: str, content: bytes, options: Mapping[str, str]) -> None:
    """Write a small file atomically and durably: readers see all of it or nothing."""
    if is_remote(path):
        store, key = open_store(path, options)
        obstore.put(store, key, content)
        return
    target = local_path(path)
    Durability().make_folder(str(target.parent))
    replace_file(str(target), content)


def delete_files(paths: list[str], options: Mapping[str, str]) -> None:
    """Delete files. Idempotent: missing files are ignored."""
    if not paths:
        return
    if not is_remote(paths[0]):
        for path in paths:
            local_path(path).unlink(missing_ok=True)
        return
    objects = [open_store(path, options) for path in paths]
    obstore.delete(objects[0][0], [key for _, key in objects])


def rename_file(source: str, target: str, options: Mapping[str, str]) -> None:
    """Give a file another name in the same folder."""
    if not is_remote(source):
        local_path(source).rename(local_path(target))
        return
    (store, key), (_, new_key) = open_store(source, options), open_store(target, options)
    obstore.rename(store, key, new_key)


def delete_folders(folders: list[str], options: Mapping[str, str]) -> None:
    """Delete folders with their files. Idempotent: missing ones are ignored."""
    for folder in folders:
        if is_remote(folder):
            store, prefix = open_store(f"{folder}/", options)
            while keys := [
                entry["path"] for entry in next(iter(obstore.list(store, prefix=f"{prefix.rstrip('/')}/")), ())
            ]:
                obstore.delete(store, keys)
        else:
            shutil.rmtree(local_path(folder), ignore_errors=True)


class _ObjectReader(io.RawIOBase):
    """Read an object of an object store as a file: each read is a range request."""

    def __init__(self, store: Any, key: str) -> None:
        self._store, self._key = store, key
        self._size = int(obstore.head(store, key)["size"])
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        return self._position

    def readinto(self, buffer: Any) -> int:
        end = min(self._position + len(buffer), self._size)
        if end <= self._position:
            return 0
        data = memoryview(obstore.get_range(self._store, self._key, start=self._position, end=end))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)


def _list_local(path: str) -> Iterator[FileInfo]:
    file_or_folder = local_path(path)
    if file_or_folder.is_file():
        yield _file_info(file_or_folder)
        return
    root, pattern = _split_glob(str(file_or_folder))
    for file in Path(root).rglob("*"):
        relative = file.relative_to(root).as_posix()
        if file.is_file() and not _is_hidden(relative) and _matches(relative, pattern):
            yield _file_info(file)


def _file_info(file: Path) -> FileInfo:
    status = file.stat()
    return FileInfo(str(file), status.st_size, str(status.st_mtime_ns))


def _list_objects(path: str, options: Mapping[str, str]) -> Iterator[FileInfo]:
    root, pattern = _split_glob(path)
    store, prefix = open_store(root, options)
    bucket = path[: path.index("://") + 3] + urlsplit(path).netloc
    for page in obstore.list(store, prefix or None):
        for entry in page:
            relative = entry["path"][len(prefix) :].lstrip("/")
            if (not relative or not _is_hidden(relative)) and _matches(relative, pattern):
                yield FileInfo(
                    f"{bucket}/{entry['path']}", entry["size"], str(entry["e_tag"] or entry["last_modified"])
                )


def _split_glob(path: str) -> tuple[str, str]:
    """Split a path into the folder above its first pattern, and the pattern."""
    parts = path.split("/")
    first = next((i for i, part in enumerate(parts) if _GLOB & set(part)), len(parts))
    return "/".join(parts[:first]) or "/", "/".join(parts[first:])


def _matches(relative: str, pattern: str) -> bool:
    """Return whether a path below the folder matches: a part of it a part of the pattern, `**` any number of parts."""
    return not pattern or _parts_match(relative.split("/"), pattern.split("/"))


def _parts_match(parts: list[str], patterns: list[str]) -> bool:
    if not patterns:
        return not parts
    if patterns[0] == "**":
        return any(_parts_match(parts[skip:], patterns[1:]) for skip in range(len(parts) + 1))
    return bool(parts) and fnmatch.fnmatchcase(parts[0], patterns[0]) and _parts_match(parts[1:], patterns[1:])


def _is_hidden(relative: str) -> bool:
    *folders, name = relative.split("/")
    return name.startswith((".", "_")) or any(
        part.startswith(".") or (part.startswith("_") and "=" not in part) for part in folders
    )


def open_store(path: str, options: Mapping[str, str]) -> tuple[Any, str]:
    """Return the object store of a URI's bucket, and the key in it."""
    parts = urlsplit(path)
    return _cached_store(f"{parts.scheme}://{parts.netloc}", tuple(sorted(options.items()))), parts.path.lstrip("/")


@cached("object stores", "Clients of the object stores that files are read from", max_entries=16)
def _cached_store(url: str, options: tuple[tuple[str, str], ...]) -> Any:
    try:
        return open_object_store(url, dict(options))
    except BaseError as error:  # no request was sent yet: the URL or the options are wrong
        raise RefusedError(f"{url} cannot be opened: {clean_message(error)}.") from error
