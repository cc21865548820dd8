"""The writer behind the calls: gathers records and writes them in batches.

A call that changed something waits for its record; of all others the last half second may be lost with the process.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass
from enum import StrEnum
from itertools import count
from typing import TYPE_CHECKING, Protocol, Self

from lance_namespace.errors import LanceNamespaceError, ServiceUnavailableError

from tiltyard.audit.entries import entry
from tiltyard.audit.lines import Lines
from tiltyard.model.modes import Outcome
from tiltyard.store import AuditRecord

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tiltyard.config import Settings
    from tiltyard.model.spec import models
    from tiltyard.store import Store

log = logging.getLogger("tiltyard.audit")

GATHER_SECONDS = 0.5
"""How long records that nobody waits for are gathered."""

BATCH = 500
MOST_WAITING = 50_000
"""Records held while the database is away: some 50 MB. More are dropped, and counted."""

RETRY_SECONDS = 1.0
LOG_SECONDS = 60.0
"""How often at most the log says that records still wait."""
CLOSING_SECONDS = 5.0


class Level(StrEnum):
    """Which calls leave a record. Refusals (401, 403, 429) always do, unless it is off."""

    OFF = "off"
    CHANGES = "changes"
    ALL = "all"

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """The level that is set; `auto` is changes where callers are asked who they are, else off."""
        if settings.audit.lower() == "auto":
            return cls("changes" if settings.auth else "off")
        return cls(settings.audit.lower())


class Sink(Protocol):
    """Where records go besides the database."""

    name: str

    def lost(self) -> int:
        """How many records it could not keep."""

    def take(self, entries: Sequence[models.AuditEntry]) -> None:
        """Take records; says in the log what it could not keep, and raises nothing."""

    def close(self) -> None:
        """Send what can be sent within a few seconds."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    record: AuditRecord
    written: Future[None] | None


class Trail:
    """Writes the audit of one process. `note` and `write` may be called from any thread."""

    def __init__(self, store: Store, level: Level, sinks: Sequence[Sink] = ()) -> None:
        self.level = level
        self.dropped = 0
        self._store = store
        self._sinks = sinks
        self._waiting: deque[_Waiting] = deque()
        self._late: list[AuditRecord] = []
        self._log_at = 0.0
        self._wake = threading.Event()
        self._closing = False
        self._process = uuid.uuid4().hex[:16]
        self._numbers = count()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def wants(self, outcome: Outcome, changes: bool) -> bool:
        """Whether a call that ended so leaves a record."""
        if self.level is Level.CHANGES:
            return changes or outcome is Outcome.REFUSED
        return self.level is Level.ALL

    def new_id(self) -> str:
        """An id that no other record has, on any server."""
        return f"{self._process}-{next(self._numbers):08x}"

    def note(self, record: AuditRecord) -> None:
        """Write a record soon. Where the database has been away for long, it is dropped, and counted."""
        if len(self._waiting) + len(self._late) >= MOST_WAITING:
            self._drop(1)
            return
        self._add(_Waiting(record, None))

    def write(self, records: Sequence[AuditRecord]) -> Future[None]:
        """Write records at once, in this order; the future is done once they are durable.

        It raises ServiceUnavailableError if the database does not take them; they are tried again all the same.
        """
        for record in records[:-1]:
            self._add(_Waiting(record, None))
        written: Future[None] = Future()
        written.set_running_or_notify_cancel()  # a caller that goes away must not cancel it: the thread will set it
        self._add(_Waiting(records[-1], written))
        self._wake.set()
        return written

    def gauges(self) -> dict[str, float]:
        """How many records wait, and how many were lost, by name."""
        found: dict[str, float] = {
            "audit records waiting": len(self._waiting) + len(self._late),
            "audit records lost": self.dropped,
        }
        return found | {f"audit records lost by {sink.name}": sink.lost() for sink in self._sinks}

    def close(self) -> None:
        """Write what waits, for a few seconds at most; no record may come after this."""
        self._closing = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(CLOSING_SECONDS)
        for sink in self._sinks:
            sink.close()

    def _add(self, waiting: _Waiting) -> None:
        self._waiting.append(waiting)
        if self._thread is None:
            with self._starting:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
                    self._thread.start()

    def _drop(self, number: int) -> None:
        if not self.dropped:
            log.error("audit records are being dropped: the database has not taken any for too long")
        self.dropped += number

    # What follows runs in the thread.

    def _run(self) -> None:
        closing = False
        while not closing:
            self._wake.wait(GATHER_SECONDS)
            self._wake.clear()
            closing = self._closing  # before the work: all that came before `close` is tried once more after it
            while self._waiting:
                self._write_batch()
            if self._late:
                self._write_late()

    def _write_batch(self) -> None:
        batch = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
        records = [waiting.record for waiting in batch]
        self._send(records)
        error: Exception | None = None
        try:
            self._store.add_audit(records)
        except Exception as failure:  # noqa: BLE001 - whatever it is, those who wait are told, and the thread goes on
            error = failure
            self._keep(records, failure)
        for waiting in batch:
            if waiting.written is not None:
                if error is None:
                    waiting.written.set_result(None)
                else:
                    waiting.written.set_exception(_unwritten(error))

    def _send(self, records: Sequence[AuditRecord]) -> None:
        if self._sinks:
            entries = [entry(record) for record in records]
            for sink in self._sinks:
                try:
                    sink.take(entries)
                except Exception:  # those who wait for the database must not hang on a sink
                    log.exception("%d audit records are not with %s", len(entries), sink.name)

    def _keep(self, records: list[AuditRecord], error: Exception) -> None:
        """Keep what could not be written for later; the log has it meanwhile."""
        unforeseen = None if isinstance(error, LanceNamespaceError) else error
        log.error("%d audit records are not written yet: %s", len(records), error, exc_info=unforeseen)
        for record in records:
            log.error("audit record: %r", entry(record))  # as Python shows it: whatever is in it, it can be logged
        room = max(0, MOST_WAITING - len(self._late))
        self._late += records[:room]
        if len(records) > room:
            self._drop(len(records) - room)

    def _write_late(self) -> None:
        while self._late:
            batch = self._late[:BATCH]
            try:
                self._store.add_audit(batch)
            except ServiceUnavailableError as error:
                if time.monotonic() >= self._log_at:
                    log.warning("%d audit records are not written yet: %s", len(self._late), error)
                    self._log_at = time.monotonic() + LOG_SECONDS
                if not self._closing:
                    self._wake.wait(RETRY_SECONDS)
                return
            except Exception:  # what the database will never take must not keep back all that follows
                log.exception("%d audit records cannot be written, and are dropped", len(batch))
                self.dropped += len(batch)
            del self._late[: len(batch)]
        log.warning("the audit records that waited are written")


def check_audit(settings: Settings) -> None:
    """Raise ConfigError for a file of the audit that cannot be written."""
    if settings.audit_lines and Level.of(settings) is not Level.OFF:
        Lines(settings.audit_lines)


def open_trail(settings: Settings, store: Store) -> Trail:
    """The audit as the settings want it. Raises ConfigError for a file that cannot be written."""
    level = Level.of(settings)
    sinks: list[Sink] = []
    if level is not Level.OFF and settings.audit_lines:
        sinks.append(Lines(settings.audit_lines))
    if level is not Level.OFF and settings.audit_webhook:
        from tiltyard.audit.webhook import Webhook  # noqa: PLC0415 - an HTTP client, only for those who want it

        sinks.append(Webhook(settings.audit_webhook, settings.audit_webhook_headers))
    return Trail(store, level, sinks)


def _unwritten(error: Exception) -> ServiceUnavailableError:
    failure = ServiceUnavailableError(
        "What was asked was done, but its audit record cannot be written yet: ask what is there before you try again."
    )
    failure.__cause__ = error
    return failure
