"""Garbage of the whole catalog: that of every table, folders of dropped tables, and orphaned folders under the root."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from lance_namespace.errors import LanceNamespaceError, ServiceUnavailableError, TransactionNotFoundError

from tiltyard.access.needs import ADMINISTRATORS
from tiltyard.config import DAY_MS
from tiltyard.context import Context
from tiltyard.model.ids import Id
from tiltyard.model.jobs import Job, job
from tiltyard.model.operations import operation
from tiltyard.model.spec import models
from tiltyard.runtime.lease import FOLDER_LEASE_MS, Lease
from tiltyard.storage.errors import lance_errors
from tiltyard.storage.locations import TABLE_SUFFIX, is_within
from tiltyard.store import CREATING, DROP_MOUNTED_TABLE
from tiltyard.tables.upkeep.garbage import CollectOptions, collect_options, try_collect

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tiltyard.store import ScheduledDeletion, TableRecord

log = logging.getLogger("tiltyard.deletion")

DELETE_FOLDERS = "delete_folders"

_AT_ONCE = 16
_PAUSE_SECONDS = 0.2


def stage_folder(ctx: Context, path: Id, lease_ms: int = FOLDER_LEASE_MS) -> str:
    """Choose a folder for a new table's files; it is deleted once its lease has ended, unless a table has it by then.

    Raises NamespaceNotFoundError.
    """
    ctx.store.describe_namespace(path.parent)
    location = ctx.storage.new_location(path)
    ctx.store.schedule_deletion(location, ctx.clock() + lease_ms, CREATING)
    return location


def hold_folder(ctx: Context, location: str) -> Lease:
    """Return the lease on a folder of `stage_folder`; where it is lost, the table cannot be inserted."""
    renew = partial(ctx.store.postpone_deletion, location, FOLDER_LEASE_MS)
    return Lease(location, renew, FOLDER_LEASE_MS, report=ctx.services.outage_log.report)


def sweep(ctx: Context) -> int:
    """Delete folders that are due; return how many. One that cannot be deleted now is due again later."""
    deleted = 0
    for folder in ctx.store.claim_due_deletions(_AT_ONCE, FOLDER_LEASE_MS):
        if _is_used_again(ctx, folder):
            ctx.store.complete_deletion(folder.location)
        else:
            deleted += delete_marked_folder(ctx, folder.location)
    return deleted


def _is_used_again(ctx: Context, folder: ScheduledDeletion) -> bool:
    """Return whether a folder that a table below a mount had has been written to since the table was dropped.

    Others may have put it into their catalog again, under any name.
    """
    if folder.transaction_id is None:
        return False
    try:
        dropped = ctx.store.describe_transaction(folder.transaction_id)
    except TransactionNotFoundError:
        return False
    if dropped.kind != DROP_MOUNTED_TABLE:
        return False
    try:
        with lance_errors(folder.location):
            manifests = ctx.storage.files(folder.location).walk(f"{folder.location}/_versions")
            is_used = any(manifest.modified > dropped.created_at for manifest in manifests)
    except LanceNamespaceError as error:
        log.warning("cannot look into %s: %s", folder.location, error)
        return False  # nor can it be deleted
    if is_used:
        log.warning("%s stays: it was written to after its table was dropped", folder.location)
    return is_used


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


COLLECT_GARBAGE = "collect_garbage"
_PAGE = 500


@dataclass(frozen=True, slots=True)
class UnknownFolder:
    """An orphan: a table's folder under the root that is neither in the catalog nor marked for deletion."""

    location: str
    size: int


@operation(needs=ADMINISTRATORS)
def collect_garbage(ctx: Context, request: models.CollectGarbageRequest) -> models.CollectGarbageResponse:
    """Remove the garbage of all tables in a transaction, whose properties say how much; `dry_run` only counts it.

    With `unknown_folders`, orphaned folders of tables under the root are removed, too. Raises InvalidInputError.
    """
    options = collect_options(bool(request.dry_run), request.keep_versions_days)
    payload = {
        "dry_run": options.dry_run,
        "keep_versions_days": options.keep_versions_days,
        "unknown_folders": bool(request.unknown_folders),
    }
    queued = ctx.store.create_transaction(COLLECT_GARBAGE, None, payload, {}, requested_by=ctx.principal.name)
    return models.CollectGarbageResponse(transaction_id=queued.id)


@job(COLLECT_GARBAGE)
def collect_all(ctx: Context, running: Job) -> Mapping[str, str]:
    """Collect garbage of every table, then orphaned folders. Idempotent. Raises JobCanceledError."""
    options = CollectOptions(running.payload["dry_run"], running.payload["keep_versions_days"])
    tables = files = size = tables_with_notes = 0
    for _, table in all_tables(ctx):
        collection = try_collect(ctx, table, options)
        tables, files, size = tables + 1, files + len(collection.garbage), size + collection.size
        tables_with_notes += bool(collection.notes)
        running.progress(tables=tables, files=files, bytes=size)
    folders = find_unknown_folders(ctx)
    if running.payload["unknown_folders"] and not options.dry_run:
        folders = schedule_deletion(ctx, folders)
    numbers = {
        "tables": tables,
        "files": files,
        "bytes": size,
        "tables_with_notes": tables_with_notes,
        "unknown_folders": len(folders),
        "unknown_folders_bytes": sum(folder.size for folder in folders),
    }
    return {name: str(number) for name, number in numbers.items()}


def all_tables(ctx: Context) -> Iterator[tuple[Id, TableRecord]]:
    """Yield the id and the record of every table; one that is dropped or renamed meanwhile is left out."""
    after: tuple[int, str] | None = None
    while page := ctx.store.list_all_tables(after, _PAGE):
        for entry in page:
            path = Id((*entry.namespace, entry.name))
            try:
                record = ctx.store.describe_table(path)
            except LanceNamespaceError:
                continue
            yield path, record
        after = (page[-1].namespace_id, page[-1].name)


def find_unknown_folders(ctx: Context) -> list[UnknownFolder]:
    """Find orphaned folders directly under the root: named as tables, unknown to the catalog, without recent files."""
    root = ctx.storage.root
    cutoff = ctx.clock() - int(ctx.settings.gc_safety_days * DAY_MS)
    with lance_errors():
        files = ctx.storage.files(root)
        names = [name for name in files.list_folders(root) if name.endswith(TABLE_SUFFIX)]
        known = {location[len(root) + 1 :].partition("/")[0] for location in ctx.store.all_locations()}
        orphans = []
        for name in sorted(names):
            location = f"{root}/{name}"
            if name in known or ctx.store.clone_locations(location) or _may_be_mounted(ctx, location):
                continue
            contents = list(files.walk(location))
            if all(file.modified < cutoff for file in contents):
                orphans.append(UnknownFolder(location, sum(file.size for file in contents)))
        return orphans


def _may_be_mounted(ctx: Context, location: str) -> bool:
    """Return whether a mount has tables of its own there, which are in no record before somebody looks them up."""
    return any(
        is_within(location, allowed)
        for mount in ctx.services.mounts.all()
        for allowed in (*mount.record.allowed_locations, *mount.own_locations)
    )


def schedule_deletion(ctx: Context, folders: list[UnknownFolder]) -> list[UnknownFolder]:
    """Mark orphaned folders for deletion by the next sweep; return those that were not registered meanwhile."""
    now = ctx.clock()
    return [folder for folder in folders if ctx.store.schedule_orphan_deletion(folder.location, now, COLLECT_GARBAGE)]
