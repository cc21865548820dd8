"""Queue the jobs of schedules that are due: each time once, and one job of a schedule at a time.

Any number of servers and workers do that on one catalog. Whoever claims a due schedule has it for the length of a
lease; the job is queued in the transaction that moves the schedule on, so a process that is killed in between has
queued nothing, and another one does once the lease has ended.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    LanceNamespaceError,
    ServiceUnavailableError,
    TableNotFoundError,
)

from tiltyard.catalog.schedules.definitions import prepare_job, read_definition, run_key_of, without_refusal
from tiltyard.runtime.failpoints import Point, reach

if TYPE_CHECKING:
    from tiltyard.catalog.jobs.submission import NewJob
    from tiltyard.context import Context
    from tiltyard.store import ScheduleRecord, UnitOfWork

log = logging.getLogger("tiltyard.schedules")

WAIT_MS = 2_000
"""How long until it is looked again whether the last job of a schedule has ended, which is to run once more then."""


def queue_due_job(ctx: Context) -> bool:
    """Look at the schedule that is due for longest, and queue its job; return whether one was due.

    Raises ServiceUnavailableError: it is looked at again when its lease has ended.
    """
    if not ctx.store.has_due_schedule() or (seen := ctx.store.claim_due_schedule()) is None:
        return False
    assert seen.due_at is not None
    timing, now = read_definition(seen).timing, ctx.clock()
    try:
        next_at = timing.next_after(now, seen.due_at)
    except InvalidInputError as error:  # its last time, or a time zone that there is no more
        _refuse(ctx, seen, error, None)
        return True
    if timing.is_missed(seen.due_at, now):
        _skip(ctx, seen, "missed", next_at)
    elif ctx.store.find_unfinished_run(run_key_of(seen)) is None:
        _queue(ctx, seen, next_at)
    elif timing.catch_up or next_at is None:
        ctx.store.settle_schedule(seen, seen.outcome, due_at=seen.due_at, rests_until=now + WAIT_MS)
    else:
        _skip(ctx, seen, "skipped", next_at)
    return True


def _skip(ctx: Context, seen: ScheduleRecord, why: str, next_at: int | None) -> None:
    """Let a time pass, and count it as `missed` or, since the last job had not ended, `skipped`."""
    outcome = {**seen.outcome, why: seen.outcome.get(why, 0) + 1}
    ctx.store.settle_schedule(seen, outcome, due_at=next_at)


def _queue(ctx: Context, seen: ScheduleRecord, next_at: int | None) -> None:
    assert seen.due_at is not None
    try:
        job = prepare_job(ctx, seen, seen.due_at)
    except ServiceUnavailableError:
        raise
    except LanceNamespaceError as error:
        _refuse(ctx, seen, error, next_at)
        return
    reach(Point.BEFORE_SCHEDULED_JOB)
    try:
        ctx.store.transact(lambda catalog: _settle(catalog, seen, job, next_at))
    except (ConcurrentModificationError, TableNotFoundError) as error:  # the latter was just dropped
        log.info("schedule %s: %s", seen.name, error)


def _settle(catalog: UnitOfWork, seen: ScheduleRecord, job: NewJob, next_at: int | None) -> None:
    """Queue the job, and move the schedule on. Raises ConcurrentModificationError, where nothing is to be written."""
    queued = job.create(catalog, run_key_of(seen))
    outcome: dict[str, Any] = {**without_refusal(seen.outcome), "at": seen.due_at}
    if not catalog.settle_schedule(seen, outcome, due_at=next_at, job=queued.id, table_id=job.record_id):
        raise ConcurrentModificationError("It was paused, altered, or queued by another server meanwhile.")


def _refuse(ctx: Context, seen: ScheduleRecord, error: LanceNamespaceError, next_at: int | None) -> None:
    """Record why a time has no job: whoever lists schedules sees it."""
    log.warning("schedule %s is refused: %s", seen.name, error)
    outcome = {**seen.outcome, "refused": str(error), "refused_at": ctx.clock()}
    ctx.store.settle_schedule(seen, outcome, due_at=next_at)
