"""Jobs of the data pipeline, handed to driver processes: one that stays warm, and one for each job besides.

A worker claims a job and gives its lease to a driver. The driver keeps the lease, and writes how the job ended; the
worker looks after the process. A driver that dies leaves its job to the queue at once. A worker that dies leaves its
drivers at work: they have the leases, so that no job is done by two.
"""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
import tempfile
import threading
import time
import uuid
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

from tiltyard.catalog.jobs import claim_next
from tiltyard.config import Settings
from tiltyard.context import Context, Services
from tiltyard.model.jobs import MOST_ATTEMPTS, RETRY_MS, pipeline_jobs
from tiltyard.model.modes import TransactionStatus
from tiltyard.model.principals import SERVER
from tiltyard.store import TransactionRecord
from tiltyard.worker.driver_config import environment, hand_over, orders, own_conf, submit_command, warm_command
from tiltyard.worker.guarding import guarded

log = logging.getLogger("tiltyard.worker")

START_LEASE_MS = 60_000
"""For how long a job is a driver's that has not begun yet: Python takes a while to start."""
POLL_SECONDS = 0.25
IDLE_SECONDS = 600.0
"""How long the warm driver waits for a job before its memory is given back."""


class Drivers:
    """Runs queued jobs, `spark_jobs` of them at once; the first thread keeps its driver warm."""

    def __init__(self, services: Services) -> None:
        """Look after the jobs of a catalog; nothing runs before `start`."""
        self._services = services
        self._stopping = threading.Event()
        self._processes: set[_Process] = set()
        self._threads = [
            threading.Thread(target=self._work, args=(number == 0,), name=f"driver-{number}", daemon=True)
            for number in range(services.settings.spark_jobs)
        ]

    def start(self) -> None:
        """Begin to claim."""
        for thread in self._threads:
            thread.start()

    def stop(self, timeout: float) -> None:
        """Claim nothing more; drivers hand their jobs back within `timeout` seconds, or are killed."""
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

    def _work(self, warm: bool) -> None:
        """Claim and run, one job after the other."""
        driver: _Process | None = None
        while not self._stopping.is_set():
            record = guarded(self._claimed, self._stopping, self._services.outage_log)
            if record is None:
                driver = self._not_idle(driver)
                self._stopping.wait(POLL_SECONDS)
                continue
            log.info("job %s (%s) begins, try %d", record.id, record.kind, record.attempts)
            try:
                if warm and not own_conf(self._services.settings, record):
                    driver = self._warmed(driver)
                    driver.drive(record)
                else:
                    self._submit(record)
            except InvalidInputError as error:
                guarded(partial(self._refuse, record, error), self._stopping, self._services.outage_log)
            except Exception:  # whatever is wrong with this job, the next one needs the thread
                log.exception("a driver for job %s did not start, or ended", record.id)
            guarded(partial(self._settle, record), self._stopping, self._services.outage_log)
        if driver:
            self._end(driver)

    def _claimed(self) -> TransactionRecord | None:
        """A job that waits, and that whoever asked for it may still have done. Raises ServiceUnavailableError."""
        ctx = Context(self._services, uuid.uuid4().hex, principal=SERVER)
        return claim_next(ctx, uuid.uuid4().hex, START_LEASE_MS, tuple(pipeline_jobs()))

    def _warmed(self, driver: _Process | None) -> _Process:
        if driver is not None and driver.takes_jobs:
            return driver
        if driver is not None:
            self._end(driver)
        return self._begun(_Process.warm(self._services.settings))

    def _not_idle(self, driver: _Process | None) -> _Process | None:
        """The warm driver, unless it has had nothing to do for long."""
        if driver is None or time.monotonic() - driver.used < IDLE_SECONDS:
            return driver
        self._end(driver)
        return None

    def _submit(self, record: TransactionRecord) -> None:
        """Run a job in a process of its own, and wait for its end."""
        driver = self._begun(_Process.submitted(self._services.settings, record))
        driver.wait()
        self._end(driver)

    def _begun(self, driver: _Process) -> _Process:
        self._processes.add(driver)
        if self._stopping.is_set():  # `stop` may have looked through the others already
            driver.terminate()
        return driver

    def _end(self, driver: _Process) -> None:
        driver.close()
        self._processes.discard(driver)

    def _refuse(self, record: TransactionRecord, error: InvalidInputError) -> None:
        """Fail a job that no driver may be started for. Raises ServiceUnavailableError."""
        log.warning("job %s is refused: %s", record.id, error)
        with suppress(ConcurrentModificationError, TransactionNotFoundError):  # it was canceled just now
            owner, failed = record.lease_owner or "", TransactionStatus.FAILED
            self._services.store.finish_transaction(record.id, owner, failed, error=str(error))

    def _settle(self, record: TransactionRecord) -> None:
        """Queue a job again whose driver is gone and did not end it, until its attempts are spent."""
        spent = record.attempts >= MOST_ATTEMPTS
        status = TransactionStatus.FAILED if spent else TransactionStatus.QUEUED
        error = f"Its driver ended before the job did, {record.attempts} times: the worker's log has more."
        store = self._services.store
        try:
            store.finish_transaction(
                record.id,
                record.lease_owner or "",
                status,
                error=error if spent else None,
                available_at=self._services.clock() + RETRY_MS,
            )
            log.warning("the driver of job %s ended before the job did: it is %s", record.id, status)
        except (ConcurrentModificationError, TransactionNotFoundError):
            log.info("job %s has ended, or is another's", record.id)
        except ServiceUnavailableError as error_:
            log.warning("job %s is free when its lease ends: %s", record.id, error_)


class _Process:
    """A driver process."""

    def __init__(self, process: subprocess.Popen[str], folder: Path | None = None) -> None:
        self._process = process
        self._folder = folder
        self._leaving = False
        self.used = time.monotonic()

    @classmethod
    def warm(cls, settings: Settings) -> Self:
        """One that takes job after job. Raises OSError."""
        words, variables, pipe = warm_command(settings), environment(settings), subprocess.PIPE
        process = subprocess.Popen(words, text=True, env=variables, stdin=pipe, stdout=pipe)  # noqa: S603  # our own driver
        assert process.stdin is not None
        process.stdin.write(orders(settings, submitted=False) + "\n")
        process.stdin.flush()
        return cls(process)

    @classmethod
    def submitted(cls, settings: Settings, record: TransactionRecord) -> Self:
        """One for this job. Raises OSError."""
        folder = Path(tempfile.mkdtemp(prefix="tiltyard-driver-"))
        try:
            hand_over(settings, record, folder)
            words, variables, nothing = (
                submit_command(settings, record, folder),
                environment(settings),
                subprocess.DEVNULL,
            )
            process = subprocess.Popen(words, text=True, env=variables, stdin=nothing, stdout=nothing)  # noqa: S603  # Spark's own command, with Spark's properties
        except BaseException:
            shutil.rmtree(folder)
            raise
        return cls(process, folder)

    @property
    def takes_jobs(self) -> bool:
        return not self._leaving and self._process.poll() is None

    def drive(self, record: TransactionRecord) -> None:
        """Hand over a job, and wait until it has ended, or the process has. Raises OSError for one that is gone."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"job": record.id, "owner": record.lease_owner}) + "\n")
        self._process.stdin.flush()
        for line in iter(self._process.stdout.readline, ""):
            told = json.loads(line)
            if told["ended"] == record.id:
                self._leaving = told["leaving"]
                break
        self.used = time.monotonic()

    def wait(self) -> None:
        self._process.wait()

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        """Let it end: it has no job."""
        if self._process.stdin:
            with suppress(OSError):  # it is gone already, and never took what was written last
                self._process.stdin.close()
        self._process.wait()
        if self._process.stdout:
            self._process.stdout.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)  # the driver removes it as soon as it has read it
