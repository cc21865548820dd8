"""Garbage of the whole catalog: that of every table, and folders under the root that nobody knows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lance_namespace.errors import LanceNamespaceError

from tiltyard.access import Privilege
from tiltyard.access.needs import on_server
from tiltyard.config import DAY_MS
from tiltyard.model.ids import Id
from tiltyard.model.jobs import Job, job
from tiltyard.model.operations import operation
from tiltyard.model.spec import models
from tiltyard.storage.errors import lance_errors
from tiltyard.storage.locations import TABLE_SUFFIX
from tiltyard.tables.maintenance.garbage import CollectOptions, collect_options, try_collect

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tiltyard.context import Context
    from tiltyard.store import TableRecord

COLLECT_GARBAGE = "collect_garbage"
_PAGE = 500


@dataclass(frozen=True, slots=True)
class UnknownFolder:
    """A table's folder under the root that neither the catalog knows nor the list of folders to delete."""

    location: str
    size: int


@operation(needs=on_server(Privilege.ADMINISTER))
def collect_garbage(ctx: Context, request: models.CollectGarbageRequest) -> models.CollectGarbageResponse:
    """Remove the garbage of all tables in a transaction, whose properties tell how much; `dry_run` only counts it.

    With `unknown_folders`, folders of tables under the root that the catalog does not know go, too. Raises
    InvalidInputError.
    """
    wish = collect_options(bool(request.dry_run), request.keep_versions_days)
    payload = {
        "dry_run": wish.dry_run,
        "keep_versions_days": wish.keep_versions_days,
        "unknown_folders": bool(request.unknown_folders),
    }
    queued = ctx.store.create_transaction(COLLECT_GARBAGE, None, payload, {}, requested_by=ctx.principal.name)
    return models.CollectGarbageResponse(transaction_id=queued.id)


@job(COLLECT_GARBAGE)
def collect_everywhere(ctx: Context, running: Job) -> Mapping[str, str]:
    """Go through all tables, then the folders; done twice, what is left is removed. Raises JobCanceledError."""
    wish = CollectOptions(running.payload["dry_run"], running.payload["keep_versions_days"])
    tables = files = size = left_alone = 0
    for _, table in all_tables(ctx):
        found = try_collect(ctx, table, wish)
        tables, files, size = tables + 1, files + len(found.garbage), size + found.size
        left_alone += bool(found.notes)
        running.progress(tables=tables, files=files, bytes=size)
    folders = unknown_folders(ctx)
    if running.payload["unknown_folders"] and not wish.dry_run:
        folders = remove_folders(ctx, folders)
    numbers = {
        "tables": tables,
        "files": files,
        "bytes": size,
        "tables_with_notes": left_alone,
        "unknown_folders": len(folders),
        "unknown_folders_bytes": sum(folder.size for folder in folders),
    }
    return {name: str(number) for name, number in numbers.items()}


def all_tables(ctx: Context) -> Iterator[tuple[Id, TableRecord]]:
    """Every table and its name; one that is dropped or renamed meanwhile is left out."""
    after: tuple[int, str] | None = None
    while page := ctx.store.list_all_tables(after, _PAGE):
        for entry in page:
            path = (*entry.namespace, entry.name)
            try:
                record = ctx.store.describe_table(path)
            except LanceNamespaceError:
                continue
            yield path, record
        after = (page[-1].namespace_id, page[-1].name)


def unknown_folders(ctx: Context) -> list[UnknownFolder]:
    """Folders right under the root that look like tables', that nobody knows, and where nothing is new."""
    root = ctx.storage.root
    cutoff = ctx.clock() - int(ctx.settings.gc_safety_days * DAY_MS)
    with lance_errors():
        files = ctx.storage.files(root)
        names = [name for name in files.list_folders(root) if name.endswith(TABLE_SUFFIX)]
        known = {one[len(root) + 1 :].partition("/")[0] for one in ctx.store.all_locations()}
        found = []
        for name in sorted(names):
            location = f"{root}/{name}"
            if name in known or ctx.store.clone_locations(location):
                continue
            inside = list(files.walk(location))
            if all(file.modified < cutoff for file in inside):
                found.append(UnknownFolder(location, sum(file.size for file in inside)))
        return found


def remove_folders(ctx: Context, folders: list[UnknownFolder]) -> list[UnknownFolder]:
    """Delete folders, by the way of all folders to delete: whatever happens, the next sweep finishes it.

    Those that somebody has come to know since they were looked for stay; the others are returned.
    """
    return [one for one in folders if ctx.store.schedule_orphan_deletion(one.location, ctx.clock(), COLLECT_GARBAGE)]
