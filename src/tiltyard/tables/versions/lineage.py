"""Lineage: what a table was made from, and what was made from it: RecordTableLineage, DescribeLineage.

A job writes what it makes its rows from into the transaction of its commit, and has the catalog index that. The index
is derived: a commit can be indexed again, and says itself what it was made from. Commits of no job have no lineage.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import lance
from lance_namespace.errors import (
    InvalidInputError,
    TableColumnNotFoundError,
    TableVersionNotFoundError,
    TransactionNotFoundError,
)

from tiltyard.access.authorization import authorize_table, is_administrator
from tiltyard.access.needs import on_table
from tiltyard.change_feed.table_history import read_transaction
from tiltyard.model.branches import Branch
from tiltyard.model.ids import Id, table_id
from tiltyard.model.lineage import DEFAULT_DEPTH, MAX_NAME, CommitLineage, LineageSource, strip_credentials
from tiltyard.model.modes import parse_mode
from tiltyard.model.operations import Needs, operation
from tiltyard.model.principals import Privilege
from tiltyard.model.spec import models
from tiltyard.storage.errors import lance_errors
from tiltyard.store.tables.lineage import LineageRecord
from tiltyard.tables.opening import check_version_number, open_for_reading
from tiltyard.tables.versions.lineage_graph import ColumnGraph, Direction, GraphNode, can_use

if TYPE_CHECKING:
    from tiltyard.context import Context
    from tiltyard.store import TableRecord

MAX_DEPTH = 20


# Recording


@operation(needs=on_table(Privilege.WRITE), audited=False, keyed=False)
def record_table_lineage(ctx: Context, request: models.RecordTableLineageRequest) -> models.RecordTableLineageResponse:
    """Index the lineage that a version's commit holds; `recorded` is false for one without, or indexed already.

    Raises what opening the version raises.
    """
    path, branch = table_id(request.id), Branch.parse(request.branch)
    check_version_number(request.version)
    opened = open_for_reading(ctx, path, branch=branch, version=request.version)
    ctx.storage.manifests.check_history(opened.record.location, branch)
    with lance_errors(opened.dataset):
        transaction = read_transaction(opened.dataset, request.version)
    lineage = None if transaction is None else CommitLineage.from_properties(transaction.transaction_properties)
    if transaction is None or lineage is None:
        return models.RecordTableLineageResponse(recorded=False)
    replaces = isinstance(transaction.operation, lance.LanceOperation.Overwrite) or lineage.kind == "refresh"
    recorded = add_commit(ctx, opened.record, branch, request.version, lineage, replaces=replaces)
    return models.RecordTableLineageResponse(recorded=recorded)


def add_commit(
    ctx: Context, record: TableRecord, branch: Branch, version: int, lineage: CommitLineage, *, replaces: bool
) -> bool:
    """Add a commit to the index; return whether it is new. `replaces` says that no row of earlier versions is left."""
    source_ids = tuple(_find_source(ctx, source) for source in lineage.sources)
    principal = _principal_of(ctx, lineage.job)
    is_new = ctx.store.add_lineage(
        LineageRecord.of(
            lineage, record.id, branch.key, version, replaces=replaces, source_ids=source_ids, principal=principal
        )
    )
    ctx.rights_cache.refresh_next()  # columns inherit by it what policies mask
    return is_new


def _find_source(ctx: Context, source: LineageSource) -> int | None:
    """Return the id of the table that a source is, by its location; None for any other, and one the caller cannot see.

    A commit may name any location, and the response of no later call may tell whether a table is there.
    """
    location = (source.location or source.name).rstrip("/")
    record = ctx.store.table_at(location)
    if record is None or record.location != location:
        return None
    return record.id if can_use(ctx, record) else None


def _principal_of(ctx: Context, job: str) -> str:
    """Return who submitted the job of the catalog that a worker runs; for all else the caller."""
    if is_administrator(ctx):
        with suppress(TransactionNotFoundError):
            return ctx.store.describe_transaction(job).requested_by or ctx.principal.name
    return ctx.principal.name


# Answering


def _authorize_start(ctx: Context, request: models.DescribeLineageRequest) -> Context:
    if request.id is None:
        return ctx
    path = table_id(request.id)
    return ctx.with_resolved({path: authorize_table(ctx, path, Privilege.USE.value)})


SEE_LINEAGE = Needs("`use` on the table; of a URI nothing: the tables on which the caller has `use`", _authorize_start)


@operation(needs=SEE_LINEAGE, changes=False)
def describe_lineage(ctx: Context, request: models.DescribeLineageRequest) -> models.DescribeLineageResponse:
    """Follow lineage from a table (`id`), or from a file or folder (`uri`), for up to `depth` steps.

    `upstream` (the default of a table) has what the version was made from, `downstream` what was made from it; of a
    version, what was made from it and later ones. Tables that the caller cannot see are nodes of the kind `hidden`,
    which have no name and end a path. Of a `column`, only what it was made from, or was made from it, with the columns
    of each step. Raises InvalidInputError, TableNotFoundError, NamespaceNotFoundError, TableVersionNotFoundError,
    TableBranchNotFoundError, TableColumnNotFoundError.
    """
    if (request.id is None) == (request.uri is None):
        raise InvalidInputError("Name a table by its id, or a file or folder by its uri, and not both.")
    default = Direction.UPSTREAM if request.uri is None else Direction.DOWNSTREAM
    direction = parse_mode(Direction, request.direction, default, "direction")
    depth = DEFAULT_DEPTH if request.depth is None else request.depth
    if not 1 <= depth <= MAX_DEPTH:
        raise InvalidInputError(f"depth is {depth}: it is at least 1, and at most {MAX_DEPTH}.")
    if request.column is not None and not 0 < len(request.column) <= MAX_NAME:
        raise InvalidInputError(
            f"column has {len(request.column)} characters: it has at least one, at most {MAX_NAME}."
        )
    if request.uri is not None:
        return _describe_uri(ctx, request, direction, depth)
    path, branch = table_id(request.id), Branch.parse(request.branch)
    _check_exists(ctx, path, branch, request.version)
    if request.column is not None:
        _check_column(ctx, path, branch, request.column)
    graph = ColumnGraph(ctx)
    start = graph.add_table(ctx.find_table(path).id, branch.key, 0)
    return _follow(graph, start, direction, depth, request)


def _follow(
    graph: ColumnGraph, start: GraphNode, direction: Direction, depth: int, request: models.DescribeLineageRequest
) -> models.DescribeLineageResponse:
    if request.column is None:
        graph.follow(start, direction, depth, request.version)
    else:
        graph.follow_column(start, request.column, direction, depth, request.version)
    return graph.response()


def _check_column(ctx: Context, path: Id, branch: Branch, column: str) -> None:
    """Raise TableColumnNotFoundError for a column that the table does not have now."""
    names = open_for_reading(ctx, path, branch=branch).dataset.schema.names
    if column not in names:
        raise TableColumnNotFoundError(f"The table has no column '{column}': lineage is of whole columns, by name.")


def _check_exists(ctx: Context, path: Id, branch: Branch, version: int | None) -> None:
    """Raise TableBranchNotFoundError, or TableVersionNotFoundError for a version that is still to come.

    One that was removed has its lineage. A table is opened only where a branch, a version or a column is named.
    """
    if version is not None:
        check_version_number(version)
    if branch.is_main and version is None:
        return
    latest = int(open_for_reading(ctx, path, branch=branch).dataset.version)
    if version is not None and version > latest:
        raise TableVersionNotFoundError(f"There is no version {version}: the latest one is {latest}.")


def _describe_uri(
    ctx: Context, request: models.DescribeLineageRequest, direction: Direction, depth: int
) -> models.DescribeLineageResponse:
    if direction is not Direction.DOWNSTREAM or request.version is not None or request.branch is not None:
        raise InvalidInputError("Of a uri there is what was made from it: leave direction, version and branch out.")
    uri = strip_credentials(request.uri or "").rstrip("/")
    if not 0 < len(uri) <= MAX_NAME:
        raise InvalidInputError(f"uri has {len(uri)} characters: it has at least one, and at most {MAX_NAME}.")
    graph = ColumnGraph(ctx)
    return _follow(graph, graph.add_uri(uri, 0), direction, depth, request)
