"""From a query's request to the Lance scanners that answer it.

The rules follow lancedb's local tables, so that a client sees the same rows and columns from both:

* a list of vectors is one search each, numbered by `query_index`; on a column that holds several vectors a row, it is
  one search for rows that come close to all of them;
* `offset` skips rows and then `k` follow; the filter applies before the search unless `prefilter` is false;
* `_distance` or `_score` is there whether named or not, after the named columns; `_rowid` is last.

Vectors and text together: the vectors rank the rows that the text finds (the text counts as part of the filter).
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

import pyarrow as pa
from lance.dataset import ColumnOrdering
from lance_namespace.errors import InvalidInputError

from tiltyard.model.vector_columns import VectorColumn, vector_columns
from tiltyard.tables.query.batch_sizes import SMALL_ANSWER, batch_options, check_order
from tiltyard.tables.query.full_text import FullText
from tiltyard.tables.query.query_vectors import Vector, choose_column, to_array
from tiltyard.tables.query.scanners import make_scanner
from tiltyard.tables.sql.amplification import check_growth
from tiltyard.tables.sql.expressions import check_expression

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import lance
    from lance.dataset import LanceScanner
    from lance.query import FullTextQuery

    from tiltyard.model.spec import models

NO_LIMIT = 2**63 - 1
ROW_ID = "_rowid"
QUERY_INDEX = "query_index"
DISTANCES = ("l2", "cosine", "dot", "hamming")
APPROXIMATIONS = ("fast", "normal", "accurate")

FEW_ROWS = 10
"""Rows up to which nobody asks how large they may be."""
WHOLE_BYTES = 4 << 20
"""An answer that may have more bytes is read in parts."""
BATCH_BYTES = 256 << 10
LARGEST_BATCH = 8192
READING = {
    "batch_size_bytes": 4 * BATCH_BYTES,
    "batch_readahead": 2,
    "fragment_readahead": 1,
    "io_buffer_size": 4 << 20,
}
"""What Lance is told for an answer that is read in parts.

It keeps several batches ahead of its reader, and reads what so many rows as a batch may have need, whatever bytes its
buffer and its batches may have: rows of a batch are what bounds the memory of a reader that does not read.
"""
STREAMING = frozenset({*READING, "batch_size"})

SAMPLED_FRAGMENTS = 16
UNKNOWN_ROW_BYTES = 1024


@dataclass(frozen=True, slots=True)
class _Facts:
    """What planning asks of a table's version."""

    names: tuple[str, ...]
    vectors: Mapping[str, VectorColumn]
    rows: int


_facts: weakref.WeakKeyDictionary[lance.LanceDataset, _Facts] = weakref.WeakKeyDictionary()


def _facts_of(dataset: lance.LanceDataset) -> _Facts:
    """Looked up once per handle: handles are shared, and stay at their version."""
    found = _facts.get(dataset)
    if found is None:
        schema = dataset.schema
        found = _facts[dataset] = _Facts(tuple(schema.names), vector_columns(schema), dataset.count_rows())
    return found


_row_bytes: weakref.WeakKeyDictionary[lance.LanceDataset, float] = weakref.WeakKeyDictionary()


def _bytes_on_disk(dataset: lance.LanceDataset) -> float:
    """Bytes of a row with all its columns, at the average of some fragments; looked up once per handle."""
    found = _row_bytes.get(dataset)
    if found is None:
        fragments = dataset.get_fragments()
        sample = [fragment.metadata for fragment in fragments[:: -(-len(fragments) // SAMPLED_FRAGMENTS) or 1]]
        rows = sum(fragment.physical_rows for fragment in sample)
        size = sum(file.file_size_bytes or 0 for fragment in sample for file in fragment.files)
        found = _row_bytes[dataset] = size / rows if rows and size else UNKNOWN_ROW_BYTES
    return found


def _estimate_row_bytes(dataset: lance.LanceDataset, columns: Any) -> float:
    """Bytes of a row of an answer: exact for columns of fixed width, else at most those of a row on disk."""
    if isinstance(columns, list):
        schema = dataset.schema
        kinds = [schema.field(name).type if name in schema.names else None for name in columns]
        widths = [
            pa.uint64().byte_width if kind is None and "." not in name else _width(kind)
            for name, kind in zip(columns, kinds, strict=True)
        ]
        known = [width for width in widths if width is not None]
        if len(known) == len(widths):
            return max(1.0, sum(known))
    return _bytes_on_disk(dataset)


def _width(kind: pa.DataType | None) -> float | None:
    """Bytes of a value of fixed width, None for other types."""
    if kind is None:
        return None
    if pa.types.is_fixed_size_list(kind):
        inner = _width(kind.value_type)
        return None if inner is None else inner * int(kind.list_size)
    try:
        return int(kind.bit_width) / 8
    except ValueError:  # of no fixed width
        return None


def _reading(dataset: lance.LanceDataset, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options that have a large answer read in parts; none for a small one."""
    limit = options.get("limit", NO_LIMIT)
    if limit <= FEW_ROWS:
        return {}
    size = _estimate_row_bytes(dataset, options.get("columns"))
    if limit <= LARGEST_BATCH and limit * size <= WHOLE_BYTES:
        return {}
    return {**READING, "batch_size": max(1, min(LARGEST_BATCH, int(BATCH_BYTES / size)))}


def column_names(dataset: lance.LanceDataset) -> tuple[str, ...]:
    """All columns of a version."""
    return _facts_of(dataset).names


def indexed_text(dataset: lance.LanceDataset) -> list[str]:
    """The columns with a full-text index."""
    found = (index for index in dataset.describe_indices() if index.index_type.lower() in ("inverted", "fts"))
    return list(dict.fromkeys(name for index in found for name in index.field_names))


@dataclass(frozen=True, slots=True)
class Search:
    """How a request is answered: one scanner, or one for each of several query vectors (`numbered`).

    `hidden` columns are read for Lance's sake and left out of the answer. `most` is how many rows a scanner may give,
    None for no limit; where it is 0, the scanners are there for the schema alone.
    """

    dataset: lance.LanceDataset
    options: dict[str, Any]
    nearest: tuple[dict[str, Any], ...]
    numbered: bool
    hidden: frozenset[str]
    most: int | None

    def scanners(self) -> Iterator[LanceScanner]:
        """In the order of the query vectors."""
        if not self.nearest:
            yield make_scanner(self.dataset, self.options)
        for nearest in self.nearest:
            yield make_scanner(self.dataset, self.options, nearest)


def plan_search(dataset: lance.LanceDataset, request: models.QueryTableRequest) -> Search:
    """The search a request asks for. Raises InvalidInputError, TableColumnNotFoundError."""
    vectors = _query_vectors(request)
    text = FullText(lambda: indexed_text(dataset)).query(request.full_text_query) if request.full_text_query else None
    if not vectors and (request.lower_bound is not None or request.upper_bound is not None):
        raise InvalidInputError("Bounds apply to distances: they need a query vector.")
    options = _filter(request, text, bool(vectors))
    options |= _projection(request, "_distance" if vectors else "_score" if text is not None else None)
    hidden = _ordering(request, options)
    if request.offset:
        options["offset"] = request.offset
    if request.fast_search:
        options["fast_search"] = True
    if vectors:
        nearest, numbered = _nearest(dataset, request, vectors)
        most = min(request.k, nearest[0]["k"])
        options |= _batches(dataset, options, most)
        return Search(dataset, options, nearest, numbered, hidden, most)
    if text is not None:
        most = min(request.k, _facts_of(dataset).rows)
        options["limit"] = max(1, most)  # Lance panics at 0
    elif request.k != NO_LIMIT:
        most = options["limit"] = request.k
    reading = _reading(dataset, options)
    computing = _batches(dataset, options, most if "limit" in options else None)
    if reading and computing:
        reading["batch_size"] = min(reading["batch_size"], computing["batch_size"])
    options |= computing | reading
    return Search(dataset, options, (), False, hidden, most if "limit" in options else None)


def _batches(dataset: lance.LanceDataset, options: Mapping[str, Any], most: int | None) -> dict[str, int]:
    """Return how many rows the scan may read at once, where that has to be said; `most` is how many it may give.

    Raises InvalidInputError for expressions, and for rows to be ordered, that are too large for memory.
    """
    columns, found, orders = options.get("columns"), options.get("filter"), options.get("order_by", ())
    few = most is not None and most <= SMALL_ANSWER and not orders
    if few and found is None and not _is_aliased(columns):
        return {}
    expressions: dict[str, str] = {}
    if _is_aliased(columns):
        expressions = {f"expression of '{name}'": text for name, text in columns.items()}
    expression = found.get("expr_filter") if isinstance(found, dict) else found
    if expression is not None:
        expressions["filter"] = expression
    read = () if few or _is_aliased(columns) else columns
    if orders:
        expressions |= {f"order by '{order.column_name}'": order.column_name for order in orders}
        rows = _facts_of(dataset).rows
        check_order(dataset, read, expressions, rows if most is None else min(rows, most))
    return batch_options(dataset, read, expressions)


def _is_aliased(columns: Any) -> TypeGuard[dict[str, str]]:
    return isinstance(columns, dict)


def _query_vectors(request: models.QueryTableRequest) -> list[Vector]:
    """The query vectors; an empty list, alone or inside, stands for none."""
    given = request.vector
    if given is None:
        return []
    if given.single_vector and given.multi_vector:
        raise InvalidInputError("A query has either a single_vector or a multi_vector.")
    if given.single_vector:
        return [given.single_vector]
    return list(given.multi_vector or ())


def _filter(request: models.QueryTableRequest, text: FullTextQuery | None, ranked: bool) -> dict[str, Any]:
    options: dict[str, Any] = {"prefilter": request.prefilter is not False}
    expression = check_expression(request.filter) if request.filter is not None else None
    if text is not None and ranked:
        options["filter"] = {"expr_filter": expression, "search_filter": text}
    elif expression is not None:
        options["filter"] = expression
    if text is not None and not ranked:
        options["full_text_query"] = text
    return options


def _projection(request: models.QueryTableRequest, score: str | None) -> dict[str, Any]:
    """The columns, the score after those named.

    Lance adds the score by itself, with a warning in the log that one day it will not: it is named instead.
    """
    asked = request.columns
    names = asked.column_names if asked else None
    aliases = asked.column_aliases if asked else None
    if names is not None and aliases is not None:
        raise InvalidInputError("The columns are given either by column_names or by column_aliases.")
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


def _ordering(request: models.QueryTableRequest, options: dict[str, Any]) -> frozenset[str]:
    """Adds the ordering; gives the columns read only for it.

    Lance finds a column to order by that is not among those asked for only where it has the row ids.
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


def _nearest(
    dataset: lance.LanceDataset, request: models.QueryTableRequest, vectors: list[Vector]
) -> tuple[tuple[dict[str, Any], ...], bool]:
    """The searches by vector, and whether their rows are numbered.

    Rows to skip are searched for, too. A limit on top would add nothing, and Lance would cut the text's rows by it.
    A search allocates for as many rows as it may give, and the process aborts where that is beyond memory: it is
    never asked for more than there are.
    """
    facts = _facts_of(dataset)
    column = choose_column(facts.vectors, facts.names, request.vector_column, len(vectors[0]))
    rows = max(1, facts.rows)
    wanted = max(1, min(request.k + (request.offset or 0), rows))
    common = {"column": column.path, "k": wanted, **_tuning(request, wanted, rows)}
    values = [to_array(vector, column) for vector in vectors]
    if column.is_multivector:
        return ({**common, "q": values},), False
    if QUERY_INDEX in facts.names and len(values) > 1:
        raise InvalidInputError(f"This table has a column '{QUERY_INDEX}': search it with one vector at a time.")
    return tuple({**common, "q": value} for value in values), len(values) > 1


def _tuning(request: models.QueryTableRequest, wanted: int, rows: int) -> dict[str, Any]:
    """How to search. The factors that multiply allocations are held to what the table's rows can need."""
    chosen: dict[str, Any] = _probes(request)
    chosen["metric"] = _word(request.distance_type, DISTANCES, "distance_type")
    if (mode := _word(request.approx_mode, APPROXIMATIONS, "approx_mode")) is not None:
        chosen["approx_mode"] = mode
    if request.ef is not None:
        chosen["ef"] = min(_positive(request.ef, "ef"), max(rows, wanted))
    if request.refine_factor is not None:
        chosen["refine_factor"] = min(_positive(request.refine_factor, "refine_factor"), -(-rows // wanted))
    if request.lower_bound is not None or request.upper_bound is not None:
        chosen["distance_range"] = (request.lower_bound, request.upper_bound)
    if request.bypass_vector_index:
        chosen["use_index"] = False
    return chosen


def _probes(request: models.QueryTableRequest) -> dict[str, int]:
    """The partitions to probe: the bounds win over `nprobes`; a maximum of 0 is none, as lancedb writes it."""
    least, most = request.minimum_nprobes, request.maximum_nprobes
    if least is None and most is None:
        return {} if request.nprobes is None else {"nprobes": _positive(request.nprobes, "nprobes")}
    chosen = {}
    if least is not None:
        chosen["minimum_nprobes"] = _positive(least, "minimum_nprobes")
    if most:
        chosen["maximum_nprobes"] = most
        if least is not None and least > most:
            raise InvalidInputError(f"minimum_nprobes is {least}, above maximum_nprobes {most}.")
    return chosen


def _positive(value: int, name: str) -> int:
    if value < 1:
        raise InvalidInputError(f"{name} is at least 1; leave it out for the default.")
    return value


def _word(given: str | None, choices: tuple[str, ...], name: str) -> str | None:
    if given is None or given.lower() in choices:
        return given and given.lower()
    raise InvalidInputError(f"The {name} is one of {', '.join(choices)}; not '{given}'.")
