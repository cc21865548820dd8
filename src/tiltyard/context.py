"""The context that every operation gets: the services of the process, the caller, and what came with the request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

import msgspec
from lance_namespace.errors import ServiceUnavailableError
from msgspec import structs

from tiltyard.model.decisions import AskedOperation, DecisionNote, is_asked_about
from tiltyard.model.ids import Id
from tiltyard.model.principals import EVERYBODY, Principal
from tiltyard.runtime.machinery import Counts
from tiltyard.storage.caches.recent_keys import RecentKeys
from tiltyard.storage.manifests.contention import Contention

if TYPE_CHECKING:
    import lance
    import pyarrow as pa
    from lance_namespace.errors import LanceNamespaceError

    from tiltyard.config import Settings
    from tiltyard.contracts.checked_rows import CheckedRows
    from tiltyard.model.decisions import AskedObject
    from tiltyard.model.paging import Paging
    from tiltyard.model.quotas import Resource
    from tiltyard.model.settings.secret_keys import SecretKeys
    from tiltyard.mounts.registry.mounts import Mounts
    from tiltyard.runtime.budgets import MemoryBudget
    from tiltyard.runtime.outage_log import OutageLog
    from tiltyard.storage import Storage
    from tiltyard.storage.caches.version_cache import CachedVersion
    from tiltyard.storage.commit_route import CommitRoute
    from tiltyard.store import (
        FinalManifest,
        NamespaceRecord,
        RequestClaim,
        Store,
        TableRecord,
        UnitOfWork,
        VersionRecord,
    )


Response = TypeVar("Response")


class RightsCache(Protocol):
    """The rights of principals, each a `tiltyard.access.rights.Rights`."""

    def get(self, principal: Principal) -> Any: ...
    def refresh_next(self) -> None: ...


class ProtectionChecks(Protocol):
    """What protections refuse before an operation runs: see tiltyard.access.protections."""

    def kinds(self) -> frozenset[str]: ...
    def refresh_next(self) -> None: ...
    def check_request_writable(self, request: Any) -> None: ...
    def check_tables_writable(self, table_ids: Sequence[int]) -> None: ...
    def keeps_files(self, table_id: int) -> bool: ...
    @property
    def has_approvals(self) -> bool: ...
    def running_approved(self, ctx: Context, name: str, request: Any) -> AbstractContextManager[Context]: ...


class QuotaChecks(Protocol):
    """What quotas refuse, and the counts of what is used: see tiltyard.access.quotas."""

    def start(self) -> None: ...
    def check_requests(self, principal: str, path: Sequence[str] = ()) -> None: ...
    def count_request(self, principal: str, path: Sequence[str] | None = None) -> None: ...
    def check_storing(self, principal: str, request: Any, resources: Sequence[Resource]) -> None: ...
    def check_memory(self, principal: str, size: int) -> None: ...
    def refresh_next(self) -> None: ...
    def note_version(self, table_id: int, branch: str, version: int, whose: Principal | Mapping[str, int]) -> None: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...


class Decisions(Protocol):
    """What services outside decide of what rights allow: see tiltyard.access.decisions."""

    def require(self, ctx: Context, kind: str, path: Sequence[str], privileges: int) -> None: ...
    def authorized(self, ctx: Context, operation: str, authorize: Callable[[Context], Context]) -> Context: ...
    def allowed(self, ctx: Context, objects: Sequence[AskedObject]) -> list[bool]: ...
    def add(self, ctx: Context, notes: Iterable[DecisionNote]) -> None: ...
    def counts(self) -> dict[str, int]: ...
    def seconds(self) -> dict[str, float]: ...
    def close(self) -> None: ...


class TableServers(Protocol):
    """Which servers of the catalog keep a table: see tiltyard.catalog.table_servers."""

    own_url: str

    def keepers(self, path: Sequence[str]) -> Sequence[Any]: ...
    def ranked(self, path: Sequence[str]) -> Sequence[Any]: ...
    def note_spread(self, path: Sequence[str]) -> None: ...
    def is_spread(self, path: Sequence[str]) -> bool: ...


class SubQueries(Protocol):
    """Asks other servers for shares of one search, for its caller: see tiltyard.api.execution.sub_queries."""

    def may_ask(self, url: str) -> bool: ...
    def ask(self, url: str, request: Any, segments: Sequence[str]) -> pa.Table: ...
    def may_repeat(self) -> bool: ...
    def note_slow(self, url: str) -> None: ...


class CommitLog(Protocol):
    """What this process has committed and has yet to note in the catalog: see tiltyard.tables.commits."""

    def add(self, manifests: Iterable[FinalManifest]) -> None: ...
    def add_change(self, table_id: int) -> None: ...
    def has(self, record: VersionRecord) -> bool: ...
    def is_latest(self, table_id: int, branch: str, version: int, scheme: str) -> bool: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...


class FinalizingBackoff(Protocol):
    """When versions that could not be finalized are tried again: see tiltyard.tables.commits."""

    def next_tables(self, pending_tables: Callable[[int, int], list[int]], now: int) -> list[int]: ...
    def add_failure(self, table_id: int, now: int) -> int: ...
    def reset(self, table_id: int) -> None: ...


class KnownTables(Protocol):
    """Records of tables that commits were made to: see tiltyard.tables.commits."""

    def get_all(self, paths: Iterable[tuple[str, ...]]) -> dict[tuple[str, ...], TableRecord] | None: ...
    def add(self, path: Id, table: TableRecord) -> None: ...


class SqlSessions(Protocol):
    """Sessions for SQL queries in this process: see tiltyard.sql.sessions."""

    @property
    def running(self) -> int: ...
    def acquire(self) -> Any: ...
    def release(self, session: Any, *, is_reusable: bool, has_failed: bool = False) -> None: ...
    def close(self) -> None: ...


class QueryProcesses(Protocol):
    """Processes that run SQL queries: see tiltyard.sql.processes."""

    @property
    def running(self) -> int: ...
    @property
    def used_bytes(self) -> int: ...
    def used_by(self, principal: str) -> int: ...
    def prestart(self) -> None: ...
    def acquire(self, principal: str | None) -> Any: ...
    def release(self, process: Any, principal: str | None, *, is_idle: bool) -> None: ...
    def close(self) -> None: ...


class CommitRouting(Protocol):
    """Choose how commits to a table reach it; None commits straight to storage.

    `durable` says that the data files of the commit are on the disk already, not still to be synced.
    """

    def __call__(self, ctx: Context, record: TableRecord, *, durable: bool) -> CommitRoute | None: ...


def route_to_storage(ctx: Context, record: TableRecord, *, durable: bool) -> CommitRoute | None:
    """Let every commit go straight to storage."""
    return None


NO_NAMESPACES: Mapping[Id, int] = {}
NO_ENTRIES: Mapping[str, str] = {}


def do_nothing() -> None:
    """Do nothing."""


@dataclass(frozen=True, slots=True)
class Services:
    """What lives as long as the process; `commit_routing` chooses how commits reach a table.

    `sql_processes` run SQL queries; where there are none, as in the catalog in process, this process runs them.
    """

    settings: Settings
    store: Store
    storage: Storage
    mounts: Mounts
    paging: Paging
    clock: Callable[[], int]
    rights_cache: RightsCache
    protections: ProtectionChecks
    quotas: QuotaChecks
    commit_log: CommitLog
    known_tables: KnownTables
    outage_log: OutageLog
    finalizing_backoff: FinalizingBackoff
    secret_keys: SecretKeys
    sql_sessions: SqlSessions
    query_memory: MemoryBudget
    started_at: int
    """When this process began, by `clock`."""
    commit_routing: CommitRouting = route_to_storage
    recent_keys: RecentKeys = field(default_factory=RecentKeys)
    contention: Contention = field(default_factory=Contention)
    route_counts: Counts = field(default_factory=Counts)
    append_counts: Counts = field(default_factory=Counts)
    """How many queries each route has answered."""
    sql_processes: QueryProcesses | None = None
    decisions: Decisions | None = None
    table_servers: TableServers | None = None
    """None where this server has no URL for the others."""

    def close(self) -> None:
        """Write what waits to be written, stop what runs in the background, and close the database.

        Each of them is closed whatever the others raise; the first error is raised at the end.
        """
        with ExitStack() as closing:  # the last one first
            closing.callback(self.store.close)
            closing.callback(self.storage.close)
            closing.callback(self.sql_sessions.close)
            if self.sql_processes is not None:
                closing.callback(self.sql_processes.close)
            closing.callback(self.mounts.close)
            closing.callback(self.quotas.close)
            closing.callback(self.commit_log.close)
            if self.decisions is not None:
                closing.callback(self.decisions.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class StaleReadError(ServiceUnavailableError):
    """A table has not reached the state that a request asks for; the client may ask again after `seconds`."""

    seconds = 1


@dataclass(frozen=True, slots=True)
class Freshness:
    """The oldest state of a table that a response may come from.

    `version` is a version of the branch that is read; `timestamp` is in milliseconds since 1970: all commits before it
    are seen.
    """

    version: int = 0
    timestamp: int = 0

    def is_met_by(self, version: int, looked_up_at: int) -> bool:
        """Return whether a version that was the latest at a time is fresh enough."""
        return version >= self.version and looked_up_at >= self.timestamp


@dataclass(frozen=True, slots=True)
class OpenTable:
    """A table's record in the catalog, and a snapshot of it.

    `offer` is how a route (`tables.query.routes`) answers the request, where one was asked to choose how the request is
    executed.
    """

    record: TableRecord
    snapshot: CachedVersion
    offer: Any = None

    @property
    def dataset(self) -> lance.LanceDataset:
        return self.snapshot.dataset


class ResolvedObjects(msgspec.Struct, frozen=True, eq=False):
    """The objects that authorization has looked up by a request's ids, so that the operation acts on no others.

    `tables` has None where there was no table. `namespaces` has the ids of namespaces, 0 where there was none that the
    caller may see: no namespace has that id.
    """

    tables: Mapping[Id, TableRecord | None]
    namespaces: Mapping[Id, int]


class MountedObjects(msgspec.Struct, frozen=True, eq=False):
    """What was looked up below a mount before the request's operation runs, or the error that its look-up raised."""

    tables: Mapping[Id, TableRecord | LanceNamespaceError]
    namespaces: Mapping[Id, NamespaceRecord | LanceNamespaceError]


def _raise_or_return(outcome: Response | LanceNamespaceError) -> Response:
    """Return what a look-up found, or raise the error that it ended with."""
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


class Context(msgspec.Struct, frozen=True, eq=False):
    """One request: the services, and what came with it.

    - `entries`: the context entries of the specification.
    - `claims`: the requests with an idempotency key that a commit made here fulfils (`docs/exactly-once.md`).
    - `before_commit`: called when the whole body has come and before it is committed; raises if it must not be.
    - `resolved`: what authorization has looked up, for a principal who is no administrator, or what was looked up
      before to choose how the request is executed.
    - `check_deadline`: called between two batches of a query; raises ServiceUnavailableError when the query's time is
      up or its client is gone.
    - `open_table`: a table of `resolved` at its latest version, where it was opened to choose how the request is
      executed.
    - `mounted`: what was looked up in the catalog behind a mount, for a request on a table below one.
    - `freshness`: the oldest state of its table that the response may come from.
    - `database`: the namespace that a client of lancedb has connected to, which full ids of its responses are relative
      to; the root for all others.
    - `approval`: the approval of a second principal that this call uses, if it needs one.
    - `decided`: what services outside have decided of the request, for its audit record.
    - `asked`: the operation that they are asked about, where they are asked.
    - `sub_queries`: asks other servers for shares of a search; None where it cannot be spread.
    - `segments`: the segments of an index that a sub-query of another server is about; none for other requests.
    - `checked_rows`: what was found of the rows of a commit before they were written, where their table has a contract.
    - `clock` (of the services) counts milliseconds since 1970.
    """

    services: Services
    request_id: str = ""
    entries: Mapping[str, str] = NO_ENTRIES
    claims: tuple[RequestClaim, ...] = ()
    before_commit: Callable[[], None] = do_nothing
    principal: Principal = EVERYBODY
    resolved: ResolvedObjects | None = None
    check_deadline: Callable[[], None] = do_nothing
    open_table: OpenTable | None = None
    mounted: MountedObjects | None = None
    freshness: Freshness | None = None
    database: Id = Id()
    decided: list[DecisionNote] = []
    asked: AskedOperation | None = None
    checked_rows: CheckedRows | None = None
    approval: str | None = None
    sub_queries: SubQueries | None = None
    segments: tuple[str, ...] = ()

    @property
    def settings(self) -> Settings:
        return self.services.settings

    @property
    def store(self) -> Store:
        return self.services.store

    @property
    def storage(self) -> Storage:
        return self.services.storage

    @property
    def paging(self) -> Paging:
        return self.services.paging

    @property
    def rights_cache(self) -> RightsCache:
        return self.services.rights_cache

    @property
    def clock(self) -> Callable[[], int]:
        return self.services.clock

    @property
    def is_unchecked(self) -> bool:
        """Whether the caller's rights are not checked: an administrator's, unless services outside decide, too."""
        principal = self.principal
        return principal.administrator and (self.services.decisions is None or not is_asked_about(principal))

    def with_resolved(
        self, tables: Mapping[Id, TableRecord | None], namespaces: Mapping[Id, int] = NO_NAMESPACES
    ) -> Context:
        """Return this context with the objects that authorization has looked up; `open_table` is used for no other."""
        return structs.replace(self, resolved=ResolvedObjects(tables, namespaces))

    def with_open_table(self, path: Id, table: OpenTable, check_deadline: Callable[[], None] = do_nothing) -> Context:
        """Return this context with its table, opened to choose how the request is executed."""
        resolved = ResolvedObjects({path: table.record}, NO_NAMESPACES)
        return structs.replace(self, resolved=resolved, check_deadline=check_deadline, open_table=table)

    def find_table(self, path: Id) -> TableRecord:
        """Return a table's record: the one that authorization has looked up, if any, so that no later table of the same
        name takes its place, else what has the name now.

        Raises what `look_up_table` raises.
        """
        resolved = self.resolved
        record = None if resolved is None else resolved.tables.get(path)
        return self.look_up_table(path) if record is None else record

    def look_up_table(self, path: Id) -> TableRecord:
        """Return the record of the table that has a name now, in this catalog or in one that is mounted.

        Below a mount this waits for the other catalog, unless the table was looked up before the operation: then not on
        the event loop. Raises NamespaceNotFoundError, TableNotFoundError; below a mount what `Mount.find_table` raises.
        """
        if self.mounted is not None and (known := self.mounted.tables.get(path)) is not None:
            return _raise_or_return(known)
        found = self.services.mounts.find(path)
        if found is None:
            return self.store.describe_table(path)
        mount, below = found
        return mount.find_table(below)

    def find_namespace(self, path: Id) -> NamespaceRecord:
        """Return the record of a namespace, in this catalog or in one that is mounted. See `look_up_table`.

        Raises NamespaceNotFoundError; below a mount what `Mount.find_namespace` raises.
        """
        if self.mounted is not None and (known := self.mounted.namespaces.get(path)) is not None:
            return _raise_or_return(known)
        found = self.services.mounts.find(path)
        if found is None or not found[1]:
            return self.store.describe_namespace(path)
        mount, below = found
        return mount.find_namespace(below)

    def resolved_table_id(self, path: Id) -> int | None:
        """Return the id of the table that authorization has looked up, for the store to act on no other.

        None: act on whatever has the name.
        """
        record = None if self.resolved is None else self.resolved.tables.get(path)
        return None if record is None else record.id

    def resolved_namespace_id(self, path: Id) -> int | None:
        """Return the id of the namespace that authorization has looked up, likewise."""
        return None if self.resolved is None else self.resolved.namespaces.get(path)

    def transact(self, work: Callable[[UnitOfWork], Response]) -> Response:
        """Run `work` in one catalog transaction that also stores its response for repeats of the request.

        For requests that the catalog alone fulfils; storage may be cleaned up after it. See `Store.transact`. Raises
        what `work` raises, and ConcurrentModificationError if a repeat of the request has begun by now.
        """

        def work_and_store_response(catalog: UnitOfWork) -> Response:
            response = work(catalog)
            if self.claims:
                catalog.record_response(self.claims, msgspec.json.encode(response).decode())
            return response

        return self.store.transact(work_and_store_response)

    def store_response(self, response: Response) -> Response:
        """Store the response of a request that another catalog has fulfilled, for its repeats; return it.

        Nothing is written for a request without a key. Raises as `transact` does.
        """
        return self.transact(lambda catalog: response) if self.claims else response

    def commit_route(self, record: TableRecord, *, durable: bool) -> CommitRoute | None:
        """Choose how commits reach a table: see CommitRouting."""
        return self.services.commit_routing(self, record, durable=durable)
