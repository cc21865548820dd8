"""The tree of namespaces and tables, a level at a time, as far as its reader can see; a namespace's page, which shows
one level with the namespace's properties; and the line about a table that lists load as it comes into view.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lance_namespace.errors import LanceNamespaceError

from tiltyard.console.objects.protections import show_protections
from tiltyard.console.page import Page, PageRequest, Problem
from tiltyard.console.table.heads import is_stale_table
from tiltyard.console.table.snippets import make_first_snippets
from tiltyard.model.ids import Id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tiltyard.console.page_calls import PageCalls

LEVEL_SIZE = 100
"""Entries of one level that are shown at once."""
NAMESPACES, TABLES = "n", "t"


@dataclass(frozen=True, slots=True)
class Node:
    """An entry of the tree; `children` is its level where that is unfolded."""

    path: Id
    is_table: bool
    is_current: bool = False
    children: TreeLevel | None = None


@dataclass(frozen=True, slots=True)
class TreeLevel:
    """Some of the entries directly in a namespace; `cursor` continues it, "" at its end."""

    path: Id
    nodes: Sequence[Node]
    cursor: str = ""


def show_level(page: PageRequest) -> Page:
    """Show one level, or its continuation, as the tree loads it when a namespace is unfolded."""
    level = read_level(page.calls, page.path, page.text("cursor"))
    return Page("tree_level.html", {"level": level}, fragment=True)


def read_level(calls: PageCalls, path: Id, cursor: str = "", size: int = LEVEL_SIZE) -> TreeLevel:
    """Return a page of a level: namespaces first, then tables. Raises NamespaceNotFoundError, InvalidInputError."""
    kind, _, token = cursor.partition(":")
    nodes: list[Node] = []
    if kind != TABLES:
        listed = calls.call("ListNamespaces", id=list(path), limit=size, page_token=token or None)
        nodes += [Node(Id((*path, name)), is_table=False) for name in listed.namespaces]
        if listed.page_token:
            return TreeLevel(path, nodes, f"{NAMESPACES}:{listed.page_token}")
        token = ""
    if (room := size - len(nodes)) <= 0:
        return TreeLevel(path, nodes, f"{TABLES}:")
    listed = calls.call("ListTables", id=list(path), limit=room, page_token=token or None)
    nodes += [Node(Id((*path, name)), is_table=True) for name in listed.tables]
    return TreeLevel(path, nodes, f"{TABLES}:{listed.page_token}" if listed.page_token else "")


def read_tree(calls: PageCalls, current: Id, *, is_table: bool) -> TreeLevel:
    """Return the first level, with the namespaces above the current object unfolded.

    What its reader cannot see, or has no answer just now, leaves its level empty: the page beside it says why.
    """
    return _unfold(calls, Id(), current, is_table)


def _unfold(calls: PageCalls, path: Id, current: Id, is_table: bool) -> TreeLevel:
    try:
        level = read_level(calls, path)
    except LanceNamespaceError:
        return TreeLevel(path, ())
    if len(current) <= len(path):
        return level
    following = Id(current[: len(path) + 1])
    is_current = following == current
    node = Node(
        following,
        is_table=is_current and is_table,
        is_current=is_current,
        children=None if is_current and is_table else _unfold(calls, following, current, is_table),
    )
    nodes = [node if (entry.path, entry.is_table) == (node.path, node.is_table) else entry for entry in level.nodes]
    if node not in nodes:
        nodes.insert(0, node)  # beyond the first page: shown in front of it
    return TreeLevel(path, nodes, level.cursor)


PAGE_SIZE = 100


def show_namespace(page: PageRequest, problem: Problem | None = None) -> Page:
    """Show a namespace; the root is the catalog's first page. Raises NamespaceNotFoundError.

    `problem` is why the sample could not be loaded into it.
    """
    level = read_level(page.calls, page.path, page.text("cursor"), PAGE_SIZE)
    described = page.calls.attempt("DescribeNamespace", id=list(page.path)) if page.path else None
    classified = page.calls.attempt("ListClassifications", object_kind="namespace", id=list(page.path))
    values = {
        "level": level,
        "properties": dict(sorted((described.properties or {}).items())) if described is not None else {},
        "classifications": classified.classifications if classified is not None else [],
        "is_first": not page.text("cursor"),
        "may_create": page.calls.allows("DeclareTable", id=[*page.path, "table"]),
        "snippets": make_first_snippets(page.origin, page.path, needs_key=page.principal.method != "open"),
        "sample_table": page.text("table") or "films",
        "problem": problem,
        "may_nest": page.calls.allows("CreateNamespace", id=[*page.path, "namespace"]),
        **show_protections(page, "namespace"),
        "may_drop": bool(page.path) and page.calls.allows("DropNamespace", id=list(page.path)),
    }
    if problem is not None:
        return Page("namespace.html", values, problem.status)
    return Page("namespace_entries.html" if page.is_fragment else "namespace.html", values, fragment=page.is_fragment)


def show_summary(page: PageRequest) -> Page:
    """Show a table's rows, columns, version and size; why not, where it cannot be opened."""
    try:
        table = page.calls.call("DescribeTable", id=list(page.path), load_detailed_metadata=True, check_declared=True)
        stats = None if table.is_only_declared else page.calls.attempt("GetTableStats", id=list(page.path))
        is_stale = is_stale_table(page)
    except LanceNamespaceError as error:
        return Page("table_summary.html", {"problem": str(error), "table": None, "stats": None}, fragment=True)
    return Page(
        "table_summary.html", {"problem": "", "table": table, "stats": stats, "is_stale": is_stale}, fragment=True
    )
