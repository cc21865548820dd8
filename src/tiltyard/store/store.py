"""`Store`: all methods of the store in one class, and how to open or upgrade a database."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from tiltyard.runtime.tracing import bind_to_request, child_span, is_tracked
from tiltyard.store import schema
from tiltyard.store.access.classifications import Classifications
from tiltyard.store.access.grants import Grants
from tiltyard.store.access.policies import Policies
from tiltyard.store.access.principals import Principals
from tiltyard.store.access.quotas import Quotas
from tiltyard.store.access.roles import Roles
from tiltyard.store.access.signing_keys import SigningKeys
from tiltyard.store.access.visibility import Visibility
from tiltyard.store.approvals import Approvals
from tiltyard.store.audit import AuditLog
from tiltyard.store.dump import DumpHeader, count_rows, dump, load
from tiltyard.store.events.outbox import Events
from tiltyard.store.events.sinks import EventSinks
from tiltyard.store.functions.definitions import Functions
from tiltyard.store.functions.errors import FunctionErrors
from tiltyard.store.functions.secrets import Secrets
from tiltyard.store.idempotency import KeyedRequests
from tiltyard.store.jobs.events import JobEvents
from tiltyard.store.jobs.jobs import Jobs
from tiltyard.store.jobs.schedules import Schedules
from tiltyard.store.jobs.transactions import Transactions
from tiltyard.store.mounts.mirrors import Mirrors
from tiltyard.store.mounts.mounts import Mounts
from tiltyard.store.mounts.table_moves import TableMoves
from tiltyard.store.namespaces import Namespaces
from tiltyard.store.processes import Processes
from tiltyard.store.protections import Protections
from tiltyard.store.repository import Generations
from tiltyard.store.sqlite.database import SqliteDatabase
from tiltyard.store.tables.ages import TableAges
from tiltyard.store.tables.contracts import ContractResults
from tiltyard.store.tables.erasures import Erasures
from tiltyard.store.tables.folder_deletions import FolderDeletions
from tiltyard.store.tables.lineage import Lineage
from tiltyard.store.tables.lookup import TableLookups
from tiltyard.store.tables.queued_appends import QueuedAppends
from tiltyard.store.tables.snapshots import Snapshots
from tiltyard.store.tables.tables import Tables
from tiltyard.store.tables.trash import Trash
from tiltyard.store.tables.upkeep import Upkeep
from tiltyard.store.tables.uploads import Uploads
from tiltyard.store.tables.versions import DeletedVersions, Versions
from tiltyard.store.tables.views import Views

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from tiltyard.store.backend import CallSoon, Connection, Database
    from tiltyard.store.repository import Clock, Runner

T = TypeVar("T")

CONNECTIONS = 16
"""Connections to PostgreSQL that a command opens at most; servers have a setting."""


class UnitOfWork(
    # The catalog's entries and their data
    Namespaces,
    Mounts,
    Mirrors,
    Tables,
    TableLookups,
    Views,
    TableMoves,
    Versions,
    DeletedVersions,
    ContractResults,
    QueuedAppends,
    Snapshots,
    Lineage,
    TableAges,
    Uploads,
    Trash,
    FolderDeletions,
    Erasures,
    # Functions of clients
    Functions,
    FunctionErrors,
    Secrets,
    # Work in progress
    Transactions,
    Jobs,
    JobEvents,
    Schedules,
    Processes,
    Upkeep,
    KeyedRequests,
    # Access control
    Principals,
    SigningKeys,
    Roles,
    Grants,
    Policies,
    Classifications,
    Protections,
    Quotas,
    Approvals,
    Visibility,
    Generations,
    AuditLog,
    # What is told to others
    Events,
    EventSinks,
):
    """All methods of the store, bound to one transaction: they succeed or fail together."""

    __slots__ = ()


class Store(UnitOfWork):
    """The catalog's database. Each call is a transaction of its own; `transact` runs several calls in one.

    All methods raise ServiceUnavailableError when the database cannot be reached or stays busy, and InvalidInputError
    for values it cannot hold, besides the errors they name themselves. Safe to use from several threads.
    """

    __slots__ = ()

    @property
    def clock(self) -> Clock:
        """The time in ms since 1970: that of the database, which all servers of a catalog have in common."""
        return self._clock

    @property
    def inline_reads(self) -> bool:
        """Whether reads are fast enough to run on an event loop."""
        return self._database.inline_reads

    def transact(self, fn: Callable[[UnitOfWork], T]) -> T:
        """Run `fn` in one transaction: all that it writes is durable when this returns, and nothing is when it raises.

        `fn` may be run again, so it must do nothing but call methods of its argument; and it must let their errors
        pass, since a transaction of PostgreSQL cannot continue after some of them.
        """

        def work(connection: Connection) -> T:
            return fn(UnitOfWork(self._database, self._clock, connection))

        return self.run("write", "transaction", work)

    def dump(self, file: Path) -> DumpHeader:
        """Write all rows of one snapshot to a file; return its header. Blocks no writer. See `dump.dump`."""
        return dump(self._database, file, self._clock)

    def count_rows(self) -> tuple[int, dict[str, int]]:
        """Return the number of the last migration, and how many rows each table of the database has."""
        return count_rows(self._database)

    def share_reads(self, call_soon: CallSoon) -> None:
        """Let reads on the calling thread's event loop share a snapshot where several are ready at once.

        `call_soon` is the loop's. Callbacks of timers or sockets must not read, since loops do not queue those in order
        with all others.
        """
        self._database.share_reads(call_soon)

    def gauges(self) -> Mapping[str, float]:
        """Return this process's counts of connections and of calls that wait, by name."""
        return self._database.gauges()

    def ping(self) -> None:
        """Raise ServiceUnavailableError unless the database answers."""
        self._database.ping()

    def check_ready(self) -> None:
        """Raise ServiceUnavailableError unless the database answers and its disk has room."""
        self._database.ping()
        self._database.check_disk_space()

    def purge_deleted(self) -> bool:
        """Leave nothing of deleted rows in the database's files, nor in its log; return whether it could."""
        return self._database.purge_deleted()

    def close(self) -> None:
        """Finish the writes under way and close every connection."""
        self._database.close()

    def __enter__(self) -> Self:
        """Return the store."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the store."""
        self.close()


class TracedStore(Store):
    """A store whose calls are spans of the request that makes them, and its work in whatever thread does it."""

    __slots__ = ()

    def run(self, runner: Runner, name: str, work: Callable[[Connection], T]) -> T:
        with child_span(f"catalog {name}"):
            return super().run(runner, name, bind_to_request(work))  # SQLite writes in a thread of its own


def open_store(url: str, *, clock: Clock | None = None, migrate: bool = True, connections: int = CONNECTIONS) -> Store:
    """Open the database at `sqlite:////absolute/file`, `sqlite:///relative/file` or `postgresql://…`, and migrate it.

    At most so many `connections` to PostgreSQL are opened. Without a `clock`, the time is the database's: PostgreSQL's
    own, and for a file that of this machine, where all its processes are.

    Raises ValueError for other URLs, ServiceUnavailableError when the database cannot be reached, StoreVersionError
    for one that newer code has migrated or, without `migrate`, that lacks a migration.
    """
    database = open_database(url, connections)
    clock = clock or database.clock
    try:
        if migrate:
            schema.migrate(database, clock)
        else:
            schema.require_current(database)
    except BaseException:
        database.close()
        raise
    return (TracedStore if is_tracked() else Store)(database, clock)


def upgrade(url: str) -> list[str]:
    """Apply the migrations that a database lacks; return their names. Raises as `open_store` does."""
    with closing(open_database(url)) as database:
        return schema.migrate(database, database.clock)


def is_empty_database(url: str) -> bool:
    """Return whether a database has no catalog. Raises ValueError, ServiceUnavailableError."""
    with closing(open_database(url)) as database:
        return schema.current_version(database) == 0


def load_dump(url: str, file: Path, convert: Callable[[str, dict[str, Any]], dict[str, Any] | None]) -> DumpHeader:
    """Load a dump into an empty database, all of it or nothing; see `dump.load`. Raises ValueError, too."""
    with closing(open_database(url)) as database:
        return load(database, file, database.clock, convert)


def database_exists(url: str) -> bool:
    """Return whether there is a database at a URL; for PostgreSQL always True, without connecting."""
    return not url.startswith("sqlite:///") or Path(url.removeprefix("sqlite:///")).is_file()


def open_database(url: str, connections: int = CONNECTIONS) -> Database:
    """Connect to a database without migrating it. Raises ValueError, ServiceUnavailableError."""
    if url.startswith("sqlite:///"):
        if file := url.removeprefix("sqlite:///"):
            return SqliteDatabase(Path(file))
    elif url.startswith(("postgresql://", "postgres://")):
        from tiltyard.store.postgres import PostgresDatabase  # noqa: PLC0415 - a catalog in SQLite does not need psycopg

        return PostgresDatabase(url, size=connections)
    raise ValueError("A database URL begins with sqlite:/// or postgresql://.")
