"""Authorize jobs: when they are submitted, and again whenever a driver is about to start them.

A job waits in a queue and is retried. By then its submitter may have lost a privilege, and its table may have been
renamed, or dropped while another table got its name. So the catalog records the submitter, the required privileges, and
the table's id.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
from lance_namespace.errors import InvalidTableStateError, NamespaceNotFoundError, TableNotFoundError

from tiltyard.access.authorization import allowed_outside, caller_rights
from tiltyard.access.stored_definitions import Definer
from tiltyard.model.ids import Id
from tiltyard.model.jobs import register_in
from tiltyard.model.modes import TransactionStatus
from tiltyard.model.principals import SERVER, Principal, Privilege
from tiltyard.store.access.grants import TABLE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tiltyard.context import Context
    from tiltyard.store import TableRecord, TransactionRecord

JobValidator = Callable[["Context", "Id", "Mapping[str, Any]"], "Mapping[str, Any]"]

_VALIDATORS: dict[str, JobValidator] = {}
_ENDED = (TransactionStatus.SUCCEEDED, TransactionStatus.CANCELED)


def job_validator(name: str) -> Callable[[JobValidator], JobValidator]:
    """Register a function `(ctx, table, arguments)` that validates jobs of this name and returns the arguments to
    queue.

    It runs when a job is submitted, where its error is the response, and again before the job is started.
    """
    return register_in(_VALIDATORS, name)


def validate_arguments(ctx: Context, name: str, table: Id, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arguments to queue. Raises what the job's validator raises."""
    return _VALIDATORS[name](ctx, table, arguments) if name in _VALIDATORS else arguments


def submitter_payload(ctx: Context, required: Privilege) -> dict[str, Any]:
    """Return the part of a job's payload that records its submitter and the privileges that the job requires."""
    return {"asker": msgspec.to_builtins(ctx.principal), "wanted": int(required)}


def authorize_start(ctx: Context, record: TransactionRecord) -> None:
    """Check that a job can be started now, as if its submitter submitted it again.

    Raises what `authorize_submitter` raises, and what the job's validator does.
    """
    submitter_ctx, path = authorize_submitter(ctx, record)
    validate_arguments(submitter_ctx, record.kind, path, record.payload.get("arguments", {}))


def authorize_submitter(ctx: Context, record: TransactionRecord) -> tuple[Context, Id]:
    """Check that a job's submitter still has the privileges; return a context with it as caller, and the table's name.

    Raises PermissionDeniedError (a lost privilege, a disabled principal), TableNotFoundError (the table was dropped),
    NamespaceNotFoundError, InvalidTableStateError (the submitter was not recorded).
    """
    table = None if record.table_id is None else _job_table(ctx, record.table_id)
    submitter = _submitter(record)
    own = submitter.context(ctx)
    path = Id(record.payload.get("table") or ()) if table is None else _current_path(ctx, table)
    authorize_definer(own, submitter, path, table, int(record.payload.get("wanted", 0)))
    return own, path


def visible_job_table(ctx: Context, record: TransactionRecord) -> tuple[Id, str] | None:
    """Return the current id of a job's table, and its location.

    None for a job that has ended or has no table yet, and for a table that was dropped or that the caller cannot see.
    """
    if record.table_id is None or record.status in _ENDED:
        return None
    path = ctx.store.object_path(TABLE, record.table_id)
    try:
        table = ctx.store.table_by_id(record.table_id)
    except TableNotFoundError:
        return None
    if not ctx.principal.administrator:
        rights = caller_rights(ctx)
        if not rights.on_table(table.id, table.namespace_id) or rights.effective_policy(table.id) is not None:
            return None
    if path is None or not allowed_outside(ctx, TABLE, [path])[0]:
        return None
    return Id(path), table.location


def _job_table(ctx: Context, table_id: int) -> TableRecord:
    try:
        return ctx.store.table_by_id(table_id)
    except TableNotFoundError:
        raise TableNotFoundError(
            "The table of this job was dropped: submit the job again if another table has its name."
        ) from None


def _current_path(ctx: Context, table: TableRecord) -> Id:
    """Return the current id of a table. Raises TableNotFoundError for one that was just dropped."""
    path = ctx.store.object_path(TABLE, table.id)
    if path is None:
        raise TableNotFoundError("The table of this job is being dropped.")
    return Id(path)


def _submitter(record: TransactionRecord) -> Definer:
    """Return a job's submitter; the server itself where it has none. Raises InvalidTableStateError."""
    if record.requested_by is None:
        return job_submitter(SERVER)
    recorded = record.payload.get("asker")
    if recorded is None:
        raise InvalidTableStateError(
            "This job is of an older server, which did not record its submitter: submit it again."
        )
    return job_submitter(msgspec.convert(recorded, Principal))


def job_submitter(principal: Principal) -> Definer:
    """Return a principal as the one who submitted a job."""
    return Definer(
        principal, "{name}, who submitted this job, lacks the privileges for it now: let another principal submit it."
    )


def authorize_definer(own: Context, submitter: Definer, path: Id, table: TableRecord | None, required: int) -> None:
    """Check what SUBMIT_JOB checks: on the table, or on the namespace where the job is to create the table.

    `own` is the context of whoever submits the job, or has scheduled it. Raises PermissionDeniedError,
    NamespaceNotFoundError.
    """
    if own.is_unchecked:
        return
    if not path:
        submitter.authorize_server(own, required)
        return
    try:
        record = table or own.look_up_table(path)
    except (TableNotFoundError, NamespaceNotFoundError):
        submitter.authorize_namespace(own, path.parent, own.find_namespace(path.parent).id, required)
    else:
        submitter.authorize_table(own, path, record, required)
