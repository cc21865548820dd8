"""Queue the jobs that tables need, each once: `optimize` for upkeep, `refresh` for views that refresh by themselves."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lance_namespace.errors import (
    InvalidInputError,
    InvalidTableStateError,
    NamespaceNotFoundError,
    PermissionDeniedError,
    TableNotFoundError,
    UnsupportedOperationError,
)

from tiltyard.calls.caller import Caller
from tiltyard.model.columns.computed_columns import VIEW
from tiltyard.model.ids import Id, parse_id
from tiltyard.pipeline.driver.catalog_run import submit_job
from tiltyard.pipeline.jobs import find_job
from tiltyard.upkeep.decision import UpkeepState, decide_upkeep
from tiltyard.upkeep.thresholds import DELETED_SHARE, UpkeepOptions, upkeep_options

log = logging.getLogger("tiltyard.pipeline")

OPTIMIZE, REFRESH = "optimize", "refresh"
_REFUSALS = (InvalidInputError, InvalidTableStateError, PermissionDeniedError, UnsupportedOperationError)
UNFINISHED = ("Queued", "Running")


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What a caller sets in place of the thresholds of upkeep: small fragments, and the share of a table's rows that an
    index may lack.
    """

    small_fragments: int | None = None
    unindexed: float | None = None

    def apply(self, options: UpkeepOptions, rows: int) -> UpkeepOptions:
        """Return the options of a table of so many rows, with what the caller has set."""
        if self.small_fragments is not None:
            options = replace(options, small_fragments=self.small_fragments)
        if self.unindexed is not None:
            options = replace(options, unindexed_rows=max(1, math.ceil(self.unindexed * rows)))
        return options


@dataclass(frozen=True, slots=True)
class NeededJob:
    """A job that a table needs; `job_id` once it is queued, `was_queued` if it was queued or running before."""

    table: str
    job: str
    reason: str
    job_id: str = ""
    was_queued: bool = False


def queue_needed_jobs(
    client: Caller, tables: Sequence[str], thresholds: Thresholds, *, dry_run: bool = False
) -> Iterator[NeededJob]:
    """Queue the jobs that these tables need, or all tables; yield each job. One that waits or runs is not queued twice.

    A table that has no data yet, or is dropped meanwhile, needs nothing; nor, among all tables, one whose properties
    switch upkeep off, and a view that may not be refreshed is logged and skipped. Raises lance_namespace.errors.
    """
    unfinished = {
        (job, table): job_id for job in (OPTIMIZE, REFRESH) for table, job_id in _unfinished_jobs(client, job)
    }
    for name in tables or client.entries("ListAllTables", "tables", limit=500):
        path = parse_id(name)
        try:
            needed_jobs = list(_find_needed_jobs(client, path, thresholds, is_named=bool(tables)))
        except (InvalidInputError, InvalidTableStateError, TableNotFoundError, NamespaceNotFoundError) as error:
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


def _find_needed_jobs(client: Caller, path: Id, thresholds: Thresholds, *, is_named: bool) -> Iterator[NeededJob]:
    """Yield the jobs that a table needs. Raises TableNotFoundError, InvalidTableStateError (no data yet)."""
    name = str(path)
    table = client.call("DescribeTable", id=list(path), load_detailed_metadata=True)
    stats = client.call("GetTableStats", id=list(path))
    options = upkeep_options(table.get("properties") or {}, math.inf)  # old versions are for the servers
    if is_named or options.enabled:
        needs = decide_upkeep(_state(client, path, table, stats), thresholds.apply(options, stats["num_rows"]))
        if needs.reasons:
            yield NeededJob(name, OPTIMIZE, ", ".join(needs.reasons))
    metadata = (table.get("schema") or {}).get("metadata") or {}
    if metadata.get(f"{VIEW}auto_refresh") == "true" and metadata.get(f"{VIEW}kind") != "select":  # the servers' own
        # A job that has nothing to do ends at once.
        yield NeededJob(name, REFRESH, "it is a view that refreshes by itself")


def _state(client: Caller, path: Id, table: Mapping[str, Any], stats: Mapping[str, Any]) -> UpkeepState:
    """Return the state of a table as its catalog tells it: deleted rows are of all its fragments together."""
    deleted = (table.get("stats") or {}).get("num_deleted_rows") or 0
    return UpkeepState(
        small_fragments=stats["fragment_stats"]["num_small_fragments"],
        has_worn_fragments=deleted > 0 and deleted >= DELETED_SHARE * (stats["num_rows"] + deleted),
        unindexed={
            str(each["index_name"]): each.get("num_unindexed_rows") or 0
            for each in client.entries("ListTableIndices", "indexes", id=list(path))
        },
    )


def _unfinished_jobs(client: Caller, job: str) -> Iterator[tuple[str, str]]:
    """Yield the tables for which a job waits or runs, with the job's id."""
    for status in UNFINISHED:
        for entry in client.entries("ListJobs", "jobs", name=job, status=status):
            yield str(Id(entry.get("table") or ())), entry["id"]
