"""What transactions need: they are seen by who asked for them, and by who sees their table."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import TableNotFoundError, TransactionNotFoundError

from tiltyard.access.policies import refusal
from tiltyard.access.visibility import check_server, refused, rights_of, seen_namespace, seen_table
from tiltyard.model.ids import table_id
from tiltyard.model.operations import Needs
from tiltyard.model.privileges import Privilege

if TYPE_CHECKING:
    from collections.abc import Callable

    from tiltyard.context import Context
    from tiltyard.store import TransactionRecord


def _admit(wanted: int) -> Callable[[Context, Any], Context]:
    def admit(ctx: Context, request: Any) -> Context:
        if not request.id or len(request.id) != 1:
            return ctx  # which is refused as what it is
        name = request.id[0]
        record = ctx.store.describe_transaction(name)
        if record.requested_by != ctx.principal.name:
            bits = _bits(ctx, record)
            if not bits:
                raise TransactionNotFoundError(f"Transaction not found: {name}")
            if bits & wanted != wanted:
                raise refused(wanted & ~bits, "the transaction's table")
        return ctx

    return admit


def _bits(ctx: Context, record: TransactionRecord) -> int:
    """What one may do with the table of a transaction; without one, what one may do with the whole server."""
    rights = rights_of(ctx)
    if record.table_id is not None:
        with suppress(TableNotFoundError):
            table = ctx.store.table_by_id(record.table_id)
            if rights.on_table(table.id, table.namespace_id) and rights.narrowing(table.id) is not None:
                raise refusal("the transaction's table")
            return rights.on_table(table.id, table.namespace_id)
    return rights.server


def _submit(ctx: Context, request: Any) -> Context:
    """A job may make its table: until that is there, the namespace counts."""
    wanted = Privilege.RUN_UDFS.value
    if not request.table:
        check_server(ctx, wanted)
        return ctx
    path = table_id(request.table)
    try:
        seen_table(ctx, path, wanted)
    except TableNotFoundError:
        seen_namespace(ctx, path[:-1], wanted)
    return ctx


DESCRIBE_TRANSACTION = Needs("to have asked for it, or `use` on its table", _admit(Privilege.USE.value))
SUBMIT_JOB = Needs("`run_udfs` on its table, on the namespace of one to be made, without one on the server", _submit)
OWN_JOB = Needs("to have asked for it, or `run_udfs` on its table", _admit(Privilege.RUN_UDFS.value))
LIST_JOBS = Needs("nothing: jobs that one asked for, or on whose table one has `run_udfs`", lambda ctx, request: ctx)
ALTER_TRANSACTION = Needs("to have asked for it, or `alter` on its table", _admit(Privilege.ALTER.value))
