"""From a recorded version to a manifest under its final name, by whoever comes first: it may be done again."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeAlias

from lance_namespace.errors import (
    ConcurrentModificationError,
    InternalError,
    LanceNamespaceError,
    ServiceUnavailableError,
    TableNotFoundError,
    TableVersionNotFoundError,
)

from tiltyard.runtime.failpoints import Point, reach
from tiltyard.storage.errors import lance_errors
from tiltyard.storage.files import FileStat
from tiltyard.storage.locations import is_local
from tiltyard.storage.manifest_format import branch_reference, needed_files
from tiltyard.store import FinalManifest, NewVersion, TableRecord, UnitOfWork, VersionRecord
from tiltyard.tables.versions.records import is_nowhere, stored_versions

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tiltyard.context import Context

log = logging.getLogger("tiltyard.versions")

Commit: TypeAlias = tuple[TableRecord, VersionRecord]
Outcome: TypeAlias = VersionRecord | Exception

MOST_PENDING = 100
"""Versions that are looked up at a time."""
RECENT_MS = 2000
"""So long whoever made a manifest final has to note that, before others do it."""
AT_ONCE = 8
"""Tables whose manifests become final at the same time on an object store: nearly all of it is waiting for that."""


def finalize(ctx: Context, table: TableRecord, record: VersionRecord, asked: NewVersion | None = None) -> VersionRecord:
    """Give a recorded version's manifest its final name; may be done again after a crash.

    `asked` is what this request has asked for, and so checked: the content of that staged manifest is durable.
    Raises ConcurrentModificationError if a commit round the server took the name meanwhile (the record is taken back),
    TableVersionNotFoundError if the table or the branch was deleted since, ServiceUnavailableError if the manifest has
    to follow later.
    """
    [outcome] = finalize_each(ctx, [(table, record)], None if asked is None else [asked])
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def finalize_batch(
    ctx: Context, commits: Sequence[Commit], asked: Sequence[NewVersion] | None = None
) -> list[VersionRecord]:
    """Do that for the versions of one transaction, which stays committed: no error says that it was refused.

    A table or branch that was deleted since had its version. Raises ServiceUnavailableError (the manifests that are
    left follow later), InternalError (a commit round the server took the name of one: only the others are committed).
    """
    found = list[VersionRecord]()
    for outcome, (table, record) in zip(finalize_each(ctx, commits, asked), commits, strict=True):
        if isinstance(outcome, ConcurrentModificationError):
            raise overtaken(table, record.version) from outcome
        if isinstance(outcome, Exception) and not isinstance(outcome, TableVersionNotFoundError):
            raise outcome
        found.append(record if isinstance(outcome, Exception) else outcome)
    return found


def overtaken(table: TableRecord, version: int) -> InternalError:
    """Say that one version of a batch did not come to be."""
    return InternalError(
        f"The batch is committed, except for version {version} of {table.name}: "
        "a commit round the server took its place meanwhile."
    )


def finalize_each(ctx: Context, commits: Sequence[Commit], asked: Sequence[NewVersion] | None = None) -> list[Outcome]:
    """Do that for several, each by itself: what became of each, in their order."""
    pending = [number for number, (_, record) in enumerate(commits) if not record.finalized]
    found: list[Outcome] = [record for _, record in commits]
    if not pending:
        return found
    news = [asked[number] for number in pending] if asked is not None else [None] * len(pending)
    placed = _place_all(ctx, [commits[number] for number in pending], news)
    final, written = [], []
    for number, stat in zip(pending, placed, strict=True):
        table, record = commits[number]
        if isinstance(stat, Exception):
            found[number] = stat
            continue
        found[number] = record.final(stat.size, stat.e_tag)
        final.append(FinalManifest(record, stat.size, stat.e_tag))
        if table.declared:
            written.append(table.id)
    reach(Point.AFTER_FINALIZE)
    if written:  # a table's first version: from now on it is listed
        ctx.store.transact(lambda catalog: _mark_written(catalog, written))
    ctx.services.finalized_log.note(final)
    return found


def _mark_written(catalog: UnitOfWork, tables: Iterable[int]) -> None:
    """Tables may be gone by now, deregistered in the same batch or dropped by others: what they had is committed."""
    for table in dict.fromkeys(tables):
        try:
            catalog.mark_written(table)
        except TableNotFoundError:
            catalog.mark_removed_written(table)


def _place_all(
    ctx: Context, commits: Sequence[Commit], asked: Sequence[NewVersion | None]
) -> list[FileStat | Exception]:
    """Give manifests their final names: those of one table one after the other, several tables at once."""
    reach(Point.AFTER_RECORD)

    def place(commit: Commit, new: NewVersion | None) -> FileStat | Exception:
        try:
            return _place(ctx, *commit, new)
        except Exception as error:  # noqa: BLE001  # it is raised where its own caller waits
            return _told(ctx, commit, error)

    if all(is_local(table.location) for table, _ in commits):  # a few microseconds each: threads would cost more
        return list(map(place, commits, asked))
    tables: dict[int, list[int]] = {}
    for number, (table, _) in enumerate(commits):
        tables.setdefault(table.id, []).append(number)
    if len(tables) < 2:
        return list(map(place, commits, asked))

    def place_in_order(numbers: Iterable[int]) -> list[tuple[int, FileStat | Exception]]:
        return [(number, place(commits[number], asked[number])) for number in numbers]

    with ThreadPoolExecutor(min(AT_ONCE, len(tables))) as pool:
        placed = dict(pair for pairs in pool.map(place_in_order, tables.values()) for pair in pairs)
    return [placed[number] for number in range(len(commits))]


def _told(ctx: Context, commit: Commit, error: Exception) -> Exception:
    """What to answer of a version that is recorded, and could not get its place: it is no refusal of that version."""
    table, record = commit
    if not isinstance(error, LanceNamespaceError) or isinstance(
        error, ConcurrentModificationError | InternalError | ServiceUnavailableError
    ):
        return error
    version = f"Version {record.version} of {table.name}"
    try:
        ctx.store.describe_version(record.table_id, record.version, record.branch)
    except TableVersionNotFoundError:
        return TableVersionNotFoundError(f"{version} is gone: somebody deleted its table or its branch meanwhile.")
    return ServiceUnavailableError(f"{version} is committed, and its manifest is not in its place yet: {error}")


def _place(ctx: Context, table: TableRecord, record: VersionRecord, new: NewVersion | None) -> FileStat:
    """Give one manifest its final name; paths that were not checked in this request are, first."""
    location, storage = table.location, ctx.storage
    if new is not None:
        final = f"{location}/{record.manifest_path}"
        stat = FileStat(new.manifest_size, new.e_tag) if new.same_file and new.manifest_size is not None else None
        if found := storage.manifests.move(location, record.staged_path, final, stat):
            return found
    kept = ctx.store.kept_manifest(record)
    try:
        if kept is None:
            return storage.manifests.finalize(location, record.staged_path, record.manifest_path)
        return storage.manifests.restore(location, record.staged_path, record.manifest_path, kept, record.version)
    except ConcurrentModificationError:
        ctx.store.take_back_version(record)
        raise


def in_place(ctx: Context, table: TableRecord, record: VersionRecord) -> FileStat | None:
    """A manifest that was made final before: all that its table lacks is the note. None if there is more to do."""
    found = _moved(ctx, table, record)
    if found is None:
        return None
    kept = ctx.store.kept_manifest(record)
    whole = kept is None or ctx.storage.manifests.has_content(table.location, record.manifest_path, kept)
    return found if whole else None


def _moved(ctx: Context, table: TableRecord, record: VersionRecord) -> FileStat | None:
    """A manifest that has no name any more but its final one."""
    if table.declared or ctx.storage.stat(table.location, record.staged_path) is not None:
        return None
    return ctx.storage.stat(table.location, record.manifest_path)


def finalize_pending(ctx: Context, table_id: int, *, recent: bool = True) -> int:
    """Finish a table's commits that a crash left between record and manifest; how many there were.

    Without `recent`, those that somebody has made final just now, and will note so, are left alone: readers see them.
    """
    return _finalize_pending(ctx, table_id, recent)[0]


def sweep_pending(ctx: Context) -> int:
    """Do that for all tables, some at a time, each in its turn; how many commits there were.

    A table with one that cannot be finished is left alone for longer and longer, and keeps no other waiting.
    """
    finished, retries = 0, ctx.services.finalizing_backoff
    for table_id in retries.next_tables(ctx.store.tables_with_pending_versions, ctx.clock()):
        failure: Exception | None
        try:
            done, failure = _finalize_pending(ctx, table_id, recent=False)
        except Exception as error:  # noqa: BLE001  # one table must not stop the others: it is logged below
            done, failure = 0, error
        finished += done
        if failure is None:
            retries.succeeded(table_id)
            continue
        seconds = retries.failed(table_id, ctx.clock()) // 1000
        known = isinstance(failure, LanceNamespaceError)
        log.warning(
            "table %s has versions that are not finished yet, tried again in %s s: %s",
            table_id,
            seconds,
            failure,
            exc_info=None if known else failure,
        )
    return finished


def pending_versions(ctx: Context, table_id: int) -> Iterator[VersionRecord]:
    """Yield all versions of a table that are recorded but not finalized, oldest first."""
    last: VersionRecord | None = None
    while page := ctx.store.pending_versions(table_id, MOST_PENDING, last):
        yield from page
        if len(page) < MOST_PENDING:
            return
        last = page[-1]


def _finalize_pending(ctx: Context, table_id: int, recent: bool) -> tuple[int, LanceNamespaceError | None]:
    """Return how many commits were finished, and why one was not."""
    finished, failure, table = 0, None, None
    for record in pending_versions(ctx, table_id):
        if ctx.services.finalized_log.holds(record):
            continue
        try:
            table = table or ctx.store.table_by_id(table_id)
            if not recent and _is_seen(ctx, table, record):
                continue
            _finish(ctx, table, record)
            finished += 1
        except TableNotFoundError:
            break  # dropped meanwhile, and its records with it
        except ConcurrentModificationError as error:  # its record was taken back
            log.warning("version %s of table %s is lost: %s", record.version, table_id, error)
        except LanceNamespaceError as error:
            failure = error
    return finished, failure


def _finish(ctx: Context, table: TableRecord, record: VersionRecord) -> None:
    if (found := in_place(ctx, table, record)) is not None:
        ctx.services.finalized_log.note([FinalManifest(record, found.size, found.e_tag)])
    elif _is_over(ctx, table, record):
        ctx.store.forget_version(record)
    else:
        finalize(ctx, table, record)


def _is_over(ctx: Context, table: TableRecord, record: VersionRecord) -> bool:
    """Whether a version was in its place, and went with its branch, or in a cleanup, before anybody noted it.

    To put its manifest back would show a version that cannot be read. Where a loss of power took the manifest, what
    this server wrote for it is there: that was durable first. Nor does that take a manifest and leave one that was
    made after it; and a table may have been given the other kind of names.
    """
    if not is_nowhere(ctx, table, record):
        return False
    if record.branch and ctx.storage.stat(table.location, branch_reference(record.branch)) is None:
        return True
    if any(version >= record.version for version in stored_versions(ctx, table, record.branch)):
        return True
    kept = ctx.store.kept_manifest(record)
    if kept is None:
        return False
    folder = record.manifest_path.rpartition("_versions/")[0]
    return any(ctx.storage.stat(table.location, f"{folder}{path}") is None for path in needed_files(kept))


def is_noted(ctx: Context, record: VersionRecord) -> bool:
    """Whether a version's manifest is final by its record, or whoever made it so is about to note it."""
    return record.finalized or ctx.services.finalized_log.holds(record) or _is_recent(ctx, record)


def _is_recent(ctx: Context, record: VersionRecord) -> bool:
    """Whether a version was recorded a moment ago; one of the future says that a clock was set."""
    return 0 <= ctx.clock() - record.created_at < RECENT_MS


def _is_seen(ctx: Context, table: TableRecord, record: VersionRecord) -> bool:
    """Whether a version was recorded a moment ago, and readers see it."""
    if table.declared or not _is_recent(ctx, record):
        return False
    with lance_errors():
        return ctx.storage.files(table.location).is_file(f"{table.location}/{record.manifest_path}")
