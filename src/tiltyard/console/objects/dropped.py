"""Dropped tables and namespaces, for as long as they are kept, and how they come back; dropping a namespace."""

from __future__ import annotations

from lance_namespace.errors import InvalidInputError

from tiltyard.console.access.forms import AT_ONCE, form_actions, list_page, showing_problems
from tiltyard.console.page import Page, PageRequest, Redirect
from tiltyard.console.templates import link

VIEW = "dropped"


def show(page: PageRequest, problem: str = "", status: int = 200) -> Page:
    """Show what its reader can bring back. Raises what listing it raises."""
    tables = list_page(page, "ListDroppedTables")
    namespaces = [] if page.text("cursor") else page.calls.call("ListDroppedNamespaces", limit=AT_ONCE).namespaces
    values = {
        "tables": tables.tables,
        "cursor": tables.page_token,
        "namespaces": namespaces,
        "days": page.services.settings.retention_days,
        "problem": problem,
        "entered": {"dropped_id": page.text("dropped_id"), "new_name": page.text("new_name")} if problem else {},
        "section": "",
    }
    return Page("dropped.html", values, status)


def _id_of(page: PageRequest) -> list[str]:
    names = page.all_of("id")
    if not names:
        raise InvalidInputError("Which one? Load the page again, and choose it from the list.")
    return names


def _undrop_table(page: PageRequest) -> Redirect:
    id_, new_name = _id_of(page), page.text("new_name")
    restored = page.calls.call(
        "UndropTable", id=id_, dropped_id=page.optional_integer("dropped_id"), new_table_name=new_name or None
    )
    return Redirect(link("table", restored.id))


def _undrop_namespace(page: PageRequest) -> Redirect:
    id_, new_name = _id_of(page), page.text("new_name")
    new_id = [*id_[:-1], new_name] if new_name else None
    fields = {"dropped_id": page.optional_integer("dropped_id"), "new_namespace_id": new_id}
    restored = page.calls.call("UndropNamespace", id=id_, **fields)
    return Redirect(link("namespace", restored.id))


act = form_actions(show, {"table": _undrop_table, "namespace": _undrop_namespace})


def check_name(page: PageRequest) -> None:
    """Raise InvalidInputError unless the name of the page's object was typed: to drop it is not done by a click."""
    if page.text("confirm") != page.path.name.strip():
        raise InvalidInputError("To drop it, type its name exactly as it is above: nothing was dropped.")


def ask_namespace(page: PageRequest) -> Page:
    """Ask whether to drop a namespace. Raises what dropping it raises."""
    page.calls.authorize("DropNamespace", id=list(page.path))
    return _ask(page)


def _ask(page: PageRequest, problem: str = "", status: int = 200) -> Page:
    values = {
        "days": page.services.settings.retention_days,
        "behavior": page.text("behavior"),
        "problem": problem,
        "section": "",
    }
    return Page("drop_namespace.html", values, status)


@showing_problems(_ask)
def drop_namespace(page: PageRequest) -> Redirect:
    """Drop a namespace whose name was typed; ask again with why it cannot be."""
    check_name(page)
    behavior = "Cascade" if page.text("behavior") == "cascade" else "Restrict"
    page.calls.call("DropNamespace", id=list(page.path), behavior=behavior)
    above = page.path[:-1]
    return Redirect(link("namespace" if above else "", above))
