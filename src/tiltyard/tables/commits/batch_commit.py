"""BatchCommitTables: several tables move together, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, TypeAlias

from lance_namespace.errors import (
    InvalidInputError,
    NamespaceNotFoundError,
    TableNotFoundError,
    TableVersionNotFoundError,
)
from msgspec import structs

from tiltyard.access.batch_checks import COMMITTING
from tiltyard.access.create_checks import owner
from tiltyard.model.ids import Id, display, table_id
from tiltyard.model.modes import TransactionStatus
from tiltyard.model.operations import operation
from tiltyard.model.spec import models
from tiltyard.runtime.failpoints import Point, reach
from tiltyard.store import RESERVED, NewVersion, TableRecord, UnitOfWork, VersionRecord
from tiltyard.tables.commits.commit import deletable_ranges
from tiltyard.tables.commits.commit_requests import check_same, not_kept, staged_version, wire_version
from tiltyard.tables.commits.finalizing import finalize_batch, overtaken
from tiltyard.tables.credentials import own_options
from tiltyard.tables.opening import find_table
from tiltyard.tables.versions.deleted_versions import delete_versions, without_tagged
from tiltyard.tables.versions.lost_versions import recording
from tiltyard.tables.versions.managed import new_is_managed
from tiltyard.tables.versions.records import branch_key, stored_versions

if TYPE_CHECKING:
    from tiltyard.context import Context

MOST_OPERATIONS = 1000
BATCH_COMMIT = "batch_commit"
RESERVED_MS = 7 * 24 * 3600 * 1000
"""How long a folder waits for its table, where a batch has declared and deregistered that to learn of its location."""


@dataclass(slots=True)
class Batch:
    """A batch on its way: what was looked up on storage before, and what the transaction made."""

    ctx: Context
    transaction: str = ""
    declared: dict[Id, str] = field(default_factory=dict)
    chosen: set[str] = field(default_factory=set)
    """The locations among them that are the server's choice, now or in a batch before."""
    made: list[tuple[TableRecord, models.DeclareTableResponse, bool | None]] = field(default_factory=list)
    """The tables declared, what is answered of them, and whether credentials were asked for."""
    latest: dict[tuple[Id, str], NewVersion] = field(default_factory=dict)
    news: list[NewVersion] = field(default_factory=list)
    committed: list[tuple[TableRecord, VersionRecord, NewVersion, models.CommitTableResult]] = field(
        default_factory=list
    )

    def before(self, path: Id, branch: str | None) -> NewVersion | int | None:
        """The version that is the latest so far, as far as this batch knows: 0 of a table that it declares."""
        return self.latest.get((path, branch_key(branch)), 0 if path in self.declared else None)


Step: TypeAlias = Callable[[UnitOfWork, Batch], list[models.CommitTableResult]]
"""One operation, or several in a row that are quicker together."""


@operation(needs=COMMITTING)
def batch_commit_tables(ctx: Context, request: models.BatchCommitTablesRequest) -> models.BatchCommitTablesResponse:
    """Declare tables, commit versions, delete version records and deregister tables in one transaction, in order.

    A table declared in a batch may get its first version in it. One that is declared without a location, and then
    deregistered, leaves its folder reserved for RESERVED_MS: a later batch of the same principal may name it, in order
    to make the table or to go on like this.
    Raises what each operation raises (all are refused then), InvalidInputError (none, more than 1,000, or an entry that
    does not do exactly one thing). The batch is committed, nevertheless, with ServiceUnavailableError (no credentials
    can be made, or manifests are put into their places later) and InternalError (a version was lost to a commit round
    the server).
    """
    if not 0 < len(request.operations) <= MOST_OPERATIONS:
        raise InvalidInputError(
            f"A batch has 1 to {MOST_OPERATIONS} operations: this one has {len(request.operations)}."
        )
    batch = Batch(ctx)
    steps = list(_steps(batch, request.operations))

    def work(catalog: UnitOfWork) -> models.BatchCommitTablesResponse:
        batch.committed.clear()  # the work may be run again
        batch.made.clear()
        properties = {"operations": str(len(request.operations))}
        made = catalog.create_transaction(
            BATCH_COMMIT, None, {}, properties, TransactionStatus.SUCCEEDED, asked_by=ctx.principal.name
        )
        batch.transaction = made.id
        results = [result for step in steps for result in step(catalog, batch)]
        for table, record, _, result in batch.committed:
            version = wire_version(table, record)
            result.create_table_version = models.CreateTableVersionResponse(transaction_id=made.id, version=version)
        return models.BatchCommitTablesResponse(transaction_id=made.id, results=results)

    reach(Point.BEFORE_RECORD)
    with ctx.storage.syncing(not_kept(batch.news)):
        answer = recording(ctx, batch.news, lambda: ctx.transact(work))
    final = finalize_batch(ctx, [one[:2] for one in batch.committed], [new for _, _, new, _ in batch.committed])
    for (table, _, _, result), record in zip(batch.committed, final, strict=True):
        assert result.create_table_version is not None
        result.create_table_version.version = wire_version(table, record)
    for table, declared, vend in batch.made:
        declared.storage_options = own_options(ctx, table, vend)
    return answer


def told_again(
    ctx: Context, request: models.BatchCommitTablesRequest, answer: models.BatchCommitTablesResponse
) -> models.BatchCommitTablesResponse:
    """The answer of a batch that was committed, once its manifests are in place; what is gone by now was there.

    Raises what the batch itself does behind its record: ServiceUnavailableError, InternalError.
    """
    commits = []
    for entry, result in zip(request.operations, answer.results or (), strict=True):
        asked, made = entry.create_table_version, result.create_table_version
        if asked is None or made is None or made.version is None:
            continue
        version = made.version.version
        try:
            table = find_table(ctx, asked.id)
            staged = ctx.storage.manifests.named(table.location, asked.manifest_path)
        except (NamespaceNotFoundError, TableNotFoundError, InvalidInputError):
            continue  # dropped, or another table has its name
        with suppress(TableVersionNotFoundError):
            record = ctx.store.describe_version(table.id, version, branch_key(asked.branch))
            if record.staged_path == staged:
                commits.append((table, record))
                continue
        if ctx.storage.stat(table.location, staged) is not None:  # it never got its place
            raise overtaken(table, version)
    finalize_batch(ctx, commits)
    return answer


def _steps(batch: Batch, operations: Sequence[models.CommitTableOperation]) -> Iterator[Step]:
    """The operations with all that storage has to say of them: no transaction waits for storage."""
    for _, entries in groupby(operations, _creates_version):
        those = list(entries)
        versions = [entry.create_table_version for entry in those if entry.create_table_version is not None]
        if versions:
            yield _create_versions(batch, versions)
        else:
            yield from (_prepared(batch, entry) for entry in those)


def _creates_version(entry: models.CommitTableOperation) -> bool:
    given = [name for name in entry.__struct_fields__ if getattr(entry, name) is not None]
    if len(given) != 1:
        raise InvalidInputError(f"Each operation of a batch does exactly one thing: this one does {len(given)}.")
    return entry.create_table_version is not None


def _prepared(batch: Batch, entry: models.CommitTableOperation) -> Step:
    """An operation that creates no version."""
    if entry.declare_table is not None:
        return _declare(batch, entry.declare_table)
    if entry.delete_table_versions is not None:
        return _delete_versions(batch, entry.delete_table_versions)
    assert entry.deregister_table is not None
    return _deregister(batch, entry.deregister_table)


def _declare(batch: Batch, request: models.DeclareTableRequest) -> Step:
    path, storage = table_id(request.id), batch.ctx.storage
    location = storage.check_location(request.location) if request.location else storage.new_location(path)
    batch.declared[path] = location
    if not request.location or batch.ctx.store.is_reserved(location, batch.ctx.principal.name):
        batch.chosen.add(location)
    batch.latest = {key: new for key, new in batch.latest.items() if key[0] != path}  # of one deregistered before
    managed, made_by = new_is_managed(batch.ctx, path, request.properties), owner(batch.ctx, path[:-1])
    home = batch.ctx.resolved_namespace_id(path[:-1])

    def step(catalog: UnitOfWork, batch: Batch) -> list[models.CommitTableResult]:
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
        declared = models.DeclareTableResponse(
            location=record.location,
            storage_options=storage.public_options(record.location) or None,
            properties=record.properties,
            managed_versioning=record.managed,
        )
        batch.made.append((record, declared, request.vend_credentials))
        return [models.CommitTableResult(declare_table=declared)]

    return step


@dataclass(frozen=True, slots=True)
class _Planned:
    """A version to record, and the table it is for as it was when the batch was prepared."""

    path: Id
    table: TableRecord
    new: NewVersion


def _create_versions(batch: Batch, requests: Sequence[models.CreateTableVersionRequest]) -> Step:
    """Versions one after the other: their tables are looked up together, and they are recorded by one statement."""
    paths = [table_id(request.id) for request in requests]
    known = batch.ctx.store.find_tables(paths) if batch.ctx.resolved is None else {}
    planned = [_planned(batch, path, known.get(path), request) for path, request in zip(paths, requests, strict=True)]

    def step(catalog: UnitOfWork, batch: Batch) -> list[models.CommitTableResult]:
        there = catalog.find_tables(paths)
        tables = [there.get(one.path) or catalog.describe_table(one.path) for one in planned]
        for one, table in zip(planned, tables, strict=True):
            _check_unchanged(one.path, table, one.table)
        news = [structs.replace(one.new, table_id=table.id) for one, table in zip(planned, tables, strict=True)]
        results = []
        for new, table, pair in zip(news, tables, catalog.record_versions(news), strict=True):
            results.append(models.CommitTableResult())
            batch.committed.append((table, check_same(new, *pair), new, results[-1]))
        return results

    return step


def _planned(batch: Batch, path: Id, known: TableRecord | None, request: models.CreateTableVersionRequest) -> _Planned:
    table = _expected(batch, path) if known is None or path in batch.declared else known
    new = staged_version(batch.ctx, table, request, batch.before(path, request.branch), alone=False)
    batch.latest[path, branch_key(request.branch)] = new
    batch.news.append(new)
    return _Planned(path, table, new)


def _expected(batch: Batch, path: Id) -> TableRecord:
    """The table an operation is for: one that is there, or one that this batch declares."""
    if path in batch.declared:
        return TableRecord(0, 0, path[-1], batch.declared[path], {}, False, True, False, 0, 0)
    return batch.ctx.find_table(path)


def _check_unchanged(path: Id, record: TableRecord, expected: TableRecord) -> None:
    """Raise TableNotFoundError if another table has the name by now; one that the batch declares has no id before."""
    if record.location != expected.location or expected.id not in (0, record.id):
        raise TableNotFoundError(f"The table {display(path)} was replaced while the batch was prepared.")


def _delete_versions(batch: Batch, request: models.BatchDeleteTableVersionsRequest) -> Step:
    path = table_id(request.id)
    table = _expected(batch, path)
    ranges = deletable_ranges(batch.ctx, request, batch.before(path, request.branch))
    stored = set[int]()
    if path not in batch.declared:
        ranges = without_tagged(batch.ctx, table, request.branch, ranges)
        stored.update(stored_versions(batch.ctx, table, branch_key(request.branch)))

    def step(catalog: UnitOfWork, batch: Batch) -> list[models.CommitTableResult]:
        record = catalog.describe_table(path)
        _check_unchanged(path, record, table)
        deleted = delete_versions(catalog, record.id, request.branch, ranges, stored)
        answer = models.BatchDeleteTableVersionsResponse(deleted_count=deleted)
        return [models.CommitTableResult(delete_table_versions=answer)]

    return step


def _deregister(batch: Batch, request: models.DeregisterTableRequest) -> Step:
    path = table_id(request.id)
    nothing = path in batch.declared and all(key[0] != path for key in batch.latest)  # for anybody to bring back
    keep_ms = 0 if nothing else batch.ctx.settings.retention_ms
    only = None if path in batch.declared else batch.ctx.resolved_table_id(path)

    def step(catalog: UnitOfWork, batch: Batch) -> list[models.CommitTableResult]:
        record = catalog.remove_table(path, doom=False, keep_ms=keep_ms, only=only)
        if nothing and record.location in batch.chosen:
            catalog.doom(record.location, batch.ctx.clock() + RESERVED_MS, RESERVED, batch.transaction)
        answer = models.DeregisterTableResponse(id=list(path), location=record.location, properties=record.properties)
        return [models.CommitTableResult(deregister_table=answer)]

    return step
