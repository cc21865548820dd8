"""Indices: order one, list them, tell how far one is, drop it, load it into memory."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import (
    InvalidInputError,
    InvalidTableStateError,
    TableIndexAlreadyExistsError,
    TableIndexNotFoundError,
)

from tiltyard.access import Privilege
from tiltyard.access.needs import on_table
from tiltyard.catalog.job_admission import asked
from tiltyard.context import Context, OpenTable
from tiltyard.model.ids import Id, display, table_id
from tiltyard.model.index_types import IndexType, index_type, lance_name, parameters
from tiltyard.model.modes import TransactionStatus
from tiltyard.model.operations import operation
from tiltyard.model.spec import models
from tiltyard.storage.column_cache import branch_key
from tiltyard.storage.errors import lance_errors, column_not_found
from tiltyard.tables.indexes.build_job import CREATE_INDEX, INDEX_JOB, describe, index_job
from tiltyard.tables.indexes.build_queue import (
    Orders,
    branch_name,
    cancel,
    find_orders,
    forget_failures,
    unfinished_orders,
)
from tiltyard.tables.indexes.builder import IndexOrder
from tiltyard.tables.opening import open_for_reading
from tiltyard.tables.rows.conflict_retry import commit_with_retry
from tiltyard.tables.schema.field_paths import arrow_field

if TYPE_CHECKING:
    import lance
    from lance.lance.indices import IndexDescription

    from tiltyard.store import TransactionRecord

log = logging.getLogger("tiltyard.tables")

_OWN = "__lance_"
"""How the names of indices begin that Lance keeps for itself."""


@operation(needs=on_table(Privilege.ALTER))
def create_table_index(ctx: Context, request: models.CreateTableIndexRequest) -> models.CreateTableIndexResponse:
    """Order an index; a worker builds it, and the answer names the transaction that tells how far it is.

    Without a name it is called `<column>_idx`, or `<column>_idx_2` … where another column or an index of another type
    has that name. An index of the same name on the same column is replaced with `replace` (lancedb's remote client
    means it unless it says otherwise), and is an error without, as the specification has it. Raises
    TableColumnNotFoundError, TableIndexAlreadyExistsError (also when one of that name is being built),
    InvalidInputError (type, column, distance and parameters do not fit), InvalidTableStateError (no data yet).
    """
    return models.CreateTableIndexResponse(transaction_id=_order(ctx, request, index_type(request.index_type)))


@operation(needs=on_table(Privilege.ALTER))
def create_table_scalar_index(
    ctx: Context, request: models.CreateTableIndexRequest
) -> models.CreateTableScalarIndexResponse:
    """Do what CreateTableIndex does, for the types that are no vector index."""
    kind = index_type(request.index_type)
    if kind.is_vector:
        raise InvalidInputError(f"{kind.value} is a vector index: use create_index.")
    return models.CreateTableScalarIndexResponse(transaction_id=_order(ctx, request, kind))


def _order(ctx: Context, request: models.CreateTableIndexRequest, kind: IndexType) -> str:
    table = open_for_reading(ctx, request.id, branch=request.branch)
    field = arrow_field(table.dataset, request.column)
    checked = parameters(kind, field, request)
    _check_joinable(table.dataset, kind, request.column)
    branch = branch_name(request.branch)
    waiting = unfinished_orders(ctx, table, branch)
    built = {found.name: (found.field_names[0], lance_name(found.index_type)) for found in _indices(table.dataset)}
    ordered = {record.payload["name"]: record.payload for record in waiting}
    taken = built | {name: (payload["column"], payload["index_type"]) for name, payload in ordered.items()}
    name = request.name or _free_name(request.column, kind, taken)
    if not name.isprintable() or name.startswith(_OWN):
        raise InvalidInputError(f"'{name}' cannot be the name of an index.")
    if name in taken:
        _check_replaceable(name, taken[name][0], request)
    order = IndexOrder(table.record.location, branch, request.column, name, kind.value, checked, name in built)
    return _queued(ctx, table, table_id(request.id), order, waiting)


def _check_joinable(dataset: lance.LanceDataset, kind: IndexType, column: str) -> None:
    """Raise InvalidTableStateError for an index of no rows that later ones could not join.

    pylance 14 makes it, and fails then on each attempt to bring rows in: "No column with name …".
    """
    if kind.is_vector or kind is IndexType.FTS or column in dataset.schema.names or dataset.count_rows():
        return
    raise InvalidTableStateError(f"An index of {column}, which is within a struct, needs rows: insert some first.")


def _free_name(column: str, kind: IndexType, taken: dict[str, tuple[str, str]]) -> str:
    """The name of the index of this type on this column, if there is one, or the next that is free."""
    for name, use in taken.items():
        if use == (column, kind.value):
            return name
    names = itertools.chain([f"{column}_idx"], (f"{column}_idx_{number}" for number in itertools.count(2)))
    return next(name for name in names if name not in taken)


def _check_replaceable(name: str, column: str, request: models.CreateTableIndexRequest) -> None:
    if column != request.column:
        raise TableIndexAlreadyExistsError(f"The index '{name}' is on the column '{column}': take another name.")
    if not request.replace:
        raise TableIndexAlreadyExistsError(f"The index '{name}' exists: drop it first, replace it, or name another.")


def _queued(ctx: Context, table: OpenTable, path: Id, order: IndexOrder, waiting: Iterable[TransactionRecord]) -> str:
    """The transaction's id; an order that waits already, word for word, is not given twice (clients repeat them)."""
    payload = asdict(order)
    for record in waiting:
        same = {**{name: record.payload[name] for name in payload}, "replaces": order.replaces} == payload
        if same and record.status is TransactionStatus.QUEUED:
            return record.id
    properties = {
        "index_name": order.name,
        "column": order.column,
        "index_type": order.index_type,
        "progress": "0.0",
    }
    kind = CREATE_INDEX
    if ctx.settings.spark_index_rows and table.dataset.count_rows() >= ctx.settings.spark_index_rows:
        kind, payload = INDEX_JOB, {**payload, **index_job(order, path), **asked(ctx, Privilege.ALTER)}
    queued = ctx.store.create_transaction(kind, table.record.id, payload, properties, requested_by=ctx.principal.name)
    return queued.id


def _indices(dataset: lance.LanceDataset) -> list[IndexDescription]:
    """The indices that users know of."""
    with lance_errors(dataset):
        return [found for found in dataset.describe_indices() if not found.name.startswith(_OWN)]


@operation(needs=on_table(Privilege.USE), changes=False)
def list_table_indices(ctx: Context, request: models.ListTableIndicesRequest) -> models.ListTableIndicesResponse:
    """List the indices by name, with the state of the last order of each: `building`, `failed`, or else `done`.

    One that replaces another is listed as the one there is, which serves queries meanwhile, with the order's state. A
    failed order is listed with its reason until its index is ordered again, or dropped. Raises
    TableVersionNotFoundError and what opening a table raises.
    """
    table = open_for_reading(ctx, request.id, branch=request.branch, version=request.version)
    built = _indices(table.dataset)
    orders = _orders(ctx, table, request, built)
    rows = table.dataset.count_rows()
    ordered = {**orders.failed, **orders.building}
    found = {name: _ordered(record, rows, orders) for name, record in ordered.items()}
    found |= {entry.name: _built(table.dataset, entry, rows, orders) for entry in built}
    entries = sorted(found.values(), key=lambda entry: entry.index_name)

    def after(name: str | None, count: int) -> Sequence[models.IndexContent]:
        return [entry for entry in entries if name is None or entry.index_name > name][:count]

    scope = f"indices {display(table_id(request.id))}"
    page, token = ctx.paging.page(scope, request.page_token, request.limit, after, lambda entry: entry.index_name)
    return models.ListTableIndicesResponse(indexes=list(page), page_token=token)


def _orders(
    ctx: Context,
    table: OpenTable,
    request: models.ListTableIndicesRequest | models.DescribeTableIndexStatsRequest,
    built: Sequence[IndexDescription],
) -> Orders:
    """What is ordered of the latest version; nothing is of another one."""
    if request.version is not None:
        return Orders({}, {})
    return find_orders(ctx, table, branch_name(request.branch), built)


def _built(dataset: lance.LanceDataset, found: IndexDescription, rows: int, orders: Orders) -> models.IndexContent:
    created = min((segment.created_at for segment in found.segments if segment.created_at), default=None)
    return models.IndexContent(
        index_name=found.name,
        index_uuid=found.segments[0].uuid,
        columns=found.field_names,
        status=orders.status(found.name),
        failure=orders.failure(found.name),
        index_type=lance_name(found.index_type),
        type_url=found.type_url,
        num_indexed_rows=found.num_rows_indexed,
        num_unindexed_rows=max(rows - found.num_rows_indexed, 0),
        size_bytes=found.total_size_bytes,
        num_segments=len(found.segments),
        created_at=created.isoformat().replace("+00:00", "Z") if created else None,
        index_version=found.segments[0].index_version,
        index_details=json.dumps(_details(dataset, found)),
    )


def _details(dataset: lance.LanceDataset, found: IndexDescription) -> dict[str, Any]:
    """What Lance tells of an index, and the stop words of a text index, which pylance 14 leaves out of that.

    They are in the index itself; one whose files cannot be read is listed without them.
    """
    if lance_name(found.index_type) != IndexType.FTS or found.details.get("custom_stop_words"):
        return dict(found.details)
    try:
        segments = dataset.stats.index_stats(found.name).get("indices") or [{}]
    except (OSError, RuntimeError, ValueError) as error:
        log.warning("the parameters of the index %s at %s cannot be read: %s", found.name, dataset.uri, error)
        return dict(found.details)
    words = segments[0].get("params", {}).get("custom_stop_words")
    return {**found.details, "custom_stop_words": words}


def _ordered(record: TransactionRecord, rows: int, orders: Orders) -> models.IndexContent:
    """An index that is not there; its transaction's id stands for its own."""
    name = record.payload["name"]
    return models.IndexContent(
        index_name=name,
        index_uuid=record.id,
        columns=[record.payload["column"]],
        status=orders.status(name),
        failure=orders.failure(name),
        index_type=record.payload["index_type"],
        num_indexed_rows=0,
        num_unindexed_rows=rows,
        num_segments=0,
        index_details=json.dumps(record.payload["parameters"]),
    )


@operation(needs=on_table(Privilege.USE), changes=False)
def describe_table_index_stats(
    ctx: Context, request: models.DescribeTableIndexStatsRequest
) -> models.DescribeTableIndexStatsResponse:
    """Tell how many rows an index holds, and the state of its last order: `building`, `failed`, or else `done`.

    Clients wait for an index by asking until no row is left out. So one that is being built holds no row yet, whatever
    the one that it replaces, which serves queries meanwhile, holds. Raises TableIndexNotFoundError and what opening a
    table raises.
    """
    name = _named(request.index_name)
    table = open_for_reading(ctx, request.id, branch=request.branch, version=request.version)
    built = _indices(table.dataset)
    orders = _orders(ctx, table, request, built)
    found = next((entry for entry in built if entry.name == name), None)
    record = orders.building.get(name) or orders.failed.get(name)
    if found is None and record is None:
        raise _no_index(name, built)
    indexed = 0 if found is None or name in orders.building else found.num_rows_indexed
    ordered = record.payload if record else {}
    distance = found.details.get("metric_type") if found else ordered["parameters"].get("distance_type")
    return models.DescribeTableIndexStatsResponse(
        distance_type=distance.lower() if distance else None,
        index_type=lance_name(found.index_type) if found else ordered["index_type"],
        num_indexed_rows=indexed,
        num_unindexed_rows=max(table.dataset.count_rows() - indexed, 0),
        num_indices=len(found.segments) if found else 0,
        status=orders.status(name),
        failure=orders.failure(name),
    )


def _named(name: str | None) -> str:
    if not name:
        raise InvalidInputError("Name an index.")
    return name


def _find(dataset: lance.LanceDataset, name: str) -> IndexDescription:
    found = _indices(dataset)
    for entry in found:
        if entry.name == name:
            return entry
    raise _no_index(name, found)


def _no_index(name: str, found: Sequence[IndexDescription]) -> TableIndexNotFoundError:
    listed = f" This table has: {', '.join(entry.name for entry in found)}." if found else " This table has none."
    return TableIndexNotFoundError(f"No index '{name}'.{listed}")


@operation(needs=on_table(Privilege.ALTER))
def drop_table_index(ctx: Context, request: models.DropTableIndexRequest) -> models.DropTableIndexResponse:
    """Drop an index; one that is being built is not built to its end, and one that failed is told no more.

    Raises TableIndexNotFoundError.
    """
    name = _named(request.index_name)
    table, branch = open_for_reading(ctx, request.id, branch=request.branch), branch_name(request.branch)
    waiting = [record for record in unfinished_orders(ctx, table, branch) if record.payload["name"] == name]
    for record in waiting:
        cancel(ctx, record)
    ordered = forget_failures(ctx, table, branch, name) or bool(waiting)
    if describe(table.dataset, name) is None and ordered:
        return models.DropTableIndexResponse()

    def change(dataset: lance.LanceDataset) -> None:
        _find(dataset, name)
        dataset.drop_index(name)

    commit_with_retry(ctx, request.id, request.branch, change)
    return models.DropTableIndexResponse()


@operation(needs=on_table(Privilege.READ), changes=False)
def prewarm_table_index(ctx: Context, request: models.PrewarmTableIndexRequest) -> models.PrewarmTableIndexResponse:
    """Load an index into the memory of this process, all of it; with its positions if asked for (full text only).

    Answers when it is there. Raises TableIndexNotFoundError.
    """
    name = _named(request.index_name)
    table = open_for_reading(ctx, request.id, branch=request.branch)
    _find(table.dataset, name)
    with lance_errors(table.dataset):
        table.dataset.prewarm_index(name, with_position=bool(request.with_position))
    return models.PrewarmTableIndexResponse()


@operation(needs=on_table(Privilege.READ), changes=False)
def prewarm_table_page_cache(
    ctx: Context, request: models.PrewarmTablePageCacheRequest
) -> models.PrewarmTablePageCacheResponse:
    """Load columns into the memory of this process, all that can be kept there unless named.

    Answers when they are there. Raises TableNotFoundError, TableColumnNotFoundError, UnsupportedOperationError.
    """
    table = open_for_reading(ctx, request.id, branch=request.branch)
    known = table.dataset.schema.names
    if unknown := [name for name in request.columns or () if name not in known]:
        raise column_not_found(unknown[0], known)
    place = branch_key(table.record.location, request.branch)
    ctx.storage.datasets.column_cache.load(place, table.dataset, request.columns)
    return models.PrewarmTablePageCacheResponse()
