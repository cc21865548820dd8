"""Read tables: run queries, explain and analyze their plans, count rows."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

import msgspec
import pyarrow as pa
from lance_namespace.errors import (
    InvalidInputError,
    InvalidTableStateError,
    LanceNamespaceError,
    TableColumnNotFoundError,
    UnsupportedOperationError,
)

from tiltyard.access.needs import on_table
from tiltyard.model.branches import Branch
from tiltyard.model.operations import ArrowAnswer, SharedWork, operation
from tiltyard.model.principals import EVERYBODY
from tiltyard.model.privileges import Privilege
from tiltyard.model.spec import models
from tiltyard.runtime.processors import processors_of
from tiltyard.storage.errors import lance_errors
from tiltyard.tables.opening import explain_copy_on_disk, open_for_reading, with_copy_on_disk
from tiltyard.tables.query.batch_sizes import batch_options
from tiltyard.tables.query.memory_search import query_inline, search_together, waiting_search
from tiltyard.tables.query.plan import QUERY_INDEX, Search, limit_to_row_ids, plan_search
from tiltyard.tables.query.point_lookups import count_inline
from tiltyard.tables.query.policy_enforcement import (
    PolicyScope,
    check_search_columns,
    mask_response,
    open_with_policies,
    redact_errors,
    restrict_query,
)
from tiltyard.tables.query.readers import CachedColumns, Reader, open_readers
from tiltyard.tables.query.scanners import make_scanner
from tiltyard.tables.query.search_effort import choose_effort
from tiltyard.tables.query.view_rows import VIEW_BYTES, count_view, find_view, load_view, scan_view
from tiltyard.tables.sql.expressions import check_expression

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import lance
    from lance.dataset import LanceScanner

    from tiltyard.context import Context, OpenTable
    from tiltyard.runtime.budgets import Reservation
    from tiltyard.storage.version_cache import Snapshot

T = TypeVar("T")

_QUERY_INDEX = pa.field(QUERY_INDEX, pa.int32(), nullable=False)
_ROW_OFFSET = "_rowoffset"

_SMALL_ROWS = 1000
"""Rows up to which a response is read as a whole, unless it has more than `_SMALL_BYTES`."""
_SMALL_BYTES = 1 << 20


@operation(
    needs=on_table(Privilege.READ, enforces_policies=True),
    inline=query_inline,
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
    try:
        table, scope = open_with_policies(ctx, request.id, branch, request.version)
    except InvalidTableStateError:
        if find_view(ctx, request.id) is None:
            raise
        return _query_view(ctx, request)
    request = limit_to_row_ids(request)

    def answer(table: OpenTable) -> ArrowAnswer:
        if table.search_call is not None and scope is None:
            reader = table.search_call.reader()
            return ArrowAnswer(reader.schema, [*reader.batches])
        cached_columns = _caches_for(ctx, table, branch, request)
        if scope is not None:
            return _query_with_policies(ctx, table.snapshot, request, scope, cached_columns)
        with _query_errors(table.dataset):
            return _read_response(ctx, table.search or plan_search(table.snapshot, request), cached_columns)

    return _read_copy_or_store(ctx, table, branch, request.version, answer)


def _read_copy_or_store(
    ctx: Context, table: OpenTable, branch: Branch, version: int | None, read: Callable[[OpenTable], T]
) -> T:
    """Read a table from its copy on this machine's disk, if there is one that is not damaged; else as it was opened."""
    copied = with_copy_on_disk(ctx, table, branch, version)
    try:
        return read(copied)
    except LanceNamespaceError as error:
        cache, location = ctx.storage.datasets.disk_cache, table.record.location
        if copied is table or not cache.drop_if_damaged(location, copied.snapshot, error):
            raise
        return read(table)


def _caches_for(
    ctx: Context, table: OpenTable, branch: Branch, request: models.QueryTableRequest
) -> CachedColumns | None:
    """Return the caches that may serve a query: those of the latest version, for few rows."""
    return None if request.k > _SMALL_ROWS else _caches_of(ctx, table, branch, request.version)


def _caches_of(ctx: Context, table: OpenTable, branch: Branch, version: int | None) -> CachedColumns | None:
    """Return the caches of a branch's latest version; None for a version that a request names."""
    if version is not None:
        return None
    datasets = ctx.storage.datasets
    key, processors = (table.record.location, branch), processors_of(ctx.services.settings.workers)
    return CachedColumns(datasets.column_cache, key, datasets.vector_cache, processors)


def _query_view(ctx: Context, request: models.QueryTableRequest) -> ArrowAnswer:
    """Return the rows that a query selects of a view. Raises as `query_table` and `scan_view` do."""
    answer = scan_view(ctx, request)
    if answer is not None:
        return answer
    if request.full_text_query is not None:
        raise UnsupportedOperationError("A view has no full-text index: search its table, or a materialized view.")
    snapshot = load_view(ctx, request)
    with _query_errors(snapshot.dataset):
        search = plan_search(snapshot, request)
        return _read_response(ctx, replace(search, memory_bytes=search.memory_bytes + VIEW_BYTES), None)


def _query_with_policies(
    ctx: Context,
    snapshot: Snapshot,
    request: models.QueryTableRequest,
    scope: PolicyScope,
    cached_columns: CachedColumns | None,
) -> ArrowAnswer:
    """Run a query on the rows and columns that policies allow."""
    with redact_errors(), _query_errors(snapshot.dataset):
        restricted = restrict_query(snapshot.dataset, request, scope)
        search = check_search_columns(plan_search(snapshot, restricted), scope)
        return mask_response(_read_response(ctx, search, cached_columns), request, scope)


@operation(needs=on_table(Privilege.READ), changes=False, query=True)
def explain_table_query_plan(ctx: Context, request: models.ExplainTableQueryPlanRequest) -> str:
    """Return the plan of a query, without running it. Raises what `query_table` raises."""
    search, cached_columns, lines = _plan_nested_query(ctx, request.id, request.branch, request.query)
    with _query_errors(search.dataset):
        if cached_columns is not None:
            lines.append(cached_columns.memory_search.explain(search))
        if (effort := choose_effort(search)) is not None:
            search = effort.apply(search)
            lines.append(effort.line)
        plan = _join_plans(
            [scanner.explain_plan(bool(request.verbose)) for scanner in _scanners_until_deadline(ctx, search)]
        )
    return "\n".join([*filter(None, lines), plan])


@operation(needs=on_table(Privilege.READ), changes=False, query=True)
def analyze_table_query_plan(ctx: Context, request: models.AnalyzeTableQueryPlanRequest) -> str:
    """Run a query and return its plan with the cost of each step. Raises what `query_table` raises.

    The query is the request's own fields or, in later versions of the specification, its field `query`.
    """
    search, _, _ = _plan_nested_query(ctx, request.id, request.branch, request.query or _query_fields(request))
    with _query_errors(search.dataset):
        if (effort := choose_effort(search)) is not None:
            search = effort.apply(search)
        reservation = _reserve_memory(ctx, search)
        plans = [scanner.analyze_plan() for scanner in _scanners_until_deadline(ctx, search)]
    if reservation is not None:
        reservation.release()
    return _join_plans(plans)


def _scanners_until_deadline(ctx: Context, search: Search) -> Iterator[LanceScanner]:
    """Yield the scanners of a search until the request's deadline. Raises ServiceUnavailableError after it."""
    for scanner in search.scanners():
        ctx.check_deadline()
        yield scanner


@operation(needs=on_table(Privilege.READ, enforces_policies=True), inline=count_inline, changes=False, query=True)
def count_table_rows(ctx: Context, request: models.CountTableRowsRequest) -> int:
    """Return the number of rows, or of those that match a predicate. Raises what `query_table` raises."""
    branch = Branch.parse(request.branch)
    try:
        table, scope = open_with_policies(ctx, request.id, branch, request.version)
    except InvalidTableStateError:
        if find_view(ctx, request.id) is None:
            raise
        if request.predicate is None:
            return count_view(ctx, request)
        return _count(load_view(ctx, request), request.predicate)

    def count(table: OpenTable) -> int:
        if request.predicate is None and scope is None:
            return table.snapshot.count_rows()
        if scope is None:
            return _count(table.snapshot, request.predicate, _caches_of(ctx, table, branch, request.version))
        with redact_errors():
            return _count(table.snapshot, scope.combine_filter(request.predicate, "predicate"))

    return _read_copy_or_store(ctx, table, branch, request.version, count)


def _count(snapshot: Snapshot, predicate: str | None, cached_columns: CachedColumns | None = None) -> int:
    """Return how many rows a predicate selects: from a cached column, or by Lance. Raises Lance's errors."""
    if predicate is None:
        return snapshot.count_rows()
    check_expression(predicate, "predicate")
    dataset = snapshot.dataset
    with _query_errors(dataset):
        if cached_columns is not None and (count := cached_columns.count(snapshot, predicate)) is not None:
            return count
        options = batch_options(snapshot, (), {"predicate": predicate})
        if _ROW_OFFSET in predicate.lower():  # Lance has this column in a scan, but not in a count
            scanner = make_scanner(dataset, {"columns": [_ROW_OFFSET], "filter": predicate, **options})
            return sum(batch.num_rows for batch in scanner.to_reader())
        # A scanner's errors about a predicate are clearer than those of `dataset.count_rows`.
        return make_scanner(dataset, {"columns": [], "with_row_id": True, "filter": predicate, **options}).count_rows()


@contextmanager
def _query_errors(dataset: lance.LanceDataset) -> Iterator[None]:
    """Translate Lance's errors, with two that only queries raise."""
    try:
        with lance_errors(dataset):
            yield
    except TableColumnNotFoundError as error:
        if f"'{_ROW_OFFSET}'" not in str(error):
            raise
        raise InvalidInputError(  # Lance has the offset of a row only where a filter selects rows by it
            f"{_ROW_OFFSET} picks rows by value alone: write `{_ROW_OFFSET} IN (0, 1, …)`, or page with offset and k."
        ) from error
    except UnsupportedOperationError as error:
        if "AggregateFunction" not in str(error):
            raise
        raise InvalidInputError("A filter or expression is about one row: count() and the like are not.") from error


def _plan_nested_query(
    ctx: Context, names: list[str] | None, branch: str | None, query: models.QueryTableRequest
) -> tuple[Search, CachedColumns | None, list[str | None]]:
    """Plan the query inside another request; return the caches that may serve it, and lines for its plan, too.

    Raises InvalidInputError if the two name different tables or branches.
    """
    if query.id and query.id != names:
        raise InvalidInputError("The query names another table than the request: leave its id out.")
    if query.branch and branch and query.branch != branch:
        raise InvalidInputError("The query names another branch than the request: leave one of them out.")
    read_branch = Branch.parse(branch or query.branch)
    table = open_for_reading(ctx, names, branch=read_branch, version=query.version, by_catalog=True)
    table = with_copy_on_disk(ctx, table, read_branch, query.version)
    query = limit_to_row_ids(query)
    with _query_errors(table.dataset):
        lines = [explain_copy_on_disk(ctx, table, read_branch, query.version)]
        return plan_search(table.snapshot, query), _caches_for(ctx, table, read_branch, query), lines


def _query_fields(request: models.AnalyzeTableQueryPlanRequest) -> models.QueryTableRequest:
    """Return the query that the request's own fields are. Raises InvalidInputError."""
    fields = {"vector": None} | msgspec.to_builtins(request)
    try:
        return msgspec.convert(fields, models.QueryTableRequest)
    except msgspec.ValidationError as error:
        raise InvalidInputError(f"The query to analyze is incomplete: {error}.") from error


def _join_plans(plans: list[str]) -> str:
    """Join several plans as lancedb does."""
    if len(plans) == 1:
        return plans[0]
    return "\n\n".join(f"--- Plan #{number} ---\n{plan}" for number, plan in enumerate(plans, 1))


def _reserve_memory(ctx: Context, search: Search) -> Reservation | None:
    """Reserve what a search holds at once; None for little. Raises InvalidInputError, ThrottlingError."""
    if not search.memory_bytes:
        return None
    principal = None if ctx.principal is EVERYBODY else ctx.principal.name
    return ctx.services.query_memory.reserve(principal, search.memory_bytes)


def _read_response(ctx: Context, search: Search, cached_columns: CachedColumns | None) -> ArrowAnswer:
    """Read a response: all of it if small, else its first batch, with the others to stream.

    Raises Lance's errors, and what reserving its memory raises.
    """
    reservation = _reserve_memory(ctx, search)
    readers = open_readers(search, cached_columns)
    first = next(readers)
    schema = _response_schema(search, first.schema)
    if search.max_rows == 0:
        return ArrowAnswer(schema, [])
    batches = _response_batches(ctx, search, chain((first,), readers))
    is_small = search.max_rows is not None and search.max_rows * max(1, len(search.nearest)) <= _SMALL_ROWS
    head: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        head.append(batch)
        size += batch.nbytes
        if not is_small or size > _SMALL_BYTES:
            return ArrowAnswer(schema, _chain_batches(head, batches, reservation))
    return ArrowAnswer(schema, head)


def _response_schema(search: Search, schema: pa.Schema) -> pa.Schema:
    """Return the schema of a response, from the schema of its scanners."""
    if not search.hidden_columns and not search.is_numbered:
        return schema
    fields = [field for field in schema if field.name not in search.hidden_columns]
    return pa.schema([_QUERY_INDEX, *fields] if search.is_numbered else fields, schema.metadata)


def _response_batches(ctx: Context, search: Search, readers: Iterable[Reader]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one search after the other, with the columns of the response."""
    with _query_errors(search.dataset):
        for number, reader in enumerate(readers):
            ctx.check_deadline()
            remaining = search.max_rows
            for batch in reader:
                ctx.check_deadline()
                output = batch
                if search.hidden_columns:
                    output = batch.select([name for name in batch.schema.names if name not in search.hidden_columns])
                if search.is_numbered:
                    numbers = pa.repeat(pa.scalar(number, pa.int32()), batch.num_rows)
                    output = output.add_column(0, _QUERY_INDEX, numbers)
                yield output
                if remaining is not None and (remaining := remaining - batch.num_rows) <= 0:
                    break  # reading on to the end would cost another round trip to Lance's threads


def _chain_batches(
    head: list[pa.RecordBatch], batches: Iterator[pa.RecordBatch], reservation: Reservation | None
) -> Iterator[pa.RecordBatch]:
    """Yield the batches of `head`, which are freed as they are sent, then the others; release their memory then."""
    try:
        while head:
            yield head.pop(0)
        yield from batches
    finally:
        if reservation is not None:
            reservation.release()
