"""Reading tables: queries, their plans, and counts."""

from __future__ import annotations

from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
from lance_namespace.errors import (
    InvalidInputError,
    LanceNamespaceError,
    TableColumnNotFoundError,
    UnsupportedOperationError,
)

from tiltyard.access import Privilege, narrowing_of
from tiltyard.access.needs import on_table
from tiltyard.model.arrow_bodies import ArrowAnswer
from tiltyard.model.ids import table_id
from tiltyard.model.operations import operation
from tiltyard.model.spec import models
from tiltyard.storage.column_cache import branch_key
from tiltyard.storage.datasets import cached_row_count
from tiltyard.storage.errors import lance_errors
from tiltyard.tables.opening import open_cached, open_for_reading
from tiltyard.tables.query.batch_sizes import batch_options
from tiltyard.tables.query.plan import QUERY_INDEX, Search, plan_search
from tiltyard.tables.query.point_lookups import looking_up
from tiltyard.tables.query.policy_enforcement import (
    Within,
    check_search,
    masked_answer,
    narrowed_query,
    open_within,
    quiet,
)
from tiltyard.tables.query.readers import Pages, Reader, readers
from tiltyard.tables.query.scanners import make_scanner
from tiltyard.tables.sql.expressions import check_expression

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import lance
    from lance.dataset import LanceScanner

    from tiltyard.context import Context

_QUERY_INDEX = pa.field(QUERY_INDEX, pa.int32(), nullable=False)
_ROW_OFFSET = "_rowoffset"

_SMALL = 1000
"""Rows up to which an answer is read at once, unless it has more than these bytes."""
_SMALL_BYTES = 1 << 20


@operation(needs=on_table(Privilege.READ, narrowed=True), inline=looking_up, changes=False, query=True)
def query_table(ctx: Context, request: models.QueryTableRequest) -> ArrowAnswer:
    """Rows by vector, by text, by filter, or all of them.

    The first rows are read before this returns, so that what is wrong with a query is known before an answer starts.

    Raises what opening the table raises, InvalidInputError, TableColumnNotFoundError.
    """
    table, bounds = open_within(ctx, request.id, request.branch, request.version)
    pages = None
    if request.version is None and request.k <= _SMALL:
        pages = Pages(ctx.storage.datasets.column_cache, branch_key(table.record.location, request.branch))
    if bounds is not None:
        return _within(ctx, table.dataset, request, bounds, pages)
    with _query_errors(table.dataset):
        return _answer(ctx, plan_search(table.dataset, request), pages)


def _within(
    ctx: Context, dataset: lance.LanceDataset, request: models.QueryTableRequest, bounds: Within, pages: Pages | None
) -> ArrowAnswer:
    """The answer that policies leave."""
    with quiet(), _query_errors(dataset):
        search = check_search(plan_search(dataset, narrowed_query(dataset, request, bounds)), bounds)
        return masked_answer(_answer(ctx, search, pages), request, bounds)


@operation(needs=on_table(Privilege.READ), changes=False, query=True)
def explain_table_query_plan(ctx: Context, request: models.ExplainTableQueryPlanRequest) -> str:
    """How a query would run, without running it. Raises what `query_table` raises."""
    search = _nested(ctx, request.id, request.branch, request.query)
    with _query_errors(search.dataset):
        return _titled([scanner.explain_plan(bool(request.verbose)) for scanner in _timely(ctx, search)])


@operation(needs=on_table(Privilege.READ), changes=False, query=True)
def analyze_table_query_plan(ctx: Context, request: models.AnalyzeTableQueryPlanRequest) -> str:
    """How a query did run: its plan with what each step cost. Raises what `query_table` raises.

    The query is the request's own fields or, as later versions of the specification have it, its field `query`.
    """
    search = _nested(ctx, request.id, request.branch, request.query or _unwrapped(request))
    with _query_errors(search.dataset):
        return _titled([scanner.analyze_plan() for scanner in _timely(ctx, search)])


def _timely(ctx: Context, search: Search) -> Iterator[LanceScanner]:
    """Yield the scanners of a search for as long as somebody waits. Raises ServiceUnavailableError."""
    for scanner in search.scanners():
        ctx.check_deadline()
        yield scanner


def _counting(ctx: Context, request: models.CountTableRowsRequest) -> Context | None:
    """For `inline`: a count in a manifest that is in memory, so that only a local file's name is looked up."""
    if request.predicate is not None or request.version is not None or request.branch:
        return None
    try:
        table = open_cached(ctx, request.id)
        if table is None or narrowing_of(ctx, table.record) is not None:
            return None
        return ctx.with_open_table(table_id(request.id), table)
    except LanceNamespaceError:
        return ctx  # the operation says it again, as quickly


@operation(needs=on_table(Privilege.READ, narrowed=True), inline=_counting, changes=False, query=True)
def count_table_rows(ctx: Context, request: models.CountTableRowsRequest) -> int:
    """The number of rows, or of those a predicate holds for. Raises what `query_table` raises."""
    table, bounds = open_within(ctx, request.id, request.branch, request.version)
    if bounds is None:
        return _count(table.dataset, request.predicate)
    with quiet():
        return _count(table.dataset, bounds.filter(request.predicate, "predicate"))


def _count(dataset: lance.LanceDataset, predicate: str | None) -> int:
    if predicate is None:
        return cached_row_count(dataset)
    check_expression(predicate, "predicate")
    with _query_errors(dataset):
        few = batch_options(dataset, (), {"predicate": predicate})
        if _ROW_OFFSET in predicate.lower():  # a scan knows this column, a count does not
            scanner = make_scanner(dataset, {"columns": [_ROW_OFFSET], "filter": predicate, **few})
            return sum(batch.num_rows for batch in scanner.to_reader())
        # A scanner says more clearly than `dataset.count_rows` what is wrong with a predicate.
        return make_scanner(dataset, {"columns": [], "with_row_id": True, "filter": predicate, **few}).count_rows()


@contextmanager
def _query_errors(dataset: lance.LanceDataset) -> Iterator[None]:
    """Lance's errors as ours, with what is particular to queries."""
    try:
        with lance_errors(dataset):
            yield
    except TableColumnNotFoundError as error:
        if f"'{_ROW_OFFSET}'" not in str(error):
            raise
        raise InvalidInputError(  # Lance knows the offset of a row only where rows are picked by it
            f"{_ROW_OFFSET} picks rows by value alone: write `{_ROW_OFFSET} IN (0, 1, …)`, or page with offset and k."
        ) from error
    except UnsupportedOperationError as error:
        if "AggregateFunction" not in str(error):
            raise
        raise InvalidInputError("A filter or expression is about one row: count() and the like are not.") from error


def _nested(ctx: Context, names: list[str] | None, branch: str | None, query: models.QueryTableRequest) -> Search:
    """The search of a query inside another request; what both say has to agree."""
    if query.id and query.id != names:
        raise InvalidInputError("The query names another table than the request: leave its id out.")
    if query.branch and branch and query.branch != branch:
        raise InvalidInputError("The query names another branch than the request: leave one of them out.")
    dataset = open_for_reading(ctx, names, branch=branch or query.branch, version=query.version).dataset
    with _query_errors(dataset):
        return plan_search(dataset, query)


def _unwrapped(request: models.AnalyzeTableQueryPlanRequest) -> models.QueryTableRequest:
    fields = {"vector": None} | msgspec.to_builtins(request)
    try:
        return msgspec.convert(fields, models.QueryTableRequest)
    except msgspec.ValidationError as error:
        raise InvalidInputError(f"The query to analyze is incomplete: {error}.") from error


def _titled(plans: list[str]) -> str:
    """Several plans as one text, as lancedb joins them."""
    if len(plans) == 1:
        return plans[0]
    return "\n\n".join(f"--- Plan #{number} ---\n{plan}" for number, plan in enumerate(plans, 1))


def _answer(ctx: Context, search: Search, pages: Pages | None) -> ArrowAnswer:
    """The answer: all of it if small, else with its first batch read. Raises Lance's errors."""
    all_readers = readers(search, pages)
    first = next(all_readers)
    schema = _shown(search, first.schema)
    if search.most == 0:
        return ArrowAnswer(schema, [])
    batches = _batches(ctx, search, chain((first,), all_readers))
    small = search.most is not None and search.most * max(1, len(search.nearest)) <= _SMALL
    head: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        head.append(batch)
        size += batch.nbytes
        if not small or size > _SMALL_BYTES:
            return ArrowAnswer(schema, _resumed(head, batches))
    return ArrowAnswer(schema, head)


def _shown(search: Search, schema: pa.Schema) -> pa.Schema:
    """The schema of an answer, from that of its scanners."""
    if not search.hidden and not search.numbered:
        return schema
    fields = [field for field in schema if field.name not in search.hidden]
    return pa.schema([_QUERY_INDEX, *fields] if search.numbered else fields, schema.metadata)


def _batches(ctx: Context, search: Search, found: Iterable[Reader]) -> Iterator[pa.RecordBatch]:
    """The rows of one search after the other, as the answer shows them."""
    with _query_errors(search.dataset):
        for number, reader in enumerate(found):
            ctx.check_deadline()
            left = search.most
            for batch in reader:
                ctx.check_deadline()
                shown = batch
                if search.hidden:
                    shown = batch.select([name for name in batch.schema.names if name not in search.hidden])
                if search.numbered:
                    numbers = pa.repeat(pa.scalar(number, pa.int32()), batch.num_rows)
                    shown = shown.add_column(0, _QUERY_INDEX, numbers)
                yield shown
                if left is not None and (left := left - batch.num_rows) <= 0:
                    break  # to hear that nothing follows would cost another way to Lance's threads and back


def _resumed(head: list[pa.RecordBatch], rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """All batches; those that went out are not kept."""
    while head:
        yield head.pop(0)
    yield from rest
