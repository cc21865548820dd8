"""Collect the garbage of a table: files that no version, tag or branch refers to, and expired versions.

A file is garbage if no version refers to it and it is older than every write that may still refer to it: than
`gc_safety_days`, and than each unfinished transaction and upload of the table. Staged manifests are removed first; only
then are the references of versions read, so a commit made meanwhile either finds its manifest gone, or is seen.
"""

from __future__ import annotations

import logging
import random
import time
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import ConcurrentModificationError, InvalidInputError, LanceNamespaceError

from tiltyard.access.needs import on_table
from tiltyard.config import DAY_MS
from tiltyard.model.branches import MAIN
from tiltyard.model.jobs import Job, job
from tiltyard.model.modes import ProtectionKind
from tiltyard.model.operations import operation
from tiltyard.model.principals import Privilege
from tiltyard.model.spec import models
from tiltyard.storage.errors import lance_errors
from tiltyard.storage.manifests.manifest_format import is_detached, versions_folder
from tiltyard.store.access.grants import TABLE
from tiltyard.tables.commits.finalizing import finalize_pending, pending_versions, stat_final_manifest
from tiltyard.tables.opening import find_table
from tiltyard.tables.upkeep.references import (
    FileKind,
    TableFile,
    kind_of,
    open_branches,
    referenced_units,
    table_files,
    tracked_units,
    unit_of,
    unknown_manifests,
)
from tiltyard.tables.versions.deleted_versions import expired_versions
from tiltyard.tables.versions.records import delete_records_without_manifest
from tiltyard.tables.versions.removal_turns import hold_removal_turn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import lance

    from tiltyard.context import Context
    from tiltyard.model.branches import Branch
    from tiltyard.store import TableRecord

log = logging.getLogger("tiltyard.gc")

COLLECT_TABLE_GARBAGE = "collect_table_garbage"
OLD_VERSION = "old version"
LANCE_SAFETY_MS = 7 * DAY_MS
"""The age from which Lance's own cleanup of versions removes a file that none refers to."""

CLOCK_SKEW_MS = 10 * 60 * 1000
"""By how much the clocks of storage and catalog may differ; object stores date files by the second, besides."""

COLLECTED_KINDS = (FileKind.DATA, FileKind.DELETION, FileKind.INDEX, FileKind.TRANSACTION)
"""The kinds of files that are garbage where no version refers to them."""
_MAX_LISTED = 1000
_FINALIZE_SECONDS, _MAX_PAUSE_SECONDS = 10.0, 0.05
_DELETE_BATCH = 500
_MAX_EXPLAINED = 10_000_000


@dataclass(frozen=True, slots=True)
class Garbage:
    """A file to delete; `size` in bytes."""

    kind: str
    path: str
    size: int


@dataclass(slots=True)
class Collection:
    """The garbage of one table that was found, or removed; `notes` say what was left, and why."""

    garbage: list[Garbage] = field(default_factory=list)
    versions: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Return the bytes of all files together."""
        return sum(file.size for file in self.garbage)

    def must_stop(self, reason: str) -> bool:
        """Return whether there is a reason to remove nothing more, and note it."""
        if reason:
            self.notes.append(f"{reason} Nothing {'else ' if self.garbage else ''}was removed.")
        return bool(reason)


@dataclass(frozen=True, slots=True)
class CollectOptions:
    """What to collect: `keep_versions_days` also removes the versions of main that are older."""

    dry_run: bool = False
    keep_versions_days: float | None = None


@operation(needs=on_table(Privilege.ALTER))
def collect_table_garbage(
    ctx: Context, request: models.CollectTableGarbageRequest
) -> models.CollectTableGarbageResponse:
    """List a table's garbage with `dry_run`; without, remove it in a transaction, whose properties tell how much.

    Garbage is what no version, tag or branch refers to, and no unfinished write may still refer to; with
    `keep_versions_days`, also older versions of main. Raises NamespaceNotFoundError, TableNotFoundError,
    InvalidInputError.
    """
    table = find_table(ctx, request.id)
    options = collect_options(bool(request.dry_run), request.keep_versions_days)
    if not options.dry_run:
        payload = {"keep_versions_days": options.keep_versions_days}
        queued = ctx.store.create_transaction(
            COLLECT_TABLE_GARBAGE, table.id, payload, {}, requested_by=ctx.principal.name
        )
        return models.CollectTableGarbageResponse(transaction_id=queued.id)
    collection = collect(ctx, table, options)
    listed = collection.garbage[:_MAX_LISTED]
    return models.CollectTableGarbageResponse(
        files=[models.GarbageFile(kind=file.kind, path=file.path, size=file.size) for file in listed],
        num_files=len(collection.garbage),
        num_bytes=collection.size,
        num_versions=collection.versions,
        notes=collection.notes or None,
    )


def collect_options(dry_run: bool, keep_versions_days: float | None) -> CollectOptions:
    """Return the options of a request. Raises InvalidInputError."""
    if keep_versions_days is not None and not 0 <= keep_versions_days <= 36500:
        raise InvalidInputError(f"keep_versions_days is {keep_versions_days}: 0 to 36500.")
    return CollectOptions(dry_run, keep_versions_days)


@job(COLLECT_TABLE_GARBAGE)
def collect_queued(ctx: Context, running: Job) -> Mapping[str, str]:
    """Remove a table's garbage. Idempotent. Raises TableNotFoundError, JobCanceledError."""
    assert running.table_id is not None
    table = ctx.store.table_by_id(running.table_id)
    options = CollectOptions(**running.payload)
    collection = collect(ctx, table, options, lambda removed: running.progress(files_removed=removed))
    notes = {"notes": " ".join(collection.notes)} if collection.notes else {}
    numbers = {
        "files_removed": len(collection.garbage),
        "bytes_removed": collection.size,
        "versions_removed": collection.versions,
    }
    return {name: str(number) for name, number in numbers.items()} | notes


def collect(
    ctx: Context, table: TableRecord, options: CollectOptions, progress: Callable[[int], None] = lambda removed: None
) -> Collection:
    """Find a table's garbage, and remove it unless it is a dry run; `progress` gets the number of files removed so far.

    Raises what opening a table raises, ConcurrentModificationError (versions that cannot be finalized are in the way:
    repair the table).
    """
    collection = Collection()
    if collection.must_stop(hold_reason(ctx, table)):
        return collection
    if not options.dry_run:
        finalize_all(ctx, table)
    branches = open_branches(ctx, table.location)
    if collection.must_stop(_missing_version(ctx, table, branches)):
        return collection
    now = ctx.clock()
    cutoff = cutoff_of(ctx, table, now)
    if options.keep_versions_days is not None and branches:
        _remove_old_versions(ctx, table, branches[MAIN], options, now, cutoff, collection)
    _remove_deleted_versions(ctx, table, branches, options, now, collection)
    files = table_files(ctx, table.location, branches)
    old = [file for file in files if file.entry.modified < cutoff and file.kind is not FileKind.MANIFEST]
    staged = stale_staged(ctx, table, old)
    _remove_files(ctx, table, staged, options, collection, progress)
    if not options.dry_run:
        finalize_all(ctx, table)
        branches = open_branches(ctx, table.location)
    units = referenced_units(ctx, table.location, branches, tracked_units(table.location, branches))
    unknown = unknown_manifests(files, units, branches) if not collection.versions else []
    if collection.must_stop(_missing_version(ctx, table, branches)) or collection.must_stop(_unknown_reason(unknown)):
        return collection
    collected = {file.path for file in collection.garbage}
    unreferenced = [
        file
        for file in old
        if file.kind in COLLECTED_KINDS and file.unit not in units and file.entry.path not in collected
    ]
    _remove_files(ctx, table, unreferenced, options, collection, progress)
    return collection


def _missing_version(ctx: Context, table: TableRecord, branches: Mapping[Branch, lance.LanceDataset]) -> str:
    """Return which version is missing from storage though it should be there; "" if none is.

    Files that it refers to would look like garbage, and it may come back, as in the middle of a restore.
    """
    if not branches and not table.declared:
        return "The table's versions are missing: restore them, or drop the table."
    for branch in branches:
        latest = ctx.store.latest_version(table.id, branch.key)
        if latest and latest.finalized and ctx.storage.stat(table.location, latest.manifest_path) is None:
            of_branch = "" if branch.is_main else f" of the branch {branch.name}"
            return f"Version {latest.version}{of_branch} is recorded, and its manifest is gone: repair the table."
    return ""


def hold_reason(ctx: Context, table: TableRecord) -> str:
    """Return why nothing of a table may be removed; "" if it is under no legal hold."""
    held = ctx.store.find_table_protection(table.id, ProtectionKind.HOLD)
    return "" if held is None else f"It is under a legal hold, set by {held.set_by}."


def _unknown_reason(unknown: Sequence[str]) -> str:
    """Return the reason to stop for manifests that Lance has not reported; "" if there are none."""
    if not unknown:
        return ""
    if is_detached(unknown[0]):
        return f"{unknown[0]} is a detached version, and only its creator knows which files it needs: delete it first."
    return f"Lance does not know {unknown[0]}: repair the table."


def cutoff_of(ctx: Context, table: TableRecord, now: int) -> int:
    """Return the time before which a file must have been written to be garbage, in milliseconds since 1970."""
    cutoff = now - int(ctx.settings.gc_safety_days * DAY_MS)
    oldest = ctx.store.oldest_unfinished_work(table.id, COLLECT_TABLE_GARBAGE)
    begin_times = [] if oldest is None else [oldest]
    if unbound := ctx.store.unfinished_jobs_by_table_name(COLLECT_TABLE_GARBAGE):
        path = ctx.store.object_path(TABLE, table.id)
        begin_times += [since for since, names in unbound if names in ((), path)]
    return min([cutoff, *(since - CLOCK_SKEW_MS for since in begin_times)])


def stale_staged(ctx: Context, table: TableRecord, old: Sequence[TableFile]) -> list[TableFile]:
    """Return staged manifests that belong to no pending version, and files of unfinished writes, among old files.

    Pending versions are read after the files were listed: one that is recorded meanwhile keeps its manifest.
    """
    pending = {record.staged_path for record in pending_versions(ctx, table.id)}
    return [
        file
        for file in old
        if file.kind in (FileKind.STAGED, FileKind.UNFINISHED) and f"{table.location}/{file.entry.path}" not in pending
    ]


def finalize_all(ctx: Context, table: TableRecord) -> None:
    """Finalize pending versions: their files are no garbage. Raises ConcurrentModificationError if that fails.

    For versions that other processes commit just now, it is tried again for _FINALIZE_SECONDS.
    """
    deadline = time.monotonic() + _FINALIZE_SECONDS
    while True:
        while finalize_pending(ctx, table.id):
            pass
        ctx.services.commit_log.flush()
        if not (pending := ctx.store.pending_versions(table.id)):
            return
        if time.monotonic() > deadline:
            if all(stat_final_manifest(ctx, table, record) is not None for record in pending):
                raise ConcurrentModificationError("This table gets commits without a pause: try again later.")
            raise ConcurrentModificationError("A recorded version lacks its manifest: repair the table first.")
        time.sleep(random.uniform(0, _MAX_PAUSE_SECONDS))  # noqa: S311  # out of step with other committers


def _remove_files(
    ctx: Context,
    table: TableRecord,
    files: list[TableFile],
    options: CollectOptions,
    collection: Collection,
    progress: Callable[[int], None],
) -> None:
    for start in range(0, len(files), _DELETE_BATCH):
        if collection.must_stop(hold_reason(ctx, table)):  # set meanwhile
            return
        batch = files[start : start + _DELETE_BATCH]
        if not options.dry_run:
            progress(len(collection.garbage))
            with lance_errors():
                ctx.storage.files(table.location).delete(f"{table.location}/{file.entry.path}" for file in batch)
        collection.garbage += [Garbage(file.kind, file.entry.path, file.entry.size) for file in batch]


def _remove_old_versions(
    ctx: Context,
    table: TableRecord,
    main: lance.LanceDataset,
    options: CollectOptions,
    now: int,
    cutoff: int,
    collection: Collection,
) -> None:
    """Remove old versions of main with Lance's cleanup; those with tags, and those that branches refer to, stay."""
    if reason := _reason_to_keep(ctx, table, now, cutoff):
        collection.notes.append(f"Old versions are kept: {reason}")
        return
    assert options.keep_versions_days is not None
    arguments: dict[str, Any] = {
        "older_than": timedelta(days=options.keep_versions_days),
        "error_if_tagged_old_versions": False,
    }
    with lance_errors(main):
        plan = main.explain_cleanup_old_versions(**arguments, include_files=True, max_files=_MAX_EXPLAINED)
        if not plan.stats.old_versions:
            return
        referenced = tracked_units(table.location, {MAIN: main})  # Lance removes abandoned files, too
        if not options.dry_run:
            with hold_removal_turn(ctx, table.location, removes=True):
                if reason := _reason_to_keep(ctx, table, now, cutoff):  # a clone that was created meanwhile
                    collection.notes.append(f"Old versions are kept: {reason}")
                    return
                main.cleanup_old_versions(**arguments)
    collection.versions = plan.stats.old_versions
    root = table.location.partition("://")[2].partition("/")[2] if "://" in table.location else table.location[1:]
    for file in plan.candidate_files:
        path = file.path.removeprefix(f"{root}/")
        kind = OLD_VERSION if unit_of(path, ()) in referenced else kind_of(path)
        collection.garbage.append(Garbage(kind, path, file.size_bytes))
    if not options.dry_run:
        ctx.storage.datasets.evict(table.location)
        delete_records_without_manifest(ctx, table)


def _remove_deleted_versions(
    ctx: Context,
    table: TableRecord,
    branches: Mapping[Branch, lance.LanceDataset],
    options: CollectOptions,
    now: int,
    collection: Collection,
) -> None:
    """Remove the manifests of versions deleted a retention time ago; files that only they refer to are garbage then."""
    if not expired_versions(ctx, table, branches, now):
        return
    with hold_removal_turn(ctx, table.location, removes=True):
        if collection.must_stop(hold_reason(ctx, table)):
            return
        for branch, versions in expired_versions(ctx, table, branches, now).items():
            paths = [version.path(branch) for version in versions]
            sizes = [stat.size if (stat := ctx.storage.stat(table.location, path)) else 0 for path in paths]
            if not options.dry_run:
                ctx.storage.delete_files(f"{table.location}/{path}" for path in paths)
                ctx.store.prune_deleted_versions(table.id, branch.key, versions[-1].version + 1)
                ctx.storage.datasets.evict(table.location)
            collection.versions += len(versions)
            collection.garbage += [Garbage(OLD_VERSION, path, size) for path, size in zip(paths, sizes, strict=True)]


def _reason_to_keep(ctx: Context, table: TableRecord, now: int, cutoff: int) -> str:
    """Return why old versions of a table cannot be cleaned up; "" if they can."""
    if reason := hold_reason(ctx, table):
        return reason
    if ctx.store.clone_locations(table.location):
        return "shallow clones use their files."
    with lance_errors():
        names = ctx.storage.files(table.location).list_names(f"{table.location}/{versions_folder(MAIN)}")
    if any(map(is_detached, names)):
        return "there are detached versions, whose files Lance would remove as orphans."
    days = LANCE_SAFETY_MS // DAY_MS
    if ctx.settings.gc_safety_days > days:
        return f"with them Lance removes all orphans of {days} days, and gc_safety_days is more."
    if cutoff < now - LANCE_SAFETY_MS:  # Lance removes abandoned files, too, and these would count as such
        return "an unfinished transaction or upload is younger than some files."
    return ""


def try_collect(ctx: Context, table: TableRecord, options: CollectOptions) -> Collection:
    """Collect a table's garbage; return a note instead of an error, so that other tables are collected."""
    try:
        return collect(ctx, table, options)
    except LanceNamespaceError as error:
        log.warning("cannot collect the garbage of %s: %s", table.location, error)
        return Collection(notes=[f"Skipped: {error}"])
