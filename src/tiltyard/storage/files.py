"""Files of tables, whatever they lie on: what both kinds of storage can do, and local disks."""

from __future__ import annotations

import errno
import os
import shutil
import stat as modes
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from uuid import uuid4

import msgspec
from lance_namespace.errors import InvalidInputError

from tiltyard.storage.locations import check_no_links

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_ATTEMPTS = 5
LARGEST_FILE = 64 << 20
"""Bytes of the largest file that is read whole, unless the setting `max_manifest_bytes` says otherwise."""


class FileTooLargeError(InvalidInputError):
    """A file of a client is larger than what is read into memory: nothing of it was read."""

    def __init__(self, location: str, size: int, most: int) -> None:
        super().__init__(
            f"The file {location.rpartition('/')[2]} has {size} bytes, and at most {most} are read: compact the table, "
            "or raise the server's setting max_manifest_bytes."
        )


def check_size(location: str, size: int, most: int) -> None:
    """Raise FileTooLargeError for a file of more than `most` bytes."""
    if size > most:
        raise FileTooLargeError(location, size, most)


class FileStat(msgspec.Struct, frozen=True):
    """Size and entity tag of a file, as the Rust object_store crate tells them (Lance compares the tag)."""

    size: int
    e_tag: str | None


class WholeFile(msgspec.Struct, frozen=True):
    """All that is in a file, and its size and tag."""

    content: bytes
    stat: FileStat


_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
"""Without waiting for whoever might write to a pipe of a manifest's name."""


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file in a folder: its path below that, its size, and when it was last written (milliseconds since 1970)."""

    path: str
    size: int
    modified: int


class Files(Protocol):
    """Files by full location. Raises OSError and what obstore raises: `lance_errors` translates both.

    Clients can write below the folders of tables, so no file is read whole before its size is known and bounded.
    """

    def names(self, folder: str) -> list[str]:
        """Names of files and folders right in a folder; none if it is missing."""

    def folders(self, folder: str) -> list[str]:
        """Names of folders right in a folder; none if it is missing."""

    def walk(self, folder: str) -> Iterator[FoundFile]:
        """All files below a folder, in no order; none if it is missing."""

    def first_files(self, folder: str) -> dict[str, int | None]:
        """The first files in a folder by their names, or all where that costs no more; sizes where they come along."""

    def is_file(self, location: str) -> bool:
        """Whether a file lies at a location."""

    def read(self, location: str) -> bytes:
        """A file's content. Raises FileNotFoundError, FileTooLargeError."""

    def read_plain(self, location: str, most: int | None = None) -> WholeFile:
        """A file of at most `most` bytes.

        Raises as `read` does, InvalidInputError if it is reached through a symbolic link.
        """

    def stat(self, location: str) -> FileStat | None:
        """A file's size and tag; None if there is none."""

    def write_new(self, location: str, content: bytes) -> bool:
        """Write a whole file unless there is one: whether it was written. Of several writers, one wins."""

    def move_new(self, source: str, target: str) -> bool:
        """Give a whole file another name unless that is taken: whether it was moved. Raises FileNotFoundError.

        On a disk, what is in it and its name are durable once the file and its folder are synced.
        """

    def delete(self, locations: Iterable[str]) -> None:
        """Delete files; missing ones are fine."""

    def delete_folder(self, folder: str) -> None:
        """Delete everything below a folder; a missing one is fine."""

    def probe(self, root: str) -> None:
        """Ask for real whether the storage answers."""

    def prepare(self, root: str) -> None:
        """Make a root ready, and try that files can be written and deleted there."""


class LocalFiles:
    """Files on local disks, or on what is mounted like one."""

    def __init__(self, largest: int = LARGEST_FILE) -> None:
        """Read no file of more than `largest` bytes whole."""
        self._largest = largest

    def names(self, folder: str) -> list[str]:
        """See Files."""
        try:
            return os.listdir(folder)  # noqa: PTH208  # names are all that is asked for
        except (FileNotFoundError, NotADirectoryError):
            return []

    def folders(self, folder: str) -> list[str]:
        """See Files."""
        try:
            with os.scandir(folder) as found:
                return [entry.name for entry in found if entry.is_dir(follow_symlinks=False)]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def walk(self, folder: str) -> Iterator[FoundFile]:
        """See Files. What vanishes meanwhile is left out."""
        for parent, _, names in os.walk(folder):
            for name in names:
                path = Path(parent, name)
                with suppress(FileNotFoundError):
                    found = path.lstat()
                    relative = path.relative_to(folder).as_posix()
                    yield FoundFile(relative, found.st_size, found.st_mtime_ns // 1_000_000)

    def first_files(self, folder: str) -> dict[str, int | None]:
        """See Files."""
        return dict.fromkeys(self.names(folder))

    def is_file(self, location: str) -> bool:
        """See Files."""
        return os.path.isfile(location)  # noqa: PTH113  # each commit does this, twice

    def read(self, location: str) -> bytes:
        """See Files."""
        descriptor = os.open(location, _READ)  # each commit does this: with half the calls of a file object
        try:
            return _whole(descriptor, location, self._largest).content
        finally:
            os.close(descriptor)

    def read_plain(self, location: str, most: int | None = None) -> WholeFile:
        """See Files. The open file is asked where it lies: no link can take its place in between."""
        descriptor = os.open(location, _READ)
        try:
            if not _is_at(descriptor, location):
                check_no_links(location)
            return _whole(descriptor, location, self._largest if most is None else min(most, self._largest))
        finally:
            os.close(descriptor)

    def stat(self, location: str) -> FileStat | None:
        """See Files."""
        try:
            return _stat(os.stat(location))  # noqa: PTH116  # each commit does this
        except (FileNotFoundError, NotADirectoryError):
            return None

    def write_new(self, location: str, content: bytes) -> bool:
        """See Files: a link appears at once with all the content, or not at all."""
        Path(location).parent.mkdir(parents=True, exist_ok=True)
        staged = _staged(location, content)
        try:
            os.link(staged, location)
        except FileExistsError:
            return False
        finally:
            staged.unlink(missing_ok=True)
        return True

    def replace(self, location: str, content: bytes) -> None:
        """Write a whole file in the place of one that is there: at each moment one of them is read."""
        _staged(location, content).replace(location)

    def move_new(self, source: str, target: str) -> bool:
        """See Files: a second name first, which fails if there is one, then the old one goes."""
        try:
            os.link(source, target)
        except FileExistsError:
            return False
        with suppress(FileNotFoundError):
            os.unlink(source)  # noqa: PTH108  # each commit does this: a Path costs as much again
        return True

    def delete(self, locations: Iterable[str]) -> None:
        """See Files."""
        for location in locations:
            Path(location).unlink(missing_ok=True)

    def delete_folder(self, folder: str) -> None:
        """See Files. A write under way may add a file meanwhile: then once more."""
        for attempt in range(_ATTEMPTS):
            try:
                shutil.rmtree(folder)
            except FileNotFoundError:
                if not Path(folder).exists():
                    return
            except OSError as error:
                if error.errno != errno.ENOTEMPTY or attempt == _ATTEMPTS - 1:
                    raise
            else:
                return

    def probe(self, root: str) -> None:
        """See Files: a tiny file is written, read and deleted."""
        location = f"{root}/.tiltyard-probe-{uuid4().hex}"
        try:
            Path(location).write_bytes(b"probe")
            Path(location).read_bytes()
        finally:
            self.delete([location])

    def prepare(self, root: str) -> None:
        """See Files."""
        Path(root).mkdir(parents=True, exist_ok=True)
        self.probe(root)

    @staticmethod
    def ignores_case(folder: str) -> bool:
        """Whether a folder's file system takes `a` and `A` for one name: a file is made to find out."""
        name = f".tiltyard-case-{uuid4().hex}"
        probe = Path(folder, name)
        try:
            probe.touch()
            return Path(folder, name.upper()).exists()
        finally:
            probe.unlink(missing_ok=True)


def _staged(location: str, content: bytes) -> Path:
    """A durable file beside the one that its content is for."""
    target = Path(location)
    staged = target.with_name(f".{target.name}.{uuid4().hex}")
    try:
        with staged.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        staged.unlink(missing_ok=True)
        raise
    return staged


def _stat(found: os.stat_result) -> FileStat:
    """What object_store tells of a file that the system tells this of."""
    micros = found.st_mtime_ns // 1000
    return FileStat(found.st_size, f"{found.st_ino:x}-{micros:x}-{found.st_size:x}")


def _whole(descriptor: int, location: str, most: int) -> WholeFile:
    """Read an open file to its end. Raises FileTooLargeError, InvalidInputError for what is no file (a pipe, a folder).

    One that is still being written is read as far as it goes, and never beyond `most` bytes.
    """
    found = os.fstat(descriptor)
    if not modes.S_ISREG(found.st_mode):
        raise InvalidInputError(f"{location.rpartition('/')[2]} is no file: put one there.")
    check_size(location, found.st_size, most)
    parts = [os.read(descriptor, found.st_size + 1)]  # one byte more, so that its end is seen
    while (size := sum(map(len, parts))) != found.st_size and parts[-1]:
        check_size(location, size, most)
        parts.append(os.read(descriptor, found.st_size + 1))
    return WholeFile(b"".join(parts), _stat(found))


def _is_at(descriptor: int, location: str) -> bool:
    """Whether an open file is known to lie where its path says, with no link on the way. Only Linux tells."""
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}") == location  # noqa: PTH115  # no path is asked for
    except OSError:
        return False
