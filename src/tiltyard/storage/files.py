"""Read and write files of tables: the interface of both kinds of storage, and local disks."""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat as modes
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from uuid import uuid4

import msgspec
from lance_namespace.errors import InvalidInputError

from tiltyard.runtime.durability import list_names, temporary_beside, write_new
from tiltyard.storage.locations import check_no_links

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_MAX_ATTEMPTS = 5
MAX_FILE_BYTES = 64 << 20
"""Default of the setting `max_manifest_bytes`: bytes of the largest file that is read into memory."""


CHUNK_BYTES = 4 << 20
"""Bytes of a file that are in memory at a time where one is read in chunks."""


PROBE, CASE_PROBE = ".tiltyard-probe-", ".tiltyard-case-"
"""How the names of files begin that a root is tried with; a process that is killed then leaves one behind."""


class FileTooLargeError(InvalidInputError):
    """A client's file is too large to be read into memory: nothing of it was read."""

    def __init__(self, location: str, size: int, max_bytes: int) -> None:
        super().__init__(
            f"The file {location.rpartition('/')[2]} has {size} bytes, and at most {max_bytes} are read: compact the "
            "table, or raise the server's setting max_manifest_bytes."
        )


def check_size(location: str, size: int, max_bytes: int) -> None:
    """Raise FileTooLargeError for a file of more than `max_bytes`."""
    if size > max_bytes:
        raise FileTooLargeError(location, size, max_bytes)


class FileStat(msgspec.Struct, frozen=True):
    """Size and entity tag of a file, as the Rust object_store crate has them (Lance compares the tag)."""

    size: int
    e_tag: str | None


class FileContent(msgspec.Struct, frozen=True):
    """A file's content, and its size and entity tag."""

    content: bytes
    stat: FileStat


_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
"""Non-blocking: a manifest's name might be that of a pipe, whose writer never comes."""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file in a listing: its path below the folder, its size, and its modification time (milliseconds since 1970).

    A listing of an object store has the entity tag, too.
    """

    path: str
    size: int
    modified: int
    e_tag: str | None = None


class Files(Protocol):
    """Read and write files by full location. Raises OSError and obstore's errors: `lance_errors` translates both.

    Clients can write below the folders of tables, so no file is read whole before its size is known and bounded.
    """

    def list_names(self, folder: str) -> list[str]:
        """List the names of files and folders directly in a folder; none if it is missing."""

    def list_folders(self, folder: str) -> list[str]:
        """List the names of folders directly in a folder; none if it is missing."""

    def walk(self, folder: str) -> Iterator[FileEntry]:
        """Iterate over all files below a folder, in no order; none if it is missing."""

    def walk_targets(self, folder: str, name: re.Pattern[str]) -> Iterator[FileEntry]:
        """Iterate over the files below a folder whose names match, as a reader finds them who follows symbolic links.

        Raises InvalidInputError for a link to a folder, and for a pipe or the like, whose reading might never end.
        """

    def list_first_files(self, folder: str) -> dict[str, int | None]:
        """List the first files of a folder in name order, or all if that costs no more; with sizes if known."""

    def is_file(self, location: str) -> bool:
        """Whether a file lies at a location."""

    def read(self, location: str) -> bytes:
        """Read a file. Raises FileNotFoundError, FileTooLargeError."""

    def read_chunks(self, location: str) -> Iterator[bytes]:
        """Iterate over the content of a file of any size. Raises FileNotFoundError."""

    def read_nofollow(self, location: str, max_bytes: int | None = None) -> FileContent:
        """Read a file of at most `max_bytes`, following no symbolic links.

        Raises as `read` does, InvalidInputError if the path has a symbolic link.
        """

    def stat(self, location: str) -> FileStat | None:
        """Return a file's size and entity tag; None if there is none."""

    def stat_all(self, locations: Sequence[str]) -> list[FileStat | None]:
        """Return the stats of a few files, in their order; of objects they are requested at the same time."""

    def write_if_not_exists(self, location: str, content: bytes) -> FileStat | None:
        """Write a file atomically unless there is one; return its stat, None if there is one. Of several writers, one
        wins.
        """

    def rename_if_not_exists(self, source: str, target: str) -> bool:
        """Rename a file unless the new name is taken; return whether it was renamed. Raises FileNotFoundError.

        On a disk, content and name are durable once the file and its folder are synced.
        """

    def copy(self, source: str, target: str) -> None:
        """Copy a file to a name that nobody has; on a disk it is durable once it and its folder are synced.

        Raises FileNotFoundError, InvalidInputError if the source's path has a symbolic link.
        """

    def delete(self, locations: Iterable[str]) -> None:
        """Delete files; ignore missing ones."""

    def delete_folder(self, folder: str) -> None:
        """Delete everything below a folder; ignore a missing one."""

    def probe(self, root: str) -> None:
        """Check with a real request that the storage answers."""

    def prepare(self, root: str) -> None:
        """Try that files can be written and deleted in a root; on a disk its folder is there."""


class LocalFiles:
    """Files on local disks, or on file systems mounted like one."""

    def __init__(self, max_bytes: int = MAX_FILE_BYTES) -> None:
        """Refuse to read files of more than `max_bytes`."""
        self._max_bytes = max_bytes

    def list_names(self, folder: str) -> list[str]:
        return list_names(folder)

    def list_folders(self, folder: str) -> list[str]:
        try:
            with os.scandir(folder) as entries:
                return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def walk(self, folder: str) -> Iterator[FileEntry]:
        """Leave out files that are deleted during the listing; see Files."""
        for parent, _, names in os.walk(folder):
            for name in names:
                path = Path(parent, name)
                with suppress(FileNotFoundError):
                    status = path.lstat()
                    relative = path.relative_to(folder).as_posix()
                    yield FileEntry(relative, status.st_size, status.st_mtime_ns // 1_000_000)

    def walk_targets(self, folder: str, name: re.Pattern[str]) -> Iterator[FileEntry]:
        for parent, folders, names in os.walk(folder):
            for linked in filter(os.path.islink, (f"{parent}/{child}" for child in folders)):
                raise InvalidInputError(f"{linked.rpartition('/')[2]} is a link to a folder: put the files there.")
            for path in (f"{parent}/{file}" for file in names if name.match(file)):
                with suppress(FileNotFoundError):
                    status = os.stat(path)  # noqa: PTH116  # a history may have a hundred thousand manifests
                    if not modes.S_ISREG(status.st_mode):
                        raise InvalidInputError(f"{path.rpartition('/')[2]} is not a file: replace it by one.")
                    yield FileEntry(path[len(folder) + 1 :], status.st_size, status.st_mtime_ns // 1_000_000)

    def list_first_files(self, folder: str) -> dict[str, int | None]:
        return dict.fromkeys(self.list_names(folder))

    def is_file(self, location: str) -> bool:
        return os.path.isfile(location)  # noqa: PTH113  # each commit does this, twice

    def read(self, location: str) -> bytes:
        descriptor = os.open(location, _READ)  # each commit does this: with half the calls of a file object
        try:
            return _read_open_file(descriptor, location, self._max_bytes).content
        finally:
            os.close(descriptor)

    def read_chunks(self, location: str) -> Iterator[bytes]:
        with Path(location).open("rb", buffering=0) as file:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk

    def read_nofollow(self, location: str, max_bytes: int | None = None) -> FileContent:
        """Check the path of the open file, so that no link can take its place in between; see Files."""
        descriptor = os.open(location, _READ)
        try:
            if not _is_opened_at(descriptor, location):
                check_no_links(location)
            limit = self._max_bytes if max_bytes is None else min(max_bytes, self._max_bytes)
            return _read_open_file(descriptor, location, limit)
        finally:
            os.close(descriptor)

    def stat(self, location: str) -> FileStat | None:
        try:
            return _file_stat(os.stat(location))  # noqa: PTH116  # each commit does this
        except (FileNotFoundError, NotADirectoryError):
            return None

    def stat_all(self, locations: Sequence[str]) -> list[FileStat | None]:
        return list(map(self.stat, locations))

    def write_if_not_exists(self, location: str, content: bytes) -> FileStat | None:
        """Write a temporary file and link it, so that it appears with all its content or not at all; see Files."""
        Path(location).parent.mkdir(parents=True, exist_ok=True)
        with temporary_beside(Path(location)) as temporary:
            write_new(temporary, content)
            try:
                os.link(temporary, location)
            except FileExistsError:
                return None
        return self.stat(location)

    def rename_if_not_exists(self, source: str, target: str) -> bool:
        """Link the new name, which fails if it is taken, then unlink the old one; see Files."""
        try:
            os.link(source, target)
        except FileExistsError:
            return False
        with suppress(FileNotFoundError):
            os.unlink(source)  # noqa: PTH108  # each commit does this: a Path costs as much again
        return True

    def copy(self, source: str, target: str) -> None:
        check_no_links(source)
        shutil.copyfile(source, target, follow_symlinks=False)

    def delete(self, locations: Iterable[str]) -> None:
        for location in locations:
            Path(location).unlink(missing_ok=True)

    def delete_folder(self, folder: str) -> None:
        """Retry where a running write adds a file during the deletion; see Files."""
        for attempt in range(_MAX_ATTEMPTS):
            try:
                shutil.rmtree(folder)
            except FileNotFoundError:
                if not Path(folder).exists():
                    return
            except OSError as error:
                if error.errno != errno.ENOTEMPTY or attempt == _MAX_ATTEMPTS - 1:
                    raise
            else:
                return

    def probe(self, root: str) -> None:
        """Write, read and delete a tiny file; see Files."""
        location = f"{root}/{PROBE}{uuid4().hex}"
        try:
            Path(location).write_bytes(b"probe")
            Path(location).read_bytes()
        finally:
            self.delete([location])

    def prepare(self, root: str) -> None:
        self.probe(root)

    @staticmethod
    def ignores_case(folder: str) -> bool:
        """Whether a folder's file system ignores case; creates a file to find out."""
        name = f"{CASE_PROBE}{uuid4().hex}"
        probe = Path(folder, name)
        try:
            probe.touch()
            return Path(folder, name.upper()).exists()
        finally:
            probe.unlink(missing_ok=True)


def is_written_since(location: str, since: int) -> bool:
    """Whether a local file exists, and was written at a time (milliseconds since 1970) or later."""
    try:
        return os.stat(location).st_mtime_ns >= since * 1_000_000  # noqa: PTH116  # as everywhere here
    except FileNotFoundError:
        return False


def _file_stat(status: os.stat_result) -> FileStat:
    """Compute the size and entity tag that the object_store crate has for a local file."""
    micros = status.st_mtime_ns // 1000
    return FileStat(status.st_size, f"{status.st_ino:x}-{micros:x}-{status.st_size:x}")


def _read_open_file(descriptor: int, location: str, max_bytes: int) -> FileContent:
    """Read an open file to its end. Raises FileTooLargeError, InvalidInputError for a pipe or a folder.

    A file that is still being written is read to its end at that moment, and never beyond `max_bytes`.
    """
    status = os.fstat(descriptor)
    if not modes.S_ISREG(status.st_mode):
        raise InvalidInputError(f"{location.rpartition('/')[2]} is not a file: replace it by one.")
    check_size(location, status.st_size, max_bytes)
    parts = [os.read(descriptor, status.st_size + 1)]  # one byte more, to see its end
    while (size := sum(map(len, parts))) != status.st_size and parts[-1]:
        check_size(location, size, max_bytes)
        parts.append(os.read(descriptor, status.st_size + 1))
    return FileContent(b"".join(parts), _file_stat(status))


def _is_opened_at(descriptor: int, location: str) -> bool:
    """Whether an open file is known to lie at its path, with no link on the way. Only Linux can tell."""
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}") == location  # noqa: PTH115  # the fastest way
    except OSError:
        return False
