"""The writer of a catalog in SQLite, with group commit.

A thread that finds the writer idle writes by itself, since to wake another thread takes longer than most writes. Writes
that arrive meanwhile wait in a queue, and one thread commits all of them together, with one sync of the disk.
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

from tiltyard.runtime.batcher import WorkQueue
from tiltyard.runtime.durability import Durability
from tiltyard.store.sqlite.connection import SqliteConnection

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tiltyard.store.backend import Connection

T = TypeVar("T")

GROUP_SIZE = 256
"""Most writes in one commit: bounds how long the first of them waits for the last."""


class _Write:
    """A write and its outcome; one that waits in the queue has a future."""

    __slots__ = ("error", "fn", "future", "result")

    def __init__(self, fn: Callable[[Connection], Any]) -> None:
        self.fn = fn
        self.future: Future[None] | None = None
        self.result: Any = None
        self.error: BaseException | None = None


class Writer(WorkQueue):
    """Writes one file that other processes write, too. Safe to use from several threads."""

    def __init__(self, path: Path, timeout: float) -> None:
        """Open the file, or create it; a write waits in the queue for `timeout` seconds.

        Raises ServiceUnavailableError where the file cannot be opened.
        """
        self._path = path
        self._timeout = timeout
        self._queue: deque[_Write] = deque()
        self._mutex = threading.Lock()
        self._wake = threading.Condition(self._mutex)
        self._busy = self._closed = False
        self._writing: int | None = None
        """The id of the thread that writes, while one does."""
        self._connection: SqliteConnection | None = None
        try:
            Durability().make_folder(str(path.parent))
            self._lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise ServiceUnavailableError(
                f"The catalog's database cannot be opened: {path}: {error.strerror}."
            ) from error
        super().__init__("catalog writes", "Writes of the catalog in SQLite at once, which become one commit")
        self._thread = threading.Thread(target=self._commit_queue, name="tiltyard-writer", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """The number of writes in the queue."""
        return len(self._queue)

    def write(self, fn: Callable[[Connection], T]) -> T:
        """Run `fn` in a transaction, alone or with others of the queue; return its result once that is durable."""
        if threading.get_ident() == self._writing:
            raise RuntimeError("a write inside a write would wait for itself")
        write = _Write(fn)
        runs_here = False
        try:
            with self._mutex:
                if self._closed:
                    raise ServiceUnavailableError("The catalog's database is closed")
                if self._busy or self._queue:
                    self._enqueue(write)
                else:
                    runs_here = self._busy = True
            if runs_here and not self._write_here(write):
                with self._mutex:
                    self._enqueue(write)
        finally:
            if runs_here:
                self._release()
        if write.future is not None:
            self._wait_for(write.future)
        if write.error is not None:
            raise write.error
        result: T = write.result
        return result

    def close(self) -> None:
        """Commit what is in the queue, and close the file."""
        with self._mutex:
            if self._closed:
                return
            self._closed = True
            self._wake.notify()
        self._thread.join()
        os.close(self._lock)

    def _enqueue(self, write: _Write) -> None:
        write.future = Future()
        self._queue.append(write)
        if not self._busy:  # else the thread that writes wakes the next one
            self._wake.notify()

    def _wait_for(self, future: Future[None]) -> None:
        try:
            future.result(self._timeout)
        except FutureTimeoutError:
            if future.cancel():  # not begun, and now it never will be
                raise ServiceUnavailableError("The catalog's database stays busy") from None
            future.result()

    def _write_here(self, write: _Write) -> bool:
        """Commit one write in the calling thread; return False if another process holds the file.

        Then the write is queued, since that may take long, and only the queue has a timeout.
        """
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

    def _release(self) -> None:
        with self._mutex:
            self._busy = False
            if self._queue or self._closed:
                self._wake.notify()

    def _commit_queue(self) -> None:
        while self._wait_for_turn():
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            try:
                batch = self._take_group()
                self._commit([write for write, _ in batch])
            finally:
                fcntl.flock(self._lock, fcntl.LOCK_UN)
            self._release()
            for _, future in batch:
                future.set_result(None)
        self._close_connection()

    def _wait_for_turn(self) -> bool:
        """Wait until the queue has writes and no other thread writes. Return False once the writer is closed."""
        with self._mutex:
            while self._busy or not self._queue:
                if self._closed and not self._busy:
                    return False
                self._wake.wait()
            self._busy = True
            return True

    def _take_group(self) -> list[tuple[_Write, Future[None]]]:
        """Take the next writes off the queue, but those whose callers have timed out."""
        with self._mutex:
            writes = [self._queue.popleft() for _ in range(min(len(self._queue), GROUP_SIZE))]
        pairs = [(write, write.future) for write in writes]
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
        except Exception as error:  # noqa: BLE001 - whatever it was, it is raised to every caller
            self._close_connection()  # which rolls back; the next batch opens a new one
            for write in batch:
                write.error = _unavailable(error)
        except BaseException:  # the caller's thread is interrupted
            self._close_connection()
            raise
        finally:
            self._writing = None

    def _close_connection(self) -> None:
        if self._connection is not None:
            self._connection.raw.close()  # explicitly: the traceback of an error may refer to it
            self._connection = None


def _attempt(connection: SqliteConnection, write: _Write) -> None:
    """Run one write of a group in a savepoint, so that its failure leaves the others."""
    connection.change("SAVEPOINT one")
    try:
        write.result = write.fn(connection)
    except BaseException as error:  # it is raised in the caller's thread
        if not connection.raw.in_transaction:  # a full disk rolls back the whole batch by itself
            raise ServiceUnavailableError(f"The catalog's database rolled the write back: {error}") from error
        write.error = error
        connection.change("ROLLBACK TO one")
    connection.change("RELEASE one")


def _attempt_alone(connection: SqliteConnection, write: _Write) -> None:
    """Run the only write of a transaction and end that; it needs no savepoint."""
    try:
        write.result = write.fn(connection)
    except BaseException as error:  # it is raised in the caller's thread
        if not connection.raw.in_transaction:
            raise ServiceUnavailableError(f"The catalog's database rolled the write back: {error}") from error
        write.error = error
        connection.change("ROLLBACK")
    else:
        connection.change("COMMIT")


def _unavailable(error: Exception) -> LanceNamespaceError:
    failure = ServiceUnavailableError(f"The catalog's database did not commit: {error}")
    failure.__cause__ = error
    return failure
