"""SQLite: a reader for whoever reads at the moment, and one writer that gathers waiting writes into one commit."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from lance_namespace.errors import InvalidInputError, LanceNamespaceError, ServiceUnavailableError

from tiltyard.store.database import Connection, ForeignKeyError, Row, Soon, UniqueError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

T = TypeVar("T")

BUSY_SECONDS = 10.0
"""How long a statement waits for a lock that someone outside this server holds."""

GATHERED = 256
"""Most writes in one commit: bounds how long the first of them waits for the last."""

IDLE_READERS = 128
"""Most connections kept for who reads next: as many as read at once, up to this."""

LOOP_CACHE_KIB = 8 << 10
"""Pages that the reader of an event loop keeps: the names of 100,000 tables are among them."""

STATEMENTS = 256
"""Prepared statements kept by each connection."""

WAL_BYTES = 64 << 20
"""What is kept of the write-ahead log once a large transaction is in the file."""

UNAVAILABLE = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_NOTADB,
}
UNIQUE = {"SQLITE_CONSTRAINT_UNIQUE", "SQLITE_CONSTRAINT_PRIMARYKEY"}


def refuse(error: Exception) -> NoReturn:
    """Raise ours for an error of sqlite3's; one that we do not know is a bug and goes on as it is."""
    if isinstance(error, sqlite3.Error):
        name = getattr(error, "sqlite_errorname", "")
        if name in UNIQUE:
            raise UniqueError(str(error)) from error
        if name == "SQLITE_CONSTRAINT_FOREIGNKEY":
            raise ForeignKeyError(str(error)) from error
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in UNAVAILABLE:
            raise ServiceUnavailableError(f"The catalog's database is not available: {error}") from error
        if code == sqlite3.SQLITE_TOOBIG:
            raise InvalidInputError("A value is too long for the catalog's database") from error
    if isinstance(error, (UnicodeEncodeError, OverflowError)):
        raise InvalidInputError(f"A value cannot be kept in the catalog's database: {error}") from error
    raise error


class SqliteConnection:
    """A `Connection` over sqlite3. Closes itself when the last one to hold it lets go."""

    def __init__(self, path: Path, *, writer: bool) -> None:
        """Open the file. Raises ServiceUnavailableError where that fails."""
        try:
            # One thread at a time uses a connection, but another may be the one that drops it.
            self.raw = sqlite3.connect(
                path,
                timeout=BUSY_SECONDS,
                isolation_level=None,
                cached_statements=STATEMENTS,
                check_same_thread=False,
            )
            if writer:
                self.raw.execute("PRAGMA journal_mode = WAL")
                self.raw.execute("PRAGMA synchronous = FULL")  # NORMAL loses acknowledged commits with the power
                self.raw.execute("PRAGMA foreign_keys = ON")
                self.raw.execute(f"PRAGMA journal_size_limit = {WAL_BYTES}")
            else:
                self.raw.execute("PRAGMA query_only = ON")
        except sqlite3.Error as error:
            refuse(error)

    def __del__(self) -> None:
        """Close the connection, in whichever thread this happens."""
        if raw := getattr(self, "raw", None):
            raw.close()

    def row(self, sql: str, *values: object) -> Row | None:
        """See `Connection.row`."""
        try:
            row: Row | None = self.raw.execute(sql, values).fetchone()
        except Exception as error:  # noqa: BLE001 - `refuse` raises them all again
            refuse(error)
        else:
            return row

    def rows(self, sql: str, *values: object) -> list[Row]:
        """See `Connection.rows`."""
        try:
            return self.raw.execute(sql, values).fetchall()
        except Exception as error:  # noqa: BLE001 - `refuse` raises them all again
            refuse(error)

    def change(self, sql: str, *values: object) -> int:
        """See `Connection.change`."""
        try:
            return self.raw.execute(sql, values).rowcount
        except Exception as error:  # noqa: BLE001 - `refuse` raises them all again
            refuse(error)

    def change_many(self, sql: str, values: Iterable[Row]) -> None:
        """See `Connection.change_many`."""
        try:
            self.raw.executemany(sql, values)
        except Exception as error:  # noqa: BLE001 - `refuse` raises them all again
            refuse(error)


class _Write:
    """A write that waits for the writer, then its outcome."""

    __slots__ = ("error", "fn", "future", "result")

    def __init__(self, fn: Callable[[Connection], Any]) -> None:
        self.fn = fn
        self.future: Future[Any] = Future()
        self.result: Any = None
        self.error: BaseException | None = None

    def answer(self) -> None:
        if self.error is None:
            self.future.set_result(self.result)
        else:
            self.future.set_exception(self.error)


class _Snapshot:
    """One read transaction for all reads that an event loop makes in a row: to begin and end one takes longer.

    It ends as a callback of the loop, which runs callbacks in the order in which they became ready. So whatever reads
    in it was ready before the snapshot was taken, and misses nothing that it could know of.
    """

    def __init__(self, path: Path, soon: Soon) -> None:
        """Open the file. Raises ServiceUnavailableError where that fails."""
        self.thread = threading.get_ident()
        self._soon = soon
        self._begun = False
        self._reader = SqliteConnection(path, writer=False)
        self._reader.row(f"PRAGMA cache_size = -{LOOP_CACHE_KIB}")

    def read(self, fn: Callable[[Connection], T]) -> T:
        """See `Database.read`; for the loop's thread alone."""
        if not self._begun:
            self._reader.change("BEGIN")
            self._begun = True
            self._soon(self._end)
        return fn(self._reader)

    def _end(self) -> None:
        self._begun = False
        if self._reader.raw.in_transaction:  # an error of the disk has ended it already
            self._reader.change("COMMIT")


class SqliteDatabase:
    """A catalog in one SQLite file, which several processes of one machine may share."""

    inline_reads = True
    dialect: Mapping[str, str] = {
        "id": "INTEGER PRIMARY KEY AUTOINCREMENT",
        "text": "TEXT",
        "bytes": "BLOB",
        "lock_migrations": "SELECT 1",
        "has_migrations": "SELECT EXISTS (SELECT 1 FROM sqlite_master WHERE name = 'schema_migrations')",
    }

    def __init__(self, path: Path, *, patience: float = 30.0) -> None:
        """Open the file, made if it is missing.

        `patience` is how many seconds a write waits while other processes hold the file.
        Raises ServiceUnavailableError where the file cannot be opened.
        """
        self._path = path
        self._patience = patience
        self._readers: list[SqliteConnection] = []
        self._snapshot: _Snapshot | None = None
        self._queue: SimpleQueue[_Write | None] = SimpleQueue()
        self._entrance = threading.Lock()
        self._closed = False
        self._writer: SqliteConnection | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise ServiceUnavailableError(
                f"The catalog's database cannot be opened: {path}: {error.strerror}."
            ) from error
        self._thread = threading.Thread(target=self._write_on, name="tiltyard-writer", daemon=True)
        self._thread.start()
        self.write(lambda _: None)

    def read(self, fn: Callable[[Connection], T]) -> T:
        """See `Database.read`.

        Connections belong to no thread: where Lance calls back, each call is a new one to Python, and to open the file
        takes longer than what most reads do.
        """
        snapshot = self._snapshot
        if snapshot is not None and snapshot.thread == threading.get_ident():
            return snapshot.read(fn)
        try:
            reader = self._readers.pop()  # the last one used, whose pages and statements are at hand
        except IndexError:
            if self._closed:
                raise ServiceUnavailableError("The catalog's database is closed") from None
            reader = SqliteConnection(self._path, writer=False)
        try:
            return fn(reader)
        finally:
            if len(self._readers) < IDLE_READERS and not self._closed:
                self._readers.append(reader)

    def share_reads(self, soon: Soon) -> None:
        """See `Database.share_reads`."""
        self._snapshot = _Snapshot(self._path, soon)

    def write(self, fn: Callable[[Connection], T]) -> T:
        """See `Database.write`."""
        if threading.current_thread() is self._thread:
            raise RuntimeError("a write inside a write would wait for itself")
        write = _Write(fn)
        with self._entrance:
            if self._closed:
                raise ServiceUnavailableError("The catalog's database is closed")
            self._queue.put(write)
        try:
            result: T = write.future.result(self._patience)
        except FutureTimeoutError:
            if write.future.cancel():  # not begun, so it never will be
                raise ServiceUnavailableError("The catalog's database stays busy") from None
            result = write.future.result()
        return result

    def write_alone(self, fn: Callable[[Connection], T]) -> T:
        """See `Database.write_alone`: no less than another write here."""
        return self.write(fn)

    def load(self) -> Mapping[str, float]:
        """See `Database.load`."""
        return {"catalog writes waiting": self._queue.qsize()}

    def ping(self) -> None:
        """See `Database.ping`."""
        self.read(lambda connection: connection.row("SELECT count(*) FROM sqlite_master"))

    def close(self) -> None:
        """See `Database.close`."""
        with self._entrance:
            if self._closed:
                return
            self._closed = True
            self._queue.put(None)
        self._thread.join()
        self._readers.clear()  # a reader in use closes when whoever reads is done with it
        self._snapshot = None
        os.close(self._lock)

    def _write_on(self) -> None:
        while (first := self._queue.get()) is not None:
            with self._alone():
                batch = [write for write in self._gather(first) if write.future.set_running_or_notify_cancel()]
                self._commit(batch)
            for write in batch:
                write.answer()
        self._let_go()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        # Processes that wait inside BEGIN IMMEDIATE starve each other; a file lock shares evenly.
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _gather(self, first: _Write) -> list[_Write]:
        batch = [first]
        try:
            while len(batch) < GATHERED:
                if (write := self._queue.get_nowait()) is None:
                    self._queue.put(None)  # nothing follows it: leave it for the loop to end on
                    break
                batch.append(write)
        except Empty:
            pass
        return batch

    def _commit(self, batch: list[_Write]) -> None:
        try:
            if self._writer is None:
                self._writer = SqliteConnection(self._path, writer=True)
            self._writer.change("BEGIN IMMEDIATE")
            if len(batch) == 1:
                _attempt_alone(self._writer, batch[0])
                return
            for write in batch:
                _attempt(self._writer, write)
            self._writer.change("COMMIT")
        except Exception as error:  # noqa: BLE001 - whatever it was, every caller must be told
            self._let_go()  # which rolls back; the next batch starts afresh
            for write in batch:
                write.error = _unavailable(error)

    def _let_go(self) -> None:
        if self._writer is not None:
            self._writer.raw.close()  # by hand: the traceback of an error may hold on to it
            self._writer = None


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
