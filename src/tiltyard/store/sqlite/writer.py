"""The one writer of a catalog in SQLite: who finds nobody writing writes at once, and the others share a commit.

To wake another thread takes longer than most writes do. So that is left to those who come meanwhile: they wait in
line, and one thread commits for all of them, with one sync of the disk.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections import deque
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import TYPE_CHECKING, Any, TypeVar

from lance_namespace.errors import LanceNamespaceError, ServiceUnavailableError

from tiltyard.store.sqlite.connection import SqliteConnection

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tiltyard.store.backend import Connection

T = TypeVar("T")

GATHERED = 256
"""Most writes in one commit: bounds how long the first of them waits for the last."""


class _Write:
    """What is to be written, then its outcome; one that waits in line has a future."""

    __slots__ = ("error", "fn", "future", "result")

    def __init__(self, fn: Callable[[Connection], Any]) -> None:
        self.fn = fn
        self.future: Future[None] | None = None
        self.result: Any = None
        self.error: BaseException | None = None


class Writer:
    """Writes one file, beside other processes that do. Safe to use from several threads."""

    def __init__(self, path: Path, patience: float) -> None:
        """Open the file, made if it is missing; `patience` is how many seconds a write waits for others.

        Raises ServiceUnavailableError where the file cannot be opened.
        """
        self._path = path
        self._patience = patience
        self._line: deque[_Write] = deque()
        self._entrance = threading.Lock()
        self._ready = threading.Condition(self._entrance)
        self._busy = self._closed = False
        self._writing: int | None = None
        """The thread that writes."""
        self._connection: SqliteConnection | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise ServiceUnavailableError(
                f"The catalog's database cannot be opened: {path}: {error.strerror}."
            ) from error
        self._thread = threading.Thread(target=self._write_for_others, name="tiltyard-writer", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Writes that wait in line."""
        return len(self._line)

    def write(self, fn: Callable[[Connection], T]) -> T:
        """See `Database.write`."""
        if threading.get_ident() == self._writing:
            raise RuntimeError("a write inside a write would wait for itself")
        write = _Write(fn)
        here = False
        try:
            with self._entrance:
                if self._closed:
                    raise ServiceUnavailableError("The catalog's database is closed")
                if self._busy or self._line:
                    self._line_up(write)
                else:
                    here = self._busy = True
            if here and not self._write_here(write):
                with self._entrance:
                    self._line_up(write)
        finally:
            if here:
                self._step_back()
        if write.future is not None:
            self._wait_for(write.future)
        if write.error is not None:
            raise write.error
        result: T = write.result
        return result

    def close(self) -> None:
        """Finish what waits in line, and let go of the file."""
        with self._entrance:
            if self._closed:
                return
            self._closed = True
            self._ready.notify()
        self._thread.join()
        os.close(self._lock)

    def _line_up(self, write: _Write) -> None:
        write.future = Future()
        self._line.append(write)
        if not self._busy:  # else whoever writes calls the next one
            self._ready.notify()

    def _wait_for(self, future: Future[None]) -> None:
        try:
            future.result(self._patience)
        except FutureTimeoutError:
            if future.cancel():  # not begun, so it never will be
                raise ServiceUnavailableError("The catalog's database stays busy") from None
            future.result()

    def _write_here(self, write: _Write) -> bool:
        """Write for the caller alone, unless another process does: that may take long, and patience has an end."""
        # Processes that wait inside BEGIN IMMEDIATE starve each other; a file lock shares evenly.
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        try:
            self._commit([write])
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)
        return True

    def _step_back(self) -> None:
        with self._entrance:
            self._busy = False
            if self._line or self._closed:
                self._ready.notify()

    def _write_for_others(self) -> None:
        while self._comes_next():
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            try:
                batch = self._first_in_line()
                self._commit([write for write, _ in batch])
            finally:
                fcntl.flock(self._lock, fcntl.LOCK_UN)
            self._step_back()
            for _, future in batch:
                future.set_result(None)
        self._let_go()

    def _comes_next(self) -> bool:
        """Wait until there is a line, and nobody else writes. False once the end has come."""
        with self._entrance:
            while self._busy or not self._line:
                if self._closed and not self._busy:
                    return False
                self._ready.wait()
            self._busy = True
            return True

    def _first_in_line(self) -> list[tuple[_Write, Future[None]]]:
        """Those whose callers still wait."""
        with self._entrance:
            first = [self._line.popleft() for _ in range(min(len(self._line), GATHERED))]
        pairs = [(write, write.future) for write in first]
        return [(write, future) for write, future in pairs if future and future.set_running_or_notify_cancel()]

    def _commit(self, batch: list[_Write]) -> None:
        self._writing = threading.get_ident()
        try:
            if self._connection is None:
                self._connection = SqliteConnection(self._path, writer=True)
            self._connection.change("BEGIN IMMEDIATE")
            if len(batch) == 1:
                _attempt_alone(self._connection, batch[0])
                return
            for write in batch:
                _attempt(self._connection, write)
            self._connection.change("COMMIT")
        except Exception as error:  # noqa: BLE001 - whatever it was, every caller must be told
            self._let_go()  # which rolls back; the next batch starts afresh
            for write in batch:
                write.error = _unavailable(error)
        except BaseException:  # the caller's own thread is interrupted
            self._let_go()
            raise
        finally:
            self._writing = None

    def _let_go(self) -> None:
        if self._connection is not None:
            self._connection.raw.close()  # by hand: the traceback of an error may hold on to it
            self._connection = None


def _attempt(connection: SqliteConnection, write: _Write) -> None:
    """Run one write behind a savepoint, so that it fails alone."""
    connection.change("SAVEPOINT one")
    try:
        write.result = write.fn(connection)
    except BaseException as error:  # it belongs to the caller, not to this thread
        if not connection.raw.in_transaction:  # a full disk rolls back the whole batch by itself
            raise ServiceUnavailableError(f"The catalog's database gave up: {error}") from error
        write.error = error
        connection.change("ROLLBACK TO one")
    connection.change("RELEASE one")


def _attempt_alone(connection: SqliteConnection, write: _Write) -> None:
    """Run the only write of a transaction, and end that: it needs no savepoint."""
    try:
        write.result = write.fn(connection)
    except BaseException as error:  # it belongs to the caller, not to this thread
        if not connection.raw.in_transaction:
            raise ServiceUnavailableError(f"The catalog's database gave up: {error}") from error
        write.error = error
        connection.change("ROLLBACK")
    else:
        connection.change("COMMIT")


def _unavailable(error: Exception) -> LanceNamespaceError:
    failure = ServiceUnavailableError(f"The catalog's database did not commit: {error}")
    failure.__cause__ = error
    return failure
