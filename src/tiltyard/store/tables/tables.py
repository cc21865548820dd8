"""Tables: their names, locations and properties, and which are materialized views. Their data is not in the store."""

# ruff: noqa: S608 - only constants of the code are put into SQL, never values

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    TableAlreadyExistsError,
    TableNotFoundError,
)

from tiltyard.model.ids import check_composed
from tiltyard.model.views.plain_views import QUERY_PROPERTY
from tiltyard.store.access.grants import TABLE, delete_dependents, grant_to_creator, place_grants
from tiltyard.store.backend import ForeignKeyError, UniqueError
from tiltyard.store.records import ListedTable, Path, Properties, TableRecord, decode, encode
from tiltyard.store.repository import (
    NESTED,
    ROOT,
    Repository,
    at_depth,
    check_not_mounted,
    display_path,
    namespace_id,
    namespace_not_found,
    parent_folders,
    placeholders,
    reads,
    resolve_prefix,
    split_path,
    table_not_found,
    writes,
)
from tiltyard.store.tables.folder_deletions import CREATING, DROPPED, RESERVED, SCHEDULE
from tiltyard.store.tables.location_overlap import check_no_overlap, check_not_scheduled
from tiltyard.store.tables.trash import move_table_to_trash, purge_table_at
from tiltyard.store.tables.versions import LATEST_OF_BRANCHES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tiltyard.store.access.grants import Creator
    from tiltyard.store.backend import Row

INSERT = f"""
    INSERT INTO tables
        (namespace_id, name, location, properties, managed, declared, registered, created_at, updated_at)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING
    RETURNING {TableRecord.COLUMNS}, (SELECT mount_id FROM namespaces WHERE namespaces.id = namespace_id)
"""
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
RENAME = f"""
    UPDATE tables SET namespace_id = ?, name = ?, updated_at = ? WHERE namespace_id = ? AND name = ?
        AND id = COALESCE(?, id)
    RETURNING {TableRecord.COLUMNS}, (SELECT mount_id FROM namespaces WHERE namespaces.id = namespace_id)
"""
REMOVE = f"""
    DELETE FROM tables WHERE namespace_id = ? AND name = ? AND id = COALESCE(?, id) RETURNING {TableRecord.COLUMNS}
"""
CANCEL_TRANSACTIONS = """
    UPDATE transactions SET status = 'Canceled', lease_owner = NULL, updated_at = ?
    WHERE table_id = ? AND status IN ('Queued', 'Running') AND id <> COALESCE(?, '')
"""
PATHS_PER_STATEMENT = 32
"""Databases keep statements prepared, one for each number of paths: so it is limited."""
MARK_WRITTEN = f"UPDATE tables SET declared = FALSE, updated_at = ? WHERE id = ? RETURNING {TableRecord.COLUMNS}"
LOCK_PROPERTIES = "SELECT properties FROM tables WHERE id = ? /*+ FOR UPDATE */"
SET_PROPERTIES = f"UPDATE tables SET properties = ?, updated_at = ? WHERE id = ? RETURNING {TableRecord.COLUMNS}"
LOCK_DECLARATIONS = "SELECT primary_key, contract, properties FROM tables WHERE id = ? /*+ FOR UPDATE */"
SET_DECLARATIONS = f"""
    UPDATE tables SET primary_key = ?, contract = ?, properties = ?, updated_at = ? WHERE id = ?
    RETURNING {TableRecord.COLUMNS}
"""
CANCEL_DELETION = f"DELETE FROM doomed_folders WHERE location = ? AND reason = '{CREATING}' AND claims = 0"
USE_RESERVATION = f"DELETE FROM doomed_folders WHERE location = ? AND reason = '{RESERVED}' AND claims = 0"


SET_VIEW = """
    INSERT INTO views (table_id, definition, definer) VALUES (?, ?, ?)
    ON CONFLICT (table_id) DO UPDATE SET definition = excluded.definition, definer = excluded.definer
"""
DESCRIBE_VIEW = "SELECT definition, definer FROM views WHERE table_id = ?"
SET_COLUMN_REFRESHER = """
    INSERT INTO column_refreshes (table_id, identity, definer) VALUES (?, ?, ?)
    ON CONFLICT (table_id, identity) DO UPDATE SET definer = excluded.definer
"""
FORGET_COLUMN_REFRESHER = "DELETE FROM column_refreshes WHERE table_id = ? AND identity = ?"
COLUMN_REFRESHERS = "SELECT identity, definer FROM column_refreshes WHERE table_id = ?"
DECLARED_AMONG = "SELECT name, properties FROM tables WHERE namespace_id = ? AND declared AND name IN ({names})"
DECLARED_OF_LIST = """
    SELECT namespace_id, name, properties FROM tables
    WHERE declared AND namespace_id IN ({namespaces}) AND name IN ({names})
"""
WITH_CONTRACTS = f"SELECT {TableRecord.COLUMNS} FROM tables WHERE contract IS NOT NULL ORDER BY id LIMIT ?"
PLAIN_VIEWS = f"""
    SELECT {TableRecord.COLUMNS} FROM tables WHERE declared AND properties LIKE ? ORDER BY id LIMIT ?
"""
VIEWS_AMONG = """
    SELECT name FROM tables JOIN views ON views.table_id = tables.id WHERE namespace_id = ? AND name IN ({names})
"""


@dataclass(frozen=True, slots=True)
class ViewRecord:
    """A materialized view; its full definition is in the table's metadata.

    `definition` is a digest of that, `definer` the principal who created the view, as text that is opaque to the store.
    """

    definition: str
    definer: str


class Tables(Repository):
    """The methods for tables."""

    __slots__ = ()

    @writes
    def insert_table(
        self,
        path: Path,
        location: str,
        properties: Properties,
        *,
        managed: bool = False,
        declared: bool = False,
        registered: bool = False,
        in_creation: bool = False,
        creator: Creator | None = None,
        expected_parent_id: int | None = None,
    ) -> TableRecord:
        """Add a table to the catalog and grant its creator its privileges on it; return the table.

        With `in_creation` its folder was scheduled for deletion with the reason 'creating' while data was written to
        it, and no longer is from now on.
        Raises NamespaceNotFoundError, also if the namespace has not the `expected_parent_id` (any more),
        TableAlreadyExistsError, InvalidInputError for a location that another table has or that is being deleted, or,
        where a client gave it (`registered`), inside or around such a folder; ConcurrentModificationError for a
        creation whose lease has expired.
        """
        parent, name = split_path(path)
        parent_id, now = namespace_id(self.connection, parent, expected_parent_id), self._clock()
        flags = managed, declared, registered
        try:
            row = self.connection.row(INSERT, parent_id, name, location, encode(dict(properties)), *flags, now, now)
        except ForeignKeyError:
            raise namespace_not_found(parent) from None
        if row is None and self.connection.row(at_depth(DESCRIBE, 0), parent_id, name):
            raise TableAlreadyExistsError(f"Table already exists: {display_path(path)}")
        if row is None:
            raise InvalidInputError(f"Another table has this location: {location}")
        if registered:
            self.connection.change(USE_RESERVATION, location)
            check_no_overlap(self.connection, location)
        if in_creation and not self.connection.change(CANCEL_DELETION, location):
            raise ConcurrentModificationError(f"Creating the table took longer than its lease: {display_path(path)}")
        if not in_creation:
            check_not_scheduled(self.connection, location)
        check_composed(name)  # this late, so that a name conflict is reported first; raising rolls the transaction back
        check_not_mounted(row[-1], path)
        record = TableRecord.of(row[:-1])
        grant_to_creator(self.connection, TABLE, record.id, creator, now)
        return record

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
        return _require_row(self.connection.row(BY_ID, table_id), table_id)

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

    @writes
    def rename_table(
        self, path: Path, new_path: Path, *, expected_id: int | None = None, expected_parent_id: int | None = None
    ) -> TableRecord:
        """Rename a table, or move it to another namespace; its location stays.

        Raises TableNotFoundError, also if the table has not the `expected_id` (any more), TableAlreadyExistsError,
        NamespaceNotFoundError for either namespace, also if the new one has not the `expected_parent_id`.
        """
        (parent, name), (new_parent, new_name) = split_path(path), split_path(new_path)
        old_id, new_id = (
            namespace_id(self.connection, parent),
            namespace_id(self.connection, new_parent, expected_parent_id),
        )
        try:
            row = self.connection.row(RENAME, new_id, new_name, self._clock(), old_id, name, expected_id)
        except ForeignKeyError:
            raise namespace_not_found(new_parent) from None
        except UniqueError:
            raise TableAlreadyExistsError(f"Table already exists: {display_path(new_path)}") from None
        if row is None:
            raise table_not_found(path)
        check_not_mounted(row[-1], new_path)
        check_composed(new_name)
        record = TableRecord.of(row[:-1])
        place_grants(self.connection, TABLE, "object_id = ?", record.id)
        return record

    @writes
    def remove_table(
        self,
        path: Path,
        *,
        delete_folder: bool,
        transaction_id: str | None = None,
        keep_ms: int = 0,
        expected_id: int | None = None,
    ) -> TableRecord:
        """Remove a table from the catalog and return its record; cancel its unfinished transactions.

        With `delete_folder` its folder is scheduled for deletion (drop), without it stays (deregister). For `keep_ms`
        the table can be restored. Raises TableNotFoundError, also if it has not the `expected_id` (any more),
        NamespaceNotFoundError.
        """
        parent, name = split_path(path)
        parent_id, now = namespace_id(self.connection, parent), self._clock()
        if keep_ms:
            move_table_to_trash(
                self.connection,
                path,
                parent_id,
                expected_id,
                dropped=delete_folder,
                removed_at=now,
                due_at=now + keep_ms,
            )
        row = self.connection.row(REMOVE, parent_id, name, expected_id)
        if row is None:
            raise table_not_found(path)
        record = TableRecord.of(row)
        if delete_folder:
            self.connection.change(SCHEDULE, record.location, now + keep_ms, transaction_id, DROPPED)
            if not keep_ms:  # nor can a table be restored that was at this location before
                purge_table_at(self.connection, record.location)
        self.connection.change(CANCEL_TRANSACTIONS, now, record.id, transaction_id)
        if not keep_ms:
            delete_dependents(self.connection, TABLE, "?", record.id)
        return record

    @writes
    def replace_registration(
        self,
        path: Path,
        location: str,
        properties: Properties,
        *,
        managed: bool = False,
        keep_ms: int = 0,
        creator: Creator | None = None,
        expected_parent_id: int | None = None,
    ) -> TableRecord:
        """Register a table, replacing one that may have its name; the old table's data stays where it is.

        The new table has an id of its own, and none of the old one's versions and transactions; for `keep_ms` the old
        one can be restored.
        Raises NamespaceNotFoundError, InvalidInputError as `insert_table` does, ConcurrentModificationError when
        another creates the table at the same time.
        """
        with suppress(TableNotFoundError):
            self.remove_table(path, delete_folder=False, keep_ms=keep_ms)
        try:
            return self.insert_table(
                path,
                location,
                properties,
                managed=managed,
                registered=True,
                creator=creator,
                expected_parent_id=expected_parent_id,
            )
        except TableAlreadyExistsError as error:
            raise ConcurrentModificationError(f"Table is being created by another: {display_path(path)}") from error

    @writes
    def mark_written(self, table_id: int) -> TableRecord:
        """Record that a table has data, so that it is no longer `declared`. Raises TableNotFoundError."""
        return _require_row(self.connection.row(MARK_WRITTEN, self._clock(), table_id), table_id)

    @writes
    def set_view(self, table_id: int, view: ViewRecord) -> None:
        """Record that a table is a materialized view, or its new definition."""
        self.connection.change(SET_VIEW, table_id, view.definition, view.definer)

    @reads
    def describe_view(self, table_id: int) -> ViewRecord | None:
        """Return the view that a table is, or None if it is none."""
        row = self.connection.row(DESCRIBE_VIEW, table_id)
        return ViewRecord(*row) if row else None

    @writes
    def set_column_refreshers(self, table_id: int, identities: Iterable[str], definer: str) -> None:
        """Record who lets computed columns refresh by themselves, by the hashes of what their values are computed by.

        `definer` is as a view's.
        """
        self.connection.change_many(SET_COLUMN_REFRESHER, [(table_id, each, definer) for each in sorted({*identities})])

    @writes
    def forget_column_refreshers(self, table_id: int, identities: Iterable[str]) -> None:
        """Forget who lets computed columns refresh by themselves."""
        self.connection.change_many(FORGET_COLUMN_REFRESHER, [(table_id, each) for each in sorted({*identities})])

    @reads
    def column_refreshers(self, table_id: int) -> dict[str, str]:
        """Return who lets the computed columns of a table refresh by themselves, by the hashes."""
        return dict(self.connection.rows(COLUMN_REFRESHERS, table_id))

    @reads
    def views_among(self, namespace_id: int, names: Sequence[str]) -> set[str]:
        """Return the names of those tables of a namespace that are materialized views."""
        if not names:
            return set()
        return {
            row[0] for row in self.connection.rows(VIEWS_AMONG.format(names=placeholders(names)), namespace_id, *names)
        }

    @reads
    def plain_views_among(self, namespace_id: int, names: Sequence[str]) -> set[str]:
        """Return the names of those tables of a namespace that are plain views."""
        if not names:
            return set()
        rows = self.connection.rows(DECLARED_AMONG.format(names=placeholders(names)), namespace_id, *names)
        return {name for name, properties in rows if QUERY_PROPERTY in decode(properties)}

    @reads
    def tables_with_contracts(self, limit: int) -> list[tuple[TableRecord, str]]:
        """Return tables that have a contract, each with that."""
        rows = self.connection.rows(WITH_CONTRACTS, limit)
        return [(record, record.contract) for record in map(TableRecord.of, rows) if record.contract is not None]

    @reads
    def plain_views(self, limit: int) -> list[TableRecord]:
        """Return the plain views of the catalog."""
        return [TableRecord.of(row) for row in self.connection.rows(PLAIN_VIEWS, f"%{QUERY_PROPERTY}%", limit)]

    @reads
    def declared_among(self, tables: Sequence[ListedTable]) -> dict[tuple[int, str], bool]:
        """Return which of some tables are only declared, by namespace id and name, and whether each is a plain view."""
        if not tables:
            return {}
        namespaces, names = {table.namespace_id for table in tables}, {table.name for table in tables}
        sql = DECLARED_OF_LIST.format(namespaces=placeholders([*namespaces]), names=placeholders([*names]))
        rows = self.connection.rows(sql, *namespaces, *names)
        return {(namespace, name): QUERY_PROPERTY in decode(properties) for namespace, name, properties in rows}

    @writes
    def change_table_properties(self, table_id: int, changes: Mapping[str, str | None]) -> TableRecord:
        """Set some of a table's properties, and remove those whose value is None. Raises TableNotFoundError.

        Others stay as they are by then, whoever has set them.
        """
        row = self.connection.row(LOCK_PROPERTIES, table_id)
        properties = _changed(row[0] if row else None, changes)
        return _require_row(self.connection.row(SET_PROPERTIES, properties, self._clock(), table_id), table_id)

    @writes
    def set_primary_key(
        self,
        table: TableRecord,
        primary_key: str | None,
        changes: Mapping[str, str | None],
        checked_versions: Mapping[str, int] | None = None,
    ) -> TableRecord:
        """Replace the declaration of a table's primary key, None for no key, change its properties; return the table.

        The changes are as in `change_table_properties`. `checked_versions` are the versions, by branch, that were found
        to fulfil the key. Raises TableNotFoundError, ConcurrentModificationError if a version was recorded after one of
        them, or the key or the contract is another one by now.
        """
        return self._declare(table, primary_key, table.contract, changes, checked_versions or {})

    @writes
    def set_contract(
        self,
        table: TableRecord,
        contract: str | None,
        changes: Mapping[str, str | None],
        checked_versions: Mapping[str, int] | None = None,
    ) -> TableRecord:
        """Replace the contract of a table, None for none, and change its properties: all as `set_primary_key` does."""
        return self._declare(table, table.primary_key, contract, changes, checked_versions or {})

    def _declare(
        self,
        table: TableRecord,
        primary_key: str | None,
        contract: str | None,
        changes: Mapping[str, str | None],
        checked_versions: Mapping[str, int],
    ) -> TableRecord:
        row = self.connection.row(LOCK_DECLARATIONS, table.id)  # waits for commits, and they for this
        if row is not None and row[0] != table.primary_key:
            raise ConcurrentModificationError("The primary key of this table was changed meanwhile: try again.")
        if row is not None and row[1] != table.contract:
            raise ConcurrentModificationError("The contract of this table was changed meanwhile: try again.")
        for branch, version in self.connection.rows(LATEST_OF_BRANCHES, table.id) if checked_versions else ():
            if version > checked_versions.get(branch, version):
                raise ConcurrentModificationError("This table was committed to meanwhile: try again.")
        properties = _changed(row[2] if row else None, changes)
        values = primary_key, contract, properties, self._clock(), table.id
        return _require_row(self.connection.row(SET_DECLARATIONS, *values), table.id)


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


def _changed(properties: str | None, changes: Mapping[str, str | None]) -> str:
    """Return the text of a table's properties after changes: a new value, or None to remove it, for each key."""
    merged = {**(decode(properties) if properties else {}), **changes}
    return encode({key: value for key, value in merged.items() if value is not None})


def _require_row(row: tuple[object, ...] | None, table_id: int) -> TableRecord:
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
