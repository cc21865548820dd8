"""Answer vector searches from an index in memory (storage/vector_cache), with the rows and columns that Lance returns.

It answers the searches that a vector index of Lance would answer approximately; all others go to Lance. A filter is
evaluated by Lance, policies' filters with it, and selects the rows that the search may return.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from lance_namespace.errors import LanceNamespaceError

from tiltyard.access.authorization import effective_policy_of
from tiltyard.context import OpenTable
from tiltyard.model.branches import MAIN
from tiltyard.model.columns.vector_columns import VectorColumn, quote_path
from tiltyard.model.ids import table_id
from tiltyard.storage.vector_cache.cache import VectorKey
from tiltyard.storage.vector_cache.index import Effort
from tiltyard.tables.opening import open_cached
from tiltyard.tables.query.integer_filters import ROW_ID
from tiltyard.tables.query.plan import STREAMING_OPTION_NAMES, plan_search
from tiltyard.tables.query.point_lookups import LookupPace, point_lookup_inline
from tiltyard.tables.query.scanners import make_scanner

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import lance

    from tiltyard.context import Context
    from tiltyard.model.spec import models
    from tiltyard.storage.column_cache import BranchKey, ColumnCache
    from tiltyard.storage.vector_cache.cache import VectorCache
    from tiltyard.storage.vector_cache.version_rows import Allowed, VersionRows
    from tiltyard.tables.query.plan import Search

_DISTANCE = "_distance"
_OPTIONS = frozenset(
    {"batch_size_bytes", "columns", "disable_scoring_autoprojection", "filter", "offset", "prefilter", "with_row_id"}
)
_NEAREST_OPTIONS = frozenset(
    {"column", "ef", "k", "maximum_nprobes", "metric", "minimum_nprobes", "nprobes", "q", "refine_factor"}
)
_METRICS = frozenset({"l2", "cosine"})
_MAX_FILTERS = 16
"""Filters whose rows are remembered for a version."""
_MAX_FOUND = 10_000
"""Rows of a search, those that its offset skips included, beyond which Lance finds them."""
_MAX_INLINE_ROWS = 100
_MAX_INLINE_DIMENSION = 2048
_SLOW_SECONDS = 0.004
"""What a search may take on average to run on the event loop: up to 16 block it together."""
_CALL_OR_CLOCK = re.compile(r"(?!(?:in|and|or|not)\b)\b\w+\s*\(|\b(?:current_|local)", re.IGNORECASE)
"""Parts of a filter that may be true of other rows a moment later."""


@dataclass(frozen=True, slots=True)
class MemorySearch:
    """Where a table's latest version may be searched in memory: its key, the indexes, and the cached columns."""

    table: BranchKey
    vectors: VectorCache
    columns: ColumnCache

    def readers(self, search: Search) -> list[BatchReader] | None:
        """Return the response to each query vector; None for searches that Lance answers. Raises Lance's errors."""
        if not self.vectors.max_bytes or not search.nearest or _reason(search) is not None:
            return None
        key = self._key(search)
        rows = self.vectors.rows(key, search.dataset)
        if rows is None:
            return None
        queries = [query for nearest in search.nearest if (query := _query(nearest["q"], key.metric)) is not None]
        if len(queries) < len(search.nearest):
            return None
        allowed = _allowed(search, rows)
        response = _Response(search, self)
        nearest = search.nearest[0]  # the others differ in their vectors alone
        found = self.vectors.search(rows, np.stack(queries), nearest["k"], allowed, _effort(nearest))
        return [response.reader(rows_found) for rows_found in found]

    def call(self, search: Search) -> SearchCall | None:
        """Return a search of one vector that needs nothing but what is in memory already; None for all others."""
        if len(search.nearest) > 1 or "filter" in search.options or _reason(search) is not None:
            return None
        names = tuple(name for name in _output_names(search) or () if name not in (_DISTANCE, ROW_ID))
        if names and not self.columns.has(self.table, search.dataset, names):
            return None
        key, nearest = self._key(search), search.nearest[0]
        if not self.vectors.is_ready(self.table, key.column, search.dataset):
            return None
        rows, query = self.vectors.rows(key, search.dataset), _query(nearest["q"], key.metric)
        return None if rows is None or query is None else SearchCall(self, search, rows, query, _effort(nearest))

    def explain(self, search: Search) -> str | None:
        """Return a line for the plan of a search; None where no vectors are kept in memory or searched."""
        if not self.vectors.max_bytes or not search.nearest:
            return None
        state = _reason(search) or self.vectors.state(self._key(search), search.dataset)
        if isinstance(state, str):
            return f"VectorCache: answered by Lance: {state}."
        how = state.index.describe()
        return f"VectorCache: answered by the index in memory, which {how}; this would be Lance's plan."

    def _key(self, search: Search) -> VectorKey:
        nearest = search.nearest[0]
        metric = search.snapshot.fact(_index_metrics)[nearest["column"]]
        return VectorKey(self.table, nearest["column"], len(nearest["q"]), metric)


@dataclass(slots=True)
class SearchCall:
    """A search for the event loop: `search_together` finds its rows with those of others, and `reader` has them."""

    memory: MemorySearch
    search: Search
    rows: VersionRows
    query: np.ndarray[Any, Any]
    effort: Effort
    found: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]] | None = None

    @property
    def count(self) -> int:
        count: int = self.search.nearest[0]["k"]
        return count

    def reader(self) -> BatchReader:
        """Return the response."""
        if self.found is None:
            search_together([self])
        assert self.found is not None
        return _Response(self.search, self.memory).reader(self.found)


def search_together(calls: Sequence[SearchCall]) -> None:
    """Find the rows of several searches: at once for those of one version that look for as many rows as widely."""
    groups: dict[tuple[int, int, Effort], list[SearchCall]] = {}
    for call in calls:
        groups.setdefault((id(call.rows), call.count, call.effort), []).append(call)
    for group in groups.values():
        first, started = group[0], perf_counter()
        queries = np.stack([call.query for call in group])
        found = first.memory.vectors.search(first.rows, queries, first.count, first.rows.live, first.effort)
        for call, rows in zip(group, found, strict=True):
            call.found = rows
        first.search.snapshot.fact(_search_pace).record((perf_counter() - started) / len(group), _SLOW_SECONDS)


def waiting_search(ctx: Context) -> SearchCall | None:
    """Return the search in memory that an inline request waits for; None for other requests."""
    return None if ctx.open_table is None else ctx.open_table.search_call


def query_inline(ctx: Context, request: models.QueryTableRequest) -> Context | None:
    """For `inline`: return a context for a point look-up, or for a search of one vector that is all in memory."""
    if (lookup := point_lookup_inline(ctx, request)) is not None:
        return lookup
    datasets, vector = ctx.storage.datasets, request.vector
    others = (request.version, request.branch, request.full_text_query, request.filter, request.order_by)
    if not datasets.vector_cache.max_bytes or request.k > _MAX_INLINE_ROWS or any(others):
        return None
    if vector is None or not vector.single_vector or len(vector.single_vector) > _MAX_INLINE_DIMENSION:
        return None
    if request.columns is not None and request.columns.column_names is None:
        return None
    try:
        table = open_cached(ctx, request.id)
        if table is None or effective_policy_of(ctx, table.record) is not None:
            return None
        memory = MemorySearch((table.record.location, MAIN), datasets.vector_cache, datasets.column_cache)
        if not memory.vectors.is_ready(memory.table, None, table.dataset):
            return None
        search = plan_search(table.snapshot, request)  # reads nothing: a search of this version was planned before
    except LanceNamespaceError:
        return None  # the operation raises it again, in a thread
    if not table.snapshot.fact(_search_pace).is_fast or (call := memory.call(search)) is None:
        return None
    return ctx.with_open_table(table_id(request.id), OpenTable(table.record, table.snapshot, search, call))


def _search_pace(_: lance.LanceDataset) -> LookupPace:
    return LookupPace()


def _index_metrics(dataset: lance.LanceDataset) -> Mapping[str, str]:
    """Return the distance type of the vector index on each column that can be searched in memory."""
    columns = {
        field.name
        for field in dataset.schema
        if (column := VectorColumn.from_type(field.name, field.type)) is not None
        and not column.is_multivector
        and column.element in (pa.float16(), pa.float32())
        and quote_path((field.name,)) == field.name
    }
    metrics = {}
    for index in dataset.describe_indices():
        metric = str(index.details.get("metric_type", "")).lower()
        if metric and len(index.field_names) == 1 and index.field_names[0] in columns:
            metrics[index.field_names[0]] = metric
    return metrics


def _reason(search: Search) -> str | None:
    """Return why Lance answers a search, whatever is in memory; None if it need not."""
    options, nearest = search.options, search.nearest[0]
    metric = search.snapshot.fact(_index_metrics).get(nearest["column"])
    if nearest.get("use_index") is False:
        return "the request bypasses indexes"
    if metric not in _METRICS:
        return "the column has no vector index of floats by l2 or cosine"
    if nearest.get("metric") not in (None, metric):
        return "the request has another distance type than the index"
    if "filter" in options and options.get("prefilter") is False:
        return "its filter applies after the search"
    if isinstance(options.get("filter"), dict):
        return "it searches text, too"
    if nearest["k"] > _MAX_FOUND:
        return f"k and offset are more than {_MAX_FOUND:,}"
    unknown = options.keys() - STREAMING_OPTION_NAMES - _OPTIONS | nearest.keys() - _NEAREST_OPTIONS
    if unknown := unknown - {name for name in unknown if nearest.get(name, options.get(name)) is None}:
        return f"the index in memory knows no {', '.join(sorted(unknown))}"
    if search.hidden_columns or not search.max_rows or _output_names(search) is None:
        return "its columns are not whole columns"
    return None


def _output_names(search: Search) -> tuple[str, ...] | None:
    """Return the columns of the response, in order; None for those that Lance has to compute."""
    columns, schema = search.options.get("columns"), search.snapshot.fact(_read_schema)
    if columns is None:
        names = (*schema.names, _DISTANCE)
    elif isinstance(columns, list) and len(set(columns)) == len(columns):
        names = tuple(columns)
    else:
        return None
    if _DISTANCE not in names or not schema.plain_names.issuperset(names):
        return None
    return (*names, ROW_ID) if search.options.get("with_row_id") else names


@dataclass(frozen=True, slots=True)
class _Schema:
    """The schema of a version: Lance makes it anew each time. `plain_names` are whole columns, and the distance."""

    fields: pa.Schema
    names: tuple[str, ...]
    plain_names: frozenset[str]


def _read_schema(dataset: lance.LanceDataset) -> _Schema:
    schema = dataset.schema
    plain = (field.name for field in schema if not field.metadata and not isinstance(field.type, pa.BaseExtensionType))
    return _Schema(schema, tuple(schema.names), frozenset({_DISTANCE, *plain}))


def _query(values: Any, metric: str) -> np.ndarray[Any, Any] | None:
    """Return a query vector as the index has it; None for one without a direction."""
    numbers: np.ndarray[Any, Any] = values.to_numpy(zero_copy_only=False).astype(np.float32)
    if metric != "cosine":
        return numbers
    norm = float(np.linalg.norm(numbers))
    return numbers / norm if norm and np.isfinite(norm) else None


def _effort(nearest: Mapping[str, Any]) -> Effort:
    """Return the effort that a request asks for: it may widen a search, and never narrows it."""
    probes = max(nearest.get("nprobes") or 0, nearest.get("minimum_nprobes") or 0)
    return Effort(probes, max(nearest.get("ef") or 0, (nearest.get("refine_factor") or 0) * nearest["k"]))


def _allowed(search: Search, rows: VersionRows) -> Allowed:
    """Return the rows that the search's filter allows. Raises Lance's errors."""
    expression = search.options.get("filter")
    if expression is None:
        return rows.live
    allowed = rows.filters.get(expression)
    if allowed is None:
        options = {"columns": [], "with_row_id": True, "filter": expression}
        batches = list(make_scanner(search.dataset, options).to_reader())
        addresses = [batch.column(ROW_ID).to_numpy() for batch in batches]
        allowed = rows.allow(np.concatenate([np.zeros(0, np.uint64), *addresses]))
        if not _CALL_OR_CLOCK.search(expression):
            if len(rows.filters) >= _MAX_FILTERS:
                rows.filters.clear()
            rows.filters[expression] = allowed
    return allowed


@dataclass(frozen=True, slots=True)
class BatchReader:
    """A response that is in memory."""

    schema: pa.Schema
    batches: tuple[pa.RecordBatch, ...]

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return iter(self.batches)


class _Response:
    """The columns of found rows, from the column cache or by Lance."""

    def __init__(self, search: Search, memory: MemorySearch) -> None:
        self._search = search
        names = _output_names(search)
        assert names is not None
        self._names = tuple(name for name in names if name not in (_DISTANCE, ROW_ID))
        self._cached = None
        if self._names:
            self._cached = memory.columns.rows(memory.table, search.dataset, self._names, may_wait=True)
        schema = search.snapshot.fact(_read_schema).fields
        virtual = {_DISTANCE: pa.field(_DISTANCE, pa.float32()), ROW_ID: pa.field(ROW_ID, pa.uint64())}
        self._schema = pa.schema([virtual.get(name) or schema.field(name) for name in names], schema.metadata)

    def reader(self, found: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]) -> BatchReader:
        """Return the response of found rows, without those that the offset skips."""
        first = self._search.options.get("offset", 0)
        page = slice(first, first + (self._search.max_rows or 0))
        addresses = pa.array(found[0][page], pa.uint64())
        columns = {_DISTANCE: pa.array(found[1][page], pa.float32()), ROW_ID: addresses}
        if self._names:
            columns |= zip(self._names, self._take(addresses), strict=True)
        return BatchReader(
            self._schema,
            (pa.RecordBatch.from_arrays([columns[name] for name in self._schema.names], schema=self._schema),),
        )

    def _take(self, addresses: pa.Array) -> list[pa.Array]:
        if self._cached is not None:
            return self._cached.take(addresses)
        if not len(addresses):
            return [pa.array([], self._search.dataset.schema.field(name).type) for name in self._names]
        taken = self._search.dataset._take_rows(addresses.to_pylist(), columns=list(self._names))
        table = taken.select(list(self._names)).combine_chunks()
        return [column.chunk(0) for column in table.columns]
