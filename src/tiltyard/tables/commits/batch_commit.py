"""BatchCommitTables: declare, commit, delete versions of and deregister several tables in one transaction.

An operation of Tiltyard's own, `check_table_version`, lets a batch depend on tables that it does not change: it is
committed only if their latest versions are those that its caller has read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    NamespaceNotFoundError,
    TableNotFoundError,
    TableVersionNotFoundError,
    UnsupportedOperationError,
)
from msgspec import structs

from tiltyard.access.needs import BATCH_COMMIT_TABLES, creator_for
from tiltyard.model.branches import Branch
from tiltyard.model.ids import Id, table_id
from tiltyard.model.modes import TransactionStatus
from tiltyard.model.operations import operation
from tiltyard.model.quotas import ROWS_AND_FILES
from tiltyard.model.spec import models
from tiltyard.store import RESERVED, NewVersion, TableRecord, UnitOfWork, VersionRecord
from tiltyard.tables.commits.commit import ranges_to_delete
from tiltyard.tables.commits.finalizing import finalize_batch, lost_version_error
from tiltyard.tables.commits.recording import note_versions, record_all, record_versions
from tiltyard.tables.commits.validation import (
    check_commits_here,
    explain_conflict,
    validate_versions,
)
from tiltyard.tables.credentials import creator_storage_options
from tiltyard.tables.opening import find_table
from tiltyard.tables.versions.deleted_versions import delete_versions, exclude_tagged
from tiltyard.tables.versions.records import new_is_managed, stored_versions, wire_version

if TYPE_CHECKING:
    from tiltyard.context import Context

MAX_OPERATIONS = 1000
BATCH_COMMIT = "batch_commit"
RESERVED_MS = 7 * 24 * 3600 * 1000
"""How long a folder stays reserved whose table a batch has declared and deregistered, to learn of its location."""


class _DeclaredTable(NamedTuple):
    record: TableRecord
    response: models.DeclareTableResponse
    vend_credentials: bool | None
    """Whether the request asked for credentials."""


class _CommittedVersion(NamedTuple):
    table: TableRecord
    record: VersionRecord
    new: NewVersion
    result: models.CommitTableResult


@dataclass(slots=True)
class Batch:
    """A batch in progress: what was looked up on storage before its transaction, and what the transaction has done."""

    ctx: Context
    transaction: str = ""
    declared: dict[Id, str] = field(default_factory=dict)
    """The tables that the batch declares, with their locations."""
    generated_locations: set[str] = field(default_factory=set)
    """The locations among them that the server has chosen, in this batch or in an earlier one."""
    declared_tables: list[_DeclaredTable] = field(default_factory=list)
    latest: dict[tuple[Id, Branch], NewVersion] = field(default_factory=dict)
    """The latest version that the batch commits of each table and branch."""
    news: list[NewVersion] = field(default_factory=list)
    committed: list[_CommittedVersion] = field(default_factory=list)
    checked: set[int] = field(default_factory=set)
    """The tables whose versions the batch depends on."""

    def latest_version(self, path: Id, branch: Branch) -> NewVersion | int | None:
        """Return the latest version so far, as far as this batch knows: 0 of a table that it declares."""
        return self.latest.get((path, branch), 0 if path in self.declared else None)


Step: TypeAlias = Callable[[UnitOfWork, Batch], list[models.CommitTableResult]]
"""One operation, or several in a row that are quicker together, to be run in the transaction."""


def replay_batch_commit(
    ctx: Context, request: models.BatchCommitTablesRequest, response: models.BatchCommitTablesResponse
) -> models.BatchCommitTablesResponse:
    """Return the stored response of a committed batch, after finalizing its versions as far as their tables exist.

    Raises what the batch itself raises after its record: ServiceUnavailableError, InternalError.
    """
    commits = []
    for entry, result in zip(request.operations, response.results or (), strict=True):
        create, created = entry.create_table_version, result.create_table_version
        if create is None or created is None or created.version is None:
            continue
        version = created.version.version
        try:
            table = find_table(ctx, create.id)
            staged = ctx.storage.manifests.resolve_path(table.location, create.manifest_path)
        except (NamespaceNotFoundError, TableNotFoundError, InvalidInputError):
            continue  # dropped, or another table has its name
        with suppress(TableVersionNotFoundError):
            record = ctx.store.describe_version(table.id, version, Branch.parse(create.branch).key)
            if record.staged_path == staged:
                commits.append((table, record))
                continue
        if ctx.storage.stat(table.location, staged) is not None:  # it was never finalized
            raise lost_version_error(table, version)
    finalize_batch(ctx, commits)
    return response


@operation(needs=BATCH_COMMIT_TABLES, stores=ROWS_AND_FILES, entries="operations", replayed_by=replay_batch_commit)
def batch_commit_tables(ctx: Context, request: models.BatchCommitTablesRequest) -> models.BatchCommitTablesResponse:
    """Declare tables, commit versions, delete version records and deregister tables in one transaction, in order.

    `check_table_version` raises ConcurrentModificationError for a table, or a branch, with a later version than the one
    that it names, whoever commits it at the same time.
    A table declared in a batch may get its first version in it. One that is declared without a location, and then
    deregistered, leaves its folder reserved for RESERVED_MS: a later batch of the same principal may name it, in order
    to create the table or to reserve it again.
    Raises what each operation raises (all are refused then), InvalidInputError (none, more than 1,000, or an entry that
    does not do exactly one thing). The batch is committed, nevertheless, with ServiceUnavailableError (no credentials
    can be made, or manifests are finalized later) and InternalError (a version was lost to a commit that bypassed the
    server).
    """
    if not 0 < len(request.operations) <= MAX_OPERATIONS:
        raise InvalidInputError(
            f"A batch has 1 to {MAX_OPERATIONS} operations: this one has {len(request.operations)}."
        )
    batch = Batch(ctx)
    try:
        response = _record(batch, request.operations)
    except ConcurrentModificationError as error:
        versions = [entry.create_table_version for entry in request.operations]
        raise explain_conflict(ctx, filter(None, versions), error) from error
    commits = [(version.table, version.record) for version in batch.committed]
    final = finalize_batch(ctx, commits, [version.new for version in batch.committed])
    for (table, _, _, result), record in zip(batch.committed, final, strict=True):
        assert result.create_table_version is not None
        result.create_table_version.version = wire_version(table, record)
    for table, declared, vend_credentials in batch.declared_tables:
        declared.storage_options = creator_storage_options(ctx, table, vend_credentials)
    return response


def _record(batch: Batch, operations: Sequence[models.CommitTableOperation]) -> models.BatchCommitTablesResponse:
    """Check all operations, and record them in one transaction."""
    ctx, steps = batch.ctx, list(_steps(batch, operations))

    def work(catalog: UnitOfWork) -> models.BatchCommitTablesResponse:
        batch.committed.clear()  # the work may run a second time
        batch.declared_tables.clear()
        if batch.checked:  # all that the batch reads or writes, in one order: so two of them do not wait for each other
            catalog.lock_versions(batch.checked | {new.table_id for new in batch.news})
        properties = {"operations": str(len(operations))}
        transaction = catalog.create_transaction(
            BATCH_COMMIT, None, {}, properties, TransactionStatus.SUCCEEDED, requested_by=ctx.principal.name
        )
        batch.transaction = transaction.id
        results = [result for step in steps for result in step(catalog, batch)]
        for table, record, _, result in batch.committed:
            version = wire_version(table, record)
            result.create_table_version = models.CreateTableVersionResponse(
                transaction_id=transaction.id, version=version
            )
        return models.BatchCommitTablesResponse(transaction_id=transaction.id, results=results)

    response = record_versions(ctx, batch.news, lambda: ctx.transact(work), are_noted=False)
    note_versions(ctx, (version.new for version in batch.committed))  # with the ids of tables that were declared here
    return response


def _steps(batch: Batch, operations: Sequence[models.CommitTableOperation]) -> Iterator[Step]:
    """Yield the steps of a batch, each with all that storage has to say of it: no transaction waits for storage."""
    for _, group in groupby(operations, _creates_version):
        entries = list(group)
        versions = [entry.create_table_version for entry in entries if entry.create_table_version is not None]
        if versions:
            yield _create_versions(batch, versions)
        else:
            yield from (_prepare(batch, entry) for entry in entries)


def _creates_version(entry: models.CommitTableOperation) -> bool:
    names = [name for name in entry.__struct_fields__ if getattr(entry, name) is not None]
    if len(names) != 1:
        raise InvalidInputError(f"Each operation of a batch does exactly one thing: this one does {len(names)}.")
    return entry.create_table_version is not None


def _prepare(batch: Batch, entry: models.CommitTableOperation) -> Step:
    """Return the step of an operation that creates no version."""
    if entry.declare_table is not None:
        return _declare(batch, entry.declare_table)
    if entry.delete_table_versions is not None:
        return _delete_versions(batch, entry.delete_table_versions)
    if entry.check_table_version is not None:
        return _check_version(batch, entry.check_table_version)
    assert entry.deregister_table is not None
    return _deregister(batch, entry.deregister_table)


def _declare(batch: Batch, request: models.DeclareTableRequest) -> Step:
    path, storage = table_id(request.id), batch.ctx.storage
    _check_not_mounted(batch, path)
    location = storage.check_location(request.location) if request.location else storage.new_location(path)
    batch.declared[path] = location
    if not request.location or batch.ctx.store.is_location_reserved(location, batch.ctx.principal.name):
        batch.generated_locations.add(location)
    batch.latest = {key: new for key, new in batch.latest.items() if key[0] != path}  # of one deregistered before
    managed, creator = new_is_managed(batch.ctx, path, request.properties), creator_for(batch.ctx, path.parent)
    parent_id = batch.ctx.resolved_namespace_id(path.parent)

    def step(catalog: UnitOfWork, batch: Batch) -> list[models.CommitTableResult]:
        record = catalog.insert_table(
            path,
            location,
            request.properties or {},
            managed=managed,
            declared=True,
            registered=bool(request.location),
            creator=creator,
            created_by=batch.ctx.principal.name,
            expected_parent_id=parent_id,
        )
        response = models.DeclareTableResponse(
            location=record.location,
            storage_options=storage.roots.public_options(record.location) or None,
            properties=record.properties,
            managed_versioning=record.managed,
        )
        batch.declared_tables.append(_DeclaredTable(record, response, request.vend_credentials))
        return [models.CommitTableResult(declare_table=response)]

    return step


@dataclass(frozen=True, slots=True)
class _PlannedVersion:
    """A version to record, and the table it is for as it was when the batch was prepared."""

    path: Id
    table: TableRecord
    new: NewVersion


def _create_versions(batch: Batch, requests: Sequence[models.CreateTableVersionRequest]) -> Step:
    """Return the step of consecutive commits: one query looks up their tables, and one statement records them."""
    paths = [table_id(request.id) for request in requests]
    mounts = batch.ctx.services.mounts
    is_prefetched = batch.ctx.resolved is None and all(mounts.find(path) is None for path in paths)
    tables = batch.ctx.store.find_tables(paths) if is_prefetched else {}
    expected = [_table_to_commit(batch, path, tables.get(path)) for path in paths]
    branches = [Branch.parse(request.branch) for request in requests]
    news = validate_versions(
        batch.ctx,
        list(zip(expected, requests, strict=True)),
        lambda index: batch.latest_version(paths[index], branches[index]),
    )
    planned = list(map(_PlannedVersion, paths, expected, news))
    batch.news += news
    batch.latest.update(zip(zip(paths, branches, strict=True), news, strict=True))

    def step(catalog: UnitOfWork, batch: Batch) -> list[models.CommitTableResult]:
        by_path = catalog.find_tables(paths)
        tables = [by_path.get(plan.path) or catalog.describe_table(plan.path) for plan in planned]
        for plan, table in zip(planned, tables, strict=True):
            _check_unchanged(plan.path, table, plan.table)
        news = [structs.replace(plan.new, table_id=table.id) for plan, table in zip(planned, tables, strict=True)]
        results = []
        for new, table, recorded in zip(news, tables, record_all(catalog, news, batch.transaction), strict=True):
            results.append(models.CommitTableResult())
            batch.committed.append(_CommittedVersion(table, recorded, new, results[-1]))
        return results

    return step


def _table_to_commit(batch: Batch, path: Id, table: TableRecord | None) -> TableRecord:
    """Return the table that a version is for, of the catalog or of this batch."""
    expected = _expected_table(batch, path) if table is None or path in batch.declared else table
    check_commits_here(path, expected)
    return expected


def _expected_table(batch: Batch, path: Id) -> TableRecord:
    """Return the table an operation is for: one of the catalog, or one that this batch declares."""
    if path in batch.declared:
        return TableRecord(0, 0, path.name, batch.declared[path], {}, False, True, False, 0, 0)
    return batch.ctx.find_table(path)


def _check_unchanged(path: Id, record: TableRecord, expected: TableRecord) -> None:
    """Raise TableNotFoundError if another table has the name by now; one that the batch declares has no id before."""
    if record.location != expected.location or expected.id not in (0, record.id):
        raise TableNotFoundError(f"The table {path} was replaced while the batch was prepared.")


def _check_version(batch: Batch, request: models.CheckTableVersionRequest) -> Step:
    """Return the step that refuses the batch if a table has a later version than its caller has read."""
    path, branch = table_id(request.id), Branch.parse(request.branch)
    if path in batch.declared:
        raise InvalidInputError(f"{path} is declared in this batch: nobody has read a version of it before.")
    table = batch.ctx.find_table(path)
    if not table.managed:
        raise UnsupportedOperationError(
            f"{path} commits straight to storage: this catalog cannot tell at which version it is. Leave its check out."
        )
    batch.checked.add(table.id)

    def step(catalog: UnitOfWork, batch: Batch) -> list[models.CommitTableResult]:
        try:
            record = catalog.describe_table(path)
        except (TableNotFoundError, NamespaceNotFoundError):
            record = None
        if record is None or record.id != table.id or request.location not in (None, record.location):
            raise ConcurrentModificationError(f"{path} was dropped or replaced since it was read.")
        latest = catalog.latest_version(record.id, branch.key)
        if latest is not None and latest.version > request.version:
            raise ConcurrentModificationError(
                f"{path} has version {latest.version} by now, and version {request.version} was read."
            )
        response = models.CheckTableVersionResponse(version=request.version)
        return [models.CommitTableResult(check_table_version=response)]

    return step


def _delete_versions(batch: Batch, request: models.BatchDeleteTableVersionsRequest) -> Step:
    path, branch = table_id(request.id), Branch.parse(request.branch)
    table = _expected_table(batch, path)
    ranges = ranges_to_delete(batch.ctx, request, branch, batch.latest_version(path, branch))
    stored = set[int]()
    if path not in batch.declared:
        ranges = exclude_tagged(batch.ctx, table, branch, ranges)
        stored.update(stored_versions(batch.ctx, table, branch))

    def step(catalog: UnitOfWork, batch: Batch) -> list[models.CommitTableResult]:
        record = catalog.describe_table(path)
        _check_unchanged(path, record, table)
        count = delete_versions(catalog, record.id, branch, ranges, stored)
        response = models.BatchDeleteTableVersionsResponse(deleted_count=count)
        return [models.CommitTableResult(delete_table_versions=response)]

    return step


def _check_not_mounted(batch: Batch, path: Id) -> None:
    """Raise UnsupportedOperationError for an entry of another catalog: no batch can make or remove it in one step."""
    if batch.ctx.services.mounts.find(path) is not None:
        raise UnsupportedOperationError(
            f"{path} is below a mount: a batch declares and deregisters tables of this catalog alone."
        )


def _deregister(batch: Batch, request: models.DeregisterTableRequest) -> Step:
    path = table_id(request.id)
    _check_not_mounted(batch, path)
    # A table that this batch alone declared and never wrote to cannot be restored: nothing is kept for that.
    is_empty = path in batch.declared and all(key[0] != path for key in batch.latest)
    keep_ms = 0 if is_empty else batch.ctx.settings.retention_ms
    expected_id = None if path in batch.declared else batch.ctx.resolved_table_id(path)

    def step(catalog: UnitOfWork, batch: Batch) -> list[models.CommitTableResult]:
        record = catalog.remove_table(
            path, delete_folder=False, keep_ms=keep_ms, expected_id=expected_id, withdrawn=is_empty
        )
        if is_empty and record.location in batch.generated_locations:
            catalog.schedule_deletion(record.location, batch.ctx.clock() + RESERVED_MS, RESERVED, batch.transaction)
        response = models.DeregisterTableResponse(id=list(path), location=record.location, properties=record.properties)
        return [models.CommitTableResult(deregister_table=response)]

    return step
