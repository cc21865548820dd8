"""Answer vector searches from an index in memory (storage/vector_cache), with the rows and columns that Lance returns.

It answers the searches that a vector index of Lance would answer approximately. A filter, policies' filters with it,
selects the rows that the search may return: by the values of its columns in memory, or by Lance. Searches on the event
loop that need nothing but what is in memory are done together.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa

from tiltyard.model.columns.vector_columns import VectorColumn, quote_path
from tiltyard.storage.pylance_internals import take_rows
from tiltyard.storage.vector_cache.index import Effort
from tiltyard.storage.vector_cache.searchable_rows import FilteredRows
from tiltyard.storage.vector_cache.searched_column import VectorKey
from tiltyard.tables.query.integer_filters import ROW_ID
from tiltyard.tables.query.response_sizes import STREAMING_OPTION_NAMES
from tiltyard.tables.query.routes.route import BatchReader, Cost, Pace, Purpose, Refused, SearchOffer
from tiltyard.tables.query.scalar_filters import filtered_columns, parse_scalar_filter
from tiltyard.tables.query.scanners import make_scanner

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import lance

    from tiltyard.context import Context
    from tiltyard.storage.caches.cached_rows import CachedRows
    from tiltyard.storage.vector_cache.allowed_rows import Allowed
    from tiltyard.storage.vector_cache.searchable_rows import SearchableRows
    from tiltyard.tables.query.plan import Search
    from tiltyard.tables.query.routes.route import Caches, Query

    Found = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]
    """Addresses and distances of the rows that a search found, nearest first."""

_DISTANCE = "_distance"
_OPTIONS = frozenset(
    {"batch_size_bytes", "columns", "disable_scoring_autoprojection", "filter", "offset", "prefilter", "with_row_id"}
)
_NEAREST_OPTIONS = frozenset(
    {
        "column",
        "ef",
        "k",
        "maximum_nprobes",
        "metric",
        "minimum_nprobes",
        "nprobes",
        "q",
        "refine_factor",
        "search_effort",
    }
)
_METRICS = frozenset({"l2", "cosine"})
_MAX_FILTERS = 16
"""Filters whose rows are remembered for a version."""
_MAX_LOOP_FILTER = 1024
"""Characters of a filter up to which it is parsed on the event loop."""
_MAX_LOOP_FILTERED_ROWS = 1_000_000
"""Rows up to which a filter that is not remembered is evaluated on the event loop: 1 ms."""
_MAX_FOUND = 10_000
"""Rows of a search, those that its offset skips included, beyond which Lance finds them."""
MAX_LOOP_DIMENSION = 2048
"""Numbers of a vector up to which it is searched for on the event loop."""
_SLOW_SECONDS = 0.004
"""What a search may take on average to run on the event loop: up to 16 block it together."""
_CALL_OR_CLOCK = re.compile(r"(?!(?:in|and|or|not)\b)\b\w+\s*\(|\b(?:current_|local)", re.IGNORECASE)
"""Parts of a filter that may be true of other rows a moment later."""


_OFF = Refused("the server keeps no vectors in memory (vector_cache_bytes)")
_NO_VECTOR = Refused("it has no query vector")
_NO_DIRECTION = Refused("a query vector has no direction, which the distance type compares")
_OTHER_FILTER = Refused("it does not compare columns of scalars with constants of their types alone")
_NEEDS_MORE = Refused("it needs more than what is in memory")


@dataclass(slots=True)
class IndexInMemory(SearchOffer):
    """A search of the index in memory: `search_together` finds its rows with those of others, or `readers` does."""

    name: ClassVar[str] = "index_in_memory"
    query: Query
    caches: Caches
    rows: SearchableRows
    vectors: list[np.ndarray[Any, Any]]
    effort: Effort
    cost: Cost
    filtered: FilteredRows | Refused
    """The rows that the filter allows, or why Lance finds them."""
    found: list[Found] | None = None

    @classmethod
    def ask(cls, query: Query) -> IndexInMemory | Refused:
        """Return the search in memory, or why Lance has to search."""
        search, caches, on_loop = query.search, query.latest_caches, query.purpose is Purpose.LOOP
        if (refused := _refusal(query)) is not None:
            return refused
        assert not isinstance(caches, Refused)
        key = _key(search, caches)
        vectors = [vector for nearest in search.nearest if (vector := _vector(nearest["q"], key.metric)) is not None]
        if len(vectors) < len(search.nearest):
            return _NO_DIRECTION
        columns = _stored_names(search)
        known = caches.columns.known(caches.key, search.dataset, columns) if columns else None
        is_ready = caches.vectors.is_ready(caches.key, key.column, search.dataset)
        is_in_memory = is_ready and (known is not None or not columns)
        if on_loop and not is_in_memory:
            return _NEEDS_MORE
        rows = caches.vectors.rows(key, search.dataset) if query.purpose is not Purpose.EXPLAIN else None
        if rows is None:
            state = caches.vectors.state(key, search.dataset)
            if isinstance(state, str):
                return Refused(f"Lance searches: {state}")
            rows = state
        filtered = _filtered_rows(query, caches, key, rows)
        if on_loop and isinstance(filtered, Refused):
            return _NEEDS_MORE
        cost = Cost.MEMORY if is_in_memory and not isinstance(filtered, Refused) else Cost.TABLE
        return cls(query, caches, rows, vectors, _effort(search.nearest[0]), cost, filtered)

    @property
    def count(self) -> int:
        count: int = self.query.search.nearest[0]["k"]
        return count

    def describe(self) -> str:
        words = f"the index in memory answers {self.rows.describe()}"
        if "filter" not in self.query.search.options:
            return words
        if isinstance(self.filtered, Refused):
            return f"{words}, and Lance finds the rows of the filter, since {self.filtered.reason}"
        if self.filtered.by_lance:
            return f"{words}, and Lance has found the rows of the filter, since {self.filtered.by_lance}"
        return f"{words}, and the filter is evaluated in memory"

    def readers(self) -> Iterator[BatchReader]:
        if self.found is None:
            filtered, queries = self.filtered, np.stack(self.vectors)
            if isinstance(filtered, Refused):
                filtered = _find_by_lance(self.query.search, self.rows, filtered.reason)
            self.found = self.caches.vectors.search(self.rows, queries, self.count, filtered.allowed, self.effort)
        response = _Response(self.query, self.caches)
        return iter([response.reader(found) for found in self.found])


def search_together(searches: Sequence[IndexInMemory]) -> None:
    """Find the rows of searches on the event loop: at once for those of one version that look as widely for as many."""
    groups: dict[tuple[int, int, int, Effort], list[IndexInMemory]] = {}
    for search in searches:
        group = groups.setdefault((id(search.rows), id(_allowed(search)), search.count, search.effort), [])
        group.append(search)
    for group in groups.values():
        first, started = group[0], perf_counter()
        queries = np.stack([search.vectors[0] for search in group])
        found = first.caches.vectors.search(first.rows, queries, first.count, _allowed(first), first.effort)
        for search, rows in zip(group, found, strict=True):
            search.found = [rows]
        _pace(first.query.search).record((perf_counter() - started) / len(group), _SLOW_SECONDS)


def _allowed(search: IndexInMemory) -> Allowed:
    """Return the rows that the filter of a search on the event loop allows."""
    assert not isinstance(search.filtered, Refused)  # or it would be in a thread
    return search.filtered.allowed


def waiting_search(ctx: Context) -> IndexInMemory | None:
    """Return the search in memory that a request on the event loop waits for; None for other requests."""
    offer = None if ctx.open_table is None else ctx.open_table.offer
    return offer if isinstance(offer, IndexInMemory) else None


def _key(search: Search, caches: Caches) -> VectorKey:
    nearest = search.nearest[0]
    metric = search.snapshot.fact(_index_metrics)[nearest["column"]]
    return VectorKey(caches.key, nearest["column"], len(nearest["q"]), metric)


def _pace(search: Search) -> Pace:
    return search.snapshot.fact(_new_pace)


def _new_pace(_: lance.LanceDataset) -> Pace:
    return Pace()


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


def _refusal(query: Query) -> Refused | None:
    """Return why no index in memory is looked for; None if it need not be Lance that answers."""
    search, caches = query.search, query.latest_caches
    if not search.nearest:
        return _NO_VECTOR
    if isinstance(caches, Refused):
        return caches
    if not caches.vectors.max_bytes:
        return _OFF
    if (reason := _reason(search)) is not None:
        return Refused(reason)
    is_for_thread = len(search.nearest) > 1 or not _pace(search).is_fast
    return _NEEDS_MORE if query.purpose is Purpose.LOOP and is_for_thread else None


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


def _stored_names(search: Search) -> tuple[str, ...]:
    """Return the columns of the response that are stored, of a search whose columns are whole ones."""
    return tuple(name for name in _output_names(search) or () if name not in (_DISTANCE, ROW_ID))


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


def _vector(values: Any, metric: str) -> np.ndarray[Any, Any] | None:
    """Return a query vector as the index has it; None for one without a direction."""
    numbers: np.ndarray[Any, Any] = values.to_numpy(zero_copy_only=False).astype(np.float32)
    if metric != "cosine":
        return numbers
    norm = float(np.linalg.norm(numbers))
    return numbers / norm if norm and np.isfinite(norm) else None


def _effort(nearest: Mapping[str, Any]) -> Effort:
    """Return the effort that a request asks for: it may widen a search, and never narrows it."""
    probes = max(nearest.get("nprobes") or 0, nearest.get("minimum_nprobes") or 0)
    candidates = max(nearest.get("ef") or 0, (nearest.get("refine_factor") or 0) * nearest["k"])
    return Effort(probes, candidates, max(0.0, 2 * nearest.get("search_effort", 0) - 1))


def _filtered_rows(query: Query, caches: Caches, key: VectorKey, rows: SearchableRows) -> FilteredRows | Refused:
    """Return the rows that the search's filter allows by what is in memory, or why Lance has to find them."""
    search, is_loop = query.search, query.purpose is Purpose.LOOP
    expression = search.options.get("filter")
    if expression is None:
        return FilteredRows(rows.live)
    known = rows.filters.get(expression)
    if known is not None and known.by_lance in ("", _OTHER_FILTER.reason):
        return known
    is_long = len(expression) > _MAX_LOOP_FILTER or rows.index.capacity > _MAX_LOOP_FILTERED_ROWS
    if is_loop and is_long:
        return known or _NEEDS_MORE
    selected = parse_scalar_filter(expression, search.snapshot.fact(filtered_columns))
    if selected is None:
        return _OTHER_FILTER
    is_counted = query.purpose is Purpose.RUN or (is_loop and known is not None)
    allowed = caches.vectors.allow(key, search.dataset, rows, selected, is_counted=is_counted, may_read=not is_loop)
    if isinstance(allowed, str):
        return Refused(allowed) if known is None else FilteredRows(known.allowed, allowed)
    return _remember(rows.filters, expression, FilteredRows(allowed))


def _find_by_lance(search: Search, rows: SearchableRows, reason: str) -> FilteredRows:
    """Return the rows that the search's filter allows, which Lance finds for a reason. Raises Lance's errors."""
    expression = search.options["filter"]
    options = {"columns": [], "with_row_id": True, "filter": expression}
    batches = list(make_scanner(search.dataset, options).to_reader())
    addresses = [batch.column(ROW_ID).to_numpy() for batch in batches]
    found = FilteredRows(rows.allow(np.concatenate([np.zeros(0, np.uint64), *addresses])), reason)
    return found if _CALL_OR_CLOCK.search(expression) else _remember(rows.filters, expression, found)


def _remember(filters: dict[str, FilteredRows], expression: str, found: FilteredRows) -> FilteredRows:
    if len(filters) >= _MAX_FILTERS:
        filters.clear()
    filters[expression] = found
    return found


class _Response:
    """The columns of found rows, from the column cache or by Lance."""

    def __init__(self, query: Query, caches: Caches) -> None:
        self._search = search = query.search
        names = _output_names(search)
        assert names is not None
        self._names = _stored_names(search)
        self._cached: CachedRows | None = None
        if self._names:
            self._cached = caches.rows(search.dataset, self._names, is_counted=True, may_wait=True)
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
        taken = take_rows(self._search.dataset, addresses.to_pylist(), self._names)
        table = taken.select(list(self._names)).combine_chunks()
        return [column.chunk(0) for column in table.columns]
