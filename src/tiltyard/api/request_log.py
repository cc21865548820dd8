"""Record each request: count it and its time, for the metrics of all processes of a server, and write the audit log."""

from __future__ import annotations

import asyncio
import logging
import os
import uuid
from bisect import bisect_left
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

import msgspec

from tiltyard.audit import object_ids, open_trail, redact_context, sanitize_text
from tiltyard.audit.trail import AuditLevel
from tiltyard.model.modes import Outcome
from tiltyard.runtime.machinery import MachineFigures, read_figures
from tiltyard.store import AuditRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tiltyard.api.binding import Segments
    from tiltyard.context import Context, Services
    from tiltyard.model.ids import Id
    from tiltyard.model.operations import Handler
    from tiltyard.model.spec import Operation

REFUSALS = frozenset({401, 403, 429})
SEE_AS = "see_as"
"""The entry of a record's context that names the principal as whom an administrator looked; no client can set it."""
DECISIONS = "decisions"
"""The entry that has what services outside have decided of the request; no client can set it either."""
MAX_REQUEST_ID = 128
"""Characters of an id that a client gives its request."""

SHARED_FOLDER = "TILTYARD_COUNTED"
"""The environment variable that names the folder in which the processes of one server share their counts."""
SHARE_SECONDS = 1.0
"""How often a process writes its counts."""

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
UNROUTED = "none"
"""What requests without an operation are counted as."""

log = logging.getLogger("tiltyard.api")

_random = Random()  # noqa: S311  # for ids of requests, which are no secrets


def request_id(headers: Mapping[bytes, bytes]) -> str:
    """Return the client's own id where it is fit for a log line, else a new one."""
    own_id = headers.get(b"x-request-id", b"")
    if 0 < len(own_id) <= MAX_REQUEST_ID and own_id.isascii() and (text := own_id.decode()).isprintable():
        return text
    return _random.randbytes(16).hex()


class _Objects(msgspec.Struct):
    """The ids of a query's tables, as the audit log reads them from a request."""

    entries: list[_Object]


class _Object(msgspec.Struct):
    id: list[str]


class Tally(msgspec.Struct, array_like=True):
    """The number of requests with one operation and status, their total duration, and how many took up to each SECONDS.

    `first_seconds` and `first_within` are the same until the first byte of the response: that is the server's time, and
    what follows depends on how fast the client reads.
    """

    operation: str
    status: int
    requests: int = 0
    seconds: float = 0.0
    within: list[int] = msgspec.field(default_factory=lambda: [0] * (len(SECONDS) + 1))
    first_seconds: float = 0.0
    first_within: list[int] = msgspec.field(default_factory=lambda: [0] * (len(SECONDS) + 1))


class ProcessCounts(msgspec.Struct):
    """The counts of one process since it started, and its loads: how much waits, runs, is cached or was lost."""

    pid: int
    running: int
    tallies: list[Tally]
    loads: dict[str, float] = {}  # msgspec copies it
    routes: dict[str, int] = {}
    """Queries that each route has answered."""
    appends: dict[str, int] = {}
    """Appends that were committed by each route."""
    machinery: list[MachineFigures] = []
    decisions: dict[str, int] = {}
    """Decisions of services outside, by service and outcome."""
    decision_seconds: dict[str, float] = {}
    """How long they were waited for, by service."""


class RequestCounts:
    """The counts of one process. Belongs to its event loop.

    To count a request takes a microsecond: prometheus_client's own counters take ten where processes share them, a
    tenth of what a short request takes. So only its metric families are used, made at each scrape, and processes share
    their counts once a second.
    """

    def __init__(self) -> None:
        self._running = 0
        self._tallies: dict[tuple[str, int], Tally] = {}
        self.read_loads: Callable[[], Mapping[str, float]] = dict
        """Reads the loads of this process, once whoever knows them has said how."""
        self.read_routes: Callable[[], Mapping[str, int]] = dict
        """Reads how many queries each route has answered, likewise."""
        self.read_appends: Callable[[], Mapping[str, int]] = dict
        """Reads how many appends were committed by each route, likewise."""
        self.read_decisions: Callable[[], Mapping[str, int]] = dict
        """Reads how many decisions of services outside there were, by service and outcome, likewise."""
        self.read_decision_seconds: Callable[[], Mapping[str, float]] = dict
        """Reads how long they were waited for, by service, likewise."""
        folder = os.environ.get(SHARED_FOLDER)
        self._file = Path(folder) / f"{os.getpid()}-{uuid.uuid4().hex}.json" if folder else None
        self._share_timer: asyncio.TimerHandle | None = None

    def start_request(self) -> None:
        """Count a request as running."""
        self._running += 1
        if self._share_timer is None and self._file is not None:
            self._share_timer = asyncio.get_running_loop().call_later(SHARE_SECONDS, self._share)

    def end_request(self, operation: str, status: int, seconds: float, first_seconds: float | None = None) -> None:
        """Count a request as ended; `operation` is "" for one without a route.

        `first_seconds` is when the first byte of its response was sent; None: at its end.
        """
        first = seconds if first_seconds is None else first_seconds
        self._running -= 1
        tally = self._tallies.get((operation, status))
        if tally is None:
            tally = self._tallies[operation, status] = Tally(operation or UNROUTED, status)
        tally.requests += 1
        tally.seconds += seconds
        tally.within[bisect_left(SECONDS, seconds)] += 1
        tally.first_seconds += first
        tally.first_within[bisect_left(SECONDS, first)] += 1

    def discard_request(self) -> None:
        """Count a request as running no more, and as none that was answered here."""
        self._running -= 1

    def encoded(self) -> bytes:
        """Return the counts of this process until now."""
        return msgspec.json.encode(
            ProcessCounts(
                pid=os.getpid(),
                running=self._running,
                tallies=list(self._tallies.values()),
                loads=dict(self.read_loads()),
                routes=dict(self.read_routes()),
                appends=dict(self.read_appends()),
                machinery=read_figures(),
                decisions=dict(self.read_decisions()),
                decision_seconds=dict(self.read_decision_seconds()),
            )
        )

    def read_processes(self, counts: bytes) -> list[ProcessCounts]:
        """Return the counts of all processes of this server, this one's first, `counts` (`encoded`)."""
        return [_decoder.decode(counts), *self._counts_of_other_processes()]

    def share(self) -> None:
        """Have the other processes know of this one, before it has counted anything."""
        if self._file is not None:
            if self._share_timer is not None:
                self._share_timer.cancel()
            self._share()

    def _share(self) -> None:
        assert self._file is not None
        self._share_timer = None
        new = self._file.with_suffix(".new")
        try:
            new.write_bytes(self.encoded())
            new.rename(self._file)
        except OSError as error:  # a full disk: no request fails for want of a count
            log.warning("cannot share the counts of this process with the others: %s", error)
        if self._running:  # the end of what runs now has not been shared
            self._share_timer = asyncio.get_running_loop().call_later(SHARE_SECONDS, self._share)

    def _counts_of_other_processes(self) -> Iterator[ProcessCounts]:
        if self._file is None:
            return
        for file in sorted(self._file.parent.glob("*.json")):
            if file != self._file:
                yield _decoder.decode(file.read_bytes())


_decoder = msgspec.json.Decoder(ProcessCounts)


@contextmanager
def shared_counts() -> Iterator[None]:
    """Make a folder in which the processes started within this context share their counts."""
    with TemporaryDirectory(prefix="tiltyard-metrics-") as folder:
        os.environ[SHARED_FOLDER] = folder
        yield


class RequestLog:
    """The audit trail and the counts of one process."""

    def __init__(self, services: Services) -> None:
        self.trail = open_trail(services.settings, services.store)
        self.is_audited = self.trail.level is not AuditLevel.OFF
        self.counts = RequestCounts()
        self.clock = services.clock

    def start(self, scope: dict[str, Any], request_id: str) -> LoggedRequest:
        """Start the record of a request."""
        self.counts.start_request()
        return LoggedRequest(self, scope, request_id)

    def gauges(self) -> dict[str, float]:
        """Return how many audit records wait to be written, and how many were lost, for the metrics."""
        return self.trail.gauges()

    def close(self) -> None:
        """Write the audit records that wait."""
        self.trail.close()


class LoggedRequest:
    """The record of one request, from its first byte to the last of its response. The api sets its attributes."""

    __slots__ = (
        "_first_byte_seconds",
        "_has_record",
        "_log",
        "_scope",
        "_started_at",
        "code",
        "complete",
        "ctx",
        "forwarded_for",
        "is_audited_change",
        "is_replay",
        "is_share",
        "operation",
        "request",
        "request_id",
        "response_bytes",
        "seen_as",
        "segments",
        "status",
    )

    def __init__(self, log: RequestLog, scope: dict[str, Any], request_id: str) -> None:
        self._log = log
        self._scope = scope
        self._started_at = perf_counter()
        self._first_byte_seconds: float | None = None
        self._has_record = False
        self.request_id = request_id
        self.operation = ""
        self.is_audited_change = False
        self.seen_as = ""
        self.segments: Segments = {}
        self.ctx: Context | None = None
        self.request: Any = None
        self.status = 0
        self.code: int | None = None
        self.is_replay = False
        self.complete = False
        self.response_bytes = 0
        self.forwarded_for: str | None = None
        """The client's address at the server of the catalog that has forwarded the request, and records it."""
        self.is_share = False
        """Whether it is a part of a request that another server has, and counts."""

    @property
    def address(self) -> str:
        """The client's address; "" where it is unknown (a Unix socket)."""
        if self.forwarded_for is not None:
            return self.forwarded_for
        client = self._scope.get("client")
        return client[0] if client else ""

    @property
    def client(self) -> tuple[str, int] | None:
        """The client's address and port."""
        client: tuple[str, int] | None = self._scope.get("client")
        return client

    def set_route(self, operation: Operation, handler: Handler, segments: Segments) -> None:
        """Set the operation that the request calls."""
        self.operation = operation.name
        self.is_audited_change = handler.changes and handler.audited
        self.segments = segments

    def set_query(self, operation: str, paths: Sequence[Id]) -> None:
        """Set what the request does with a query of SQL, which is no operation, and the tables that the query names."""
        self.operation = operation
        self.request = _Objects([_Object(list(path)) for path in paths])

    def see_as(self, name: str) -> None:
        """Record the request as one by which its principal sees what another one would, whatever it changes."""
        self.is_audited_change, self.seen_as = True, name

    def before_response(self, status: int) -> asyncio.Future[None] | None:
        """Write the audit record of a change, before its client gets a byte of the response.

        Return a future to wait for, which raises ServiceUnavailableError if the record cannot be written; None for what
        is not recorded as a change.
        """
        self.status = status
        trail = self._log.trail
        if status >= 300 or not self.is_audited_change:
            return None
        outcome = Outcome.REPEATED if self.is_replay else Outcome.OK
        if not trail.should_record(outcome, changes=True):
            return None
        self._has_record = True
        return asyncio.wrap_future(trail.write(self._records(outcome)))

    def on_first_byte(self) -> None:
        """Take the time of the response's first byte, which is sent now."""
        self._first_byte_seconds = perf_counter() - self._started_at

    def end(self) -> None:
        """Count the request in the metrics, and record its outcome: its response has been sent, or was cut."""
        log = self._log
        if self.is_share:
            self.discard()
            return
        log.counts.end_request(self.operation, self.status, perf_counter() - self._started_at, self._first_byte_seconds)
        if (
            not log.is_audited
            or self.forwarded_for is not None
            or (self._has_record and self.status < 300 and self.complete)
        ):
            return
        outcome = self._outcome()
        if self.operation and log.trail.should_record(outcome, self.is_audited_change):
            for record in self._records(outcome):
                log.trail.enqueue(record)

    def discard(self) -> None:
        """Record nothing of the request: another process does."""
        self._log.counts.discard_request()

    def _outcome(self) -> Outcome:
        if self.status in REFUSALS:
            return Outcome.REFUSED
        if self.status >= 400:
            return Outcome.FAILED
        if not self.complete:
            return Outcome.CUT
        return Outcome.REPEATED if self.is_replay else Outcome.OK

    def _records(self, outcome: Outcome) -> list[AuditRecord]:
        """Return an audit record for each object that the request names, or one without an object."""
        log, ctx = self._log, self.ctx
        micros = int((perf_counter() - self._started_at) * 1e6)
        return [
            AuditRecord(
                at=log.clock() - micros // 1000,
                id=log.trail.new_record_id(),
                principal=ctx.principal.name if ctx else "",
                method=ctx.principal.method if ctx else "",
                operation=self.operation,
                object=name,
                outcome=outcome.value,
                status=self.status,
                code=self.code,
                request_id=self.request_id,
                address=self.address,
                duration_micros=micros,
                context=self._context(),
            )
            for name in self.objects() or ("",)
        ]

    def objects(self) -> tuple[str, ...]:
        """Return the ids of the objects that the request names."""
        if self.request is not None:
            return object_ids(self.request)
        raw = self.segments.get("id")  # refused before it was bound: as it stands in the path
        return () if raw is None else (sanitize_text(unquote_to_bytes(raw).decode(errors="replace")),)

    def _context(self) -> dict[str, str]:
        entries = getattr(self.request, "context", None) or {}
        if self.ctx is not None and self.ctx.entries:
            entries = {**entries, **self.ctx.entries}
        decided = "; ".join(map(str, self.ctx.decided)) if self.ctx is not None and self.ctx.decided else ""
        own = {name: value for name, value in ((SEE_AS, self.seen_as), (DECISIONS, decided)) if value}
        if own or SEE_AS in entries or DECISIONS in entries:
            entries = {**own, **{name: value for name, value in entries.items() if name not in (SEE_AS, DECISIONS)}}
        return redact_context(entries) if entries else {}
