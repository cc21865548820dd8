"""Fsync files and folders on local disks, so that they survive a loss of power."""

from __future__ import annotations

import ctypes
import os
import re
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from tiltyard.runtime.background_thread import run_in_background
from tiltyard.storage.files import LocalFiles

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

_THREADS = 8
"""Files synced concurrently."""
_SYNCFS_THRESHOLD = 64
"""From so many paths on, whole file systems are synced: one journal transaction then, instead of one for each."""
WRITE_BACK_SECONDS = 0.2
"""How often write-back is started for files that are being written."""
_SYNC_FILE_RANGE_WRITE = 2
"""A flag of sync_file_range(2): start writing dirty pages, without waiting."""
_MIN_LINUX = 5, 8
"""The first Linux whose syncfs reports write errors."""


def _libc() -> ctypes.CDLL | None:
    """Load the C library; None where its syncfs does not report errors."""
    release = [int(number) for number in re.findall(r"\d+", os.uname().release)[:2]]
    return ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" and tuple(release) >= _MIN_LINUX else None


_LIBC = _libc()


class DiskSync:
    """Fsync for the local disks of this machine, or file systems mounted like one. Safe to use from several threads."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, "sync")

    @contextmanager
    def syncing(self, locations: Sequence[str]) -> Iterator[None]:
        """Fsync files and folders in the background while the block runs; wait for it at the end of the block.

        Ignores missing ones. Concurrent fsyncs share a disk's writes: that takes a fraction of the time.
        """
        if not locations:
            yield
            return
        share = -(-len(locations) // _THREADS)
        parts = [locations[start : start + share] for start in range(0, len(locations), share)]
        running = [self._start_syncing(part) for part in parts]
        try:
            yield
        finally:
            for future in running:
                future.result()

    def _start_syncing(self, locations: Sequence[str]) -> Future[None]:
        try:
            return self._threads.submit(_sync, *locations)
        except RuntimeError:  # the interpreter shuts down, and its pools take no more work
            _sync(*locations)
            done = Future[None]()
            done.set_result(None)
            return done

    def sync(self, locations: Collection[str]) -> None:
        """Fsync files and folders, and wait for it; for many of them, sync their whole file systems instead."""
        if len(locations) < _SYNCFS_THRESHOLD or _LIBC is None:
            with self.syncing(list(locations)):
                return
        for folder in _folder_per_disk(locations):
            _sync_disk(folder)

    @contextmanager
    def writing_back(self, folder: str) -> Iterator[None]:
        """Start write-back of a folder's new files while the block writes them: less is left for `sync`.

        Linux starts it by itself only when a tenth of the memory is dirty; until then the disk would be idle.
        """
        if _LIBC is None or not hasattr(_LIBC, "sync_file_range"):
            yield
            return
        list_names = LocalFiles().list_names
        old_names = set(list_names(folder))

        def write_back(done: threading.Event) -> None:
            while not done.wait(WRITE_BACK_SECONDS):
                for name in set(list_names(folder)) - old_names:
                    _start_write_back(f"{folder}/{name}")

        with run_in_background("write-back", write_back):
            yield

    def list_written(self, folder: str, since: int) -> list[str]:
        """List files below a folder that were written since a time (milliseconds since 1970), and their folders.

        The list has the folder itself, and its parent: both names may be new.
        """
        files, folders, pending = [], {folder, folder.rpartition("/")[0]}, [folder]
        while pending:
            parent = pending.pop()
            with suppress(FileNotFoundError), os.scandir(parent) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                    elif entry.stat(follow_symlinks=False).st_mtime_ns >= since * 1_000_000:
                        files.append(entry.path)
                        folders |= {parent, parent.rpartition("/")[0]}
        return [*files, *folders]


def _folder_per_disk(locations: Collection[str]) -> Collection[str]:
    """Return one folder on each file system that has some of these files; ignore deleted folders."""
    folders: dict[int, str] = {}
    for folder in {location.rpartition("/")[0] for location in locations}:
        with suppress(FileNotFoundError):
            folders[os.stat(folder).st_dev] = folder  # noqa: PTH116  # a Path costs as much again
    return folders.values()


def _sync_disk(folder: str) -> None:
    """Sync the file system of a folder with syncfs(2)."""
    assert _LIBC is not None
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        if _LIBC.syncfs(descriptor):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), folder)
    finally:
        os.close(descriptor)


def _start_write_back(location: str) -> bool:
    """Start write-back of a file's dirty pages; return whether the system accepted it.

    A failed write is reported by `sync`.
    """
    assert _LIBC is not None
    try:
        descriptor = os.open(location, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        status: int = _LIBC.sync_file_range(descriptor, ctypes.c_int64(0), ctypes.c_int64(0), _SYNC_FILE_RANGE_WRITE)
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
