"""Commits that clients make: a version is recorded in the catalog first, then its staged manifest becomes final.

The unique key of the records decides who wins; a crash between the two leaves a record that `finalize_pending`
finishes. A version that storage holds already, because somebody committed round the server, is a conflict too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import urlsplit

from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    InvalidTableStateError,
    LanceNamespaceError,
    TableBranchNotFoundError,
    TableNotFoundError,
)
from msgspec import structs

from tiltyard.access import Privilege
from tiltyard.access.batches import BATCH_CREATE_VERSIONS
from tiltyard.access.needs import on_table
from tiltyard.faults import Point, reach
from tiltyard.ids import MAIN_BRANCH, Id, table_id
from tiltyard.modes import parse_mode
from tiltyard.operations import operation
from tiltyard.spec import models
from tiltyard.storage.errors import lance_errors
from tiltyard.storage.locations import is_local
from tiltyard.storage.manifests import NamingScheme, manifest_name, versions_folder
from tiltyard.store import NewVersion, TableRecord, UnitOfWork, VersionRecord
from tiltyard.tables.declaring import check_declared
from tiltyard.tables.finalizing import finalize_all, finalize_each
from tiltyard.tables.opening import find_table, open_for_reading

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tiltyard.context import Context
    from tiltyard.storage.files import WholeFile

MOST_KEPT = 16 << 10
"""Bytes of a manifest that is kept in the catalog until its file is durable: one write to the disk instead of two."""

_REFUSALS = (TableNotFoundError, InvalidInputError, ConcurrentModificationError)

_Planned: TypeAlias = "tuple[TableRecord, NewVersion]"
_Recorded: TypeAlias = "tuple[TableRecord, NewVersion, VersionRecord]"
Entry = models.CreateTableVersionRequest | models.CreateTableVersionEntry


def create_table_versions(
    calls: Sequence[tuple[Context, models.CreateTableVersionRequest]],
) -> list[models.CreateTableVersionResponse | Exception]:
    """CreateTableVersion for calls that wait at the same time: their files are synced together, and recorded in one
    transaction. Each succeeds or fails by itself.
    """
    ctx = calls[0][0]  # they share their services
    found = _recorded_where_known(calls)
    if found is None:
        found = _recorded(ctx, _planned_all(calls, _tables_of(calls)))
        for (one, request), outcome in zip(calls, found, strict=True):
            if one.found is None and not isinstance(outcome, Exception):
                ctx.services.known.keep(table_id(request.id), outcome[0])
    good = [outcome for outcome in found if not isinstance(outcome, Exception)]
    commits = [(table, record) for table, _, record in good]
    final = iter(finalize_each(ctx, commits, [new for _, new, _ in good]))
    answers: list[models.CreateTableVersionResponse | Exception] = []
    for outcome in found:
        if isinstance(outcome, Exception):
            answers.append(outcome)
        else:
            record = next(final)
            answers.append(record if isinstance(record, Exception) else _created(outcome[0], record))
    return answers


def _recorded_where_known(
    calls: Sequence[tuple[Context, models.CreateTableVersionRequest]],
) -> list[_Recorded | Exception] | None:
    """The versions of tables that commits were made to before: they are looked for by the statement that records.

    None if one is not known, or anything is not as it should be: nothing was recorded then.
    """
    ctx = calls[0][0]
    if any(one.found is not None for one, _ in calls):
        return None
    tables = ctx.services.known.all_of(tuple(request.id or ()) for _, request in calls)
    if tables is None:
        return None
    planned = [one for one in _planned_all(calls, tables) if not isinstance(one, Exception)]
    if len(planned) < len(calls):
        return None
    news = [structs.replace(new, place=(table.namespace_id, table.name)) for table, new in planned]
    try:
        records = _record_each(ctx, news)
    except _REFUSALS:
        return None
    return [
        record if isinstance(record, Exception) else (*one, record)
        for one, record in zip(planned, records, strict=True)
    ]


def _recorded(ctx: Context, planned: Sequence[_Planned | Exception]) -> list[_Recorded | Exception]:
    """The versions that could be planned."""
    records = iter(recorded_apart(ctx, [one[1] for one in planned if not isinstance(one, Exception)]))
    found: list[_Recorded | Exception] = []
    for one in planned:
        if isinstance(one, Exception):
            found.append(one)
        else:
            record = next(records)
            found.append(record if isinstance(record, Exception) else (*one, record))
    return found


def _tables_of(calls: Sequence[tuple[Context, models.CreateTableVersionRequest]]) -> Mapping[Id, TableRecord]:
    """The tables that are there, in one look, but for those that the check of the grants has found already."""
    wanted = [tuple(request.id or ()) for ctx, request in calls if ctx.found is None]
    return calls[0][0].store.find_tables(wanted) if len(wanted) > 1 else {}


def _planned_all(
    calls: Sequence[tuple[Context, models.CreateTableVersionRequest]], tables: Mapping[Id, TableRecord]
) -> list[_Planned | Exception]:
    return [_planned(ctx, request, tables) for ctx, request in calls]


def _planned(
    ctx: Context, request: models.CreateTableVersionRequest, tables: Mapping[Id, TableRecord]
) -> _Planned | Exception:
    try:
        known = tables.get(table_id(request.id)) if ctx.found is None else None
        table = known or find_table(ctx, request.id)
        return table, staged_version(ctx, table, request)
    except Exception as error:  # noqa: BLE001  # it is its own caller's, who is told
        return error


def recorded_apart(ctx: Context, news: Sequence[NewVersion]) -> list[VersionRecord | Exception]:
    """Record versions in one transaction. One that the catalog refuses does no harm to the others."""
    if not news:
        return []
    try:
        return _record_each(ctx, news)
    except _REFUSALS as error:
        if len(news) == 1:
            return [error]
        return [record for new in news for record in recorded_apart(ctx, [new])]


def _record_each(ctx: Context, news: Sequence[NewVersion]) -> list[VersionRecord | Exception]:
    """Record versions; each may be lost to somebody else. Raises _REFUSALS."""
    reach(Point.BEFORE_RECORD)
    with ctx.storage.syncing(not_kept(news)):
        pairs = ctx.store.record_each(news)
    return [_same_or_error(new, *pair) for new, pair in zip(news, pairs, strict=True)]


def _same_or_error(new: NewVersion, record: VersionRecord, inserted: bool) -> VersionRecord | Exception:
    try:
        return check_same(new, record, inserted)
    except ConcurrentModificationError as error:
        return error


def _created(table: TableRecord, record: VersionRecord) -> models.CreateTableVersionResponse:
    return models.CreateTableVersionResponse(version=wire_version(table, record))


@operation(needs=on_table(Privilege.WRITE), together=create_table_versions)
def create_table_version(ctx: Context, request: models.CreateTableVersionRequest) -> models.CreateTableVersionResponse:
    """Commit a staged manifest as the next version of a table.

    Sent twice, it is committed once. Raises TableNotFoundError, InvalidInputError (the path leads out of the table's
    `_versions` folder, the file is no manifest of this version, or the version is not the next one),
    ConcurrentModificationError (somebody else has the version).
    """
    table = find_table(ctx, request.id)
    return _created(table, commit_staged(ctx, table, request))


def commit_staged(ctx: Context, table: TableRecord, entry: Entry, *, ours: bool = False) -> VersionRecord:
    """Record a staged manifest as a version, and make it final. Raises what CreateTableVersion raises.

    `ours` is one that Lance staged in this process: it is not looked at first, the catalog and storage decide alone.
    """
    new = _own_version(ctx, table, entry) if ours else staged_version(ctx, table, entry)
    reach(Point.BEFORE_RECORD)
    with ctx.storage.syncing(not_kept([new])):
        record = check_same(new, *_record(ctx, new))
    return finalize_all(ctx, [(table, record)], [new])[0]


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
    with ctx.storage.syncing(not_kept(news)):
        records = ctx.store.transact(lambda catalog: _recorded_all(catalog, news))
    final = finalize_all(ctx, list(zip(tables, records, strict=True)), news)
    return models.BatchCreateTableVersionsResponse(
        versions=[wire_version(table, record) for table, record in zip(tables, final, strict=True)]
    )


def _recorded_all(catalog: UnitOfWork, news: Sequence[NewVersion]) -> list[VersionRecord]:
    return [check_same(new, *pair) for new, pair in zip(news, catalog.record_each(news), strict=True)]


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
    staged = _staged_path(ctx, table, entry)
    try:
        found, declared = ctx.storage.staged_manifest(table.location, staged, entry.version)
    except InvalidInputError:
        if ctx.storage.files(table.location).stat(staged) is not None:
            raise
        if not _is_recorded(ctx, new := _version(table, entry, staged, None)):
            raise InvalidInputError("There is no staged manifest at this path: write it first.") from None
        return new
    new = _version(table, entry, staged, found)
    check_declared(ctx, table_id(entry.id), table, entry.branch, declared)
    if latest is not None or not _follows(ctx, table, new):
        _check_next(ctx, new, entry, latest)
    return new


def _own_version(ctx: Context, table: TableRecord, entry: Entry) -> NewVersion:
    """The same for what Lance staged in this process."""
    staged = _staged_path(ctx, table, entry)
    if not is_local(table.location):
        return _version(table, entry, staged, None)
    return _version(table, entry, staged, ctx.storage.staged_content(table.location, staged))


def not_kept(news: Iterable[NewVersion]) -> list[str]:
    """The staged manifests whose files have to be durable before their versions are recorded."""
    return [new.staged_path for new in news if new.manifest is None]


def _staged_path(ctx: Context, table: TableRecord, entry: Entry) -> str:
    """Where an entry says that its manifest is. Raises InvalidInputError unless that is where its branch has them."""
    folder = versions_folder(entry.branch)
    staged = ctx.storage.named_manifest(table.location, entry.manifest_path)
    if staged.rpartition("/")[0] != f"{table.location}/{folder}":
        raise InvalidInputError(f"The manifest has to lie in the folder {folder} of its table.")
    return staged


def _version(table: TableRecord, entry: Entry, staged: str, found: WholeFile | None) -> NewVersion:
    """What an entry asks to record.

    On a disk all of a small manifest is kept with its record, and moving it leaves its tag as it is. Objects are
    durable as they are, and get another tag.
    """
    scheme = parse_mode(NamingScheme, entry.naming_scheme, NamingScheme.V2, "naming scheme")
    on_disk = found if is_local(table.location) else None
    return NewVersion(
        table_id=table.id,
        branch=branch_key(entry.branch),
        version=entry.version,
        staged_path=staged,
        manifest_path=f"{versions_folder(entry.branch)}/{manifest_name(entry.version, scheme)}",
        manifest_size=on_disk.stat.size if on_disk else entry.manifest_size,
        e_tag=on_disk.stat.e_tag if on_disk else entry.e_tag,
        metadata=entry.metadata,
        naming_scheme=scheme,
        manifest=on_disk.content if on_disk and len(on_disk.content) <= MOST_KEPT else None,
        same_file=on_disk is not None,
    )


def _is_recorded(ctx: Context, new: NewVersion) -> bool:
    try:
        return ctx.store.describe_version(new.table_id, new.version, new.branch).staged_path == new.staged_path
    except LanceNamespaceError:
        return False


def _follows(ctx: Context, table: TableRecord, new: NewVersion) -> bool:
    """Whether storage has the version before, and not this one: two files to look for; to open a table costs more.

    Right behind a commit of this process there is nothing to look for: if others have taken the name since, that is
    seen where it is given.
    """
    if new.version <= 1:
        return False
    if ctx.services.finished.placed(table.id, new.branch, new.version - 1):
        return True
    is_file, scheme = ctx.storage.files(table.location).is_file, NamingScheme(new.naming_scheme)
    before = f"{new.staged_path.rpartition('/')[0]}/{manifest_name(new.version - 1, scheme)}"  # a path that was checked
    with lance_errors():
        return is_file(before) and not is_file(f"{table.location}/{new.manifest_path}")


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
