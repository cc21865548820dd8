"""Drive a job of the catalog's queue under its lease: report its progress, resume it from its checkpoints."""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidTableStateError,
    LanceNamespaceError,
    PermissionDeniedError,
    TransactionNotFoundError,
)

from tiltyard.model.ids import Id
from tiltyard.model.jobs import ENDLESS_JOBS, MAX_ATTEMPTS, RETRYABLE, is_transient, retry_wait_ms
from tiltyard.pipeline.driver.progress import Figures
from tiltyard.pipeline.jobs import find_job
from tiltyard.pipeline.runs import RunCanceledError
from tiltyard.pipeline.session import LazySession, describe_application
from tiltyard.pipeline.sources.filesystem import absolute_path
from tiltyard.pipeline.task_errors import drop_repeated_prefix
from tiltyard.runtime.lease import LEASE_MS, Lease

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tiltyard.calls.caller import Caller
    from tiltyard.pipeline.jobs import RegisteredJob
    from tiltyard.pipeline.runs import Run
    from tiltyard.pipeline.table_location import CatalogConnection

log = logging.getLogger("tiltyard.pipeline")

TAKEOVER_SECONDS, TAKEOVER_POLL_SECONDS = LEASE_MS / 1000 + 2.0, 1.0
"""For how long a stream waits for the lease of an earlier run to end, and how long before each try."""
POLL_SECONDS = 0.4
"""How often a driver checks whether its job was canceled."""
REPORT_SECONDS = 1.0
"""How often it reports its figures, at most."""


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A job as the catalog describes it: `arguments` have the current name of its table, which lies at `location`."""

    id: str
    name: str
    arguments: Mapping[str, Any]
    spark: Mapping[str, str]
    attempts: int
    status: str = "Running"
    location: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_response(cls, job: Mapping[str, Any]) -> QueuedJob:
        """Read the job of a response."""
        spark, arguments, location = job.get("spark") or {}, job["arguments"], job.get("location")
        if location and "table" in arguments:
            arguments = {**arguments, "table": str(Id(job["table"]))}
        properties = job.get("properties") or {}
        return cls(job["id"], job["name"], arguments, spark, job["attempts"], job["status"], location, properties)

    def execute(
        self, run: Run, catalog: CatalogConnection, spark: SparkSession | LazySession | None
    ) -> Mapping[str, object]:
        """Run the job's function, on no other table than its own; return the last figures. Raises what it raises."""
        if isinstance(spark, LazySession):
            spark.on_start = lambda session: run.progress(**describe_application(session))
        else:
            run.progress(**describe_application(spark))
        job = find_job(self.name)
        arguments = job.validate(self.arguments)
        if self.location and "table" in arguments:
            catalog = replace(catalog, bound=((str(arguments["table"]), self.location),))
        return job.run(run, catalog, spark, arguments)


def new_owner() -> str:
    """Return a name for a driver that cannot be guessed: the owner of a job's lease may end the job."""
    return uuid.uuid4().hex


class CatalogRun:
    """A run of a queued job. The thread of its lease reports its figures, and checks whether it was canceled."""

    def __init__(self, client: Caller, job: QueuedJob, owner: str, lease_ms: int = LEASE_MS) -> None:
        """Run a job whose lease `owner` has. Raises lance_namespace.errors if its checkpoints cannot be read."""
        self.figures = Figures()
        self.is_released = False
        self._client = client
        self._job = job
        self._owner = owner
        self._lease_ms = lease_ms
        self._checkpoints = dict(_load_checkpoints(client, job.id))
        self._canceling = False
        self._reported: Mapping[str, str] = {}
        self._reported_at = 0.0
        self._lease = Lease(
            f"job {job.id}", self._renew, lease_ms, look=self._look, look_seconds=POLL_SECONDS, is_new=False
        )

    @property
    def id(self) -> str:
        """Return the id of the job's transaction."""
        return self._job.id

    @property
    def attempts(self) -> int:
        """Return how often the job was started."""
        return self._job.attempts

    @property
    def is_endless(self) -> bool:
        """Return whether the job is started again however often it has been."""
        return self._job.name in ENDLESS_JOBS

    def progress(self, **figures: object) -> None:
        """Set figures; the catalog has them within a second or so. Raises RunCanceledError, after setting them."""
        self.figures.set(figures)
        self.check()

    def check(self) -> None:
        """Raise RunCanceledError once the job is canceled, or another driver has its lease."""
        if self._canceling or not self._lease.check():
            raise RunCanceledError(self.id)

    def checkpoints(self) -> Mapping[str, str]:
        """Return the checkpoints of this driver and earlier ones."""
        return dict(self._checkpoints)

    def save_checkpoint(self, key: str, value: str) -> None:
        """Save a checkpoint in the catalog; release a job that is paused. Raises RunCanceledError,
        ServiceUnavailableError.
        """
        self.check()
        response = self._call_as_owner("KeepJobPart", name=key, value=value)
        self._checkpoints[key] = value
        if response.get("paused"):
            self.release()
            raise RunCanceledError(self.id)

    def read_function(self) -> Mapping[str, Any]:
        """Return the function of the job's column. Raises RunCanceledError, and what ReadJobFunction raises."""
        self.check()
        return self._call_as_owner("ReadJobFunction")

    def record_errors(self, **fields: Any) -> None:
        """Record errors of a fragment in the catalog. Raises RunCanceledError, ServiceUnavailableError."""
        self.check()
        self._call_as_owner("RecordFunctionErrors", **fields)

    def cancel(self) -> None:
        """Cancel the job, as any client may. Safe to call in a signal handler: the lease's thread sends the request."""
        self._canceling = True

    def release(self) -> None:
        """Stop the job here, and release its lease, so that another driver resumes it."""
        self.is_released = True
        self._lease.lose()

    def close(self) -> None:
        """Renew the lease no longer."""
        self._lease.close()
        if self._canceling and not self._lease.is_lost:
            self._send_cancel()

    def finish(self, status: str, error: str | None = None, wait_ms: int = 0) -> None:
        """Write how the job ended. Raises RunCanceledError if it was canceled, or another driver has its lease."""
        self.close()
        properties = self.figures.texts()
        self._call_as_owner("FinishJob", status=status, properties=properties, error=error, wait_millis=wait_ms)

    def _call_as_owner(self, operation: str, **fields: Any) -> dict[str, Any]:
        try:
            response: dict[str, Any] = self._client.call(operation, id=[self.id], owner=self._owner, **fields)
        except (ConcurrentModificationError, TransactionNotFoundError) as error:
            self._lease.lose()
            raise RunCanceledError(self.id) from error
        return response

    def _renew(self) -> bool:
        """Extend the lease, and report figures that have changed; return whether the job is still running."""
        texts = self.figures.texts()
        changed = {name: text for name, text in texts.items() if self._reported.get(name) != text}
        now = time.monotonic()
        fields: dict[str, Any] = {"owner": self._owner, "lease_millis": self._lease_ms, "properties": changed}
        response = self._client.call("BeatJob", id=[self.id], **fields)
        self._reported, self._reported_at = texts, now
        is_running: bool = response["status"] == "Running"
        return is_running

    def _look(self) -> bool:
        """Cancel the job, report new figures, or ask for its status; return whether it goes on."""
        if self._canceling:
            self._send_cancel()
            return False
        if time.monotonic() - self._reported_at > REPORT_SECONDS and self.figures.texts() != self._reported:
            return self._lease.renew()
        described = self._client.call("DescribeTransaction", id=[self.id], retry_seconds=0)
        is_running: bool = described["status"] == "Running"
        return is_running

    def _send_cancel(self) -> None:
        action = {"setStatusAction": {"status": "Canceled"}}
        try:
            self._client.call("AlterTransaction", id=[self.id], actions=[action])
        except InvalidTableStateError:
            log.info("job %s had ended before it was canceled", self.id)
        except LanceNamespaceError as error:
            log.warning("job %s stopped here, but is not canceled: %s", self.id, error)


def _load_checkpoints(client: Caller, job_id: str) -> list[tuple[str, str]]:
    return [part for page in client.pages("ListJobParts", id=[job_id]) for part in page["parts"].items()]


def submit_job(client: Caller, job: RegisteredJob, arguments: Mapping[str, Any], **fields: Any) -> QueuedJob:
    """Queue a job; with `owner`, claim it at once. `fields` are those of SubmitJob.

    A stream of this process waits for as long as that of a killed one may count as alive. Raises InvalidInputError,
    ConcurrentModificationError (the stream has a run that is alive).
    """
    checked = job.validate(arguments)
    if "owner" in fields:
        fields["lease_millis"] = LEASE_MS
    is_own_stream = "owner" in fields and job.name in ENDLESS_JOBS
    if is_own_stream:  # the folder that this process means: by it the stream is known
        checked = {**checked, "source": absolute_path(checked["source"])}
    fields |= {"name": job.name, "arguments": checked, "table": job.table(checked) or None}
    deadline = time.monotonic() + (TAKEOVER_SECONDS if is_own_stream else 0.0)
    while True:
        try:
            return QueuedJob.from_response(client.call("SubmitJob", **fields)["job"])
        except ConcurrentModificationError as error:
            if time.monotonic() >= deadline:
                raise
            log.warning("waiting for the end of its lease, if its process is gone: %s", error)
            time.sleep(TAKEOVER_POLL_SECONDS)


def describe_stopped(client: Caller, job_id: str) -> Mapping[str, Any]:
    """Return the description of a stopped job. Raises PermissionDeniedError where the catalog has failed it."""
    job: Mapping[str, Any] = client.call("DescribeJob", id=[job_id])["job"]
    if job["status"] in ("Failed", "Lost") and job.get("error"):
        raise PermissionDeniedError(job["error"])
    return job


def claim_job(
    client: Caller,
    job_id: str,
    owner: str,
    lease_ms: int = LEASE_MS,
    *,
    check: Callable[[], None] = lambda: None,
) -> QueuedJob:
    """Claim a job, once the lease of its last driver has ended; one that failed is queued again first.

    `check` is called repeatedly meanwhile; it ends the wait by raising. Raises TransactionNotFoundError,
    InvalidTableStateError for a job that succeeded or was canceled.
    """
    while True:
        check()
        response = client.call("ClaimJob", owner=owner, job_id=job_id, lease_millis=lease_ms)
        if response.get("job"):
            return QueuedJob.from_response(response["job"])
        status = client.call("DescribeJob", id=[job_id])["job"]["status"]
        if status == "Failed":
            client.call("AlterTransaction", id=[job_id], actions=[{"setStatusAction": {"status": "Queued"}}])
        elif status in ("Succeeded", "Canceled"):
            raise InvalidTableStateError(f"The job {job_id} is {status}: there is nothing to resume.")
        else:
            time.sleep(POLL_SECONDS)


def drive_job(
    run: CatalogRun, function: Callable[[], Mapping[str, object]], *, attempts: int | None = None
) -> dict[str, str] | None:
    """Run `function()` as the job's work, and write how it ended; return the figures, or None if it was stopped.

    A transient error (the server is away, a conflict) queues the job again, until its attempts are used up; without
    `attempts`, the job is this process's own, and fails. Raises what the job failed with.
    """
    try:
        outcome = function()
    except RunCanceledError:
        if run.is_released:
            _release(run)
        run.close()
        return None
    except Exception as error:
        most = min(MAX_ATTEMPTS, getattr(error, "attempts", MAX_ATTEMPTS))
        _fail(run, error, can_retry=attempts is not None and (run.is_endless or attempts < most))
        raise
    run.figures.finish(outcome)
    try:
        run.finish("Succeeded")
    except RunCanceledError:
        log.info("job %s was canceled, or taken over, after its commit", run.id)
        return None
    return run.figures.texts()


def _release(run: CatalogRun) -> None:
    try:
        run.finish("Queued")
    except RunCanceledError:
        log.info("job %s was canceled, or taken over, before it was released", run.id)


def _fail(run: CatalogRun, error: Exception, *, can_retry: bool) -> None:
    """Write that a job failed, or queue it again after a transient error."""
    wait = retry_wait_ms(run.attempts, is_endless=run.is_endless)
    status, wait = ("Queued", wait) if is_transient(error) and can_retry else ("Failed", 0)
    if status == "Failed":
        run.figures.set({RETRYABLE: str(is_transient(error)).lower()})
    try:
        run.finish(status, error=public_message(error, run.id), wait_ms=wait)
    except RunCanceledError:
        log.info("job %s was canceled, or taken over, before it failed", run.id)


def public_message(error: BaseException, job_id: str) -> str:
    """Return why a job failed, for the catalog: the sentence of our own errors, or the class of any other.

    The message of an error of Java, Spark or a library may hold files of the driver, values of rows and addresses of
    storage, and all who may see the job would see them: it is in the driver's log alone.
    """
    if isinstance(error, LanceNamespaceError):
        return short_message(error)
    condition = getattr(error, "getCondition", lambda: None)()
    name = condition if condition and _CONDITION.fullmatch(condition) else type(error).__name__
    return f"The job failed with {name}: the log of its driver, which is the worker's, has more under its id {job_id}."


MAX_MESSAGE_LENGTH = 2_000
_CONDITION = re.compile(r"[A-Z0-9_.]{1,200}")
_TRACE = "Traceback (most recent call last)"


def short_message(error: BaseException) -> str:
    """Return why a job failed, in a few sentences at most; the pages of Spark and Java are in their logs."""
    text = str(error) if isinstance(error, LanceNamespaceError) else f"{type(error).__name__}: {_last_line(error)}"
    text = drop_repeated_prefix(text)
    return text if len(text) <= MAX_MESSAGE_LENGTH else f"{text[:MAX_MESSAGE_LENGTH]} …"


def _last_line(error: BaseException) -> str:
    """Return an error's message; of a traceback, which Spark passes on from its Python workers, the last line."""
    text = str(error).strip()
    return text.splitlines()[-1] if _TRACE in text else text
