"""What is swept beside the jobs: what a crash left, every few seconds, and what has had its time, every minute."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tiltyard.catalog.folder_deletion import sweep
from tiltyard.config import DAY_MS
from tiltyard.tables.commits.finalizing import sweep_pending
from tiltyard.tables.rows.multipart import abandon_stale_uploads

if TYPE_CHECKING:
    from tiltyard.context import Context

SWEPT_ROWS = 1_000


def sweep_leftovers(ctx: Context) -> bool:
    """Do a little of what cannot wait; whether there may be more."""
    return bool(sweep(ctx) + sweep_pending(ctx) + ctx.store.sweep_requests(SWEPT_ROWS))


def sweep_old(ctx: Context) -> bool:
    """Do a little of what has had its time; whether there may be more."""
    settings, now = ctx.settings, ctx.clock()
    uploads = abandon_stale_uploads(ctx, int(settings.upload_days * DAY_MS))
    ended = ctx.store.sweep_transactions(now - int(settings.transaction_days * DAY_MS), SWEPT_ROWS)
    audit = ctx.store.sweep_audit(now - int(settings.audit_days * DAY_MS), SWEPT_ROWS)
    return bool(uploads) or SWEPT_ROWS in (ended, audit)
