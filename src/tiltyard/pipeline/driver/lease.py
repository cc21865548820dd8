"""Driving a job that a catalog knows: under its lease, told of as it goes, resumed where it was left."""

from __future__ import annotations

import logging
import re
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidTableStateError,
    LanceNamespaceError,
    ServiceUnavailableError,
    TransactionNotFoundError,
)

from tiltyard.model.ids import display
from tiltyard.model.jobs import MOST_ATTEMPTS, RETRY_MS
from tiltyard.pipeline.jobs import find_job
from tiltyard.pipeline.operation_client import OperationClient
from tiltyard.pipeline.progress import Figures
from tiltyard.pipeline.runs import RunCanceledError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tiltyard.pipeline.jobs import RegisteredJob
    from tiltyard.pipeline.runs import Run
    from tiltyard.pipeline.table_location import Connection

log = logging.getLogger("tiltyard.pipeline")

LEASE_MS = 10_000
LOOK_SECONDS = 0.4
"""How often a driver looks whether its job was canceled."""
TELL_SECONDS = 1.0
"""How often it tells its figures, at most."""


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A job as the catalog tells it: `arguments` name its table as it is called now, `location` is where that lies."""

    id: str
    name: str
    arguments: Mapping[str, Any]
    spark: Mapping[str, str]
    attempts: int
    status: str = "Running"
    location: str | None = None

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> QueuedJob:
        """From an answer."""
        spark, arguments, location = told.get("spark") or {}, told["arguments"], told.get("location")
        if location and "table" in arguments:
            arguments = {**arguments, "table": display(tuple(told["table"]))}
        return cls(told["id"], told["name"], arguments, spark, told["attempts"], told["status"], location)

    def work(self, run: Run, where: Connection, spark: SparkSession | None) -> Mapping[str, object]:
        """Do it, for no other table than its own; the last figures. Raises what the job raises."""
        job = find_job(self.name)
        arguments = job.validate(self.arguments)
        if self.location and "table" in arguments:
            where = replace(where, bound=((str(arguments["table"]), self.location),))
        return job.function(run, where, spark, **arguments)


def new_owner() -> str:
    """The name of a driver: nobody can guess it, for whoever knows it may end the job."""
    return uuid.uuid4().hex


class CatalogRun:
    """A run of a job that the catalog knows as a transaction. A thread keeps the lease and looks for a cancel."""

    def __init__(self, calls: OperationClient, job: QueuedJob, owner: str, lease_ms: int = LEASE_MS) -> None:
        """Of a job that `owner` has. Raises lance_namespace.errors if what was kept of it cannot be read."""
        self.figures = Figures()
        self.handed_back = False
        self._calls = calls
        self._job = job
        self._owner = owner
        self._lease_ms = lease_ms
        self._kept = dict(_parts(calls, job.id))
        self._lost = threading.Event()
        self._done = threading.Event()
        self._canceling = False
        self._beaten = time.monotonic() - lease_ms / 1000  # whoever claimed it may have had it for another time: ask
        self._told: Mapping[str, str] = {}
        self._thread = threading.Thread(target=self._keep_lease, name=f"lease-{job.id}", daemon=True)
        self._thread.start()

    @property
    def id(self) -> str:
        """The transaction's id."""
        return self._job.id

    def progress(self, **figures: object) -> None:
        """Set figures; the transaction has them within a second or so. Raises RunCanceledError, with them set."""
        self.figures.set(figures)
        self.check()

    def check(self) -> None:
        """Raises RunCanceledError once the job was canceled, or is another's.

        A driver that slept longer than its lease asks first: another may have begun.
        """
        if not self._lost.is_set() and time.monotonic() - self._beaten > self._lease_ms / 1000:
            self._beat()
        if self._lost.is_set():
            raise RunCanceledError(self.id)

    def checkpoints(self) -> Mapping[str, str]:
        """What this driver and those before it kept."""
        return dict(self._kept)

    def save_checkpoint(self, key: str, value: str) -> None:
        """Remember a part, in the catalog. Raises RunCanceledError, ServiceUnavailableError."""
        self.check()
        self._owned("KeepJobPart", name=key, value=value)
        self._kept[key] = value

    def cancel(self) -> None:
        """Cancel the job for good, as anybody may. May be called by a handler of signals: the thread tells it."""
        self._canceling = True
        self._lost.set()

    def hand_back(self) -> None:
        """Let the job stop here, for another driver to go on with it."""
        self.handed_back = True
        self._lost.set()

    def close(self) -> None:
        """End the thread."""
        self._done.set()
        self._thread.join()

    def finish(self, status: str, error: str | None = None, wait_ms: int = 0) -> None:
        """Write how it ended. Raises RunCanceledError if the job is not ours any more."""
        self.close()
        properties = self.figures.texts()
        self._owned("FinishJob", status=status, properties=properties, error=error, wait_millis=wait_ms)

    def _owned(self, operation: str, **fields: Any) -> dict[str, Any]:
        try:
            return self._calls.call(operation, id=[self.id], owner=self._owner, **fields)
        except (ConcurrentModificationError, TransactionNotFoundError) as error:
            self._lost.set()
            raise RunCanceledError(self.id) from error

    def _beat(self) -> None:
        """Extend the lease and tell what is new. Raises ServiceUnavailableError."""
        texts = self.figures.texts()
        news = {name: text for name, text in texts.items() if self._told.get(name) != text}
        began = time.monotonic()
        try:
            answer = self._owned("BeatJob", lease_millis=self._lease_ms, properties=news)
        except RunCanceledError:
            return
        self._beaten, self._told = began, texts
        if answer["status"] != "Running":
            self._lost.set()

    def _keep_lease(self) -> None:
        while not self._lost.is_set() and not self._done.wait(LOOK_SECONDS):
            silent = time.monotonic() - self._beaten
            news = silent > TELL_SECONDS and self.figures.texts() != self._told
            try:
                if news or silent > self._lease_ms / 3000:
                    self._beat()
                elif self._calls.call("DescribeTransaction", id=[self.id], retry_seconds=0)["status"] != "Running":
                    self._lost.set()
            except LanceNamespaceError as error:
                log.warning("cannot ask for job %s: %s", self.id, error)
        if self._canceling:
            self._tell_cancel()

    def _tell_cancel(self) -> None:
        action = {"setStatusAction": {"status": "Canceled"}}
        try:
            self._calls.call("AlterTransaction", id=[self.id], actions=[action])
        except InvalidTableStateError:
            log.info("job %s had ended before it was canceled", self.id)
        except LanceNamespaceError as error:
            log.warning("job %s stopped here, but is not canceled: %s", self.id, error)


def _parts(calls: OperationClient, job_id: str) -> list[tuple[str, str]]:
    return [part for page in calls.pages("ListJobParts", id=[job_id]) for part in page["parts"].items()]


def submit(calls: OperationClient, job: RegisteredJob, arguments: Mapping[str, Any], **fields: Any) -> QueuedJob:
    """Queue a job; with `owner`, begin it. `fields` are those of SubmitJob. Raises InvalidInputError."""
    checked = job.validate(arguments)
    told = calls.call("SubmitJob", name=job.name, arguments=checked, table=job.table(checked) or None, **fields)
    return QueuedJob.of(told["job"])


def claim(
    calls: OperationClient,
    job_id: str,
    owner: str,
    lease_ms: int = LEASE_MS,
    *,
    check: Callable[[], None] = lambda: None,
) -> QueuedJob:
    """Take over a job, once the lease of its last driver has ended; one that failed is queued again first.

    `check` is called again and again before that, to end the wait by raising. Raises TransactionNotFoundError,
    InvalidTableStateError for one that succeeded or was canceled.
    """
    while True:
        check()
        answer = calls.call("ClaimJob", owner=owner, job_id=job_id, lease_millis=lease_ms)
        if answer.get("job"):
            return QueuedJob.of(answer["job"])
        status = calls.call("DescribeJob", id=[job_id])["job"]["status"]
        if status == "Failed":
            calls.call("AlterTransaction", id=[job_id], actions=[{"setStatusAction": {"status": "Queued"}}])
        elif status in ("Succeeded", "Canceled"):
            raise InvalidTableStateError(f"The job {job_id} is {status}: there is nothing to resume.")
        else:
            time.sleep(LOOK_SECONDS)


def drive(
    run: CatalogRun, function: Callable[[], Mapping[str, object]], *, attempts: int = MOST_ATTEMPTS
) -> dict[str, str] | None:
    """Run `function()` as the job's work, and write how it ended; the figures, or None if it was stopped.

    What may pass (a server away, a conflict) queues the job again, until its attempts are spent. Raises whatever the
    job failed with.
    """
    try:
        outcome = function()
    except RunCanceledError:
        if run.handed_back:
            _hand_back(run)
        run.close()
        return None
    except Exception as error:
        _failed(run, error, again=attempts < min(MOST_ATTEMPTS, getattr(error, "attempts", MOST_ATTEMPTS)))
        raise
    run.figures.set(outcome)
    try:
        run.finish("Succeeded")
    except RunCanceledError:
        log.info("job %s was canceled, or taken over, after its commit", run.id)
        return None
    return run.figures.texts()


def _hand_back(run: CatalogRun) -> None:
    try:
        run.finish("Queued")
    except RunCanceledError:
        log.info("job %s was canceled, or taken over, before it was handed back", run.id)


def _failed(run: CatalogRun, error: Exception, *, again: bool) -> None:
    """Write that a job failed, or queue it again."""
    passing = isinstance(error, ServiceUnavailableError | ConcurrentModificationError)
    status, wait = ("Queued", RETRY_MS) if passing and again else ("Failed", 0)
    try:
        run.finish(status, error=told_reason(error, run.id), wait_ms=wait)
    except RunCanceledError:
        log.info("job %s was canceled, or taken over, before it failed", run.id)


def told_reason(error: BaseException, job_id: str) -> str:
    """Why a job failed, for the catalog: our own sentences, or the name of what Spark ran into.

    What Java, Spark or a library says may hold files of the driver, values of rows and addresses of storage: whoever
    sees the job would see them, so that is in the driver's log alone.
    """
    if isinstance(error, LanceNamespaceError):
        return reason(error)
    condition = getattr(error, "getCondition", lambda: None)()
    what = condition if condition and _CONDITION.fullmatch(condition) else type(error).__name__
    return f"The job failed with {what}: the log of its driver, which is the worker's, has more under its id {job_id}."


LONGEST_REASON = 2_000
_CONDITION = re.compile(r"[A-Z0-9_.]{1,200}")
_TRACE = "Traceback (most recent call last)"
_TWICE = re.compile(r"^([^:]+: )\1+")
"""What generated clients put before an error's own words, which begin with it."""


def reason(error: BaseException) -> str:
    """Why a job failed, in one sentence or a few; Spark's and Java's pages are left to their logs."""
    text = str(error) if isinstance(error, LanceNamespaceError) else f"{type(error).__name__}: {_last_words(error)}"
    text = _TWICE.sub(r"\1", text)
    return text if len(text) <= LONGEST_REASON else f"{text[:LONGEST_REASON]} …"


def _last_words(error: BaseException) -> str:
    """What an error says; of a trace, which Spark hands on from its Python workers, its last line."""
    text = str(error).strip()
    return text.splitlines()[-1] if _TRACE in text else text
