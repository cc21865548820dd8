"""From a recorded version to a manifest under its final name, by whoever comes first: it may be done again."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from lance_namespace.errors import ConcurrentModificationError, LanceNamespaceError, TableNotFoundError

from tiltyard.faults import Point, reach
from tiltyard.storage.locations import is_local
from tiltyard.store import FinalManifest, TableRecord, UnitOfWork, VersionRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tiltyard.context import Context
    from tiltyard.storage.files import FileStat

log = logging.getLogger("tiltyard.versions")

Commit: TypeAlias = tuple[TableRecord, VersionRecord]
Outcome: TypeAlias = VersionRecord | Exception

MOST_PENDING = 100
AT_ONCE = 8
"""Tables whose manifests become final at the same time on an object store: nearly all of it is waiting for that."""


def finalize(ctx: Context, table: TableRecord, record: VersionRecord) -> VersionRecord:
    """Give a recorded version's manifest its final name; may be done again after a crash.

    Raises ConcurrentModificationError if a commit round the server took the name meanwhile; the record is taken back.
    """
    return finalize_all(ctx, [(table, record)])[0]


def finalize_all(ctx: Context, commits: Sequence[Commit], *, synced: bool = False) -> list[VersionRecord]:
    """Do that for several. Raises what `finalize` raises; the rest is then pending.

    `synced` says that this request has checked the staged manifests, and had them synced.
    """
    found = []
    for outcome in finalize_each(ctx, commits, synced=synced):
        if isinstance(outcome, Exception):
            raise outcome
        found.append(outcome)
    return found


def finalize_each(ctx: Context, commits: Sequence[Commit], *, synced: bool = False) -> list[Outcome]:
    """Do that for several, each by itself: what became of each, in their order."""
    pending = [number for number, (_, record) in enumerate(commits) if not record.finalized]
    found: list[Outcome] = [record for _, record in commits]
    if not pending:
        return found
    placed = _place_all(ctx, [commits[number] for number in pending], synced=synced)
    final, written = [], []
    for number, stat in zip(pending, placed, strict=True):
        table, record = commits[number]
        if isinstance(stat, Exception):
            found[number] = stat
            continue
        found[number] = replace(record, finalized=True, manifest_size=stat.size, e_tag=stat.e_tag or record.e_tag)
        final.append(FinalManifest(record, stat.size, stat.e_tag))
        if table.declared:
            written.append(table.id)
    reach(Point.AFTER_FINALIZE)
    if written:  # a table's first version: from now on it is listed
        ctx.store.transact(lambda catalog: _mark_written(catalog, written))
    ctx.services.finished.note(final)
    return found


def _mark_written(catalog: UnitOfWork, tables: Iterable[int]) -> None:
    for table in dict.fromkeys(tables):
        catalog.mark_written(table)


def _place_all(ctx: Context, commits: Sequence[Commit], *, synced: bool) -> list[FileStat | Exception]:
    """Give manifests their final names: those of one table one after the other, several tables at once."""
    reach(Point.AFTER_RECORD)

    def place(commit: Commit) -> FileStat | Exception:
        try:
            return _place(ctx, *commit, synced=synced)
        except Exception as error:  # noqa: BLE001  # it is raised where its own caller waits
            return error

    if all(is_local(table.location) for table, _ in commits):  # a few microseconds each: threads would cost more
        return [place(commit) for commit in commits]
    tables: dict[int, list[int]] = {}
    for number, (table, _) in enumerate(commits):
        tables.setdefault(table.id, []).append(number)
    if len(tables) < 2:
        return [place(commit) for commit in commits]

    def place_in_order(numbers: Iterable[int]) -> list[tuple[int, FileStat | Exception]]:
        return [(number, place(commits[number])) for number in numbers]

    with ThreadPoolExecutor(min(AT_ONCE, len(tables))) as pool:
        placed = dict(pair for pairs in pool.map(place_in_order, tables.values()) for pair in pairs)
    return [placed[number] for number in range(len(commits))]


def _place(ctx: Context, table: TableRecord, record: VersionRecord, *, synced: bool) -> FileStat:
    """Give one manifest its final name; paths that were not checked in this request are, first."""
    location, storage = table.location, ctx.storage
    try:
        if synced:
            return storage.place_manifest(location, record.staged_path, f"{location}/{record.manifest_path}")
        return storage.finalize_manifest(location, record.staged_path, record.manifest_path)
    except ConcurrentModificationError:
        ctx.store.delete_versions(table.id, record.branch, [(record.version, record.version + 1)])
        raise


def in_place(ctx: Context, table: TableRecord, record: VersionRecord) -> FileStat | None:
    """A manifest that was made final before: all that its table lacks is the note. None if there is more to do."""
    if table.declared or ctx.storage.stat(table.location, record.staged_path) is not None:
        return None
    return ctx.storage.stat(table.location, record.manifest_path)


def finalize_pending(ctx: Context, table_id: int | None = None) -> int:
    """Finish commits, of one table or of all, that a crash left between record and manifest; how many there were."""
    finished = 0
    for record in ctx.store.pending_versions(table_id, limit=MOST_PENDING):
        if ctx.services.finished.holds(record):
            continue
        try:
            table = ctx.store.table_by_id(record.table_id)
            if (found := in_place(ctx, table, record)) is not None:
                ctx.services.finished.note([FinalManifest(record, found.size, found.e_tag)])
            else:
                finalize(ctx, table, record)
            finished += 1
        except TableNotFoundError:
            continue  # dropped meanwhile, and its records with it
        except LanceNamespaceError as error:
            log.warning("version %s of table %s is not finished yet: %s", record.version, record.table_id, error)
    return finished
