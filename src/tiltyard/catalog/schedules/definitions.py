"""What a schedule queues, and as whom: its job is checked as its definer's, when it is defined and each time again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from lance_namespace.errors import InvalidInputError, TableNotFoundError

from tiltyard.access.stored_definitions import Definer
from tiltyard.catalog.jobs.authorization import authorize_definer, submitter_payload, validate_arguments
from tiltyard.catalog.jobs.submission import NewJob, check_job_name, find_job_parent, find_job_table
from tiltyard.model.ids import Id
from tiltyard.model.jobs import ENDLESS_JOBS, JOBS_ON_TABLES
from tiltyard.model.principals import Principal, Privilege
from tiltyard.model.schedules import Timing
from tiltyard.model.settings.spark_properties import check_spark_properties
from tiltyard.store.access.grants import NAMESPACE, TABLE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tiltyard.context import Context
    from tiltyard.store import ScheduleRecord, TableRecord

MAX_DEFINITION_BYTES = 64 << 10
"""The size of what a schedule submits: a job's name, table, arguments and properties of Spark, as JSON."""
REQUIRED = Privilege.RUN_UDFS
"""What submitting a job needs, and so its schedule at each time."""
SCHEDULE, SCHEDULED_AT = "schedule", "scheduled_at_millis"
"""The properties of a job that say which schedule has queued it, and for which time."""


class Definition(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a schedule submits, and when."""

    job: str
    table: tuple[str, ...] = ()
    arguments: dict[str, Any] = {}  # msgspec copies it
    spark: dict[str, str] = {}
    timing: Timing = Timing()


def read_definition(record: ScheduleRecord) -> Definition:
    """Return the definition of a schedule."""
    return msgspec.convert(record.definition, Definition)


def check_definition(ctx: Context, definition: Definition) -> None:
    """Check what a caller wants to have submitted, as SubmitJob does. Raises InvalidInputError, and what it raises."""
    check_job_name(definition.job)
    if definition.job in ENDLESS_JOBS:
        raise InvalidInputError(f"A {definition.job} runs until it is canceled: submit it once, without a schedule.")
    if definition.job in JOBS_ON_TABLES and not definition.table and "table" not in definition.arguments:
        raise InvalidInputError(f"A schedule of the job {definition.job} names the table that it is about: 'table'.")
    size = len(msgspec.json.encode(definition))
    if size > MAX_DEFINITION_BYTES:
        raise InvalidInputError(f"A schedule's job has {MAX_DEFINITION_BYTES} bytes at most, as JSON, not {size}.")
    check_spark_properties(definition.spark, ctx.settings.spark_limits)
    validate_arguments(ctx, definition.job, Id(definition.table), definition.arguments)


def schedule_path(ctx: Context, record: ScheduleRecord) -> Id | None:
    """Return the id of a schedule; None while its namespace is dropped."""
    parent = ctx.store.object_path(NAMESPACE, record.namespace_id)
    return None if parent is None else Id((*parent, record.name))


def schedule_definer(record: ScheduleRecord) -> Definer:
    """Return who has defined a schedule."""
    return Definer(
        msgspec.convert(record.definer, Principal),
        "{name}, who defined this schedule, lacks the privileges for it now: let another principal define it.",
    )


def prepare_job(ctx: Context, record: ScheduleRecord, due: int) -> NewJob:
    """Return the job of a schedule for a time, as its definer may submit it now.

    Raises PermissionDeniedError (a lost privilege, a disabled principal), TableNotFoundError, NamespaceNotFoundError,
    InvalidInputError, and what the job's validator raises.
    """
    definition, definer = read_definition(record), schedule_definer(record)
    own = definer.context(ctx)
    table, path = _find_table(ctx, record, definition)
    authorize_definer(own, definer, path, table, REQUIRED.value)
    _authorize_sources(ctx, own, definer, record)
    table_id = find_job_table(own, path) if table is None else table.id
    arguments = definition.arguments
    if table is not None and "table" in arguments:
        arguments = {**arguments, "table": str(path)}  # as it is called now
    check_spark_properties(definition.spark, ctx.settings.spark_limits)
    return NewJob(
        definition.job,
        validate_arguments(own, definition.job, path, arguments),
        submitter_payload(own, REQUIRED),
        own.principal.name,
        record_id=table_id,
        namespace_id=find_job_parent(own, path) if table_id is None else None,
        table=path,
        spark=definition.spark,
        properties={SCHEDULE: str(schedule_path(ctx, record) or record.name), SCHEDULED_AT: str(due)},
    )


def _find_table(ctx: Context, record: ScheduleRecord, definition: Definition) -> tuple[TableRecord | None, Id]:
    """Return the table of a schedule's job as it is called now; None for one that is still to be made.

    Raises TableNotFoundError for one that was dropped.
    """
    if record.table_id is None:
        return None, Id(definition.table)
    path = ctx.store.object_path(TABLE, record.table_id)
    if path is None:
        raise TableNotFoundError("The table of this schedule's job is being dropped.")
    return ctx.store.table_by_id(record.table_id), Id(path)


def _authorize_sources(ctx: Context, own: Context, definer: Definer, record: ScheduleRecord) -> None:
    """Check that the definer may still read the tables whose commits it waits for; those that are dropped have none."""
    for table_id in source_ids(ctx, record):
        path = ctx.store.object_path(TABLE, table_id)
        if path is not None:
            definer.authorize_table(own, Id(path), ctx.store.table_by_id(table_id), Privilege.READ.value)


def source_ids(ctx: Context, record: ScheduleRecord) -> list[int]:
    """Return the ids of the tables whose commits make a schedule due."""
    return ctx.store.schedule_sources([record.id]).get(record.id, [])


def run_key_of(record: ScheduleRecord) -> str:
    """Return what only one unfinished job has: the next of a schedule begins once the last one has ended."""
    return f"schedule {record.id}"


def without_refusal(outcome: Mapping[str, Any]) -> dict[str, Any]:
    """Return an outcome without the reason why a time before was refused."""
    return {name: value for name, value in outcome.items() if name not in ("refused", "refused_at")}
