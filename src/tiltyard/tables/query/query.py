"""Read tables: run queries, explain and analyze their plans, count rows. Which way each takes, `routes` chooses."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import msgspec
from lance_namespace.errors import (
    InvalidInputError,
    InvalidTableStateError,
    LanceNamespaceError,
    PermissionDeniedError,
)

from tiltyard.access.needs import on_table
from tiltyard.model.branches import Branch
from tiltyard.model.operations import ArrowAnswer, SharedWork, operation
from tiltyard.model.principals import Privilege
from tiltyard.model.spec import models
from tiltyard.tables.lance_sql.expressions import check_expression
from tiltyard.tables.opening import check_rte_enabled, explain_disk_cache, with_disk_cache
from tiltyard.tables.query.plan import limit_to_row_ids, plan_search
from tiltyard.tables.query.policy_enforcement import (
    check_search_columns,
    mask_response,
    open_with_policies,
    redact_errors,
    restrict_query,
)
from tiltyard.tables.query.response import query_errors
from tiltyard.tables.query.routes.chooser import (
    analyze,
    caches_for,
    choose,
    choose_count,
    count_on_loop,
    explain,
    query_on_loop,
)
from tiltyard.tables.query.routes.index_in_memory import search_together, waiting_search
from tiltyard.tables.query.routes.route import CountQuery, Offer, Purpose, Query
from tiltyard.tables.query.routes.view import ExpandedView, ask_view_count, find_view
from tiltyard.tables.query.segment_shares import Spread

if TYPE_CHECKING:
    from collections.abc import Callable

    from tiltyard.context import Context, OpenTable
    from tiltyard.tables.query.policy_enforcement import PolicyScope
    from tiltyard.tables.query.routes.route import CountOffer

T = TypeVar("T")


@operation(
    needs=on_table(Privilege.READ, enforces_policies=True),
    inline=query_on_loop,
    shared=SharedWork(waiting_search, search_together),
    changes=False,
    query=True,
)
def query_table(ctx: Context, request: models.QueryTableRequest) -> ArrowAnswer:
    """Return the rows that a query selects by vector, by text, by filter, or all of them.

    The first rows are read before this returns, so that a faulty query fails before the response starts.

    Raises what opening the table raises, InvalidInputError, TableColumnNotFoundError.
    """
    branch = Branch.parse(request.branch)
    _check_rte(ctx, request)
    if (opened := _open(ctx, request.id, branch, request.version)) is None:
        return _counted(ctx, ExpandedView(request)).answer(ctx)
    table, scope = opened

    def answer(table: OpenTable) -> ArrowAnswer:
        with nullcontext() if scope is None else redact_errors(), query_errors(table.dataset):
            if isinstance(table.offer, Offer) and scope is None:
                response = _counted(ctx, table.offer).answer(ctx)
            else:
                response = _counted(ctx, choose(_query_of(ctx, table, branch, request, scope))).answer(ctx)
                response = response if scope is None else mask_response(response, request, scope)
            return replace(response, version=table.snapshot.dataset.version)

    return _read_copy_or_store(ctx, table, branch, request.version, answer)


@operation(needs=on_table(Privilege.READ), changes=False, query=True)
def explain_table_query_plan(ctx: Context, request: models.ExplainTableQueryPlanRequest) -> str:
    """Return the route and the plan of a query, without running it. Raises what `query_table` raises."""
    query = _nested_query(request.id, request.branch, request.query)

    def explained(query: Query | ExpandedView, notes: list[str]) -> str:
        return explain(ctx, query, notes, is_verbose=bool(request.verbose))

    return _plan(ctx, query, Purpose.EXPLAIN, explained)


@operation(needs=on_table(Privilege.READ), changes=False, query=True)
def analyze_table_query_plan(ctx: Context, request: models.AnalyzeTableQueryPlanRequest) -> str:
    """Run a query by its route and return what each step of it cost. Raises what `query_table` raises.

    The query is the request's own fields or, in later versions of the specification, its field `query`.
    """
    query = _nested_query(request.id, request.branch, request.query or _query_fields(request))
    return _plan(ctx, query, Purpose.RUN, lambda query, notes: analyze(ctx, query, notes))


@operation(needs=on_table(Privilege.READ, enforces_policies=True), inline=count_on_loop, changes=False, query=True)
def count_table_rows(ctx: Context, request: models.CountTableRowsRequest) -> int:
    """Return the number of rows, or of those that match a predicate. Raises what `query_table` raises."""
    branch = Branch.parse(request.branch)
    if (opened := _open(ctx, request.id, branch, request.version)) is None:
        if request.predicate is not None:
            check_expression(request.predicate, "predicate")
        return _counted(ctx, ask_view_count(ctx, request)).count()
    table, scope = opened

    def count(table: OpenTable) -> int:
        if table.offer is not None and not isinstance(table.offer, Offer) and scope is None:
            number: int = _counted(ctx, table.offer).count()
            return number
        with nullcontext() if scope is None else redact_errors(), query_errors(table.dataset):
            predicate = request.predicate
            if scope is not None:
                predicate = scope.combine_filter(predicate, "predicate")
            elif predicate is not None:
                check_expression(predicate, "predicate")
            caches = caches_for(ctx, table, branch, request.version)
            return _counted(ctx, choose_count(CountQuery(table.snapshot, predicate, caches))).count()

    return _read_copy_or_store(ctx, table, branch, request.version, count)


AnyOffer = TypeVar("AnyOffer", bound="Offer | CountOffer")


def _counted(ctx: Context, offer: AnyOffer) -> AnyOffer:
    """Count a query by the route that answers it; return the route's offer."""
    ctx.services.route_counts.add(offer.name)
    return offer


def _open(
    ctx: Context, names: list[str] | None, branch: Branch, version: int | None
) -> tuple[OpenTable, PolicyScope | None] | None:
    """Open a table, with what policies allow on it; None for a view, which has no version. Raises as they do."""
    try:
        return open_with_policies(ctx, names, branch, version)
    except InvalidTableStateError:
        if find_view(ctx, names) is None:
            raise
        return None


def _check_rte(ctx: Context, request: models.QueryTableRequest) -> None:
    """Check a query that asks for the real-time engine: it finds each acknowledged row, as any query here does.

    Raises InvalidInputError without its specification, and for a `fast_search`, which leaves rows out.
    """
    if request.use_rte:
        check_rte_enabled(ctx, request.id)
        if request.fast_search:
            raise InvalidInputError(
                "use_rte (use_lsm) asks for all rows, and fast_search leaves out those that no index has: choose one."
            )


def _query_of(
    ctx: Context,
    table: OpenTable,
    branch: Branch,
    request: models.QueryTableRequest,
    scope: PolicyScope | None,
    purpose: Purpose = Purpose.RUN,
) -> Query:
    """Plan a request, restricted to the rows and columns that policies allow. Raises as `plan_search`, and as they."""
    limited = limit_to_row_ids(request)
    if scope is None:
        search = plan_search(table.snapshot, limited)
    else:
        restricted = restrict_query(table.dataset, limited, scope)
        search = check_search_columns(plan_search(table.snapshot, restricted), scope)
    caches = caches_for(ctx, table, branch, request.version, limited.k)
    return Query(search, caches, purpose, request.id or (), Spread.of(ctx, table, request), ctx.segments)


def _read_copy_or_store(
    ctx: Context, table: OpenTable, branch: Branch, version: int | None, read: Callable[[OpenTable], T]
) -> T:
    """Read a table through this machine's disk, where that goes and nothing on it is damaged; else as it was opened."""
    copied = with_disk_cache(ctx, table, branch, version)
    try:
        return read(copied)
    except LanceNamespaceError as error:
        cache, location = ctx.storage.datasets.disk_cache, table.record.location
        if copied is table or not cache.drop_if_damaged(location, copied.snapshot, error):
            raise
        return read(table)


def _plan(
    ctx: Context,
    request: models.QueryTableRequest,
    purpose: Purpose,
    show: Callable[[Query | ExpandedView, list[str]], str],
) -> str:
    """Return what is shown of a query, with notes on where its table is read from. Raises as `query_table` does."""
    branch = Branch.parse(request.branch)
    _check_rte(ctx, request)
    if (opened := _open(ctx, request.id, branch, request.version)) is None:
        return show(ExpandedView(request), [])
    table, scope = opened
    if scope is not None:  # the policy was set after the request was authorized
        raise PermissionDeniedError("Policies restrict you on this table: plans of its queries are not shown.")

    def shown(table: OpenTable) -> str:
        with query_errors(table.dataset):
            copy = explain_disk_cache(ctx, table, branch, request.version)
            return show(_query_of(ctx, table, branch, request, None, purpose), [copy] if copy else [])

    return _read_copy_or_store(ctx, table, branch, request.version, shown)


def _nested_query(
    names: list[str] | None, branch: str | None, query: models.QueryTableRequest
) -> models.QueryTableRequest:
    """Return the query inside another request. Raises InvalidInputError if they name different tables or branches."""
    if query.id and query.id != names:
        raise InvalidInputError("The query names another table than the request: leave its id out.")
    if query.branch and branch and query.branch != branch:
        raise InvalidInputError("The query names another branch than the request: leave one of them out.")
    return msgspec.structs.replace(query, id=names, branch=branch or query.branch)


def _query_fields(request: models.AnalyzeTableQueryPlanRequest) -> models.QueryTableRequest:
    """Return the query that the request's own fields are. Raises InvalidInputError."""
    fields = {"vector": None} | msgspec.to_builtins(request)
    try:
        return msgspec.convert(fields, models.QueryTableRequest)
    except msgspec.ValidationError as error:
        raise InvalidInputError(f"The query to analyze is incomplete: {error}.") from error
