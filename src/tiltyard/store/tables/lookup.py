"""Look up tables: by name, by id, by location, and in lists. Their data is not in the store."""

# ruff: noqa: S608 - only constants of the code are put into SQL, never values

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import msgspec
from lance_namespace.errors import TableNotFoundError

from tiltyard.store.repository import (
    NESTED,
    ROOT,
    Path,
    Record,
    Repository,
    at_depth,
    namespace_id,
    parent_folders,
    placeholders,
    reads,
    resolve_prefix,
    split_path,
    table_not_found,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tiltyard.store.backend import Row


class TableRecord(Record, frozen=True):
    """A table: `declared` while it has a location but no data yet, `registered` if a client gave the location.

    A `managed` table commits through the server (see `VersionRecord`). `mount_id` is set in the record of a table that
    was looked up through its mount: its location and properties are those of the other catalog. `primary_key` is the
    declaration of an enforced key, `contract` that of the checks of rows, as texts that are opaque to the store.
    """

    id: int
    namespace_id: int
    name: str
    location: str
    properties: dict[str, str]
    managed: bool
    declared: bool
    registered: bool
    created_at: int
    updated_at: int
    primary_key: str | None = None
    contract: str | None = None
    mount_id: int | None = None

    COLUMNS = (
        "id, namespace_id, name, location, properties, managed, declared, registered, created_at, updated_at,"
        " primary_key, contract"
    )


class ListedTable(msgspec.Struct, frozen=True):
    """A table in the list of all tables; (namespace_id, name) is the next page's `after`."""

    namespace_id: int
    namespace: Path
    name: str


DESCRIBE = f"SELECT {TableRecord.COLUMNS} FROM tables WHERE namespace_id = {{namespace}} AND name = ?"
BY_ID = f"SELECT {TableRecord.COLUMNS} FROM tables WHERE id = ?"
AT = f"SELECT {TableRecord.COLUMNS} FROM tables WHERE location IN ({{folders}}) ORDER BY location DESC LIMIT 1"
LIST = "SELECT name AS text FROM tables WHERE namespace_id = {namespace} AND name > ? ORDER BY name LIMIT ?"
LIST_WRITTEN = LIST.replace("ORDER BY", "AND NOT declared ORDER BY")
# Follows a page of (namespace_id, name): yields that page, then the ancestors of its namespaces. The first column tells
# them apart; so a single statement reads a single snapshot of the catalog. PostgreSQL would read all namespaces for a
# join, as it cannot know how short a page is.
WITH_ANCESTORS = """, up (leaf, parent_id, name, height) AS (
        SELECT id, parent_id, name, 1 FROM namespaces WHERE id IN (SELECT namespace_id FROM page)
        UNION ALL
        SELECT leaf, (SELECT above.parent_id FROM namespaces above WHERE above.id = up.parent_id),
            (SELECT above.name FROM namespaces above WHERE above.id = up.parent_id), height + 1
        FROM up WHERE parent_id IS NOT NULL
    )
    SELECT 0 AS height, namespace_id, name FROM page
    UNION ALL SELECT height, leaf, name FROM up WHERE parent_id IS NOT NULL
    ORDER BY 1, 2, 3
"""
# The inner limit is for the planner (`planned_limit`), the outer one ends the scan; both keep the order of the index.
LIST_ALL = f"""
    WITH RECURSIVE page (namespace_id, name) AS (
        SELECT * FROM (
            SELECT namespace_id, name FROM tables
            WHERE (namespace_id, name) > (?, ?) AND (? OR NOT declared) AND mount_id IS NULL
            ORDER BY namespace_id, name LIMIT {{limit}}
        ) found LIMIT ?
    ){WITH_ANCESTORS}
"""
WITH_CONTRACTS = f"SELECT {TableRecord.COLUMNS} FROM tables WHERE contract IS NOT NULL ORDER BY id LIMIT ?"
PATHS_PER_STATEMENT = 32
"""Databases keep statements prepared, one for each number of paths: so it is limited."""


class TableLookups(Repository):
    """The methods that find tables."""

    __slots__ = ()

    @reads
    def describe_table(self, path: Path) -> TableRecord:
        """Return a table. Raises TableNotFoundError, or NamespaceNotFoundError where its namespace is missing."""
        parent, name = split_path(path)
        base, names = resolve_prefix(self.connection, parent)
        if row := self.connection.row(at_depth(DESCRIBE, len(names)), base, *names, name):
            return TableRecord.of(row)
        namespace_id(self.connection, parent)
        raise table_not_found(path)

    @reads
    def find_tables(self, paths: Iterable[Path]) -> dict[Path, TableRecord]:
        """Return the tables that exist, by path, in few statements; tables in very deep namespaces are left out."""
        paths_by_depth: dict[int, list[Path]] = {}
        for path in dict.fromkeys(paths):
            if 0 < len(path) <= NESTED and not any("\0" in name for name in path):
                paths_by_depth.setdefault(len(path) - 1, []).append(path)
        tables: dict[Path, TableRecord] = {}
        for depth, same_depth in paths_by_depth.items():
            for start in range(0, len(same_depth), PATHS_PER_STATEMENT):
                chunk = same_depth[start : start + PATHS_PER_STATEMENT]
                rows = self.connection.rows(
                    _find_statement(depth, len(chunk)), *chain.from_iterable((ROOT, *path) for path in chunk)
                )
                tables.update((chunk[row[0]], TableRecord.of(row[1:])) for row in rows)
        return tables

    @reads
    def table_by_id(self, table_id: int) -> TableRecord:
        """Return a table. Raises TableNotFoundError."""
        return require_row(self.connection.row(BY_ID, table_id), table_id)

    @reads
    def table_at(self, location: str) -> TableRecord | None:
        """Return the table whose folder is a location or contains it, or None."""
        folders = [*parent_folders(location), location]
        row = self.connection.row(AT.format(folders=placeholders(folders)), *folders)
        return TableRecord.of(row) if row else None

    @reads
    def list_tables(self, path: Path, after: str | None, limit: int, include_declared: bool = True) -> list[str]:
        """Return up to `limit` names of tables, those after `after`, in the order of their UTF-8 bytes.

        Raises NamespaceNotFoundError.
        """
        base, names = resolve_prefix(self.connection, path)
        sql = at_depth(LIST if include_declared else LIST_WRITTEN, len(names))
        tables = self.connection.texts(sql, base, *names, after or "", limit)
        if not tables:
            namespace_id(self.connection, path)
        return tables

    @reads
    def list_all_tables(
        self, after: tuple[int, str] | None, limit: int, include_declared: bool = True
    ) -> list[ListedTable]:
        """Return up to `limit` tables of the whole catalog by (namespace id, name), those after `after`."""
        sql = LIST_ALL.format(limit=planned_limit(limit))
        return read_listed_tables(self.connection.rows(sql, *(after or (0, "")), include_declared, limit))

    @reads
    def tables_with_contracts(self, limit: int) -> list[tuple[TableRecord, str]]:
        """Return tables that have a contract, each with that."""
        rows = self.connection.rows(WITH_CONTRACTS, limit)
        return [(record, record.contract) for record in map(TableRecord.of, rows) if record.contract is not None]


def planned_limit(limit: int) -> int:
    """Return the power of two from `limit` up, which is to be in the text of a statement instead of a value.

    PostgreSQL cannot keep a plan for a limit that it does not know: it takes that for a tenth of all rows, and so plans
    the statement again at each call, which takes longer than to run it.
    """
    return 1 << (limit - 1).bit_length()


def read_listed_tables(rows: list[Row]) -> list[ListedTable]:
    """Read the rows of WITH_ANCESTORS."""
    paths: dict[int, list[str]] = {}
    for height, leaf, name in reversed(rows):  # the highest ancestors come first then
        if height:
            paths.setdefault(leaf, []).append(name)
    namespaces = {leaf: tuple(names) for leaf, names in paths.items()}
    return [ListedTable(leaf, namespaces.get(leaf, ()), name) for height, leaf, name in rows if not height]


def require_row(row: tuple[object, ...] | None, table_id: int) -> TableRecord:
    """Read a row of TableRecord.COLUMNS. Raises TableNotFoundError where there is none."""
    if row is None:
        raise TableNotFoundError(f"Table not found: it was dropped (id {table_id})")
    return TableRecord.of(row)


def _find_statement(depth: int, number: int) -> str:
    """Return the statement that finds `number` tables in namespaces `depth` names below the root.

    The first column is the position of the table in the parameters. It has no join: a database without statistics yet
    would read all tables for one.
    """
    columns = at_depth(DESCRIBE, depth).removeprefix("SELECT")
    return " UNION ALL ".join(f"SELECT {position}, {columns}" for position in range(number))
