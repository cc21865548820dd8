"""One at a time: changes of a table that would only undo each other's work."""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from lance_namespace.errors import ConcurrentModificationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_FIRST_PAUSE = 0.0002
_LONGEST_PAUSE = 0.005
_SHARE = 0.2
"""Of the time it has waited, a process waits so much longer before it looks again."""
_FILES = 1024


class TooBusyError(ConcurrentModificationError):
    """A lock was not free in time."""

    def __init__(self) -> None:
        super().__init__("Other changes of this table are under way: try again in a moment.")


@dataclass(frozen=True, slots=True)
class Claimed:
    """A lock that was free. The end of its process frees it too."""

    _file: IO[str]

    def release(self) -> None:
        """Free it for others."""
        self._file.close()


class Locks:
    """Locks by name, between the threads of this process and the processes of this machine.

    Between machines only Lance's own conflict detection stands.
    """

    def __init__(self) -> None:
        self._held: dict[str, tuple[threading.Lock, int]] = {}
        self._lock = threading.Lock()
        self._folder = Path(tempfile.gettempdir()) / f"tiltyard-locks-{os.getuid()}"

    @contextmanager
    def hold(self, name: str, seconds: float) -> Iterator[None]:
        """Hold a lock. Raises TooBusyError if it is not free within `seconds`."""
        deadline = time.monotonic() + seconds
        lock = self._enter(name)
        try:
            if not lock.acquire(timeout=max(seconds, 0)):
                raise TooBusyError
            try:
                with self._between_processes(name, deadline):
                    yield
            finally:
                lock.release()
        finally:
            self._leave(name)

    def _enter(self, name: str) -> threading.Lock:
        with self._lock:
            lock, users = self._held.get(name, (threading.Lock(), 0))
            self._held[name] = (lock, users + 1)
            return lock

    def _leave(self, name: str) -> None:
        with self._lock:
            lock, users = self._held[name]
            if users == 1:
                del self._held[name]
            else:
                self._held[name] = (lock, users - 1)

    def claim(self, name: str) -> Claimed | None:
        """A lock of those that nobody waits for, if it is free: None at once if not. `hold` has other ones."""
        file = self._file(name, "claim-").open("w")
        if _is_free(file):
            return Claimed(file)
        file.close()
        return None

    def claim_later(self, name: str, told: Callable[[Claimed], None]) -> None:
        """Have the same lock once it is free: `told` is called with it, in a thread of its own."""
        file = self._file(name, "claim-").open("w")

        def wait() -> None:
            fcntl.flock(file, fcntl.LOCK_EX)
            told(Claimed(file))

        # No pool's: those are waited for when the process ends, and another one may hold the lock for ever.
        threading.Thread(target=wait, name="claim", daemon=True).start()

    def _file(self, name: str, kind: str = "") -> Path:
        """One of a fixed number of files: two tables may share one, and then wait for each other."""
        number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4]) % _FILES
        self._folder.mkdir(mode=0o700, exist_ok=True)
        return self._folder / f"{kind}{number}"

    @contextmanager
    def _between_processes(self, name: str, deadline: float) -> Iterator[None]:
        began = time.monotonic()
        with self._file(name).open("w") as file:
            while not _is_free(file):
                if (now := time.monotonic()) > deadline:
                    raise TooBusyError
                time.sleep(min(max(_FIRST_PAUSE, (now - began) * _SHARE), _LONGEST_PAUSE))
            yield  # closing the file frees the lock


def _is_free(file: IO[str]) -> bool:
    """Whether nobody had the lock of a file; from now on this process has it, until the file is closed."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
