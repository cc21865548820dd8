"""The worker: threads that claim transactions under a lease and run them, one that cleans up, and the scheduler.

Any number of workers may run on one catalog: the one that holds a transaction's lease runs it, and a transaction whose
worker died can be claimed again when the lease ends. Mirrors that are due are synced several at once, so that
a catalog that hangs delays no other; the worker that holds a mirror's lease syncs it. So are events sent.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from lance_namespace.errors import (
    ConcurrentModificationError,
    InternalError,
    LanceNamespaceError,
    ServiceUnavailableError,
    TransactionNotFoundError,
)

from tiltyard.catalog.garbage import sweep
from tiltyard.catalog.jobs.submission import end_lost_runs
from tiltyard.catalog.mounts.mirror_sync import is_due, try_sync
from tiltyard.catalog.schedules.due import queue_due_job
from tiltyard.catalog.table_ages import note_stale_tables
from tiltyard.config import DAY_MS
from tiltyard.context import Context, Services
from tiltyard.events.senders import EventSenders
from tiltyard.model.jobs import (
    JOBS,
    MAX_ATTEMPTS,
    RETRYABLE,
    Job,
    JobCanceledError,
    is_transient,
    retry_wait_ms,
)
from tiltyard.model.modes import TransactionStatus
from tiltyard.model.principals import SERVER
from tiltyard.runtime.lease import LEASE_MS, Lease
from tiltyard.runtime.outage_log import OutageLog
from tiltyard.runtime.pool import KeyedThreads
from tiltyard.runtime.tracing import job_span
from tiltyard.store import TransactionRecord, UnitOfWork
from tiltyard.store.tables.upkeep import UPKEEP
from tiltyard.tables.commits.finalizing import sweep_pending
from tiltyard.tables.rows.multipart import abandon_stale_uploads
from tiltyard.tables.upkeep.upkeep_job import look_at_next_table
from tiltyard.tables.versions.snapshots import sweep_snapshots

if TYPE_CHECKING:
    from tiltyard.store import MirrorRecord


Result = TypeVar("Result")

log = logging.getLogger("tiltyard.worker")

POLL_SECONDS = 0.25
SWEEP_SECONDS = 5.0
SWEEP_EXPIRED_SECONDS = 60.0
SCHEDULE_SECONDS = 1.0
"""How often it is looked whether schedules and mirrors are due."""
AGES_SECONDS = 15.0
"""How often it is looked which tables are older than they may be."""
UPKEEP_SECONDS = 1.0
"""How often it is looked whether tables need upkeep."""
PAUSE_SECONDS = 1.0
"""How long a loop pauses after a step that failed."""
SWEEP_ROWS = 1_000


class Worker:
    """Run up to `threads` transactions at once. `start` returns at once, `stop` waits for those that end soon."""

    def __init__(self, services: Services, threads: int) -> None:
        self._services = services
        self.limit = threads
        """How many transactions it runs at once at most."""
        self._owner = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._stopping = threading.Event()
        self._running: set[_Run] = set()
        self._threads: list[threading.Thread] = []
        self._mirror_sync = MirrorSync(services, self._stopping)
        self._event_senders = EventSenders(services, self._stopping)

    def start(self) -> None:
        """Start the threads."""
        targets: list[tuple[str, Callable[[], None]]] = [(f"job-{number}", self._work) for number in range(self.limit)]
        targets += [("sweeper", self._sweep), ("scheduler", self._schedule)]
        if self._services.settings.upkeep:
            targets.append(("upkeep", self._maintain))
        self._threads = [threading.Thread(target=target, name=name, daemon=True) for name, target in targets]
        for thread in self._threads:
            thread.start()

    def stop(self, timeout: float) -> None:
        """Claim nothing more, and wait up to `timeout` seconds; a transaction that still runs then is queued again."""
        self._stopping.set()
        each = timeout / max(1, len(self._threads))
        for thread in self._threads:
            thread.join(each)
        self._mirror_sync.stop(each)
        self._event_senders.stop(each)
        for run in list(self._running):
            run.requeue()

    def count_running(self) -> int:
        """Return how many transactions are under way."""
        return len(self._running)

    def run_one(self) -> bool:
        """Claim and run one transaction other than upkeep; return whether there was one."""
        return self._run_one(tuple(kind for kind in JOBS if kind != UPKEEP))

    def run_transaction(self, transaction_id: str) -> bool:
        """Claim and run this transaction, unless it has ended, another worker has it, or it is for Spark.

        Return whether it was run. Raises TransactionNotFoundError.
        """
        store = self._services.store
        if store.describe_transaction(transaction_id).kind not in JOBS:
            return False
        record = store.claim_job(transaction_id, self._owner, LEASE_MS)
        if record is None:
            return False
        self._run_claimed(record)
        return True

    def maintain_one(self) -> bool:
        """Look at one table, or maintain one; return whether there was one. Of a server, one process does so at a time.

        Upkeep has a thread of its own: it keeps no other work waiting, and is not done faster where there are more
        threads.
        """
        services = self._services
        store, kinds = services.store, (UPKEEP,)
        if not store.has_due_upkeep() and not store.has_claimable_transaction(kinds):
            return False
        lock = services.storage.locks.try_acquire(f"upkeep of {services.settings.database_url}")
        if lock is None:
            return False
        try:
            return self._run_one(kinds) or look_at_next_table(Context(services, "upkeep", principal=SERVER))
        finally:
            lock.release()

    def _run_one(self, kinds: Sequence[str]) -> bool:
        store = self._services.store
        if not store.has_claimable_transaction(kinds):
            return False
        record = store.claim_transaction(self._owner, LEASE_MS, kinds)
        if record is None:
            return False
        self._run_claimed(record)
        return True

    def _run_claimed(self, record: TransactionRecord) -> None:
        run = _Run(self._services, self._owner, record, self._stopping)
        self._running.add(run)
        try:
            run.run()
        finally:
            self._running.discard(run)

    def _work(self) -> None:
        while not self._stopping.is_set():
            if not run_step(self.run_one, self._stopping, self._services.outage_log):
                self._stopping.wait(POLL_SECONDS)

    def _sweep(self) -> None:
        ctx = Context(self._services, "sweep", principal=SERVER)
        expired_due = 0.0
        while not self._stopping.wait(SWEEP_SECONDS):
            self._repeat_while_true(sweep_leftovers, ctx)
            if time.monotonic() >= expired_due:
                self._repeat_while_true(sweep_expired, ctx)
                expired_due = time.monotonic() + SWEEP_EXPIRED_SECONDS

    def _schedule(self) -> None:
        ctx = Context(self._services, "schedules", principal=SERVER)
        ages_due = 0.0
        while not self._stopping.wait(SCHEDULE_SECONDS):
            run_step(self._mirror_sync.start_due, self._stopping, self._services.outage_log)
            run_step(self._event_senders.start_due, self._stopping, self._services.outage_log)
            self._repeat_while_true(queue_due_job, ctx)
            if time.monotonic() >= ages_due:
                run_step(lambda: note_stale_tables(ctx), self._stopping, self._services.outage_log)
                ages_due = time.monotonic() + AGES_SECONDS

    def _maintain(self) -> None:
        while not self._stopping.wait(UPKEEP_SECONDS):
            while not self._stopping.is_set() and run_step(
                self.maintain_one, self._stopping, self._services.outage_log
            ):
                pass

    def _repeat_while_true(self, step: Callable[[Context], bool], ctx: Context) -> None:
        outages = self._services.outage_log
        while not self._stopping.is_set() and run_step(lambda: step(ctx), self._stopping, outages):
            pass


class _Run:
    """The run of one claimed transaction."""

    def __init__(self, services: Services, owner: str, record: TransactionRecord, stopping: threading.Event) -> None:
        self._services = services
        self._owner = owner
        self._record = record
        self._stopping = stopping
        report = services.outage_log.report
        self._lease = Lease(f"transaction {record.id}", partial(self._renew, {}), report=report)

    def run(self) -> None:
        """Run the transaction's job to its end, and write how it ended."""
        record = self._record
        ctx = Context(self._services, record.id, principal=SERVER)
        try:
            job = Job(record.id, record.kind, record.table_id, record.payload, self._report)
            with job_span(f"job {record.kind}", record.properties, record.id, **{"tiltyard.attempt": record.attempts}):
                outcome = JOBS[record.kind](ctx, job)
        except JobCanceledError:
            if self._stopping.is_set():
                self._finish(TransactionStatus.QUEUED)
            log.info("transaction %s (%s) stopped: canceled, or another worker has it", record.id, record.kind)
        except Exception as error:  # noqa: BLE001  # whatever a job raises is how its transaction ends
            self._fail(error)
        else:
            self._finish(TransactionStatus.SUCCEEDED, outcome)
        finally:
            self._lease.close()

    def requeue(self) -> None:
        """Queue the transaction again: this process ends before the job does."""
        self._lease.close()
        self._finish(TransactionStatus.QUEUED)

    def _report(self, properties: Mapping[str, str]) -> bool:
        """Write progress; False once the transaction was canceled, or another worker has its lease."""
        if properties and not self._lease.is_lost:
            self._lease.write(partial(self._renew, properties))
        return self._lease.check() and not self._stopping.is_set()

    def _renew(self, properties: Mapping[str, str]) -> bool:
        """Extend the lease, and merge properties into the existing ones, of which a client may have set some.

        Return whether the transaction is still running.
        """

        def work(catalog: UnitOfWork) -> TransactionStatus:
            if properties:
                catalog.merge_properties(self._record.id, properties)
            return catalog.heartbeat(self._record.id, self._owner, LEASE_MS)

        return self._services.store.transact(work) is TransactionStatus.RUNNING

    def _fail(self, error: Exception) -> None:
        """Queue the transaction again after a transient error; otherwise, or after `MAX_ATTEMPTS`, let it fail."""
        can_retry = is_transient(error)
        self._services.outage_log.report(error)
        if can_retry and self._record.attempts < MAX_ATTEMPTS:
            log.warning("transaction %s is retried: %s", self._record.id, error)
            wait = retry_wait_ms(self._record.attempts)
            self._finish(TransactionStatus.QUEUED, error=str(error), wait_ms=wait)
            return
        is_public = isinstance(error, LanceNamespaceError)
        trace = error if not is_public or isinstance(error, InternalError) else None  # a refusal says all in its text
        log.error("transaction %s (%s) failed: %s", self._record.id, self._record.kind, error, exc_info=trace)
        text = str(error) if is_public else "The server failed on this work; its log has the details under this id."
        self._finish(TransactionStatus.FAILED, {RETRYABLE: str(can_retry).lower()}, error=text)

    def _finish(
        self,
        status: TransactionStatus,
        outcome: Mapping[str, str] | None = None,
        error: str | None = None,
        wait_ms: int = 0,
    ) -> None:
        store = self._services.store
        try:
            if outcome:
                self._lease.write(partial(self._renew, outcome))
            due = self._services.clock() + wait_ms
            store.finish_transaction(self._record.id, self._owner, status, error=error, available_at=due)
        except (ConcurrentModificationError, TransactionNotFoundError):
            log.info("transaction %s was canceled, or taken over, before it ended", self._record.id)


def sweep_leftovers(ctx: Context) -> bool:
    """Clean up some of what crashes left, which cannot wait; return whether there may be more."""
    store = ctx.store
    return bool(
        end_lost_runs(ctx)
        + sweep(ctx)
        + sweep_pending(ctx)
        + store.sweep_requests(SWEEP_ROWS)
        + store.sweep_queued_appends(SWEEP_ROWS)
    )


def sweep_expired(ctx: Context) -> bool:
    """Delete some of what is past its age: uploads, transactions, audit records, approvals, events.

    Return whether there may be more. Incomplete snapshots are removed, too, and what canceled erasures would have used.
    """
    settings, now = ctx.settings, ctx.clock()
    sweep_snapshots(ctx)
    uploads = abandon_stale_uploads(ctx, int(settings.upload_days * DAY_MS))
    ended = ctx.store.sweep_transactions(now - int(settings.transaction_days * DAY_MS), SWEEP_ROWS)
    audit = ctx.store.sweep_audit(now - int(settings.audit_days * DAY_MS), SWEEP_ROWS)
    upkeep = ctx.store.sweep_upkeep(now - DAY_MS, SWEEP_ROWS)
    approvals = ctx.store.sweep_approvals(now - int(settings.audit_days * DAY_MS), SWEEP_ROWS)
    ctx.store.end_left_erasures(SWEEP_ROWS)
    events = ctx.store.sweep_events(now - int(settings.event_days * DAY_MS), settings.max_events, SWEEP_ROWS)
    return bool(uploads) or SWEEP_ROWS in (ended, audit, upkeep, approvals, events)


def run_step(step: Callable[[], Result], stopping: threading.Event, outage_log: OutageLog) -> Result | None:
    """Return the result of a step; None, after a pause, if it fails: the database may be away for a while."""
    try:
        return step()
    except ServiceUnavailableError as error:
        if not outage_log.report(error):
            log.warning("%s", error)
    except Exception:  # without it the thread would end, and nothing would notice that
        log.exception("a worker's step failed")
    stopping.wait(PAUSE_SECONDS)
    return None


MIRRORS_AT_ONCE = 4
_PAGE = 1000


class MirrorSync:
    """Starts what is due whenever `start_due` is called, by one thread."""

    def __init__(self, services: Services, stopping: threading.Event) -> None:
        self._services = services
        self._stopping = stopping
        self._threads = KeyedThreads[int]()

    def start_due(self) -> None:
        """Start to sync the mirrors that are due. Raises ServiceUnavailableError."""
        store = self._services.store
        mirrors = store.list_mirrors(None, _PAGE)
        if not mirrors:
            return
        fingerprint, now = store.tables_fingerprint(), self._services.clock()
        for mirror in mirrors:
            is_free = mirror.lease_until <= now and mirror.id not in self._threads
            if is_free and len(self._threads) < MIRRORS_AT_ONCE and is_due(mirror, fingerprint, now):
                self._threads.start(mirror.id, "mirror", partial(self._sync, mirror))

    def stop(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for what runs, which ends at the next table: another worker goes on with it."""
        self._threads.stop(timeout)

    def _sync(self, mirror: MirrorRecord) -> None:
        ctx = Context(self._services, f"publication {mirror.name}", principal=SERVER)
        try:
            try_sync(ctx, mirror.id, self._stopping.is_set)
        except ServiceUnavailableError as error:  # of our own database; the lease ends by itself
            self._services.outage_log.report(error)
