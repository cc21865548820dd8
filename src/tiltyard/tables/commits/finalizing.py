"""Finalize recorded versions: give their staged manifests their final names.

A request finalizes the versions that it records. Where it could not (a crash, a storage outage), the next reader of the
table does, or the worker's sweep. Finalizing is idempotent: any process may do it, at any time.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias

import msgspec
from lance_namespace.errors import (
    ConcurrentModificationError,
    InternalError,
    LanceNamespaceError,
    ServiceUnavailableError,
    TableNotFoundError,
    TableVersionNotFoundError,
)

from tiltyard.model.branches import Branch
from tiltyard.runtime.failpoints import Point, reach
from tiltyard.runtime.pool import run_together
from tiltyard.storage.errors import lance_errors
from tiltyard.storage.files import FileStat
from tiltyard.storage.locations import is_local
from tiltyard.storage.manifests.manifest_format import branch_file
from tiltyard.storage.manifests.manifest_references import referenced_files
from tiltyard.store import FinalManifest, NewVersion, TableRecord, UnitOfWork, VersionRecord
from tiltyard.tables.versions.records import has_no_manifest, stored_versions

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tiltyard.context import Context

log = logging.getLogger("tiltyard.versions")

Commit: TypeAlias = tuple[TableRecord, VersionRecord]
Outcome: TypeAlias = VersionRecord | Exception

PENDING_PAGE = 100
"""Pending versions that are read from the catalog at a time."""
RECENT_MS = 2000
"""How long after a version is recorded its own process has to mark it as final, before others finalize it."""
MAX_THREADS = 32
"""Tables whose manifests are checked or finalized at the same time on an object store: nearly all of it is waiting."""


class _Tag(msgspec.Struct):
    """What the file of a tag says."""

    version: int
    branch: str | None = None


def finalize(ctx: Context, table: TableRecord, record: VersionRecord, new: NewVersion | None = None) -> VersionRecord:
    """Give a recorded version's manifest its final name; idempotent. Return the record of the final version.

    `new` is the version as this request has validated it: the content of its staged manifest is durable.
    Raises ConcurrentModificationError if a commit that bypassed the server took the name meanwhile (the record is
    rolled back), TableVersionNotFoundError if the table or the branch was deleted since, ServiceUnavailableError if the
    manifest has to be finalized later.
    """
    [outcome] = finalize_each(ctx, [(table, record)], None if new is None else [new])
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def finalize_batch(
    ctx: Context, commits: Sequence[Commit], news: Sequence[NewVersion] | None = None
) -> list[VersionRecord]:
    """Finalize the versions of one transaction, which is committed already: no error means that it was refused.

    A version of a table or branch that was deleted since counts as committed. Raises ServiceUnavailableError (the
    remaining manifests are finalized later), InternalError (a commit that bypassed the server took the name of one:
    only the others are committed).
    """
    records = list[VersionRecord]()
    for outcome, (table, record) in zip(finalize_each(ctx, commits, news), commits, strict=True):
        if isinstance(outcome, ConcurrentModificationError):
            raise lost_version_error(table, record.version) from outcome
        if isinstance(outcome, Exception) and not isinstance(outcome, TableVersionNotFoundError):
            raise outcome
        records.append(record if isinstance(outcome, Exception) else outcome)
    return records


def lost_version_error(table: TableRecord, version: int) -> InternalError:
    """Return the error of a committed batch of which one version could not be finalized, ever."""
    return InternalError(
        f"The batch is committed, except for version {version} of {table.name}: "
        "a commit that bypassed the server took its number meanwhile."
    )


def finalize_each(ctx: Context, commits: Sequence[Commit], news: Sequence[NewVersion] | None = None) -> list[Outcome]:
    """Finalize versions independently; return the final record or the error of each, in their order.

    `news` are the versions as this request has validated them, in the same order.
    """
    pending = [index for index, (_, record) in enumerate(commits) if not record.finalized]
    outcomes: list[Outcome] = [record for _, record in commits]
    if not pending:
        return outcomes
    validated = [news[index] for index in pending] if news is not None else [None] * len(pending)
    stats = _move_all(ctx, [commits[index] for index in pending], validated)
    final, first_written = [], []
    for index, stat in zip(pending, stats, strict=True):
        table, record = commits[index]
        if isinstance(stat, Exception):
            outcomes[index] = stat
            continue
        outcomes[index] = record.as_finalized(stat.size, stat.e_tag)
        final.append(FinalManifest(record, stat.size, stat.e_tag))
        if table.declared:
            first_written.append(table.id)
    reach(Point.AFTER_FINALIZE)
    if first_written:  # a table's first version: from now on it is listed
        ctx.store.transact(lambda catalog: _mark_written(catalog, first_written))
    ctx.services.commit_log.add(final)
    return outcomes


def _mark_written(catalog: UnitOfWork, table_ids: Iterable[int]) -> None:
    """Mark declared tables as having data, even if they were deregistered in the same batch or dropped since."""
    for table_id in dict.fromkeys(table_ids):
        try:
            catalog.mark_written(table_id)
        except TableNotFoundError:
            catalog.mark_removed_written(table_id)


def _move_all(ctx: Context, commits: Sequence[Commit], news: Sequence[NewVersion | None]) -> list[FileStat | Exception]:
    """Give manifests their final names: those of one table one after the other, several tables at once."""
    reach(Point.AFTER_RECORD)

    def move(commit: Commit, new: NewVersion | None) -> FileStat | Exception:
        try:
            return _move(ctx, *commit, new)
        except Exception as error:  # noqa: BLE001  # each caller raises its own
            return _finalize_error(ctx, commit, error)

    if all(is_local(table.location) for table, _ in commits):  # a few microseconds each: threads would cost more
        return list(map(move, commits, news))
    indexes_by_table: dict[int, list[int]] = {}
    for index, (table, _) in enumerate(commits):
        indexes_by_table.setdefault(table.id, []).append(index)
    if len(indexes_by_table) < 2:
        return list(map(move, commits, news))

    def move_in_order(indexes: Iterable[int]) -> list[tuple[int, FileStat | Exception]]:
        return [(index, move(commits[index], news[index])) for index in indexes]

    moved = run_together(move_in_order, indexes_by_table.values(), MAX_THREADS)
    stats = dict(pair for pairs in moved for pair in pairs)
    return [stats[index] for index in range(len(commits))]


def _finalize_error(ctx: Context, commit: Commit, error: Exception) -> Exception:
    """Return the error to raise for a version that is recorded and could not be finalized: the commit itself stands."""
    table, record = commit
    if not isinstance(error, LanceNamespaceError) or isinstance(
        error, ConcurrentModificationError | InternalError | ServiceUnavailableError
    ):
        return error
    version = f"Version {record.version} of {table.name}"
    try:
        ctx.store.describe_version(record.table_id, record.version, record.branch)
    except TableVersionNotFoundError:
        return TableVersionNotFoundError(f"{version} is gone: its table or its branch was deleted meanwhile.")
    return ServiceUnavailableError(f"{version} is committed, and its manifest is not in its place yet: {error}")


def _move(ctx: Context, table: TableRecord, record: VersionRecord, new: NewVersion | None) -> FileStat:
    """Give one manifest its final name; validate its paths first, unless this request has (`new`).

    Where a loss of power took a manifest's content, it is written anew from the catalog, which stores small ones.
    """
    location, storage = table.location, ctx.storage
    if new is not None:
        final = f"{location}/{record.manifest_path}"
        stat = (
            FileStat(new.manifest_size, new.e_tag)
            if new.finalized_by_rename and new.manifest_size is not None
            else None
        )
        published = storage.manifests.publish_checked(location, record.staged_path, final, stat, new.content)
        if published is not None:
            return published
    content = ctx.store.stored_manifest(record)
    try:
        if content is None:
            return storage.manifests.finalize(location, record.staged_path, record.manifest_path)
        return storage.manifests.finalize_content(
            location, record.staged_path, record.manifest_path, content, record.version
        )
    except ConcurrentModificationError:
        ctx.store.roll_back_version(record)
        storage.datasets.forget(location, Branch(record.branch))
        raise


def stat_final_manifest(ctx: Context, table: TableRecord, record: VersionRecord) -> FileStat | None:
    """Return the stat of a manifest that has been finalized, and whose record lacks only the mark.

    None if there is more to do: it has no final name yet, or, on a disk, its staged one too, is not whole, or its table
    is not marked as having data.
    """
    stat = _stat_moved(ctx, table, record)
    if stat is None:
        return None
    content = ctx.store.stored_manifest(record)
    is_whole = content is None or ctx.storage.manifests.has_content(table.location, record.manifest_path, content)
    return stat if is_whole else None


def _stat_moved(ctx: Context, table: TableRecord, record: VersionRecord) -> FileStat | None:
    """Return the stat of a manifest that has its final name; on a disk only if that is its only one."""
    if table.declared:
        return None
    if ctx.storage.stat(table.location, record.staged_path) is not None:
        final = f"{table.location}/{record.manifest_path}"
        if not ctx.storage.manifests.is_published(table.location, record.staged_path, final):
            return None
    return ctx.storage.stat(table.location, record.manifest_path)


def finalize_pending(ctx: Context, table_id: int, *, recent: bool = True) -> int:
    """Finalize a table's pending versions (recorded, not final), as after a crash; return how many there were.

    Without `recent`, those that were recorded less than RECENT_MS ago and have their final names are left to the
    process that is about to mark them: readers see them already.
    """
    return _finalize_pending(ctx, table_id, recent)[0]


def has_unfinished(ctx: Context, table: TableRecord) -> bool:
    """Return whether readers of a table have to finalize a pending version first, or its versions are too many to tell.

    Costs one read of the catalog, and one look at storage for each version that another process has just recorded.
    """
    records = ctx.store.pending_versions(table.id, PENDING_PAGE)
    finalized = ctx.services.commit_log
    return len(records) == PENDING_PAGE or any(
        not finalized.has(record) and not _is_recently_final(ctx, table, record) for record in records
    )


def sweep_pending(ctx: Context) -> int:
    """Finalize pending versions of up to MAX_TABLES tables; return how many there were.

    Tables come in turn, and one with a version that cannot be finalized is skipped with exponential backoff.
    """
    total, backoff = 0, ctx.services.finalizing_backoff
    for table_id in backoff.next_tables(ctx.store.tables_with_pending_versions, ctx.clock()):
        failure: Exception | None
        try:
            count, failure = _finalize_pending(ctx, table_id, recent=False)
        except Exception as error:  # noqa: BLE001  # one table must not stop the others: it is logged below
            count, failure = 0, error
        total += count
        if failure is None:
            backoff.reset(table_id)
            continue
        seconds = backoff.add_failure(table_id, ctx.clock()) // 1000
        is_expected = isinstance(failure, LanceNamespaceError)
        log.warning(
            "table %s has versions that could not be finalized, tried again in %s s: %s",
            table_id,
            seconds,
            failure,
            exc_info=None if is_expected else failure,
        )
    return total


def pending_versions(ctx: Context, table_id: int) -> Iterator[VersionRecord]:
    """Yield all versions of a table that are recorded but not final, oldest first."""
    last: VersionRecord | None = None
    while page := ctx.store.pending_versions(table_id, PENDING_PAGE, last):
        yield from page
        if len(page) < PENDING_PAGE:
            return
        last = page[-1]


def _finalize_pending(ctx: Context, table_id: int, recent: bool) -> tuple[int, LanceNamespaceError | None]:
    """Return how many versions were finalized, and why one was not."""
    count, failure, table = 0, None, None
    for record in pending_versions(ctx, table_id):
        if ctx.services.commit_log.has(record):
            continue
        try:
            table = table or ctx.store.table_by_id(table_id)
            if not recent and _is_recently_final(ctx, table, record):
                continue
            _finish(ctx, table, record)
            count += 1
        except TableNotFoundError:
            break  # dropped meanwhile, and its records with it
        except ConcurrentModificationError as error:  # its record was rolled back
            log.warning("version %s of table %s is lost: %s", record.version, table_id, error)
        except LanceNamespaceError as error:
            failure = error
    return count, failure


def _finish(ctx: Context, table: TableRecord, record: VersionRecord) -> None:
    """Bring one pending version to its end: mark it as final, delete its record, or finalize it."""
    if (stat := stat_final_manifest(ctx, table, record)) is not None:
        ctx.services.commit_log.add([FinalManifest(record, stat.size, stat.e_tag)])
    elif _is_cleaned_up(ctx, table, record):
        ctx.store.delete_version_record(record)
    else:
        finalize(ctx, table, record)


def _is_cleaned_up(ctx: Context, table: TableRecord, record: VersionRecord) -> bool:
    """Return whether a version was final, and was removed with its branch or by a cleanup before it was marked so.

    Writing its manifest anew would show a version that cannot be read. Where a loss of power took the manifest instead,
    the files that this server wrote for the version exist: they were durable first. Where later manifests are left, a
    cleanup is more likely, except of a version that has a tag: those are kept by any. The manifests in storage may
    follow another naming scheme than the record's.
    """
    if not has_no_manifest(ctx, table, record) or _has_tag(ctx, table, record):
        return False
    branch = Branch(record.branch)
    if not branch.is_main and ctx.storage.stat(table.location, branch_file(branch)) is None:
        return True
    if any(version >= record.version for version in stored_versions(ctx, table, branch)):
        return True
    content = ctx.store.stored_manifest(record)
    if content is None:
        return False
    folder = record.manifest_path.rpartition("_versions/")[0]
    return any(ctx.storage.stat(table.location, f"{folder}{path}") is None for path in referenced_files(content))


def _has_tag(ctx: Context, table: TableRecord, record: VersionRecord) -> bool:
    """Return whether a tag names a version; without Lance, which may be unable to open the table at this moment."""
    files, folder = ctx.storage.files(table.location), f"{table.location}/_refs/tags"
    ctx.storage.manifests.check_references(table.location)
    with lance_errors(table.location):
        for name in files.list_names(folder):
            with suppress(FileNotFoundError, msgspec.DecodeError):
                tag = msgspec.json.decode(files.read(f"{folder}/{name}"), type=_Tag)
                if (tag.branch or "", tag.version) == (record.branch, record.version):
                    return True
    return False


def is_final(ctx: Context, record: VersionRecord) -> bool:
    """Return whether a version is marked as final, or is about to be: finalized here, or recorded a moment ago."""
    return record.finalized or ctx.services.commit_log.has(record) or _is_recent(ctx, record)


def _is_recent(ctx: Context, record: VersionRecord) -> bool:
    """Return whether a version was recorded less than RECENT_MS ago; not one of the future, after a clock was reset.

    Nor one from before the start of this process: after a loss of power nobody is about to mark it, and its manifest
    may be damaged.
    """
    return 0 <= ctx.clock() - record.created_at < RECENT_MS and record.created_at >= ctx.services.started_at


def _is_recently_final(ctx: Context, table: TableRecord, record: VersionRecord) -> bool:
    """Return whether a version was recorded a moment ago and has its final name, so that readers see it."""
    if table.declared or not _is_recent(ctx, record):
        return False
    with lance_errors():
        return ctx.storage.files(table.location).is_file(f"{table.location}/{record.manifest_path}")
