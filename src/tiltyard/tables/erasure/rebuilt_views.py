"""Compute a materialized view anew, from sources that the rows have left: where the condition cannot be told in it."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
from lance_namespace.errors import InvalidTableStateError, LanceNamespaceError

from tiltyard.catalog.jobs.authorization import authorize_submitter
from tiltyard.model.branches import MAIN
from tiltyard.model.ids import Id
from tiltyard.model.jobs import is_transient
from tiltyard.model.modes import TransactionStatus
from tiltyard.model.spec import models
from tiltyard.model.views.definitions import ViewDefinition, ViewKind
from tiltyard.store.access.grants import TABLE
from tiltyard.tables.erasure.conditions import open_main
from tiltyard.tables.erasure.plan import branch_key
from tiltyard.tables.erasure.rows import rebuild_indexes
from tiltyard.tables.opening import open_to_commit
from tiltyard.tables.views.materialized_views import refresh_materialized_view
from tiltyard.tables.views.select_views import compute_anew

if TYPE_CHECKING:
    from tiltyard.context import Context
    from tiltyard.model.jobs import Job
    from tiltyard.store import TableRecord
    from tiltyard.tables.erasure.plan import Plan, TableFigures

MAX_QUEUED_SECONDS = 600.0
"""How long the refresh of a view waits for a driver of Spark before it is given up."""
_PAUSE_SECONDS = 0.5


def rebuild_view(ctx: Context, running: Job, table: TableRecord, plan: Plan, figures: TableFigures) -> int | None:
    """Compute all rows of a view and its indexes anew; return the first version of main that is made of these alone.

    None where the view could not be computed: the plan has why. As a refresh that who asked for the erasure requests.
    Raises ServiceUnavailableError, ConcurrentModificationError (the job is tried again), JobCanceledError.
    """
    key = branch_key(table, MAIN)
    if key not in plan.rewritten:
        running.progress(stage="views")
        try:
            plan.rewritten[key] = _refresh(ctx, running, table, plan)
        except LanceNamespaceError as error:
            if is_transient(error):
                raise
            plan.failures[str(table.id)] = str(error)
        ctx.store.save_erasure_plan(running.id, plan.to_json())
    if key not in plan.rewritten:
        return None
    rebuild_indexes(ctx, running, table, MAIN, plan, figures)
    return int(open_to_commit(ctx, table, MAIN).version)


def _refresh(ctx: Context, running: Job, table: TableRecord, plan: Plan) -> int:
    """Refresh a view in full, here or by Spark; return its version. Raises what a refresh raises."""
    submitter_ctx, _ = authorize_submitter(ctx, ctx.store.describe_transaction(running.id))
    path = Id(ctx.store.object_path(TABLE, table.id) or ())
    definition = ViewDefinition.from_metadata(open_main(ctx, table.location).schema.metadata)
    if definition is not None and definition.kind is ViewKind.SELECT:
        return int(compute_anew(ctx, submitter_ctx, replace(running, table_id=table.id), path)["version"])
    number = plan.refreshes.get(str(table.id))
    if number is None:
        request = models.RefreshMaterializedViewRequest(id=list(path), full=True)
        own = msgspec.structs.replace(submitter_ctx, resolved=None, mounted=None)
        number = plan.refreshes[str(table.id)] = refresh_materialized_view(own, request).job_id
        ctx.store.save_erasure_plan(running.id, plan.to_json())
    return _wait(ctx, running, number)


def _wait(ctx: Context, running: Job, number: str) -> int:
    """Wait for a refresh by Spark; return the version that it made. Raises InvalidTableStateError, if it failed."""
    deadline = time.monotonic() + MAX_QUEUED_SECONDS
    while not (seen := ctx.store.describe_transaction(number)).status.is_final:
        running.progress(stage="views")
        if seen.status is TransactionStatus.QUEUED and time.monotonic() > deadline:
            ctx.store.alter_transaction(number, lambda status, properties: (TransactionStatus.CANCELED, properties))
            raise InvalidTableStateError(f"No driver of Spark took its refresh in {MAX_QUEUED_SECONDS:.0f} seconds.")
        time.sleep(_PAUSE_SECONDS)
    if seen.status is not TransactionStatus.SUCCEEDED:
        raise InvalidTableStateError(f"Its refresh {number} has ended as {seen.status}: {seen.error or 'see its log'}")
    return int(seen.properties["version"])
