"""Jobs of the data pipeline: queued here, run by drivers outside of the server, told of by transactions.

A driver has a job under a lease, by a name of its own that nobody else is told. It extends the lease, keeps what it has
done (so that the next driver need not do it again), and writes how the job ended. Whoever cancels the transaction, or
takes the job over when its lease ended, makes all of that fail, and so the driver stop.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    InvalidTableStateError,
    LanceNamespaceError,
    ServiceUnavailableError,
    TableNotFoundError,
    TransactionNotFoundError,
)

from tiltyard.access import Privilege, filtered_lists
from tiltyard.access.needs import on_server
from tiltyard.access.transaction_checks import LIST_JOBS, OWN_JOB, SUBMIT_JOB
from tiltyard.catalog.job_admission import admit_job, asked, bound_table, check_asker, checked_arguments
from tiltyard.catalog.transactions import transaction_id
from tiltyard.model.ids import display, table_id
from tiltyard.model.jobs import pipeline_jobs
from tiltyard.model.modes import TransactionStatus, parse_mode
from tiltyard.model.operations import always, operation
from tiltyard.model.settings.spark_properties import check_spark_properties
from tiltyard.model.spec import models
from tiltyard.tables.opening import find_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tiltyard.context import Context
    from tiltyard.store import TransactionRecord, UnitOfWork

LEASE_MS = 30_000
LONGEST_LEASE_MS = 3_600_000
PARTS = 1_000
"""How many parts an answer holds at most."""


def queue_job(
    ctx: Context,
    name: str,
    arguments: Mapping[str, Any],
    *,
    wanted: Privilege,
    record_id: int | None = None,
    table: Sequence[str] = (),
    spark: Mapping[str, str] | None = None,
    properties: Mapping[str, str] | None = None,
    image: str = "",
    owner: str = "",
    lease_ms: int = LEASE_MS,
) -> TransactionRecord:
    """Queue a job, or hand it to `owner` at once. `record_id` is the table that it works on, `table` its name.

    `wanted` are the privileges on it that whoever asks needs, now and when the job is begun.
    `image` is that of the executors where they are containers. Raises TableNotFoundError when the table is gone.
    """
    payload = {"arguments": dict(arguments), "table": list(table), "spark": dict(spark or {}), **asked(ctx, wanted)}
    payload |= {"image": image} if image else {}
    told = {"job": name, **({"table": display(tuple(table))} if table else {}), **(properties or {})}

    def work(catalog: UnitOfWork) -> TransactionRecord:
        queued = catalog.create_transaction(name, record_id, payload, told, requested_by=ctx.principal.name)
        return (catalog.claim_job(queued.id, owner, lease_ms) if owner else None) or queued

    return ctx.store.transact(work)


@operation(needs=SUBMIT_JOB)
def submit_job(ctx: Context, request: models.SubmitJobRequest) -> models.SubmitJobResponse:
    """Queue a job, or begin one for the driver `owner`, which then has it under a lease.

    The server does not look into `arguments`, unless the job has a `job_check`: the driver does. The table need not
    exist, for a job may make it. Raises InvalidInputError (no such job, a lease out of bounds).
    """
    if request.name not in pipeline_jobs():
        known = ", ".join(sorted(pipeline_jobs()))
        raise InvalidInputError(f"There is no job '{request.name}': choose one of {known}.")
    table = list(table_id(request.table)) if request.table else []
    record = queue_job(
        ctx,
        request.name,
        checked_arguments(ctx, request.name, tuple(table), request.arguments or {}),
        wanted=Privilege.RUN_UDFS,
        record_id=_record_id(ctx, table),
        table=table,
        spark=_spark(ctx, request),
        properties=request.properties,
        owner=request.owner or "",
        lease_ms=_lease(request) if request.owner else LEASE_MS,
    )
    return models.SubmitJobResponse(job=entry(ctx, record))


def _spark(ctx: Context, request: models.SubmitJobRequest) -> Mapping[str, str] | None:
    """Properties that a caller may set. Raises InvalidInputError for any other."""
    check_spark_properties(request.spark or {}, ctx.settings.spark_limits)
    return request.spark


def _record_id(ctx: Context, table: Sequence[str]) -> int | None:
    """The number of the table that a job works on, if it is there already."""
    if not table:
        return None
    try:
        return find_table(ctx, table).id
    except TableNotFoundError:
        return None


@operation(needs=on_server(Privilege.RUN_UDFS))
def claim_job(ctx: Context, request: models.ClaimJobRequest) -> models.ClaimJobResponse:
    """Hand a job to the driver `owner`: `job_id`, or the one of these names that waits longest; none if there is none.

    A job that runs is handed out again once its lease has ended. One that whoever asked for it may not have done any
    more fails. Raises InvalidInputError, TransactionNotFoundError, and what `admit_job` raises of a `job_id`.
    """
    lease = _lease(request)
    if request.job_id:
        admit_job(ctx, _job(ctx, request.job_id))
        record = ctx.store.claim_job(request.job_id, request.owner, lease)
    else:
        names = tuple(pipeline_jobs()) if request.names is None else tuple(set(request.names) & set(pipeline_jobs()))
        record = claim_next(ctx, request.owner, lease, names)
    return models.ClaimJobResponse(job=entry(ctx, record) if record else None)


def claim_next(ctx: Context, owner: str, lease_ms: int, names: Sequence[str]) -> TransactionRecord | None:
    """Hand out the job of these names that waits longest, and may be begun; those that may not fail.

    Raises ServiceUnavailableError.
    """
    while names and ctx.store.has_claimable_transaction(names):
        record = ctx.store.claim_transaction(owner, lease_ms, names)
        if record is None:
            return None
        try:
            admit_job(ctx, record)
        except ServiceUnavailableError:
            raise  # it is claimed, and handed out again when that lease ends
        except LanceNamespaceError as error:
            with suppress(ConcurrentModificationError, TransactionNotFoundError):  # it was canceled just now
                ctx.store.finish_transaction(record.id, owner, TransactionStatus.FAILED, error=str(error))
        else:
            return record
    return None


@operation(needs=OWN_JOB, audited=False)
def beat_job(ctx: Context, request: models.BeatJobRequest) -> models.BeatJobResponse:
    """Extend the lease, and let `properties` join those of the transaction; the driver goes on if it is Running.

    A job that whoever asked for it may not have done any more fails here. Raises TransactionNotFoundError,
    ConcurrentModificationError (another driver has the job), InvalidInputError.
    """
    job_id, lease = transaction_id(request.id), _lease(request)
    refusal = _refusal(ctx, job_id)

    def work(catalog: UnitOfWork) -> TransactionStatus:
        status = catalog.heartbeat(job_id, request.owner, lease)
        if refusal and not status.is_final:
            status = catalog.finish_transaction(job_id, request.owner, TransactionStatus.FAILED, error=refusal).status
        if request.properties and not status.is_final:
            catalog.merge_properties(job_id, request.properties)
        return status

    return models.BeatJobResponse(status=ctx.store.transact(work))


def _refusal(ctx: Context, job_id: str) -> str:
    """Why whoever asked for a job may not have it done any more; "" if they may. Raises ServiceUnavailableError."""
    try:
        check_asker(ctx, ctx.store.describe_transaction(job_id))
    except (TransactionNotFoundError, ServiceUnavailableError):
        raise
    except LanceNamespaceError as error:
        return str(error)
    return ""


@operation(needs=OWN_JOB, audited=False)
def keep_job_part(ctx: Context, request: models.KeepJobPartRequest) -> models.KeepJobPartResponse:
    """Remember, until the job has succeeded, that a part of it is done; a part of the same name is replaced.

    Raises TransactionNotFoundError, ConcurrentModificationError (canceled, or another driver has the job).
    """
    job_id = transaction_id(request.id)
    _job(ctx, job_id)
    ctx.store.save_job_part(job_id, request.owner, request.name, request.value)
    return models.KeepJobPartResponse()


@operation(needs=OWN_JOB, changes=False)
def list_job_parts(ctx: Context, request: models.ListJobPartsRequest) -> models.ListJobPartsResponse:
    """List what was kept of a job, by name. Raises TransactionNotFoundError, InvalidInputError."""
    record = _job(ctx, transaction_id(request.id))
    found, token = ctx.paging.fetch_page(
        f"parts {record.id}",
        request.page_token,
        min(request.limit or PARTS, PARTS),
        lambda after, count: ctx.store.list_job_parts(record.id, after or "", count),
        lambda part: part[0],
    )
    return models.ListJobPartsResponse(parts=dict(found), page_token=token)


@operation(needs=OWN_JOB)
def finish_job(ctx: Context, request: models.FinishJobRequest) -> models.FinishJobResponse:
    """Write how the owner's job ended: Succeeded, Failed, or Queued for another try, not before `wait_millis`.

    Raises InvalidInputError, TransactionNotFoundError, ConcurrentModificationError (canceled, or another driver's).
    """
    job_id = transaction_id(request.id)
    status = parse_mode(TransactionStatus, request.status, TransactionStatus.FAILED, "status")
    if status in (TransactionStatus.RUNNING, TransactionStatus.CANCELED):
        raise InvalidInputError(f"A driver cannot end its job as {status}: Succeeded, Failed or Queued.")
    due = ctx.clock() + (request.wait_millis or 0)

    def work(catalog: UnitOfWork) -> TransactionStatus:
        ended = catalog.finish_transaction(job_id, request.owner, status, error=request.error, available_at=due)
        if request.properties:
            catalog.merge_properties(job_id, request.properties)
        if status is TransactionStatus.SUCCEEDED:
            catalog.delete_job_parts(job_id)
        return ended.status

    return models.FinishJobResponse(status=ctx.store.transact(work))


@operation(needs=LIST_JOBS, changes=False)
def list_jobs(ctx: Context, request: models.ListJobsRequest) -> models.ListJobsResponse:
    """List the jobs that the caller may describe, newest first, of all names and statuses or of one.

    Raises InvalidInputError.
    """
    kinds = (request.name,) if request.name else tuple(pipeline_jobs())
    status = request.status and parse_mode(TransactionStatus, request.status, TransactionStatus.QUEUED, "status")
    found, token = ctx.paging.fetch_page(
        f"jobs {request.name} {status}",
        request.page_token,
        request.limit,
        lambda before, count: filtered_lists.list_jobs(
            ctx, kinds, status or None, tuple(before) if before else None, count
        ),
        lambda record: (record.created_at, record.id),
    )
    return models.ListJobsResponse(jobs=[entry(ctx, record) for record in found], page_token=token)


@operation(needs=OWN_JOB, inline=always, changes=False)
def describe_job(ctx: Context, request: models.DescribeJobRequest) -> models.DescribeJobResponse:
    """Tell a job: what was asked for, where it stands, its figures. Raises TransactionNotFoundError."""
    return models.DescribeJobResponse(job=entry(ctx, _job(ctx, transaction_id(request.id))))


def entry(ctx: Context, record: TransactionRecord) -> models.JobEntry:
    """A job as answers tell it, its table under the name that it has now; who drives it is nobody's business."""
    path, location = bound_table(ctx, record) or (record.payload.get("table"), None)
    return models.JobEntry(
        id=record.id,
        name=record.kind,
        status=record.status,
        table=list(path or ()) or None,
        location=location,
        arguments=record.payload.get("arguments", {}),
        spark=record.payload.get("spark") or None,
        properties=dict(record.properties),
        error=record.error,
        attempts=record.attempts,
        asked_by=record.requested_by,
        created_at_millis=record.created_at,
        updated_at_millis=record.updated_at,
    )


def _job(ctx: Context, job_id: str) -> TransactionRecord:
    """A transaction that is a job. Raises TransactionNotFoundError, InvalidTableStateError for other work."""
    record = ctx.store.describe_transaction(job_id)
    if record.kind not in pipeline_jobs():
        raise InvalidTableStateError(f"The transaction {job_id} is no job: it is {record.kind}, the server's own work.")
    return record


def _lease(request: models.SubmitJobRequest | models.ClaimJobRequest | models.BeatJobRequest) -> int:
    """How long a lease is asked for, in ms. Raises InvalidInputError."""
    lease = request.lease_millis or LEASE_MS
    if not 1000 <= lease <= LONGEST_LEASE_MS:
        raise InvalidInputError(f"A lease is 1000 to {LONGEST_LEASE_MS} ms, not {lease}.")
    if not request.owner:
        raise InvalidInputError("A driver needs a name of its own, that nobody else knows: give 'owner'.")
    return lease
