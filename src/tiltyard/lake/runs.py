"""Runs of jobs, in a thread of this process or queued for workers, which can be watched, canceled, and waited for.

run = films.ingest("big/*.parquet", wait=False)
run.progress    # 0 to 1, None while it is unknown
run.cancel()
run.wait().rows
"""

from __future__ import annotations

import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from html import escape
from itertools import islice
from typing import TYPE_CHECKING, Any, Self

from tiltyard.calls.caller import COMMAND_RETRY_SECONDS, Caller
from tiltyard.lake.display import render_table
from tiltyard.lake.errors import RunCanceledError, RunFailedError, translate
from tiltyard.model.modes import TransactionStatus
from tiltyard.pipeline.driver.catalog_run import (
    CatalogRun,
    describe_stopped,
    drive_job,
    new_owner,
    submit_job,
)
from tiltyard.pipeline.driver.progress import figure_reader
from tiltyard.pipeline.jobs import RegisteredJob
from tiltyard.pipeline.runs import LocalRun, describe_canceled
from tiltyard.pipeline.table_location import CatalogConnection
from tiltyard.runtime.pool import run_in_background

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tiltyard.pipeline.session import LazySession

POLL_SECONDS = 0.5
REFRESH_SECONDS = 0.5
_HIDDEN = ("progress", "eta_seconds")


class Run(ABC):
    """A job that runs, waits or has ended. `id` is that of its transaction; of a run that is not recorded, its own."""

    def __init__(self, name: str, run_id: str) -> None:
        self.name = name
        self.id = run_id

    @property
    @abstractmethod
    def status(self) -> str:
        """Return Queued, Running, Succeeded, Failed or Canceled."""

    @property
    @abstractmethod
    def figures(self) -> Mapping[str, str]:
        """Return the figures so far by name, as text: `rows`, `version`, `stage`, …; at the end those of the job."""

    @abstractmethod
    def cancel(self) -> None:
        """Cancel the run: it stops within a second or so, and commits nothing more. Does nothing after its end."""

    @abstractmethod
    def _join(self, seconds: float) -> None:
        """Wait until the run ends, for so long at most."""

    @abstractmethod
    def _interrupt(self) -> None:
        """End what this process has begun, for it was interrupted while it waited."""

    @abstractmethod
    def _raise_failure(self) -> None:
        """Raise what the run has failed with; nothing if it succeeded."""

    def wait(self, timeout: float | None = None) -> Self:
        """Wait until the run ends; return it. In a notebook a bar shows the progress meanwhile.

        Raises what the job fails with, RunCanceledError, TimeoutError after `timeout` seconds (the run goes on), and
        KeyboardInterrupt, at which a run of this process is canceled.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            with show_progress(self):
                while not self.has_ended:
                    if deadline is not None and time.monotonic() >= deadline:
                        raise TimeoutError(f"{self.name} has not ended within {timeout} s: wait again, or cancel it.")
                    self._join(POLL_SECONDS if deadline is None else min(POLL_SECONDS, deadline - time.monotonic()))
        except KeyboardInterrupt:
            self._interrupt()
            raise
        self._raise_failure()
        return self

    @property
    def has_ended(self) -> bool:
        """Return whether the run has ended, in whichever way."""
        return TransactionStatus(self.status).is_final

    @property
    def progress(self) -> float | None:
        """Return the share of the work that is done, 0 to 1; None while it is unknown."""
        if self.status == "Succeeded":
            return 1.0
        share = self.figures.get("progress")
        return None if share is None else float(share)

    @property
    def rows(self) -> int:
        """Return how many rows the job has written, deleted or computed so far."""
        return int(self.figures.get("rows", "0"))

    @property
    def version(self) -> int | None:
        """Return the version that the job has committed; None before, and where it commits none."""
        text = self.figures.get("version")
        return None if text is None else int(text)

    def __repr__(self) -> str:
        figures = ", ".join(f"{name}={value}" for name, value in self.figures.items())
        return f"<{self.name} {self.status}{': ' if figures else ''}{figures}>"

    def _repr_html_(self) -> str:
        return render_run(self)


class LocalThreadRun(Run):
    """A run that a thread of this process drives; the process ends when it has."""

    def __init__(
        self,
        name: str,
        run_id: str,
        work: Callable[[], Mapping[str, object] | None],
        read_figures: Callable[[], Mapping[str, str]],
        cancel: Callable[[], None],
    ) -> None:
        """Start `work()`, which returns the last figures, None if it was canceled."""
        super().__init__(name, run_id)
        self._work, self._read_figures, self._cancel = work, read_figures, cancel
        self._outcome: Mapping[str, str] | None = None
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._execute, name=f"tiltyard-{name}")
        self._thread.start()

    @property
    def status(self) -> str:
        if self._thread.is_alive():
            return "Running"
        if self._failure is None:
            return "Succeeded"
        return "Canceled" if isinstance(self._failure, RunCanceledError) else "Failed"

    @property
    def figures(self) -> Mapping[str, str]:
        return self._read_figures() if self._outcome is None else self._outcome

    def cancel(self) -> None:
        if self._thread.is_alive():
            self._cancel()

    def _join(self, seconds: float) -> None:
        self._thread.join(max(0.0, seconds))

    def _interrupt(self) -> None:
        self.cancel()
        self._thread.join()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _execute(self) -> None:
        try:
            with translate():
                outcome = self._work()
            if outcome is None:
                raise RunCanceledError(describe_canceled(self.name, self._read_figures()))
            self._outcome = {name: str(value) for name, value in outcome.items()}
        except RunCanceledError:
            self._failure = RunCanceledError(describe_canceled(self.name, self._read_figures()))
        except BaseException as error:  # noqa: BLE001  # it is raised in the thread that waits
            self._failure = error


class QueuedRun(Run):
    """A run that one of the server's workers drives, or will."""

    def __init__(self, calls: Caller, name: str, run_id: str, job: Mapping[str, Any] | None = None) -> None:
        """Follow a job, whose description `job` is, if that was read already."""
        super().__init__(name, run_id)
        self._calls = calls
        self._job: Mapping[str, Any] = {"status": "Queued", "properties": {}} if job is None else job

    @property
    def status(self) -> str:
        return str(self._describe()["status"])

    @property
    def figures(self) -> Mapping[str, str]:
        return dict(self._describe()["properties"])

    def cancel(self) -> None:
        if not self.has_ended:
            action = {"setStatusAction": {"status": "Canceled"}}
            self._calls.call("AlterTransaction", id=[self.id], actions=[action])

    def _join(self, seconds: float) -> None:
        time.sleep(max(0.0, seconds))

    def _interrupt(self) -> None:
        pass  # the worker goes on

    def _raise_failure(self) -> None:
        job = self._describe()
        if job["status"] == "Canceled":
            raise RunCanceledError(f"{self.name} was canceled.")
        if job["status"] in ("Failed", "Lost"):
            raise RunFailedError(
                str(job.get("error") or f"{self.name} failed: `tiltyard job show {self.id}` has more.")
            )

    def _describe(self) -> Mapping[str, Any]:
        if not TransactionStatus(self._job["status"]).is_final:
            self._job = self._calls.call("DescribeJob", id=[self.id])["job"]
        return self._job


class ServerRun(QueuedRun):
    """A run of a server's own work, as the refresh of a view that it computes without Spark."""

    def _describe(self) -> Mapping[str, Any]:
        if not TransactionStatus(self._job["status"]).is_final:
            found = self._calls.call("DescribeTransaction", id=[self.id])
            properties = found.get("properties") or {}
            self._job = {"status": found["status"], "properties": properties, "error": properties.get("error")}
        return self._job


def queue_run(catalog: CatalogConnection, job: RegisteredJob, arguments: Mapping[str, Any]) -> Run:
    """Queue a job for the server's workers. Raises InvalidInputError, and what SubmitJob raises."""
    with translate():
        queued = submit_job(catalog.caller(COMMAND_RETRY_SECONDS), job, arguments)
    return QueuedRun(catalog.caller(), job.name, queued.id)


def find_run(catalog: CatalogConnection, run_id: str) -> Run:
    """Return the run of a job that the catalog has recorded. Raises TransactionNotFoundError."""
    calls = catalog.caller()
    job = calls.call("DescribeJob", id=[run_id], retry_seconds=COMMAND_RETRY_SECONDS)["job"]
    return QueuedRun(calls, job["name"], job["id"], job)


def list_runs(catalog: CatalogConnection, name: str | None, status: str | None, limit: int | None) -> list[Run]:
    """Return the runs of jobs that the catalog has recorded and the caller may see, newest first."""
    calls = catalog.caller()
    jobs = catalog.caller(COMMAND_RETRY_SECONDS).entries("ListJobs", "jobs", name=name, status=status)
    return [QueuedRun(calls, job["name"], job["id"], job) for job in islice(jobs, limit)]


def drive_run(
    catalog: CatalogConnection,
    job: RegisteredJob,
    arguments: Mapping[str, Any],
    spark: SparkSession | LazySession | None,
) -> Run:
    """Record a job in the catalog, and drive it in a thread. Raises InvalidInputError, and what SubmitJob raises."""
    calls, owner = catalog.caller(COMMAND_RETRY_SECONDS), new_owner()
    with translate():
        queued = submit_job(calls, job, arguments, owner=owner)
    calls = catalog.caller()
    run = CatalogRun(calls, queued, owner)

    def work() -> Mapping[str, object] | None:
        figures = drive_job(run, partial(queued.execute, run, catalog, spark))
        if figures is None:
            describe_stopped(calls, queued.id)
        return figures

    return LocalThreadRun(job.name, queued.id, work, run.figures.texts, run.cancel)


def start_run(name: str, work: Callable[[LocalRun], Mapping[str, object]]) -> Run:
    """Run `work` in a thread, without a record in the catalog."""
    run = LocalRun()
    return LocalThreadRun(name, run.id, lambda: work(run), figure_reader(run.figures), run.canceled.set)


def render_run(run: Run) -> str:
    """Return a run as HTML: a bar while it runs, and a table of its figures."""
    figures, status = run.figures, run.status
    head = f"<b>{escape(run.name)}</b> {escape(status)}"
    if status in ("Queued", "Running"):
        share = figures.get("progress")
        value = "" if share is None else f' value="{float(share):.4f}"'
        left = f" {escape(figures['eta_seconds'])} s left" if "eta_seconds" in figures else ""
        head = f'{head} <progress max="1"{value}></progress>{left}'
    rows = [(name, text) for name, text in figures.items() if name not in _HIDDEN]
    return f"<div>{head}{render_table(('figure', 'value'), rows) if rows else ''}</div>"


@contextmanager
def show_progress(run: Run) -> Iterator[None]:
    """Show a run's bar in the output of a notebook's cell while the block runs; elsewhere, do nothing."""
    display = _notebook_display()
    if display is None or run.has_ended:
        yield
        return
    handle = display(run, display_id=True)

    def refresh(done: threading.Event) -> None:
        while not done.wait(REFRESH_SECONDS):
            handle.update(run)
        handle.update(run)

    with run_in_background("bar", refresh):
        yield


def _notebook_display() -> Any:
    """Return IPython's `display` in the kernel of a notebook, else None."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or not hasattr(shell, "kernel"):
        return None
    from IPython.display import display  # type: ignore[import-not-found]  # noqa: PLC0415  # a notebook has it

    return display
