"""Count what principals use, and refuse what is above their quotas or those of the namespaces that they use it in.

Requests and rows are counted in memory and added to the catalog every FLUSH_SECONDS, where each server reads what all
of them have used: a request writes nothing, and servers agree within seconds. So up to what comes in these seconds is
let through above a hard limit; tables and jobs are counted where they are created (`store/access/quotas`), to the last.

Rows are those that the transactions of versions say they bring, whoever committed them: read afterwards, in the
background. Only servers count; a catalog in process keeps to the quotas, and leaves its rows to nobody.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
from lance_namespace.errors import LanceNamespaceError, TransactionNotFoundError

from tiltyard.access.protections import named_paths
from tiltyard.model.branches import MAIN
from tiltyard.model.principals import Principal
from tiltyard.model.quotas import DAY_SECONDS, MINUTE_SECONDS, ROWS_AND_FILES, Resource, window_start
from tiltyard.runtime.batcher import WorkQueue
from tiltyard.store.access.quotas import QuotaUse, UsedTables, quota_error

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Sequence

    from tiltyard.store import Store, TableRecord

log = logging.getLogger("tiltyard.quotas")

FLUSH_SECONDS = 2.0
"""How often what was used is added to the catalog, and what others have used is read."""
MAX_NOTED = 10_000
"""Principals with namespaces, and versions, that are noted until then: what is above is not counted."""
_WINDOWS = {
    Resource.REQUESTS_PER_DAY: DAY_SECONDS,
    Resource.REQUESTS_PER_MINUTE: MINUTE_SECONDS,
    Resource.ROWS_PER_DAY: DAY_SECONDS,
    Resource.SQL_MEMORY: DAY_SECONDS,
}
"""For how long something is counted, and how often a soft limit is warned of."""

_OF_REQUESTS = (Resource.REQUESTS_PER_DAY, Resource.REQUESTS_PER_MINUTE)

FIRST_VERSION = MAIN.key, 1

Version = tuple[int, str, int]
"""The id of a table, the key of a branch, and the number of a version."""


class WrittenRows(msgspec.Struct, frozen=True):
    """What was read of versions of a table: the rows that each brings, with the id of the job that says to have written
    it, or "", and the bytes of its latest one on main.
    """

    rows: Mapping[tuple[str, int], tuple[int, str]]
    bytes: int | None


Whose = Principal | Mapping[str, int]
"""Who has committed a version, or how many of its rows are whose."""


class _Live(msgspec.Struct):
    """A quota with what is used of it by now, in the window from `since` to before `until`, both 0 without one."""

    use: QuotaUse
    used: int
    since: int
    until: int

    @property
    def is_full(self) -> bool:
        return self.use.quota.hard is not None and self.used >= self.use.quota.hard

    def refusal(self, now: int) -> LanceNamespaceError:
        return quota_error(msgspec.structs.replace(self.use, used=self.used), now)


_NO_QUOTAS: Sequence[_Live] = ()


class _Index:
    """Quotas by whose they are: a request meets few of many."""

    def __init__(self, quotas: Iterable[_Live]) -> None:
        self._by_principal: dict[str, Sequence[_Live]] = {}
        self._by_path: dict[tuple[str, ...], Sequence[_Live]] = {}
        for each in quotas:
            if name := each.use.quota.principal:
                self._by_principal[name] = [*self._by_principal.get(name, ()), each]
            else:
                self._by_path[each.use.path] = [*self._by_path.get(each.use.path, ()), each]

    def covering(self, principal: str, paths: Iterable[Sequence[str]]) -> Sequence[_Live]:
        """Return the quotas of a principal, and of the namespaces at and above paths."""
        found = self._by_principal.get(principal, _NO_QUOTAS)
        if self._by_path:
            for path in map(tuple, paths):
                for depth in range(len(path) + 1):
                    if above := self._by_path.get(path[:depth]):
                        found = [*found, *above]
        return found


_NONE = _Index(())


class QuotaChecks(WorkQueue):
    """The checks and the counts of one process. Thread-safe."""

    def __init__(
        self,
        store: Store,
        read_rows: Callable[[TableRecord, Sequence[tuple[str, int]]], WrittenRows],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`read_rows` reads what versions of a table bring, each the key of its branch and its number."""
        self._store = store
        self._read_rows = read_rows
        self._clock = clock
        self._requests: Counter[tuple[str, tuple[str, ...] | None]] = Counter()
        self._versions: dict[Version, Whose] = {}
        self._counted: Container[Version] = ()
        self._live: Sequence[_Live] = ()
        self._of_storing = self._of_requests = self._of_memory = _NONE
        self._warned: dict[tuple[str, int, str], int] = {}
        self._lost = 0
        self._read_at = -FLUSH_SECONDS
        self._is_counting = False
        self._timer: threading.Timer | None = None
        self._lock = threading.Lock()
        self._flushing = threading.Lock()
        super().__init__("usage", "Requests and rows by principal and namespace, to be added to the catalog")

    @property
    def waiting(self) -> int:
        return len(self._requests) + len(self._versions)

    def start(self) -> None:
        """Count from now on: this process is a server."""
        self._is_counting = True

    # Checks

    def check_requests(self, principal: str, path: Sequence[str] = ()) -> None:
        """Raise if all requests of a principal, or of the namespaces above a path, are used up; "" is none.

        Nothing is read: quotas are those of the last FLUSH_SECONDS. Raises PermissionDeniedError of those of a day,
        RequestsUsedUpError of those of a minute.
        """
        if covering := self._of_requests.covering(principal, (path,)):
            now = self._store.clock()
            for each in covering:
                _begin_window(each, now)
                if each.is_full:
                    raise each.refusal(now)

    def check_storing(self, principal: str, request: Any, resources: Sequence[Resource]) -> None:
        """Raise PermissionDeniedError if a request stores something where a quota of these is full."""
        if not resources:
            return
        self._read_if_old()
        for each in self._of_storing.covering(principal, _stored_at(request)):
            if each.is_full and each.use.quota.resource in resources:
                raise each.refusal(self._store.clock())

    def check_memory(self, principal: str, size: int) -> None:
        """Raise PermissionDeniedError if the SQL queries of a principal would have more bytes than it may."""
        self._read_if_old()
        for each in self._of_memory.covering(principal, ()):
            each.used = size
            self._warn(each)
            if each.use.quota.hard is not None and size > each.use.quota.hard:
                raise each.refusal(self._store.clock())

    def refresh_next(self) -> None:
        """Read the quotas at the next check: this server has changed one."""
        with self._lock:
            self._read_at = -FLUSH_SECONDS

    # Counts

    def count_request(self, principal: str, path: Sequence[str] | None = None) -> None:
        """Count a request of a principal about what is in the namespace of a path, None for nothing."""
        if not self._is_counting:
            return
        for each in self._of_requests.covering(principal, (path or (),)):
            each.used += 1
        key = principal, None if path is None else tuple(path)
        with self._lock:
            if key in self._requests or len(self._requests) < MAX_NOTED:
                self._requests[key] += 1
            else:
                self._lost += 1
            self._flush_later()

    def note_version(self, table_id: int, branch: str, version: int, whose: Whose) -> None:
        """Note a version that was committed: its rows are counted for a principal, or are known by principal.

        What an administrator commits for a job, as servers and drivers of jobs do, counts for who has asked for that.

        Of what is told of one within FLUSH_SECONDS, numbers count rather than a name, and the last ones of them; what
        was counted is counted once.
        """
        if not self._is_counting:
            return
        with self._lock:
            key = table_id, branch, version
            if key in self._counted or (key in self._versions and not isinstance(whose, Mapping)):
                return
            if key in self._versions or len(self._versions) < MAX_NOTED:
                self._versions[key] = whose
            else:
                self._lost += 1
            self._flush_later()

    def _flush_later(self) -> None:
        if self._timer is None:
            self._timer = threading.Timer(FLUSH_SECONDS, self._flush_noted)
            self._timer.daemon = True
            self._timer.start()

    def flush(self) -> None:
        """Add what was used to the catalog, and read what all have used. Raises ServiceUnavailableError."""
        with self._flushing:
            with self._lock:
                requests, self._requests = self._requests, Counter()
                versions, self._versions = self._versions, {}
                self._counted = frozenset(versions)
                lost, self._lost = self._lost, 0
                timer, self._timer = self._timer, None
            if timer is not None:
                timer.cancel()
            if lost:
                log.warning("%d requests and versions were too many at once to be counted", lost)
            used = self._read_versions(versions)
            if requests or versions:
                by_minute = any(each.use.quota.resource == Resource.REQUESTS_PER_MINUTE for each in self._live)
                self._store.add_usage(requests, used, by_minute=by_minute)
            self._read()

    def _flush_noted(self) -> None:
        try:
            self.flush()
        except LanceNamespaceError as error:
            log.warning("what was used in the last seconds is not counted: %s", error)

    def close(self) -> None:
        """Add what is noted, and end the timer."""
        self._is_counting = False
        if self._timer is not None:
            self._flush_noted()
        with self._flushing:  # one under way ends first
            pass

    def _read_versions(self, versions: Mapping[Version, Whose]) -> UsedTables:
        """Return what versions bring, and the tables that they are of."""
        by_table: dict[int, dict[tuple[str, int], Whose]] = {}
        for (table_id, branch, version), whose in versions.items():
            by_table.setdefault(table_id, {})[branch, version] = whose
        used = UsedTables(Counter(), {}, {})
        for table_id, committed in by_table.items():
            unread = [key for key, whose in committed.items() if not isinstance(whose, Mapping)]
            try:
                written = self._read_rows(self._store.table_by_id(table_id), unread)
            except LanceNamespaceError as error:  # it was dropped, or its storage is away: its next commit measures it
                log.debug("the versions of table %s are not read: %s", table_id, error)
                written = WrittenRows({}, None)
            for key, whose in committed.items():
                rows, job_id = written.rows.get(key, (0, ""))
                requester = "" if isinstance(whose, Mapping) or not whose.administrator else self._requester(job_id)
                if requester and key == FIRST_VERSION:
                    used.creators[table_id] = requester
                each = whose if isinstance(whose, Mapping) else {requester or whose.name: rows}
                used.rows.update({(name, table_id): number for name, number in each.items() if number})
            if written.bytes is not None:
                used.sizes[table_id] = written.bytes
        return used

    def _requester(self, job_id: str) -> str:
        """Return who has asked for a job, "" for the servers themselves.

        Only what administrators commit is asked about: others could name a job that is none of theirs.
        """
        with suppress(TransactionNotFoundError):
            return (self._store.describe_transaction(job_id).requested_by if job_id else None) or ""
        return ""

    # What all servers have used

    def _read_if_old(self) -> None:
        if self._clock() < self._read_at + FLUSH_SECONDS:
            return
        with self._flushing:
            if self._clock() >= self._read_at + FLUSH_SECONDS:  # no other thread has read it meanwhile
                self._read()

    def _read(self) -> None:
        with self._lock:
            self._read_at = self._clock()
        now = self._store.clock()
        self._live = [_live(use, now) for use in self._store.list_quotas()]
        self._of_requests = _Index(each for each in self._live if each.use.quota.resource in _OF_REQUESTS)
        self._of_memory = _Index(each for each in self._live if each.use.quota.resource == Resource.SQL_MEMORY)
        self._of_storing = _Index(each for each in self._live if each.use.quota.resource in ROWS_AND_FILES)
        for each in self._live:
            self._warn(each)

    def _warn(self, each: _Live) -> None:
        """Warn once in each window (of what has none, once until it is below again) that a soft limit is exceeded."""
        quota = each.use.quota
        key = quota.principal, quota.namespace_id, quota.resource
        if quota.soft is None or each.used < quota.soft:
            if each.since == 0:
                self._warned.pop(key, None)
            return
        if self._warned.get(key) != each.since:
            self._warned[key] = each.since
            log.warning(
                "quota of %s: %s has %d, above its soft limit of %d",
                quota.resource,
                each.use.subject,
                each.used,
                quota.soft,
            )


def _live(use: QuotaUse, now: int) -> _Live:
    seconds = _WINDOWS.get(Resource(use.quota.resource))
    if seconds is None:
        return _Live(use, use.used, 0, 0)
    since = window_start(now, seconds)
    return _Live(use, use.used, since, since + seconds * 1000)


def _begin_window(each: _Live, now: int) -> None:
    if now >= each.until:
        seconds = _WINDOWS[Resource(each.use.quota.resource)]
        each.since, each.used = window_start(now, seconds), 0
        each.until = each.since + seconds * 1000


def _stored_at(request: Any) -> Iterable[Sequence[str]]:
    """Return the paths of the tables that a request stores something in; of a batch, those that it commits to."""
    operations = getattr(request, "operations", None)
    if operations is None:
        return list(named_paths(request))
    commits = (getattr(each, "create_table_version", None) for each in operations)
    return [commit.id or () for commit in commits if commit is not None]
