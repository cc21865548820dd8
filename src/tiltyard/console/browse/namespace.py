"""The page of a namespace: what is in it, and its properties."""

from __future__ import annotations

from tiltyard.console.browse.tree import read_level
from tiltyard.console.page import Page, PageRequest

PAGE_SIZE = 100


def show(page: PageRequest) -> Page:
    """Show a namespace; the root is the catalog's first page. Raises NamespaceNotFoundError."""
    level = read_level(page.calls, page.path, page.text("cursor"), PAGE_SIZE)
    described = page.calls.attempt("DescribeNamespace", id=list(page.path)) if page.path else None
    values = {
        "level": level,
        "properties": dict(sorted((described.properties or {}).items())) if described is not None else {},
        "is_first": not page.text("cursor"),
        "origin": page.origin,
    }
    return Page("namespace_entries.html" if page.is_fragment else "namespace.html", values, fragment=page.is_fragment)
