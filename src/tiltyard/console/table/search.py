"""Search a table: by words, by a vector, by both, or for rows like one; with scores, and the plan of the query."""

from __future__ import annotations

import importlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from lance_namespace.errors import (
    InvalidInputError,
    LanceNamespaceError,
    ServiceUnavailableError,
    TableColumnNotFoundError,
)

from tiltyard.calls.rank_fusion import fuse_ranks
from tiltyard.console.browse.sample import find_examples
from tiltyard.console.page import Page, PageRequest
from tiltyard.console.table.grid import ROW_ID, Grid, Row, fetched_names, read_grid, shown_columns
from tiltyard.console.table.heads import TableHead, pin, read_head
from tiltyard.console.table.plan_tree import read_plan
from tiltyard.console.table.rows import MAX_FILTER
from tiltyard.console.table.schema_tree import EmbeddingFunction, embedding_functions, text_columns, vector_columns
from tiltyard.sample.films import EMBEDDING_FUNCTION

if TYPE_CHECKING:
    from tiltyard.console.table.schema_tree import Column

log = logging.getLogger("tiltyard.console")

MODES = ("text", "vector", "hybrid", "like")
DISTANCES = ("l2", "cosine", "dot")
SIZES = (10, 25, 50, 100)
CANDIDATES = 100
"""Rows that each half of a hybrid search contributes to the ranking."""
MAX_TEXT = 2_000
FULL_TEXT = frozenset({"FTS", "INVERTED"})


@dataclass(frozen=True, slots=True)
class SearchForm:
    """What a reader looks for. `meaning` is a text to be turned into a vector, `row` the row to find others like."""

    mode: str
    text: str
    meaning: str
    vector: str
    row: int | None
    vector_column: str
    distance: str
    filter: str
    size: int
    plan: str
    columns: tuple[str, ...]

    @classmethod
    def of(cls, page: PageRequest, vectors: Sequence[Column]) -> SearchForm:
        """Read the parameters of a page. Raises InvalidInputError."""
        mode, distance = page.text("mode", MODES[0]), page.text("distance", "")
        if mode not in MODES:
            raise InvalidInputError(f"Search by {', '.join(MODES)}, not by '{mode[:40]}'.")
        if distance and distance not in DISTANCES:
            raise InvalidInputError(f"The distance is one of {', '.join(DISTANCES)}.")
        for name, most in (("text", MAX_TEXT), ("filter", MAX_FILTER)):
            if len(page.text(name)) > most:
                raise InvalidInputError(f"The {name} has more than {most} characters.")
        return cls(
            mode=mode,
            text=page.text("text"),
            meaning=page.text("meaning"),
            vector=page.text("vector"),
            row=page.optional_integer("row"),
            vector_column=page.text("vector_column", vectors[0].path if vectors else ""),
            distance=distance,
            filter=page.text("filter"),
            size=page.integer("size", SIZES[0], 1, SIZES[-1]),
            plan=page.text("plan"),
            columns=tuple(page.all_of("column")[:500]),
        )

    @property
    def is_asked(self) -> bool:
        """Whether there is something to look for."""
        by_vector = bool(self.meaning or self.vector)
        return {"text": bool(self.text), "vector": by_vector, "like": self.row is not None}.get(
            self.mode, bool(self.text) and (by_vector or self.row is not None)
        )


def show(page: PageRequest) -> Page:
    """Show a search and what it finds; what cannot be done is said beside the form, which keeps what was entered."""
    head = read_head(page)
    vectors = vector_columns(head.columns)
    functions = find_functions(head.table.metadata, known_functions(page))
    search = SearchForm.of(page, vectors)
    columns = shown_columns(head.columns, search.columns)
    if not search.columns:
        columns = [column for column in columns if column.kind != "vector"] or columns
    grid, problem = Grid(columns, (), has_more=False), None
    plan: list[tuple[str, Any]] = []
    if search.is_asked and not head.table.is_only_declared:
        try:
            grid, plan = _run(page, head, search, columns, functions)
        except LanceNamespaceError as error:
            problem = page.explain(error)
    indexes = page.calls.attempt("ListTableIndices", id=list(page.path), branch=head.branch)
    kinds = {(index.index_type or "").upper() for index in indexes.indexes} if indexes is not None else FULL_TEXT
    values = head.values(page, "search") | {
        "search": search,
        "grid": grid,
        "plan": plan,
        "problem": problem,
        "vectors": vectors,
        "functions": functions,
        "has_text_index": bool(kinds & FULL_TEXT),
        "texts": text_columns(head.columns),
        "distances": DISTANCES,
        "sizes": SIZES,
        "pinned": pin(head),
        "scores": _score_names(grid),
        "examples": () if search.is_asked else find_examples(page.calls, page.path, head.table.metadata),
        "is_view": head.is_view,
    }
    return Page("search.html", values, problem.status if problem is not None else 200)


def _run(
    page: PageRequest,
    head: TableHead,
    search: SearchForm,
    columns: Sequence[Column],
    functions: Mapping[str, EmbeddingFunction],
) -> tuple[Grid, list[tuple[str, Any]]]:
    """Return what a search finds, and its plans, if they are asked for. Raises what the queries raise."""
    base = _base_request(page, head, search, columns)
    queries: list[tuple[str, dict[str, Any]]] = []
    if search.mode in ("text", "hybrid"):
        queries.append(("text", base | {"vector": {}, "full_text_query": {"string_query": {"query": search.text}}}))
    if search.mode != "text":
        vector = _query_vector(page, head, search, functions)
        by_vector = {
            "vector": {"single_vector": vector},
            "vector_column": search.vector_column,
            "distance_type": search.distance or None,
            "prefilter": True if search.filter else None,
        }
        queries.append(("vector", base | by_vector))
    size = CANDIDATES if search.mode == "hybrid" else search.size
    grids = [_read(page, request | {"k": size}, columns, size) for _, request in queries]
    plans = [(name, _plan(page, search.plan, request | {"k": size})) for name, request in queries if search.plan]
    return (fuse(grids, search.size) if len(grids) > 1 else grids[0]), plans


def _base_request(page: PageRequest, head: TableHead, search: SearchForm, columns: Sequence[Column]) -> dict[str, Any]:
    return {
        "id": list(page.path),
        "branch": head.branch,
        "version": head.version if not head.is_view else None,
        "columns": {"column_names": fetched_names(columns, head.hidden)},
        "filter": search.filter or None,
        "with_row_id": None if head.is_view else True,
    }


def _query_vector(
    page: PageRequest, head: TableHead, search: SearchForm, functions: Mapping[str, EmbeddingFunction]
) -> list[float]:
    """Return the vector to look for. Raises InvalidInputError, TableColumnNotFoundError."""
    if not search.vector_column:
        raise TableColumnNotFoundError("This table has no column of vectors to search.")
    if search.row is not None and not (search.vector or search.meaning):
        return _vector_of_row(page, head, search)
    if search.vector:
        try:
            numbers = json.loads(search.vector if search.vector.startswith("[") else f"[{search.vector}]")
            return [float(number) for number in numbers]
        except (ValueError, TypeError, RecursionError):
            raise InvalidInputError("The vector is a list of numbers, as [0.1, 0.2, …].") from None
    function = functions.get(search.vector_column)
    if function is None:
        raise InvalidInputError(
            f"No embedding function is set up for '{search.vector_column}': enter a vector, or look for rows like one."
        )
    return embed_text(search.meaning, function, known_functions(page))


def _vector_of_row(page: PageRequest, head: TableHead, search: SearchForm) -> list[float]:
    request = {
        "id": list(page.path),
        "branch": head.branch,
        "version": head.version,
        "columns": {"column_names": [search.vector_column]},
        "filter": f"{ROW_ID} = {search.row}",
        "k": 1,
        "vector": {},
    }
    with page.calls.rows(**request) as answer:
        values = [value for batch in answer.batches for value in batch.column(0).to_pylist()]
    if not values or values[0] is None:
        raise InvalidInputError("This row has no vector, or is not there any more: choose another one.")
    return [float(number) for number in values[0]]


def _read(page: PageRequest, request: Mapping[str, Any], columns: Sequence[Column], size: int) -> Grid:
    with page.calls.rows(**request) as answer:
        return read_grid(answer, columns, size)


def _plan(page: PageRequest, how: str, request: Mapping[str, Any]) -> Any:
    """Return the plan of a query as a tree: measured (`analyze`), or as it would run."""
    if how == "analyze":
        return read_plan(page.calls.call("AnalyzeTableQueryPlan", **request))
    id_, branch = request["id"], request.get("branch")
    query = {name: value for name, value in request.items() if value is not None}
    return read_plan(page.calls.call("ExplainTableQueryPlan", id=id_, branch=branch, query=query))


def fuse(grids: Sequence[Grid], size: int) -> Grid:
    """Join the results of two searches by the ranks of their rows (reciprocal rank fusion); a row keeps its scores."""
    rows: dict[int, Row] = {}
    for grid in grids:
        for row in grid.rows:
            if row.id is not None:
                known = rows.get(row.id)
                rows[row.id] = row if known is None else replace(known, scores=[*known.scores, *row.scores])
    relevance = fuse_ranks([row.id for row in grid.rows if row.id is not None] for grid in grids)
    best = list(relevance)[:size]
    joined = [replace(rows[number], scores=[("relevance", relevance[number]), *rows[number].scores]) for number in best]
    return Grid(grids[0].columns, joined, has_more=len(relevance) > size)


def _score_names(grid: Grid) -> list[str]:
    return list(dict.fromkeys(name for row in grid.rows for name, _ in row.scores))


def known_functions(page: PageRequest) -> dict[str, str]:
    """Return the functions of this server's own Python that turn texts into vectors: that of the sample, and the
    operator's.
    """
    return {EMBEDDING_FUNCTION: "tiltyard.sample.embedding:embed"} | dict(page.services.settings.embeddings)


def find_functions(metadata: Mapping[str, str] | None, settings: Mapping[str, str]) -> dict[str, EmbeddingFunction]:
    """Return the embedding function of each vector column of a table that a text can be turned into a vector for.

    A table names its embedding functions in metadata that whoever writes the table can write. So a name alone runs
    nothing: the setting `embeddings` says which function of this server's own Python it stands for.
    """
    return {entry.vector_column: entry for entry in embedding_functions(metadata) if entry.name in settings}


def embed_text(text: str, function: EmbeddingFunction, settings: Mapping[str, str]) -> list[float]:
    """Return the vector of a text. Raises InvalidInputError, ServiceUnavailableError where the function fails."""
    if len(text) > MAX_TEXT:
        raise InvalidInputError(f"The text has {len(text)} characters: {MAX_TEXT} at most.")
    target = settings[function.name]
    try:
        vector = np.asarray(_load(target)([text])[0], dtype=np.float64)
    except InvalidInputError:
        raise  # what the text cannot be turned into, in words for its reader
    except Exception as error:  # the operator's own code may raise anything
        log.exception("the embedding function %s failed", target)
        raise ServiceUnavailableError(
            f"The embedding function '{function.name}' failed: the server's log says why; search by a vector instead."
        ) from error
    if vector.ndim != 1 or not np.isfinite(vector).all():
        raise ServiceUnavailableError(f"The embedding function '{function.name}' returned no vector.")
    return [float(number) for number in vector]


def _load(target: str) -> Callable[[Sequence[str]], Any]:
    """Import `module:function`, which takes a list of texts and returns a vector each."""
    module, _, name = target.partition(":")
    function: Callable[[Sequence[str]], Any] = getattr(importlib.import_module(module), name)
    return function
