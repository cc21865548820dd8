"""Delete folders of dropped tables, which the catalog marked when it removed their records."""

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
    """Delete folders that are due; return how many. One that cannot be deleted now is due again later."""
    deleted = 0
    for folder in ctx.store.claim_due_deletions(_AT_ONCE, _LEASE_MS):
        deleted += delete_marked_folder(ctx, folder.location)
    return deleted


def delete_marked_folder(ctx: Context, location: str) -> bool:
    """Delete a folder that the catalog has marked, and then the mark; return False if that has to be done later.

    Raises OSError for unforeseen errors, so that they are reported.
    """
    try:
        ctx.storage.datasets.evict(location)
        ctx.storage.delete_folder(location)
    except LanceNamespaceError as error:
        log.warning("cannot delete %s yet: %s", location, error)
        return False
    ctx.store.complete_deletion(location)
    return True


def delete_dropped_table(ctx: Context, location: str) -> None:
    """Delete the folder of a table that was just dropped. Raises ServiceUnavailableError if that is done later."""
    try:
        deleted = delete_marked_folder(ctx, location)
    except OSError as error:
        log.warning("cannot delete %s yet: %s", location, error)
        deleted = False
    if not deleted:
        raise ServiceUnavailableError("The table is dropped, and its data is still there: it is deleted later.")


@job(DELETE_FOLDERS)
def delete_folders(ctx: Context, running: Job) -> Mapping[str, str]:
    """Delete all folders that one cascading drop marked; the progress counts them."""
    total = pending = ctx.store.count_pending_deletions(running.id)
    while pending:
        running.progress(folders=total, folders_deleted=total - pending)
        if not sweep(ctx):
            time.sleep(_PAUSE_SECONDS)  # another sweeper has claimed them
        pending = ctx.store.count_pending_deletions(running.id)
    return {"folders": str(total), "folders_deleted": str(total)}
