"""SQL that resolves a path of names to the id of a namespace; errors and texts that show a path."""

# ruff: noqa: S608 - only constants of the code are put into SQL, never values

from __future__ import annotations

from typing import TYPE_CHECKING

from lance_namespace.errors import (
    InvalidInputError,
    NamespaceNotFoundError,
    ServiceUnavailableError,
    TableNotFoundError,
)

if TYPE_CHECKING:
    from collections.abc import Collection

    from tiltyard.store.backend import Connection
    from tiltyard.store.records import Path

ROOT = 1
"""The id of the root namespace."""

NESTED = 8
"""Levels resolved inside one statement; SQLite's parser gives up at about a hundred."""


def at_depth(sql: str, depth: int) -> str:
    """Replace `{namespace}` with the sub-select for a namespace `depth` names below a given id."""
    inner = "?"
    for _ in range(depth):
        inner = f"(SELECT id FROM namespaces WHERE parent_id = {inner} AND name = ?)"
    return sql.replace("{namespace}", inner)


def resolve_prefix(connection: Connection, path: Path, base: int = ROOT) -> tuple[int, Path]:
    """Resolve the first names of a path until few enough for `at_depth` remain; return the id there and the remainder.

    That is `base`, which the path begins at, and the whole path, unless it is deep. Raises NamespaceNotFoundError where
    a prefix is missing.
    """
    remainder = path
    while len(remainder) > NESTED:
        row = connection.row(at_depth("SELECT {namespace}", NESTED), base, *remainder[:NESTED])
        if row is None or row[0] is None:
            raise namespace_not_found(path)
        base, remainder = row[0], remainder[NESTED:]
    return base, remainder


def namespace_id(connection: Connection, path: Path, expected_id: int | None = None) -> int:
    """Return the id of a namespace. Raises NamespaceNotFoundError, also if it has not the `expected_id` (any more)."""
    if not path:
        return ROOT
    base, names = resolve_prefix(connection, path)
    row = connection.row(at_depth("SELECT {namespace}", len(names)), base, *names)
    if row is None or row[0] is None or expected_id not in (None, row[0]):
        raise namespace_not_found(path)
    return int(row[0])


def namespace_not_found(path: Path) -> NamespaceNotFoundError:
    """Create the error for a namespace that does not exist."""
    return NamespaceNotFoundError(f"Namespace not found: {display_path(path)}")


def table_not_found(path: Path) -> TableNotFoundError:
    """Create the error for a table that does not exist."""
    return TableNotFoundError(f"Table not found: {display_path(path)}")


def check_not_mounted(mount_id: int | None, path: Path) -> None:
    """Raise ServiceUnavailableError if a namespace is, or is below, a mount: what is in it, another catalog decides.

    Requests below a mount take another way, but for those in the second before this server knows of a new mount.
    """
    if mount_id is not None:
        raise ServiceUnavailableError(f"A catalog was just mounted here, try again: {display_path(path)}")


def placeholders(values: Collection[object]) -> str:
    """Return the SQL placeholders for a list of values."""
    return ", ".join("?" * len(values))


def parent_folders(location: str) -> list[str]:
    """Return the folders that contain a location, the outermost first."""
    parts = location.split("/")
    return ["/".join(parts[:end]) for end in range(1, len(parts))]


def display_path(path: Path) -> str:
    """Format a path for messages."""
    return "$".join(path) if path else "the root namespace"


def split_path(path: Path) -> tuple[Path, str]:
    """Split a path into its parent and its last name. Raises InvalidInputError for the root and for a name with NUL."""
    if not path:
        raise InvalidInputError("The root namespace cannot be created, dropped or used as a table")
    if "\0" in path[-1]:  # SQLite would take it, PostgreSQL does not
        raise InvalidInputError("A name cannot contain the character NUL")
    return path[:-1], path[-1]
