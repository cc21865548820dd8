"""Make files whole and durable on local disks: the one way by which contents, names and folders become so.

A file is durable when a loss of power right now would take nothing of it:

- its content is whole, and fsynced: writers may end as if nothing was wrong when a disk was full, so its size and its
  end are looked at (`check_whole`) where it is opened for its fsync;
- its name, the entry of its folder, is durable: the folder was fsynced since its entries last changed;
- so are the names of the folders above it, up to one whose own name is durable: a root, which is made durable when it
  is created.

Whatever acknowledges a write calls `Durability` before: nothing else in this package calls fsync, and an architecture
test holds it. Objects of an object store are durable, and whole, as soon as they are stored: no call is for them.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import re
import stat
import struct
import sys
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias
from uuid import uuid4

from tiltyard.runtime.cache import lasting_facts
from tiltyard.runtime.pool import run_in_background, run_together

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

__all__ = [
    "BITMAP_BYTES",
    "MAX_ARRAY_VALUES",
    "MIN_CONTAINERS_WITH_OFFSETS",
    "MISSING",
    "WITHOUT_RUNS",
    "WITH_RUNS",
    "BrokenFileError",
    "Durability",
    "WrittenFile",
    "atomic_file",
    "check_whole",
    "describe_fault",
    "replace_file",
    "temporary_beside",
    "write_new",
]

_THREADS = 8
"""Files synced concurrently."""
_SYNCFS_THRESHOLD = 64
"""From so many files on, whole file systems are synced: one journal transaction then, instead of one for each."""
WRITE_BACK_SECONDS = 0.2
"""How often write-back is started for files that are being written."""
_SYNC_FILE_RANGE_WRITE = 2
"""A flag of sync_file_range(2): start writing dirty pages, without waiting."""
_MIN_LINUX = 5, 8
"""The first Linux whose syncfs reports write errors."""
_TIMESTAMP_NS = 200_000_000
"""Changes of a folder within so many nanoseconds may have one timestamp: the clock of file systems is a coarse one."""

_SYNCED = "synced"
"""The fact of a folder how it looked when it was synced."""

MISSING = "missing"
"""The fault of a file that is not there."""
_OPEN = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
"""Non-blocking: what a client names might be a pipe."""

_Stamp: TypeAlias = tuple[int, int, int]
"""Which folder has a name, and when its entries last changed."""


def _libc() -> ctypes.CDLL | None:
    """Load the C library; None where its syncfs does not report errors."""
    release = [int(number) for number in re.findall(r"\d+", os.uname().release)[:2]]
    return ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" and tuple(release) >= _MIN_LINUX else None


_LIBC = _libc()


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that was just written, and what is known of it: None stands for what is not.

    A location that ends with a slash is a folder with all that is below it.
    """

    location: str
    size: int | None = None
    """Bytes."""
    deleted_rows: int | None = None
    """Of a deletion file: how many rows it names."""
    is_copy: bool = False
    """Whether another file has its content, too: then it only has to be whole, if it is there."""


class Durability:
    """Make files of this machine's disks, or file systems mounted like one, durable. Safe to use from several threads.

    Methods raise BrokenFileError for a file that is not whole, and OSError.
    """

    def make_durable(
        self, files: Iterable[WrittenFile | str], below: str, *, folders: Iterable[str] = (), missing_ok: bool = False
    ) -> None:
        """Check that files are whole, and make their contents and names durable; wait for it.

        `below` is a folder above them whose own name is durable: a root. `folders` are further folders whose entries
        are made durable, in the same way: where a file was deleted, or that may be empty. Raises FileNotFoundError for
        a missing file, unless that is no fault (`missing_ok`): one that may be renamed or deleted meanwhile.
        """
        written = [WrittenFile(file) if isinstance(file, str) else file for file in files]
        for copy in [file for file in written if file.is_copy]:  # not synced: a thread would take longer than its check
            _check_and_sync(copy, missing_ok)
        written = [file for file in written if not file.is_copy]
        if any(file.location.endswith("/") for file in written):
            written, listed = _list_files(written)
            folders = [*folders, *listed]
        parents = {file.location.rpartition("/")[0] for file in written} | set(folders)
        chain = {folder for parent in parents for folder in _folders_up_to(parent, below)}
        if len(written) < _SYNCFS_THRESHOLD or _LIBC is None:
            self._sync_each(written, [folder for folder in chain if not self._is_synced(folder)], missing_ok)
            return
        for file in written:
            _check_and_sync(file, missing_ok, sync=False)
        for folder in _folder_per_disk(chain):
            _sync_disk(folder)

    def make_folder(self, folder: str) -> None:
        """Create a folder, and those above it, durably; of one that exists already the name is made durable."""
        path = Path(folder).absolute()
        new = [each for each in path.parents if not each.is_dir()]
        path.mkdir(parents=True, exist_ok=True)
        with suppress(PermissionError):  # of a folder that others have made: it can be used, and not be synced
            self._sync_each([], [str(each.parent) for each in (path, *new)], missing_ok=False)

    def _is_synced(self, folder: str) -> bool:
        """Return whether a folder was synced here since its entries last changed."""
        known: _Stamp | None = lasting_facts.get((_SYNCED, folder))
        if known is None:
            return False
        try:
            return known == _stamp(os.stat(folder))  # noqa: PTH116  # each commit does this
        except FileNotFoundError:
            return False

    def _sync_each(self, files: Sequence[WrittenFile], folders: Sequence[str], missing_ok: bool) -> None:
        """Sync files and folders concurrently: they share a disk's writes then, and take a fraction of the time."""
        work: list[WrittenFile | str] = [*files, *folders]
        share = -(-len(work) // _THREADS) or 1
        parts = [work[start : start + share] for start in range(0, len(work), share)]
        run_together(partial(self._sync, missing_ok=missing_ok), parts, _THREADS)

    def _sync(self, part: Sequence[WrittenFile | str], missing_ok: bool) -> None:
        for each in part:
            if isinstance(each, str):
                self._sync_folder(each)
            else:
                _check_and_sync(each, missing_ok)

    def _sync_folder(self, folder: str) -> None:
        """Fsync a folder, and remember when its entries had last changed; ignore one that was deleted meanwhile."""
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
        except FileNotFoundError:
            return
        try:
            stamp, began_ns = _stamp(os.fstat(descriptor)), time.time_ns()
            os.fsync(descriptor)  # takes longer than a tick of timestamps: what came during it may have missed it
        finally:
            os.close(descriptor)
        if began_ns - stamp[2] > _TIMESTAMP_NS:
            lasting_facts.put((_SYNCED, folder), stamp)

    @contextmanager
    def writing_back(self, folder: str) -> Iterator[None]:
        """Start write-back of a folder's new files while the block writes them: less is left to sync.

        Linux starts it by itself only when a tenth of the memory is dirty; until then the disk would be idle.
        """
        if _LIBC is None or not hasattr(_LIBC, "sync_file_range"):
            yield
            return
        old_names = set(list_names(folder))

        def write_back(done: threading.Event) -> None:
            while not done.wait(WRITE_BACK_SECONDS):
                for name in set(list_names(folder)) - old_names:
                    _start_write_back(f"{folder}/{name}")

        with run_in_background("write-back", write_back):
            yield


def describe_fault(file: WrittenFile | str) -> str | None:
    """Say why a file is not whole, or that it is missing; None for one that is whole. Raises OSError."""
    try:
        _check_and_sync(WrittenFile(file) if isinstance(file, str) else file, missing_ok=False, sync=False)
    except BrokenFileError as error:
        return error.found
    except FileNotFoundError:
        return MISSING
    return None


@contextmanager
def temporary_beside(target: Path, name: str | None = None) -> Iterator[Path]:
    """Yield the path of a temporary file in the folder of a file, which is gone after the block.

    `name` is what it is called; by default its name begins with a dot, and nobody has it.
    """
    temporary = target.with_name(name or f".{target.name}.{uuid4().hex}")
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_file(target: Path, name: str | None = None) -> Iterator[Path]:
    """Yield the path of a temporary file, which gets its final name, durably, when the block ends without an error.

    Readers see the old content or the new: its content is durable before it has the name, so that under that nobody
    ever finds less, whenever the power is lost. `name` is that of `temporary_beside`.
    """
    with temporary_beside(target, name) as temporary:
        yield temporary
        _fsync(str(temporary))
        temporary.replace(target)
        _fsync(str(target.parent))


def write_new(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Write a new file durably, whose name is to be made durable. Raises FileExistsError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def replace_file(location: str, content: bytes, mode: int = 0o666) -> None:
    """Replace a file, or write a new one, atomically and durably: readers see the old content or the new."""
    target = Path(location)
    with temporary_beside(target) as temporary:
        write_new(temporary, content, mode)
        temporary.replace(target)
        _fsync(str(target.parent))


def append_lines(file: str | Path, lines: bytes, *, durably: bool = False) -> None:
    """Append to a file in as few writes as it takes, so that lines of several processes do not mix. Raises OSError."""
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        while lines:
            lines = lines[os.write(descriptor, lines) :]
        if durably:
            os.fsync(descriptor)
            _fsync(str(Path(file).parent))  # it may be new
    finally:
        os.close(descriptor)


def _folders_up_to(folder: str, below: str) -> Iterator[str]:
    """Iterate over a folder and those above it, up to `below`; the folder alone if it is not there."""
    yield folder
    if folder.startswith(f"{below.rstrip('/')}/"):
        while len(folder) > len(below):
            folder = folder.rpartition("/")[0] or "/"
            yield folder


def _stamp(status: os.stat_result) -> _Stamp:
    return status.st_dev, status.st_ino, status.st_ctime_ns


def list_names(folder: str) -> list[str]:
    """Return the names in a folder, none for one that is not there."""
    try:
        return os.listdir(folder)  # noqa: PTH208  # only names are needed
    except (FileNotFoundError, NotADirectoryError):
        return []


def _list_tree(folder: str) -> tuple[list[str], list[str]]:
    """List the files and the folders below a folder, which is among these."""
    files, folders, pending = list[str](), list[str](), [folder]
    while pending:
        folders.append(parent := pending.pop())
        with suppress(FileNotFoundError), os.scandir(parent) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                elif entry.is_file(follow_symlinks=False):
                    files.append(entry.path)
    return files, folders


def _list_files(written: Iterable[WrittenFile]) -> tuple[list[WrittenFile], list[str]]:
    """Return files, and those below the folders that are among them; and these folders, with those below."""
    files, folders = list[WrittenFile](), list[str]()
    written = list(written)
    known = {file.location for file in written}
    for file in written:
        if file.location.endswith("/"):
            found, below = _list_tree(file.location.rstrip("/"))
            files += [WrittenFile(location) for location in found if location not in known]
            folders += below
        else:
            files.append(file)
    return files, folders


def _folder_per_disk(folders: Iterable[str]) -> Collection[str]:
    """Return one folder on each file system that has some of these folders; ignore deleted ones."""
    by_device: dict[int, str] = {}
    for folder in folders:
        with suppress(FileNotFoundError):
            by_device[os.stat(folder).st_dev] = folder  # noqa: PTH116  # a Path costs as much again
    return by_device.values()


def _sync_disk(folder: str) -> None:
    """Sync the file system of a folder with syncfs(2)."""
    assert _LIBC is not None
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _LIBC.syncfs(descriptor):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), folder)
    finally:
        os.close(descriptor)


def _start_write_back(location: str) -> bool:
    """Start write-back of a file's dirty pages; return whether the system accepted it.

    A failed write is reported when the file is synced.
    """
    assert _LIBC is not None
    try:
        descriptor = os.open(location, _OPEN)
    except FileNotFoundError:
        return False
    try:
        status: int = _LIBC.sync_file_range(descriptor, ctypes.c_int64(0), ctypes.c_int64(0), _SYNC_FILE_RANGE_WRITE)
        return status == 0
    finally:
        os.close(descriptor)


def _check_and_sync(file: WrittenFile, missing_ok: bool, *, sync: bool = True) -> None:
    """Check that a file is whole, and fsync it, with one opening."""
    try:
        descriptor = os.open(file.location, _OPEN)
    except FileNotFoundError:
        if missing_ok or file.is_copy:
            return
        raise
    try:
        check_whole(descriptor, file.location, file.size, file.deleted_rows)
        if sync and not file.is_copy:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _fsync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_LANCE_END = b"LANC"
_ARROW_MAGIC = b"ARROW1"
_ARROW_FOOTER = struct.Struct("<i6s")
_INT = struct.Struct("<I")
_MAX_REFERENCE_BYTES = 1 << 20
WITHOUT_RUNS, WITH_RUNS = 12346, 12347
MAX_ARRAY_VALUES = 4096
"""Values of a container of a Roaring bitmap that are a list; more of them are a bitmap."""
BITMAP_BYTES = 8192
_MAX_CONTAINERS = 1 << 16
MIN_CONTAINERS_WITH_OFFSETS = 4
"""A Roaring bitmap with runs has no offsets if it has fewer containers."""


class BrokenFileError(OSError):
    """A file lacks some of its content, as after a write to a disk that was full."""

    def __init__(self, location: str, found: str) -> None:
        self.found = found
        super().__init__(errno.ENOSPC, f"A file was not written whole, as on a full disk ({found})", location)


def check_whole(descriptor: int, location: str, size: int | None = None, deleted_rows: int | None = None) -> None:
    """Check an open file: its size, if that is known, and its end, by its suffix. Raises BrokenFileError.

    `deleted_rows` is how many rows a deletion file names. A file of another form is only compared with its size.
    """
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise BrokenFileError(location, "it is no file")
    found = status.st_size
    if size is not None and found != size:
        raise BrokenFileError(location, f"{found} of {size} bytes")
    if not _has_end(descriptor, location, found, deleted_rows):
        raise BrokenFileError(location, f"{found} bytes, without its end")


def _has_end(descriptor: int, location: str, size: int, deleted_rows: int | None) -> bool:
    """Whether a file ends as its form has it; true of a form that is none of a table's."""
    suffix = location.rpartition(".")[2]
    if suffix in ("lance", "idx", "manifest"):
        return os.pread(descriptor, len(_LANCE_END), max(size - len(_LANCE_END), 0)) == _LANCE_END
    if suffix == "txn":
        return size > 0
    if "/_deletions/" in location:
        is_bitmap = suffix == "bin"
        return _is_roaring_bitmap(descriptor, size, deleted_rows) if is_bitmap else _is_arrow_file(descriptor, size)
    if "/_refs/" in location and suffix == "json":
        return _is_json(descriptor, size)
    return True


def _is_arrow_file(descriptor: int, size: int) -> bool:
    """Whether an Arrow file has its magic at both ends, and a footer that fits between them."""
    end = os.pread(descriptor, _ARROW_FOOTER.size, max(size - _ARROW_FOOTER.size, 0))
    if len(end) < _ARROW_FOOTER.size or os.pread(descriptor, len(_ARROW_MAGIC), 0) != _ARROW_MAGIC:
        return False
    footer, magic = _ARROW_FOOTER.unpack(end)
    return bool(magic == _ARROW_MAGIC and 0 < footer <= size - _ARROW_FOOTER.size - len(_ARROW_MAGIC))


def _is_roaring_bitmap(descriptor: int, size: int, values: int | None) -> bool:
    """Whether a Roaring bitmap, in its portable form, ends where its headers say; it has so many `values`, if known.

    Its cookie, with the number of containers, is followed by a bit for each that has runs, then by two numbers of 16
    bits for each, its key and its size less one, then by their positions, then by the containers.
    """
    try:
        cookie = _INT.unpack(os.pread(descriptor, 4, 0))[0]
        if cookie & 0xFFFF == WITH_RUNS:
            count = (cookie >> 16) + 1
            runs = os.pread(descriptor, (count + 7) // 8, 4)
            at, has_positions = 4 + len(runs), count >= MIN_CONTAINERS_WITH_OFFSETS
        elif cookie == WITHOUT_RUNS:
            count, runs, at, has_positions = _INT.unpack(os.pread(descriptor, 4, 4))[0], b"", 8, True
        else:
            return False
        if count > _MAX_CONTAINERS:
            return False
        sizes = [number + 1 for number in struct.unpack(f"<{2 * count}H", os.pread(descriptor, 4 * count, at))[1::2]]
        at += 4 * count * (2 if has_positions else 1)
        for index, number in enumerate(sizes):
            if runs and runs[index // 8] >> index % 8 & 1:
                at += 2 + 4 * int(struct.unpack("<H", os.pread(descriptor, 2, at))[0])
            else:
                at += 2 * number if number <= MAX_ARRAY_VALUES else BITMAP_BYTES
    except (struct.error, IndexError):
        return False
    return at == size and (values is None or values == sum(sizes))


def _is_json(descriptor: int, size: int) -> bool:
    """Whether a file of a tag or a branch is whole; none is large."""
    if size > _MAX_REFERENCE_BYTES:
        return True
    try:
        json.loads(os.pread(descriptor, size, 0))
    except ValueError:
        return False
    except RecursionError:  # whoever has written so many brackets: it has not lost its end
        return True
    return True
