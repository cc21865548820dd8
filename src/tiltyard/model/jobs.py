"""Jobs: transactions of the catalog that a worker or a driver runs; the registry of their functions.

A job function is decorated with `@job(kind)` and takes `(ctx, job)`. It is run again after a crash, so it has to be
idempotent. It reports by `job.progress(...)`, which raises JobCanceledError once the transaction is canceled.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import Any, TypeVar

from lance_namespace.errors import ConcurrentModificationError, ServiceUnavailableError

from tiltyard.model.quotas import FILES, ROWS_AND_FILES, Resource


class JobCanceledError(Exception):
    """The transaction was canceled, or another worker has its lease: the job stops, and cleans up after itself."""


@dataclass(frozen=True, slots=True)
class Job:
    """A running transaction; `report` writes properties and returns whether the job is to go on."""

    id: str
    kind: str
    table_id: int | None
    payload: Mapping[str, Any]
    report: Callable[[Mapping[str, str]], bool]

    def progress(self, **properties: object) -> None:
        """Set properties of the transaction (`progress="0.4"`, `rows=…`). Raises JobCanceledError."""
        if not self.report({name: str(value) for name, value in properties.items()}):
            raise JobCanceledError(self.id)


PIPELINE_JOBS: Mapping[str, str] = {
    "ingest": "tiltyard.pipeline.ingest.job",
    "index": "tiltyard.pipeline.indexes.job",
    "optimize": "tiltyard.pipeline.optimize.job",
    "pipeline": "tiltyard.pipeline.plans.job",
    "backfill": "tiltyard.pipeline.backfill.job",
    "deduplicate": "tiltyard.pipeline.deduplicate.job",
    "delete": "tiltyard.pipeline.delete.job",
    "export": "tiltyard.pipeline.export.job",
    "refresh": "tiltyard.pipeline.views.job",
    "stream": "tiltyard.pipeline.streams.job",
    "upsert": "tiltyard.pipeline.ingest.job",
}
"""The modules of the pipeline's jobs, by name: a server queues them, drivers run them (docs/pipeline.md)."""

DELETE = "delete"
"""The job that deletes rows: of all jobs that Spark may run, it alone runs no code that its submitter chose."""
JOBS_ON_TABLES = frozenset(PIPELINE_JOBS) - {"pipeline"}
"""Jobs that are about one table, their argument `table`."""
STORED_BY_JOBS: Mapping[str, Sequence[Resource]] = {
    **dict.fromkeys(("ingest", "pipeline", "refresh", "stream", "upsert"), ROWS_AND_FILES),
    **dict.fromkeys(("backfill", "index"), FILES),
}
"""What jobs use of quotas: one is not queued where one of them is full."""

MAX_ATTEMPTS = 5
"""How often a job is started before it fails for good, by workers and by drivers."""
ENDLESS_JOBS = frozenset({"stream"})
"""Jobs that are started again however often: they run for months, and each start goes on where the last one was."""


def exclusive_run_key(name: str, table: str, arguments: Mapping[str, Any]) -> str | None:
    """Return what only one run at a time may do: a stream, by its table and its name; None for all other jobs."""
    if name not in ENDLESS_JOBS:
        return None
    identity = json.dumps([name, table, arguments.get("name") or arguments.get("source")])
    return hashlib.sha256(identity.encode()).hexdigest()


RETRY_MS = 1_000
"""How long a job waits before it is started again, for the first time."""
MAX_RETRY_MS = 30_000


def is_transient(error: BaseException) -> bool:
    """Return whether a job may succeed if it is started again: a server or storage was away, or another commit came."""
    return isinstance(error, ServiceUnavailableError | ConcurrentModificationError)


def retry_wait_ms(attempts: int, *, is_endless: bool = False) -> int:
    """Return how long a job waits that was started so often: twice as long each time, MAX_RETRY_MS at most.

    An endless one waits as the first time: its starts are counted over its whole life, whatever it has done since.
    """
    return RETRY_MS if is_endless else min(RETRY_MS << min(max(attempts - 1, 0), 20), MAX_RETRY_MS)


RETRYABLE = "retryable"
"""The property of a failed job that says whether it may succeed if it is submitted again: `true` or `false`."""

CATALOG_FILE_VARIABLE = "TILTYARD_JOB_CATALOG_FILE"
"""The variable that names, for a driver in cluster mode, the file that says how to reach the catalog (JSON)."""
OLD_CATALOG_VARIABLE = "TILTYARD_JOB_CATALOG"
"""The variable that held that JSON before: a driver's environment is its JVM's, too, where SQL and code can read it."""
UDFS_VARIABLE = "TILTYARD_JOB_UDFS"
"""The variable that is `off` for a driver that runs no code of clients."""
DRIVER_VARIABLE = "TILTYARD_JOB_DRIVER"
"""The variable that is `worker` for a driver of submitted jobs, whose SQL and code are not the operator's own."""

ENTRY_POINTS = "tiltyard.jobs"
"""The group of entry points by which other packages add jobs: `name = "their.module"`."""

ResultFunction = Callable[[Mapping[str, str]], Mapping[str, Any]]
"""Makes the result of a job that succeeded, as clients read it, from the properties of its transaction."""
JOB_RESULTS: dict[str, ResultFunction] = {}

Registered = TypeVar("Registered")
JobFunction = Callable[[Any, Job], Mapping[str, str] | None]

JOBS: dict[str, JobFunction] = {}


@cache
def pipeline_jobs() -> Mapping[str, str]:
    """Return the modules of all installed pipeline jobs, by name: ours, and those of other packages."""
    return {entry.name: entry.module for entry in entry_points(group=ENTRY_POINTS)} | dict(PIPELINE_JOBS)


def job(kind: str) -> Callable[[JobFunction], JobFunction]:
    """Register the function for transactions of this kind; the mapping it returns is added to their properties."""
    return register_in(JOBS, kind)


def job_result(kind: str) -> Callable[[ResultFunction], ResultFunction]:
    """Register the function that makes the result of jobs of this kind; without one, it is all of their properties."""
    return register_in(JOB_RESULTS, kind)


def register_in(registry: dict[str, Registered], name: str) -> Callable[[Registered], Registered]:
    """Return the decorator of a function that is registered by a name."""

    def register(function: Registered) -> Registered:
        registry[name] = function
        return function

    return register
