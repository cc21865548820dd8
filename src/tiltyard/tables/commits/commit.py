"""Operations by which clients commit: CreateTableVersion, BatchCreateTableVersions, BatchDeleteTableVersions.

A version is recorded in the catalog first, then its staged manifest is finalized. The unique key of the records decides
which of several commits wins; a crash between the two steps leaves a record that `finalize_pending` finalizes.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from lance_namespace.errors import ConcurrentModificationError, InvalidInputError, InvalidTableStateError
from msgspec import structs

from tiltyard.access.needs import BATCH_CREATE_VERSIONS, on_table
from tiltyard.model.branches import Branch
from tiltyard.model.ids import table_id
from tiltyard.model.operations import CommitStep, map_successes, operation
from tiltyard.model.principals import Privilege
from tiltyard.model.quotas import ROWS_AND_FILES
from tiltyard.model.spec import models
from tiltyard.runtime.pool import run_together
from tiltyard.storage.locations import is_local
from tiltyard.store import NewVersion, TableRecord, UnitOfWork, VersionRecord
from tiltyard.tables.commits.finalizing import MAX_THREADS, finalize, finalize_batch, finalize_each
from tiltyard.tables.commits.recording import (
    REFUSALS,
    DeclarationChangedError,
    record_all,
    record_each,
    record_independently,
    record_versions,
)
from tiltyard.tables.commits.validation import (
    Entry,
    check_commits_here,
    create_version_response,
    explain_conflict,
    trusted_version,
    validate_version,
    validate_versions,
    version_number,
)
from tiltyard.tables.opening import find_table, open_for_reading
from tiltyard.tables.versions.deleted_versions import delete_versions, exclude_tagged
from tiltyard.tables.versions.records import stored_versions, wire_version

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tiltyard.context import Context
    from tiltyard.store.tables.versions import Range
    from tiltyard.tables.keys.checked_appends import CheckedAppend


_MAX_CHECKS = 4
"""How often a version is checked, where its table gets another primary key or contract meanwhile."""
_Calls: TypeAlias = "Sequence[tuple[Context, models.CreateTableVersionRequest]]"
_Tables: TypeAlias = "Mapping[tuple[str, ...], TableRecord]"
_Validated: TypeAlias = "tuple[TableRecord, NewVersion]"
_Recorded: TypeAlias = "tuple[TableRecord, NewVersion, VersionRecord]"


def create_table_versions(calls: _Calls) -> list[models.CreateTableVersionResponse | Exception]:
    """Run several CreateTableVersion requests: sync their files together, and record them in one transaction.

    Each succeeds or fails independently; return the response or the error of each.
    """
    ctx = calls[0][0]  # all have the same services
    outcomes = _record_known_tables(calls)
    if outcomes is None:
        outcomes = map_successes(_validate_all(calls, _find_tables(calls)), partial(_record_validated, ctx))
        for (call_ctx, request), outcome in zip(calls, outcomes, strict=True):
            if call_ctx.resolved is None and not isinstance(outcome, Exception):
                ctx.services.known_tables.add(table_id(request.id), outcome[0])
    return map_successes(outcomes, partial(_finalize_recorded, ctx))


def _record_known_tables(calls: _Calls) -> list[_Recorded | Exception] | None:
    """Record versions of tables that the process has cached (`KnownTables`), by one statement that also looks them up.

    None if a table is not cached, or anything is not as it should be: nothing was recorded then.
    """
    ctx = calls[0][0]
    if any(call_ctx.resolved is not None for call_ctx, _ in calls):
        return None
    tables = ctx.services.known_tables.get_all(tuple(request.id or ()) for _, request in calls)
    if tables is None:
        return None
    validated = [outcome for outcome in _validate_all(calls, tables) if not isinstance(outcome, Exception)]
    if len(validated) < len(calls):
        return None
    news = [structs.replace(new, expected_name=(table.namespace_id, table.name)) for table, new in validated]
    try:
        records = record_each(ctx, news)
    except REFUSALS:
        return None
    return _with_records(validated, records)


def _record_validated(ctx: Context, validated: Sequence[_Validated]) -> list[_Recorded | Exception]:
    return _with_records(validated, record_independently(ctx, [new for _, new in validated]))


def _with_records(
    validated: Sequence[_Validated], records: Sequence[VersionRecord | Exception]
) -> list[_Recorded | Exception]:
    return [
        record if isinstance(record, Exception) else (*pair, record)
        for pair, record in zip(validated, records, strict=True)
    ]


def _finalize_recorded(
    ctx: Context, recorded: Sequence[_Recorded]
) -> list[models.CreateTableVersionResponse | Exception]:
    commits = [(table, record) for table, _, record in recorded]
    final = finalize_each(ctx, commits, [new for _, new, _ in recorded])
    return [
        record if isinstance(record, Exception) else create_version_response(table, record)
        for (table, _), record in zip(commits, final, strict=True)
    ]


def _find_tables(calls: _Calls) -> _Tables:
    """Return the tables of the requests, by one query, but for those that authorization has looked up already."""
    paths = [tuple(request.id or ()) for ctx, request in calls if ctx.resolved is None and ctx.mounted is None]
    return calls[0][0].store.find_tables(paths) if len(paths) > 1 else {}


def _validate_all(calls: _Calls, tables: _Tables) -> list[_Validated | Exception]:
    locations = {table.location for table in tables.values()}
    if len(calls) < 2 or not locations or all(map(is_local, locations)):
        return [_validate(ctx, request, tables) for ctx, request in calls]
    return run_together(lambda call: _validate(call[0], call[1], tables), calls, MAX_THREADS)


def _validate(ctx: Context, request: models.CreateTableVersionRequest, tables: _Tables) -> _Validated | Exception:
    try:
        is_prefetched = ctx.resolved is None and ctx.mounted is None
        prefetched = tables.get(table_id(request.id)) if is_prefetched else None
        table = prefetched or find_table(ctx, request.id)
        return table, validate_version(ctx, table, request)
    except Exception as error:  # noqa: BLE001  # it is the outcome of this request alone
        return error


@operation(
    needs=on_table(Privilege.WRITE), stores=ROWS_AND_FILES, batch=create_table_versions, commit_step=CommitStep.COMMIT
)
def create_table_version(ctx: Context, request: models.CreateTableVersionRequest) -> models.CreateTableVersionResponse:
    """Commit a staged manifest as the next version of a table. Idempotent.

    Raises TableNotFoundError, InvalidInputError (the path leads out of the table's `_versions` folder, the file is no
    manifest of this version, or the version is not the next one), ConcurrentModificationError (another manifest has the
    version), DuplicateKeyError, TableSchemaValidationError (a key without a value).
    """
    table = find_table(ctx, request.id)
    return create_version_response(table, commit_staged(ctx, table, request))


def commit_staged(
    ctx: Context,
    table: TableRecord,
    entry: Entry,
    checked_appends: Sequence[CheckedAppend] | None = None,
    content: bytes | None = None,
    queued_appends: Sequence[tuple[str, list[str]]] = (),
    *,
    durable: bool = True,
) -> VersionRecord:
    """Record a staged manifest as a version, and finalize it. Raises what CreateTableVersion raises.

    With `checked_appends`, perhaps none, the manifest was staged by Lance in this process: it is not validated, the
    catalog and storage decide alone, and the table's key unless it is one of these appends. `content` is that of the
    staged manifest, if the caller has it, `durable` says that its other files are so. Raises AppendNotWaitingError if
    one of the `queued_appends` that it brings does not wait any more, IncompleteFileError. Where its table gets another
    key or contract meanwhile, it is checked again.
    """
    for _ in range(_MAX_CHECKS):
        new = _checked_version(ctx, table, entry, checked_appends, content, durable)
        try:
            recorded = _record_staged(ctx, new, queued_appends, written_here=checked_appends is not None)
            return finalize(ctx, table, recorded, new)
        except DeclarationChangedError as error:
            changed = error
            table = ctx.store.table_by_id(table.id)
    raise changed


def _checked_version(
    ctx: Context,
    table: TableRecord,
    entry: Entry,
    checked_appends: Sequence[CheckedAppend] | None,
    content: bytes | None,
    durable: bool,
) -> NewVersion:
    if checked_appends is None:
        return validate_version(ctx, table, entry)
    return trusted_version(ctx, table, entry, checked_appends, content, durable=durable)


def _record_staged(
    ctx: Context, new: NewVersion, queued_appends: Sequence[tuple[str, list[str]]], *, written_here: bool
) -> VersionRecord:
    def write() -> VersionRecord:
        if ctx.claims or queued_appends:
            return ctx.store.transact(work)
        return record_all(ctx.store, [new])[0]  # one statement, run again where a connection is lost

    def work(catalog: UnitOfWork) -> VersionRecord:
        for turn, ids in queued_appends:
            catalog.mark_appends_committed(ids, turn, new.version)
        if ctx.claims:  # the idempotent requests that it fulfils
            catalog.mark_requests_committed(ctx.claims, new.table_id, new.branch, new.version)
        return record_all(catalog, [new])[0]

    return record_versions(ctx, [new], write, written_here=written_here)


@operation(needs=BATCH_CREATE_VERSIONS, stores=ROWS_AND_FILES, entries="entries")
def batch_create_table_versions(
    ctx: Context, request: models.BatchCreateTableVersionsRequest
) -> models.BatchCreateTableVersionsResponse:
    """Commit staged manifests of several tables: all of them or none. Several of one table are in order.

    Raises what CreateTableVersion raises; the message names the table.
    """
    if not request.entries:
        raise InvalidInputError("There is no entry: give at least one.")
    tables = [find_table(ctx, entry.id) for entry in request.entries]
    try:
        news, records = _record_entries(ctx, tables, request.entries)
    except ConcurrentModificationError as error:
        raise explain_conflict(ctx, request.entries, error) from error
    final = finalize_batch(ctx, list(zip(tables, records, strict=True)), news)
    return models.BatchCreateTableVersionsResponse(
        versions=[wire_version(table, record) for table, record in zip(tables, final, strict=True)]
    )


def _record_entries(
    ctx: Context, tables: Sequence[TableRecord], entries: Sequence[models.CreateTableVersionEntry]
) -> tuple[list[NewVersion], list[VersionRecord]]:
    """Validate staged manifests, and record them in one transaction."""
    if len({table.id for table in tables}) > 1:
        for table, entry in zip(tables, entries, strict=True):
            check_commits_here(table_id(entry.id), table)
    news = validate_versions(ctx, list(zip(tables, entries, strict=True)))
    return news, record_versions(ctx, news, lambda: ctx.store.transact(lambda catalog: record_all(catalog, news)))


@operation(needs=on_table(Privilege.WRITE), entries="ranges")
def batch_delete_table_versions(
    ctx: Context, request: models.BatchDeleteTableVersionsRequest
) -> models.BatchDeleteTableVersionsResponse:
    """Delete versions in ranges [start, end), -1 standing for no end: they are no longer listed, described or read.

    The latest version stays, and so does one with a tag. Files stay until garbage is collected, a retention time later.
    Raises TableNotFoundError, TableBranchNotFoundError, InvalidInputError (a range that ends before it starts).
    """
    table, branch = find_table(ctx, request.id), Branch.parse(request.branch)
    ranges = exclude_tagged(ctx, table, branch, ranges_to_delete(ctx, request, branch))
    stored = stored_versions(ctx, table, branch)
    count = ctx.store.transact(lambda catalog: delete_versions(catalog, table.id, branch, ranges, stored))
    return models.BatchDeleteTableVersionsResponse(deleted_count=count)


def ranges_to_delete(
    ctx: Context,
    request: models.BatchDeleteTableVersionsRequest,
    branch: Branch,
    latest: NewVersion | int | None = None,
) -> list[Range]:
    """Return the ranges of a request, without the latest version: a table without it could not be opened.

    `latest` is the latest version of the `branch`, if the caller knows better than storage. Raises InvalidInputError.
    """
    last = _latest_version(ctx, request.id, branch) if latest is None else version_number(latest)
    ranges: list[Range] = []
    for requested in request.ranges:
        end = None if requested.end_version == -1 else requested.end_version
        if requested.start_version < 0 or (end is not None and end < requested.start_version):
            raise InvalidInputError(
                f"The range [{requested.start_version}, {requested.end_version}) is none: start at 0 or more, end "
                "behind the start, or at -1 for no end."
            )
        ranges.append((requested.start_version, last if end is None else min(end, last)))
    return ranges


def _latest_version(ctx: Context, names: Sequence[str] | None, branch: Branch) -> int:
    """Return the latest version of a table's branch; 0 for a table that is only declared."""
    try:
        return int(open_for_reading(ctx, names, branch=branch).dataset.version)
    except InvalidTableStateError:
        return 0
