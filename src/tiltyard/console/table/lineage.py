"""Where a table or a column comes from, and what is made of it: a view's query, commits of jobs, views that read it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from lance_namespace.errors import InvalidInputError

from tiltyard.console.page import Page, PageRequest
from tiltyard.model.columns.computed_columns import VIEW
from tiltyard.model.ids import Id
from tiltyard.model.views.definitions import parse_sources, plain_view_sources
from tiltyard.model.views.plain_views import DATABASE_PROPERTY, QUERY_PROPERTY

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tiltyard.console.page_calls import PageCalls
    from tiltyard.console.table.heads import TableHead

SOURCES_PROPERTY = "tiltyard.view.sources"
"""Of a view: the versions of its sources that its rows were computed from."""
MAX_VIEWS = 50
"""Views of a namespace that are asked whether they read the table."""
MAX_COMMITS = 50
MAX_COLUMNS = 1_000
"""Columns whose lineage can be chosen."""
PRODUCT_DEPTH = 3
"""How many steps away tables that were made from this one are shown."""
COLUMN_DEPTH = 10
"""How many steps the path of a column has, each way."""


@dataclass(frozen=True, slots=True)
class ViewSource:
    """A table that a view reads: the version that its rows were computed from, and the latest one, where known."""

    path: Id
    computed_from: int | None = None
    latest: int | None = None


@dataclass(frozen=True, slots=True)
class Origin:
    """A view's query and the tables that it reads; no query for an ordinary table."""

    query: str = ""
    kind: str = ""
    sources: Sequence[ViewSource] = ()


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit of a job between a source and a target made from it: `other` is the one that the page is not of."""

    source: Any
    target: Any
    other: Any
    edge: Any


def read_origin(calls: PageCalls, head: TableHead) -> Origin:
    """Return what a view is made of, by its own definition, and how far its rows are behind."""
    metadata: Mapping[str, str] = head.table.metadata or {}
    properties: Mapping[str, str] = head.table.properties or {}
    if query := metadata.get(f"{VIEW}query"):
        versions = _computed_from(properties)
        sources = [
            ViewSource(path, versions.get(str(path)), _latest(calls, path) if str(path) in versions else None)
            for path in _sources(query, metadata.get(f"{VIEW}database", ""))
        ]
        return Origin(query, f"materialized view ({metadata.get(f'{VIEW}kind', 'query')})", sources)
    if query := properties.get(QUERY_PROPERTY):
        database = properties.get(DATABASE_PROPERTY, "")
        return Origin(query, "view", [ViewSource(path) for path in _plain_sources(query, database)])
    return Origin()


def _computed_from(properties: Mapping[str, str]) -> Mapping[str, int]:
    try:
        return msgspec.json.decode(properties.get(SOURCES_PROPERTY, "{}"), type=dict[str, int])
    except msgspec.MsgspecError:
        return {}


def _latest(calls: PageCalls, path: Id) -> int | None:
    described = calls.attempt("DescribeTable", id=list(path), load_detailed_metadata=True)
    return None if described is None else described.version


def show(page: PageRequest) -> Page:
    """Show what the table was made from and what was made from it, and the views that read it, as far as they are
    beside it or in the root; with the parameter `column` the path of that column alone, as a part of this.
    """
    if (column := page.text("column")) or "column" in page.query:
        return _show_column(page, column) if column else Page("lineage_path.html", _of_table(page), fragment=True)
    described = page.calls.attempt("DescribeTable", id=list(page.path), load_detailed_metadata=True)
    schema = None if described is None or described.location is None else described.schema
    names = [] if schema is None else [field.name for field in schema.fields[:MAX_COLUMNS]]
    return Page("lineage.html", {**_of_table(page), "columns": names}, fragment=True)


def _of_table(page: PageRequest) -> dict[str, Any]:
    places = dict.fromkeys((page.path.parent, Id()))
    dependents = [view for place in places for view in _dependent_views(page.calls, page.path, place)]
    sources, products = _read_commits(page, "upstream", 1), _read_commits(page, "downstream", PRODUCT_DEPTH)
    return {"column": "", "sources": sources.commits, "products": products.commits, "dependents": dependents}


def _show_column(page: PageRequest, column: str) -> Page:
    sources, products = (_read_commits(page, each, COLUMN_DEPTH, column) for each in ("upstream", "downstream"))
    is_truncated = sources.is_truncated or products.is_truncated
    values = {"sources": sources.commits, "products": products.commits, "is_truncated": is_truncated, "column": column}
    return Page("lineage_path.html", values, fragment=True)


@dataclass(frozen=True, slots=True)
class _Commits:
    commits: Sequence[Commit] = ()
    is_truncated: bool = False


def _read_commits(page: PageRequest, direction: str, depth: int, column: str | None = None) -> _Commits:
    """Return the commits that made the table, or those that were made from it; none where the reader may not ask."""
    found = page.calls.attempt("DescribeLineage", id=list(page.path), direction=direction, depth=depth, column=column)
    if found is None:
        return _Commits()
    nodes = {node.key: node for node in found.nodes}
    end = "source" if direction == "upstream" else "target"
    commits = [
        Commit(nodes[edge.source], nodes[edge.target], nodes[getattr(edge, end)], edge)
        for edge in found.edges[:MAX_COMMITS]
    ]
    return _Commits(commits, found.is_truncated or len(found.edges) > MAX_COMMITS)


def _dependent_views(calls: PageCalls, path: Id, place: Id) -> list[Id]:
    """Return the views directly in a namespace that read a table."""
    found = []
    for kind in ("MaterializedView", "View"):
        listed = calls.attempt(f"List{kind}s", id=list(place), limit=MAX_VIEWS)
        for name in _names(listed):
            view = Id((*place, name))
            described = calls.attempt(f"Describe{kind}", id=list(view))
            if described is not None and path in _described_sources(described):
                found.append(view)
    return found


def _names(listed: Any) -> Sequence[str]:
    if listed is None:
        return ()
    names: Sequence[str] = listed.views
    return names


def _described_sources(described: Any) -> Sequence[Id]:
    """Return the tables that a view reads, by its description."""
    source_table: str | None = getattr(described, "source_table", None)  # of a materialized view
    if source_table is not None:
        return [Id(name.split("$")) for name in source_table.split(", ")]
    return _plain_sources(described.query, described.default_database)


def _plain_sources(query: str, database: str) -> Sequence[Id]:
    """Return the tables that a plain view reads; none where its query cannot be parsed."""
    within = database.split("$") if database else ()
    try:
        return [Id((*within, *path)) for path in plain_view_sources(query)]
    except InvalidInputError:
        return ()


def _sources(query: str, database: str) -> Sequence[Id]:
    """Return the tables that a query within a database reads; none where it cannot be parsed."""
    within = database.split("$") if database else ()
    try:
        return [Id((*within, *name.split("$"))) for name in parse_sources(query)]
    except InvalidInputError:
        return ()
