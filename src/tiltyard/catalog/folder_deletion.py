"""Deleting folders whose tables are gone: the records went first, and marked them."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from lance_namespace.errors import LanceNamespaceError, ServiceUnavailableError

from tiltyard.context import Context
from tiltyard.model.jobs import Job, job

log = logging.getLogger("tiltyard.deletion")

DELETE_FOLDERS = "delete_folders"

_LEASE_MS = 10 * 60 * 1000
_AT_ONCE = 16
_PAUSE_SECONDS = 0.2


def sweep(ctx: Context) -> int:
    """Delete folders that are due; how many were deleted. One that cannot be deleted now is due again later."""
    deleted = 0
    for folder in ctx.store.claim_due_deletions(_AT_ONCE, _LEASE_MS):
        deleted += delete_marked(ctx, folder.location)
    return deleted


def delete_marked(ctx: Context, location: str) -> bool:
    """Delete a folder that the catalog has marked, and then the mark; False if that has to be done later.

    Raises OSError for what is not foreseen, so that it is told where somebody looks.
    """
    try:
        ctx.storage.datasets.evict(location)
        ctx.storage.delete_folder(location)
    except LanceNamespaceError as error:
        log.warning("cannot delete %s yet: %s", location, error)
        return False
    ctx.store.complete_deletion(location)
    return True


def delete_dropped(ctx: Context, location: str) -> None:
    """Do that for a table that was dropped just now. Raises ServiceUnavailableError if it has to be done later."""
    try:
        deleted = delete_marked(ctx, location)
    except OSError as error:
        log.warning("cannot delete %s yet: %s", location, error)
        deleted = False
    if not deleted:
        raise ServiceUnavailableError("The table is dropped, and its data is still there: it is deleted later.")


@job(DELETE_FOLDERS)
def delete_folders(ctx: Context, running: Job) -> Mapping[str, str]:
    """Delete all folders that one cascading drop marked; progress counts them."""
    total = left = ctx.store.count_pending_deletions(running.id)
    while left:
        running.progress(folders=total, folders_deleted=total - left)
        if not sweep(ctx):
            time.sleep(_PAUSE_SECONDS)  # another sweeper has them in hand
        left = ctx.store.count_pending_deletions(running.id)
    return {"folders": str(total), "folders_deleted": str(total)}
