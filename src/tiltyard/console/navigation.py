"""What every page links to: the sections of the console, and the pages of one table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Link:
    """A view, and what it is called; some are for administrators alone.

    `operations` are those that the view begins with, on a table: it is offered to those who may call one of them.
    """

    view: str
    title: str
    for_administrators: bool = False
    operations: tuple[str, ...] = ()


SECTIONS: tuple[Link, ...] = (
    Link("", "Catalog"),
    Link("sql", "SQL"),
    Link("jobs", "Jobs"),
    Link("access", "Access"),
    Link("events", "Events"),
    Link("audit", "Audit", for_administrators=True),
    Link("server", "Server", for_administrators=True),
)
TABLE_TABS: tuple[Link, ...] = (
    Link("table", "Overview"),
    Link("rows", "Rows", operations=("CountTableRows",)),
    Link("search", "Search", operations=("CountTableRows",)),
    Link("map", "Map", operations=("CountTableRows",)),
    Link("versions", "Versions", operations=("ListTableVersions",)),
    Link("indexes", "Indexes", operations=("ListTableIndices",)),
    Link("policies", "Access"),
    Link("manage", "Manage", operations=("DropTable", "DropTableIndex", "CreateMultipartWrite")),
)
_ACCESS_TABS: tuple[Link, ...] = (
    Link("access", "Principals", for_administrators=True),
    Link("access", "You"),
    Link("access/keys", "Keys"),
    Link("access/roles", "Roles", for_administrators=True),
    Link("access/grants", "Grants"),
    Link("access/approvals", "Approvals"),
    Link("access/erasures", "Erasures"),
    Link("access/quotas", "Quotas"),
)


def sections(*, is_administrator: bool) -> tuple[Link, ...]:
    """Return the sections that a reader has."""
    return tuple(entry for entry in SECTIONS if is_administrator or not entry.for_administrators)


def access_tabs(*, is_administrator: bool) -> tuple[Link, ...]:
    """Return the pages of access that a reader has: administrators have all principals where others have themselves."""
    if is_administrator:
        return tuple(entry for entry in _ACCESS_TABS if entry.title != "You")
    return tuple(entry for entry in _ACCESS_TABS if not entry.for_administrators)
