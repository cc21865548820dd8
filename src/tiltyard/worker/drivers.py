"""Run queued jobs of the data pipeline in driver processes: a warm one, and one for each job with its own properties.

A worker claims a job and gives its lease to a driver. The driver renews the lease, and writes how the job ended; the
worker supervises the process. The job of a driver that dies is queued again at once. When a worker dies, its drivers
continue: they have the leases, so that no job is run by two.
"""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Self

from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    ServiceUnavailableError,
    TransactionNotFoundError,
)

from tiltyard.catalog.jobs.submission import claim_next
from tiltyard.config import Settings
from tiltyard.context import Context, Services
from tiltyard.model.jobs import ENDLESS_JOBS, MAX_ATTEMPTS, RETRYABLE, pipeline_jobs, retry_wait_ms
from tiltyard.model.modes import TransactionStatus
from tiltyard.model.principals import SERVER
from tiltyard.runtime.child_process import NOTHING, PIPE, ChildProcess
from tiltyard.runtime.lease import START_LEASE_MS
from tiltyard.store import TransactionRecord, UnitOfWork
from tiltyard.worker.driver_config import (
    driver_environment,
    driver_orders,
    job_spark_conf,
    submit_command,
    warm_command,
    write_driver_files,
)
from tiltyard.worker.runner import run_step

log = logging.getLogger("tiltyard.worker")

POLL_SECONDS = 0.25
IDLE_SECONDS = 600.0
"""How long the warm driver waits for a job before it ends, which frees its memory."""


class DriverPool:
    """Run queued jobs: up to `spark_jobs` that end, and up to `stream_jobs` that do not, at once.

    So streams keep no other job waiting. The first thread of the former, and all of the latter, keep their driver warm.
    """

    def __init__(self, services: Services) -> None:
        """Prepare the threads; nothing runs before `start`."""
        self._services = services
        self._stopping = threading.Event()
        self._processes: set[_DriverProcess] = set()
        self._running: set[str] = set()
        """The ids of jobs that threads have claimed and not let go."""
        ending = tuple(set(pipeline_jobs()) - ENDLESS_JOBS)
        endless = tuple(set(pipeline_jobs()) & ENDLESS_JOBS)
        slots = [(ending, number == 0) for number in range(services.settings.spark_jobs)]
        slots += [(endless, True)] * services.settings.stream_jobs
        self._threads = [
            threading.Thread(target=self._work, args=slot, name=f"driver-{number}", daemon=True)
            for number, slot in enumerate(slots)
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def stop(self, timeout: float) -> None:
        """Claim nothing more; drivers release their jobs within `timeout` seconds, or are killed."""
        self._stopping.set()
        for process in list(self._processes):
            process.terminate()
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        for process in list(self._processes):
            process.kill()
        for thread in self._threads:
            thread.join(timeout)

    @property
    def limit(self) -> int:
        """How many jobs it runs at once at most."""
        return len(self._threads)

    def count_running(self) -> int:
        """Return how many jobs are under way."""
        return len(self._running)

    def _work(self, kinds: Sequence[str], keeps_warm: bool) -> None:
        """Claim and run one job of some kinds after the other, until the pool stops."""
        driver: _DriverProcess | None = None
        while not self._stopping.is_set():
            record = run_step(partial(self._claim, kinds), self._stopping, self._services.outage_log)
            if record is None:
                driver = self._end_if_idle(driver)
                self._stopping.wait(POLL_SECONDS)
                continue
            self._running.add(record.id)
            log.info("job %s (%s) begins, try %d", record.id, record.kind, record.attempts)
            try:
                if keeps_warm and not job_spark_conf(self._services.settings, record):
                    driver = self._warm_driver(driver)
                    driver.drive(record)
                else:
                    self._run_in_own_driver(record)
            except InvalidInputError as error:
                run_step(partial(self._refuse, record, error), self._stopping, self._services.outage_log)
            except Exception:  # whatever is wrong with this job, the next one needs the thread
                log.exception("a driver for job %s did not start, or ended", record.id)
            run_step(partial(self._requeue_unfinished, record), self._stopping, self._services.outage_log)
            self._running.discard(record.id)
        if driver:
            self._end(driver)

    def _claim(self, kinds: Sequence[str]) -> TransactionRecord | None:
        """Claim a queued job whose submitter still has the privileges for it. Raises ServiceUnavailableError."""
        ctx = Context(self._services, uuid.uuid4().hex, principal=SERVER)
        return claim_next(ctx, uuid.uuid4().hex, START_LEASE_MS, kinds)

    def _warm_driver(self, driver: _DriverProcess | None) -> _DriverProcess:
        """Return a warm driver that takes jobs: this one, or a new one."""
        if driver is not None and driver.takes_jobs:
            return driver
        if driver is not None:
            self._end(driver)
        return self._track(_DriverProcess.warm(self._services.settings))

    def _end_if_idle(self, driver: _DriverProcess | None) -> _DriverProcess | None:
        """Return the warm driver, or None if it has been idle for long, and is ended."""
        if driver is None or time.monotonic() - driver.used < IDLE_SECONDS:
            return driver
        self._end(driver)
        return None

    def _run_in_own_driver(self, record: TransactionRecord) -> None:
        """Run a job in a process of its own, and wait for its end."""
        driver = self._track(_DriverProcess.submitted(self._services.settings, record))
        driver.wait()
        self._end(driver)

    def _track(self, driver: _DriverProcess) -> _DriverProcess:
        self._processes.add(driver)
        if self._stopping.is_set():  # `stop` may have terminated the others already
            driver.terminate()
        return driver

    def _end(self, driver: _DriverProcess) -> None:
        driver.close()
        self._processes.discard(driver)

    def _refuse(self, record: TransactionRecord, error: InvalidInputError) -> None:
        """Fail a job for which no driver may be started. Raises ServiceUnavailableError."""
        log.warning("job %s is refused: %s", record.id, error)
        with suppress(ConcurrentModificationError, TransactionNotFoundError):  # it was canceled just now
            owner, failed = record.lease_owner or "", TransactionStatus.FAILED
            self._services.store.finish_transaction(record.id, owner, failed, error=str(error))

    def _requeue_unfinished(self, record: TransactionRecord) -> None:
        """Queue a job again whose driver is gone and did not finish it, until its attempts are used up."""
        is_endless = record.kind in ENDLESS_JOBS
        is_last_attempt = record.attempts >= MAX_ATTEMPTS and not is_endless
        status = TransactionStatus.FAILED if is_last_attempt else TransactionStatus.QUEUED
        error = f"Its driver ended before the job did, {record.attempts} times: the worker's log has the details."

        def work(catalog: UnitOfWork) -> None:
            catalog.finish_transaction(
                record.id,
                record.lease_owner or "",
                status,
                error=error if is_last_attempt else None,
                available_at=self._services.clock() + retry_wait_ms(record.attempts, is_endless=is_endless),
            )
            if is_last_attempt:
                catalog.merge_properties(record.id, {RETRYABLE: "true"})

        try:
            self._services.store.transact(work)
            log.warning("the driver of job %s ended before the job did: it is %s", record.id, status)
        except (ConcurrentModificationError, TransactionNotFoundError):
            log.info("job %s has ended, or another driver has it", record.id)
        except ServiceUnavailableError as unavailable:
            log.warning("job %s is free when its lease ends: %s", record.id, unavailable)


def _start(command: Sequence[str], settings: Settings, pipes: int) -> ChildProcess:
    variables = driver_environment(settings)
    return ChildProcess(
        "driver",
        "Drives jobs of the pipeline, one after the other or a single one",
        command,
        stdin=pipes,
        stdout=pipes,
        text=True,
        variables=variables,
    )


class _DriverProcess:
    """A driver process, and the folder with its files."""

    def __init__(self, process: ChildProcess, folder: Path | None = None) -> None:
        self._process = process
        self._folder = folder
        self._is_leaving = False
        self.used = time.monotonic()

    @classmethod
    def warm(cls, settings: Settings) -> Self:
        """Start a driver that takes one job after the other. Raises OSError."""
        process = _start(warm_command(settings), settings, PIPE)
        process.stdin.write(driver_orders(settings, submitted=False) + "\n")
        process.stdin.flush()
        return cls(process)

    @classmethod
    def submitted(cls, settings: Settings, record: TransactionRecord) -> Self:
        """Start a driver for this job alone. Raises OSError."""
        folder = Path(tempfile.mkdtemp(prefix="tiltyard-driver-"))
        try:
            write_driver_files(settings, record, folder)
            process = _start(submit_command(settings, record, folder), settings, NOTHING)
        except BaseException:
            shutil.rmtree(folder)
            raise
        return cls(process, folder)

    @property
    def takes_jobs(self) -> bool:
        """Return whether the process runs, and does not end after its last job."""
        return not self._is_leaving and self._process.is_running

    def drive(self, record: TransactionRecord) -> None:
        """Send a job to the process, and wait until one of them has ended. Raises OSError if the process is gone."""
        self._process.stdin.write(json.dumps({"job": record.id, "owner": record.lease_owner}) + "\n")
        self._process.stdin.flush()
        for line in iter(self._process.stdout.readline, ""):
            report = json.loads(line)
            if report["ended"] == record.id:
                self._is_leaving = report["leaving"]
                break
        self.used = time.monotonic()

    def wait(self) -> None:
        self._process.wait()

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        """Close its input, so that it ends, and wait for that: it has no job."""
        self._process.close(None)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)  # the driver deletes it as soon as it has read it
