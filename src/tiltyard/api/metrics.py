"""Export metrics in Prometheus' text format: what `request_log` has counted, and gauges, read at each scrape."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from enum import StrEnum
from ipaddress import ip_address
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import PermissionDeniedError, ServiceUnavailableError
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from tiltyard.access.authorization import is_administrator
from tiltyard.api.request_log import SECONDS
from tiltyard.model.ids import Id
from tiltyard.model.modes import TransactionStatus
from tiltyard.store import JobFilter
from tiltyard.store.access.grants import TABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from prometheus_client import Metric

    from tiltyard.api.binding import Headers
    from tiltyard.api.request_log import ProcessCounts, Tally
    from tiltyard.context import Context
    from tiltyard.runtime.cache import CountedCache
    from tiltyard.store import Store

PATH = b"/metrics"
MEDIA = CONTENT_TYPE_PLAIN_0_0_4
MAX_STREAMS = 1_000
"""How many running streams have a gauge: the newest."""
FORWARDED = (b"forwarded", b"x-forwarded-for", b"via")
_BOUNDS = (*map(str, SECONDS), "+Inf")
_CACHE_RESULTS = {"hits": "hit", "misses": "miss"}


def export(processes: Sequence[ProcessCounts], state: State) -> bytes:
    """Return all metrics in Prometheus' format; reads the database, so it takes a thread."""
    registry = CollectorRegistry()
    registry.register(_Requests(processes))
    registry.register(state)
    return generate_latest(registry)


class _Requests(Collector):
    """Requests that have ended or run, of all processes together."""

    def __init__(self, processes: Sequence[ProcessCounts]) -> None:
        self._processes = processes

    def collect(self) -> Iterable[Metric]:
        tallies = [tally for process in self._processes for tally in process.tallies]
        totals: defaultdict[tuple[str, int], int] = defaultdict(int)
        for tally in tallies:
            totals[tally.operation, tally.status] += tally.requests
        ended = CounterMetricFamily("tiltyard_requests", "Requests that have ended.", labels=("operation", "status"))
        for (operation, status), number in totals.items():
            ended.add_metric((operation, str(status)), number)
        durations = _histogram(
            "tiltyard_request_seconds",
            "Time from a request's head to the end of its response, including the time its client takes to read it.",
            ((tally, tally.within, tally.seconds) for tally in tallies),
        )
        first_bytes = _histogram(
            "tiltyard_request_first_byte_seconds",
            "Time from a request's head to the first byte of its response.",
            ((tally, tally.first_within, tally.first_seconds) for tally in tallies),
        )
        counts = [(process.routes, process.appends) for process in self._processes]
        queries = _by_route("tiltyard_queries", "Queries by the route that answered.", (each for each, _ in counts))
        appends = _by_route(
            "tiltyard_appends", "Commits of appended rows by their route.", (each for _, each in counts)
        )
        running = GaugeMetricFamily("tiltyard_requests_running", "Requests that have not ended.")
        # A process that was killed runs no requests, whatever it shared last.
        alive = [process for process in self._processes if is_alive(process.pid)]
        running.add_metric((), sum(process.running for process in alive))
        yield from (ended, durations, first_bytes, queries, appends, running, *_machinery(alive))
        yield from _decisions(self._processes)


def _machinery(processes: Iterable[ProcessCounts]) -> tuple[Metric, ...]:
    """Return the figures of caches, batchers, pools and child processes, and how caches were asked."""
    now = GaugeMetricFamily(
        "tiltyard_machinery",
        "Sizes, bounds, and what waits or is active, of the machinery of docs/architecture.md.",
        labels=("process", "kind", "name", "figure"),
    )
    asked = CounterMetricFamily(
        "tiltyard_cache_requests", "How often a cache was asked.", labels=("process", "name", "result")
    )
    for process in processes:
        for machine in process.machinery:
            for figure, number in machine.figures.items():
                if figure in _CACHE_RESULTS:
                    asked.add_metric((str(process.pid), machine.name, _CACHE_RESULTS[figure]), number)
                else:
                    now.add_metric((str(process.pid), machine.kind, machine.name, figure), number)
    return now, asked


def _decisions(processes: Iterable[ProcessCounts]) -> tuple[Metric, ...]:
    """Return how often services outside have decided what, and how long they were waited for."""
    decided = CounterMetricFamily(
        "tiltyard_decisions", "Decisions of services outside about requests.", labels=("service", "outcome")
    )
    waited = CounterMetricFamily(
        "tiltyard_decision_seconds", "Time for which a service that decides was waited for.", labels=("service",)
    )
    numbers: Counter[str] = Counter()
    seconds: defaultdict[str, float] = defaultdict(float)
    for process in processes:
        numbers.update(process.decisions)
        for service, number in process.decision_seconds.items():
            seconds[service] += number
    for name, number in numbers.items():
        decided.add_metric(name.split(" "), number)
    for service, number in seconds.items():
        waited.add_metric((service,), number)
    return decided, waited


def _by_route(name: str, documentation: str, counts: Iterable[Mapping[str, int]]) -> CounterMetricFamily:
    """Add up the counts of all processes by route."""
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    family = CounterMetricFamily(name, documentation, labels=("route",))
    for route, number in total.items():
        family.add_metric((route,), number)
    return family


def _histogram(
    name: str, documentation: str, counts: Iterable[tuple[Tally, list[int], float]]
) -> HistogramMetricFamily:
    """Add up counts by operation and class of status: a label for each status would be ten times as many."""
    seconds: defaultdict[tuple[str, str], float] = defaultdict(float)
    within: dict[tuple[str, str], list[int]] = {}
    for tally, numbers, total in counts:
        key = (tally.operation, f"{tally.status // 100}xx" if tally.status else "none")
        seconds[key] += total
        within[key] = [a + b for a, b in zip(within.get(key, [0] * len(numbers)), numbers, strict=True)]
    family = HistogramMetricFamily(name, documentation, labels=("operation", "status_class"))
    for key, numbers in within.items():
        family.add_metric(key, list(zip(_BOUNDS, accumulate(numbers), strict=True)), seconds[key])
    return family


MAX_SHARES = 20
"""Namespaces whose share of a cache is told."""
_OTHERS = "$others"
"""What the others are told as: no namespace has this name."""


class LoadUnit(StrEnum):
    """What the number of a load is, each a metric of its own: no graph adds bytes to requests."""

    COUNT = "load"
    BYTES = "bytes"
    TOTAL = "events"


_LOADS: Mapping[LoadUnit, tuple[type[GaugeMetricFamily | CounterMetricFamily], str]] = {
    LoadUnit.COUNT: (GaugeMetricFamily, "What waits, runs or is open in one process."),
    LoadUnit.BYTES: (GaugeMetricFamily, "Bytes that one process holds."),
    LoadUnit.TOTAL: (CounterMetricFamily, "What one process has done or lost since its start."),
}
_TOTALS = ("searches of ", "reads of ", "audit records lost")


def load_unit(name: str) -> LoadUnit:
    """Return the unit of a load, which the first words of its name say."""
    if name.startswith("bytes of "):
        return LoadUnit.BYTES
    return LoadUnit.TOTAL if name.startswith(_TOTALS) else LoadUnit.COUNT


class State(Collector):
    """The gauges of the catalog and of this process, read at each scrape."""

    def __init__(
        self, store: Store, gauges: Callable[[], Mapping[str, float]], caches: Sequence[CountedCache] = ()
    ) -> None:
        """`gauges` returns how much waits, runs, is cached or was lost in this process, by name; namespaces share
        `caches`.
        """
        self._store = store
        self._gauges = gauges
        self._caches = caches

    def collect(self) -> Iterable[Metric]:
        up = GaugeMetricFamily("tiltyard_catalog_up", "Whether the catalog's database is available.")
        lags = GaugeMetricFamily(
            "tiltyard_stream_lag", "Messages or files that a stream has not read yet.", labels=("job", "table")
        )
        jobs = GaugeMetricFamily("tiltyard_transactions", "Unfinished transactions.", labels=("kind", "status"))
        events = _event_families()
        quotas = _quota_families()
        stale = GaugeMetricFamily("tiltyard_table_stale", "Whether a table is older than it may be.", labels=("table",))
        try:
            for labels, waiting in self._store.transaction_counts().items():
                jobs.add_metric(labels, waiting)
            for record in self._store.list_jobs(JobFilter(("stream",), TransactionStatus.RUNNING), None, MAX_STREAMS):
                if "lag" in record.properties:
                    lags.add_metric((record.id, record.properties.get("table", "")), float(record.properties["lag"]))
            now = self._store.clock()
            for table in self._store.list_table_ages():
                stale.add_metric((str(Id(self._store.object_path(TABLE, table.table_id) or ())),), table.is_stale(now))
            self._add_events(*events)
            _add_quotas(self._store, *quotas)
            up.add_metric((), 1)
        except ServiceUnavailableError:
            up.add_metric((), 0)
        loads: dict[LoadUnit, GaugeMetricFamily | CounterMetricFamily] = {
            unit: family(f"tiltyard_process_{unit}", text, labels=("process", "what"))
            for unit, (family, text) in _LOADS.items()
        }
        for name, number in {**self._store.gauges(), **self._gauges()}.items():
            loads[load_unit(name)].add_metric((str(os.getpid()), name), number)
        yield from (up, jobs, lags, *events, stale, *quotas, _shares(self._caches), *loads.values())

    def _add_events(self, waiting: GaugeMetricFamily, failing: GaugeMetricFamily, dead: GaugeMetricFamily) -> None:
        """Read how far events are, and where they are not taken. Raises ServiceUnavailableError."""
        stream = self._store.event_stream()
        if stream is None:
            return
        letters = self._store.dead_letter_counts()
        for sink in self._store.list_event_sinks():
            waiting.add_metric((sink.name,), stream.last_position - sink.position)
            failing.add_metric((sink.name,), sink.attempts)
            dead.add_metric((sink.name,), letters.get(sink.name, (0, 0))[0])


def _shares(caches: Iterable[CountedCache]) -> Metric:
    """Return the bytes that caches keep for namespaces: for those with most, and for all others together."""
    family = GaugeMetricFamily(
        "tiltyard_cache_bytes", "Bytes that one process keeps of tables.", labels=("process", "name", "namespace")
    )
    for cache in caches:
        sizes = Counter(cache.sizes_by_tenant())
        shown = dict(sizes.most_common(MAX_SHARES))
        if rest := sizes.total() - sum(shown.values()):
            shown[_OTHERS] = rest
        for namespace, size in shown.items():
            family.add_metric((str(os.getpid()), cache.name, namespace), size)
    return family


def _quota_families() -> tuple[GaugeMetricFamily, GaugeMetricFamily]:
    labels = "kind", "subject", "resource"
    return (
        GaugeMetricFamily("tiltyard_quota_used", "What is used of a quota, by all servers.", labels=labels),
        GaugeMetricFamily("tiltyard_quota_limit", "The limits of a quota.", labels=(*labels, "limit")),
    )


def _add_quotas(store: Store, used: GaugeMetricFamily, limits: GaugeMetricFamily) -> None:
    """Read the quotas. Raises ServiceUnavailableError."""
    for use in store.list_quotas():
        quota = use.quota
        subject = ("principal", quota.principal) if quota.principal else ("namespace", str(Id(use.path)))
        used.add_metric((*subject, quota.resource), use.used)
        for limit, number in (("soft", quota.soft), ("hard", quota.hard)):
            if number is not None:
                limits.add_metric((*subject, quota.resource, limit), number)


def _event_families() -> tuple[GaugeMetricFamily, GaugeMetricFamily, GaugeMetricFamily]:
    return (
        GaugeMetricFamily("tiltyard_event_sink_lag", "Events that a sink has not acknowledged yet.", labels=("sink",)),
        GaugeMetricFamily(
            "tiltyard_event_sink_attempts", "How often the next event was not taken by a sink.", labels=("sink",)
        ),
        GaugeMetricFamily("tiltyard_event_dead_letters", "Events that a sink did not take.", labels=("sink",)),
    )


def is_local_request(scope: Mapping[str, Any], headers: Headers) -> bool:
    """Whether a request comes from this machine itself, and not through a proxy on it."""
    client = scope.get("client")
    if client is None or any(name in headers for name in FORWARDED):
        return False
    try:
        return ip_address(client[0]).is_loopback
    except ValueError:  # a name, as of a Unix socket
        return False


def check_reader(ctx: Context) -> None:
    """Raise PermissionDeniedError unless the principal is an administrator; may read the database."""
    if not is_administrator(ctx):
        raise PermissionDeniedError("Metrics are for administrators.")


def is_alive(pid: int) -> bool:
    """Whether a process of this machine runs."""
    try:
        os.kill(pid, 0)  # sends no signal
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's process, so it is alive
        return True
    return True
