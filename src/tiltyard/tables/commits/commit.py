"""Commits that clients make: a version is recorded in the catalog first, then its staged manifest becomes final.

The unique key of the records decides who wins; a crash between the two leaves a record that `finalize_pending`
finishes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lance_namespace.errors import InvalidInputError, InvalidTableStateError

from tiltyard.access import Privilege
from tiltyard.access.batch_checks import BATCH_CREATE_VERSIONS
from tiltyard.access.needs import on_table
from tiltyard.model.operations import operation
from tiltyard.model.spec import models
from tiltyard.runtime.failpoints import Point, reach
from tiltyard.store import NewVersion, TableRecord, UnitOfWork, VersionRecord
from tiltyard.tables.commits.batched_commits import create_table_versions
from tiltyard.tables.commits.commit_requests import (
    Entry,
    check_same,
    created,
    not_kept,
    number,
    own_version,
    staged_version,
    wire_version,
)
from tiltyard.tables.commits.finalizing import finalize, finalize_batch
from tiltyard.tables.opening import find_table, open_for_reading
from tiltyard.tables.versions.deleted_versions import delete_versions, without_tagged
from tiltyard.tables.versions.lost_versions import recording
from tiltyard.tables.versions.records import branch_key, stored_versions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tiltyard.context import Context
    from tiltyard.store.tables.deleted_versions import Range


@operation(needs=on_table(Privilege.WRITE), together=create_table_versions)
def create_table_version(ctx: Context, request: models.CreateTableVersionRequest) -> models.CreateTableVersionResponse:
    """Commit a staged manifest as the next version of a table.

    Sent twice, it is committed once. Raises TableNotFoundError, InvalidInputError (the path leads out of the table's
    `_versions` folder, the file is no manifest of this version, or the version is not the next one),
    ConcurrentModificationError (somebody else has the version).
    """
    table = find_table(ctx, request.id)
    return created(table, commit_staged(ctx, table, request))


def commit_staged(ctx: Context, table: TableRecord, entry: Entry, *, ours: bool = False) -> VersionRecord:
    """Record a staged manifest as a version, and make it final. Raises what CreateTableVersion raises.

    `ours` is one that Lance staged in this process: it is not looked at first, the catalog and storage decide alone.
    """
    new = own_version(ctx, table, entry) if ours else staged_version(ctx, table, entry)
    reach(Point.BEFORE_RECORD)
    with ctx.storage.syncing(not_kept([new])):
        record = recording(ctx, [new], lambda: check_same(new, *_record(ctx, new)))
    return finalize(ctx, table, record, new)


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
    """Commit staged manifests of several tables: all of them or none. Several of one table are in order.

    Raises what CreateTableVersion raises; the message names the table.
    """
    if not request.entries:
        raise InvalidInputError("There is no entry: give at least one.")
    tables = [find_table(ctx, entry.id) for entry in request.entries]
    news, latest = list[NewVersion](), dict[tuple[int, str], NewVersion]()
    for table, entry in zip(tables, request.entries, strict=True):
        line = table.id, branch_key(entry.branch)
        news.append(staged_version(ctx, table, entry, latest.get(line), alone=False))
        latest[line] = news[-1]
    reach(Point.BEFORE_RECORD)
    with ctx.storage.syncing(not_kept(news)):
        records = recording(ctx, news, lambda: ctx.store.transact(lambda catalog: _recorded_all(catalog, news)))
    final = finalize_batch(ctx, list(zip(tables, records, strict=True)), news)
    return models.BatchCreateTableVersionsResponse(
        versions=[wire_version(table, record) for table, record in zip(tables, final, strict=True)]
    )


def _recorded_all(catalog: UnitOfWork, news: Sequence[NewVersion]) -> list[VersionRecord]:
    return [check_same(new, *pair) for new, pair in zip(news, catalog.record_each(news), strict=True)]


@operation(needs=on_table(Privilege.WRITE))
def batch_delete_table_versions(
    ctx: Context, request: models.BatchDeleteTableVersionsRequest
) -> models.BatchDeleteTableVersionsResponse:
    """Delete versions in ranges [start, end), -1 standing for no end: they are no longer listed, described or read.

    The latest version stays, and so does one with a tag. Files stay until garbage is collected, a retention time later.
    Raises TableNotFoundError, TableBranchNotFoundError, InvalidInputError (a range that ends before it starts).
    """
    table = find_table(ctx, request.id)
    ranges = without_tagged(ctx, table, request.branch, deletable_ranges(ctx, request))
    stored = stored_versions(ctx, table, branch_key(request.branch))
    deleted = ctx.store.transact(lambda catalog: delete_versions(catalog, table.id, request.branch, ranges, stored))
    return models.BatchDeleteTableVersionsResponse(deleted_count=deleted)


def deletable_ranges(
    ctx: Context, request: models.BatchDeleteTableVersionsRequest, before: NewVersion | int | None = None
) -> list[Range]:
    """The ranges of a request, without the latest version: a table without it could not be opened.

    That is the one `before`, if the caller knows better than storage.
    """
    latest = latest_version(ctx, request.id, request.branch) if before is None else number(before)
    ranges: list[Range] = []
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
