"""The worker's job of an erasure: rows, files and indexes of each branch, then old versions, then the report.

It can be killed anywhere: the next run looks at what is there, and does the rest. Writers go on meanwhile. What they
commit stays; rows that match and come after the report was made are not of this erasure.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from lance_namespace.errors import (
    ConcurrentModificationError,
    LanceNamespaceError,
    TableNotFoundError,
)

from tiltyard.catalog.garbage import sweep
from tiltyard.model.branches import MAIN
from tiltyard.model.jobs import MAX_ATTEMPTS, Job, JobCanceledError, is_transient, job
from tiltyard.model.modes import TransactionStatus
from tiltyard.storage.errors import lance_errors
from tiltyard.store.repository import display_path
from tiltyard.store.tables.erasures import ERASE
from tiltyard.store.tables.upkeep import UPKEEP
from tiltyard.tables.erasure.byte_search import patterns_of
from tiltyard.tables.erasure.old_versions import end_versions, keep_tagged_rows
from tiltyard.tables.erasure.parked_rows import erase_parked_rows
from tiltyard.tables.erasure.plan import Plan, add_new
from tiltyard.tables.erasure.rebuilt_views import rebuild_view
from tiltyard.tables.erasure.report import Examination, make_report
from tiltyard.tables.erasure.rows import erase_from_branch, read_values
from tiltyard.tables.erasure.scope import count_stored, find_scope, name_of, refuse_held, refuse_protected
from tiltyard.tables.indexes.build_queue import queue_build
from tiltyard.tables.indexes.builder import IndexSpec
from tiltyard.tables.upkeep.garbage import CollectOptions, finalize_all, try_collect
from tiltyard.tables.upkeep.references import open_branches
from tiltyard.tables.upkeep.upkeep_job import CHANGING_WORK
from tiltyard.tables.versions.records import stored_versions

if TYPE_CHECKING:
    from tiltyard.context import Context
    from tiltyard.store import Erasure, RemovedTable, TableRecord
    from tiltyard.tables.erasure.scope import Scope

MAX_PASSES = 3
"""How often a table is gone through where rows or branches come meanwhile; then the report says what is left."""
WAIT_SECONDS = 600
"""How long other work on a table is waited for that began before: it may have read the rows."""
_PAUSE_SECONDS = 0.5


@job(ERASE)
def erase_rows(ctx: Context, running: Job) -> Mapping[str, str]:
    """Erase rows and make the report. Idempotent. Raises what stops it: it is retried, or ended without a report."""
    erasure = ctx.store.find_erasure(running.id)
    if erasure.ended_at is not None:
        ctx.store.purge_deleted()
        return {"outcome": erasure.outcome}
    try:
        return _erase(ctx, running, erasure)
    except JobCanceledError:
        if ctx.store.describe_transaction(running.id).status is TransactionStatus.CANCELED:
            _stop(ctx, running)
        raise
    except Exception as error:
        attempts = ctx.store.describe_transaction(running.id).attempts
        if not is_transient(error) or attempts >= MAX_ATTEMPTS:
            _stop(ctx, running)
        raise


def _stop(ctx: Context, running: Job) -> None:
    """End an erasure without a report; queue the builds of indexes that it has dropped and not built again."""
    for specs in Plan.of(ctx.store.find_erasure(running.id).plan).unbuilt.values():
        for spec in specs:
            with suppress(LanceNamespaceError):  # the table was dropped
                queue_build(ctx, IndexSpec(**spec))
    ctx.store.end_erasure(running.id, "stopped", "", "", ctx.clock())
    ctx.store.purge_deleted()


def _erase(ctx: Context, running: Job, erasure: Erasure) -> Mapping[str, str]:
    plan = Plan.of(erasure.plan)
    try:
        table = ctx.store.table_by_id(erasure.table_id)
    except TableNotFoundError:
        raise TableNotFoundError("The table was dropped meanwhile: undrop it, or let it be deleted.") from None
    scope = find_scope(ctx, table, erasure.path, plan.predicate)
    if plan.values is None:
        refuse_protected(ctx, scope, end_protected=plan.end_protected, supersede_tags=plan.supersede_tags)
        _read_values(ctx, running, scope, plan)
    refuse_held(ctx, scope)
    for removed in scope.dropped:
        _delete_dropped(ctx, running, removed, plan)
    _erase_from_tables(ctx, running, erasure, table, scope, plan)
    for each in scope.tables:
        running.progress(stage="garbage")
        try_collect(ctx, each, CollectOptions())
        ctx.storage.datasets.evict(each.location)
    examination = Examination(ctx, erasure, plan, find_scope(ctx, table, erasure.path, plan.predicate))
    examination.examine(running)
    ended_at = ctx.clock()
    outcome, report, signature = make_report(ctx, erasure, plan, examination, ended_at)
    ctx.store.end_erasure(erasure.id, outcome, report, signature, ended_at)
    ctx.store.purge_deleted()  # the plan, which had the values
    return {"outcome": outcome, "progress": "1.0"}


def _erase_from_tables(
    ctx: Context, running: Job, erasure: Erasure, table: TableRecord, scope: Scope, plan: Plan
) -> None:
    """Erase from all tables of a scope, then compute its views anew."""
    for each in scope.tables if plan.supersede_tags else ():
        if each.id in scope.conditions:
            running.progress(stage="tags")
            keep_tagged_rows(ctx, running, each, scope.conditions[each.id], plan)
    for number in range(MAX_PASSES):
        scope = find_scope(ctx, table, erasure.path, plan.predicate) if number else scope
        conditions = [(each, scope.conditions[each.id]) for each in scope.tables if each.id in scope.conditions]
        for each, condition in conditions:
            _wait_for_other_work(ctx, running, each)
            _erase_from_table(ctx, running, each, scope, condition, plan, is_last=number == MAX_PASSES - 1)
        if not any(_has_rows_left(ctx, each, condition) for each, condition in conditions):
            break
    for each in scope.tables:
        if each.id not in scope.conditions:
            _wait_for_other_work(ctx, running, each)
            _rebuild_view(ctx, running, each, scope, plan)
    for removed in find_scope(ctx, table, erasure.path, plan.predicate).dropped if plan.training_sets else ():
        if removed.id in plan.training_sets:
            _delete_dropped(ctx, running, removed, plan)


def _read_values(ctx: Context, running: Job, scope: Scope, plan: Plan) -> None:
    """Read what is searched for in the end, and how many rows match, before anything is changed."""
    values = dict[str | int, None]()
    for table in scope.tables:
        finalize_all(ctx, table)
        figures = plan.figures_of(table, name_of(ctx, table.id), scope.kinds[table.id])
        if (condition := scope.conditions.get(table.id)) is None:
            continue
        for branch, dataset in open_branches(ctx, table.location).items():
            running.progress(stage="values")
            with lance_errors(dataset):
                figures.rows += dataset.count_rows(condition)
            if plan.values_of:
                versions = sorted(stored_versions(ctx, table, branch))
                read_values(dataset, branch, versions, condition, plan.values_of, values)
    plan.values = list(values)
    ctx.store.save_erasure_plan(running.id, plan.to_json())


def _delete_dropped(ctx: Context, running: Job, removed: RemovedTable, plan: Plan) -> None:
    """Delete the folder of a dropped table now, as at the end of its retention. Raises InvalidInputError."""
    name = display_path((*removed.namespace, removed.name))
    if not ctx.store.expire_removed_table(removed.id) and not ctx.store.is_deletion_scheduled(removed.location):
        return
    deadline = time.monotonic() + WAIT_SECONDS
    while ctx.store.is_deletion_scheduled(removed.location):
        running.progress(stage="dropped tables")
        if not sweep(ctx):
            if time.monotonic() > deadline:
                raise ConcurrentModificationError(f"The dropped table {name} cannot be deleted yet.")
            time.sleep(_PAUSE_SECONDS)
    add_new(plan.dropped, [f"{name} ({removed.id})"])
    ctx.store.save_erasure_plan(running.id, plan.to_json())


def _wait_for_other_work(ctx: Context, running: Job, table: TableRecord) -> None:
    """Wait until no other work is under way on a table. Raises ConcurrentModificationError after WAIT_SECONDS."""
    deadline = time.monotonic() + WAIT_SECONDS
    kinds = {*CHANGING_WORK, UPKEEP}
    while True:
        others = [
            record
            for record in ctx.store.unfinished_transactions(table.id)
            if record.id != running.id and record.status is TransactionStatus.RUNNING and record.kind in kinds
        ]
        if not others:
            return
        if time.monotonic() > deadline:
            raise ConcurrentModificationError(
                f"{others[0].kind} {others[0].id} is under way on {table.name}: cancel it."
            )
        running.progress(stage="waiting")
        time.sleep(_PAUSE_SECONDS)


def _erase_from_table(
    ctx: Context, running: Job, table: TableRecord, scope: Scope, condition: str, plan: Plan, *, is_last: bool
) -> None:
    figures = plan.figures_of(table, name_of(ctx, table.id), scope.kinds[table.id])
    finalize_all(ctx, table)
    first_clean = {
        branch: erase_from_branch(ctx, running, table, branch, condition, plan, figures)
        for branch in open_branches(ctx, table.location)
    }
    try:
        end_versions(ctx, running, table, first_clean, condition, plan, figures)
    except ConcurrentModificationError:
        if is_last:
            raise
    running.progress(stage="parked rows")
    schema = open_branches(ctx, table.location)[MAIN].schema
    figures.parked_rows += erase_parked_rows(ctx, table, schema, condition)[0]
    _forget_errors(ctx, running, table, plan)


def _rebuild_view(ctx: Context, running: Job, table: TableRecord, scope: Scope, plan: Plan) -> None:
    """Compute a view anew and end its versions from before that; its branches stay as they are."""
    figures = plan.figures_of(table, name_of(ctx, table.id), scope.kinds[table.id])
    finalize_all(ctx, table)
    first_clean = rebuild_view(ctx, running, table, plan, figures)
    if first_clean is None:
        return
    branches = open_branches(ctx, table.location)
    firsts = {branch: first_clean if branch.is_main else 0 for branch in branches}
    end_versions(ctx, running, table, firsts, None, plan, figures)
    _forget_errors(ctx, running, table, plan)


def _forget_errors(ctx: Context, running: Job, table: TableRecord, plan: Plan) -> None:
    """Keep how far the erasure is, and delete messages of functions on a table that quote a value."""
    ctx.store.save_erasure_plan(running.id, plan.to_json())
    texts = [value for value in plan.values or () if isinstance(value, str) and patterns_of(value)]
    ctx.store.delete_function_errors(table.id, texts)


def _has_rows_left(ctx: Context, table: TableRecord, condition: str) -> bool:
    """Return whether any version of a table has rows that match, which came while others were erased."""
    for branch, dataset in open_branches(ctx, table.location).items():
        for version in stored_versions(ctx, table, branch):
            with suppress(LanceNamespaceError), lance_errors(dataset):  # the report names what cannot be read
                if count_stored(dataset.checkout_version((branch.lance_name, version)), condition):
                    return True
    return False
