"""Record each request in the audit log and the metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from random import Random
from time import perf_counter
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

import msgspec

from tiltyard.api.metrics import Metrics
from tiltyard.audit import object_ids, open_trail, redact_context, sanitize_text
from tiltyard.audit.trail import AuditLevel
from tiltyard.model.modes import Outcome
from tiltyard.store import AuditRecord

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tiltyard.api.binding import Segments
    from tiltyard.context import Context, Services
    from tiltyard.model.ids import Id
    from tiltyard.model.operations import Handler
    from tiltyard.model.spec import Operation

REFUSALS = frozenset({401, 403, 429})
SEE_AS = "see_as"
DECISIONS = "decisions"
"""The entry that has what services outside have decided of the request; no client can set it either."""
MAX_REQUEST_ID = 128
"""Characters of an id that a client gives its request."""

_random = Random()  # noqa: S311  # for ids of requests, which are no secrets


def request_id(headers: Mapping[bytes, bytes]) -> str:
    """Return the client's own id where it is fit for a log line, else a new one."""
    own_id = headers.get(b"x-request-id", b"")
    if 0 < len(own_id) <= MAX_REQUEST_ID and own_id.isascii() and (text := own_id.decode()).isprintable():
        return text
    return _random.randbytes(16).hex()


"""The entry of a record's context that names the principal as whom an administrator looked; no client can set it."""


class _Objects(msgspec.Struct):
    """The ids of a query's tables, as the audit log reads them from a request."""

    entries: list[_Object]


class _Object(msgspec.Struct):
    id: list[str]


class RequestLog:
    """The audit trail and the metrics of one process."""

    def __init__(self, services: Services) -> None:
        self.trail = open_trail(services.settings, services.store)
        self.is_audited = self.trail.level is not AuditLevel.OFF
        self.metrics = Metrics()
        self.clock = services.clock

    def start(self, scope: dict[str, Any], request_id: str) -> LoggedRequest:
        """Start the record of a request."""
        self.metrics.start_request()
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
        log.metrics.end_request(
            self.operation, self.status, perf_counter() - self._started_at, self._first_byte_seconds
        )
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
        self._log.metrics.discard_request()

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
