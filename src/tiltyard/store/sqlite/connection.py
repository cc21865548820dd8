"""Connections to a catalog in SQLite, which translate sqlite3's errors into the store's; those that read it, for all
threads and for an event loop.
"""

from __future__ import annotations

import sqlite3
import threading
from typing import TYPE_CHECKING, NoReturn, TypeVar

import msgspec
from lance_namespace.errors import InvalidInputError, ServiceUnavailableError

from tiltyard.runtime.failpoints import Point, reach
from tiltyard.store.backend import ForeignKeyError, NullError, Row, UniqueError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from tiltyard.store.backend import CallSoon, Connection

T = TypeVar("T")

BUSY_SECONDS = 10.0
"""How long a statement waits for a lock that a program other than this server holds."""

STATEMENTS = 256
"""Prepared statements cached by each connection."""

WAL_BYTES = 64 << 20
"""Size to which the write-ahead log is truncated after a large transaction."""

IDLE_READERS = 128
"""Most idle connections in the pool: as many as read at once, up to this."""

LOOP_CACHE_KIB = 8 << 10
"""Page cache of the event loop's reader: it holds the names of 100,000 tables."""


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


_texts = msgspec.json.Decoder(list[str])


def raise_translated(error: Exception) -> NoReturn:
    """Raise the store's error for one of sqlite3's; an unknown one is a bug and is raised as it is."""
    if isinstance(error, sqlite3.Error):
        name = getattr(error, "sqlite_errorname", "")
        if name in UNIQUE:
            raise UniqueError(str(error)) from error
        if name == "SQLITE_CONSTRAINT_FOREIGNKEY":
            raise ForeignKeyError(str(error)) from error
        if name == "SQLITE_CONSTRAINT_NOTNULL":
            raise NullError(str(error)) from error
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in UNAVAILABLE:
            raise ServiceUnavailableError(f"The catalog's database is not available: {error}") from error
        if code == sqlite3.SQLITE_TOOBIG:
            raise InvalidInputError("A value is too long for the catalog's database") from error
    if isinstance(error, (UnicodeEncodeError, OverflowError)):
        raise InvalidInputError(f"A value cannot be kept in the catalog's database: {error}") from error
    raise error


def _as_array(sql: str) -> str:
    """Return the statement that reads a column `text` as one JSON array."""
    return f"SELECT json_group_array(text) FROM ({sql})"  # noqa: S608 - a constant of the code


class SqliteConnection:
    """A `Connection` over sqlite3. It closes when the last reference to it goes."""

    def __init__(self, path: Path, *, writer: bool) -> None:
        """Open the file. Raises ServiceUnavailableError where that fails."""
        try:
            # One thread at a time uses a connection, but another may drop the last reference to it.
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
                self.raw.execute("PRAGMA secure_delete = ON")  # what is deleted is overwritten
                self.raw.execute(f"PRAGMA journal_size_limit = {WAL_BYTES}")
            else:
                self.raw.execute("PRAGMA query_only = ON")
        except sqlite3.Error as error:
            raise_translated(error)

    def __del__(self) -> None:
        """Close the connection, in whichever thread this happens."""
        if raw := getattr(self, "raw", None):
            raw.close()

    def row(self, sql: str, *values: object) -> Row | None:
        try:
            row: Row | None = self.raw.execute(sql, values).fetchone()
        except Exception as error:  # noqa: BLE001 - `raise_translated` raises them all again
            raise_translated(error)
        else:
            return row

    def rows(self, sql: str, *values: object) -> list[Row]:
        try:
            return self.raw.execute(sql, values).fetchall()
        except Exception as error:  # noqa: BLE001 - `raise_translated` raises them all again
            raise_translated(error)

    def texts(self, sql: str, *values: object) -> list[str]:
        """Return the column as one JSON array: for each row, sqlite3 releases and takes the interpreter's lock."""
        row = self.row(_as_array(sql), *values)
        assert row is not None  # an aggregate of no rows is a row
        return _texts.decode(row[0])

    def pages(self, sql: str, size: int) -> Iterator[list[Row]]:
        try:
            cursor = self.raw.execute(sql)
            while rows := cursor.fetchmany(size):
                yield rows
        except sqlite3.Error as error:
            raise_translated(error)

    def change(self, sql: str, *values: object) -> int:
        reach(Point.WRITE)
        try:
            return self.raw.execute(sql, values).rowcount
        except Exception as error:  # noqa: BLE001 - `raise_translated` raises them all again
            raise_translated(error)

    def change_many(self, sql: str, values: Iterable[Row]) -> None:
        reach(Point.WRITE)
        try:
            self.raw.executemany(sql, values)
        except Exception as error:  # noqa: BLE001 - `raise_translated` raises them all again
            raise_translated(error)


class _Snapshot:
    """One read transaction for consecutive reads of an event loop: to begin and end one takes longer than a read.

    It ends in a callback of the loop, which runs callbacks in the order in which they became ready. So each callback
    that reads in it was ready before the snapshot was taken, and misses no write that it could know of.
    """

    def __init__(self, path: Path, call_soon: CallSoon) -> None:
        """Open the file. Raises ServiceUnavailableError where that fails."""
        self.thread = threading.get_ident()
        self._call_soon = call_soon
        self._is_open = False
        self._reader = SqliteConnection(path, writer=False)
        self._reader.row(f"PRAGMA cache_size = -{LOOP_CACHE_KIB}")

    def read(self, fn: Callable[[Connection], T]) -> T:
        """Run `fn` in the snapshot; only for the loop's thread."""
        if not self._is_open:
            self._reader.row("BEGIN")  # nothing is written: no point of a fault
            self._is_open = True
            self._call_soon(self._end)
        return fn(self._reader)

    def _end(self) -> None:
        self._is_open = False
        if self._reader.raw.in_transaction:  # unless a disk error has ended it already
            self._reader.row("COMMIT")


class Readers:
    """The connections that read a catalog: a pool for threads, and one with a shared snapshot for an event loop."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._readers: list[SqliteConnection] = []
        self._snapshot: _Snapshot | None = None
        self._closed = False

    def read(self, fn: Callable[[Connection], T]) -> T:
        """Run `fn` on a reader of the pool, or in the event loop's snapshot.

        Readers do not belong to threads: Lance's callbacks are new threads to Python each time, and to open the file
        takes longer than most reads.
        """
        snapshot = self._snapshot
        if snapshot is not None and snapshot.thread == threading.get_ident():
            return snapshot.read(fn)
        try:
            reader = self._readers.pop()  # the last one used, whose pages and statements are cached
        except IndexError:
            if self._closed:
                raise ServiceUnavailableError("The catalog's database is closed") from None
            reader = SqliteConnection(self._path, writer=False)
        try:
            return fn(reader)
        finally:
            if len(self._readers) < IDLE_READERS and not self._closed:
                self._readers.append(reader)

    def read_snapshot(self, fn: Callable[[Connection], T]) -> T:
        """Run `fn` on a connection of its own: a snapshot may be read for long."""
        reader = SqliteConnection(self._path, writer=False)
        reader.row("BEGIN")
        return fn(reader)

    def share_reads(self, call_soon: CallSoon) -> None:
        self._snapshot = _Snapshot(self._path, call_soon)

    def close(self) -> None:
        """Close the connections that nobody uses; a reader in use closes when its thread is done with it."""
        self._closed = True
        self._readers.clear()
        self._snapshot = None
