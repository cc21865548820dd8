"""Choose how widely a vector search looks, where its request leaves `nprobes` and `refine_factor` open.

A search of a few partitions sees the fewer rows, the fewer a filter leaves: with one row of a hundred, the partitions
that hold the nearest rows are spread over the whole index. And distances of quantized vectors are estimates, which do
not tell rows apart that are about equally near. So the rows that the filter leaves are counted: few are compared one by
one, without the index; more are searched in as many partitions as their share needs, and the nearest of them by
estimate are compared by their vectors.

The figures are measured on 300,000 vectors of 256 floats in 550 partitions, with neighbours that are near in few
dimensions and with such as are about equally near in all; the factors of more rows on a million of 768 floats and ten
million of 128.

A request may name a `search_effort` from 0 to 1. Half is what is chosen here; Lance takes less for its own beginning,
and what is more grows from what is chosen here to all partitions, or to the request's bounds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING, Any

from tiltyard.tables.query.integer_filters import ROW_OFFSET
from tiltyard.tables.query.plan import AUTOMATIC_EFFORT, Search, index_types
from tiltyard.tables.query.scanners import make_scanner

if TYPE_CHECKING:
    from collections.abc import Mapping


MIN_FLAT_ROWS = 10_240
"""Rows that are always compared one by one: some 65 ms, 40 more than a search of all partitions, which finds fewer."""
MAX_FLAT_ROWS = 65_536
ROWS_PER_FLAT_ROW = 128
"""Rows of a table whose estimates, in all partitions, cost as much as reading one vector by its address."""
PROBES = 40
"""Partitions that a search without a filter looks at; with one, as many as have so many partitions' rows."""
MIN_REFINE_FACTOR = 20
ROWS_OF_MIN_FACTOR = 300_000
"""Rows of a table up to which the least factor finds enough; of more, it grows with them: more have equal estimates."""
MAX_REFINE_FACTOR = 200
REFINE_FACTOR_OF_ALL = 3.0
"""Factor that is divided by the share of rows that the filter leaves."""
MAX_CANDIDATES = 4_000
"""Rows whose vectors are read to refine the result of one search."""
MAX_ROWS_TO_FIND = 1_000
"""A search for more rows is left as it is."""

_CLIENT_DEFAULTS: tuple[dict[str, int], ...] = ({}, {"minimum_nprobes": 20, "maximum_nprobes": 20})
"""Options of partitions where a caller gave none: lancedb's client sends these with each query."""
_PROBE_OPTIONS = ("nprobes", "minimum_nprobes", "maximum_nprobes", "search_effort")
_QUANTIZED = ("_PQ", "_SQ", "_RQ")
_MAX_FILTER_LENGTH = 4_096


@dataclass(frozen=True, slots=True)
class SearchEffort:
    """Options of a search by vector that replace those it leaves open, and a line for its plan."""

    options: Mapping[str, Any]
    line: str

    def apply(self, search: Search) -> Search:
        """Return the search with these options."""
        searches = (
            {name: value for name, value in nearest.items() if name not in _PROBE_OPTIONS} for nearest in search.nearest
        )
        return replace(search, nearest=tuple({**nearest, **self.options} for nearest in searches))


def choose_effort(search: Search) -> SearchEffort | None:
    """Return the effort of a search; None where the request decides, or no vector index can answer.

    Raises Lance's errors about the filter.
    """
    if not search.nearest or search.options.get("fast_search") or not _is_open(search.nearest[0]):
        return None
    index_type = search.snapshot.fact(index_types).get(search.nearest[0]["column"])
    if index_type is None:
        return None
    rows, matching = search.snapshot.count_rows(), _count_matching(search)
    if matching is not None and matching <= flat_rows(rows):
        line = f"VectorSearch: {_rows_left(matching, rows)} are compared one by one, without the index."
        return SearchEffort({"use_index": False}, line)
    share = 1.0 if matching is None else matching / rows
    options = _probes(search.nearest[0], ceil(PROBES / share))
    if index_type.endswith(_QUANTIZED):
        options["refine_factor"] = _refine_factor(share, search.nearest[0]["k"], rows)
    what = "no filter applies before the search" if matching is None else f"{_rows_left(matching, rows)} are searched"
    chosen = ", ".join(f"{name} {value}" for name, value in options.items())
    return SearchEffort(options, f"VectorSearch: {what}; {chosen}.")


def flat_rows(rows: int) -> int:
    """Return how many rows of a table are compared one by one rather than by an index."""
    return max(MIN_FLAT_ROWS, min(MAX_FLAT_ROWS, rows // ROWS_PER_FLAT_ROW))


def _is_open(nearest: Mapping[str, Any]) -> bool:
    """Return whether a request leaves the effort open."""
    if nearest.get("use_index") is False or nearest.get("refine_factor") is not None or nearest["k"] > MAX_ROWS_TO_FIND:
        return False
    probes = {name: nearest[name] for name in _PROBE_OPTIONS if name in nearest}
    return "search_effort" in probes or probes in _CLIENT_DEFAULTS


def _probes(nearest: Mapping[str, Any], automatic: int) -> dict[str, Any]:
    """Return the options of partitions; where the request names its effort, its bounds hold."""
    effort = nearest.get("search_effort")
    if effort is None:
        return {"nprobes": automatic}
    bounds = {name: nearest[name] for name in ("minimum_nprobes", "maximum_nprobes") if name in nearest}
    if effort >= AUTOMATIC_EFFORT:
        least = max(automatic, bounds.get("minimum_nprobes", 1))
        bounds["minimum_nprobes"] = min(least, bounds.get("maximum_nprobes", least))
    return bounds if effort == AUTOMATIC_EFFORT else {**bounds, "search_effort": effort}


def _refine_factor(share: float, rows_to_find: int, rows: int) -> int:
    """Return the factor of rows to compare by their vectors; limited, since it multiplies what is read."""
    least = max(MIN_REFINE_FACTOR, ceil(MIN_REFINE_FACTOR * rows / ROWS_OF_MIN_FACTOR))
    factor = min(MAX_REFINE_FACTOR, max(least, ceil(REFINE_FACTOR_OF_ALL / share)))
    return max(1, min(factor, MAX_CANDIDATES // rows_to_find, -(-rows // rows_to_find)))


def _rows_left(matching: int, rows: int) -> str:
    return f"the {matching:,} rows of {rows:,} that the filter leaves"


def _count_matching(search: Search) -> int | None:
    """Return how many rows the filter leaves to the search; None where it has none, or one that is not counted.

    Counts are kept with the version. Raises Lance's errors.
    """
    expression = search.options.get("filter")
    if not isinstance(expression, str) or not search.options["prefilter"] or ROW_OFFSET in expression.lower():
        return None
    key = _count_matching, expression
    count: int | None = search.snapshot.known(key)
    if count is None:
        options = {"columns": [], "with_row_id": True, "filter": expression}
        if "batch_size" in search.options:
            options["batch_size"] = search.options["batch_size"]
        count = int(make_scanner(search.dataset, options).count_rows())
        if len(expression) <= _MAX_FILTER_LENGTH:
            search.snapshot.keep(key, count)
    return count
