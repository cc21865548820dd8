"""Point look-ups: queries for rows by the value of an indexed column, which run on the event loop, without a thread.

Where the index and the rows are in memory such a query takes Lance half a millisecond. Its way to a thread and back,
concurrently with others, takes as long again. Integers that are looked up often are found without Lance: in the cached
column, which is sorted then. So are lists and ranges of them, and their rows are counted there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from time import monotonic, perf_counter
from typing import TYPE_CHECKING

from lance_namespace.errors import LanceNamespaceError

from tiltyard.access.authorization import effective_policy_of
from tiltyard.model.branches import MAIN
from tiltyard.model.ids import table_id
from tiltyard.tables.opening import open_cached
from tiltyard.tables.query.integer_filters import IntegerFilter, parse_integer_filter, parse_row_ids
from tiltyard.tables.query.plan import column_names, limit_to_row_ids

if TYPE_CHECKING:
    from collections.abc import Callable

    import lance
    import pyarrow as pa

    from tiltyard.context import Context, OpenTable
    from tiltyard.model.spec import models
    from tiltyard.storage.cached_rows import CachedRows
    from tiltyard.storage.column_cache import BranchKey, ColumnCache
    from tiltyard.storage.version_cache import Snapshot

_LOOKUP = re.compile(r"\s*([A-Za-z_]\w*)\s*=\s*(?:-?\d{1,19}|'[^'\\]{0,256}')\s*")
_INDICES = frozenset({"btree", "bitmap"})
_MAX_ROWS = 100
MANY_ROWS = 256
"""Rows with one value from which on the look-ups of a column get a limit."""

SLOW_SECONDS = 0.01
"""What a look-up may take on average: it blocks the event loop."""
PAUSE_SECONDS = 10.0
"""For how long look-ups run in a thread once they are too slow."""
_WEIGHT = 8


@dataclass(slots=True)
class LookupPace:
    """The running average of how long the look-ups of one version take: many rows may have one value."""

    average: float = 0.0
    slow_until: float = 0.0

    @property
    def is_fast(self) -> bool:
        return monotonic() >= self.slow_until

    def record(self, seconds: float, max_seconds: float | None = None) -> None:
        """Record the duration of one look-up. On average it may take `max_seconds`, or `SLOW_SECONDS`."""
        self.average += (seconds - self.average) / _WEIGHT
        if self.average > (SLOW_SECONDS if max_seconds is None else max_seconds):
            self.average, self.slow_until = 0.0, monotonic() + PAUSE_SECONDS


@dataclass(frozen=True, slots=True)
class LookupColumns:
    """Columns of a version with an index that covers all rows; those with many rows of one value; the pace."""

    columns: frozenset[str]
    with_many_rows: set[str] = field(default_factory=set)
    pace: LookupPace = field(default_factory=LookupPace)

    def has_few_rows(self, column: str) -> bool:
        """Return whether a column has an index that covers all rows, and no value of many rows was seen."""
        return column in self.columns and column not in self.with_many_rows


def lookup_columns(dataset: lance.LanceDataset) -> LookupColumns:
    """Read the look-up columns of a version."""
    return LookupColumns(_fully_indexed_columns(dataset))


def point_lookup_inline(ctx: Context, request: models.QueryTableRequest) -> Context | None:
    """For `inline`: return a context for a point look-up in a cached local table without policies for the principal.

    A list or a range of integers is one if its rows are found in memory, and so are row ids.
    """
    request = limit_to_row_ids(request)
    expression = _looked_up(request)
    if expression is None:
        return None
    if _LOOKUP.fullmatch(expression) is None and parse_integer_filter(expression) is None:
        return None
    try:
        table = _open_inline(ctx, request.id)
    except LanceNamespaceError:
        return None  # the operation raises it again, in a thread
    if table is None:
        return None
    snapshot, cache, key = table.snapshot, ctx.storage.datasets.column_cache, (table.record.location, MAIN)
    requested = request.columns.column_names if request.columns else None
    names = column_names(snapshot) if requested is None else tuple(requested)
    if not cache.has(key, snapshot.dataset, names):
        return None
    pace = snapshot.fact(lookup_columns).pace
    if not pace.is_fast or not _is_found_at_once(cache, key, table, names, expression):
        return None
    started = perf_counter()
    return ctx.with_open_table(table_id(request.id), table, lambda: pace.record(perf_counter() - started))


def count_inline(ctx: Context, request: models.CountTableRowsRequest) -> Context | None:
    """For `inline`: return a context for a count that a cached manifest or column of a local table answers.

    Policies must not restrict the principal.
    """
    if request.version is not None or request.branch:
        return None
    integers = None
    if request.predicate is not None and (integers := parse_integer_filter(request.predicate)) is None:
        return None
    try:
        table = _open_inline(ctx, request.id)
    except LanceNamespaceError:
        return ctx  # the operation raises it again, as quickly
    if table is None:
        return None
    if integers is not None:
        key = table.record.location, MAIN
        if _count_at_once(ctx.storage.datasets.column_cache, key, table, integers) is None:
            return None
    return ctx.with_open_table(table_id(request.id), table)


def _open_inline(ctx: Context, names: list[str] | None) -> OpenTable | None:
    """Return a cached local table without policies for the principal; None for others. Raises as `open_cached` does."""
    table = open_cached(ctx, names)
    return None if table is None or effective_policy_of(ctx, table.record) is not None else table


def _is_found_at_once(
    cache: ColumnCache, key: BranchKey, table: OpenTable, names: tuple[str, ...], expression: str
) -> bool:
    """Return whether an index finds the rows that a look-up selects, or they are found in these cached columns."""
    if parse_row_ids(expression) is not None:
        rows = cache.rows(key, table.dataset, names)
        return rows is not None and rows.has_row_at_each_id
    if (match := _LOOKUP.fullmatch(expression)) is not None:
        return match[1] in table.snapshot.fact(lookup_columns).columns
    selected = parse_integer_filter(expression)
    return selected is not None and _count_at_once(cache, key, table, selected) is not None


def _count_at_once(cache: ColumnCache, key: BranchKey, table: OpenTable, selected: IntegerFilter) -> int | None:
    """Return how many rows integers select, if that takes microseconds: their column is indexed, cached and sorted."""
    if selected.column not in table.snapshot.fact(lookup_columns).columns:
        return None
    names = (selected.column,)
    if not cache.has(key, table.dataset, names):
        return None
    rows = cache.rows(key, table.dataset, names)
    return None if rows is None else rows.count_at_once(selected.column, selected.integers)


def find_in_memory(
    snapshot: Snapshot, expression: str, cached_column: Callable[[str], CachedRows | None]
) -> pa.UInt64Array | None:
    """Return the addresses of the rows that a look-up by integers selects, ascending; None where Lance finds them.

    `cached_column` returns a column that is in memory.
    """
    selected = _indexed_integers(snapshot, expression)
    rows = None if selected is None else cached_column(selected.column)
    return None if selected is None or rows is None else rows.find(selected.column, selected.integers)


def count_in_memory(
    snapshot: Snapshot, predicate: str, cached_column: Callable[[str], CachedRows | None]
) -> int | None:
    """Return how many rows a predicate selects by integers; None where Lance counts them. See `find_in_memory`."""
    selected = _indexed_integers(snapshot, predicate)
    rows = None if selected is None else cached_column(selected.column)
    return None if selected is None or rows is None else rows.count(selected.column, selected.integers)


def _indexed_integers(snapshot: Snapshot, expression: str) -> IntegerFilter | None:
    """Return what an expression selects by the integers of a column whose index covers all rows; else None."""
    selected = parse_integer_filter(expression)
    return None if selected is None or selected.column not in snapshot.fact(lookup_columns).columns else selected


def unlimited_lookup(snapshot: Snapshot, expression: str) -> Callable[[int], None] | None:
    """Return a callback for the rows of each batch if an expression is a look-up that needs no limit; else None.

    A limit makes Lance take a fifth longer for a look-up, and saves nothing where few rows have the value. The callback
    notes the columns with many rows of one value, whose look-ups get a limit from then on.
    """
    match = _LOOKUP.fullmatch(expression)
    if match is None or not (lookups := snapshot.fact(lookup_columns)).has_few_rows(match[1]):
        return None

    def on_batch_rows(count: int) -> None:
        if count > MANY_ROWS:
            lookups.with_many_rows.add(match[1])

    return on_batch_rows


def _looked_up(request: models.QueryTableRequest) -> str | None:
    """Return the filter of a query that may be a point look-up by its other fields, else None."""
    if request.filter is None or request.k > _MAX_ROWS:
        return None
    vector, columns = request.vector, request.columns
    other_options = (request.version, request.branch, request.full_text_query, request.order_by, request.offset)
    if any(other_options) or (vector and (vector.single_vector or vector.multi_vector)):
        return None
    return None if columns is not None and columns.column_names is None else request.filter


def _fully_indexed_columns(dataset: lance.LanceDataset) -> frozenset[str]:
    """Return the columns with a BTREE or BITMAP index that covers all fragments."""
    fragments = {fragment.fragment_id for fragment in dataset.get_fragments()}
    return frozenset(
        index.field_names[0]
        for index in dataset.describe_indices()
        if index.index_type.lower() in _INDICES
        and len(index.field_names) == 1
        and fragments <= {number for segment in index.segments for number in segment.fragment_ids}
    )
