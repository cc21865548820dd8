"""What every operation is given: the catalog, the storage, the settings, and who asks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec

from tiltyard.model.principals import EVERYBODY, Principal

if TYPE_CHECKING:
    from tiltyard.access import Access
    from tiltyard.config import Settings
    from tiltyard.model.ids import Id
    from tiltyard.model.paging import Paging
    from tiltyard.runtime.outage_log import Outages
    from tiltyard.storage import Storage
    from tiltyard.storage.commit_route import Road
    from tiltyard.store import Claim, Store, TableRecord, UnitOfWork
    from tiltyard.tables.commits.finalized_log import Finished
    from tiltyard.tables.commits.finalizing_backoff import Retries
    from tiltyard.tables.commits.known_tables import KnownTables
    from tiltyard.tables.opening import OpenTable


Answer = TypeVar("Answer")


class Roads(Protocol):
    """Which way commits to a table take, of files that are `durable` or still to be made so; None is straight."""

    def __call__(self, ctx: Context, record: TableRecord, *, durable: bool) -> Road | None: ...


def straight(ctx: Context, record: TableRecord, *, durable: bool) -> Road | None:
    """Every commit goes straight to storage."""
    return None


NO_SPACES: Mapping[Id, int] = {}
NO_ENTRIES: Mapping[str, str] = {}


def nothing() -> None:
    """Do nothing."""


@dataclass(frozen=True, slots=True)
class Services:
    """What lives as long as the process; `road` says which way commits to a table take."""

    settings: Settings
    store: Store
    storage: Storage
    paging: Paging
    clock: Callable[[], int]
    access: Access
    finished: Finished
    known: KnownTables
    outages: Outages
    retries: Retries
    road: Roads = straight


class Found(msgspec.Struct, frozen=True, eq=False):
    """What the check of the grants has found under the names of a request, so that nothing else is acted on.

    `tables` has None where there was no table. `spaces` has the ids of namespaces, 0 where there was none that whoever
    asks may see: no namespace has it.
    """

    tables: Mapping[Id, TableRecord | None]
    spaces: Mapping[Id, int]


class Context(msgspec.Struct, frozen=True, eq=False):
    """One request: the services, and what came with it.

    `entries` are the context entries of the specification; `clock` counts milliseconds since 1970. `claims` are the
    requests with a key that a commit made here fulfils (`docs/exactly-once.md`); `confirm` is called when the whole
    body has come and before it is committed, and raises if it must not be. `found` is what the check has found, for a
    principal who is no administrator, or what was looked for before to see how a request may run. `check_time` is
    called between two batches of a query, and raises ServiceUnavailableError when nobody waits for it any more.
    `opened` is a table of `found` at its latest version, where that was looked up to see how the request may run.
    """

    services: Services
    request_id: str = ""
    entries: Mapping[str, str] = NO_ENTRIES
    claims: tuple[Claim, ...] = ()
    confirm: Callable[[], None] = nothing
    principal: Principal = EVERYBODY
    found: Found | None = None
    check_time: Callable[[], None] = nothing
    opened: OpenTable | None = None

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
    def access(self) -> Access:
        return self.services.access

    def having(self, tables: Mapping[Id, TableRecord | None], spaces: Mapping[Id, int] = NO_SPACES) -> Context:
        """The same request, once the check has found what is under its names; half the time of `replace`."""
        given = self.services, self.request_id, self.entries, self.claims, self.confirm
        return Context(*given, self.principal, Found(tables, spaces), self.check_time)

    def having_opened(self, path: Id, table: OpenTable, check_time: Callable[[], None] = nothing) -> Context:
        """The same request, once its table has been opened to see how it may run."""
        given = self.services, self.request_id, self.entries, self.claims, self.confirm
        return Context(*given, self.principal, Found({path: table.record}, NO_SPACES), check_time, table)

    def table(self, path: Id) -> TableRecord:
        """A table's record; the one that the check has found, if it has, so that none takes its place meanwhile.

        Raises NamespaceNotFoundError, TableNotFoundError.
        """
        found = self.found
        record = None if found is None else found.tables.get(path)
        return self.store.describe_table(path) if record is None else record

    def checked_table(self, path: Id) -> int | None:
        """The id of the table that the check has found, for the store to act on no other; None: whatever is there."""
        record = None if self.found is None else self.found.tables.get(path)
        return None if record is None else record.id

    def checked_space(self, path: Id) -> int | None:
        """The id of the namespace that the check has found, likewise."""
        return None if self.found is None else self.found.spaces.get(path)

    def once(self, work: Callable[[UnitOfWork], Answer]) -> Answer:
        """What `work` answers, in one transaction that keeps it for a repeat of the request: see `Store.transact`.

        For what the catalog alone fulfils; storage may be tidied up after it. Raises what `work` raises,
        ConcurrentModificationError if a repeat of the request was begun by now.
        """

        def noted(catalog: UnitOfWork) -> Answer:
            answer = work(catalog)
            if self.claims:
                catalog.note_answer(self.claims, msgspec.json.encode(answer).decode())
            return answer

        return self.store.transact(noted)

    def road(self, record: TableRecord, *, durable: bool) -> Road | None:
        """Which way commits to a table take: see Roads."""
        return self.services.road(self, record, durable=durable)

    @property
    def clock(self) -> Callable[[], int]:
        return self.services.clock
