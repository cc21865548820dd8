"""Whether a job may be done: looked at when it is asked for, and again each time that a driver is to begin it.

A job waits, and is tried again: who asked for it may have lost the right to by then, its table may have another name,
or be gone while another has the name. So the catalog notes who asked, for what privileges, and the table's number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
from lance_namespace.errors import InvalidTableStateError, PermissionDeniedError, TableNotFoundError

from tiltyard.access.principal_refresh import present
from tiltyard.access.visibility import check_record, check_server, rights_of, seen_namespace, seen_table
from tiltyard.model.modes import TransactionStatus
from tiltyard.model.principals import SERVER, Principal
from tiltyard.model.privileges import Privilege
from tiltyard.store.access.grants import TABLE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tiltyard.context import Context
    from tiltyard.model.ids import Id
    from tiltyard.store import TableRecord, TransactionRecord

JobCheck = Callable[["Context", "Id", "Mapping[str, Any]"], "Mapping[str, Any]"]

_CHECKS: dict[str, JobCheck] = {}
_OVER = (TransactionStatus.SUCCEEDED, TransactionStatus.CANCELED)


def job_check(name: str) -> Callable[[JobCheck], JobCheck]:
    """Let a function `(ctx, table, arguments)` look at a job before it is queued; it gives the arguments to queue.

    It raises what the one who asks is to be refused with. It is asked again when the job is begun.
    """

    def register(function: JobCheck) -> JobCheck:
        _CHECKS[name] = function
        return function

    return register


def checked_arguments(ctx: Context, name: str, table: Id, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments to queue. Raises what a job's own check raises."""
    return _CHECKS[name](ctx, table, arguments) if name in _CHECKS else arguments


def asked(ctx: Context, wanted: Privilege) -> dict[str, Any]:
    """What a job's payload tells of who asks for it, and of the privileges that this needs."""
    return {"asker": msgspec.to_builtins(ctx.principal), "wanted": int(wanted)}


def admit_job(ctx: Context, record: TransactionRecord) -> None:
    """Check that a job may be begun now: as if it were asked for anew, by whoever did.

    Raises what `check_asker` raises, and what the job's own check does.
    """
    own, path = check_asker(ctx, record)
    checked_arguments(own, record.kind, path, record.payload.get("arguments", {}))


def check_asker(ctx: Context, record: TransactionRecord) -> tuple[Context, Id]:
    """Check that whoever asked for a job may still do so; a context that asks as they do, and the table's name now.

    Raises PermissionDeniedError (rights were lost, the principal is disabled), TableNotFoundError (the table was
    dropped), NamespaceNotFoundError, InvalidTableStateError (nobody noted who asked).
    """
    table = None if record.table_id is None else _bound(ctx, record.table_id)
    asker = _asker(ctx, record)
    own = msgspec.structs.replace(ctx, principal=asker, resolved=None)
    path = tuple(record.payload.get("table") or ()) if table is None else _path(ctx, table)
    if not asker.administrator:
        try:
            _check_privileges(own, path, table, int(record.payload.get("wanted", 0)))
        except PermissionDeniedError as error:
            told = f"{asker.name}, who asked for this job, may not have it done any more."
            raise PermissionDeniedError(f"{told} {error}") from error
    return own, path


def bound_table(ctx: Context, record: TransactionRecord) -> tuple[Id, str] | None:
    """The name that a job's table has now, and where it lies.

    None for a job that has ended or has no table yet, for a table that is gone, or that whoever asks cannot see.
    """
    if record.table_id is None or record.status in _OVER:
        return None
    path = ctx.store.object_path(TABLE, record.table_id)
    try:
        table = ctx.store.table_by_id(record.table_id)
    except TableNotFoundError:
        return None
    if not ctx.principal.administrator:
        rights = rights_of(ctx)
        if not rights.on_table(table.id, table.namespace_id) or rights.narrowing(table.id) is not None:
            return None
    return None if path is None else (path, table.location)


def _bound(ctx: Context, number: int) -> TableRecord:
    try:
        return ctx.store.table_by_id(number)
    except TableNotFoundError:
        raise TableNotFoundError(
            "The table that this job was asked for was dropped: ask for the job anew if another has its name."
        ) from None


def _path(ctx: Context, table: TableRecord) -> Id:
    """The name of a table now. Raises TableNotFoundError for one that was dropped just now."""
    path = ctx.store.object_path(TABLE, table.id)
    if path is None:
        raise TableNotFoundError("The table that this job was asked for is being dropped.")
    return path


def _asker(ctx: Context, record: TransactionRecord) -> Principal:
    """Who asked for a job, as they are now; the servers themselves if nobody did."""
    if record.requested_by is None:
        return SERVER
    told = record.payload.get("asker")
    if told is None:
        raise InvalidTableStateError("This job is of an older server, which did not note who asked for it: ask anew.")
    try:
        return present(ctx, msgspec.convert(told, Principal))
    except PermissionDeniedError as error:
        raise PermissionDeniedError(f"{error} Let somebody else ask for this job.") from error


def _check_privileges(ctx: Context, path: Id, table: TableRecord | None, wanted: int) -> None:
    """As `access.transactions` does for who submits: a job may make its table, until then the namespace counts."""
    if table is not None:
        check_record(ctx, path, table, wanted)
    elif not path:
        check_server(ctx, wanted)
    else:
        try:
            seen_table(ctx, path, wanted)
        except TableNotFoundError:
            seen_namespace(ctx, path[:-1], wanted)
