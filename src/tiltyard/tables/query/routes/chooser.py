"""Choose the route by which a query is answered: to run it, to explain or analyze it, and for the event loop alike.

The first route that can, answers: they are in the order of their costs, but for `view`, which alone answers for views.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lance_namespace.errors import LanceNamespaceError

from tiltyard.access.authorization import effective_policy_of
from tiltyard.context import OpenTable
from tiltyard.model.branches import MAIN
from tiltyard.model.ids import table_id
from tiltyard.tables.opening import open_cached
from tiltyard.tables.query.integer_filters import parse_integer_filter
from tiltyard.tables.query.plan import column_names, limit_to_row_ids, plan_search
from tiltyard.tables.query.response import SMALL_ROWS
from tiltyard.tables.query.routes.cached_columns import CachedColumns
from tiltyard.tables.query.routes.index_in_memory import MAX_LOOP_DIMENSION, IndexInMemory
from tiltyard.tables.query.routes.point_lookup import PointLookup, is_lookup
from tiltyard.tables.query.routes.route import (
    Caches,
    Cost,
    CountQuery,
    Purpose,
    Query,
    Refused,
)
from tiltyard.tables.query.routes.row_take import RowTake
from tiltyard.tables.query.routes.rows_in_memory import RowsInMemory, ask_count_in_memory
from tiltyard.tables.query.routes.scan import Scan, ask_row_count, ask_scan_count
from tiltyard.tables.query.routes.segment_share import SegmentShare
from tiltyard.tables.query.routes.shared_search import SharedSearch
from tiltyard.tables.query.routes.spread_search import SpreadSearch
from tiltyard.tables.query.routes.view import ExpandedView
from tiltyard.tables.query.segment_shares import Spread

if TYPE_CHECKING:
    from tiltyard.context import Context
    from tiltyard.model.branches import Branch
    from tiltyard.model.spec import models
    from tiltyard.tables.query.routes.route import CountOffer, Offer

ROUTES: tuple[type[Offer], ...] = (
    ExpandedView,
    SegmentShare,
    SpreadSearch,
    IndexInMemory,
    RowsInMemory,
    PointLookup,
    RowTake,
    SharedSearch,
    CachedColumns,
    Scan,
)
COUNT_ROUTES = (ask_row_count, ask_count_in_memory, ask_scan_count)

_MAX_LOOP_ROWS = 100
"""Rows of a response up to which a query runs on the event loop."""
_MANY_ROWS = Refused(f"caches serve up to {SMALL_ROWS:,} rows")
_IS_VIEW = Refused("it is a view, whose rows its query makes anew")


def caches_for(
    ctx: Context, table: OpenTable, branch: Branch, version: int | None, max_rows: int = 0
) -> Caches | Refused:
    """Return the caches of a branch, or why they do not serve a request for so many rows of a version."""
    datasets = ctx.storage.datasets
    if max_rows > SMALL_ROWS:
        return _MANY_ROWS
    key = table.record.location, branch
    is_latest = version is None or datasets.shares(*key, table.snapshot)
    return Caches(key, datasets.column_cache, datasets.vector_cache, datasets.processors, is_latest)


def choose(query: Query | ExpandedView) -> Offer:
    """Return how a query is answered, that of a view by its own offer. Raises Lance's errors."""
    if isinstance(query, ExpandedView):
        return query
    for route in ROUTES:
        if not isinstance(offer := route.ask(query), Refused):
            return offer
    raise AssertionError("A scan answers every query.")


def choose_count(query: CountQuery) -> CountOffer:
    """Return how rows are counted. Raises Lance's errors."""
    for ask in COUNT_ROUTES:
        if not isinstance(offer := ask(query), Refused):
            return offer
    raise AssertionError("A scan counts all rows.")


def explain(ctx: Context, query: Query | ExpandedView, notes: list[str], *, is_verbose: bool) -> str:
    """Return which route answers a query and why no other does, some notes, and the plan of what Lance runs.

    Raises Lance's errors, and what planning to read a view raises.
    """
    offer: Offer
    if isinstance(query, ExpandedView):
        offer, refusals = query, [(route.name, _IS_VIEW.reason) for route in ROUTES if route is not ExpandedView]
    else:
        answers = [(route.name, route.ask(query)) for route in ROUTES]
        offer = next(answer for _, answer in answers if not isinstance(answer, Refused))
        refusals = [
            (name, answer.reason if isinstance(answer, Refused) else f"{offer.name} goes before it")
            for name, answer in answers
            if answer is not offer
        ]
    plan = offer.plan(ctx, is_verbose=is_verbose)
    others = [f"Not {name}: {reason}." for name, reason in refusals]
    return "\n".join([_line(offer), *others, *notes, *offer.notes, *filter(None, [plan])])


def analyze(ctx: Context, query: Query | ExpandedView, notes: list[str]) -> str:
    """Run a query by the route that answers it; return which that is, some notes, and its figures.

    Raises what answering it raises.
    """
    offer = choose(query)
    ctx.services.route_counts.add(offer.name)
    return "\n".join([_line(offer), *notes, *offer.notes, *offer.measure(ctx)])


def _line(offer: Offer) -> str:
    return f"Route: {offer.name}: {offer.describe()}; it reads {offer.cost}."


def query_on_loop(ctx: Context, request: models.QueryTableRequest) -> Context | None:
    """For `inline`: return a context with the offer of a route that answers without a thread; None where none does."""
    request = limit_to_row_ids(request)
    if not _is_short(ctx, request):
        return None
    try:
        table = _open_on_loop(ctx, request.id)
        if table is None:
            return None
        caches = caches_for(ctx, table, MAIN, None)
        if isinstance(caches, Refused) or not _was_queried(table, request, caches):
            return None  # to plan it might read
        spread, search = Spread.of(ctx, table, request), plan_search(table.snapshot, request)
        offer = choose(Query(search, caches, Purpose.LOOP, request.id or (), spread))
    except LanceNamespaceError:
        return None  # the operation raises it again, in a thread
    return None if offer.cost is Cost.TABLE else _with_offer(ctx, request.id, table, offer)


def count_on_loop(ctx: Context, request: models.CountTableRowsRequest) -> Context | None:
    """For `inline`: return a context with the offer of a route that counts in memory; None where none does."""
    predicate = request.predicate
    if request.version is not None or request.branch or (predicate and parse_integer_filter(predicate) is None):
        return None
    try:
        table = _open_on_loop(ctx, request.id)
    except LanceNamespaceError:
        return ctx  # the operation raises it again, as quickly
    if table is None:
        return None
    offer = choose_count(CountQuery(table.snapshot, predicate, caches_for(ctx, table, MAIN, None), Purpose.LOOP))
    return None if offer.name == Scan.name else _with_offer(ctx, request.id, table, offer)


def _is_short(ctx: Context, request: models.QueryTableRequest) -> bool:
    """Return whether the event loop may answer a request, by its fields alone."""
    others = (request.version, request.branch, request.order_by, request.use_rte)
    is_by_text = request.full_text_query or request.minhash_query
    if (
        is_by_text
        or request.k > _MAX_LOOP_ROWS
        or any(others)
        or (request.columns and request.columns.column_names is None)
    ):
        return False
    vector = request.vector
    if vector and (vector.single_vector or vector.multi_vector):
        numbers = vector.single_vector or ()
        is_searched = bool(ctx.storage.datasets.vector_cache.max_bytes)
        return is_searched and 0 < len(numbers) <= MAX_LOOP_DIMENSION
    if request.filter is None or request.offset:
        return False
    return is_lookup(request.filter) or parse_integer_filter(request.filter) is not None


def _was_queried(table: OpenTable, request: models.QueryTableRequest, caches: Caches) -> bool:
    """Return whether a version was queried likewise before, so that what a plan needs of it was read."""
    if request.vector and (request.vector.single_vector or request.vector.multi_vector):
        return caches.vectors.is_ready(caches.key, None, table.dataset)
    requested = request.columns.column_names if request.columns else None
    names = column_names(table.snapshot) if requested is None else tuple(requested)
    return caches.columns.known(caches.key, table.dataset, names) is not None


def _open_on_loop(ctx: Context, names: list[str] | None) -> OpenTable | None:
    """Return a cached local table without policies for the principal; None for others. Raises as `open_cached` does."""
    table = open_cached(ctx, names)
    return None if table is None or effective_policy_of(ctx, table.record) is not None else table


def _with_offer(ctx: Context, names: list[str] | None, table: OpenTable, offer: Offer | CountOffer) -> Context:
    return ctx.with_open_table(table_id(names), OpenTable(table.record, table.snapshot, offer))
