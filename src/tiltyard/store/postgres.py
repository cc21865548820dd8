"""PostgreSQL, through a pool of psycopg connections."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import psycopg
from lance_namespace.errors import InvalidInputError, ServiceUnavailableError
from psycopg import errors
from psycopg.pq import TransactionStatus
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout

from tiltyard.runtime.failpoints import Point, reach
from tiltyard.store.backend import CallSoon, Connection, ForeignKeyError, NullError, Row, UniqueError
from tiltyard.store.clock import DatabaseClock

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

T = TypeVar("T")

ATTEMPTS = 5
"""How often a unit of work is run at most, after deadlocks or lost connections."""

SETTINGS = (
    "SET lock_timeout = '30s'",
    "SET idle_in_transaction_session_timeout = '60s'",  # a process that hangs must not keep its row locks
    "SET default_transaction_isolation = 'read committed'",
    "SET jit = off",  # it takes a third of a second for statements of a millisecond, by estimates that are far too high
    "SET enable_seqscan = off",  # all look-ups have an index, which it would leave aside while statistics are old
)
NOW = "SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)"
RETRIED = (errors.SerializationFailure, errors.DeadlockDetected)
FULL_SECONDS = 30.0
"""How long the database does not count as ready after its disk was full for a change."""
UNAVAILABLE = ("53", "57", "58", "55P03", "25006")
"""Prefixes of SQLSTATE codes of transient errors: resources, operator, system, lock, a read-only server."""


def to_postgres(sql: str) -> str:
    """Translate the store's SQL to PostgreSQL's, with numbered placeholders, so that psycopg need not parse it."""
    first, *remaining = sql.replace("/*+", "").replace("*/", "").split("?")
    return first + "".join(f"${number}{text}" for number, text in enumerate(remaining, 1))


def raise_translated(error: psycopg.Error) -> NoReturn:
    """Raise the store's error for one of psycopg's; an unknown one is a bug and is raised as it is."""
    if isinstance(error, errors.UniqueViolation):
        raise UniqueError(error.diag.constraint_name) from error
    if isinstance(error, errors.ForeignKeyViolation):
        raise ForeignKeyError(error.diag.constraint_name) from error
    if isinstance(error, errors.NotNullViolation):
        raise NullError(error.diag.column_name) from error
    if isinstance(error, (errors.DataError, errors.ProgramLimitExceeded)):
        raise InvalidInputError(f"A value cannot be kept in the catalog's database: {error}") from error
    raise error


class PooledConnection(psycopg.Connection[Row]):
    """A psycopg connection with one cursor for all of its statements.

    Each new cursor looks up again how values are sent and read: to create one took a quarter of a statement's time.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.statements = psycopg.RawCursor(self)


class PostgresConnection:
    """A `Connection` over psycopg."""

    __slots__ = ("raw",)

    def __init__(self, raw: PooledConnection) -> None:
        """Wrap a connection of the pool."""
        self.raw = raw

    def row(self, sql: str, *values: object) -> Row | None:
        return self._execute(sql, values).fetchone()

    def rows(self, sql: str, *values: object) -> list[Row]:
        return self._execute(sql, values).fetchall()

    def texts(self, sql: str, *values: object) -> list[str]:
        return [text for (text,) in self.rows(sql, *values)]

    def pages(self, sql: str, size: int) -> Iterator[list[Row]]:
        try:
            with self.raw.cursor(name="pages") as cursor:
                cursor.execute(sql)
                while rows := cursor.fetchmany(size):
                    yield rows
        except psycopg.Error as error:
            raise_translated(error)

    def change(self, sql: str, *values: object) -> int:
        reach(Point.WRITE)
        return self._execute(sql, values).rowcount

    def change_many(self, sql: str, values: Iterable[Row]) -> None:
        reach(Point.WRITE)
        try:
            self.raw.statements.executemany(to_postgres(sql), values)
        except psycopg.Error as error:
            raise_translated(error)

    def _execute(self, sql: str, values: tuple[object, ...]) -> psycopg.Cursor[Row]:
        try:
            return self.raw.statements.execute(to_postgres(sql), values)
        except psycopg.Error as error:
            raise_translated(error)
        except UnicodeEncodeError as error:
            raise InvalidInputError(f"A value cannot be kept in the catalog's database: {error}") from error


class PostgresDatabase:
    """A catalog in a PostgreSQL database, which any number of servers may share."""

    inline_reads = False
    dialect: Mapping[str, str] = {
        "id": "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
        "text": 'TEXT COLLATE "C"',
        "bytes": "BYTEA",
        "lock_migrations": "SELECT pg_advisory_xact_lock(7308604896)",
        "has_migrations": "SELECT to_regclass('schema_migrations') IS NOT NULL",
        "columns": "SELECT column_name, data_type FROM information_schema.columns"
        " WHERE table_schema = current_schema() AND table_name = ? ORDER BY ordinal_position",
        "last_id": "SELECT pg_sequence_last_value(pg_get_serial_sequence(?, 'id')::regclass)",
        "forget_last_id": "SELECT pg_get_serial_sequence(?, 'id')",
        "set_last_id": "SELECT setval(pg_get_serial_sequence(?, 'id'), ?)",
    }

    def __init__(self, url: str, *, size: int, timeout: float = 10.0) -> None:
        """Connect, with a pool of at most `size` connections, for one of which a call waits `timeout` seconds.

        Raises ServiceUnavailableError where the database does not answer.
        """
        self.clock = DatabaseClock()
        self._full_until = 0.0
        self._last_failure = _LastConnectFailure()
        logging.getLogger("psycopg.pool").addHandler(self._last_failure)
        self._pool: ConnectionPool[PooledConnection] = ConnectionPool(
            url,
            connection_class=PooledConnection,
            min_size=1,
            max_size=size,
            timeout=timeout,
            configure=_configure,
            kwargs={"autocommit": True, "prepare_threshold": 2},
            name="tiltyard-store",
            open=True,
        )
        try:
            self.ping()
        except BaseException:
            self._pool.close()
            raise

    def read(self, fn: Callable[[Connection], T]) -> T:
        return self._run(lambda raw: fn(PostgresConnection(raw)))

    def read_snapshot(self, fn: Callable[[Connection], T]) -> T:
        return self._run(lambda raw: _in_transaction(raw, fn, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"))

    def write(self, fn: Callable[[Connection], T]) -> T:
        return self._run(lambda raw: _in_transaction(raw, fn))

    def write_statement(self, fn: Callable[[Connection], T]) -> T:
        """Run `fn` without BEGIN and COMMIT: connections of the pool commit each statement by itself."""
        return self.read(fn)

    def share_reads(self, call_soon: CallSoon) -> None:
        """Do nothing: no read of PostgreSQL runs on an event loop."""

    def gauges(self) -> Mapping[str, float]:
        stats = self._pool.get_stats()
        return {
            "catalog connections": stats["pool_size"],
            "catalog connections idle": stats["pool_available"],
            "catalog connections at most": stats["pool_max"],
            "catalog calls waiting": stats["requests_waiting"],
        }

    def ping(self) -> None:
        self.read(lambda connection: connection.row("SELECT 1"))

    def check_disk_space(self) -> None:
        """Raise ServiceUnavailableError if the disk was full for a recent change: only changes can tell."""
        if time.monotonic() < self._full_until:
            raise ServiceUnavailableError("The catalog's database had no room for a change just now.")

    def purge_deleted(self) -> bool:
        """Return False: PostgreSQL keeps what was deleted in its pages and its log, until it uses them again."""
        return False

    def close(self) -> None:
        self._pool.close()
        logging.getLogger("psycopg.pool").removeHandler(self._last_failure)

    def _run(self, work: Callable[[PooledConnection], T]) -> T:
        """Run `work`; retry it where the last run certainly changed nothing."""
        last: Exception | None = None
        for _ in range(ATTEMPTS):
            try:
                raw = self._pool.getconn()
                try:
                    return self._attempt(raw, work)
                finally:
                    self._pool.putconn(raw)  # which closes it unless it is idle
            except RETRIED as error:
                last = error
            except _LostError as error:
                last = error
                self._pool.check()  # a restart closes them all: replace them at once, not one by one
            except (PoolTimeout, PoolClosed) as error:
                if self._last_failure.text:
                    error.add_note(f"The last attempt: {self._last_failure.text}")  # for the operator alone
                raise ServiceUnavailableError(f"The catalog's database cannot be reached: {error}.") from error
            except psycopg.Error as error:
                if not (error.sqlstate or "").startswith(UNAVAILABLE):
                    raise
                if isinstance(error, errors.DiskFull):
                    self._full_until = time.monotonic() + FULL_SECONDS
                raise ServiceUnavailableError(f"The catalog's database is not available: {error}") from error
        raise ServiceUnavailableError(f"The catalog's database stays busy: {last}") from last

    def _attempt(self, raw: PooledConnection, work: Callable[[PooledConnection], T]) -> T:
        try:
            if self.clock.is_due:
                self.clock.read(partial(_read_clock, raw))
            return work(raw)
        except (psycopg.OperationalError, psycopg.InterfaceError) as error:
            if raw.closed:
                raise _LostError(str(error)) from error
            raise


class _LastConnectFailure(logging.Handler):
    """Keeps the pool's last warning of a failed connect: the errors it raises name the timeout only."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = record.getMessage()


class _LostError(Exception):
    """The connection was lost before anything could be committed."""


def _read_clock(raw: PooledConnection) -> int:
    row = raw.statements.execute(NOW).fetchone()
    assert row is not None
    return int(row[0])


def _configure(raw: PooledConnection) -> None:
    for setting in SETTINGS:
        raw.statements.execute(setting)


def _in_transaction(raw: PooledConnection, fn: Callable[[Connection], T], begin: str = "BEGIN") -> T:
    raw.statements.execute(begin)
    try:
        result = fn(PostgresConnection(raw))
    except BaseException:
        if not raw.closed:
            raw.statements.execute("ROLLBACK")
        raise
    if raw.info.transaction_status == TransactionStatus.INERROR:  # COMMIT would silently roll back
        raw.statements.execute("ROLLBACK")
        raise RuntimeError("a transaction continued after one of its statements failed")
    reach(Point.WRITE)
    try:
        raw.statements.execute("COMMIT")
    except psycopg.OperationalError as error:
        if raw.closed:
            raise ServiceUnavailableError(
                "The connection to the catalog's database was lost while committing: the change may or may not be in it"
            ) from error
        raise
    return result
