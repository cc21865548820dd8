"""Plan a query: translate its request to options of Lance's scanners.

The rules follow lancedb's local tables, so that a client gets the same rows and columns from both:

* each vector of a list is a search of its own, numbered by `query_index`; on a multivector column, the list is one
  search for rows that are close to all of them;
* `offset` skips rows and then `k` follow; the filter applies before the search unless `prefilter` is false;
* `_distance` or `_score` is always returned, named or not, after the named columns; `_rowid` is last.

Vectors and text together: the vectors rank the rows that the text matches (the text counts as part of the filter).
A search for near-duplicates of a text (`minhash_query`) is one by itself: its distances are 1 - Jaccard's similarity.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from lance.dataset import ColumnOrdering
from lance.query import MinHashQuery
from lance_namespace.errors import InvalidInputError
from msgspec import structs

from tiltyard.model.columns.index_types import GRANULARITY, LIST_ELEMENT, IndexType
from tiltyard.model.columns.vector_columns import VectorColumn, vector_columns
from tiltyard.tables.lance_sql.amplification import check_growth
from tiltyard.tables.lance_sql.expressions import check_expression
from tiltyard.tables.query.batch_sizes import ORDER_BYTES, SMALL_RESPONSE_ROWS
from tiltyard.tables.query.full_text import FullTextQueryBuilder
from tiltyard.tables.query.integer_filters import ROW_ID, ROW_OFFSET, is_plain_column, parse_integer_filter
from tiltyard.tables.query.query_vectors import Vector, choose_column, to_array
from tiltyard.tables.query.response_sizes import NO_LIMIT, bounded_options, estimate_streamed, streaming_options
from tiltyard.tables.query.scanners import make_scanner

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import lance
    from lance.dataset import LanceScanner
    from lance.lance.indices import IndexDescription
    from lance.query import FullTextQuery

    from tiltyard.model.spec import models
    from tiltyard.storage.caches.version_cache import CachedVersion

QUERY_INDEX = "query_index"
DISTANCES = ("l2", "cosine", "dot", "hamming")
APPROXIMATIONS = ("fast", "normal", "accurate")
AUTOMATIC_EFFORT = 0.5
"""The `search_effort` that stands for what is chosen without one."""
MAX_MINHASH_CHARACTERS = 1_000_000
"""Characters of the text whose near-duplicates are searched for: Lance takes 0.3 µs for each."""

_FOUND_ROW_BYTES = 136
"""What Lance holds of a row that an index finds, until it has the nearest: measured with 400,000 of them."""
_VECTOR_COPIES = 2
"""Copies of the vectors that Lance compares one by one, or to refine: 1.5 and 2.2 were measured."""


@dataclass(frozen=True, slots=True)
class _TableInfo:
    """What planning needs of a table's version."""

    names: tuple[str, ...]
    vectors: Mapping[str, VectorColumn]


def _table_info(dataset: lance.LanceDataset) -> _TableInfo:
    """Read the info of a version."""
    schema = dataset.schema
    return _TableInfo(tuple(schema.names), vector_columns(schema))


_FULL_TEXT_TYPES = ("inverted", "fts")


def column_names(snapshot: CachedVersion) -> tuple[str, ...]:
    """Return the columns of a version."""
    return snapshot.fact(_table_info).names


def _full_text_indexes(dataset: lance.LanceDataset) -> Iterator[IndexDescription]:
    return (index for index in dataset.describe_indices() if index.index_type.lower() in _FULL_TEXT_TYPES)


def _has_element_documents(dataset: lance.LanceDataset) -> bool:
    """Return whether an index takes the elements of lists for documents."""
    return any(index.details.get(GRANULARITY) == LIST_ELEMENT for index in _full_text_indexes(dataset))


def _may_find_elements(snapshot: CachedVersion, request: models.QueryTableRequest) -> bool:
    """Return whether the documents of a full-text query may be elements of lists; True, too, for one with that word."""
    query = msgspec.json.encode(request.full_text_query).lower()
    return LIST_ELEMENT.encode() in query or snapshot.fact(_has_element_documents)


def full_text_columns(dataset: lance.LanceDataset) -> list[str]:
    """Return the columns with a full-text index."""
    return list(dict.fromkeys(name for index in _full_text_indexes(dataset) for name in index.field_names))


@dataclass(frozen=True, slots=True)
class Search:
    """A planned query: one scanner, or one for each of several query vectors, whose rows are then numbered.

    `hidden_columns` are read only because Lance needs them, and left out of the response. `max_rows` is how many rows a
    scanner may return, None for no limit; at 0, only the scanners' schema is used. `has_elements` is set where the
    documents of its full-text query may be elements of lists: then Lance adds a column with their positions.
    `memory_bytes` estimates what it holds at once, 0 for little.
    """

    snapshot: CachedVersion
    options: dict[str, Any]
    nearest: tuple[dict[str, Any], ...]
    is_numbered: bool
    hidden_columns: frozenset[str]
    max_rows: int | None
    has_elements: bool = False
    memory_bytes: int = 0

    @property
    def dataset(self) -> lance.LanceDataset:
        return self.snapshot.dataset

    def scanners(self) -> Iterator[LanceScanner]:
        """Yield the scanners, in the order of the query vectors."""
        if not self.nearest:
            yield make_scanner(self.dataset, self.options)
        for nearest in self.nearest:
            yield make_scanner(self.dataset, self.options, nearest)


def limit_to_row_ids(request: models.QueryTableRequest) -> models.QueryTableRequest:
    """Return a request for rows by their ids, or offsets, with a limit of as many rows; other requests as they are.

    lancedb asks for such rows without a limit, as for a large response.
    """
    vector = request.vector
    is_ranked = request.full_text_query or request.minhash_query
    if request.filter is None or is_ranked or (vector and (vector.single_vector or vector.multi_vector)):
        return request
    is_by_row = ROW_ID in request.filter or ROW_OFFSET in request.filter
    selected = parse_integer_filter(request.filter) if is_by_row else None
    rows = None if selected is None else selected.rows
    return request if rows is None or len(rows) >= request.k else structs.replace(request, k=len(rows))


def plan_search(snapshot: CachedVersion, request: models.QueryTableRequest) -> Search:
    """Plan the search of a request. Raises InvalidInputError, TableColumnNotFoundError."""
    vectors = _query_vectors(request)
    text = (
        FullTextQueryBuilder(lambda: full_text_columns(snapshot.dataset)).build(request.full_text_query)
        if request.full_text_query
        else None
    )
    if not vectors and (request.lower_bound is not None or request.upper_bound is not None):
        raise InvalidInputError("Bounds apply to distances: they need a query vector.")
    options = _filter_options(request, text, bool(vectors))
    if request.minhash_query is not None:
        options |= _minhash_options(snapshot, request.minhash_query, is_alone=text is None and not vectors)
    has_distance = bool(vectors) or request.minhash_query is not None
    score = "_distance" if has_distance else "_score" if text is not None else None
    options |= _projection_options(snapshot, request, score)
    hidden_columns = _add_ordering(request, options)
    if request.offset:
        options["offset"] = request.offset
    if request.fast_search:
        options["fast_search"] = True
    if vectors:
        nearest, is_numbered, found_bytes = _vector_searches(snapshot, request, vectors)
        max_rows = min(request.k, nearest[0]["k"])
        batch_limits, ordered_bytes = bounded_options(snapshot, options, max_rows)
        options |= batch_limits
        memory_bytes = found_bytes + ordered_bytes
        return Search(snapshot, options, nearest, is_numbered, hidden_columns, max_rows, memory_bytes=memory_bytes)
    if text is not None or request.minhash_query is not None:
        max_rows = min(request.k, snapshot.count_rows())
        options["limit"] = max(1, max_rows)  # Lance panics at 0
    elif request.k != NO_LIMIT:
        max_rows = options["limit"] = request.k
    streaming = streaming_options(snapshot, options)
    limit = max_rows if "limit" in options else None
    batch_limits, memory_bytes = bounded_options(snapshot, options, limit)
    if streaming and batch_limits:
        streaming["batch_size"] = min(streaming["batch_size"], batch_limits["batch_size"])
    if streaming and not memory_bytes:
        memory_bytes = estimate_streamed(snapshot, options.get("columns"))
    options |= batch_limits | streaming
    has_elements = text is not None and _may_find_elements(snapshot, request)
    return Search(snapshot, options, (), False, hidden_columns, limit, has_elements, memory_bytes)


def _query_vectors(request: models.QueryTableRequest) -> list[Vector]:
    """Return the query vectors; an empty list, alone or inside, stands for none."""
    vector = request.vector
    if vector is None:
        return []
    if vector.single_vector and vector.multi_vector:
        raise InvalidInputError("A query has either a single_vector or a multi_vector.")
    if vector.single_vector:
        return [vector.single_vector]
    return list(vector.multi_vector or ())


def _filter_options(request: models.QueryTableRequest, text: FullTextQuery | None, has_vectors: bool) -> dict[str, Any]:
    """Return the options of filter and full-text query; with vectors, the text is part of the filter."""
    options: dict[str, Any] = {"prefilter": request.prefilter is not False}
    expression = check_expression(request.filter) if request.filter is not None else None
    if text is not None and has_vectors:
        options["filter"] = {"expr_filter": expression, "search_filter": text}
    elif expression is not None:
        options["filter"] = expression
    if text is not None and not has_vectors:
        options["full_text_query"] = text
    return options


def _minhash_options(snapshot: CachedVersion, query: models.MinHashQuery, *, is_alone: bool) -> dict[str, Any]:
    """Return the options of a search for near-duplicates. Raises InvalidInputError, also where no index is for it."""
    if not is_alone:
        raise InvalidInputError("A minhash_query goes with no vector and no full_text_query: ask for one of them.")
    if len(query.text) > MAX_MINHASH_CHARACTERS:
        raise InvalidInputError(f"The text of a minhash_query has up to {MAX_MINHASH_CHARACTERS:,} characters.")
    if query.column not in (indexed := snapshot.fact(_minhash_columns)):
        raise InvalidInputError(
            f"The column '{query.column}' has no MINHASHLSH index; those that have: {', '.join(indexed) or 'none'}."
        )
    return {"nearest": MinHashQuery(query.text, query.column)}


def _minhash_columns(dataset: lance.LanceDataset) -> tuple[str, ...]:
    """Return the columns with an index for searches of near-duplicates."""
    indices = (index for index in dataset.describe_indices() if index.index_type.upper() == IndexType.MINHASHLSH)
    return tuple(sorted({name for index in indices for name in index.field_names}))


def _projection_options(
    snapshot: CachedVersion, request: models.QueryTableRequest, score: str | None
) -> dict[str, Any]:
    """Return the options of the columns, with the score after the named ones.

    Lance adds the score by itself, with a warning in the log that it will stop to do so: it is named instead.
    Expressions that are whole columns under their own names, as lancedb's permutations ask for, are named columns.
    """
    requested = request.columns
    names = requested.column_names if requested else None
    aliases = requested.column_aliases if requested else None
    if names is not None and aliases is not None:
        raise InvalidInputError("The columns are given either by column_names or by column_aliases.")
    if aliases and all(name == text for name, text in aliases.items()) and whole_columns(snapshot, aliases.values()):
        names, aliases = list(aliases), None
    options: dict[str, Any] = {}
    if aliases is not None:
        columns = {name: check_expression(text, f"expression of '{name}'") for name, text in aliases.items()}
        check_growth(columns, is_output=True)
        if score is not None:
            columns.setdefault(score, score)
        options["columns"] = columns
    elif names is not None:
        options["columns"] = [*names, score] if score is not None and score not in names else list(names)
    if "columns" in options:
        options["disable_scoring_autoprojection"] = True
    if request.with_row_id:
        options["with_row_id"] = True
    return options


def whole_columns(snapshot: CachedVersion, expressions: Iterable[str]) -> bool:
    """Return whether each expression is a column of the table by its plain name."""
    names = snapshot.fact(_table_info).names
    return all(text in names and is_plain_column(text) for text in expressions)


def _add_ordering(request: models.QueryTableRequest, options: dict[str, Any]) -> frozenset[str]:
    """Add the ordering to the options; return the columns that are read only for it.

    Lance can order by a column that is not returned only if the row ids are.
    """
    if not request.order_by:
        return frozenset()
    options["order_by"] = [
        ColumnOrdering(order.column_name, order.ascending is not False, bool(order.nulls_first))
        for order in request.order_by
    ]
    if "columns" not in options or options.get("with_row_id") or ROW_ID in options["columns"]:
        return frozenset()
    options["with_row_id"] = True
    return frozenset({ROW_ID})


def _vector_searches(
    snapshot: CachedVersion, request: models.QueryTableRequest, vectors: list[Vector]
) -> tuple[tuple[dict[str, Any], ...], bool, int]:
    """Return the searches by vector, whether their rows are numbered, and the memory that one of them takes.

    A search also finds the rows that `offset` skips. A limit besides would add nothing, and Lance would apply it to the
    rows of the text. A search allocates memory for as many rows as it may return, and the process aborts where there
    is not enough: `k` is never more than the table has.
    """
    info = snapshot.fact(_table_info)
    column = choose_column(info.vectors, info.names, request.vector_column, len(vectors[0]))
    rows = max(1, snapshot.count_rows())
    rows_to_find = max(1, min(request.k + (request.offset or 0), rows))
    common = {"column": column.path, "k": rows_to_find, **_index_options(request, rows_to_find, rows)}
    values = [to_array(vector, column) for vector in vectors]
    found_bytes = _estimate_found(snapshot, common, column)
    if column.is_multivector:
        return ({**common, "q": values},), False, found_bytes
    if QUERY_INDEX in info.names and len(values) > 1:
        raise InvalidInputError(f"This table has a column '{QUERY_INDEX}': search it with one vector at a time.")
    return tuple({**common, "q": value} for value in values), len(values) > 1, found_bytes


def _estimate_found(snapshot: CachedVersion, nearest: Mapping[str, Any], column: VectorColumn) -> int:
    """Return the memory of the rows that a search compares to find its nearest, 0 for few.

    Lance holds their vectors until the last, unless an index alone finds them. Raises InvalidInputError for too many.
    """
    rows = nearest["k"] * nearest.get("refine_factor", 1)
    if rows <= SMALL_RESPONSE_ROWS:
        return 0
    is_by_index = nearest.get("use_index", True) and column.path in snapshot.fact(index_types)
    vector_bytes = 0 if is_by_index and "refine_factor" not in nearest else column.dimension * column.element.byte_width
    size: int = rows * (_FOUND_ROW_BYTES + _VECTOR_COPIES * vector_bytes)
    if size > ORDER_BYTES:
        raise InvalidInputError(
            f"To find the {rows} nearest rows takes about {size >> 20} MiB: {ORDER_BYTES >> 20} at most, so ask for "
            "fewer rows (k), or for a smaller refine_factor."
        )
    return size


def _index_options(request: models.QueryTableRequest, rows_to_find: int, rows: int) -> dict[str, Any]:
    """Return the options of the index search; factors that multiply allocations are limited by the number of rows."""
    options: dict[str, Any] = _probe_options(request)
    options["metric"] = _choice(request.distance_type, DISTANCES, "distance_type")
    if (mode := _choice(request.approx_mode, APPROXIMATIONS, "approx_mode")) is not None:
        options["approx_mode"] = mode
    if request.ef is not None:
        options["ef"] = min(_positive(request.ef, "ef"), max(rows, rows_to_find))
    if request.refine_factor is not None:
        options["refine_factor"] = min(_positive(request.refine_factor, "refine_factor"), -(-rows // rows_to_find))
    if request.lower_bound is not None or request.upper_bound is not None:
        options["distance_range"] = (request.lower_bound, request.upper_bound)
    if request.bypass_vector_index:
        options["use_index"] = False
    return options


def _probe_options(request: models.QueryTableRequest) -> dict[str, float]:
    """Return the options of partitions to probe: bounds and `search_effort` override `nprobes`.

    A maximum of 0 is none, as in lancedb: the search is as wide as without one, and looks on where it finds too little.
    """
    minimum, maximum, effort = request.minimum_nprobes, request.maximum_nprobes, request.search_effort
    if effort is not None and not 0 <= effort <= 1:
        raise InvalidInputError(f"search_effort is a number from 0 to 1, not {effort}.")
    if effort is None and minimum is None:
        if maximum is None:
            return {} if request.nprobes is None else {"nprobes": _positive(request.nprobes, "nprobes")}
        if maximum == 0:
            minimum = request.nprobes
            effort = AUTOMATIC_EFFORT if minimum is None else None
    options: dict[str, float] = {} if effort is None else {"search_effort": effort}
    if minimum is not None:
        options["minimum_nprobes"] = _positive(minimum, "minimum_nprobes")
    if maximum:
        options["maximum_nprobes"] = maximum
        if minimum is not None and minimum > maximum:
            raise InvalidInputError(f"minimum_nprobes is {minimum}, above maximum_nprobes {maximum}.")
    return options


def _positive(value: int, name: str) -> int:
    if value < 1:
        raise InvalidInputError(f"{name} is at least 1; leave it out for the default.")
    return value


def _choice(value: str | None, choices: tuple[str, ...], name: str) -> str | None:
    if value is None or value.lower() in choices:
        return value and value.lower()
    raise InvalidInputError(f"The {name} is one of {', '.join(choices)}; not '{value}'.")


def index_types(dataset: lance.LanceDataset) -> Mapping[str, str]:
    """Return the type of the vector index on each column that has one."""
    indices = (index for index in dataset.describe_indices() if "metric_type" in index.details)
    return {name: index.index_type.upper() for index in indices for name in index.field_names}
