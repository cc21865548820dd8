"""The audit trail of a process: a queue of records that a thread writes to the catalog and a file, in batches.

A request that changed something waits for its record. Of all other records, the last half second may be lost with the
process. The queue is no `runtime.batcher.Batcher`: most records have no caller that waits, what waits is bounded,
failed batches are written later, and closing is limited in time.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import uuid
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass
from enum import StrEnum
from itertools import count
from typing import TYPE_CHECKING, Self

import msgspec
from lance_namespace.errors import LanceNamespaceError, ServiceUnavailableError

from tiltyard.audit.entries import to_entry
from tiltyard.config import ConfigError
from tiltyard.model.modes import Outcome
from tiltyard.runtime.batcher import WorkQueue
from tiltyard.runtime.durability import append_lines
from tiltyard.store import AuditRecord

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tiltyard.config import Settings
    from tiltyard.model.spec import models
    from tiltyard.store import Store


log = logging.getLogger("tiltyard.audit")

BATCH_SIZE = 500
FLUSH_SECONDS = 0.5
"""How often records that nobody waits for are written."""
MAX_QUEUED = 50_000
"""Records held while the database is unavailable: some 50 MB. More are dropped, and counted."""

RETRY_SECONDS = 1.0
LOG_SECONDS = 60.0
"""Interval of the log message that records are still waiting."""
CLOSING_SECONDS = 5.0


class AuditLevel(StrEnum):
    """Which requests are recorded. Refusals (401, 403, 429) always are, unless it is off."""

    OFF = "off"
    CHANGES = "changes"
    ALL = "all"

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return the level of the settings; `auto` means changes with authentication, and off without."""
        if settings.audit.lower() == "auto":
            return cls("changes" if settings.auth else "off")
        return cls(settings.audit.lower())


@dataclass(frozen=True, slots=True)
class _Queued:
    record: AuditRecord
    written: Future[None] | None


class AuditTrail(WorkQueue):
    """Writes the audit records of one process. `enqueue` and `write` may be called from any thread."""

    def __init__(self, store: Store, level: AuditLevel, lines: AuditLines | None = None) -> None:
        self.level = level
        self.dropped = 0
        self._store = store
        self._lines = lines
        self._unwritten: list[AuditRecord] = []
        self._log_at = 0.0
        self._process = uuid.uuid4().hex[:16]
        self._numbers = count()
        self._queue: deque[_Queued] = deque()
        self._wake = threading.Event()
        self._closing = False
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        super().__init__("audit", "Records of requests on their way to the catalog")

    @property
    def waiting(self) -> int:
        return len(self._queue) + len(self._unwritten)

    def should_record(self, outcome: Outcome, changes: bool) -> bool:
        """Return whether a request with this outcome is recorded."""
        if self.level is AuditLevel.CHANGES:
            return changes or outcome is Outcome.REFUSED
        return self.level is AuditLevel.ALL

    def new_record_id(self) -> str:
        """Return a record id that is unique across all servers."""
        return f"{self._process}-{next(self._numbers):08x}"

    def enqueue(self, record: AuditRecord) -> None:
        """Queue a record to be written soon. It is dropped, and counted, if the queue is full."""
        if self.waiting >= MAX_QUEUED:
            self._drop(1)
            return
        self._add(_Queued(record, None))

    def write(self, records: Sequence[AuditRecord]) -> Future[None]:
        """Write records at once, in this order; return a future that is done once they are durable.

        It raises ServiceUnavailableError if the database does not take them; they are retried all the same.
        """
        for record in records[:-1]:
            self._add(_Queued(record, None))
        written: Future[None] = Future()
        written.set_running_or_notify_cancel()  # a caller that disconnects must not cancel it, since the thread sets it
        self._add(_Queued(records[-1], written))
        self._wake.set()
        return written

    def gauges(self) -> dict[str, float]:
        """Return how many records are waiting, and how many were lost, by name."""
        gauges: dict[str, float] = {
            "audit records waiting": self.waiting,
            "audit records lost": self.dropped,
        }
        return gauges if self._lines is None else {**gauges, "audit records lost by lines": self._lines.lost}

    def close(self) -> None:
        """Write the queued records, for a few seconds at most; no record may be added after this. Idempotent."""
        if self._closing:
            return
        self._closing = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(CLOSING_SECONDS)

    def _add(self, queued: _Queued) -> None:
        self._queue.append(queued)
        if self._thread is None:
            with self._starting:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
                    self._thread.start()

    def _drop(self, number: int) -> None:
        if not self.dropped:
            log.error("audit records are being dropped: the database has not taken any for too long")
        self.dropped += number

    # The methods from here on run in the thread.

    def _run(self) -> None:
        closing = False
        while not closing:
            self._wake.wait(FLUSH_SECONDS)
            self._wake.clear()
            closing = self._closing  # read first: so all that was added before the end is tried once more
            while self._queue:
                self._hand_over([self._queue.popleft() for _ in range(min(BATCH_SIZE, len(self._queue)))])
            self._hand_over_again()

    def _hand_over(self, batch: list[_Queued]) -> None:
        records = [queued.record for queued in batch]
        self._write_lines(records)
        error: Exception | None = None
        try:
            self._store.add_audit(records)
        except Exception as failure:  # noqa: BLE001 - whatever it is, the futures get it, and the thread goes on
            error = failure
            self._retry_later(records, failure)
        for queued in batch:
            if queued.written is not None:
                if error is None:
                    queued.written.set_result(None)
                else:
                    queued.written.set_exception(_not_written(error))

    def _write_lines(self, records: Sequence[AuditRecord]) -> None:
        if self._lines is None:
            return
        try:
            self._lines.write([to_entry(record) for record in records])
        except Exception:  # requests that wait for the database must not hang when this fails
            log.exception("%d audit records are not in the file", len(records))

    def _retry_later(self, records: list[AuditRecord], error: Exception) -> None:
        """Keep records that could not be written, to retry them; they are logged meanwhile."""
        unexpected = None if isinstance(error, LanceNamespaceError) else error
        log.error("%d audit records are not written yet: %s", len(records), error, exc_info=unexpected)
        for record in records:
            log.error("audit record: %r", to_entry(record))  # its repr, which can be logged whatever it contains
        room = max(0, MAX_QUEUED - len(self._unwritten))
        self._unwritten += records[:room]
        if len(records) > room:
            self._drop(len(records) - room)

    def _hand_over_again(self) -> None:
        if not self._unwritten:
            return
        while self._unwritten:
            batch = self._unwritten[:BATCH_SIZE]
            try:
                self._store.add_audit(batch)
            except ServiceUnavailableError as error:
                if time.monotonic() >= self._log_at:
                    log.warning("%d audit records are not written yet: %s", len(self._unwritten), error)
                    self._log_at = time.monotonic() + LOG_SECONDS
                if not self._closing:
                    self._wake.wait(RETRY_SECONDS)
                return
            except Exception:  # records that the database never takes must not block all that follow
                log.exception("%d audit records cannot be written, and are dropped", len(batch))
                self.dropped += len(batch)
            del self._unwritten[: len(batch)]
        log.warning("the audit records that waited are written")


def check_audit_file(settings: Settings) -> None:
    """Raise ConfigError for a file of the audit that cannot be written."""
    if settings.audit_lines and AuditLevel.of(settings) is not AuditLevel.OFF:
        AuditLines(settings.audit_lines)


def open_trail(settings: Settings, store: Store) -> AuditTrail:
    """Open the audit trail of the settings. Raises ConfigError for a file that cannot be written."""
    level = AuditLevel.of(settings)
    has_lines = level is not AuditLevel.OFF and settings.audit_lines
    return AuditTrail(store, level, AuditLines(settings.audit_lines) if has_lines else None)


def _not_written(error: Exception) -> ServiceUnavailableError:
    failure = ServiceUnavailableError(
        "The request was done, but its audit record cannot be written yet: check the result before you send it again."
    )
    failure.__cause__ = error
    return failure


STDERR = "stderr"
_ENCODER = msgspec.json.Encoder()


class AuditLines:
    """Appends JSON lines to a file or to standard error.

    The file may be moved away at any time (logrotate), and several processes may share it.
    """

    def __init__(self, target: str) -> None:
        """Check that the file can be written. Raises ConfigError."""
        self.lost = 0
        """How many records could not be written."""
        self._target = target
        if target != STDERR:
            try:
                append_lines(target, b"")
            except OSError as error:
                raise ConfigError(f"The audit's file {target} cannot be written: {error.strerror}.") from error

    def write(self, entries: Sequence[models.AuditEntry]) -> None:
        """Append records in one write, so that lines of several processes do not mix; log those that cannot be."""
        lines = _ENCODER.encode_lines(entries)
        try:
            if self._target == STDERR:
                sys.stderr.write(lines.decode())
                sys.stderr.flush()
                return
            append_lines(self._target, lines)
        except OSError as error:
            self.lost += len(entries)
            log.error("%d audit records are not in %s: %s", len(entries), self._target, error)  # noqa: TRY400 - no trace
