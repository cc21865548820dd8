"""Maintenance: which tables need a job, and that it is queued once."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lance_namespace.errors import (
    InvalidInputError,
    InvalidTableStateError,
    NamespaceNotFoundError,
    PermissionDeniedError,
    TableNotFoundError,
    UnsupportedOperationError,
)

from tiltyard.model.computed_columns import VIEW
from tiltyard.model.ids import DEFAULT_DELIMITER, display, parse_id
from tiltyard.pipeline.driver.lease import submit
from tiltyard.pipeline.jobs import find_job
from tiltyard.pipeline.operation_client import OperationClient

log = logging.getLogger("tiltyard.pipeline")

OPTIMIZE, REFRESH = "optimize", "refresh"
_REFUSALS = (InvalidInputError, InvalidTableStateError, PermissionDeniedError, UnsupportedOperationError)
UNFINISHED = ("Queued", "Running")


@dataclass(frozen=True, slots=True)
class Thresholds:
    """From when on a table is worth a job: its small fragments, and the share of its rows that an index lacks."""

    small_fragments: int = 16
    unindexed: float = 0.1


@dataclass(frozen=True, slots=True)
class Need:
    """A job that a table needs, and why; `job_id` once it is queued, `there` if it was before."""

    table: str
    job: str
    why: str
    job_id: str = ""
    there: bool = False


def maintain(
    calls: OperationClient, tables: Sequence[str], thresholds: Thresholds, *, dry_run: bool = False
) -> Iterator[Need]:
    """Queue what these tables need, or all; each as it is found. Jobs that wait or run are not queued twice.

    A table that has no data yet, or is dropped meanwhile, needs nothing; among all tables, a view that may not be
    refreshed is logged and passed over. Raises lance_namespace.errors.
    """
    unfinished = {(job, table): number for job in (OPTIMIZE, REFRESH) for table, number in _unfinished(calls, job)}
    for name in tables or _all_tables(calls):
        path = parse_id(name, DEFAULT_DELIMITER)
        try:
            found = list(_needs(calls, path, thresholds))
        except (InvalidTableStateError, TableNotFoundError, NamespaceNotFoundError) as error:
            if tables:
                raise
            log.info("%s: %s", name, error)
            continue
        for need in found:
            if number := unfinished.get((need.job, need.table)):
                yield Need(need.table, need.job, need.why, number, there=True)
            elif dry_run:
                yield need
            else:
                try:
                    queued = submit(calls, find_job(need.job), {"table": need.table}, properties={"why": need.why})
                except _REFUSALS as error:
                    if tables:
                        raise
                    log.warning("%s: %s is not queued: %s", need.table, need.job, error)
                    continue
                yield Need(need.table, need.job, need.why, queued.id)


def _needs(calls: OperationClient, path: tuple[str, ...], thresholds: Thresholds) -> Iterator[Need]:
    """What a table needs. Raises TableNotFoundError, InvalidTableStateError (no data yet)."""
    name = display(path)
    stats = calls.call("GetTableStats", id=list(path))
    small = stats["fragment_stats"]["num_small_fragments"]
    why = []
    if small >= thresholds.small_fragments:
        why.append(f"{small} small fragments")
    rows = stats["num_rows"]
    for index in _indexes(calls, path):
        lacking = index.get("num_unindexed_rows") or 0
        if rows and lacking / rows >= thresholds.unindexed:
            why.append(f"the index {index['index_name']} lacks {lacking} of {rows} rows")
    if why:
        yield Need(name, OPTIMIZE, ", ".join(why))
    told = calls.call("DescribeTable", id=list(path), load_detailed_metadata=True).get("schema") or {}
    if (told.get("metadata") or {}).get(f"{VIEW}auto_refresh") == "true":
        yield Need(name, REFRESH, "it is a view that refreshes by itself")  # a job without anything to do ends at once


def _indexes(calls: OperationClient, path: tuple[str, ...]) -> Iterator[dict[str, object]]:
    for page in calls.pages("ListTableIndices", id=list(path)):
        yield from page["indexes"]


def _all_tables(calls: OperationClient) -> Iterator[str]:
    for page in calls.pages("ListAllTables", limit=500):
        yield from page["tables"]


def _unfinished(calls: OperationClient, job: str) -> Iterator[tuple[str, str]]:
    """The tables for which a job waits or runs, with its id."""
    for status in UNFINISHED:
        for page in calls.pages("ListJobs", name=job, status=status):
            for found in page["jobs"]:
                yield display(tuple(found.get("table") or ())), found["id"]
