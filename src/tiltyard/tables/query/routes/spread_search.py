"""Spread a search of a large table over the servers of the catalog, by the segments of its vector index.

Each server finds the nearest rows of its segments at one version, under the caller's policies; this one merges their
distances as Lance merges those of segments, compares the vectors of the nearest where the search is refined, and reads
the rows, again under the caller's policies. So the response is that of one server.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import lance
import pyarrow as pa
from msgspec import structs

from tiltyard.model.spec import models
from tiltyard.storage.pylance_internals import take_rows
from tiltyard.tables.query.integer_filters import ROW_ID
from tiltyard.tables.query.plan import column_names
from tiltyard.tables.query.response_sizes import STREAMING_OPTION_NAMES
from tiltyard.tables.query.routes.route import BatchReader, Cost, Purpose, Refused, SearchOffer
from tiltyard.tables.query.scanners import make_scanner
from tiltyard.tables.query.segment_shares import (
    DISTANCE,
    MAX_SEGMENTS,
    Spread,
    VectorSegments,
    merge_nearest,
    vector_segments,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tiltyard.context import Context
    from tiltyard.tables.query.plan import Search
    from tiltyard.tables.query.routes.route import Query

MAX_CANDIDATES = 20_000
"""Rows that each server may return, those included that are only compared by their vectors: 12 bytes each."""
_OPTIONS = STREAMING_OPTION_NAMES | {
    "batch_size_bytes",
    "columns",
    "disable_scoring_autoprojection",
    "fast_search",
    "filter",
    "offset",
    "prefilter",
    "with_row_id",
}
_NAMES_DISTANCE = re.compile(r"\b_(?:distance|score)\b", re.IGNORECASE)
_ATTACHED = (DISTANCE, ROW_ID)
"""Columns of a response that the search has found, and that need not be read."""

_NOT_SHARED = Refused("searches of tables are not spread over servers here (server_url, spread_search_rows)")
_NOT_BY_VECTOR = Refused("it does not search for one vector")
_OTHER_OPTIONS = Refused("it has an order, a text, or another option by which answers of segments cannot be merged")
_NO_ROWS = Refused("it asks for no rows")
_NO_SEGMENTS = Refused("the column has no vector index of several segments")
_OTHER_METRIC = Refused("the request has another distance type than the index")
_ONE_BY_ONE = Refused("its rows are compared one by one, without the index")
_COMPUTED = Refused("an expression names the distance, or a column is no whole column")
_ALONE = Refused("no other server is alive that has segments of it")
_NO_CLIENT = Refused("it has not come as a request of HTTP, with which other servers could be asked")


@dataclass(slots=True)
class SpreadSearch(SearchOffer):
    """A search for one vector whose segments several servers search."""

    name: ClassVar[str] = "spread_search"
    cost = Cost.TABLE
    query: Query
    spread: Spread
    index: VectorSegments

    @classmethod
    def ask(cls, query: Query) -> SpreadSearch | Refused:
        """Return the search, or why one server has to answer it. Raises Lance's errors about the filter."""
        spread, search = query.spread, query.search
        if spread is None:
            return _NOT_SHARED
        if (refused := _refusal(search)) is not None:
            return refused
        if isinstance(index := _find_index(search, spread.min_rows), Refused):
            return index
        offer = cls(query, spread, index)
        if query.purpose is Purpose.LOOP:
            return offer  # in a thread, which may ask others
        return _refusal_of_servers(offer) or _refusal_of_effort(query) or offer

    @property
    def shares(self) -> Mapping[str, Sequence[str]]:
        """The segments of each server, by its URL, as long as all of them answer."""
        return self.spread.share_out(self.index.segments)

    def describe(self) -> str:
        own, shares = self.spread.servers.own_url, self.shares
        listed = ", ".join(f"{'this one' if url == own else url} {len(shares[url])}" for url in sorted(shares))
        return (
            f"{len(shares)} servers search the {len(self.index.segments)} segments of the index at version"
            f" {self.query.search.dataset.version} ({listed}), and this one merges what they find"
        )

    @property
    def notes(self) -> list[str]:
        lines = [] if self.query.effort is None else [self.query.effort.line]
        if self._uncovered:
            lines.append(
                f"VectorSearch: this server compares the rows of {len(self._uncovered)} fragments without an index."
            )
        return lines

    def plan(self, ctx: Context, *, is_verbose: bool) -> str:
        """Return the plan of Lance for a segment."""
        return make_scanner(self.query.search.dataset, *self._share(self.index.segments[:1])).explain_plan(is_verbose)

    def readers(self) -> Iterator[BatchReader]:
        self.spread.servers.note_spread(self.query.path)
        yield self._read(self._find())

    @property
    def _uncovered(self) -> tuple[int, ...]:
        """The fragments that no segment covers, where the search is of their rows, too."""
        return () if self.query.search.options.get("fast_search") else self.index.uncovered

    def _find(self) -> pa.Table:
        """Return the ids and distances of the nearest rows, in their order. Raises as `Spread.collect` does."""
        nearest = self.query.widened.nearest[0]
        found = self.spread.collect(self._sub_query(nearest), self.index.segments, self._find_here)
        merged = merge_nearest(found, _candidates(nearest))
        if "refine_factor" in nearest or self._uncovered:  # as Lance: both are then compared by their vectors
            merged = self._compare(merged)
        if self._uncovered:
            merged = merge_nearest([merged, self._compare_uncovered()], nearest["k"])
        return merged

    def _sub_query(self, nearest: Mapping[str, Any]) -> models.QueryTableRequest:
        """Return the request that other servers get: of the caller, for ids and distances, as widely as is chosen."""
        request, search = self.spread.request, self.query.search
        return structs.replace(
            request,
            version=search.dataset.version,
            k=_candidates(nearest),
            offset=None,
            filter=request.filter if search.options["prefilter"] else None,
            prefilter=True,
            columns=models.QueryTableColumns(column_names=[]),
            with_row_id=True,
            refine_factor=None,
            fast_search=None,
            use_rte=None,
            **{name: nearest.get(name) for name in _PROBES},
        )

    def _share(self, segments: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the options of Lance's scanner for some segments, as other servers have them."""
        nearest = {name: value for name, value in self.query.widened.nearest[0].items() if name != "refine_factor"}
        options = self._ids_and_distances | {"index_segments": list(segments)}
        return options, {**nearest, "k": _candidates(self.query.widened.nearest[0])}

    @property
    def _ids_and_distances(self) -> dict[str, Any]:
        """The options of a search for ids and distances, with the filter that applies before it."""
        options = self.query.search.options
        found = {"columns": [DISTANCE], "with_row_id": True, "disable_scoring_autoprojection": True, "prefilter": True}
        return found | ({"filter": options["filter"]} if options["prefilter"] and "filter" in options else {})

    def _find_here(self, segments: Sequence[str]) -> pa.Table:
        return make_scanner(self.query.search.dataset, *self._share(segments)).to_table()

    def _compare(self, candidates: pa.Table) -> pa.Table:
        """Return the nearest of some rows by their vectors: Lance compares them, as it does to refine a search."""
        if not candidates.num_rows:
            return candidates
        column, dataset = self.query.search.nearest[0]["column"], self.query.search.dataset
        ids = sorted(candidates[ROW_ID].to_pylist())
        vectors = lance.write_dataset(take_rows(dataset, ids, [column]).select([column]), "memory://")
        options = {"columns": [DISTANCE], "with_row_id": True, "disable_scoring_autoprojection": True}
        found = make_scanner(vectors, options, self._exact).to_table()
        positions = found[ROW_ID].combine_chunks()  # of one new fragment: those of the ids
        return pa.table({ROW_ID: pa.array(ids, pa.uint64()).take(positions), DISTANCE: found[DISTANCE]})

    def _compare_uncovered(self) -> pa.Table:
        """Return the nearest rows of the fragments that no segment covers."""
        dataset = self.query.search.dataset
        fragments = [dataset.get_fragment(number) for number in self._uncovered]
        return make_scanner(dataset, self._ids_and_distances | {"fragments": fragments}, self._exact).to_table()

    @property
    def _exact(self) -> dict[str, Any]:
        """The options of a comparison of vectors, without an index."""
        nearest = self.query.search.nearest[0]
        kept: dict[str, Any] = {
            name: nearest[name] for name in ("column", "q", "k", "distance_range") if name in nearest
        }
        return {**kept, "metric": self.index.metric, "use_index": False}

    def _read(self, found: pa.Table) -> BatchReader:
        """Return the response: the rows, in the order of the search, without those that the offset skips.

        The filter applies here, too: where it is a later one than other servers know of, and where it applies after the
        search.
        """
        search = self.query.search
        options, page = search.options, slice(search.options.get("offset", 0), None)
        if options["prefilter"]:  # all rows are the filter's, so those that are skipped need not be read
            found, page = found.slice(page.start), slice(None)
        ids = found[ROW_ID].to_pylist()
        columns = _read_columns(search)
        condition = f"{ROW_ID} IN ({', '.join(map(str, ids)) or 0})"
        if "filter" in options:
            condition = f"({condition}) AND ({options['filter']})"
        scanned = {"columns": columns, "filter": condition, "with_row_id": True}
        rows = make_scanner(search.dataset, scanned if columns is not None else _without_columns(scanned)).to_table()
        places = {row: place for place, row in enumerate(rows[ROW_ID].to_pylist())}
        kept = [number for number, row in enumerate(ids) if row in places][page][: search.max_rows]
        rows = _in_order(rows, [places[ids[number]] for number in kept])
        return _response(search, rows, found.take(pa.array(kept, pa.int64())))


_PROBES = ("nprobes", "minimum_nprobes", "maximum_nprobes", "search_effort", "ef")


def _without_columns(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name != "columns"}


def _candidates(nearest: Mapping[str, Any]) -> int:
    """Return how many rows of all segments the index finds."""
    count: int = nearest["k"] * nearest.get("refine_factor", 1)
    return count


def _refusal(search: Search) -> Refused | None:
    """Return why answers of segments to a search could not be merged; None if they can."""
    options = search.options
    if len(search.nearest) != 1 or isinstance(search.nearest[0]["q"], (list, pa.ListArray)):
        return _NOT_BY_VECTOR
    is_filtered = isinstance(options.get("filter", ""), str)
    if not _OPTIONS.issuperset(options) or not is_filtered or search.hidden_columns or search.is_numbered:
        return _OTHER_OPTIONS
    if not search.max_rows:
        return _NO_ROWS
    if search.nearest[0].get("use_index") is False:
        return _ONE_BY_ONE
    return None if _has_known_columns(search) else _COMPUTED


def _find_index(search: Search, min_rows: int) -> VectorSegments | Refused:
    """Return the index whose segments are shared out, or why none is. Raises Lance's errors."""
    if (rows := search.snapshot.count_rows()) < min_rows:
        return Refused(f"the table has {rows:,} rows, fewer than {min_rows:,} (spread_search_rows)")
    index = search.snapshot.fact(vector_segments).get(search.nearest[0]["column"])
    if index is None or len(index.segments) < 2:
        return _NO_SEGMENTS
    if len(index.segments) > MAX_SEGMENTS:
        return Refused(f"the index has more than {MAX_SEGMENTS} segments: have them merged")
    return index if search.nearest[0].get("metric") in (None, index.metric) else _OTHER_METRIC


def _refusal_of_servers(offer: SpreadSearch) -> Refused | None:
    """Return why no other server is asked; None if one can be. Reads the catalog, as `TableServers.ranked` does."""
    if offer.shares.keys() <= {offer.spread.servers.own_url}:
        return _ALONE
    return _NO_CLIENT if offer.spread.sub_queries is None else None


def _refusal_of_effort(query: Query) -> Refused | None:
    """Return why the search is not by the index, or of too many rows; None if it is spread. Raises Lance's errors."""
    nearest = query.widened.nearest[0]
    if nearest.get("use_index") is False:
        return _ONE_BY_ONE
    candidates = _candidates(nearest)
    return (
        Refused(f"it compares {candidates:,} rows, more than {MAX_CANDIDATES:,}")
        if candidates > MAX_CANDIDATES
        else None
    )


def _has_known_columns(search: Search) -> bool:
    """Return whether each column of a response can be read by row ids, or is what the search has found."""
    columns = search.options.get("columns")
    if columns is None:
        return True
    if isinstance(columns, list):
        stored = [name for name in columns if name not in _ATTACHED]
        return len(set(columns)) == len(columns) and set(stored) <= set(column_names(search.snapshot))
    computed = [text for name, text in columns.items() if text not in _ATTACHED]
    return not any(_NAMES_DISTANCE.search(text) for text in computed)


def _read_columns(search: Search) -> Any:
    """Return the columns that have to be read; None for all."""
    columns = search.options.get("columns")
    if isinstance(columns, dict):
        return {name: text for name, text in columns.items() if text not in _ATTACHED}
    return columns if columns is None else [name for name in columns if name not in _ATTACHED]


def _in_order(rows: pa.Table, places: list[int]) -> pa.Table:
    """Return rows in another order, also of types of which pyarrow takes none: views, as functions of text return."""
    try:
        return rows.take(pa.array(places, pa.int64()))
    except pa.ArrowNotImplementedError:
        return pa.concat_tables([rows.slice(0, 0), *(rows.slice(place, 1) for place in places)])


def _response(search: Search, rows: pa.Table, found: pa.Table) -> BatchReader:
    """Return the response of rows that were read, and of what the search has found of them."""
    columns = search.options.get("columns")
    if columns is None:
        columns = [*column_names(search.snapshot), DISTANCE]
    named = dict(columns) if isinstance(columns, dict) else {name: name for name in columns}
    if search.options.get("with_row_id"):
        named[ROW_ID] = ROW_ID
    attached = {DISTANCE: pa.float32(), ROW_ID: pa.uint64()}
    fields, arrays = [], []
    for name, text in named.items():
        is_attached = text in attached
        source = found[text] if is_attached else rows[name]
        fields.append(pa.field(name, attached[text]) if is_attached else rows.schema.field(name))
        arrays.append(source.combine_chunks())
    schema = pa.schema(fields, rows.schema.metadata)
    return BatchReader(schema, (pa.RecordBatch.from_arrays(arrays, schema=schema),) if rows.num_rows else ())
