"""Steer jobs as clients of lancedb's remote protocol do: list and describe them, cancel, pause and resume them.

Here a job is any transaction that takes work: index builds, drops, garbage collections and the jobs of the pipeline.
Its state has lancedb's words, of which only `DONE`, `FAILED` and `CANCELLED` end a client's wait.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec
from lance_namespace.errors import InvalidInputError, InvalidTableStateError, UnsupportedOperationError

from tiltyard.access import filtered_lists
from tiltyard.access.databases import check_job_in_database
from tiltyard.access.needs import ALTER_JOB, DESCRIBE_JOB_STATE, LIST_ALL_JOBS, may_see_arguments
from tiltyard.catalog.jobs.submission import describe_loss
from tiltyard.catalog.namespaces import DROP_KIND
from tiltyard.catalog.tables import DROP_TABLE
from tiltyard.model.ids import parse_id, table_id
from tiltyard.model.jobs import JOB_RESULTS, JOBS, RETRYABLE, pipeline_jobs
from tiltyard.model.modes import TransactionStatus
from tiltyard.model.operations import always, operation
from tiltyard.model.spec import models
from tiltyard.store import DROP_MOUNTED_TABLE, JobFilter
from tiltyard.store.tables.upkeep import UPKEEP
from tiltyard.tables.opening import find_table

if TYPE_CHECKING:
    from tiltyard.context import Context
    from tiltyard.store import TransactionRecord

Status = TransactionStatus

_STATES: Mapping[str, JobFilter] = {
    "QUEUED": JobFilter((), Status.QUEUED, is_paused=False),
    "IN_PROGRESS": JobFilter((), Status.RUNNING, is_paused=False),
    "PAUSED": JobFilter((), Status.QUEUED, is_paused=True),
    "PAUSING": JobFilter((), Status.RUNNING, is_paused=True),
    "DONE": JobFilter((), Status.SUCCEEDED),
    "FAILED": JobFilter((), Status.FAILED, with_lost=True),
    "LOST": JobFilter((), Status.LOST),
    "CANCELLED": JobFilter((), Status.CANCELED),
}
"""lancedb's words for the states, and what they are here. It has none for LOST: to its clients that is FAILED."""
_WORDS = {(state.status, state.is_paused or False): word for word, state in _STATES.items()} | {
    (Status.LOST, False): "FAILED"
}
_SHOWN = ("table", "index_name", "column", "index_type")
"""The properties that describe what a job is to do, to all who may see that it exists."""


@cache
def job_kinds() -> tuple[str, ...]:
    """Return the kinds of transactions that are listed as jobs."""
    return tuple(sorted({*JOBS, *pipeline_jobs(), *JOB_RESULTS, DROP_TABLE, DROP_KIND, DROP_MOUNTED_TABLE}))


def job_state(record: TransactionRecord, now: int) -> str:
    """Return lancedb's word for the state of a transaction at a time (ms since 1970)."""
    status = record.status_at(now)
    return _WORDS[status, record.is_paused and not status.is_final]


@operation(needs=LIST_ALL_JOBS, changes=False)
def list_all_jobs(ctx: Context, request: models.ListAllJobsRequest) -> models.ListAllJobsResponse:
    """List the jobs that the caller may describe, newest first: all, or those of a table, a type or a state.

    Within a database of lancedb's clients, those of its objects alone. The servers' own upkeep that has succeeded is
    listed only for a table, or by its type.
    Raises InvalidInputError, TableNotFoundError, NamespaceNotFoundError (no such database).
    """
    matching = _filter(ctx, request)
    records, token = ctx.paging.fetch_page(
        f"all jobs {request.table} {request.job_type} {request.state}",
        request.page_token,
        request.limit,
        lambda before, count: filtered_lists.list_all_jobs(ctx, matching, before, count),
        lambda record: (record.created_at, record.id),
    )
    return models.ListAllJobsResponse(jobs=[_summary(record, ctx.clock()) for record in records], page_token=token)


def _filter(ctx: Context, request: models.ListAllJobsRequest) -> JobFilter:
    if request.job_type is not None and request.job_type not in job_kinds():
        raise InvalidInputError(f"There is no job '{request.job_type}': choose one of {', '.join(job_kinds())}.")
    state = JobFilter(())
    if request.state is not None:
        if (word := request.state.upper()) not in _STATES:
            raise InvalidInputError(f"There is no state '{request.state}': choose one of {', '.join(_STATES)}.")
        state = _STATES[word]
    table = None if request.table is None else find_table(ctx, table_id(parse_id(request.table))).id
    kinds = job_kinds() if request.job_type is None else (request.job_type,)
    # It comes often, for every table: what has succeeded would be nearly all of a list.
    omitted = UPKEEP if request.job_type is None and table is None else None
    database = ctx.store.describe_namespace(ctx.database).id if ctx.database else None
    return msgspec.structs.replace(state, kinds=kinds, table_id=table, without_succeeded=omitted, namespace_id=database)


def _summary(record: TransactionRecord, now: int) -> models.JobSummary:
    return models.JobSummary(
        job_id=record.id,
        table=record.properties.get("table"),
        job_type=record.kind,
        state=job_state(record, now),
        lost=record.status_at(now) is Status.LOST or None,
        created_at_millis=record.created_at,
    )


@operation(needs=DESCRIBE_JOB_STATE, inline=always, changes=False)
def describe_job_state(ctx: Context, request: models.DescribeJobStateRequest) -> models.DescribeJobStateResponse:
    """Describe a job by its state, and what came out of it: a result, or a failure. Raises TransactionNotFoundError.

    Its arguments are shown to its submitter, and to those who may run such jobs on its table.
    """
    check_job_in_database(ctx, request.job_id)
    record = ctx.store.describe_transaction(request.job_id)
    spec: dict[str, Any] = {name: record.properties[name] for name in _SHOWN if name in record.properties}
    if (arguments := record.payload.get("arguments")) and may_see_arguments(ctx, record):
        spec |= {"arguments": arguments}
    return models.DescribeJobStateResponse(
        job_id=record.id,
        job_type=record.kind,
        job_state=job_state(record, ctx.clock()),
        creation_ms=record.created_at,
        spec=spec,
        result=_result(record),
        failure=_failure(record, ctx.clock()),
    )


def _result(record: TransactionRecord) -> dict[str, Any] | None:
    if record.status is not Status.SUCCEEDED:
        return None
    make_result = JOB_RESULTS.get(record.kind)
    return dict(record.properties) if make_result is None else dict(make_result(record.properties))


LOST_PHASE = "lost"
"""The phase of the failure of a job whose own process is gone."""


def _failure(record: TransactionRecord, now: int) -> models.JobFailure | None:
    """Return why a job failed, where it was then, and whether it may succeed if it is submitted once more."""
    if record.status_at(now) is Status.LOST:
        return models.JobFailure(phase=LOST_PHASE, message=describe_loss(record), retryable=True)
    if record.status is not Status.FAILED:
        return None
    return models.JobFailure(
        phase=record.properties.get("stage") or ("run" if record.attempts else "start"),
        message=record.error or "There is no reason; the log has the details under the job's id.",
        retryable=record.properties.get(RETRYABLE) == "true",
    )


@operation(needs=ALTER_JOB, while_read_only=True)
def cancel_job(ctx: Context, request: models.CancelJobRequest) -> models.CancelJobResponse:
    """Cancel a job; one that has ended stays as it is. Raises TransactionNotFoundError."""

    def change(status: Status, properties: Mapping[str, str]) -> tuple[Status, Mapping[str, str]]:
        return (status if status.is_final else Status.CANCELED), properties

    check_job_in_database(ctx, request.job_id)
    record = ctx.store.alter_transaction(request.job_id, change, altered_by=ctx.principal.name)
    return models.CancelJobResponse(job_state=job_state(record, ctx.clock()))


@operation(needs=ALTER_JOB, while_read_only=True)
def pause_job(ctx: Context, request: models.PauseJobRequest) -> models.PauseJobResponse:
    """Pause a job: no worker claims it until it is resumed, and a driver that runs it releases it at a checkpoint.

    Raises TransactionNotFoundError, InvalidTableStateError (it has ended), UnsupportedOperationError (the server's own
    work, once it runs: that has no checkpoints).
    """
    check_job_in_database(ctx, request.job_id)
    paused = ctx.store.pause_transaction(request.job_id, _check_pausable, ctx.principal.name)
    return models.PauseJobResponse(paused=paused, committing=False)


def _check_pausable(record: TransactionRecord) -> None:
    if record.status.is_final:
        raise InvalidTableStateError(f"The job {record.id} has ended ({record.status.lower()}): it cannot be paused.")
    if record.status is Status.RUNNING and record.kind not in pipeline_jobs():
        raise UnsupportedOperationError(
            f"The job {record.id} ({record.kind}) runs, and has no checkpoint to pause at: wait for it, or cancel it."
        )


@operation(needs=ALTER_JOB)
def resume_job(ctx: Context, request: models.ResumeJobRequest) -> models.ResumeJobResponse:
    """Resume a paused job; one whose driver has not released it yet goes on. Raises TransactionNotFoundError."""
    check_job_in_database(ctx, request.job_id)
    resumed = ctx.store.resume_transaction(request.job_id, ctx.principal.name)
    return models.ResumeJobResponse(resumed=resumed, still_pausing=False)
