"""Jobs of the data pipeline: queued by the server, run by drivers in other processes, recorded as transactions.

A driver holds a job under a lease, by a secret name of its own (`owner`). It extends the lease, saves checkpoints (so
that the next driver resumes from them), and records how the job ended. Once the transaction is canceled, or another
driver has taken over an expired lease, all these calls fail, which stops the driver.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    InvalidTableStateError,
    LanceNamespaceError,
    NamespaceNotFoundError,
    ServiceUnavailableError,
    TableNotFoundError,
    TransactionNotFoundError,
)

from tiltyard.access import filtered_lists
from tiltyard.access.needs import LIST_JOBS, OWN_JOB, SUBMIT_JOB, on_server, privileges_of_job
from tiltyard.catalog.jobs.authorization import (
    authorize_start,
    authorize_submitter,
    submitter_payload,
    validate_arguments,
    visible_job_table,
)
from tiltyard.catalog.transactions import transaction_id
from tiltyard.model.ids import Id, parse_id, table_id
from tiltyard.model.jobs import ENDLESS_JOBS, STORED_BY_JOBS, exclusive_run_key, pipeline_jobs
from tiltyard.model.modes import TransactionStatus, parse_mode
from tiltyard.model.operations import always, operation
from tiltyard.model.principals import Privilege
from tiltyard.model.settings.spark_properties import check_spark_properties
from tiltyard.model.spec import models
from tiltyard.runtime.lease import MAX_LEASE_MS, UNKNOWN_HOLDER_LEASE_MS
from tiltyard.store import JobFilter, RunKeyTakenError
from tiltyard.tables.opening import find_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tiltyard.context import Context
    from tiltyard.store import TransactionRecord, UnitOfWork

MAX_PARTS = 1_000
"""The greatest number of checkpoints in one page."""
MAX_LOST_RUNS = 1_000
"""How many runs are ended at once."""


def queue_job(
    ctx: Context,
    name: str,
    arguments: Mapping[str, Any],
    *,
    required: Privilege,
    record_id: int | None = None,
    namespace_id: int | None = None,
    table: Sequence[str] = (),
    spark: Mapping[str, str] | None = None,
    properties: Mapping[str, str] | None = None,
    image: str = "",
    owner: str = "",
    lease_ms: int = UNKNOWN_HOLDER_LEASE_MS,
) -> TransactionRecord:
    """Queue a job, or lease it to `owner` at once. `record_id` is the id of its table, `table` the name.

    `namespace_id` is that of a table that the job is to create. `required` are the privileges on the table that the
    submitter needs, now and when the job is started. `image` is that of the executors where they are containers. A job
    that is leased at once is its submitter's own: no worker adopts it.
    Raises TableNotFoundError when the table is gone, ConcurrentModificationError (the stream has a run already).
    """
    job = NewJob(
        name,
        arguments,
        submitter_payload(ctx, required),
        ctx.principal.name,
        record_id=record_id,
        namespace_id=namespace_id,
        table=table,
        spark=spark or {},
        properties=properties or {},
        image=image,
    )
    run_key = exclusive_run_key(name, str(Id(table)), arguments)

    def work(catalog: UnitOfWork) -> TransactionRecord:
        queued = job.create(catalog, run_key, is_local=bool(owner))
        return (catalog.claim_job(queued.id, owner, lease_ms) if owner else None) or queued

    if run_key is not None:
        end_lost_runs(ctx)
    try:
        return ctx.store.transact(work)
    except RunKeyTakenError as error:
        raise _second_run(ctx, run_key or "") from error


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job to queue, whose submission was authorized and checked: the arguments of `queue_job`.

    `submitter` is the part of its payload that `submitter_payload` makes, `requested_by` the submitter's name.
    """

    name: str
    arguments: Mapping[str, Any]
    submitter: Mapping[str, Any]
    requested_by: str | None
    record_id: int | None = None
    namespace_id: int | None = None
    table: Sequence[str] = ()
    spark: Mapping[str, str] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)
    image: str = ""

    def create(self, catalog: UnitOfWork, run_key: str | None, *, is_local: bool = False) -> TransactionRecord:
        """Queue it, as the only unfinished one with its run key. Raises TableNotFoundError, RunKeyTakenError."""
        payload = {
            "arguments": dict(self.arguments),
            "table": list(self.table),
            "spark": dict(self.spark),
            **self.submitter,
        }
        payload |= {"image": self.image} if self.image else {}
        table = {"table": str(Id(self.table))} if self.table else {}
        return catalog.create_transaction(
            self.name,
            self.record_id,
            payload,
            {"job": self.name, **table, **self.properties},
            requested_by=self.requested_by,
            namespace_id=self.namespace_id,
            is_local=is_local,
            run_key=run_key,
        )


def _second_run(ctx: Context, run_key: str) -> ConcurrentModificationError:
    """Return the error for a job that only one may do at a time, and another does."""
    holder = ctx.store.find_unfinished_run(run_key)
    which = "another job" if holder is None else f"the job {holder.id}, which is {holder.status.lower()}"
    stop = "" if holder is None else f" (`tiltyard job cancel {holder.id}`)"
    return ConcurrentModificationError(
        f"This stream has one run at a time, and {which}, is it: cancel that one{stop}, or wait for its end."
    )


@operation(needs=SUBMIT_JOB, doubles=True)
def submit_job(ctx: Context, request: models.SubmitJobRequest) -> models.SubmitJobResponse:
    """Queue a job, or start one for the driver `owner`, which then holds it under a lease.

    The server validates `arguments` only for a job with a `job_validator`: the driver validates them. The table need
    not exist, for a job may create it. Raises InvalidInputError (no such job, a lease out of bounds),
    PermissionDeniedError (a quota of what it stores is full).
    """
    check_job_name(request.name)
    ctx.services.quotas.check_storing(ctx.principal.name, request, STORED_BY_JOBS.get(request.name, ()))
    table = table_id(request.table) if request.table else Id()
    record_id = find_job_table(ctx, table)
    required = privileges_of_job(ctx, table, request.name, has_spark=bool(request.spark))
    if required is not Privilege.RUN_UDFS and table_id(parse_id(str((request.arguments or {}).get("table")))) != table:
        raise InvalidInputError("A delete is of the table that the job is submitted for: name the same one in 'table'.")
    record = queue_job(
        ctx,
        request.name,
        validate_arguments(ctx, request.name, table, request.arguments or {}),
        required=required,
        record_id=record_id,
        namespace_id=find_job_parent(ctx, table) if record_id is None else None,
        table=table,
        spark=_checked_spark_properties(ctx, request),
        properties=request.properties,
        owner=request.owner or "",
        lease_ms=_lease_ms(request) if request.owner else UNKNOWN_HOLDER_LEASE_MS,
    )
    return models.SubmitJobResponse(job=to_entry(ctx, record))


def _checked_spark_properties(ctx: Context, request: models.SubmitJobRequest) -> Mapping[str, str] | None:
    """Return the properties of Spark in a request. Raises InvalidInputError for one that callers may not set."""
    check_spark_properties(request.spark or {}, ctx.settings.spark_limits)
    return request.spark


def check_job_name(name: str) -> None:
    """Raise InvalidInputError for a name that no job of the pipeline has."""
    if name not in pipeline_jobs():
        names = ", ".join(sorted(pipeline_jobs()))
        raise InvalidInputError(f"There is no job '{name}': choose one of {names}.")


def find_job_table(ctx: Context, table: Sequence[str]) -> int | None:
    """Return the id of a job's table, if it exists already."""
    if not table:
        return None
    try:
        return find_table(ctx, table).id
    except TableNotFoundError:
        return None


def find_job_parent(ctx: Context, table: Id) -> int | None:
    """Return the id of the namespace where a job is to create its table, if it exists already."""
    if not table:
        return None
    try:
        return ctx.store.describe_namespace(table.parent).id
    except NamespaceNotFoundError:
        return None


@operation(needs=on_server(Privilege.RUN_UDFS))
def claim_job(ctx: Context, request: models.ClaimJobRequest) -> models.ClaimJobResponse:
    """Lease a job to the driver `owner`: `job_id`, or the one of these names that waits longest; none if there is none.

    A running job is leased again once its lease has expired. One whose submitter has lost the privileges fails. Raises
    InvalidInputError, TransactionNotFoundError, and what `authorize_start` raises for a `job_id`.
    """
    lease_ms = _lease_ms(request)
    if request.job_id:
        authorize_start(ctx, _job(ctx, request.job_id))
        record = ctx.store.claim_job(request.job_id, request.owner, lease_ms)
    else:
        names = tuple(pipeline_jobs()) if request.names is None else tuple(set(request.names) & set(pipeline_jobs()))
        record = claim_next(ctx, request.owner, lease_ms, names)
    return models.ClaimJobResponse(job=to_entry(ctx, record) if record else None)


def claim_next(ctx: Context, owner: str, lease_ms: int, names: Sequence[str]) -> TransactionRecord | None:
    """Lease the job of these names that waits longest and can be started; fail those that cannot.

    Raises ServiceUnavailableError.
    """
    while names and ctx.store.has_claimable_transaction(names):
        record = ctx.store.claim_transaction(owner, lease_ms, names)
        if record is None:
            return None
        try:
            authorize_start(ctx, record)
        except ServiceUnavailableError:
            raise  # its lease stays, and the job is leased again once that expires
        except LanceNamespaceError as error:
            with suppress(ConcurrentModificationError, TransactionNotFoundError):  # it was just canceled
                ctx.store.finish_transaction(record.id, owner, TransactionStatus.FAILED, error=str(error))
        else:
            return record
    return None


@operation(needs=OWN_JOB, audited=False, keyed=False, while_read_only=True)
def beat_job(ctx: Context, request: models.BeatJobRequest) -> models.BeatJobResponse:
    """Extend the lease, and add `properties` to those of the transaction; the driver goes on if it is Running.

    A job whose submitter has lost the privileges fails here. Raises TransactionNotFoundError,
    ConcurrentModificationError (another driver has the job), InvalidInputError.
    """
    job_id, lease_ms = transaction_id(request.id), _lease_ms(request)
    denial = _denial(ctx, job_id)

    def work(catalog: UnitOfWork) -> TransactionStatus:
        status = catalog.heartbeat(job_id, request.owner, lease_ms)
        if denial and not status.is_final:
            status = catalog.finish_transaction(job_id, request.owner, TransactionStatus.FAILED, error=denial).status
        if request.properties and not status.is_final:
            catalog.merge_properties(job_id, request.properties)
        return status

    return models.BeatJobResponse(status=ctx.store.transact(work))


def _denial(ctx: Context, job_id: str) -> str:
    """Return why a job's submitter is not authorized any more; "" if it is. Raises ServiceUnavailableError."""
    try:
        authorize_submitter(ctx, ctx.store.describe_transaction(job_id))
    except (TransactionNotFoundError, ServiceUnavailableError):
        raise
    except LanceNamespaceError as error:
        return str(error)
    return ""


@operation(needs=OWN_JOB, audited=False, keyed=False, while_read_only=True)
def keep_job_part(ctx: Context, request: models.KeepJobPartRequest) -> models.KeepJobPartResponse:
    """Save a checkpoint until the job has succeeded: a part of it that is done. One of the same name is replaced.

    `paused` in the response asks the driver to release the job now, for another one to resume it later.
    Raises TransactionNotFoundError, ConcurrentModificationError (canceled, or another driver has the job).
    """
    job_id = transaction_id(request.id)
    is_paused = _job(ctx, job_id).is_paused
    ctx.store.save_job_part(job_id, request.owner, request.name, request.value)
    return models.KeepJobPartResponse(paused=is_paused or None)


@operation(needs=OWN_JOB, changes=False)
def list_job_parts(ctx: Context, request: models.ListJobPartsRequest) -> models.ListJobPartsResponse:
    """List the checkpoints of a job, by name. Raises TransactionNotFoundError, InvalidInputError."""
    record = _job(ctx, transaction_id(request.id))
    parts, token = ctx.paging.fetch_page(
        f"parts {record.id}",
        request.page_token,
        min(request.limit or MAX_PARTS, MAX_PARTS),
        lambda after, count: ctx.store.list_job_parts(record.id, after or "", count),
        lambda part: part[0],
    )
    return models.ListJobPartsResponse(parts=dict(parts), page_token=token)


@operation(needs=OWN_JOB, while_read_only=True)
def finish_job(ctx: Context, request: models.FinishJobRequest) -> models.FinishJobResponse:
    """Record how the owner's job ended: Succeeded, Failed, or Queued for another attempt, not before `wait_millis`.

    Raises InvalidInputError, TransactionNotFoundError, ConcurrentModificationError (canceled, or leased to another
    driver).
    """
    job_id = transaction_id(request.id)
    status = parse_mode(TransactionStatus, request.status, TransactionStatus.FAILED, "status")
    if status in (TransactionStatus.RUNNING, TransactionStatus.CANCELED, TransactionStatus.LOST):
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
    matching = JobFilter(kinds, status or None)
    records, token = ctx.paging.fetch_page(
        f"jobs {request.name} {status}",
        request.page_token,
        request.limit,
        lambda before, count: filtered_lists.list_jobs(ctx, matching, before, count),
        lambda record: (record.created_at, record.id),
    )
    return models.ListJobsResponse(jobs=[to_entry(ctx, record) for record in records], page_token=token)


@operation(needs=OWN_JOB, inline=always, changes=False)
def describe_job(ctx: Context, request: models.DescribeJobRequest) -> models.DescribeJobResponse:
    """Describe a job: what was submitted, its status, its figures. Raises TransactionNotFoundError."""
    return models.DescribeJobResponse(job=to_entry(ctx, _job(ctx, transaction_id(request.id))))


def to_entry(ctx: Context, record: TransactionRecord) -> models.JobEntry:
    """Convert a job for a response, with its table's current name; the driver's name is a secret."""
    path, location = visible_job_table(ctx, record) or (record.payload.get("table"), None)
    status = record.status_at(ctx.clock())
    return models.JobEntry(
        id=record.id,
        name=record.kind,
        status=status,
        table=list(path or ()) or None,
        location=location,
        arguments=record.payload.get("arguments", {}),
        spark=record.payload.get("spark") or None,
        properties=dict(record.properties),
        error=describe_loss(record) if status is TransactionStatus.LOST else record.error,
        attempts=record.attempts,
        asked_by=record.requested_by,
        paused=record.is_paused or None,
        created_at_millis=record.created_at,
        updated_at_millis=record.updated_at,
    )


def _job(ctx: Context, job_id: str) -> TransactionRecord:
    """Return a transaction that is a job. Raises TransactionNotFoundError, InvalidTableStateError for other work."""
    record = ctx.store.describe_transaction(job_id)
    if record.kind not in pipeline_jobs():
        raise InvalidTableStateError(
            f"The transaction {job_id} is not a job: it is {record.kind}, the server's own work."
        )
    return record


def _lease_ms(request: models.SubmitJobRequest | models.ClaimJobRequest | models.BeatJobRequest) -> int:
    """Return the requested length of a lease, in ms. Raises InvalidInputError."""
    lease_ms = request.lease_millis or UNKNOWN_HOLDER_LEASE_MS
    if not 1000 <= lease_ms <= MAX_LEASE_MS:
        raise InvalidInputError(f"A lease is 1000 to {MAX_LEASE_MS} ms, not {lease_ms}.")
    if not request.owner:
        raise InvalidInputError("A driver needs a name of its own, that only it knows: set 'owner'.")
    return lease_ms


def end_lost_runs(ctx: Context) -> int:
    """End the runs whose lease has ended, as Lost; return how many. Raises ServiceUnavailableError.

    They are those that the process of their submitter drove: only submitted jobs are the workers' to start again.
    Whoever ran a command knows whether, and where, it is to go on: the run's error says how.
    """
    return ctx.store.end_lost_runs(describe_loss, MAX_LOST_RUNS) if ctx.store.has_lost_runs() else 0


def describe_loss(record: TransactionRecord) -> str:
    """Return what became of a run, and how to go on."""
    again = "run its command again, or " if record.kind in ENDLESS_JOBS else ""
    return (
        "The process that ran this job has ended without a word, or is cut off, and no worker goes on with a run that "
        f"was not submitted: {again}`tiltyard job resume {record.id}`, which repeats nothing that is done."
    )
