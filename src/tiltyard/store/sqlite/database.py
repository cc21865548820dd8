"""SQLite: readers (`connection`), one writer (`writer`), and the clock and the disk of the machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar
from uuid import uuid4

from lance_namespace.errors import ServiceUnavailableError

from tiltyard.store.clock import DatabaseClock
from tiltyard.store.sqlite.connection import Readers, SqliteConnection
from tiltyard.store.sqlite.writer import Writer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tiltyard.store.backend import Connection

T = TypeVar("T")

NOW = "SELECT CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER)"

PROBE_BYTES = 256 << 10
"""What must fit on the disk for the database to count as ready."""
PURGE_ATTEMPTS = 3
"""How often the end of the write-ahead log is tried: each waits for readers and writers, as a write does."""


class SqliteDatabase(Readers):
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
        super().__init__(path)
        self._clock = DatabaseClock()
        self._writer = Writer(path, timeout)
        self.write(lambda _: None)

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

    def purge_deleted(self) -> bool:
        """Copy the write-ahead log into the database, and end the file: it has pages from before deletes."""
        connection = SqliteConnection(self._path, writer=True)  # no transaction of the writer's may be under way
        for _ in range(PURGE_ATTEMPTS):
            row = connection.row("PRAGMA wal_checkpoint(TRUNCATE)")
            if row is not None and not row[0]:
                return True
        return False

    def close(self) -> None:
        super().close()
        self._writer.close()


def _read_clock(connection: Connection) -> int:
    row = connection.row(NOW)
    assert row is not None
    return int(row[0])
