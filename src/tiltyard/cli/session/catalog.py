"""What commands use of a catalog, wherever it is: its operations, pages of lists, versions by number or tag."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

from lance_namespace.errors import LanceNamespaceError, NamespaceNotFoundError

from tiltyard.cli.session.failures import CommandError
from tiltyard.cli.session.ids import TypedId, format_id, suggest

if TYPE_CHECKING:
    import pyarrow as pa

PAGE_ROWS = 1000
MAX_NAMES_COMPARED = 20_000
"""How many names are looked through for one that is meant."""


class Catalog(Protocol):
    """Runs operations of the specification by their names; `address` is what people call it."""

    address: str
    key: str
    is_local: bool

    def call(self, name: str, /, **request: Any) -> Any:
        """Run an operation with a JSON request; return its response."""

    def read(self, name: str, /, **request: Any) -> pa.RecordBatchReader:
        """Run an operation that returns rows."""

    def write(self, name: str, rows: pa.RecordBatchReader, /, key: str, **request: Any) -> Any:
        """Run an operation that takes rows."""

    def close(self) -> None:
        """Close it."""


def list_namespaces(catalog: Catalog, parent: TypedId) -> Iterator[str]:
    """Yield the names of the namespaces in a namespace, page by page. Raises lance_namespace.errors."""
    yield from _list_names(catalog, "ListNamespaces", "namespaces", parent)


def list_tables(catalog: Catalog, parent: TypedId) -> Iterator[str]:
    """Yield the names of the tables and views in a namespace, page by page. Raises lance_namespace.errors."""
    yield from _list_names(catalog, "ListTables", "tables", parent)


def _list_names(catalog: Catalog, operation: str, field: str, parent: TypedId) -> Iterator[str]:
    token: str | None = None
    while True:
        page = catalog.call(operation, id=list(parent), page_token=token, limit=PAGE_ROWS)
        yield from page[field]
        token = page.get("page_token")
        if not token:
            return


def resolve_version(catalog: Catalog, table: TypedId, text: str | None) -> int | None:
    """Return the version that a number or a tag names; None for None. Raises CommandError, lance_namespace.errors."""
    if text is None:
        return None
    if text.isascii() and text.isdigit():
        return int(text)
    tag = catalog.call("GetTableTagVersion", id=list(table), tag=text)
    if tag.get("branch"):
        raise CommandError(f"The tag '{text}' is of the branch '{tag['branch']}': name that by --branch.")
    return int(tag["version"])


def describe_missing(catalog: Catalog, names: TypedId) -> str | None:
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


def describe_missing_namespace(catalog: Catalog, namespace: TypedId) -> str | None:
    """Return a sentence on a namespace that something new was to be in, and on how to create it.

    None where it exists, or cannot be looked for.
    """
    if not namespace or not _is_missing(catalog, namespace):
        return None
    flag = "-p " if _is_missing(catalog, TypedId(namespace[:-1])) else ""
    near = describe_missing(catalog, namespace)
    create = f"create it with tiltyard mkdir {flag}{shlex.quote(str(namespace))}"
    return f"{near} If not, {create}." if near else f"There is no namespace {namespace}: {create}."


def _is_missing(catalog: Catalog, namespace: TypedId) -> bool:
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
