"""Commits that clients make: a version is recorded in the catalog first, then its staged manifest becomes final.

The unique key of the records decides who wins; a crash between the two leaves a record that `finalize_pending`
finishes. A version that storage holds already, because somebody committed round the server, is a conflict too.
"""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    InvalidTableStateError,
    LanceNamespaceError,
    TableBranchNotFoundError,
    TableNotFoundError,
)

from tiltyard.access import Privilege
from tiltyard.access.batches import BATCH_CREATE_VERSIONS
from tiltyard.access.needs import on_table
from tiltyard.faults import Point, reach
from tiltyard.ids import MAIN_BRANCH, table_id
from tiltyard.modes import parse_mode
from tiltyard.operations import operation
from tiltyard.spec import models
from tiltyard.storage.manifests import NamingScheme, manifest_name, versions_folder
from tiltyard.store import NewVersion, TableRecord, UnitOfWork, VersionRecord
from tiltyard.tables.declaring import check_declared
from tiltyard.tables.opening import find_table, open_for_reading

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tiltyard.context import Context
    from tiltyard.storage.files import FileStat

log = logging.getLogger("tiltyard.versions")

Entry = models.CreateTableVersionRequest | models.CreateTableVersionEntry

Commit = tuple[TableRecord, VersionRecord]

MOST_PENDING = 100
AT_ONCE = 8
"""Tables of a batch whose manifests become final at the same time: nearly all of it is waiting for the storage."""


@operation(needs=on_table(Privilege.WRITE))
def create_table_version(ctx: Context, request: models.CreateTableVersionRequest) -> models.CreateTableVersionResponse:
    """Commit a staged manifest as the next version of a table.

    Sent twice, it is committed once. Raises TableNotFoundError, InvalidInputError (the path leads out of the table's
    `_versions` folder, the file is no manifest of this version, or the version is not the next one),
    ConcurrentModificationError (somebody else has the version).
    """
    table = find_table(ctx, request.id)
    return models.CreateTableVersionResponse(version=wire_version(table, commit_staged(ctx, table, request)))


def commit_staged(ctx: Context, table: TableRecord, entry: Entry, *, ours: bool = False) -> VersionRecord:
    """Record a staged manifest as a version, and make it final. Raises what CreateTableVersion raises.

    `ours` is one that Lance staged in this process: it is not looked at first, the catalog and storage decide alone.
    """
    new = _named_version(ctx, table, entry) if ours else staged_version(ctx, table, entry)
    reach(Point.BEFORE_RECORD)
    return finalize(ctx, table, check_same(new, *_record(ctx, new)))


def _record(ctx: Context, new: NewVersion) -> tuple[VersionRecord, bool]:
    """Record a version together with the requests that it fulfils."""
    if not ctx.claims:
        return ctx.store.record_version(new)

    def work(catalog: UnitOfWork) -> tuple[VersionRecord, bool]:
        catalog.mark_committed(ctx.claims, new.table_id, new.branch, new.version)
        record, inserted = catalog.record_version(new)
        return check_same(new, record, inserted), inserted

    return ctx.store.transact(work)


@operation(needs=BATCH_CREATE_VERSIONS)
def batch_create_table_versions(
    ctx: Context, request: models.BatchCreateTableVersionsRequest
) -> models.BatchCreateTableVersionsResponse:
    """Commit staged manifests of several tables: all of them or none.

    Raises what CreateTableVersion raises; the message names the table.
    """
    if not request.entries:
        raise InvalidInputError("There is no entry: give at least one.")
    tables = [find_table(ctx, entry.id) for entry in request.entries]
    news = [staged_version(ctx, table, entry) for table, entry in zip(tables, request.entries, strict=True)]
    reach(Point.BEFORE_RECORD)
    records = ctx.store.transact(lambda catalog: [check_same(new, *catalog.record_version(new)) for new in news])
    final = finalize_all(ctx, list(zip(tables, records, strict=True)))
    return models.BatchCreateTableVersionsResponse(
        versions=[wire_version(table, record) for table, record in zip(tables, final, strict=True)]
    )


@operation(needs=on_table(Privilege.WRITE))
def batch_delete_table_versions(
    ctx: Context, request: models.BatchDeleteTableVersionsRequest
) -> models.BatchDeleteTableVersionsResponse:
    """Delete version records in ranges [start, end), -1 standing for no end; the data and the latest version stay.

    Raises TableNotFoundError, TableBranchNotFoundError, InvalidInputError (a range that ends before it starts).
    """
    table = find_table(ctx, request.id)
    ranges = deletable_ranges(ctx, request)
    deleted = ctx.store.delete_versions(table.id, branch_key(request.branch), ranges)
    return models.BatchDeleteTableVersionsResponse(deleted_count=deleted)


def deletable_ranges(ctx: Context, request: models.BatchDeleteTableVersionsRequest) -> list[tuple[int, int | None]]:
    """The ranges of a request, without the latest version: a table without it could not be opened."""
    latest = latest_version(ctx, request.id, request.branch)
    ranges: list[tuple[int, int | None]] = []
    for given in request.ranges:
        end = None if given.end_version == -1 else given.end_version
        if given.start_version < 0 or (end is not None and end < given.start_version):
            raise InvalidInputError(
                f"The range [{given.start_version}, {given.end_version}) is none: start at 0 or more, end behind the "
                "start, or at -1 for no end."
            )
        ranges.append((given.start_version, latest if end is None else min(end, latest)))
    return ranges


def latest_version(ctx: Context, names: Sequence[str] | None, branch: str | None) -> int:
    """The latest version of a table's branch; 0 for a table that is only declared."""
    try:
        return int(open_for_reading(ctx, names, branch=branch).dataset.version)
    except InvalidTableStateError:
        return 0


def branch_key(branch: str | None) -> str:
    """A branch as the catalog has it: main is the empty name."""
    return "" if not branch or branch == MAIN_BRANCH else branch


def staged_version(ctx: Context, table: TableRecord, entry: Entry, latest: int | None = None) -> NewVersion:
    """What an entry asks to record; its staged file is looked at unless it is committed already.

    `latest` is the table's latest version, if the caller knows better than storage. Raises as CreateTableVersion does.
    """
    new = _named_version(ctx, table, entry)
    try:
        declared = ctx.storage.check_manifest(table.location, new.staged_path, entry.version)
    except InvalidInputError:
        if ctx.storage.stat(table.location, new.staged_path) is not None:
            raise
        if not _is_recorded(ctx, new):
            raise InvalidInputError("There is no staged manifest at this path: write it first.") from None
        return new
    check_declared(ctx, table_id(entry.id), table, entry.branch, declared)
    if latest is not None or not _follows(ctx, table, new):
        _check_next(ctx, new, entry, latest)
    return new


def _named_version(ctx: Context, table: TableRecord, entry: Entry) -> NewVersion:
    """What an entry asks to record, by its words alone. Raises InvalidInputError for a path outside the folder."""
    scheme = parse_mode(NamingScheme, entry.naming_scheme, NamingScheme.V2, "naming scheme")
    folder = versions_folder(entry.branch)
    staged = ctx.storage.inside(table.location, entry.manifest_path)
    final = f"{folder}/{manifest_name(entry.version, scheme)}"
    if staged.rpartition("/")[0] != f"{table.location}/{folder}":
        raise InvalidInputError(f"The manifest has to lie in the folder {folder} of its table.")
    return NewVersion(
        table_id=table.id,
        branch=branch_key(entry.branch),
        version=entry.version,
        staged_path=staged,
        manifest_path=final,
        manifest_size=entry.manifest_size,
        e_tag=entry.e_tag,
        metadata=entry.metadata,
        naming_scheme=scheme,
    )


def _is_recorded(ctx: Context, new: NewVersion) -> bool:
    try:
        return ctx.store.describe_version(new.table_id, new.version, new.branch).staged_path == new.staged_path
    except LanceNamespaceError:
        return False


def _follows(ctx: Context, table: TableRecord, new: NewVersion) -> bool:
    """Whether storage has the version before, and not this one: two files to look for; to open a table costs more."""
    name = manifest_name(new.version - 1, NamingScheme(new.naming_scheme))
    before = f"{new.manifest_path.rpartition('/')[0]}/{name}"
    stat, location = ctx.storage.stat, table.location
    return new.version > 1 and stat(location, before) is not None and stat(location, new.manifest_path) is None


def _check_next(ctx: Context, new: NewVersion, entry: Entry, latest: int | None) -> None:
    if latest is None:
        record = ctx.store.table_by_id(new.table_id)
        latest = _latest_at(ctx, record, entry.branch)
    if latest is None:
        return  # a branch begins at the version it leaves main, and is listed once it has that
    if new.version > latest + 1:
        raise InvalidInputError(f"The next version is {latest + 1}, not {new.version}.")
    if new.version <= latest and not _is_recorded(ctx, new):
        raise ConcurrentModificationError(f"Version {new.version} exists: describe it, and rebase on {latest}.")


def _latest_at(ctx: Context, record: TableRecord, branch: str | None) -> int | None:
    """The latest version of a branch on storage: 0 without data, None for a branch that is just being made."""
    try:
        dataset = ctx.storage.datasets.reader(record.location, ctx.storage.options(record.location), branch)
    except InvalidTableStateError:  # nothing but what is staged
        return 0
    except TableBranchNotFoundError:
        return None
    return int(dataset.version)


def check_same(new: NewVersion, record: VersionRecord, inserted: bool) -> VersionRecord:
    """The record, if it is of this very manifest. Raises ConcurrentModificationError if another has the version."""
    if not inserted and record.staged_path != new.staged_path:
        raise ConcurrentModificationError(f"Version {new.version} exists: describe it, and rebase.")
    return record


def finalize(ctx: Context, table: TableRecord, record: VersionRecord) -> VersionRecord:
    """Give a recorded version's manifest its final name; may be done again after a crash.

    Raises ConcurrentModificationError if a commit round the server took the name meanwhile; the record is taken back.
    """
    return finalize_all(ctx, [(table, record)])[0]


def finalize_all(ctx: Context, commits: Sequence[Commit]) -> list[VersionRecord]:
    """Do that for several, with one transaction for all. Raises what `finalize` raises; the rest is then pending."""
    pending = [commit for commit in commits if not commit[1].finalized]
    found = _place_all(ctx, pending)
    final = [
        replace(record, finalized=True, manifest_size=stat.size, e_tag=stat.e_tag or record.e_tag)
        for (_, record), stat in zip(pending, found, strict=True)
    ]

    def mark(catalog: UnitOfWork) -> None:
        for (table, record), stat in zip(pending, found, strict=True):
            size, e_tag = stat.size, stat.e_tag
            catalog.mark_finalized(table.id, record.version, record.branch, manifest_size=size, e_tag=e_tag)
            if table.declared:
                catalog.mark_written(table.id)

    if pending:
        reach(Point.AFTER_FINALIZE)
        ctx.store.transact(mark)
    after = iter(final)
    return [record if record.finalized else next(after) for _, record in commits]


def _place_all(ctx: Context, commits: Sequence[Commit]) -> list[FileStat]:
    """Give manifests their final names: those of one table one after the other, several tables at once."""
    tables: dict[int, list[int]] = {}
    for number, (table, _) in enumerate(commits):
        tables.setdefault(table.id, []).append(number)

    def place(numbers: Iterable[int]) -> list[tuple[int, FileStat]]:
        return [(number, _place(ctx, *commits[number])) for number in numbers]

    if len(tables) < 2:
        return [_place(ctx, *commit) for commit in commits]
    with ThreadPoolExecutor(min(AT_ONCE, len(tables))) as pool:
        placed = dict(pair for pairs in pool.map(place, tables.values()) for pair in pairs)
    return [placed[number] for number in range(len(commits))]


def _place(ctx: Context, table: TableRecord, record: VersionRecord) -> FileStat:
    """Give one manifest its final name. Raises as `finalize` does."""
    reach(Point.AFTER_RECORD)
    try:
        return ctx.storage.finalize_manifest(table.location, record.staged_path, record.manifest_path)
    except ConcurrentModificationError:
        ctx.store.delete_versions(table.id, record.branch, [(record.version, record.version + 1)])
        raise


def finalize_pending(ctx: Context, table_id: int | None = None) -> int:
    """Finish commits, of one table or of all, that a crash left between record and manifest; how many there were."""
    finished = 0
    for record in ctx.store.pending_versions(table_id, limit=MOST_PENDING):
        try:
            finalize(ctx, ctx.store.table_by_id(record.table_id), record)
            finished += 1
        except TableNotFoundError:
            continue  # dropped meanwhile, and its records with it
        except LanceNamespaceError as error:
            log.warning("version %s of table %s is not finished yet: %s", record.version, record.table_id, error)
    return finished


def wire_version(table: TableRecord, record: VersionRecord) -> models.TableVersion:
    """A recorded version as clients see it: the path has no scheme, as object stores name files."""
    return models.TableVersion(
        version=record.version,
        manifest_path=f"{urlsplit(table.location).path.lstrip('/')}/{record.manifest_path}",
        manifest_size=record.manifest_size,
        e_tag=record.e_tag,
        timestamp_millis=record.created_at,
        metadata=record.metadata,
    )
