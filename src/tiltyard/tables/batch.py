"""BatchCommitTables: several tables move together, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from lance_namespace.errors import InvalidInputError, TableNotFoundError

from tiltyard.access.batches import COMMITTING
from tiltyard.access.creating import owner
from tiltyard.faults import Point, reach
from tiltyard.ids import Id, display, table_id
from tiltyard.modes import TransactionStatus
from tiltyard.operations import operation
from tiltyard.spec import models
from tiltyard.store import TableRecord, UnitOfWork, VersionRecord
from tiltyard.tables.finalizing import finalize_all
from tiltyard.tables.managed import new_is_managed
from tiltyard.tables.version_commits import (
    branch_key,
    check_same,
    deletable_ranges,
    staged_version,
    wire_version,
)

if TYPE_CHECKING:
    from tiltyard.context import Context

MOST_OPERATIONS = 1000
BATCH_COMMIT = "batch_commit"


@dataclass(slots=True)
class Batch:
    """A batch on its way: what was looked up on storage before, and what the transaction made."""

    ctx: Context
    declared: dict[Id, str] = field(default_factory=dict)
    latest: dict[tuple[Id, str], int] = field(default_factory=dict)
    staged: list[str] = field(default_factory=list)
    committed: list[tuple[TableRecord, VersionRecord, models.CommitTableResult]] = field(default_factory=list)


Step: TypeAlias = Callable[[UnitOfWork, Batch], models.CommitTableResult]


@operation(needs=COMMITTING)
def batch_commit_tables(ctx: Context, request: models.BatchCommitTablesRequest) -> models.BatchCommitTablesResponse:
    """Declare tables, commit versions, delete version records and deregister tables in one transaction, in order.

    A table declared in a batch may get its first version in it. Raises what each operation raises (all are refused
    then), InvalidInputError (none, more than 1,000, or an entry that does not do exactly one thing).
    """
    if not 0 < len(request.operations) <= MOST_OPERATIONS:
        raise InvalidInputError(
            f"A batch has 1 to {MOST_OPERATIONS} operations: this one has {len(request.operations)}."
        )
    batch = Batch(ctx)
    steps = [_prepared(batch, entry) for entry in request.operations]

    def work(catalog: UnitOfWork) -> tuple[str, list[models.CommitTableResult]]:
        batch.committed.clear()  # the work may be run again
        properties = {"operations": str(len(steps))}
        made = catalog.create_transaction(
            BATCH_COMMIT, None, {}, properties, TransactionStatus.SUCCEEDED, asked_by=ctx.principal.name
        )
        return made.id, [step(catalog, batch) for step in steps]

    reach(Point.BEFORE_RECORD)
    with ctx.storage.syncing(batch.staged):
        transaction, results = ctx.store.transact(work)
    final = finalize_all(ctx, [(table, record) for table, record, _ in batch.committed], synced=True)
    for (table, _, result), record in zip(batch.committed, final, strict=True):
        version = wire_version(table, record)
        result.create_table_version = models.CreateTableVersionResponse(transaction_id=transaction, version=version)
    return models.BatchCommitTablesResponse(transaction_id=transaction, results=results)


def _prepared(batch: Batch, entry: models.CommitTableOperation) -> Step:
    """One operation with all that storage has to say of it: no transaction waits for storage."""
    given = [name for name in entry.__struct_fields__ if getattr(entry, name) is not None]
    if len(given) != 1:
        raise InvalidInputError(f"Each operation of a batch does exactly one thing: this one does {len(given)}.")
    if entry.declare_table is not None:
        return _declare(batch, entry.declare_table)
    if entry.create_table_version is not None:
        return _create_version(batch, entry.create_table_version)
    if entry.delete_table_versions is not None:
        return _delete_versions(batch, entry.delete_table_versions)
    assert entry.deregister_table is not None
    return _deregister(batch, entry.deregister_table)


def _declare(batch: Batch, request: models.DeclareTableRequest) -> Step:
    path, storage = table_id(request.id), batch.ctx.storage
    location = storage.check_location(request.location) if request.location else storage.new_location(path)
    batch.declared[path] = location
    managed, made_by = new_is_managed(batch.ctx, path, request.properties), owner(batch.ctx, path[:-1])
    home = batch.ctx.checked_space(path[:-1])

    def step(catalog: UnitOfWork, batch: Batch) -> models.CommitTableResult:
        record = catalog.insert_table(
            path,
            location,
            request.properties or {},
            managed=managed,
            declared=True,
            registered=bool(request.location),
            owner=made_by,
            home=home,
        )
        return models.CommitTableResult(
            declare_table=models.DeclareTableResponse(
                location=record.location,
                storage_options=storage.public_options(record.location) or None,
                properties=record.properties,
                managed_versioning=record.managed,
            )
        )

    return step


def _create_version(batch: Batch, request: models.CreateTableVersionRequest) -> Step:
    path = table_id(request.id)
    table = _expected(batch, path)
    key = (path, branch_key(request.branch))
    new = staged_version(batch.ctx, table, request, batch.latest.get(key, 0 if path in batch.declared else None))
    batch.latest[key] = request.version
    batch.staged.append(new.staged_path)

    def step(catalog: UnitOfWork, batch: Batch) -> models.CommitTableResult:
        record = catalog.describe_table(path)
        _check_unchanged(path, record, table)
        version = check_same(new, *catalog.record_version(replace(new, table_id=record.id)))
        result = models.CommitTableResult()
        batch.committed.append((record, version, result))
        return result

    return step


def _expected(batch: Batch, path: Id) -> TableRecord:
    """The table a version is for: one that is there, or one that this batch declares."""
    if path in batch.declared:
        return TableRecord(0, 0, path[-1], batch.declared[path], {}, False, True, False, 0, 0)
    return batch.ctx.table(path)


def _check_unchanged(path: Id, record: TableRecord, expected: TableRecord) -> None:
    """Raise TableNotFoundError if another table has the name by now; one that the batch declares has no id before."""
    if record.location != expected.location or expected.id not in (0, record.id):
        raise TableNotFoundError(f"The table {display(path)} was replaced while the batch was prepared.")


def _delete_versions(batch: Batch, request: models.BatchDeleteTableVersionsRequest) -> Step:
    path = table_id(request.id)
    table = _expected(batch, path)
    ranges = [] if path in batch.declared else deletable_ranges(batch.ctx, request)

    def step(catalog: UnitOfWork, batch: Batch) -> models.CommitTableResult:
        record = catalog.describe_table(path)
        _check_unchanged(path, record, table)
        deleted = catalog.delete_versions(record.id, branch_key(request.branch), ranges)
        return models.CommitTableResult(
            delete_table_versions=models.BatchDeleteTableVersionsResponse(deleted_count=deleted)
        )

    return step


def _deregister(batch: Batch, request: models.DeregisterTableRequest) -> Step:
    path, keep_ms = table_id(request.id), batch.ctx.settings.retention_ms
    only = None if path in batch.declared else batch.ctx.checked_table(path)

    def step(catalog: UnitOfWork, batch: Batch) -> models.CommitTableResult:
        record = catalog.remove_table(path, doom=False, keep_ms=keep_ms, only=only)
        return models.CommitTableResult(
            deregister_table=models.DeregisterTableResponse(
                id=list(path), location=record.location, properties=record.properties
            )
        )

    return step
