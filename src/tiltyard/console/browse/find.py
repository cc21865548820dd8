"""Find tables of the whole catalog by name, property or column: pages that go on where the time of one ends.

Names are read from lists, a thousand at a time; properties and columns from each table's description. Both are what the
reader may see, by the operations that anybody calls; catalogs that are mounted are in the tree, but not in these lists.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import InvalidInputError, LanceNamespaceError

from tiltyard.console.browse.tree import read_level
from tiltyard.console.page import Page, PageRequest
from tiltyard.model.ids import Id

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tiltyard.console.page_calls import PageCalls

SEPARATOR = "\x1f"
"""Joins the names of a listed id: no name can have it."""
NAMES_AT_ONCE = 1000
TABLES_AT_ONCE = 50
"""Tables that are described before the time is looked at again."""
SECONDS = 0.4
MAX_HITS = 100
MAX_SEARCH = 200
"""Characters of what is looked for."""
PLACES = ("name", "property", "column")


@dataclass(frozen=True, slots=True)
class Hit:
    """A table that was found; `reason` says by what, where it is not its name."""

    path: Id
    reason: str = ""


@dataclass(slots=True)
class Findings:
    """What was found in one go: `looked_at` counts tables, `cursor` goes on, "" at the end of the catalog."""

    hits: list[Hit] = field(default_factory=list)
    looked_at: int = 0
    cursor: str = ""


def show(page: PageRequest) -> Page:
    """Show what is found: in the tree as one types, or on a page of its own. Raises InvalidInputError."""
    text = page.text("q")[:MAX_SEARCH]
    place = page.text("in", PLACES[0])
    if place not in PLACES:
        raise InvalidInputError(f"Search by {', '.join(PLACES)}, not by '{place[:40]}'.")
    if page.is_fragment and not text:
        return Page("tree_list.html", {"level": read_level(page.calls, Id())}, fragment=True)
    before = page.integer("seen", 0, 0, 1 << 40)
    findings = find(page.calls, text, place, page.text("cursor")) if text else Findings()
    values = {
        "find_text": text,
        "place": place,
        "places": PLACES,
        "findings": findings,
        "looked_at": before + findings.looked_at,
        "is_continued": bool(page.text("cursor")),
        "in_tree": page.is_fragment and not page.text("full"),
    }
    return Page("find_hits.html" if page.is_fragment else "find.html", values, fragment=page.is_fragment)


def find(calls: PageCalls, text: str, place: str, cursor: str, seconds: float = SECONDS) -> Findings:
    """Return tables that match, until there are MAX_HITS or the time is over. Raises InvalidInputError."""
    match = _matcher(calls, place, text.casefold())
    size = NAMES_AT_ONCE if place == "name" else TABLES_AT_ONCE
    deadline = time.monotonic() + seconds
    findings = Findings(cursor=cursor)
    while True:
        listed = calls.call("ListAllTables", limit=size, page_token=findings.cursor or None, delimiter=SEPARATOR)
        findings.looked_at += len(listed.tables)
        for name in listed.tables:
            path = Id(name.split(SEPARATOR))
            if (reason := match(path)) is not None:
                findings.hits.append(Hit(path, reason))
        findings.cursor = listed.page_token or ""
        if not findings.cursor or len(findings.hits) >= MAX_HITS or time.monotonic() > deadline:
            return findings


def _matcher(calls: PageCalls, place: str, text: str) -> Callable[[Id], str | None]:
    """Return a function that says why a table matches: "" by its name, None if it does not."""
    if place == "name":
        return lambda path: "" if text in ".".join(path).casefold() else None
    read = _matching_property if place == "property" else _matching_column

    def match(path: Id) -> str | None:
        try:
            details = True if place == "column" else None
            table = calls.call("DescribeTable", id=list(path), load_detailed_metadata=details)
        except LanceNamespaceError:
            return None  # dropped since it was listed, only declared, or not to be opened
        return read(table, text)

    return match


def _matching_property(table: Any, text: str) -> str | None:
    for name, value in (table.properties or {}).items():
        if text in f"{name}={value}".casefold():
            return f"{name} = {value}"
    return None


def _matching_column(table: Any, text: str) -> str | None:
    names = _column_names(table.schema.fields) if table.schema is not None else ()
    return next((f"column {name}" for name in names if text in name.casefold()), None)


def _column_names(fields: Sequence[Any], above: str = "") -> list[str]:
    """Return the names of fields and of those inside them, joined by dots."""
    names = []
    for entry in fields:
        name = f"{above}{entry.name}"
        names += [name, *_column_names(entry.type.fields or (), f"{name}.")]
    return names
