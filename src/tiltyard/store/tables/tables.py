"""Tables: what is where. Their data is not the store's business."""

# ruff: noqa: S608 - only constants of the code are put into SQL, never values

from __future__ import annotations

from contextlib import suppress
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING

from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    TableAlreadyExistsError,
    TableNotFoundError,
)

from tiltyard.model.ids import check_composed
from tiltyard.store.access.grants import TABLE, forget, own
from tiltyard.store.backend import ForeignKeyError, UniqueError
from tiltyard.store.connection_scope import Scope, reads, writes
from tiltyard.store.paths import (
    NESTED,
    ROOT,
    among,
    anchor,
    at_depth,
    folders_above,
    namespace_id,
    no_namespace,
    no_table,
    shown,
    split,
)
from tiltyard.store.records import ListedTable, Path, Properties, TableRecord, encode
from tiltyard.store.tables.deleted_folders import CREATING, DOOM, DROPPED, RESERVED
from tiltyard.store.tables.location_overlap import check_apart, check_not_doomed
from tiltyard.store.tables.trash import forget_removed, keep_table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tiltyard.store.access.grants import Creator
    from tiltyard.store.backend import Row

INSERT = f"""
    INSERT INTO tables
        (namespace_id, name, location, properties, managed, declared, registered, created_at, updated_at)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING RETURNING {TableRecord.COLUMNS}
"""
DESCRIBE = f"SELECT {TableRecord.COLUMNS} FROM tables WHERE namespace_id = {{namespace}} AND name = ?"
BY_ID = f"SELECT {TableRecord.COLUMNS} FROM tables WHERE id = ?"
AT = f"SELECT {TableRecord.COLUMNS} FROM tables WHERE location IN ({{folders}}) ORDER BY location DESC LIMIT 1"
LIST = """
    SELECT name FROM tables WHERE namespace_id = {namespace} AND name > ? AND (? OR NOT declared)
    ORDER BY name LIMIT ?
"""
# Behind a page of (namespace_id, name): that page, then the ancestors of its namespaces, told apart by the first
# column, so that one statement sees one catalog.
WITH_ANCESTORS = """, up (leaf, parent_id, name, height) AS (
        SELECT id, parent_id, name, 1 FROM namespaces WHERE id IN (SELECT namespace_id FROM page)
        UNION ALL
        SELECT up.leaf, above.parent_id, above.name, up.height + 1
        FROM up JOIN namespaces above ON above.id = up.parent_id
    )
    SELECT 0 AS height, namespace_id, name FROM page
    UNION ALL SELECT height, leaf, name FROM up WHERE parent_id IS NOT NULL
    ORDER BY 1, 2, 3
"""
LIST_ALL = f"""
    WITH RECURSIVE page (namespace_id, name) AS (
        SELECT namespace_id, name FROM tables WHERE (namespace_id, name) > (?, ?) AND (? OR NOT declared)
        ORDER BY namespace_id, name LIMIT ?
    ){WITH_ANCESTORS}
"""
RENAME = f"""
    UPDATE tables SET namespace_id = ?, name = ?, updated_at = ? WHERE namespace_id = ? AND name = ?
        AND id = COALESCE(?, id)
    RETURNING {TableRecord.COLUMNS}
"""
REMOVE = f"""
    DELETE FROM tables WHERE namespace_id = ? AND name = ? AND id = COALESCE(?, id) RETURNING {TableRecord.COLUMNS}
"""
CANCEL = """
    UPDATE transactions SET status = 'Canceled', lease_owner = NULL, updated_at = ?
    WHERE table_id = ? AND status IN ('Queued', 'Running') AND id <> COALESCE(?, '')
"""
FOUND_AT_ONCE = 32
"""Most paths of one statement: databases keep statements prepared, one for each number of paths."""
MARK_WRITTEN = f"UPDATE tables SET declared = FALSE, updated_at = ? WHERE id = ? RETURNING {TableRecord.COLUMNS}"
SET_PROPERTIES = f"UPDATE tables SET properties = ?, updated_at = ? WHERE id = ? RETURNING {TableRecord.COLUMNS}"
PUBLISH = f"DELETE FROM doomed_folders WHERE location = ? AND reason = '{CREATING}' AND claims = 0"
TAKE_RESERVED = f"DELETE FROM doomed_folders WHERE location = ? AND reason = '{RESERVED}' AND claims = 0"


class Tables(Scope):
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
        """Give a name and a location to a table, and to whoever creates it what that gives.

        With `expected_parent_id` only in the namespace of this id, whatever has its name by now.

        With `in_creation` the folder was doomed with reason 'creating' while its data was written, and is spared
        from now on.
        Raises NamespaceNotFoundError, TableAlreadyExistsError, InvalidInputError for a location that another table
        has or that is being deleted, or, where a client gave it (`registered`), inside or around such a folder;
        ConcurrentModificationError for a creation whose lease ran out.
        """
        parent, name = split(path)
        parent_id, now = namespace_id(self.connection, parent, expected_parent_id), self._clock()
        flags = managed, declared, registered
        try:
            row = self.connection.row(INSERT, parent_id, name, location, encode(dict(properties)), *flags, now, now)
        except ForeignKeyError:
            raise no_namespace(parent) from None
        if row is None and self.connection.row(at_depth(DESCRIBE, 0), parent_id, name):
            raise TableAlreadyExistsError(f"Table already exists: {shown(path)}")
        if row is None:
            raise InvalidInputError(f"Another table has this location: {location}")
        if registered:
            self.connection.change(TAKE_RESERVED, location)
            check_apart(self.connection, location)
        if in_creation and not self.connection.change(PUBLISH, location):
            raise ConcurrentModificationError(f"Creating the table took longer than its lease: {shown(path)}")
        if not in_creation:
            check_not_doomed(self.connection, location)
        check_composed(name)  # here, so that a name that is taken is told first; the transaction is rolled back
        record = TableRecord.of(row)
        own(self.connection, TABLE, record.id, creator, now)
        return record

    @reads
    def describe_table(self, path: Path) -> TableRecord:
        """Return a table. Raises TableNotFoundError, or NamespaceNotFoundError where its namespace is missing."""
        parent, name = split(path)
        base, names = anchor(self.connection, parent)
        if row := self.connection.row(at_depth(DESCRIBE, len(names)), base, *names, name):
            return TableRecord.of(row)
        namespace_id(self.connection, parent)
        raise no_table(path)

    @reads
    def find_tables(self, paths: Iterable[Path]) -> dict[Path, TableRecord]:
        """Return those that are there, at the cost of few; one whose namespace is very deep is left out."""
        depths: dict[int, list[Path]] = {}
        for path in dict.fromkeys(paths):
            if 0 < len(path) <= NESTED and not any("\0" in name for name in path):
                depths.setdefault(len(path) - 1, []).append(path)
        found: dict[Path, TableRecord] = {}
        for depth, those in depths.items():
            for start in range(0, len(those), FOUND_AT_ONCE):
                some = those[start : start + FOUND_AT_ONCE]
                rows = self.connection.rows(
                    _find(depth, len(some)), *chain.from_iterable((ROOT, *path) for path in some)
                )
                found.update((some[row[0]], TableRecord.of(row[1:])) for row in rows)
        return found

    @reads
    def table_by_id(self, table_id: int) -> TableRecord:
        """Return a table. Raises TableNotFoundError."""
        return _found(self.connection.row(BY_ID, table_id), table_id)

    @reads
    def table_at(self, location: str) -> TableRecord | None:
        """Return the table that lies at a location or around it, or None."""
        folders = [*folders_above(location), location]
        row = self.connection.row(AT.format(folders=among(folders)), *folders)
        return TableRecord.of(row) if row else None

    @reads
    def list_tables(self, path: Path, after: str | None, limit: int, include_declared: bool = True) -> list[str]:
        """Return up to `limit` names of tables that sort behind `after`, in the order of their UTF-8 bytes.

        Raises NamespaceNotFoundError.
        """
        base, names = anchor(self.connection, path)
        sql = at_depth(LIST, len(names))
        rows = self.connection.rows(sql, base, *names, after or "", include_declared, limit)
        if not rows:
            namespace_id(self.connection, path)
        return [row[0] for row in rows]

    @reads
    def list_all_tables(
        self, after: tuple[int, str] | None, limit: int, include_declared: bool = True
    ) -> list[ListedTable]:
        """Return up to `limit` tables of the whole catalog in the order of (namespace id, name) behind `after`."""
        rows = self.connection.rows(LIST_ALL, *(after or (0, "")), include_declared, limit)
        return listed(rows)

    @writes
    def rename_table(
        self, path: Path, new_path: Path, *, expected_id: int | None = None, expected_parent_id: int | None = None
    ) -> TableRecord:
        """Give a table another name, or another namespace; its location stays.

        With `expected_id` no table but that of this id is renamed, with `expected_parent_id` into no namespace but that of this id.
        Raises TableNotFoundError, TableAlreadyExistsError, NamespaceNotFoundError for either namespace.
        """
        (parent, name), (new_parent, new_name) = split(path), split(new_path)
        old_id, new_id = (
            namespace_id(self.connection, parent),
            namespace_id(self.connection, new_parent, expected_parent_id),
        )
        try:
            row = self.connection.row(RENAME, new_id, new_name, self._clock(), old_id, name, expected_id)
        except ForeignKeyError:
            raise no_namespace(new_parent) from None
        except UniqueError:
            raise TableAlreadyExistsError(f"Table already exists: {shown(new_path)}") from None
        if row is None:
            raise no_table(path)
        check_composed(new_name)
        return TableRecord.of(row)

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
        """Take a table out of the catalog and return what it was; cancel its unfinished transactions.

        With `expected_id` none but that of this id is taken. With `delete_folder` its folder is to be deleted (drop), without it stays
        (deregister). For `keep_ms` it can be brought back. Raises TableNotFoundError, NamespaceNotFoundError.
        """
        parent, name = split(path)
        parent_id, now = namespace_id(self.connection, parent), self._clock()
        if keep_ms:
            keep_table(
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
            raise no_table(path)
        record = TableRecord.of(row)
        if delete_folder:
            self.connection.change(DOOM, record.location, now + keep_ms, transaction_id, DROPPED)
            if not keep_ms:  # nor can one be brought back that lay there before
                forget_removed(self.connection, record.location)
        self.connection.change(CANCEL, now, record.id, transaction_id)
        if not keep_ms:
            forget(self.connection, TABLE, "?", record.id)
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
        """Register a table, in the place of the one that may have its name; the old data stays where it is.

        The new table has an id of its own, and nothing of the old one's versions and transactions; for `keep_ms` the
        old one can be brought back.
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
            raise ConcurrentModificationError(f"Table is being created by another: {shown(path)}") from error

    @writes
    def mark_written(self, table_id: int) -> TableRecord:
        """Note that a table has data now. Raises TableNotFoundError."""
        return _found(self.connection.row(MARK_WRITTEN, self._clock(), table_id), table_id)

    @writes
    def set_table_properties(self, table_id: int, properties: Properties) -> TableRecord:
        """Replace a table's properties. Raises TableNotFoundError."""
        values = encode(dict(properties)), self._clock(), table_id
        return _found(self.connection.row(SET_PROPERTIES, *values), table_id)


def listed(rows: list[Row]) -> list[ListedTable]:
    """Read what WITH_ANCESTORS yields."""
    paths: dict[int, list[str]] = {}
    for height, leaf, name in reversed(rows):  # the highest ancestors come first then
        if height:
            paths.setdefault(leaf, []).append(name)
    known = {leaf: tuple(names) for leaf, names in paths.items()}
    return [ListedTable(leaf, known.get(leaf, ()), name) for height, leaf, name in rows if not height]


def _found(row: tuple[object, ...] | None, table_id: int) -> TableRecord:
    if row is None:
        raise TableNotFoundError(f"Table not found: it was dropped (id {table_id})")
    return TableRecord.of(row)


@cache
def _find(depth: int, number: int) -> str:
    """The statement that looks for so many tables, each so many names below the root, and says which each row is.

    It joins nothing: where a database has yet to learn how many tables there are, it would read all of them for that.
    """
    one = at_depth(DESCRIBE, depth).removeprefix("SELECT")
    return " UNION ALL ".join(f"SELECT {place}, {one}" for place in range(number))
