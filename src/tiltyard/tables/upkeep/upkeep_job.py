"""Look at the tables that got commits, queue a job for each that needs upkeep, and run it.

Views and columns that refresh by themselves are looked at in their intervals, too (`automatic_refreshes`).
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import InvalidInputError, LanceNamespaceError, ServiceUnavailableError, TableNotFoundError
from msgspec import structs

from tiltyard.config import DAY_MS
from tiltyard.model.branches import MAIN
from tiltyard.model.ids import Id
from tiltyard.model.jobs import Job, JobCanceledError, job
from tiltyard.model.modes import TransactionStatus
from tiltyard.storage.errors import lance_errors
from tiltyard.store.access.grants import TABLE
from tiltyard.store.tables.erasures import ERASE
from tiltyard.store.tables.upkeep import UPKEEP
from tiltyard.tables.indexes.build_job import CREATE_INDEX
from tiltyard.tables.indexes.build_process import LanceProcess
from tiltyard.tables.opening import finishing_direct_commits
from tiltyard.tables.schema.expression_refresh import REFRESH_COLUMN
from tiltyard.tables.upkeep.automatic_refreshes import STATE as REFRESHES
from tiltyard.tables.upkeep.automatic_refreshes import plan_refreshes
from tiltyard.tables.upkeep.garbage import CLOCK_SKEW_MS, COLLECT_TABLE_GARBAGE, Collection, CollectOptions, collect
from tiltyard.tables.upkeep.maintainer import COMMAND, MaintenanceRequest, maintain, read_index_states
from tiltyard.upkeep.decision import CHANGING_JOBS, UpkeepDecision, decide_upkeep, read_state
from tiltyard.upkeep.indexing import IndexState
from tiltyard.upkeep.thresholds import UpkeepOptions, upkeep_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import lance

    from tiltyard.context import Context
    from tiltyard.store import TableRecord, TableUpkeep, UnitOfWork


log = logging.getLogger("tiltyard.upkeep")

IDLE_MS = 10 * 60 * 1000
"""How long a table has no commits until its indexes get the last few rows, too."""
BUSY_MS = 10_000
"""How long a table is left alone on which something is under way."""
MAX_PUT_OFF_MS = 60 * 60 * 1000
"""How long upkeep waits for that: a block of a publication may have been left behind."""
MIN_REST_MS, MAX_REST_MS = 10_000, DAY_MS
_REST_SHARE = 4
"""A table rests for so many times as long as its upkeep took: it takes a fifth of one processor at most."""
_FIRST_BACKOFF_MS = 60_000
MAX_ROWS_HERE = 20_000
"""Rows of a table up to which it is maintained in this process: starting another one takes more time than that."""
_BLOCKS = "_publishing-"
"""Prefix of the folders that exist while the block of a publication is open (`publishing.staged`)."""
CHANGING_WORK = frozenset({CREATE_INDEX, COLLECT_TABLE_GARBAGE, ERASE, REFRESH_COLUMN, "optimize", *CHANGING_JOBS})
"""The kinds of work under way on a table that upkeep waits for."""


def look_at_next_table(ctx: Context) -> bool:
    """Look at the table that is due for longest, and queue a job if it needs one; return whether a table was due.

    Raises ServiceUnavailableError: the table is looked at again in a minute.
    """
    if not ctx.store.has_due_upkeep() or (seen := ctx.store.claim_upkeep()) is None:
        return False
    table = _find_maintained(ctx, seen)
    if table is None:
        ctx.store.plan_upkeep(seen, rests_until=ctx.clock(), due_at=None, clean_at=None, state={})
        return True
    try:
        _look(ctx, seen, *table)
    except ServiceUnavailableError:
        raise
    except (LanceNamespaceError, OSError, RuntimeError, ValueError) as error:
        log.warning("table %s cannot be looked at: %s", seen.table_id, error)
        _back_off(ctx, seen)
    return True


def start_upkeep(ctx: Context, record: TableRecord, reason: str) -> None:
    """Queue the upkeep of a table, whose last commits may not be noted yet; not while it rests, or is at work."""
    if not ctx.settings.upkeep:
        return
    ctx.store.note_changes([record.id])
    seen = ctx.store.find_upkeep(record.id)
    if seen is None or seen.rests_until > ctx.clock() or (maintained := _find_maintained(ctx, seen)) is None:
        return
    if not _find_work_under_way(ctx, maintained[0]):
        _queue(ctx, maintained[0], reason)


def _find_maintained(ctx: Context, seen: TableUpkeep) -> tuple[TableRecord, UpkeepOptions] | None:
    """Return a table and its options; None for one that gets no upkeep.

    That is one that is gone or has no data, one whose properties say so, and one below a mount to which others commit
    without this catalog.
    """
    try:
        mount_id = ctx.store.mount_of_table(seen.table_id)
        table = structs.replace(ctx.store.table_by_id(seen.table_id), mount_id=mount_id)
        options = upkeep_options(table.properties, ctx.settings.keep_versions_days)
    except TableNotFoundError:
        return None
    except InvalidInputError as error:
        log.warning("table %s gets no upkeep: %s", seen.table_id, error)
        return None
    is_foreign = mount_id is not None and not table.managed
    return None if table.declared or is_foreign or not options.enabled else (table, options)


def _look(ctx: Context, seen: TableUpkeep, table: TableRecord, options: UpkeepOptions) -> None:
    now, state = ctx.clock(), dict(seen.state)
    if reason := _find_work_under_way(ctx, table):
        since = state.setdefault("put_off_since", now)
        if now - since < MAX_PUT_OFF_MS or reason.startswith(UPKEEP):
            rest = now + BUSY_MS
            ctx.store.plan_upkeep(seen, rests_until=rest, due_at=rest, clean_at=seen.clean_at, state=state)
            return
    state.pop("put_off_since", None)
    dataset = _open(ctx, table)
    needs = _find_needs(dataset, seen, options, is_idle=now - seen.changed_at >= IDLE_MS)
    refresh_at = plan_refreshes(ctx, table, dataset, state, now)
    clean_at = _clean_at(seen, table, options, now)
    reasons = [*needs.reasons, *(["old versions"] if clean_at is not None and clean_at <= now else [])]
    if reasons:
        _queue(ctx, table, ", ".join(reasons))
        due: int | None = now + BUSY_MS
    else:
        idle_at = seen.changed_at + IDLE_MS if needs.has_rest else None
        due = min((at for at in (clean_at, idle_at, refresh_at) if at is not None), default=None)
    rest = now + BUSY_MS if reasons else now
    ctx.store.plan_upkeep(seen, rests_until=rest, due_at=due, clean_at=clean_at, state=state)


def _clean_at(seen: TableUpkeep, table: TableRecord, options: UpkeepOptions, now: int) -> int | None:
    """Return when old versions are next looked for: once the version before the last commit is old enough.

    None where all was removed since, or the table is below a mount, whose catalog may know of readers.
    """
    if table.mount_id is not None or seen.clean_at is not None:
        return None if table.mount_id is not None else seen.clean_at
    due = seen.changed_at + int(options.keep_versions_days * DAY_MS)
    return due if due > now else None


def _find_work_under_way(ctx: Context, table: TableRecord) -> str:
    """Return what is under way on a table that upkeep would disturb; "" if nothing is."""
    for record in ctx.store.unfinished_transactions(table.id):
        if record.kind == UPKEEP:
            return f"upkeep {record.id}"
        is_waiting = record.status is TransactionStatus.QUEUED and record.kind != CREATE_INDEX
        if record.kind in CHANGING_WORK and not is_waiting:
            return f"{record.kind} {record.id}"
    with lance_errors():
        folders = ctx.storage.files(table.location).list_folders(table.location)
    return next((f"a publication ({name})" for name in folders if name.startswith(_BLOCKS)), "")


def _find_needs(
    dataset: lance.LanceDataset, seen: TableUpkeep, options: UpkeepOptions, *, is_idle: bool
) -> UpkeepDecision:
    with lance_errors(dataset):
        state = read_state(dataset, options)
    return decide_upkeep(state, options, seen.state.get("unindexed", {}), is_idle=is_idle)


def _queue(ctx: Context, table: TableRecord, reason: str) -> None:
    """Queue a job, unless another server has since; few that have ended stay, for there are many over time."""

    def work(catalog: UnitOfWork) -> None:
        path = catalog.object_path(TABLE, table.id)
        if path is not None and not catalog.unfinished_transactions(table.id, UPKEEP):
            catalog.delete_ended_upkeep(table.id)
            catalog.create_transaction(UPKEEP, table.id, {}, {"table": str(Id(path)), "reason": reason})

    ctx.store.transact(work)


def _back_off(ctx: Context, seen: TableUpkeep) -> None:
    """Leave a table alone after a failure, longer after each."""
    failures = seen.state.get("failures", 0) + 1
    rest = ctx.clock() + min(MAX_REST_MS, _FIRST_BACKOFF_MS * 4 ** min(failures - 1, 10))
    state = {**seen.state, "failures": failures}
    ctx.store.plan_upkeep(seen, rests_until=rest, due_at=rest, clean_at=seen.clean_at, state=state)


@job(UPKEEP)
def maintain_table(ctx: Context, running: Job) -> Mapping[str, str]:
    """Extend a table's indexes, compact it, and remove old versions, as far as it needs that. Idempotent.

    Raises what stopped it: the table is left alone for a while then.
    """
    assert running.table_id is not None
    seen = ctx.store.find_upkeep(running.table_id)
    maintained = None if seen is None else _find_maintained(ctx, seen)
    if seen is None or maintained is None:
        return {"notes": "The table is gone, or gets no upkeep any more."}
    start, table, options = time.monotonic(), *maintained
    try:
        with finishing_direct_commits(ctx, table, MAIN):
            outcome = _maintain_data(ctx, running, seen, table, options)
        cleaned, clean_at = _clean(ctx, running, seen, table, options)
    except JobCanceledError:
        rest = ctx.clock() + BUSY_MS
        ctx.store.plan_upkeep(seen, rests_until=rest, due_at=rest, clean_at=seen.clean_at, state=seen.state)
        raise
    except Exception:
        _back_off(ctx, seen)
        raise
    seconds = time.monotonic() - start
    rest = ctx.clock() + min(MAX_REST_MS, max(MIN_REST_MS, int(seconds * 1000) * _REST_SHARE))
    state = {"unindexed": outcome} | {name: seen.state[name] for name in (REFRESHES,) if name in seen.state}
    ctx.store.plan_upkeep(seen, rests_until=rest, due_at=rest, clean_at=clean_at, state=state)
    return {"seconds": f"{seconds:.1f}", "stage": "done", **cleaned}


def _maintain_data(
    ctx: Context, running: Job, seen: TableUpkeep, table: TableRecord, options: UpkeepOptions
) -> dict[str, int]:
    """Extend indexes and compact; return the indexes that got no rows, with how many they lacked before."""
    dataset = _open(ctx, table)
    if not _find_needs(dataset, seen, options, is_idle=True).reasons:
        return dict(seen.state.get("unindexed", {}))
    before = read_index_states(dataset)
    if dataset.count_rows() <= MAX_ROWS_HERE and not _has_graph(dataset):
        route = ctx.commit_route(table, durable=False)
        own = ctx.storage.datasets.open_for_writing(table.location, MAIN, route)
        maintain(own, options.small_fragments, lambda properties: running.progress(**properties))
    else:
        _maintain_in_child(ctx, running, table, options)
    return _stuck(before, read_index_states(_open(ctx, table)))


def _open(ctx: Context, table: TableRecord) -> lance.LanceDataset:
    return ctx.storage.datasets.open_for_reading(table.location)


def _has_graph(dataset: lance.LanceDataset) -> bool:
    """Return whether there is an index with a graph, which takes minutes to merge for few rows."""
    return any("HNSW" in index.index_type.upper() for index in dataset.describe_indices())


def _maintain_in_child(ctx: Context, running: Job, table: TableRecord, options: UpkeepOptions) -> None:
    route = ctx.commit_route(table, durable=False)
    request = MaintenanceRequest(
        table.location,
        dict(ctx.storage.options(table.location)),
        None if route is None else list(route.table_id),
        options.small_fragments,
    )
    most_bytes, stall = ctx.settings.upkeep_bytes, ctx.settings.index_stall_timeout
    with LanceProcess(request, route, COMMAND, background=True, most_bytes=most_bytes) as process:
        process.wait(lambda: running.progress(**process.progress), stall)
        running.progress(**process.progress)


def _stuck(before: Sequence[IndexState], after: Sequence[IndexState]) -> dict[str, int]:
    """Return the indexes that lacked rows and got none: such as a PQ index of too few rows to train it."""
    indexed = {state.name: state.indexed for state in after}
    return {
        state.name: state.missing
        for state in before
        if state.missing and indexed.get(state.name, state.indexed) <= state.indexed
    }


def _clean(
    ctx: Context, running: Job, seen: TableUpkeep, table: TableRecord, options: UpkeepOptions
) -> tuple[dict[str, str], int | None]:
    """Remove old versions if that is due; return the figures, and when it is due next."""
    now = ctx.clock()
    if seen.clean_at is None or seen.clean_at > now or table.mount_id is not None:
        return {}, seen.clean_at
    running.progress(stage="old versions")

    def progress(removed: int) -> None:
        running.progress(files_removed=removed)

    collection = remove_old_versions(ctx, table, options.keep_versions_days, progress)
    figures: dict[str, Any] = {
        "versions_removed": collection.versions,
        "files_removed": len(collection.garbage),
        "bytes_removed": collection.size,
    }
    notes = {"clean_notes": " ".join(collection.notes)} if collection.notes else {}
    keep_ms = int(options.keep_versions_days * DAY_MS)
    pause = min(DAY_MS, keep_ms)
    next_at = now + pause if seen.changed_at + keep_ms + 2 * pause > now else None
    return {name: str(value) for name, value in figures.items()} | notes, next_at


def remove_old_versions(
    ctx: Context, table: TableRecord, keep_days: float, progress: Callable[[int], None]
) -> Collection:
    """Collect a table's garbage with the versions of main that have not been the latest for `keep_days`.

    What was the latest at any time since stays, and so does what was since the oldest unfinished job of the catalog
    began, which may read this table, or within the memory for repeated requests. Tags keep theirs, as in every
    collection. Raises what `collect` raises.
    """
    now = ctx.clock()
    starts = [ctx.store.oldest_work(), ctx.store.oldest_unfinished_work(table.id, UPKEEP)]
    limits = [now - int(keep_days * DAY_MS), now - ctx.settings.repeat_memory * 1000]
    limits += [start - CLOCK_SKEW_MS for start in starts if start is not None]
    storage = ctx.storage
    dataset = storage.datasets.open_for_writing(table.location)
    with lance_errors(dataset):
        versions: list[Any] = dataset.versions()
    times = [int(version["timestamp"].timestamp() * 1000) for version in versions]
    before = first_time_to_keep(times, min(limits))
    keep_versions_days = None if before is None else max(0.0, (now - before + CLOCK_SKEW_MS) / DAY_MS)
    return collect(ctx, table, CollectOptions(keep_versions_days=keep_versions_days), progress)


def first_time_to_keep(times: Iterable[int], limit: int) -> int | None:
    """Return the time (ms) before which versions may be removed that were committed at `times`, in their order.

    The last one of `limit` or before was the latest at that time, so it stays, with all after it: also those that the
    clock of their writer dates earlier. None if there is nothing to remove.
    """
    times = list(times)
    last = max((index for index, time in enumerate(times) if time <= limit), default=0)
    return min(times[last:]) if last else None
