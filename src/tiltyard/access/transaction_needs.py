"""What operations on transactions and jobs need: the submitter sees its own, other callers those of tables they see."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import TableNotFoundError, TransactionNotFoundError

from tiltyard.access.authorization import (
    authorize_namespace,
    authorize_server,
    authorize_table,
    missing_privileges,
)
from tiltyard.access.caller import caller_rights
from tiltyard.access.policies import policy_denial
from tiltyard.model.ids import table_id
from tiltyard.model.operations import Needs
from tiltyard.model.privileges import Privilege

if TYPE_CHECKING:
    from collections.abc import Callable

    from tiltyard.context import Context
    from tiltyard.store import TransactionRecord


def _submitter_or(required: int) -> Callable[[Context, Any], Context]:
    """Return a check for the submitter of a transaction, or `required` privileges on its table."""

    def authorize(ctx: Context, request: Any) -> Context:
        if not request.id or len(request.id) != 1:
            return ctx  # the operation refuses such an id
        name = request.id[0]
        record = ctx.store.describe_transaction(name)
        if record.requested_by != ctx.principal.name:
            bits = _transaction_privileges(ctx, record)
            if not bits:
                raise TransactionNotFoundError(f"Transaction not found: {name}")
            if bits & required != required:
                raise missing_privileges(required & ~bits, "the transaction's table")
        return ctx

    return authorize


def _transaction_privileges(ctx: Context, record: TransactionRecord) -> int:
    """Return the caller's privileges on the table of a transaction; without a table, those on the whole server."""
    rights = caller_rights(ctx)
    if record.table_id is not None:
        with suppress(TableNotFoundError):
            table = ctx.store.table_by_id(record.table_id)
            if rights.on_table(table.id, table.namespace_id) and rights.effective_policy(table.id) is not None:
                raise policy_denial("the transaction's table")
            return rights.on_table(table.id, table.namespace_id)
    return rights.server


def _submit_job(ctx: Context, request: Any) -> Context:
    """Check the submission of a job: on its table, or on the namespace where the job is to create the table."""
    required = Privilege.RUN_UDFS.value
    if not request.table:
        authorize_server(ctx, required)
        return ctx
    path = table_id(request.table)
    try:
        authorize_table(ctx, path, required)
    except TableNotFoundError:
        authorize_namespace(ctx, path[:-1], required)
    return ctx


DESCRIBE_TRANSACTION = Needs("to be its submitter, or `use` on its table", _submitter_or(Privilege.USE.value))
SUBMIT_JOB = Needs(
    "`run_udfs` on its table, on the namespace of one to be made, without one on the server", _submit_job
)
OWN_JOB = Needs("to be its submitter, or `run_udfs` on its table", _submitter_or(Privilege.RUN_UDFS.value))
LIST_JOBS = Needs(
    "nothing: the caller's own jobs, and those on whose table it has `run_udfs`", lambda ctx, request: ctx
)
ALTER_TRANSACTION = Needs("to be its submitter, or `alter` on its table", _submitter_or(Privilege.ALTER.value))
