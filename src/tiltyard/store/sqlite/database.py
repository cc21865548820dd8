"""SQLite: a pool of readers for threads, one reader with a shared snapshot for the event loop, and one writer."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar
from uuid import uuid4

from lance_namespace.errors import ServiceUnavailableError

from tiltyard.store.clock import DatabaseClock
from tiltyard.store.sqlite.connection import SqliteConnection
from tiltyard.store.sqlite.writer import Writer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tiltyard.store.backend import CallSoon, Connection

T = TypeVar("T")

IDLE_READERS = 128
"""Most idle connections in the pool: as many as read at once, up to this."""

NOW = "SELECT CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER)"

PROBE_BYTES = 256 << 10
"""What must fit on the disk for the database to count as ready."""

LOOP_CACHE_KIB = 8 << 10
"""Page cache of the event loop's reader: it holds the names of 100,000 tables."""


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
            self._reader.change("BEGIN")
            self._is_open = True
            self._call_soon(self._end)
        return fn(self._reader)

    def _end(self) -> None:
        self._is_open = False
        if self._reader.raw.in_transaction:  # unless a disk error has ended it already
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
        "columns": "SELECT name, lower(type) FROM pragma_table_info(?) ORDER BY cid",
        "last_id": "SELECT seq FROM sqlite_sequence WHERE name = ?",
        "forget_last_id": "DELETE FROM sqlite_sequence WHERE name = ?",
        "set_last_id": "INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)",
    }

    def __init__(self, path: Path, *, timeout: float = 30.0) -> None:
        """Open the file, or create it; a write waits for other processes for `timeout` seconds.

        Raises ServiceUnavailableError where the file cannot be opened.
        """
        self._path = path
        self._readers: list[SqliteConnection] = []
        self._snapshot: _Snapshot | None = None
        self._closed = False
        self._clock = DatabaseClock()
        self._writer = Writer(path, timeout)
        self.write(lambda _: None)

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
        reader.change("BEGIN")
        return fn(reader)

    def share_reads(self, call_soon: CallSoon) -> None:
        self._snapshot = _Snapshot(self._path, call_soon)

    def write(self, fn: Callable[[Connection], T]) -> T:
        return self._writer.write(fn)

    def write_statement(self, fn: Callable[[Connection], T]) -> T:
        """Run `fn` as any other write: SQLite would save nothing."""
        return self.write(fn)

    def clock(self) -> int:
        """Return the time in ms since 1970 by SQLite's clock, which is that of the machine."""
        if self._clock.is_due and not self._closed:
            self._clock.read(lambda: self.read(_read_clock))
        return self._clock()

    def gauges(self) -> Mapping[str, float]:
        return {"catalog writes waiting": self._writer.waiting}

    def ping(self) -> None:
        self.read(lambda connection: connection.row("SELECT count(*) FROM sqlite_master"))

    def check_disk_space(self) -> None:
        """Write a file of PROBE_BYTES beside the catalog's and delete it. Raises ServiceUnavailableError.

        A commit would not tell: the write-ahead log has room for small changes already.
        """
        probe = self._path.with_name(f"{self._path.name}-probe-{uuid4().hex}")
        try:
            try:
                probe.write_bytes(bytes(PROBE_BYTES))
            finally:
                probe.unlink(missing_ok=True)
        except OSError as error:
            error.filename = str(self._path)  # for the log: a failed write names no file
            raise ServiceUnavailableError(f"The catalog's database has no room: {error.strerror or error}.") from error

    def close(self) -> None:
        self._closed = True
        self._writer.close()
        self._readers.clear()  # a reader in use closes when its thread is done with it
        self._snapshot = None


def _read_clock(connection: Connection) -> int:
    row = connection.row(NOW)
    assert row is not None
    return int(row[0])
