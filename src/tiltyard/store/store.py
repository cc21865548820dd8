"""The store as a whole, and how to open one."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

from tiltyard.runtime.clocks import wall_clock
from tiltyard.store import schema
from tiltyard.store.access.generations import Generations
from tiltyard.store.access.grants import Grants
from tiltyard.store.access.policies import Policies
from tiltyard.store.access.principals import Principals
from tiltyard.store.access.roles import Roles
from tiltyard.store.access.signing_keys import SigningKeys
from tiltyard.store.access.visible_lists import Visibility
from tiltyard.store.audit import Audit
from tiltyard.store.idempotency import Requests
from tiltyard.store.jobs import Jobs
from tiltyard.store.namespaces import Namespaces
from tiltyard.store.sqlite.database import SqliteDatabase
from tiltyard.store.tables.deleted_folders import Folders
from tiltyard.store.tables.deleted_versions import DeletedVersions
from tiltyard.store.tables.maintenance import Upkeep
from tiltyard.store.tables.tables import Tables
from tiltyard.store.tables.trash import Removals
from tiltyard.store.tables.uploads import Uploads
from tiltyard.store.tables.versions import Versions
from tiltyard.store.tables.views import Views
from tiltyard.store.transactions import Transactions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from tiltyard.store.backend import Database, Soon
    from tiltyard.store.connection_scope import Clock
from tiltyard.store.access.secrets import Secrets

T = TypeVar("T")


class UnitOfWork(
    Namespaces,
    Tables,
    Folders,
    Removals,
    Transactions,
    Jobs,
    Versions,
    DeletedVersions,
    Uploads,
    Upkeep,
    Requests,
    Secrets,
    Generations,
    Principals,
    SigningKeys,
    Audit,
    Roles,
    Grants,
    Policies,
    Views,
    Visibility,
):
    """All methods of the store. Bound to one transaction, they succeed or fail together."""

    __slots__ = ()


class Store(UnitOfWork):
    """The catalog's database. A method called here is a transaction of its own; `transact` makes one of many.

    All methods raise ServiceUnavailableError when the database cannot be reached or stays busy, and
    InvalidInputError for values it cannot hold, besides what they say themselves. Safe to use from several threads.
    """

    __slots__ = ()

    @property
    def inline_reads(self) -> bool:
        """Whether reads are quick enough to run on an event loop."""
        return self._database.inline_reads

    def transact(self, fn: Callable[[UnitOfWork], T]) -> T:
        """Run `fn` in one transaction: all that it does is durable when this returns, or nothing is when it raises.

        `fn` may be run again, so it must do nothing but call the methods of what it is given; and it must let
        their errors pass, since PostgreSQL does not go on after some of them.
        """
        return self._database.write(lambda connection: fn(UnitOfWork(self._database, self._clock, connection)))

    def share_reads(self, soon: Soon) -> None:
        """Let an event loop's reads that come together be made in one snapshot: for its thread, with its `call_soon`.

        Nothing may be read by callbacks of timers or sockets, which loops do not put in line with all others.
        """
        self._database.share_reads(soon)

    def gauges(self) -> Mapping[str, float]:
        """How much is held and waits in this process, by name."""
        return self._database.gauges()

    def ping(self) -> None:
        """Raise ServiceUnavailableError unless the database answers."""
        self._database.ping()

    def check_ready(self) -> None:
        """Raise ServiceUnavailableError unless the database answers, and has room for changes."""
        self._database.ping()
        self._database.check_room()

    def close(self) -> None:
        """Finish the writes under way and let go of every connection."""
        self._database.close()

    def __enter__(self) -> Self:
        """Return the store."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the store."""
        self.close()


def open_store(url: str, *, clock: Clock = wall_clock, migrate: bool = True) -> Store:
    """Open `sqlite:////absolute/file`, `sqlite:///relative/file` or `postgresql://…`, and migrate it.

    Raises ValueError for other URLs, ServiceUnavailableError when the database cannot be reached, StoreVersionError
    for one that newer code has migrated or, without `migrate`, that lacks a migration.
    """
    database = open_database(url)
    try:
        if migrate:
            schema.migrate(database, clock)
        else:
            schema.require_current(database)
    except BaseException:
        database.close()
        raise
    return Store(database, clock)


def upgrade(url: str, *, clock: Clock = wall_clock) -> list[str]:
    """Apply the migrations a database lacks and return their names. Raises as `open_store` does."""
    with closing(open_database(url)) as database:
        return schema.migrate(database, clock)


def database_exists(url: str) -> bool:
    """Whether there is a database at a URL; one that a server would have to be asked for is taken to be."""
    return not url.startswith("sqlite:///") or Path(url.removeprefix("sqlite:///")).is_file()


def open_database(url: str) -> Database:
    """Connect to a database, as it is. Raises ValueError, ServiceUnavailableError."""
    if url.startswith("sqlite:///"):
        if file := url.removeprefix("sqlite:///"):
            return SqliteDatabase(Path(file))
    elif url.startswith(("postgresql://", "postgres://")):
        from tiltyard.store.postgres import PostgresDatabase  # noqa: PLC0415 - a catalog in SQLite need not load psycopg

        return PostgresDatabase(url)
    raise ValueError("A database URL begins with sqlite:/// or postgresql://.")
