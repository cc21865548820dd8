"""Maintenance: which tables need a job, and that it is queued once."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from lance_namespace.errors import (
    InvalidInputError,
    InvalidTableStateError,
    NamespaceNotFoundError,
    PermissionDeniedError,
    TableNotFoundError,
    UnsupportedOperationError,
)

from tiltyard.model.columns.computed_columns import VIEW
from tiltyard.model.ids import DEFAULT_DELIMITER, Id, parse_id
from tiltyard.pipeline.driver.lease import submit_job
from tiltyard.pipeline.jobs import find_job
from tiltyard.pipeline.operation_client import OperationClient

log = logging.getLogger("tiltyard.pipeline")

OPTIMIZE, REFRESH = "optimize", "refresh"
_REFUSALS = (InvalidInputError, InvalidTableStateError, PermissionDeniedError, UnsupportedOperationError)
UNFINISHED = ("Queued", "Running")


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When a table needs an optimize job: from so many small fragments, or such a share of its rows not in an index."""

    small_fragments: int = 16
    unindexed: float = 0.1


@dataclass(frozen=True, slots=True)
class NeededJob:
    """A job that a table needs; `job_id` once it is queued, `was_queued` if it was queued or running before."""

    table: str
    job: str
    reason: str
    job_id: str = ""
    was_queued: bool = False


def queue_needed_jobs(
    client: OperationClient, tables: Sequence[str], thresholds: Thresholds, *, dry_run: bool = False
) -> Iterator[NeededJob]:
    """Queue the jobs that these tables need, or all tables; yield each job. One that waits or runs is not queued twice.

    A table that has no data yet, or is dropped meanwhile, needs nothing; among all tables, a view that may not be
    refreshed is logged and skipped. Raises lance_namespace.errors.
    """
    unfinished = {
        (job, table): job_id for job in (OPTIMIZE, REFRESH) for table, job_id in _unfinished_jobs(client, job)
    }
    for name in tables or _all_tables(client):
        path = parse_id(name, DEFAULT_DELIMITER)
        try:
            needed_jobs = list(_find_needed_jobs(client, path, thresholds))
        except (InvalidTableStateError, TableNotFoundError, NamespaceNotFoundError) as error:
            if tables:
                raise
            log.info("%s: %s", name, error)
            continue
        for needed in needed_jobs:
            if job_id := unfinished.get((needed.job, needed.table)):
                yield replace(needed, job_id=job_id, was_queued=True)
            elif dry_run:
                yield needed
            else:
                arguments, properties = {"table": needed.table}, {"why": needed.reason}
                try:
                    queued = submit_job(client, find_job(needed.job), arguments, properties=properties)
                except _REFUSALS as error:
                    if tables:
                        raise
                    log.warning("%s: %s is not queued: %s", needed.table, needed.job, error)
                    continue
                yield replace(needed, job_id=queued.id)


def _find_needed_jobs(client: OperationClient, path: Id, thresholds: Thresholds) -> Iterator[NeededJob]:
    """Yield the jobs that a table needs. Raises TableNotFoundError, InvalidTableStateError (no data yet)."""
    name = str(path)
    stats = client.call("GetTableStats", id=list(path))
    small = stats["fragment_stats"]["num_small_fragments"]
    reasons = []
    if small >= thresholds.small_fragments:
        reasons.append(f"{small} small fragments")
    rows = stats["num_rows"]
    for index in _indexes(client, path):
        missing = index.get("num_unindexed_rows") or 0
        if rows and missing / rows >= thresholds.unindexed:
            reasons.append(f"the index {index['index_name']} lacks {missing} of {rows} rows")
    if reasons:
        yield NeededJob(name, OPTIMIZE, ", ".join(reasons))
    schema = client.call("DescribeTable", id=list(path), load_detailed_metadata=True).get("schema") or {}
    if (schema.get("metadata") or {}).get(f"{VIEW}auto_refresh") == "true":
        # A job that has nothing to do ends at once.
        yield NeededJob(name, REFRESH, "it is a view that refreshes by itself")


def _indexes(client: OperationClient, path: Id) -> Iterator[dict[str, object]]:
    for page in client.pages("ListTableIndices", id=list(path)):
        yield from page["indexes"]


def _all_tables(client: OperationClient) -> Iterator[str]:
    for page in client.pages("ListAllTables", limit=500):
        yield from page["tables"]


def _unfinished_jobs(client: OperationClient, job: str) -> Iterator[tuple[str, str]]:
    """Yield the tables for which a job waits or runs, with the job's id."""
    for status in UNFINISHED:
        for page in client.pages("ListJobs", name=job, status=status):
            for entry in page["jobs"]:
                yield str(Id(entry.get("table") or ())), entry["id"]
