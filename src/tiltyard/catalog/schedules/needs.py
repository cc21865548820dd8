"""What operations on schedules need: one is its definer's, and of those with privileges on its job's table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lance_namespace.errors import NamespaceNotFoundError, PermissionDeniedError, TableNotFoundError

from tiltyard.access.authorization import authorize_namespace, caller_rights, missing_privileges
from tiltyard.access.needs import LIST_ALL_JOBS, SUBMIT_JOB
from tiltyard.model.ids import Id, table_id
from tiltyard.model.operations import Needs
from tiltyard.model.privileges import Privilege, privilege_names

if TYPE_CHECKING:
    from tiltyard.context import Context
    from tiltyard.store import ScheduleRecord


def schedule_not_found(path: Id) -> TableNotFoundError:
    """Create the error for a schedule that does not exist."""
    return TableNotFoundError(f"Schedule not found: {path}")


def find_schedule(ctx: Context, path: Id) -> ScheduleRecord:
    """Return a schedule. Raises NamespaceNotFoundError, TableNotFoundError (there is no such schedule)."""
    record = ctx.store.find_schedule(ctx.store.describe_namespace(path.parent).id, path.name)
    if record is None:
        raise schedule_not_found(path)
    return record


def privileges_on(ctx: Context, record: ScheduleRecord) -> int:
    """Return the caller's privileges on the table of a schedule's job; without one, those on the whole server.

    0 where policies of the table bind the caller, who must not see what is done to it.
    """
    rights = caller_rights(ctx)
    if record.table_id is None:
        return rights.server
    try:
        table = ctx.store.table_by_id(record.table_id)
        if rights.effective_policy(table.id) is not None:
            return 0
    except (TableNotFoundError, PermissionDeniedError):  # it was dropped; or a policy that cannot be parsed binds
        return 0
    return rights.on_table(table.id, table.namespace_id)


def may_describe(ctx: Context, record: ScheduleRecord) -> bool:
    """Return whether the caller may describe a schedule: as DescribeJob has it of the schedule's jobs."""
    if ctx.principal.administrator or record.definer.get("name") == ctx.principal.name:
        return True
    return bool(privileges_on(ctx, record) & Privilege.RUN_UDFS)


def _definer_or(required: Privilege) -> Needs:
    """Need to be the definer of the schedule that the request names, or a privilege on the table of its job."""
    name = privilege_names(required.value)[0]

    def authorize(ctx: Context, request: Any) -> Context:
        path = table_id(request.id)
        try:
            record = find_schedule(ctx, path)
        except (NamespaceNotFoundError, TableNotFoundError):
            authorize_namespace(ctx, path.parent, 0)  # a namespace that the caller cannot see is missing, too
            raise
        if record.definer.get("name") != ctx.principal.name:
            bits = privileges_on(ctx, record)
            if not bits:
                authorize_namespace(ctx, path.parent, 0)
                raise schedule_not_found(path)
            if bits & required != required:
                raise missing_privileges(required & ~bits, "the table of the schedule's job")
        return ctx

    return Needs(f"to be its definer, or `{name}` on its job's table", authorize)


def _create_schedule(ctx: Context, request: Any) -> Context:
    path = table_id(request.id)
    parent_id = authorize_namespace(ctx, path.parent, Privilege.CREATE.value)
    SUBMIT_JOB.authorize(ctx, request)
    return ctx.with_resolved({}, {path.parent: parent_id})


CREATE_SCHEDULE = Needs(
    "`create` on the schedule's namespace, what SubmitJob needs, `read` on the tables of `on_commit`", _create_schedule
)
DESCRIBE_SCHEDULE = _definer_or(Privilege.RUN_UDFS)
ALTER_SCHEDULE = _definer_or(Privilege.ALTER)
LIST_SCHEDULES = Needs(
    "nothing: the caller's own schedules, and those on whose job's table it has `run_udfs`", LIST_ALL_JOBS.authorize
)
