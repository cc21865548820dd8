"""Metrics in Prometheus' text format: calls are counted as they end, all else is looked up when somebody asks."""

from __future__ import annotations

import asyncio
import logging
import os
import uuid
from bisect import bisect_left
from collections import defaultdict
from contextlib import contextmanager
from ipaddress import ip_address
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import msgspec
from lance_namespace.errors import PermissionDeniedError, ServiceUnavailableError
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from tiltyard.access import is_administrator
from tiltyard.model.spec import operations

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from prometheus_client import Metric

    from tiltyard.api.binding import Headers
    from tiltyard.context import Context
    from tiltyard.store import Store

PATH = b"/metrics"
MEDIA = CONTENT_TYPE_PLAIN_0_0_4
SHARED_FOLDER = "TILTYARD_COUNTED"
"""Names the folder where the processes of one server tell each other what each has counted."""
TOLD_SECONDS = 1.0
"""How often they do."""

OPERATION = operations()["ListAuditRecords"]
"""Whose callers may read metrics, too."""

FORWARDED = (b"forwarded", b"x-forwarded-for", b"via")
SECONDS = (
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    20.0,
    30.0,
    60.0,
    300.0,
)
_BOUNDS = (*map(str, SECONDS), "+Inf")
UNROUTED = "none"

log = logging.getLogger("tiltyard.api")


class _Tally(msgspec.Struct, array_like=True):
    """How many calls of one kind ended, how long they took together, and how many ended within each of SECONDS.

    `first_seconds` and `first_within` are the same until the first byte of the answer: that is the server's time, and
    the rest is how fast the client reads.
    """

    operation: str
    status: int
    calls: int = 0
    seconds: float = 0.0
    within: list[int] = msgspec.field(default_factory=lambda: [0] * (len(SECONDS) + 1))
    first_seconds: float = 0.0
    first_within: list[int] = msgspec.field(default_factory=lambda: [0] * (len(SECONDS) + 1))


class _Counted(msgspec.Struct):
    """What one process has counted since it started."""

    pid: int
    running: int
    tallies: list[_Tally]


class Metrics:
    """What one process counts. Belongs to its event loop.

    A call costs a microsecond: prometheus_client's own counters take ten where processes share them, a tenth of what
    a short request takes. So they are its families that are made here, when somebody asks, and processes tell each
    other once a second.
    """

    def __init__(self) -> None:
        self._running = 0
        self._tallies: dict[tuple[str, int], _Tally] = {}
        folder = os.environ.get(SHARED_FOLDER)
        self._file = Path(folder) / f"{os.getpid()}-{uuid.uuid4().hex}.json" if folder else None
        self._telling: asyncio.TimerHandle | None = None

    def began(self) -> None:
        """A request has come."""
        self._running += 1
        if self._telling is None and self._file is not None:
            self._telling = asyncio.get_running_loop().call_later(TOLD_SECONDS, self._tell)

    def ended(self, operation: str, status: int, seconds: float, first: float | None = None) -> None:
        """A request has ended; `operation` is "" where none was meant.

        `first` is when its answer began, in seconds as well; None for as it ended.
        """
        first = seconds if first is None else first
        self._running -= 1
        tally = self._tallies.get((operation, status))
        if tally is None:
            tally = self._tallies[operation, status] = _Tally(operation or UNROUTED, status)
        tally.calls += 1
        tally.seconds += seconds
        tally.within[bisect_left(SECONDS, seconds)] += 1
        tally.first_seconds += first
        tally.first_within[bisect_left(SECONDS, first)] += 1

    def counted(self) -> bytes:
        """All that was counted here until now."""
        return msgspec.json.encode(_Counted(os.getpid(), self._running, list(self._tallies.values())))

    def text(self, counted: bytes, state: State) -> bytes:
        """All of it, for Prometheus; asks the database, so it takes a thread. `counted` is what this process has."""
        registry = CollectorRegistry()
        registry.register(_Calls([_decoder.decode(counted), *self._others()]))
        registry.register(state)
        return generate_latest(registry)

    def _tell(self) -> None:
        assert self._file is not None
        self._telling = None
        whole = self._file.with_suffix(".new")
        try:
            whole.write_bytes(self.counted())
            whole.rename(self._file)
        except OSError as error:  # a full disk: nobody is refused for want of a count
            log.warning("cannot tell the other processes what this one has counted: %s", error)
        if self._running:  # what runs now has not been told as ended
            self._telling = asyncio.get_running_loop().call_later(TOLD_SECONDS, self._tell)

    def _others(self) -> Iterator[_Counted]:
        if self._file is None:
            return
        for file in sorted(self._file.parent.glob("*.json")):
            if file != self._file:
                yield _decoder.decode(file.read_bytes())


_decoder = msgspec.json.Decoder(_Counted)


class _Calls(Collector):
    """Calls that have ended or run, of all processes together."""

    def __init__(self, processes: Sequence[_Counted]) -> None:
        self._processes = processes

    def collect(self) -> Iterable[Metric]:
        """See Collector."""
        tallies = [tally for process in self._processes for tally in process.tallies]
        calls: defaultdict[tuple[str, int], int] = defaultdict(int)
        for tally in tallies:
            calls[tally.operation, tally.status] += tally.calls
        ended = CounterMetricFamily("tiltyard_requests", "Requests that ended.", labels=("operation", "status"))
        for (operation, status), number in calls.items():
            ended.add_metric((operation, str(status)), number)
        took = _histogram(
            "tiltyard_request_seconds",
            "Time from a request's head to the end of its answer, its client's reading included.",
            ((tally, tally.within, tally.seconds) for tally in tallies),
        )
        began = _histogram(
            "tiltyard_request_first_byte_seconds",
            "Time from a request's head to the first byte of its answer.",
            ((tally, tally.first_within, tally.first_seconds) for tally in tallies),
        )
        running = GaugeMetricFamily("tiltyard_requests_running", "Requests that have not ended.")
        # One that was killed runs no requests, whatever it told last.
        running.add_metric((), sum(process.running for process in self._processes if _is_alive(process.pid)))
        yield from (ended, took, began, running)


def _histogram(
    name: str, documentation: str, counted: Iterable[tuple[_Tally, list[int], float]]
) -> HistogramMetricFamily:
    """Add up what was counted, by operation and class of status: a label for each status would be ten times as many."""
    seconds: defaultdict[tuple[str, str], float] = defaultdict(float)
    within: dict[tuple[str, str], list[int]] = {}
    for tally, numbers, total in counted:
        key = (tally.operation, f"{tally.status // 100}xx" if tally.status else "none")
        seconds[key] += total
        within[key] = [a + b for a, b in zip(within.get(key, [0] * len(numbers)), numbers, strict=True)]
    family = HistogramMetricFamily(name, documentation, labels=("operation", "status_class"))
    for key, numbers in within.items():
        family.add_metric(key, list(zip(_BOUNDS, accumulate(numbers), strict=True)), seconds[key])
    return family


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
        for what, number in {**self._store.gauges(), **self._loads()}.items():
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


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)  # which sends nothing
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's, so it is there
        return True
    return True
