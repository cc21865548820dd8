"""Garbage of a table: files that no version, tag or branch needs, and versions that nobody wants any more.

A file is garbage if no version refers to it and it is older than every write that may still bring it in: than
`gc_safety_days`, and than each unfinished transaction and upload of the table. Staged manifests go first; only then
is looked up what versions need, so a commit that comes meanwhile either finds its manifest gone, or is seen.
"""

from __future__ import annotations

import logging
import random
import time
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import ConcurrentModificationError, InvalidInputError, LanceNamespaceError

from tiltyard.access import Privilege
from tiltyard.access.needs import on_table
from tiltyard.config import DAY_MS
from tiltyard.model.ids import MAIN_BRANCH
from tiltyard.model.jobs import Job, job
from tiltyard.model.operations import operation
from tiltyard.model.spec import models
from tiltyard.storage.errors import lance_errors
from tiltyard.storage.manifest_format import is_detached, versions_folder
from tiltyard.store.access.grants import TABLE
from tiltyard.tables.commits.finalizing import finalize_pending, pending_versions, stat_final_manifest
from tiltyard.tables.maintenance.references import (
    Kind,
    TableFile,
    kind_of,
    lost_manifests,
    old_versions,
    open_lines,
    references,
    table_files,
    tracked,
    unit_of,
)
from tiltyard.tables.opening import find_table
from tiltyard.tables.versions.deleted_versions import expired_versions
from tiltyard.tables.versions.records import branch_key, delete_records_without_manifest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import lance

    from tiltyard.context import Context
    from tiltyard.store import TableRecord

log = logging.getLogger("tiltyard.gc")

COLLECT_TABLE_GARBAGE = "collect_table_garbage"
OLD_VERSION = "old version"
LANCE_SAFETY_MS = 7 * DAY_MS
"""The age from which Lance, when it cleans up versions, takes a file that none refers to for abandoned."""

CLOCKS_MS = 10 * 60 * 1000
"""By how much the clocks of storage and catalog may differ; object stores date files by the second, besides."""

_UNNEEDED = (Kind.DATA, Kind.DELETION, Kind.INDEX, Kind.TRANSACTION)
"""What goes where no version needs it."""
_MOST_SHOWN = 1000
_SETTLING_SECONDS, _LONGEST_PAUSE = 10.0, 0.05
_DELETE_AT_ONCE = 500
_MOST_EXPLAINED = 10_000_000


@dataclass(frozen=True, slots=True)
class Garbage:
    """A file to delete."""

    kind: str
    path: str
    size: int


@dataclass(slots=True)
class Collection:
    """What was found of one table, or removed; `notes` say what was left alone, and why."""

    garbage: list[Garbage] = field(default_factory=list)
    versions: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def size(self) -> int:
        """All bytes together."""
        return sum(file.size for file in self.garbage)

    def lacks(self, why: str) -> bool:
        """Whether nothing more is to be removed, and note why."""
        if why:
            self.notes.append(f"{why} Nothing {'else ' if self.garbage else ''}was removed.")
        return bool(why)


@dataclass(frozen=True, slots=True)
class Wish:
    """What to collect: `keep_versions_days` also removes the versions of main that are older."""

    dry_run: bool = False
    keep_versions_days: float | None = None


@operation(needs=on_table(Privilege.ALTER))
def collect_table_garbage(
    ctx: Context, request: models.CollectTableGarbageRequest
) -> models.CollectTableGarbageResponse:
    """List a table's garbage with `dry_run`; without, remove it in a transaction, whose properties tell how much.

    Garbage is what no version, tag or branch needs, and what no write can still bring in; with `keep_versions_days`,
    also older versions of main. Raises NamespaceNotFoundError, TableNotFoundError, InvalidInputError.
    """
    table = find_table(ctx, request.id)
    wish = checked_wish(bool(request.dry_run), request.keep_versions_days)
    if not wish.dry_run:
        payload = {"keep_versions_days": wish.keep_versions_days}
        queued = ctx.store.create_transaction(
            COLLECT_TABLE_GARBAGE, table.id, payload, {}, requested_by=ctx.principal.name
        )
        return models.CollectTableGarbageResponse(transaction_id=queued.id)
    found = collect(ctx, table, wish)
    return models.CollectTableGarbageResponse(
        files=[models.GarbageFile(kind=one.kind, path=one.path, size=one.size) for one in found.garbage[:_MOST_SHOWN]],
        num_files=len(found.garbage),
        num_bytes=found.size,
        num_versions=found.versions,
        notes=found.notes or None,
    )


def checked_wish(dry_run: bool, keep_versions_days: float | None) -> Wish:
    """What a request asks for. Raises InvalidInputError."""
    if keep_versions_days is not None and not 0 <= keep_versions_days <= 36500:
        raise InvalidInputError(f"keep_versions_days is {keep_versions_days}: 0 to 36500.")
    return Wish(dry_run, keep_versions_days)


@job(COLLECT_TABLE_GARBAGE)
def collect_queued(ctx: Context, running: Job) -> Mapping[str, str]:
    """Remove a table's garbage; done twice, what is left is removed. Raises TableNotFoundError, JobCanceledError."""
    assert running.table_id is not None
    table = ctx.store.table_by_id(running.table_id)
    found = collect(ctx, table, Wish(**running.payload), lambda removed: running.progress(files_removed=removed))
    notes = {"notes": " ".join(found.notes)} if found.notes else {}
    numbers = {"files_removed": len(found.garbage), "bytes_removed": found.size, "versions_removed": found.versions}
    return {name: str(number) for name, number in numbers.items()} | notes


def collect(
    ctx: Context, table: TableRecord, wish: Wish, progress: Callable[[int], None] = lambda removed: None
) -> Collection:
    """Find a table's garbage, and remove it unless it is a dry run; `progress` hears how many files are removed.

    Raises what opening a table raises, ConcurrentModificationError (commits that cannot be finished are in the way:
    repair the table).
    """
    if not wish.dry_run:
        _settle(ctx, table)
    found = Collection()
    lines = open_lines(ctx, table.location)
    if found.lacks(_missing(ctx, table, lines)):
        return found
    now = ctx.clock()
    cutoff = cutoff_of(ctx, table, now)
    if wish.keep_versions_days is not None and lines:
        _clean_versions(ctx, table, lines[MAIN_BRANCH], wish, now, cutoff, found)
    _remove_deleted_versions(ctx, table, lines, wish, now, found)
    files = table_files(ctx, table.location, lines)
    old = [file for file in files if file.found.modified < cutoff and file.kind is not Kind.MANIFEST]
    staged = stale_staged(ctx, table, old)
    _remove(ctx, table, staged, wish, found, progress)
    if not wish.dry_run:
        _settle(ctx, table)
        lines = open_lines(ctx, table.location)
    units = references(ctx, table.location, lines)
    lost = lost_manifests(files, units, lines) if not found.versions else []
    if found.lacks(_missing(ctx, table, lines)) or found.lacks(_unknown(lost)):
        return found
    told = {file.path for file in found.garbage}
    unneeded = [
        file for file in old if file.kind in _UNNEEDED and file.unit not in units and file.found.path not in told
    ]
    _remove(ctx, table, unneeded, wish, found, progress)
    return found


def _missing(ctx: Context, table: TableRecord, lines: Mapping[str, lance.LanceDataset]) -> str:
    """Which version is not in storage though it should be; "" if all is well.

    What it needs would look like garbage: somebody may be about to put it back, as in the middle of a restore.
    """
    if not lines and not table.declared:
        return "The table's versions are not there: put them back, or drop the table."
    for name in lines:
        latest = ctx.store.latest_version(table.id, branch_key(name))
        if latest and latest.finalized and ctx.storage.stat(table.location, latest.manifest_path) is None:
            where = "" if name == MAIN_BRANCH else f" of the branch {name}"
            return f"Version {latest.version}{where} is recorded, and its manifest is gone: repair the table."
    return ""


def _unknown(lost: Sequence[str]) -> str:
    """What to say of manifests that Lance did not speak of."""
    if not lost:
        return ""
    if is_detached(lost[0]):
        return f"{lost[0]} is a detached version, and nobody but its maker knows what it needs: delete it first."
    return f"Lance does not know {lost[0]}: repair the table."


def cutoff_of(ctx: Context, table: TableRecord, now: int) -> int:
    """The time before which a file must have been written to be garbage."""
    cutoff = now - int(ctx.settings.gc_safety_days * DAY_MS)
    oldest = ctx.store.oldest_unfinished_work(table.id, COLLECT_TABLE_GARBAGE)
    began = [] if oldest is None else [oldest]
    if unbound := ctx.store.unfinished_jobs_by_table_name(COLLECT_TABLE_GARBAGE):
        path = ctx.store.object_path(TABLE, table.id)
        began += [since for since, names in unbound if names in ((), path)]
    return min([cutoff, *(since - CLOCKS_MS for since in began)])


def stale_staged(ctx: Context, table: TableRecord, old: Sequence[TableFile]) -> list[TableFile]:
    """Staged manifests that no record waits for, and what unfinished writes left.

    The files were found before: one that is recorded meanwhile is seen here to be waited for.
    """
    pending = {record.staged_path for record in pending_versions(ctx, table.id)}
    return [
        file
        for file in old
        if file.kind in (Kind.STAGED, Kind.UNFINISHED) and f"{table.location}/{file.found.path}" not in pending
    ]


def _settle(ctx: Context, table: TableRecord) -> None:
    """Finish recorded commits: their files are no garbage. Raises ConcurrentModificationError if that fails.

    One that another process makes just now is tried again a moment later.
    """
    deadline = time.monotonic() + _SETTLING_SECONDS
    while True:
        while finalize_pending(ctx, table.id):
            pass
        ctx.services.finalized_log.flush()
        if not (pending := ctx.store.pending_versions(table.id)):
            return
        if time.monotonic() > deadline:
            if all(stat_final_manifest(ctx, table, record) is not None for record in pending):
                raise ConcurrentModificationError("This table is committed to without a pause: try again later.")
            raise ConcurrentModificationError("A recorded version has not got its manifest: repair the table first.")
        time.sleep(random.uniform(0, _LONGEST_PAUSE))  # noqa: S311  # out of step with whoever commits


def _remove(
    ctx: Context,
    table: TableRecord,
    files: list[TableFile],
    wish: Wish,
    found: Collection,
    progress: Callable[[int], None],
) -> None:
    for start in range(0, len(files), _DELETE_AT_ONCE):
        part = files[start : start + _DELETE_AT_ONCE]
        if not wish.dry_run:
            progress(len(found.garbage))
            with lance_errors():
                ctx.storage.files(table.location).delete(f"{table.location}/{file.found.path}" for file in part)
        found.garbage += [Garbage(file.kind, file.found.path, file.found.size) for file in part]


def _clean_versions(
    ctx: Context,
    table: TableRecord,
    main: lance.LanceDataset,
    wish: Wish,
    now: int,
    cutoff: int,
    found: Collection,
) -> None:
    """Remove old versions of main, by Lance's own means; those with tags, and those that branches need, stay."""
    if why := _why_kept(ctx, table, now, cutoff):
        found.notes.append(f"Old versions are kept: {why}")
        return
    assert wish.keep_versions_days is not None
    age: dict[str, Any] = {
        "older_than": timedelta(days=wish.keep_versions_days),
        "error_if_tagged_old_versions": False,
    }
    with lance_errors(main):
        plan = main.explain_cleanup_old_versions(**age, include_files=True, max_files=_MOST_EXPLAINED)
        if not plan.stats.old_versions:
            return
        needed = tracked(table.location, {MAIN_BRANCH: main})  # Lance takes abandoned files along
        if not wish.dry_run:
            with ctx.storage.locks.hold(old_versions(table.location), ctx.settings.conflict_timeout):
                if why := _why_kept(ctx, table, now, cutoff):  # a clone that was made meanwhile
                    found.notes.append(f"Old versions are kept: {why}")
                    return
                main.cleanup_old_versions(**age)
    found.versions = plan.stats.old_versions
    plain = table.location.partition("://")[2].partition("/")[2] if "://" in table.location else table.location[1:]
    for file in plan.candidate_files:
        path = file.path.removeprefix(f"{plain}/")
        kind = OLD_VERSION if unit_of(path, ()) in needed else kind_of(path)
        found.garbage.append(Garbage(kind, path, file.size_bytes))
    if not wish.dry_run:
        ctx.storage.datasets.evict(table.location)
        delete_records_without_manifest(ctx, table)


def _remove_deleted_versions(
    ctx: Context, table: TableRecord, lines: Mapping[str, lance.LanceDataset], wish: Wish, now: int, found: Collection
) -> None:
    """Remove the manifests of versions that were deleted a retention time ago; what only they need is garbage then."""
    if not expired_versions(ctx, table, lines, now):
        return
    with ctx.storage.locks.hold(old_versions(table.location), ctx.settings.conflict_timeout):
        for branch, versions in expired_versions(ctx, table, lines, now).items():
            paths = [version.path(branch) for version in versions]
            sizes = [stat.size if (stat := ctx.storage.stat(table.location, path)) else 0 for path in paths]
            if not wish.dry_run:
                ctx.storage.delete_files(f"{table.location}/{path}" for path in paths)
                ctx.store.prune_deleted_versions(table.id, branch, versions[-1].version + 1)
                ctx.storage.datasets.evict(table.location)
            found.versions += len(versions)
            found.garbage += [Garbage(OLD_VERSION, *one) for one in zip(paths, sizes, strict=True)]


def _why_kept(ctx: Context, table: TableRecord, now: int, cutoff: int) -> str:
    """Why old versions of a table cannot be cleaned up; "" if they can."""
    if ctx.store.clone_locations(table.location):
        return "shallow clones use their files."
    with lance_errors():
        names = ctx.storage.files(table.location).list_names(f"{table.location}/{versions_folder('')}")
    if any(map(is_detached, names)):
        return "there are detached versions, whose files Lance would take for abandoned."
    days = LANCE_SAFETY_MS // DAY_MS
    if ctx.settings.gc_safety_days > days:
        return f"with them Lance takes whatever is abandoned and {days} days old, and gc_safety_days is more."
    if cutoff < now - LANCE_SAFETY_MS:  # Lance takes abandoned files along, and would take these for some
        return "work that is younger than some files is not finished."
    return ""


def try_collect(ctx: Context, table: TableRecord, wish: Wish) -> Collection:
    """What `collect` does, with a note instead of an error: one table must not stop the others."""
    try:
        return collect(ctx, table, wish)
    except LanceNamespaceError as error:
        log.warning("cannot collect the garbage of %s: %s", table.location, error)
        return Collection(notes=[f"Left alone: {error}"])
