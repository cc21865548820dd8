"""Indexes: create, list, describe, drop and prewarm them. A worker builds them."""

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

from tiltyard.access.needs import on_table
from tiltyard.catalog.jobs.authorization import submitter_payload
from tiltyard.context import Context, OpenTable
from tiltyard.model.branches import Branch
from tiltyard.model.columns.index_types import IndexType, check_parameters, parse_index_type, spec_index_type
from tiltyard.model.ids import Id, table_id
from tiltyard.model.modes import TransactionStatus
from tiltyard.model.operations import operation
from tiltyard.model.principals import Privilege
from tiltyard.model.quotas import FILES
from tiltyard.model.spec import models
from tiltyard.storage.errors import column_not_found, lance_errors
from tiltyard.tables.indexes.build_job import CREATE_INDEX, INDEX_JOB, describe, spark_job_payload
from tiltyard.tables.indexes.build_queue import (
    Builds,
    build_properties,
    cancel,
    dismiss_failures,
    find_builds,
    queued_builds,
)
from tiltyard.tables.indexes.builder import IndexSpec
from tiltyard.tables.opening import open_for_reading
from tiltyard.tables.rows.conflict_retry import commit_with_retry
from tiltyard.tables.schema.field_paths import arrow_field
from tiltyard.upkeep.indexing import INTERNAL_PREFIX, user_indexes

if TYPE_CHECKING:
    import lance
    from lance.lance.indices import IndexDescription

    from tiltyard.store import TransactionRecord

log = logging.getLogger("tiltyard.tables")


@operation(needs=on_table(Privilege.ALTER), stores=FILES)
def create_table_index(ctx: Context, request: models.CreateTableIndexRequest) -> models.CreateTableIndexResponse:
    """Queue the build of an index; the response names the transaction that reports its progress.

    Without a name it is called `<column>_idx`, or `<column>_idx_2` … where another column or an index of another type
    has that name. An index of the same name on the same column is replaced with `replace` (lancedb's remote client
    sets it by default), and is an error without, as the specification has it. Raises
    TableColumnNotFoundError, TableIndexAlreadyExistsError (also when one of that name is being built),
    InvalidInputError (type, column, distance and parameters do not fit), InvalidTableStateError (no data yet).
    """
    return models.CreateTableIndexResponse(
        transaction_id=_queue_build(ctx, request, parse_index_type(request.index_type))
    )


@operation(needs=on_table(Privilege.ALTER))
def create_table_scalar_index(
    ctx: Context, request: models.CreateTableIndexRequest
) -> models.CreateTableScalarIndexResponse:
    """Queue the build of an index, as CreateTableIndex does, of any type but a vector index."""
    kind = parse_index_type(request.index_type)
    if kind.is_vector:
        raise InvalidInputError(f"{kind.value} is a vector index: use create_index.")
    return models.CreateTableScalarIndexResponse(transaction_id=_queue_build(ctx, request, kind))


def _queue_build(ctx: Context, request: models.CreateTableIndexRequest, kind: IndexType) -> str:
    branch = Branch.parse(request.branch)
    table = open_for_reading(ctx, request.id, branch=branch)
    field = arrow_field(table.dataset, request.column)
    checked = check_parameters(kind, field, request)
    _check_joinable(table.dataset, kind, request.column)
    waiting = queued_builds(ctx, table, branch)
    built = {index.name: (index.field_names[0], spec_index_type(index.index_type)) for index in _indices(table.dataset)}
    queued = {record.payload["name"]: record.payload for record in waiting}
    used = built | {name: (payload["column"], payload["index_type"]) for name, payload in queued.items()}
    name = request.name or _default_name(request.column, kind, used)
    if not name.isprintable() or name.startswith(INTERNAL_PREFIX):
        raise InvalidInputError(f"'{name}' cannot be the name of an index.")
    if name in used:
        _check_replaceable(name, used[name][0], request)
    spec = IndexSpec(table.record.location, branch.lance_name, request.column, name, kind.value, checked, name in built)
    return _queue(ctx, table, table_id(request.id), spec, waiting)


def _check_joinable(dataset: lance.LanceDataset, kind: IndexType, column: str) -> None:
    """Raise InvalidTableStateError for an index without rows to which later rows could not be added.

    pylance 14 creates it, and fails then on each attempt to add rows: "No column with name …".
    """
    if kind.is_vector or kind is IndexType.FTS or column in dataset.schema.names or dataset.count_rows():
        return
    raise InvalidTableStateError(f"An index of {column}, which is within a struct, needs rows: insert some first.")


def _default_name(column: str, kind: IndexType, used: dict[str, tuple[str, str]]) -> str:
    """Return the name of the index of this type on this column, if there is one, or the next free name.

    `used` has column and type of each index by its name.
    """
    for name, use in used.items():
        if use == (column, kind.value):
            return name
    names = itertools.chain([f"{column}_idx"], (f"{column}_idx_{number}" for number in itertools.count(2)))
    return next(name for name in names if name not in used)


def _check_replaceable(name: str, column: str, request: models.CreateTableIndexRequest) -> None:
    if column != request.column:
        raise TableIndexAlreadyExistsError(f"The index '{name}' is on the column '{column}': take another name.")
    if not request.replace:
        raise TableIndexAlreadyExistsError(f"The index '{name}' exists: drop it first, replace it, or name another.")


def _queue(ctx: Context, table: OpenTable, path: Id, spec: IndexSpec, waiting: Iterable[TransactionRecord]) -> str:
    """Queue a build, unless an identical one waits already (clients repeat them); return its transaction's id."""
    payload = asdict(spec)
    for record in waiting:
        is_same = {**{name: record.payload[name] for name in payload}, "replaces": spec.replaces} == payload
        if is_same and record.status is TransactionStatus.QUEUED:
            return record.id
    properties = build_properties(path, spec)
    kind = CREATE_INDEX
    is_for_spark = ctx.settings.spark_index_rows and IndexType(spec.index_type).is_distributed
    if is_for_spark and table.dataset.count_rows() >= ctx.settings.spark_index_rows:
        kind, payload = (
            INDEX_JOB,
            {**payload, **spark_job_payload(spec, path), **submitter_payload(ctx, Privilege.ALTER)},
        )
    queued = ctx.store.create_transaction(kind, table.record.id, payload, properties, requested_by=ctx.principal.name)
    return queued.id


def _indices(dataset: lance.LanceDataset) -> list[IndexDescription]:
    with lance_errors(dataset):
        return user_indexes(dataset)


@operation(needs=on_table(Privilege.USE), changes=False)
def list_table_indices(ctx: Context, request: models.ListTableIndicesRequest) -> models.ListTableIndicesResponse:
    """List the indexes by name, with the state of the last build of each: `building`, `failed`, or else `done`.

    An index that is being replaced is listed as it is, since it serves queries meanwhile, with the build's state. A
    failed build is listed with its reason until its index is created again, or dropped. Raises
    TableVersionNotFoundError and what opening a table raises.
    """
    table, built, builds = _open(ctx, request)
    rows = table.dataset.count_rows()
    unfinished = {**builds.failed, **builds.building}
    contents = {name: _queued_content(record, rows, builds) for name, record in unfinished.items()}
    contents |= {index.name: _built_content(table.dataset, index, rows, builds) for index in built}
    scope = f"indices {table_id(request.id)}"
    page, token = ctx.paging.cut_page(scope, request.page_token, request.limit, contents)
    return models.ListTableIndicesResponse(indexes=list(page.values()), page_token=token)


def _open(
    ctx: Context, request: models.ListTableIndicesRequest | models.DescribeTableIndexStatsRequest
) -> tuple[OpenTable, list[IndexDescription], Builds]:
    """Open a table; return its indexes, and the builds of the latest version: another version has none."""
    branch = Branch.parse(request.branch)
    table = open_for_reading(ctx, request.id, branch=branch, version=request.version)
    built = _indices(table.dataset)
    return table, built, find_builds(ctx, table, branch, built) if request.version is None else Builds({}, {})


def _built_content(
    dataset: lance.LanceDataset, index: IndexDescription, rows: int, builds: Builds
) -> models.IndexContent:
    created = min((segment.created_at for segment in index.segments if segment.created_at), default=None)
    return models.IndexContent(
        index_name=index.name,
        index_uuid=index.segments[0].uuid,
        columns=index.field_names,
        status=builds.status(index.name),
        failure=builds.failure(index.name),
        index_type=spec_index_type(index.index_type),
        type_url=index.type_url,
        num_indexed_rows=index.num_rows_indexed,
        num_unindexed_rows=max(rows - index.num_rows_indexed, 0),
        size_bytes=index.total_size_bytes,
        num_segments=len(index.segments),
        created_at=created.isoformat().replace("+00:00", "Z") if created else None,
        index_version=index.segments[0].index_version,
        index_details=json.dumps(index_details(dataset, index)),
    )


def index_details(dataset: lance.LanceDataset, index: IndexDescription) -> dict[str, Any]:
    """Return Lance's details of an index, and the stop words of a text index, which pylance 14 leaves out of them.

    The stop words are in the index itself; one whose files cannot be read is listed without them.
    """
    if spec_index_type(index.index_type) != IndexType.FTS or index.details.get("custom_stop_words"):
        return dict(index.details)
    try:
        segments = dataset.stats.index_stats(index.name).get("indices") or [{}]
    except (OSError, RuntimeError, ValueError) as error:
        log.warning("the parameters of the index %s at %s cannot be read: %s", index.name, dataset.uri, error)
        return dict(index.details)
    words = segments[0].get("params", {}).get("custom_stop_words")
    return {**index.details, "custom_stop_words": words}


def _queued_content(record: TransactionRecord, rows: int, builds: Builds) -> models.IndexContent:
    """Return the entry of an index that does not exist yet; its transaction's id stands for its UUID."""
    name = record.payload["name"]
    return models.IndexContent(
        index_name=name,
        index_uuid=record.id,
        columns=[record.payload["column"]],
        status=builds.status(name),
        failure=builds.failure(name),
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
    """Return how many rows an index has, and the state of its last build: `building`, `failed`, or else `done`.

    Clients wait for an index by polling until no row is left out. So one that is being built has no rows yet, whatever
    the index has that it replaces and that serves queries meanwhile. Raises TableIndexNotFoundError and what opening a
    table raises.
    """
    name = _checked_name(request.index_name)
    table, built, builds = _open(ctx, request)
    index = next((index for index in built if index.name == name), None)
    record = builds.building.get(name) or builds.failed.get(name)
    if index is None and record is None:
        raise _index_not_found(name, built)
    indexed = 0 if index is None or name in builds.building else index.num_rows_indexed
    payload = record.payload if record else {}
    distance = index.details.get("metric_type") if index else payload["parameters"].get("distance_type")
    return models.DescribeTableIndexStatsResponse(
        distance_type=distance.lower() if distance else None,
        index_type=spec_index_type(index.index_type) if index else payload["index_type"],
        num_indexed_rows=indexed,
        num_unindexed_rows=max(table.dataset.count_rows() - indexed, 0),
        num_indices=len(index.segments) if index else 0,
        status=builds.status(name),
        failure=builds.failure(name),
    )


def _checked_name(name: str | None) -> str:
    if not name:
        raise InvalidInputError("Name an index.")
    return name


def _find_index(dataset: lance.LanceDataset, name: str) -> IndexDescription:
    indexes = _indices(dataset)
    for index in indexes:
        if index.name == name:
            return index
    raise _index_not_found(name, indexes)


def _index_not_found(name: str, indexes: Sequence[IndexDescription]) -> TableIndexNotFoundError:
    listed = f" This table has: {', '.join(index.name for index in indexes)}." if indexes else " This table has none."
    return TableIndexNotFoundError(f"No index '{name}'.{listed}")


@operation(needs=on_table(Privilege.ALTER))
def drop_table_index(ctx: Context, request: models.DropTableIndexRequest) -> models.DropTableIndexResponse:
    """Drop an index; its unfinished builds are canceled, and its failed ones are no longer listed.

    Raises TableIndexNotFoundError.
    """
    name = _checked_name(request.index_name)
    branch = Branch.parse(request.branch)
    table = open_for_reading(ctx, request.id, branch=branch)
    waiting = [record for record in queued_builds(ctx, table, branch) if record.payload["name"] == name]
    for record in waiting:
        cancel(ctx, record)
    had_builds = dismiss_failures(ctx, table, branch, name) or bool(waiting)
    if describe(table.dataset, name) is None and had_builds:
        return models.DropTableIndexResponse()

    def change(dataset: lance.LanceDataset) -> None:
        _find_index(dataset, name)
        dataset.drop_index(name)

    commit_with_retry(ctx, request.id, branch, change)
    return models.DropTableIndexResponse()


@operation(needs=on_table(Privilege.READ), changes=False)
def prewarm_table_index(ctx: Context, request: models.PrewarmTableIndexRequest) -> models.PrewarmTableIndexResponse:
    """Load a whole index into the memory of this process, with its positions if requested (full text only).

    Responds when it is loaded. Raises TableIndexNotFoundError.
    """
    name = _checked_name(request.index_name)
    table = open_for_reading(ctx, request.id, branch=Branch.parse(request.branch))
    _find_index(table.dataset, name)
    with lance_errors(table.dataset):
        table.dataset.prewarm_index(name, with_position=bool(request.with_position))
    return models.PrewarmTableIndexResponse()


@operation(needs=on_table(Privilege.READ), changes=False)
def prewarm_table_page_cache(
    ctx: Context, request: models.PrewarmTablePageCacheRequest
) -> models.PrewarmTablePageCacheResponse:
    """Load columns into the column cache of this process: those named, or all that can be cached.

    Responds when they are loaded. Raises TableNotFoundError, TableColumnNotFoundError, UnsupportedOperationError.
    """
    branch = Branch.parse(request.branch)
    table = open_for_reading(ctx, request.id, branch=branch)
    existing = table.dataset.schema.names
    if unknown := [name for name in request.columns or () if name not in existing]:
        raise column_not_found(unknown[0], existing)
    ctx.storage.datasets.column_cache.load((table.record.location, branch), table.dataset, request.columns)
    return models.PrewarmTablePageCacheResponse()
