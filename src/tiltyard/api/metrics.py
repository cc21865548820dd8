"""Metrics in Prometheus' text format: calls are counted as they end, all else is looked up when somebody asks."""

from __future__ import annotations

import os
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import PermissionDeniedError, ServiceUnavailableError
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.registry import Collector

from tiltyard.access import is_administrator
from tiltyard.spec import operations

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from prometheus_client import Metric

    from tiltyard.api.requests import Headers
    from tiltyard.context import Context
    from tiltyard.store import Store

PATH = b"/metrics"
MEDIA = CONTENT_TYPE_PLAIN_0_0_4
SHARED_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""Where the processes of one server keep what each has counted; prometheus_client reads this variable by itself."""

OPERATION = operations()["ListAuditRecords"]
"""Whose callers may read metrics, too."""

FORWARDED = (b"forwarded", b"x-forwarded-for", b"via")
SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)
UNROUTED = "none"


class Metrics:
    """What one process counts. A call costs about a microsecond; twice that where several processes share."""

    def __init__(self) -> None:
        # A second series for each, which Prometheus does not need.
        disable_created_metrics()  # type: ignore[no-untyped-call]  # the library has no types here
        self._registry = CollectorRegistry()
        requests = Counter(
            "tiltyard_requests", "Requests that ended.", ("operation", "status"), registry=self._registry
        )
        seconds = Histogram(
            "tiltyard_request_seconds",
            "Time from a request's head to the end of its answer.",
            ("operation",),
            registry=self._registry,
            buckets=SECONDS,
        )
        self.running = Gauge(
            "tiltyard_requests_running",
            "Requests that have not ended.",
            registry=self._registry,
            multiprocess_mode="livesum",
        )
        self._requests, self._seconds = requests, seconds
        # Labels are bound once: to look them up costs more than to count.
        self._counters: dict[tuple[str, int], Counter] = {}
        self._histograms: dict[str, Histogram] = {}

    def ended(self, operation: str, status: int, seconds: float) -> None:
        """A request has ended; `operation` is "" where none was meant."""
        self.running.dec()
        counter = self._counters.get((operation, status))
        if counter is None:
            counter = self._requests.labels(operation or UNROUTED, str(status))
            self._counters[operation, status] = counter
            self._histograms[operation] = self._seconds.labels(operation or UNROUTED)
        counter.inc()
        self._histograms[operation].observe(seconds)

    def text(self, state: State) -> bytes:
        """All of it, for Prometheus; asks the database, so it takes a thread."""
        registry = self._registry
        if folder := os.environ.get(SHARED_FOLDER):
            _forget_the_dead(Path(folder))
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]  # the library has no types here
        now = CollectorRegistry()
        now.register(state)
        return generate_latest(registry) + generate_latest(now)


class State(Collector):
    """How things stand when somebody asks: the catalog, and the process that answers."""

    def __init__(self, store: Store, loads: Callable[[], Mapping[str, float]]) -> None:
        """`loads` tells how much waits or was lost in this process, by name."""
        self._store = store
        self._loads = loads

    def collect(self) -> Iterable[Metric]:
        """See Collector."""
        up = GaugeMetricFamily("tiltyard_catalog_up", "Whether the catalog's database answers.")
        jobs = GaugeMetricFamily("tiltyard_transactions", "Unfinished transactions.", labels=("kind", "status"))
        try:
            for labels, waiting in self._store.transaction_counts().items():
                jobs.add_metric(labels, waiting)
            up.add_metric((), 1)
        except ServiceUnavailableError:
            up.add_metric((), 0)  # what there is to say of it
        loads = GaugeMetricFamily(
            "tiltyard_process_load", "What waits, runs, is kept or was lost in one process.", labels=("process", "what")
        )
        for what, number in {**self._store.load(), **self._loads()}.items():
            loads.add_metric((str(os.getpid()), what), number)
        yield from (up, jobs, loads)


@contextmanager
def shared_metrics() -> Iterator[None]:
    """A folder in which the processes that are started meanwhile share what they count."""
    with TemporaryDirectory(prefix="tiltyard-metrics-") as folder:
        os.environ[SHARED_FOLDER] = folder
        yield


def asked_from_here(scope: Mapping[str, Any], headers: Headers) -> bool:
    """Whether a request comes from this machine itself, and not through a proxy on it."""
    client = scope.get("client")
    if client is None or any(name in headers for name in FORWARDED):
        return False
    try:
        return ip_address(client[0]).is_loopback
    except ValueError:  # a name, as a socket in the file system has
        return False


def check_reader(ctx: Context) -> None:
    """Raises PermissionDeniedError for who may not read metrics; may ask the database."""
    if not is_administrator(ctx):
        raise PermissionDeniedError("Metrics are for administrators.")


def _forget_the_dead(folder: Path) -> None:
    """A process that was killed runs no requests, whatever it counted last."""
    for file in folder.glob("gauge_live*_*.db"):
        pid = file.stem.rpartition("_")[2]
        if not Path(f"/proc/{pid}").exists() and Path("/proc/self").exists():
            mark_process_dead(int(pid), str(folder))  # type: ignore[no-untyped-call]  # the library has no types here
