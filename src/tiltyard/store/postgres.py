"""PostgreSQL through a pool of psycopg connections."""

from __future__ import annotations

import logging
import time
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import psycopg
from lance_namespace.errors import InvalidInputError, ServiceUnavailableError
from psycopg import errors
from psycopg.pq import TransactionStatus
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout

from tiltyard.store.backend import CallSoon, Connection, ForeignKeyError, NullError, Row, UniqueError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

T = TypeVar("T")

ATTEMPTS = 5
"""How often a unit of work is run again after a deadlock or a lost connection."""

SETTINGS = (
    "SET lock_timeout = '30s'",
    "SET idle_in_transaction_session_timeout = '60s'",  # a process that hangs must not keep its row locks
    "SET default_transaction_isolation = 'read committed'",
)
AGAIN = (errors.SerializationFailure, errors.DeadlockDetected)
FULL_SECONDS = 30.0
"""For how long the database does not count as ready after a change for which it had no room."""
UNAVAILABLE = ("53", "57", "58", "55P03", "25006")
"""How the codes begin of what may go away: no room, an operator, the machine, a lock, a server that only reads."""


@cache
def translate(sql: str) -> str:
    """Turn the store's SQL into PostgreSQL's own, whose placeholders have numbers: psycopg has nothing left to read."""
    first, *others = sql.replace("/*+", "").replace("*/", "").split("?")
    return first + "".join(f"${number}{text}" for number, text in enumerate(others, 1))


def refuse(error: psycopg.Error) -> NoReturn:
    """Raise ours for an error of psycopg's; one that we do not know is a bug and goes on as it is."""
    if isinstance(error, errors.UniqueViolation):
        raise UniqueError(error.diag.constraint_name) from error
    if isinstance(error, errors.ForeignKeyViolation):
        raise ForeignKeyError(error.diag.constraint_name) from error
    if isinstance(error, errors.NotNullViolation):
        raise NullError(error.diag.column_name) from error
    if isinstance(error, (errors.DataError, errors.ProgramLimitExceeded)):
        raise InvalidInputError(f"A value cannot be kept in the catalog's database: {error}") from error
    raise error


class Raw(psycopg.Connection[Row]):
    """A connection with one cursor for all of its statements.

    Each cursor learns anew how values are sent and read: to make one for a statement took a quarter of its time.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """See psycopg."""
        super().__init__(*args, **kwargs)
        self.statements = psycopg.RawCursor(self)


class PostgresConnection:
    """A `Connection` over psycopg."""

    __slots__ = ("raw",)

    def __init__(self, raw: Raw) -> None:
        """Wrap a connection of the pool."""
        self.raw = raw

    def row(self, sql: str, *values: object) -> Row | None:
        """See `Connection.row`."""
        return self._execute(sql, values).fetchone()

    def rows(self, sql: str, *values: object) -> list[Row]:
        """See `Connection.rows`."""
        return self._execute(sql, values).fetchall()

    def change(self, sql: str, *values: object) -> int:
        """See `Connection.change`."""
        return self._execute(sql, values).rowcount

    def change_many(self, sql: str, values: Iterable[Row]) -> None:
        """See `Connection.change_many`."""
        try:
            self.raw.statements.executemany(translate(sql), values)
        except psycopg.Error as error:
            refuse(error)

    def _execute(self, sql: str, values: tuple[object, ...]) -> psycopg.Cursor[Row]:
        try:
            return self.raw.statements.execute(translate(sql), values)
        except psycopg.Error as error:
            refuse(error)
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
    }

    def __init__(self, url: str, *, size: int = 16, patience: float = 10.0) -> None:
        """Connect. `patience` is how many seconds to wait for a connection.

        Raises ServiceUnavailableError where the database does not answer.
        """
        self._full_until = 0.0
        self._last_try = _LastTry()
        logging.getLogger("psycopg.pool").addHandler(self._last_try)
        self._pool: ConnectionPool[Raw] = ConnectionPool(
            url,
            connection_class=Raw,
            min_size=1,
            max_size=size,
            timeout=patience,
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
        """See `Database.read`."""
        return self._again(lambda raw: fn(PostgresConnection(raw)))

    def write(self, fn: Callable[[Connection], T]) -> T:
        """See `Database.write`."""
        return self._again(lambda raw: _in_transaction(raw, fn))

    def write_statement(self, fn: Callable[[Connection], T]) -> T:
        """See `Database.write_alone`: connections commit each statement by itself unless told otherwise."""
        return self.read(fn)

    def share_reads(self, soon: CallSoon) -> None:
        """See `Database.share_reads`: no read of PostgreSQL's runs on an event loop."""

    def gauges(self) -> Mapping[str, float]:
        """See `Database.gauges`."""
        found = self._pool.get_stats()
        return {
            "catalog connections": found["pool_size"],
            "catalog connections idle": found["pool_available"],
            "catalog calls waiting": found["requests_waiting"],
        }

    def ping(self) -> None:
        """See `Database.ping`."""
        self.read(lambda connection: connection.row("SELECT 1"))

    def check_disk_space(self) -> None:
        """See `Database.check_room`: only changes can tell, so the last ones do."""
        if time.monotonic() < self._full_until:
            raise ServiceUnavailableError("The catalog's database had no room for a change just now.")

    def close(self) -> None:
        """See `Database.close`."""
        self._pool.close()
        logging.getLogger("psycopg.pool").removeHandler(self._last_try)

    def _again(self, work: Callable[[Raw], T]) -> T:
        """Run `work`, and run it again where the last run certainly changed nothing."""
        last: Exception | None = None
        for _ in range(ATTEMPTS):
            try:
                raw = self._pool.getconn()
                try:
                    return self._attempt(raw, work)
                finally:
                    self._pool.putconn(raw)  # which closes one that is not ready for the next
            except AGAIN as error:
                last = error
            except _LostError as error:
                last = error
                self._pool.check()  # a restart kills them all: do not go through them one by one
            except (PoolTimeout, PoolClosed) as error:
                if self._last_try.text:
                    error.add_note(self._last_try.text)  # for the log
                raise ServiceUnavailableError(f"The catalog's database cannot be reached: {error}.") from error
            except psycopg.Error as error:
                if not (error.sqlstate or "").startswith(UNAVAILABLE):
                    raise
                if isinstance(error, errors.DiskFull):
                    self._full_until = time.monotonic() + FULL_SECONDS
                raise ServiceUnavailableError(f"The catalog's database is not available: {error}") from error
        raise ServiceUnavailableError(f"The catalog's database stays busy: {last}") from last

    @staticmethod
    def _attempt(raw: Raw, work: Callable[[Raw], T]) -> T:
        try:
            return work(raw)
        except (psycopg.OperationalError, psycopg.InterfaceError) as error:
            if raw.closed:
                raise _LostError(str(error)) from error
            raise


class _LastTry(logging.Handler):
    """Keeps what the pool says of a try to connect: its errors tell callers no more than that they waited in vain."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        """See logging."""
        self.text = record.getMessage()


class _LostError(Exception):
    """The connection went before anything could be committed."""


def _configure(raw: Raw) -> None:
    for setting in SETTINGS:
        raw.statements.execute(setting)


def _in_transaction(raw: Raw, fn: Callable[[Connection], T]) -> T:
    raw.statements.execute("BEGIN")
    try:
        result = fn(PostgresConnection(raw))
    except BaseException:
        if not raw.closed:
            raw.statements.execute("ROLLBACK")
        raise
    if raw.info.transaction_status == TransactionStatus.INERROR:  # COMMIT would silently roll back
        raw.statements.execute("ROLLBACK")
        raise RuntimeError("a unit of work went on after a statement of it was refused")
    try:
        raw.statements.execute("COMMIT")
    except psycopg.OperationalError as error:
        if raw.closed:
            raise ServiceUnavailableError(
                "The connection to the catalog's database was lost while committing: the change may or may not be in it"
            ) from error
        raise
    return result
