"""What is on local disks survives a loss of power: files, and the names in folders, are synced."""

from __future__ import annotations

import ctypes
import os
import re
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from tiltyard.runtime.background_thread import meanwhile
from tiltyard.storage.files import LocalFiles

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

_SYNCING = 8
"""Files synced at the same time."""
_MANY = 64
"""So many places are synced by syncing the disk they are on: it has one transaction to write then, and not as many."""
WRITE_BACK_SECONDS = 0.2
"""How often the disk is told of files that are being written."""
_WRITE = 2
"""Of sync_file_range(2): begin to write what has changed, and wait for nothing."""
_TELLS_ERRORS = 5, 8
"""The first Linux whose syncfs says that something could not be written."""


def _libc() -> ctypes.CDLL | None:
    """The C library, where it has a syncfs to rely on."""
    release = [int(number) for number in re.findall(r"\d+", os.uname().release)[:2]]
    return ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" and tuple(release) >= _TELLS_ERRORS else None


_LIBC = _libc()


class Disks:
    """The local disks of this machine, or what is mounted like one. Safe to use from several threads."""

    def __init__(self) -> None:
        self._syncing = ThreadPoolExecutor(_SYNCING, "sync")

    @contextmanager
    def syncing(self, locations: Sequence[str]) -> Iterator[None]:
        """Have files survive a loss of power, and the names in folders, when the block has ended; it runs meanwhile.

        Missing ones are fine. Several at once share a disk's writes: that takes a fraction of the time.
        """
        if not locations:
            yield
            return
        share = -(-len(locations) // _SYNCING)
        parts = [locations[start : start + share] for start in range(0, len(locations), share)]
        running = [self._start_syncing(part) for part in parts]
        try:
            yield
        finally:
            for one in running:
                one.result()

    def _start_syncing(self, locations: Sequence[str]) -> Future[None]:
        try:
            return self._syncing.submit(_sync, *locations)
        except RuntimeError:  # Python ends, and begins nothing in a thread any more
            _sync(*locations)
            done = Future[None]()
            done.set_result(None)
            return done

    def sync(self, locations: Collection[str]) -> None:
        """Do that, and return then. Many places cost one write of all that waits on their disks, not one for each."""
        if len(locations) < _MANY or _LIBC is None:
            with self.syncing(list(locations)):
                return
        for folder in _one_of_each_disk(locations):
            _sync_disk(folder)

    @contextmanager
    def writing_back(self, folder: str) -> Iterator[None]:
        """Have the disk begin with new files of a folder while the block writes them: less is left for `sync`.

        Linux begins by itself once a tenth of the memory is unwritten, and has then nothing to do meanwhile.
        """
        if _LIBC is None or not hasattr(_LIBC, "sync_file_range"):
            yield
            return
        names = LocalFiles().names
        old = set(names(folder))

        def work(done: threading.Event) -> None:
            while not done.wait(WRITE_BACK_SECONDS):
                for name in set(names(folder)) - old:
                    _begin_to_write(f"{folder}/{name}")

        with meanwhile("write-back", work):
            yield

    def written(self, folder: str, since: int) -> list[str]:
        """Files below a folder that were written since a time (milliseconds since 1970), and the folders of each.

        With them the folder itself, and the one that names it: both may be new.
        """
        found, folders, pending = [], {folder, folder.rpartition("/")[0]}, [folder]
        while pending:
            parent = pending.pop()
            with suppress(FileNotFoundError), os.scandir(parent) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                    elif entry.stat(follow_symlinks=False).st_mtime_ns >= since * 1_000_000:
                        found.append(entry.path)
                        folders |= {parent, parent.rpartition("/")[0]}
        return [*found, *folders]


def _one_of_each_disk(locations: Collection[str]) -> Collection[str]:
    """A folder on each file system that has some of these files; folders that are gone need none."""
    found: dict[int, str] = {}
    for folder in {location.rpartition("/")[0] for location in locations}:
        with suppress(FileNotFoundError):
            found[os.stat(folder).st_dev] = folder  # noqa: PTH116  # a Path costs as much again
    return found.values()


def _sync_disk(folder: str) -> None:
    """Have all that was written to the file system of a folder survive a loss of power."""
    assert _LIBC is not None
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        if _LIBC.syncfs(descriptor):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), folder)
    finally:
        os.close(descriptor)


def _begin_to_write(location: str) -> bool:
    """Have the disk begin with what is not written of a file; whether it was told so.

    `sync` will say what goes wrong.
    """
    assert _LIBC is not None
    try:
        descriptor = os.open(location, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        status: int = _LIBC.sync_file_range(descriptor, ctypes.c_int64(0), ctypes.c_int64(0), _WRITE)
        return status == 0
    finally:
        os.close(descriptor)


def _sync(*locations: str) -> None:
    for location in locations:
        try:
            descriptor = os.open(location, os.O_RDONLY)
        except FileNotFoundError:
            continue
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
