"""From a path of names to the id of a namespace; and how lists of values are put into SQL."""

# ruff: noqa: S608 - only constants of the code are put into SQL, never values

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from lance_namespace.errors import InvalidInputError, NamespaceNotFoundError, TableNotFoundError

if TYPE_CHECKING:
    from collections.abc import Collection

    from tiltyard.store.backend import Connection
    from tiltyard.store.records import Path

ROOT = 1

NESTED = 8
"""Levels resolved inside one statement; SQLite's parser gives up at about a hundred."""


@cache
def at_depth(sql: str, depth: int) -> str:
    """Put the sub-select for a namespace `depth` names below a known id in the place of `{namespace}`."""
    inner = "?"
    for _ in range(depth):
        inner = f"(SELECT id FROM namespaces WHERE parent_id = {inner} AND name = ?)"
    return sql.replace("{namespace}", inner)


def anchor(connection: Connection, path: Path) -> tuple[int, Path]:
    """Return an id and the names below it, few enough for `at_depth`: the root and all of them, unless it is deep.

    Raises NamespaceNotFoundError where a deep path ends early.
    """
    base, rest = ROOT, path
    while len(rest) > NESTED:
        row = connection.row(at_depth("SELECT {namespace}", NESTED), base, *rest[:NESTED])
        if row is None or row[0] is None:
            raise no_namespace(path)
        base, rest = row[0], rest[NESTED:]
    return base, rest


def namespace_id(connection: Connection, path: Path, only: int | None = None) -> int:
    """Return the id of a namespace; with `only`, of none that has the name by now but not this id.

    Raises NamespaceNotFoundError.
    """
    if not path:
        return ROOT
    base, names = anchor(connection, path)
    row = connection.row(at_depth("SELECT {namespace}", len(names)), base, *names)
    if row is None or row[0] is None or only not in (None, row[0]):
        raise no_namespace(path)
    return int(row[0])


def no_namespace(path: Path) -> NamespaceNotFoundError:
    """Say that a namespace does not exist."""
    return NamespaceNotFoundError(f"Namespace not found: {shown(path)}")


def no_table(path: Path) -> TableNotFoundError:
    """Say that a table does not exist."""
    return TableNotFoundError(f"Table not found: {shown(path)}")


def among(values: Collection[object]) -> str:
    """Return the placeholders of a list of values."""
    return ", ".join("?" * len(values))


def folders_above(location: str) -> list[str]:
    """Return the folders around a location, the outermost first."""
    parts = location.split("/")
    return ["/".join(parts[:end]) for end in range(1, len(parts))]


def shown(path: Path) -> str:
    """Write a path for people to read."""
    return "$".join(path) if path else "the root namespace"


def split(path: Path) -> tuple[Path, str]:
    """Split a path into its parent and its last name. Raises InvalidInputError for the root and for a name with NUL."""
    if not path:
        raise InvalidInputError("The root namespace cannot be created, dropped or used as a table")
    if "\0" in path[-1]:  # SQLite would take it, PostgreSQL does not
        raise InvalidInputError("A name cannot contain the character NUL")
    return path[:-1], path[-1]
