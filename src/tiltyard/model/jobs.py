"""Long work: a transaction in the catalog that a worker runs.

A job function is decorated with `@job(kind)` and takes `(ctx, job)`. It may be started again after a crash, so it has
to be safe to run twice, and it reports by `job.progress(...)`, which is also how it hears of a cancel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tiltyard.context import Context


class JobCanceledError(Exception):
    """Somebody canceled the transaction, or another worker took it over: stop, and leave nothing behind."""


@dataclass(frozen=True, slots=True)
class Job:
    """A running transaction; `report` writes properties and says whether to go on."""

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
    "delete": "tiltyard.pipeline.delete.job",
    "export": "tiltyard.pipeline.export.job",
    "refresh": "tiltyard.pipeline.views.job",
    "upsert": "tiltyard.pipeline.upsert.job",
}
"""The jobs of the data pipeline, by the module of each: a server queues them, drivers run them (docs/pipeline.md)."""


MOST_ATTEMPTS = 5
"""How often work is begun before it fails for good, by servers and by drivers."""
RETRY_MS = 1_000
"""How long work waits at least before it is begun again."""

ORDERS_FILE = "TILTYARD_JOB_CATALOG_FILE"
"""A driver's variable in cluster mode: the file that says how to reach the catalog (JSON), mounted by the operator."""
FORMER_ORDERS = "TILTYARD_JOB_CATALOG"
"""Where that was before: a driver's environment is its JVM's, too, and SQL and code in there could read it."""
UDFS = "TILTYARD_JOB_UDFS"
"""A driver's variable: `off` where it runs no code of clients."""
DRIVER = "TILTYARD_JOB_DRIVER"
"""A driver's variable: `worker` where it drives jobs of others, whose SQL and code are not the operator's own."""

ENTRY_POINTS = "tiltyard.jobs"
"""The group of entry points by which packages bring jobs of their own: `name = "their.module"`."""

JobFunction = Callable[["Context", Job], Mapping[str, str] | None]

JOBS: dict[str, JobFunction] = {}


@cache
def pipeline_jobs() -> Mapping[str, str]:
    """All jobs of the pipeline that are installed, by the module of each: ours, and those of other packages."""
    return {entry.name: entry.module for entry in entry_points(group=ENTRY_POINTS)} | dict(PIPELINE_JOBS)


def job(kind: str) -> Callable[[JobFunction], JobFunction]:
    """Run transactions of this kind with the function; what it returns joins the transaction's properties."""

    def register(function: JobFunction) -> JobFunction:
        JOBS[kind] = function
        return function

    return register
