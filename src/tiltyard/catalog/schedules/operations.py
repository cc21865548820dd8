"""Operations on schedules: create, describe, list, alter, pause, drop them, and run one now; and what they need."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec
from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    NamespaceNotFoundError,
    PermissionDeniedError,
    TableNotFoundError,
    UnsupportedOperationError,
)

from tiltyard.access.authorization import (
    are_allowed_outside,
    authorize_namespace,
    authorize_table,
    caller_rights,
    missing_privileges,
    require_decision,
)
from tiltyard.access.needs import LIST_ALL_JOBS, authorize_submission
from tiltyard.catalog.functions.secrets import find_namespace_id
from tiltyard.catalog.jobs.submission import find_job_table, to_entry
from tiltyard.catalog.schedules.definitions import (
    REQUIRED,
    Definition,
    check_definition,
    prepare_job,
    read_definition,
    run_key_of,
    schedule_path,
    source_ids,
    without_refusal,
)
from tiltyard.model.ids import Id, parse_id, table_id
from tiltyard.model.operations import Needs, operation
from tiltyard.model.principals import Privilege, privilege_names
from tiltyard.model.schedules import parse_timing
from tiltyard.model.spec import models
from tiltyard.store import RunKeyTakenError
from tiltyard.store.access.grants import TABLE
from tiltyard.store.jobs.schedules import MAX_SCHEDULES
from tiltyard.tables.opening import find_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tiltyard.context import Context
    from tiltyard.model.schedules import Timing
    from tiltyard.store import ScheduleRecord, TransactionRecord, UnitOfWork


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
    return bool(_describable(ctx, [record]))


def _describable(ctx: Context, records: Sequence[ScheduleRecord]) -> list[ScheduleRecord]:
    """Return the schedules that the caller may describe; services outside are asked about all their tables at once."""

    def has_rights(record: ScheduleRecord) -> bool:
        is_own = ctx.principal.administrator or record.definer.get("name") == ctx.principal.name
        return is_own or bool(privileges_on(ctx, record) & Privilege.RUN_UDFS)

    granted = [each for each in records if has_rights(each)]
    tables = list(dict.fromkeys(each.table_id for each in granted if each.table_id is not None))
    allowed = dict(zip(tables, are_allowed_outside(ctx, TABLE, tables, Privilege.RUN_UDFS.value), strict=True))
    return [each for each in granted if each.table_id is None or allowed[each.table_id]]


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
        if record.table_id is not None and (table := ctx.store.object_path(TABLE, record.table_id)) is not None:
            require_decision(ctx, TABLE, table, required.value)
        return ctx

    return Needs(f"to be its definer, or `{name}` on its job's table", authorize)


def _create_schedule(ctx: Context, request: Any) -> Context:
    path = table_id(request.id)
    parent_id = authorize_namespace(ctx, path.parent, Privilege.CREATE.value)
    authorize_submission(ctx, table_id(request.table) if request.table else Id(), REQUIRED.value)
    return ctx.with_resolved({}, {path.parent: parent_id})


CREATE_SCHEDULE = Needs(
    "`create` on the schedule's namespace, what SubmitJob needs, `read` on the tables of `on_commit`", _create_schedule
)
DESCRIBE_SCHEDULE = _definer_or(Privilege.RUN_UDFS)
ALTER_SCHEDULE = _definer_or(Privilege.ALTER)
LIST_SCHEDULES = Needs(
    "nothing: the caller's own schedules, and those on whose job's table it has `run_udfs`", LIST_ALL_JOBS.authorize
)


MAX_SOURCES = 20
"""The greatest number of tables whose commits start a schedule's job."""
DEFAULT_DEBOUNCE_SECONDS = 5.0
"""How long after the first commit a job is queued: further commits are likely to come with it."""
MIN_DEBOUNCE_SECONDS, MAX_DEBOUNCE_SECONDS = 1.0, 86_400.0
"""The bounds of that."""
ADDING_JOBS = frozenset({"ingest", "upsert"})
"""Jobs that commit whenever they run: after commits of their own table, each would start the next one."""
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,255}")
_TIMING = ("cron", "zone", "every_seconds", "on_commit", "debounce_seconds", "catch_up")


@operation(needs=CREATE_SCHEDULE)
def create_schedule(ctx: Context, request: models.CreateScheduleRequest) -> models.CreateScheduleResponse:
    """Define when a job is submitted by itself, as the caller. Nothing is submitted yet.

    Raises ConcurrentModificationError (the name is taken), InvalidInputError, NamespaceNotFoundError,
    TableNotFoundError (a table of `on_commit`), PermissionDeniedError, UnsupportedOperationError (below a mount).
    """
    path = _schedule_id(request.id)
    parent_id = find_namespace_id(ctx, path.parent, "Schedules")
    target = table_id(request.table) if request.table else Id()
    timing = _parse_timing(request)
    sources = _find_sources(ctx, request.on_commit, request.job, target)
    definition = Definition(request.job, target, request.arguments or {}, request.spark or {}, timing)
    check_definition(ctx, definition)
    is_added = ctx.store.add_schedule(
        parent_id,
        path.name,
        find_job_table(ctx, target),
        msgspec.to_builtins(definition),
        msgspec.to_builtins(ctx.principal),
        paused=request.paused or False,
        debounce_ms=_debounce_ms(request),
        due_at=timing.next_after(ctx.clock()),
        sources=sources,
    )
    if not is_added:
        raise ConcurrentModificationError(f"Schedule already exists: {path}")
    return models.CreateScheduleResponse(schedule=_describe(ctx, path))


@operation(needs=DESCRIBE_SCHEDULE, changes=False)
def describe_schedule(ctx: Context, request: models.DescribeScheduleRequest) -> models.DescribeScheduleResponse:
    """Describe a schedule: its job, when it runs next, and what became of the last time.

    Raises TableNotFoundError (there is no such schedule), NamespaceNotFoundError.
    """
    return models.DescribeScheduleResponse(schedule=_describe(ctx, table_id(request.id)))


@operation(needs=LIST_SCHEDULES, changes=False)
def list_schedules(ctx: Context, request: models.ListSchedulesRequest) -> models.ListSchedulesResponse:
    """List the schedules that the caller may describe, all or those whose job is about a table, by namespace and name.

    Raises InvalidInputError, TableNotFoundError.
    """
    about = None if request.table is None else find_table(ctx, table_id(parse_id(request.table))).id

    def fetch(after: tuple[int, str] | None, count: int) -> list[ScheduleRecord]:
        records = ctx.store.list_schedules(after, MAX_SCHEDULES)
        return _describable(ctx, [each for each in records if about in (None, each.table_id)])[:count]

    records, token = ctx.paging.fetch_page(
        f"schedules {about}", request.page_token, request.limit, fetch, lambda each: (each.namespace_id, each.name)
    )
    sources = ctx.store.schedule_sources([each.id for each in records])
    entries = [_to_entry(ctx, each, sources.get(each.id, [])) for each in records]
    return models.ListSchedulesResponse(schedules=entries, page_token=token)


@operation(needs=ALTER_SCHEDULE)
def alter_schedule(ctx: Context, request: models.AlterScheduleRequest) -> models.AlterScheduleResponse:
    """Pause or resume a schedule, or replace when it runs: its job and its definer stay.

    Raises TableNotFoundError (there is no such schedule), InvalidInputError, ConcurrentModificationError (another
    caller was faster).
    """
    path = table_id(request.id)
    seen = find_schedule(ctx, path)
    before = read_definition(seen)
    has_timing = any(getattr(request, name) is not None for name in _TIMING)
    if not has_timing and request.paused is None:
        raise InvalidInputError(
            "Nothing is altered: give paused, or when the job runs (cron, every_seconds, on_commit)."
        )
    timing = _parse_timing(request) if has_timing else before.timing
    sources = _find_sources(ctx, request.on_commit, before.job, Id(before.table)) if has_timing else None
    paused = seen.paused if request.paused is None else request.paused
    is_resumed = seen.paused and not paused
    keeps_due = not has_timing and (timing.catch_up or not is_resumed or timing.is_by_commits)
    is_altered = ctx.store.alter_schedule(
        seen,
        msgspec.to_builtins(msgspec.structs.replace(before, timing=timing)),
        paused=paused,
        debounce_ms=_debounce_ms(request) if has_timing else seen.debounce_ms,
        keeps_due=keeps_due,
        due_at=None if keeps_due else timing.next_after(ctx.clock()),
        sources=sources,
    )
    if not is_altered:
        raise ConcurrentModificationError(f"The schedule {path} was just altered: try again.")
    return models.AlterScheduleResponse(schedule=_describe(ctx, path))


@operation(needs=ALTER_SCHEDULE)
def drop_schedule(ctx: Context, request: models.DropScheduleRequest) -> models.DropScheduleResponse:
    """Delete a schedule; jobs that it has queued stay. Raises TableNotFoundError (there is no such schedule)."""
    path = table_id(request.id)
    if not ctx.store.drop_schedule(find_schedule(ctx, path).id):
        raise schedule_not_found(path)
    return models.DropScheduleResponse()


@operation(needs=ALTER_SCHEDULE)
def run_schedule(ctx: Context, request: models.RunScheduleRequest) -> models.RunScheduleResponse:
    """Queue the job of a schedule now, as its definer; when it is next due stays. A paused one runs, too.

    Raises TableNotFoundError (there is no such schedule), ConcurrentModificationError (its last job has not ended), and
    what submitting the job raises.
    """
    path = table_id(request.id)
    record = find_schedule(ctx, path)
    now = ctx.clock()
    job = prepare_job(ctx, record, now)

    def work(catalog: UnitOfWork) -> TransactionRecord:
        queued = job.create(catalog, run_key_of(record))
        outcome = {**without_refusal(record.outcome), "at": now}
        catalog.note_schedule_run(record.id, queued.id, outcome, job.record_id)
        return queued

    try:
        return models.RunScheduleResponse(job=to_entry(ctx, ctx.store.transact(work)))
    except RunKeyTakenError as error:
        holder = ctx.store.find_unfinished_run(run_key_of(record))
        which = "" if holder is None else f" ({holder.id}, {holder.status.lower()})"
        raise ConcurrentModificationError(
            f"The last job of the schedule {path} has not ended{which}: wait for it, or cancel it."
        ) from error


def _describe(ctx: Context, path: Id) -> models.ScheduleEntry:
    record = find_schedule(ctx, path)
    return _to_entry(ctx, record, source_ids(ctx, record))


def _to_entry(ctx: Context, record: ScheduleRecord, sources: Sequence[int]) -> models.ScheduleEntry:
    """Convert a schedule for a response, with the current names of its tables."""
    definition, outcome = read_definition(record), record.outcome
    timing = definition.timing
    target = None if record.table_id is None else ctx.store.object_path(TABLE, record.table_id)
    paths = [path for table in sources if (path := ctx.store.object_path(TABLE, table)) is not None]
    return models.ScheduleEntry(
        id=list(schedule_path(ctx, record) or (record.name,)),
        job=definition.job,
        table=list(target or definition.table) or None,
        arguments=definition.arguments,
        spark=definition.spark or None,
        cron=timing.cron,
        zone=timing.zone or (None if timing.cron is None else "UTC"),
        every_seconds=None if timing.every_ms is None else timing.every_ms / 1000,
        on_commit=[list(path) for path in paths] or None,
        debounce_seconds=record.debounce_ms / 1000 if sources else None,
        catch_up=None if timing.is_by_commits else timing.catch_up,
        paused=record.paused or None,
        definer=record.definer["name"],
        state=_state(record),
        created_at_millis=record.created_at,
        updated_at_millis=record.updated_at,
        next_run_millis=None if record.paused or record.rests else record.due_at,
        last_run_millis=outcome.get("at"),
        last_job_id=record.last_job,
        last_status=record.last_status,
        last_error=record.last_error,
        refused=outcome.get("refused"),
        refused_at_millis=outcome.get("refused_at"),
        missed=outcome.get("missed"),
        skipped=outcome.get("skipped"),
    )


def _state(record: ScheduleRecord) -> str:
    """Return Stopped (its table or namespace is dropped), Paused, Refused (the last time), or Active."""
    if record.rests:
        return "Stopped"
    if record.paused:
        return "Paused"
    return "Refused" if "refused" in record.outcome else "Active"


def _schedule_id(names: Sequence[str] | None) -> Id:
    path = table_id(names)
    if _NAME.fullmatch(path.name) is None:
        raise InvalidInputError(
            "A schedule's name has 1 to 255 of the characters A to Z, a to z, 0 to 9, '_', '.', '-'."
        )
    return path


def _parse_timing(request: models.CreateScheduleRequest | models.AlterScheduleRequest) -> Timing:
    """Return when a job is due. Raises InvalidInputError."""
    is_timed = request.cron is not None or request.every_seconds is not None
    if not is_timed and not request.on_commit:
        raise InvalidInputError(
            "A schedule says when its job runs: give cron, every_seconds, or the tables of on_commit."
        )
    if is_timed and request.on_commit:
        raise InvalidInputError(
            "A job runs at times (cron, every_seconds) or after commits (on_commit): make two schedules."
        )
    if request.debounce_seconds is not None and not request.on_commit:
        raise InvalidInputError("debounce_seconds is for on_commit: leave it out.")
    return parse_timing(request.cron, request.zone, request.every_seconds, catch_up=request.catch_up)


def _debounce_ms(request: models.CreateScheduleRequest | models.AlterScheduleRequest) -> int:
    seconds = DEFAULT_DEBOUNCE_SECONDS if request.debounce_seconds is None else request.debounce_seconds
    if not MIN_DEBOUNCE_SECONDS <= seconds <= MAX_DEBOUNCE_SECONDS:
        raise InvalidInputError(
            f"debounce_seconds is {MIN_DEBOUNCE_SECONDS:g} to {MAX_DEBOUNCE_SECONDS:g}, not {seconds:g}."
        )
    return int(seconds * 1000)


def _find_sources(ctx: Context, names: Sequence[Sequence[str]] | None, job: str, target: Id) -> list[int]:
    """Return the ids of the tables whose commits start a job, which the caller can read.

    Raises InvalidInputError, TableNotFoundError, NamespaceNotFoundError, PermissionDeniedError,
    UnsupportedOperationError (below a mount, where nobody notes commits).
    """
    if names is None:
        return []
    if len(names) > MAX_SOURCES:
        raise InvalidInputError(f"on_commit has {MAX_SOURCES} tables at most, not {len(names)}.")
    paths = [table_id(each) for each in names]
    if job in ADDING_JOBS and target in paths:
        raise InvalidInputError(
            f"on_commit names {target}, which each {job} commits to: every run would start the next one."
        )
    for path in paths:
        if ctx.services.mounts.find(path) is not None:
            raise UnsupportedOperationError(
                f"{path} is below a mount, whose commits are not noted here: give cron or every_seconds."
            )
    if ctx.is_unchecked:
        return [find_table(ctx, path).id for path in paths]
    return [authorize_table(ctx, path, Privilege.READ.value).id for path in paths]
