"""What every page links to: the sections of the console, and the pages of one table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Link:
    """A view, and what it is called."""

    view: str
    title: str


SECTIONS: tuple[Link, ...] = (Link("", "Catalog"), Link("jobs", "Jobs"))
TABLE_TABS: tuple[Link, ...] = (
    Link("table", "Overview"),
    Link("rows", "Rows"),
    Link("search", "Search"),
    Link("versions", "Versions"),
)
