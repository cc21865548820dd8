"""What commands ask of a catalog: lists of names, versions by number or tag, the nearest names of what is missing."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING

from lance_namespace.errors import LanceNamespaceError, NamespaceNotFoundError

from tiltyard.cli.session.ids import TypedId, format_id, suggest

if TYPE_CHECKING:
    from tiltyard.calls.caller import Caller

PAGE_ROWS = 1000
MAX_NAMES_COMPARED = 20_000
"""How many names are looked through for one that is meant."""


def list_namespaces(catalog: Caller, parent: TypedId) -> Iterator[str]:
    """Yield the names of the namespaces in a namespace, page by page. Raises lance_namespace.errors."""
    return catalog.entries("ListNamespaces", "namespaces", id=list(parent), limit=PAGE_ROWS)


def list_tables(catalog: Caller, parent: TypedId) -> Iterator[str]:
    """Yield the names of the tables and views in a namespace, page by page. Raises lance_namespace.errors."""
    return catalog.entries("ListTables", "tables", id=list(parent), limit=PAGE_ROWS)


def describe_missing(catalog: Caller, names: TypedId) -> str | None:
    """Return a sentence on an object that does not exist, with the nearest names; None where there is more to say."""
    if not names:
        return None
    parent = TypedId(names[:-1])
    try:
        namespaces, tables = _first(list_namespaces(catalog, parent)), _first(list_tables(catalog, parent))
    except NamespaceNotFoundError:
        return describe_missing(catalog, parent)
    except LanceNamespaceError:
        return None
    if names[-1] in tables:
        return None
    if names[-1] in namespaces:
        return f"{names} is a namespace, not a table: tiltyard ls {names}"
    near = [format_id((*parent, name)) for name in suggest(names[-1], [*tables, *namespaces])]
    return f"There is no {names}. Did you mean {' or '.join(near)}?" if near else None


def describe_missing_namespace(catalog: Caller, namespace: TypedId) -> str | None:
    """Return a sentence on a namespace that something new was to be in, and on how to create it.

    None where it exists, or cannot be looked for.
    """
    if not namespace or not _is_missing(catalog, namespace):
        return None
    flag = "-p " if _is_missing(catalog, TypedId(namespace[:-1])) else ""
    near = describe_missing(catalog, namespace)
    create = f"create it with tiltyard mkdir {flag}{shlex.quote(str(namespace))}"
    return f"{near} If not, {create}." if near else f"There is no namespace {namespace}: {create}."


def _is_missing(catalog: Caller, namespace: TypedId) -> bool:
    if not namespace:
        return False
    try:
        catalog.call("NamespaceExists", id=list(namespace))
    except NamespaceNotFoundError:
        return True
    except LanceNamespaceError:
        return False
    return False


def _first(names: Iterator[str]) -> list[str]:
    return [name for name, _ in zip(names, range(MAX_NAMES_COMPARED), strict=False)]
