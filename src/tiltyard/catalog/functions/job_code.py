"""What the driver of a job gets and reports of a function: its source and secrets, and the rows that it failed on.

Both need the job's lease. The source and the secrets are those of the column that the job fills, which the catalog
looks up by itself: a job can ask for no others.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import msgspec
from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    InvalidTableStateError,
    UnsupportedOperationError,
)

from tiltyard.access.authorization import authorize_server
from tiltyard.access.needs import OWN_JOB, on_table
from tiltyard.catalog.functions.functions import function_not_found, read_source
from tiltyard.catalog.functions.secrets import read_definition, read_secrets
from tiltyard.catalog.jobs.authorization import authorize_submitter, job_submitter
from tiltyard.catalog.transactions import transaction_id
from tiltyard.model.branches import Branch
from tiltyard.model.columns.computed_columns import FunctionDeclaration, read_declaration
from tiltyard.model.ids import Id, table_id
from tiltyard.model.operations import operation
from tiltyard.model.principals import Privilege
from tiltyard.model.spec import models
from tiltyard.store import FragmentErrors
from tiltyard.store.access.grants import NAMESPACE
from tiltyard.tables.opening import find_table

if TYPE_CHECKING:
    from tiltyard.context import Context
    from tiltyard.store import FunctionRecord, TransactionRecord

MAX_JOB_ERRORS = 10_000
"""How many failing rows of a job are recorded; of all others it is known how many there were."""
MAX_FRAGMENT_ERRORS = 100
MAX_LIMIT, DEFAULT_LIMIT = 100_000, 10_000
_MAX_TEXT_LENGTH = 1000


@operation(needs=OWN_JOB, keyed=False, while_read_only=True)
def read_job_function(ctx: Context, request: models.ReadJobFunctionRequest) -> models.ReadJobFunctionResponse:
    """Return the function that computes the column which a job fills, its source and its secrets, to the job's driver.

    The submitter needs `run_udfs` on the function's namespace; where it has secrets, its registrant needs
    `manage_secrets` on their namespaces, and the caller `run_udfs` on the server, as workers have it. Raises
    ConcurrentModificationError (not the owner of the lease), InvalidTableStateError (no function computes the column),
    TableNotFoundError (it or a secret was dropped), PermissionDeniedError, UnsupportedOperationError (code of clients
    is switched off).
    """
    job_id = transaction_id(request.id)
    if not ctx.settings.udfs:
        raise UnsupportedOperationError("Functions are switched off: the server's setting 'udfs' allows them.")
    job = ctx.store.describe_transaction(job_id)
    if not ctx.store.holds_lease(job_id, request.owner):
        raise ConcurrentModificationError(f"Job is no longer this driver's: {job_id}")
    record = _function_of(ctx, job)
    definition = read_definition(record)
    secrets = _read_secrets(ctx, record)
    return models.ReadJobFunctionResponse(
        name=record.name,
        version=str(record.version),
        definition=msgspec.to_builtins(definition),
        source=base64.b64encode(read_source(ctx, record)).decode(),
        secrets=secrets,
    )


def _function_of(ctx: Context, job: TransactionRecord) -> FunctionRecord:
    """Return the function of the column that a job fills, if the job's submitter may run it."""
    declaration = _declaration_of(ctx, job)
    record = ctx.store.find_pinned_function(declaration.object_id, declaration.version)
    if record is None or record.manifest_digest != declaration.manifest_digest:
        raise function_not_found(Id(declaration.function), str(declaration.version))
    own, _ = authorize_submitter(ctx, job)
    job_submitter(own.principal).authorize_namespace(
        own, _namespace_of(ctx, record), record.namespace_id, Privilege.RUN_UDFS.value
    )
    return record


def _declaration_of(ctx: Context, job: TransactionRecord) -> FunctionDeclaration:
    arguments = job.payload.get("arguments") or {}
    column, branch = arguments.get("column"), arguments.get("branch")
    if job.table_id is not None and isinstance(column, str) and isinstance(branch, str | None):
        table = ctx.store.table_by_id(job.table_id)
        dataset = ctx.storage.datasets.open_for_reading(table.location, Branch.parse(branch))
        if column in dataset.schema.names:
            declaration = read_declaration(dataset.schema.field(column).metadata)
            if isinstance(declaration, FunctionDeclaration):
                return declaration
    raise InvalidTableStateError(f"The job {job.id} fills no column that a function computes.")


def _namespace_of(ctx: Context, record: FunctionRecord) -> Id:
    path = ctx.store.object_path(NAMESPACE, record.namespace_id)
    if path is None:
        raise function_not_found(Id((record.name,)))
    return Id(path)


def _read_secrets(ctx: Context, record: FunctionRecord) -> dict[str, str] | None:
    """Decrypt the secrets that a function names, by their variables, for a caller that is a worker."""
    if not read_definition(record).secret_bindings:
        return None
    if not ctx.is_unchecked:
        authorize_server(ctx, Privilege.RUN_UDFS.value)
    return read_secrets(ctx, record)


@operation(needs=OWN_JOB, audited=False, keyed=False, while_read_only=True)
def record_function_errors(
    ctx: Context, request: models.RecordFunctionErrorsRequest
) -> models.RecordFunctionErrorsResponse:
    """Record the rows of a fragment that a function failed on: how many, and some of the errors.

    Raises ConcurrentModificationError (not the owner of the lease), InvalidInputError (more errors than are kept).
    """
    job = ctx.store.describe_transaction(transaction_id(request.id))
    if job.table_id is None or len(request.records) > MAX_FRAGMENT_ERRORS:
        raise InvalidInputError(f"A job reports {MAX_FRAGMENT_ERRORS} errors of a fragment of its table at most.")
    if any(
        len(error.error_message) > _MAX_TEXT_LENGTH or len(error.error_type) > _MAX_TEXT_LENGTH
        for error in request.records
    ):
        raise InvalidInputError(f"An error's type and message have {_MAX_TEXT_LENGTH} characters at most.")
    now = ctx.clock()
    entries = [_to_stored(request, error, now) for error in request.records]
    records = msgspec.json.encode(entries).decode()
    errors = FragmentErrors(
        job.id, job.table_id, request.fragment_id, request.column, request.rows_skipped, len(entries), records
    )
    recorded = ctx.store.save_fragment_errors(request.owner, errors, MAX_JOB_ERRORS)
    return models.RecordFunctionErrorsResponse(recorded=recorded)


def _to_stored(request: models.RecordFunctionErrorsRequest, error: models.RowFailure, now: int) -> dict[str, Any]:
    return {
        "row_offset": error.row_offset,
        "function": request.function,
        "function_version": request.function_version,
        "table_version": request.table_version,
        "error_type": error.error_type,
        "error_message": error.error_message,
        "created_at_millis": now,
    }


@operation(needs=on_table(Privilege.READ), changes=False)
def list_function_errors(ctx: Context, request: models.ListFunctionErrorsRequest) -> models.ListFunctionErrorsResponse:
    """List the rows of a table that functions failed on, those of the newest job first, of a job or a column.

    A message may have the value that failed, so this needs what reading the table needs. Raises TableNotFoundError,
    InvalidInputError.
    """
    limit = DEFAULT_LIMIT if request.limit is None else request.limit
    if not 0 < limit <= MAX_LIMIT:
        raise InvalidInputError(f"The limit is 1 to {MAX_LIMIT}, not {limit}.")
    table = find_table(ctx, table_id(request.id))
    fragments = ctx.store.list_fragment_errors(table.id, request.job_id, request.column, MAX_LIMIT)
    records = [
        models.FunctionErrorRecord(
            job_id=fragment.transaction_id, fragment_id=fragment.fragment_id, column=fragment.column, **entry
        )
        for fragment in fragments
        for entry in msgspec.json.decode(fragment.records)
    ]
    capped = [
        models.FragmentErrorSummary(
            job_id=fragment.transaction_id,
            fragment_id=fragment.fragment_id,
            rows_skipped=fragment.rows_skipped,
            rows_recorded=fragment.rows_recorded,
        )
        for fragment in fragments
        if fragment.rows_recorded < fragment.rows_skipped
    ]
    return models.ListFunctionErrorsResponse(
        records=records[:limit], fragments=capped or None, truncated=len(records) > limit
    )
