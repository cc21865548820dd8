"""What is kept of every call: its record in the audit, and its share of the metrics."""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

from tiltyard.api.idempotency.keys import changes
from tiltyard.api.metrics import Metrics
from tiltyard.audit import named_objects, open_trail, printable, safe_context
from tiltyard.model.modes import Outcome
from tiltyard.model.spec import operations
from tiltyard.store import AuditRecord

if TYPE_CHECKING:
    from tiltyard.api.routing import Route, Segments
    from tiltyard.context import Context, Services

REFUSALS = frozenset({401, 403, 429})
BOOKKEEPING = frozenset({"BeatJob", "KeepJobPart"})
"""What the driver of a job notes of the job itself, many times a minute, is no change for the audit. What the job does
is: each of its commits, and when it was submitted, claimed and finished."""


class Accounts:
    """The accounts of one process."""

    def __init__(self, services: Services) -> None:
        self.trail = open_trail(services.settings, services.store)
        self.metrics = Metrics()
        self.clock = services.clock
        changing = {name for name, operation in operations().items() if changes(operation)}
        self.changing = frozenset(changing - BOOKKEEPING)

    def open(self, scope: dict[str, Any], request_id: str) -> Call:
        """A call has come."""
        self.metrics.began()
        return Call(self, scope, request_id)

    def loads(self) -> dict[str, float]:
        """How many records wait, and how many were lost."""
        return self.trail.gauges()

    def close(self) -> None:
        """Write what waits."""
        self.trail.close()


class Call:
    """One call, from its first byte to its last. The handler fills in what it learns of it."""

    __slots__ = (
        "_accounts",
        "_began",
        "_first",
        "_kept",
        "_scope",
        "code",
        "complete",
        "ctx",
        "operation",
        "repeated",
        "request",
        "request_id",
        "segments",
        "status",
    )

    def __init__(self, accounts: Accounts, scope: dict[str, Any], request_id: str) -> None:
        self._accounts = accounts
        self._scope = scope
        self._began = perf_counter()
        self._first: float | None = None
        self._kept = False
        self.request_id = request_id
        self.operation = ""
        self.segments: Segments = {}
        self.ctx: Context | None = None
        self.request: Any = None
        self.status = 0
        self.code: int | None = None
        self.repeated = False
        self.complete = False

    @property
    def address(self) -> str:
        """Where it came from; "" where that is not known (a socket in the file system)."""
        client = self._scope.get("client")
        return client[0] if client else ""

    def routed(self, route: Route, segments: Segments) -> None:
        """It is known what is asked."""
        self.operation = route.operation.name
        self.segments = segments

    def answer(self, status: int) -> asyncio.Future[None] | None:
        """The answer is about to begin: what was changed has its record before its caller hears of it.

        None, or what is to be waited for: it raises ServiceUnavailableError if the record cannot be written.
        """
        self.status = status
        accounts = self._accounts
        if status >= 300 or self.operation not in accounts.changing:
            return None
        outcome = Outcome.REPEATED if self.repeated else Outcome.OK
        if not accounts.trail.wants(outcome, changes=True):
            return None
        self._kept = True
        return asyncio.wrap_future(accounts.trail.write(self._records(outcome)))

    def answering(self) -> None:
        """The first byte of the answer goes out now."""
        self._first = perf_counter()

    def end(self) -> None:
        """The answer has been sent, or broke off."""
        accounts = self._accounts
        first = None if self._first is None else self._first - self._began
        accounts.metrics.ended(self.operation, self.status, perf_counter() - self._began, first)
        if self._kept and self.status < 300 and self.complete:
            return
        outcome = self._outcome()
        if self.operation and accounts.trail.wants(outcome, self.operation in accounts.changing):
            for record in self._records(outcome):
                accounts.trail.note(record)

    def _outcome(self) -> Outcome:
        if self.status in REFUSALS:
            return Outcome.REFUSED
        if self.status >= 400:
            return Outcome.FAILED
        if not self.complete:
            return Outcome.CUT
        return Outcome.REPEATED if self.repeated else Outcome.OK

    def _records(self, outcome: Outcome) -> list[AuditRecord]:
        """A record for each object that the call named, or one for none."""
        accounts, ctx = self._accounts, self.ctx
        micros = int((perf_counter() - self._began) * 1e6)
        return [
            AuditRecord(
                at=accounts.clock() - micros // 1000,
                id=accounts.trail.new_id(),
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
            for name in self._objects() or ("",)
        ]

    def _objects(self) -> tuple[str, ...]:
        if self.request is not None:
            return named_objects(self.request)
        raw = self.segments.get("id")  # refused before it was read: as it stands in the path
        return () if raw is None else (printable(unquote_to_bytes(raw).decode(errors="replace")),)

    def _context(self) -> dict[str, str]:
        entries = getattr(self.request, "context", None) or {}
        if self.ctx is not None and self.ctx.entries:
            entries = {**entries, **self.ctx.entries}
        return safe_context(entries) if entries else {}
