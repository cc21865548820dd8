"""SQLite: a reader for whoever reads at the moment, one snapshot for an event loop, and one writer."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar
from uuid import uuid4

from lance_namespace.errors import ServiceUnavailableError

from tiltyard.store.sqlite.connection import SqliteConnection
from tiltyard.store.sqlite.writer import Writer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tiltyard.store.backend import CallSoon, Connection

T = TypeVar("T")

IDLE_READERS = 128
"""Most connections kept for who reads next: as many as read at once, up to this."""

ROOM_BYTES = 256 << 10
"""What has to fit beside the file for the database to count as ready."""

LOOP_CACHE_KIB = 8 << 10
"""Pages that the reader of an event loop keeps: the names of 100,000 tables are among them."""


class _Snapshot:
    """One read transaction for all reads that an event loop makes in a row: to begin and end one takes longer.

    It ends as a callback of the loop, which runs callbacks in the order in which they became ready. So whatever reads
    in it was ready before the snapshot was taken, and misses nothing that it could know of.
    """

    def __init__(self, path: Path, soon: CallSoon) -> None:
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
        self._readers: list[SqliteConnection] = []
        self._snapshot: _Snapshot | None = None
        self._closed = False
        self._writer = Writer(path, patience)
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

    def share_reads(self, soon: CallSoon) -> None:
        """See `Database.share_reads`."""
        self._snapshot = _Snapshot(self._path, soon)

    def write(self, fn: Callable[[Connection], T]) -> T:
        """See `Database.write`."""
        return self._writer.write(fn)

    def write_statement(self, fn: Callable[[Connection], T]) -> T:
        """See `Database.write_alone`: no less than another write here."""
        return self.write(fn)

    def gauges(self) -> Mapping[str, float]:
        """See `Database.gauges`."""
        return {"catalog writes waiting": self._writer.waiting}

    def ping(self) -> None:
        """See `Database.ping`."""
        self.read(lambda connection: connection.row("SELECT count(*) FROM sqlite_master"))

    def check_disk_space(self) -> None:
        """See `Database.check_room`: a file of some size is written beside the catalog's, and deleted.

        To commit something would not do: the write-ahead log has room from before for small changes.
        """
        probe = self._path.with_name(f"{self._path.name}-probe-{uuid4().hex}")
        try:
            try:
                probe.write_bytes(bytes(ROOM_BYTES))
            finally:
                probe.unlink(missing_ok=True)
        except OSError as error:
            error.filename = str(self._path)  # for the log: a write that fails names no file
            raise ServiceUnavailableError(f"The catalog's database has no room: {error.strerror or error}.") from error

    def close(self) -> None:
        """See `Database.close`."""
        self._closed = True
        self._writer.close()
        self._readers.clear()  # a reader in use closes when whoever reads is done with it
        self._snapshot = None
