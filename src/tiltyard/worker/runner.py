"""Threads that claim transactions under a lease, run them, and keep the lease alive.

Any number of workers may run on one catalog: a transaction belongs to whoever holds its lease, and one whose worker
died is handed out again when the lease ends.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping

from lance_namespace.errors import (
    ConcurrentModificationError,
    LanceNamespaceError,
    ServiceUnavailableError,
    TransactionNotFoundError,
)

from tiltyard.context import Context, Services
from tiltyard.model.jobs import JOBS, MOST_ATTEMPTS, RETRY_MS, Job, JobCanceledError
from tiltyard.model.modes import TransactionStatus
from tiltyard.model.principals import SERVER
from tiltyard.store import TransactionRecord, UnitOfWork
from tiltyard.worker.guarding import guarded
from tiltyard.worker.sweeper import sweep_leftovers, sweep_old

log = logging.getLogger("tiltyard.worker")

LEASE_MS = 30_000
POLL_SECONDS = 0.25
SWEEP_SECONDS = 5.0
SWEEP_OLD_SECONDS = 60.0


class Worker:
    """`threads` jobs at once; `start` returns at once, `stop` waits for what can end soon."""

    def __init__(self, services: Services, threads: int) -> None:
        self._services = services
        self._owner = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._stopping = threading.Event()
        self._running: set[_Run] = set()
        self._threads = [
            threading.Thread(target=self._work, name=f"job-{number}", daemon=True) for number in range(threads)
        ]
        self._threads.append(threading.Thread(target=self._sweep, name="sweeper", daemon=True))

    def start(self) -> None:
        """Begin to claim."""
        for thread in self._threads:
            thread.start()

    def stop(self, timeout: float) -> None:
        """Claim nothing more, and wait up to `timeout` seconds; what still runs then is queued again."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(timeout / len(self._threads))
        for run in list(self._running):
            run.give_back()

    def run_one(self) -> bool:
        """Claim and run one transaction; whether there was one."""
        store = self._services.store
        if not store.has_claimable_transaction(tuple(JOBS)):
            return False
        record = store.claim_transaction(self._owner, LEASE_MS, tuple(JOBS))
        if record is None:
            return False
        run = _Run(self._services, self._owner, record, self._stopping)
        self._running.add(run)
        try:
            run.run()
        finally:
            self._running.discard(run)
        return True

    def _work(self) -> None:
        while not self._stopping.is_set():
            if not guarded(self.run_one, self._stopping, self._services.outage_log):
                self._stopping.wait(POLL_SECONDS)

    def _sweep(self) -> None:
        ctx = Context(self._services, "sweep", principal=SERVER)
        old_due = 0.0
        while not self._stopping.wait(SWEEP_SECONDS):
            self._while_there_is(sweep_leftovers, ctx)
            if time.monotonic() >= old_due:
                self._while_there_is(sweep_old, ctx)
                old_due = time.monotonic() + SWEEP_OLD_SECONDS

    def _while_there_is(self, step: Callable[[Context], bool], ctx: Context) -> None:
        outages = self._services.outage_log
        while not self._stopping.is_set() and guarded(lambda: step(ctx), self._stopping, outages):
            pass


class _Run:
    """One transaction in the hands of one worker."""

    def __init__(self, services: Services, owner: str, record: TransactionRecord, stopping: threading.Event) -> None:
        self._services = services
        self._owner = owner
        self._record = record
        self._stopping = stopping
        self._lost = threading.Event()
        self._done = threading.Event()

    def run(self) -> None:
        """Run the job to its end, and write how it ended."""
        record = self._record
        ctx = Context(self._services, record.id, principal=SERVER)
        pulse = threading.Thread(target=self._keep_lease, name=f"lease-{record.id}", daemon=True)
        pulse.start()
        try:
            job = Job(record.id, record.kind, record.table_id, record.payload, self._report)
            outcome = JOBS[record.kind](ctx, job)
        except JobCanceledError:
            if self._stopping.is_set():
                self._finish(TransactionStatus.QUEUED)
            log.info("transaction %s (%s) stopped: canceled, or handed to another", record.id, record.kind)
        except Exception as error:  # noqa: BLE001  # whatever a job raises is how its transaction ends
            self._failed(error)
        else:
            self._finish(TransactionStatus.SUCCEEDED, outcome)
        finally:
            self._done.set()
            pulse.join()

    def give_back(self) -> None:
        """Queue the transaction again: this process ends before the job does."""
        self._done.set()
        self._finish(TransactionStatus.QUEUED)

    def _report(self, properties: Mapping[str, str]) -> bool:
        """Write progress; False once the transaction is not ours to run any more."""
        if not self._lost.is_set() and properties:
            self._beat(properties)
        return not (self._lost.is_set() or self._stopping.is_set())

    def _beat(self, properties: Mapping[str, str]) -> None:
        """Extend the lease, and let properties join those that are there: a client may have set some."""

        def work(catalog: UnitOfWork) -> TransactionStatus:
            if properties:
                catalog.merge_properties(self._record.id, properties)
            return catalog.heartbeat(self._record.id, self._owner, LEASE_MS)

        try:
            if self._services.store.transact(work) is not TransactionStatus.RUNNING:
                self._lost.set()
        except (ConcurrentModificationError, TransactionNotFoundError):
            self._lost.set()

    def _keep_lease(self) -> None:
        while not self._done.wait(LEASE_MS / 3000):
            try:
                self._beat({})
            except ServiceUnavailableError as error:
                log.warning("cannot extend the lease of %s: %s", self._record.id, error)

    def _failed(self, error: Exception) -> None:
        """Try again what may pass; a mistake in the request, or too many attempts, is Failed for good."""
        passing = isinstance(error, (ServiceUnavailableError, ConcurrentModificationError))
        self._services.outage_log.report(error)
        if passing and self._record.attempts < MOST_ATTEMPTS:
            log.warning("transaction %s is tried again: %s", self._record.id, error)
            wait = RETRY_MS * 2**self._record.attempts
            self._finish(TransactionStatus.QUEUED, error=str(error), wait_ms=wait)
            return
        log.error("transaction %s (%s) failed", self._record.id, self._record.kind, exc_info=error)
        known = isinstance(error, LanceNamespaceError)
        text = str(error) if known else "The server failed on this work; its log has the details under this id."
        self._finish(TransactionStatus.FAILED, error=text)

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
                self._beat(outcome)
            due = self._services.clock() + wait_ms
            store.finish_transaction(self._record.id, self._owner, status, error=error, available_at=due)
        except (ConcurrentModificationError, TransactionNotFoundError):
            log.info("transaction %s was canceled, or taken over, before it ended", self._record.id)
