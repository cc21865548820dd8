"""Temporary folders that belong to a process, and go with it; and files that it passes to its children.

A folder's owner holds a lock of a file in it for as long as it lives. The kernel releases the lock with the process,
however that ends, so a folder whose lock can be had belongs to nobody.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

_LOCK = "owner.lock"
_UNFINISHED = "new-"
"""Begins the name of a folder that has no locked file yet, so that nobody takes it for one without an owner."""

log = logging.getLogger("tiltyard")


class OwnedFolder:
    """A folder that this process owns until it is removed; only this user can enter it. Thread-safe."""

    def __init__(self, prefix: str, parent: str | None = None) -> None:
        """Make a folder whose name begins so, in `parent` or where temporary files are. Raises OSError.

        Those of the same prefix whose owners have ended are removed first.
        """
        self._prefix = prefix
        self._root = Path(parent or tempfile.gettempdir())
        self._making = threading.Lock()
        remove_abandoned(prefix, self._root)
        self._path, self._lock = self._make()

    @property
    def path(self) -> Path:
        """Return where it is; it is made again if somebody has removed it, or its lock. Raises OSError."""
        with self._making:
            if self._lock >= 0 and not (self._path / _LOCK).exists():
                log.warning("%s was removed by another process: making it again", self._path)
                os.close(self._lock)
                shutil.rmtree(self._path, ignore_errors=True)
                self._path, self._lock = self._make()
            return self._path

    def remove(self) -> None:
        """Remove it, with all that is in it. Idempotent."""
        with self._making:
            shutil.rmtree(self._path, ignore_errors=True)
            lock, self._lock = self._lock, -1
            if lock >= 0:
                os.close(lock)

    def _make(self) -> tuple[Path, int]:
        unfinished = Path(tempfile.mkdtemp(prefix=f"{_UNFINISHED}{self._prefix}", dir=self._root))
        lock = os.open(unfinished / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        return unfinished.rename(self._root / unfinished.name.removeprefix(_UNFINISHED)), lock


def remove_abandoned(prefix: str, root: Path) -> None:
    """Remove the folders of this user below `root` whose names begin so and whose owners have ended."""
    with suppress(OSError):
        for folder in root.iterdir():
            if folder.name.startswith(prefix) and _is_abandoned(folder):
                log.info("removing %s, which a process has left that was killed", folder)
                shutil.rmtree(folder, ignore_errors=True)


def _is_abandoned(folder: Path) -> bool:
    """Return whether a folder was owned by a process of this user that has ended."""
    try:
        if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
            return False
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(lock)


@contextmanager
def shared_file(variable: str, content: bytes) -> Iterator[None]:
    """Create a file for the processes that are started in the block; the environment variable has its path."""
    with TemporaryDirectory(prefix="tiltyard-shared-") as folder:
        file = Path(folder) / "file"
        file.write_bytes(content)
        os.environ[variable] = str(file)
        try:
            yield
        finally:
            del os.environ[variable]
