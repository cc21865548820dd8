"""Lock tables by name between threads and processes, for changes that would only conflict with each other."""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO, TYPE_CHECKING

from lance_namespace.errors import ConcurrentModificationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_MIN_PAUSE_SECONDS = 0.0002
_MAX_PAUSE_SECONDS = 0.005
_PAUSE_SHARE = 0.2
"""The pause before a process tries again, as a share of the time that it has waited."""
_LOCK_FILES = 1024


class LockKind(StrEnum):
    """What a lock orders. Who holds one may only acquire one of a kind below it here, so that nobody waits in a circle.

    Each kind has lock files of its own: names share them, and a table's commits must never wait for its own changes.
    """

    CHANGES = "changes"
    """Changes of a table's rows that conflict with each other; named by `WriteTarget.key`."""
    COMMITS = "commits"
    """Commits that are rebased on the latest version; named by `WriteTarget.key`."""
    REFERENCES = "references"
    """Changes of the files of a table's tags and branches; named by location."""


class TooBusyError(ConcurrentModificationError):
    """A lock was not free in time."""

    def __init__(self) -> None:
        super().__init__("Other changes of this table are under way: try again in a moment.")


@dataclass(frozen=True, slots=True)
class AcquiredLock:
    """A lock that this process holds. The end of the process releases it, too."""

    _file: IO[str]

    def release(self) -> None:
        """Release the lock."""
        self._file.close()


class Locks:
    """Locks by name between the threads of this process and the processes of this machine.

    Between machines there is only Lance's own conflict detection.
    """

    def __init__(self) -> None:
        self._held: dict[tuple[LockKind, str], tuple[threading.Lock, int]] = {}
        self._lock = threading.Lock()
        self._folder = Path(tempfile.gettempdir()) / f"tiltyard-locks-{os.getuid()}"

    @contextmanager
    def hold(self, kind: LockKind, name: str, seconds: float) -> Iterator[None]:
        """Hold a lock during the block. Raises TooBusyError if it is not acquired within `seconds`."""
        deadline = time.monotonic() + seconds
        lock = self._thread_lock((kind, name))
        try:
            if not lock.acquire(timeout=max(seconds, 0)):
                raise TooBusyError
            try:
                with self._process_lock(kind, name, deadline):
                    yield
            finally:
                lock.release()
        finally:
            self._release_thread_lock((kind, name))

    def _thread_lock(self, key: tuple[LockKind, str]) -> threading.Lock:
        with self._lock:
            lock, users = self._held.get(key, (threading.Lock(), 0))
            self._held[key] = (lock, users + 1)
            return lock

    def _release_thread_lock(self, key: tuple[LockKind, str]) -> None:
        with self._lock:
            lock, users = self._held[key]
            if users == 1:
                del self._held[key]
            else:
                self._held[key] = (lock, users - 1)

    def try_acquire(self, name: str) -> AcquiredLock | None:
        """Acquire a lock without waiting; None if it is held. These locks are separate from those of `hold`."""
        file = self._lock_file("claim", name).open("w")
        if _try_lock(file):
            return AcquiredLock(file)
        file.close()
        return None

    def acquire_later(self, name: str, callback: Callable[[AcquiredLock], None]) -> None:
        """Acquire a lock of `try_acquire` once it is free, and pass it to `callback` in a new thread."""
        file = self._lock_file("claim", name).open("w")

        def wait() -> None:
            fcntl.flock(file, fcntl.LOCK_EX)
            callback(AcquiredLock(file))

        # Not a pool's thread: those are joined when the process ends, and another process may hold the lock for ever.
        threading.Thread(target=wait, name="claim", daemon=True).start()

    def _lock_file(self, kind: str, name: str) -> Path:
        """Map a name to one of a fixed number of files: two tables may share one, and then wait for each other."""
        number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4]) % _LOCK_FILES
        self._folder.mkdir(mode=0o700, exist_ok=True)
        return self._folder / f"{kind}-{number}"

    @contextmanager
    def _process_lock(self, kind: LockKind, name: str, deadline: float) -> Iterator[None]:
        started = time.monotonic()
        with self._lock_file(kind, name).open("w") as file:
            while not _try_lock(file):
                if (now := time.monotonic()) > deadline:
                    raise TooBusyError
                time.sleep(min(max(_MIN_PAUSE_SECONDS, (now - started) * _PAUSE_SHARE), _MAX_PAUSE_SECONDS))
            yield  # closing the file releases the lock


def _try_lock(file: IO[str]) -> bool:
    """Lock a file unless it is locked; return whether this process now holds it, until the file is closed."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
