"""What was dropped, deregistered or replaced: kept for a while, and brought back if asked for.

The record of a removed table exists for as long as it can be brought back: a sweeper that claims its folder takes the
record away in the same transaction. All who bring back or sweep lock the folder first and the record then.
"""

# ruff: noqa: S608 - only constants of the code are put into SQL, never values

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    NamespaceAlreadyExistsError,
    NamespaceNotFoundError,
    TableAlreadyExistsError,
    TableNotFoundError,
)

from tiltyard.store.access.generations import COUNT_UP
from tiltyard.store.access.grants import NAMESPACE, TABLE, forget
from tiltyard.store.access.roles import GRANTS_GENERATION
from tiltyard.store.backend import ForeignKeyError
from tiltyard.store.connection_scope import Scope, reads, writes
from tiltyard.store.paths import namespace_id, no_namespace, shown, split
from tiltyard.store.records import (
    NamespaceRecord,
    Path,
    RemovedNamespace,
    RemovedTable,
    TableRecord,
    VersionRecord,
    encode,
)
from tiltyard.store.tables.location_overlap import check_apart, check_not_doomed

if TYPE_CHECKING:
    from tiltyard.store.backend import Connection

HOLD_TABLE = "SELECT id FROM tables WHERE namespace_id = ? AND name = ? AND id = COALESCE(?, id) /*+ FOR UPDATE */"
KEPT = "id, namespace_id, name, location, properties, managed, declared, registered, created_at"
KEEP = f"""
    INSERT INTO removed_tables (removal, namespace, dropped, removed_at, due_at, {KEPT})
    SELECT ?, ?, ?, ?, ?, {KEPT} FROM tables WHERE
"""
KEEP_TABLE = f"{KEEP} id = ?"
KEEP_TABLES_IN = f"{KEEP} namespace_id = ?"
KEEP_VERSIONS = f"""
    INSERT INTO removed_versions ({VersionRecord.COLUMNS}, manifest)
    SELECT {VersionRecord.COLUMNS}, manifest FROM table_versions
"""
KEEP_VERSIONS_OF = f"{KEEP_VERSIONS} WHERE table_id = ?"
KEEP_VERSIONS_IN = f"{KEEP_VERSIONS} WHERE table_id IN (SELECT id FROM removed_tables WHERE removal = ?)"
# Parents come before their children by depth: by id they do not, since undrop may put one below a newer one.
TREE = f"""
    WITH RECURSIVE tree (id, depth) AS (
        SELECT id, 0 FROM namespaces WHERE id = ?
        UNION ALL SELECT child.id, tree.depth + 1 FROM namespaces child JOIN tree ON child.parent_id = tree.id
    )
    SELECT {NamespaceRecord.COLUMNS} FROM namespaces JOIN tree USING (id) ORDER BY depth
"""
KEEP_NAMESPACE = """
    INSERT INTO removed_namespaces (removal, top, removed_at, due_at, id, parent_id, path, properties, created_at)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
"""

FIND = f"""
    SELECT {RemovedTable.COLUMNS} FROM removed_tables
    WHERE namespace = ? AND name = ? AND id = COALESCE(?, id) ORDER BY removed_at DESC, id DESC LIMIT 1
"""
TAKE = "SELECT id FROM removed_tables WHERE id = ? /*+ FOR UPDATE */"
# One whose location another table has by now cannot be brought back.
LIST = f"""
    SELECT {RemovedTable.COLUMNS} FROM removed_tables WHERE (removed_at, id) < (?, ?)
        AND NOT EXISTS (SELECT 1 FROM tables WHERE tables.location = removed_tables.location)
    ORDER BY removed_at DESC, id DESC LIMIT ?
"""
SPARE = "DELETE FROM doomed_folders WHERE location = ? AND claims = 0"
HAS_NAME = "SELECT 1 FROM tables WHERE namespace_id = ? AND name = ?"
RESTORE = f"""
    INSERT INTO tables ({TableRecord.COLUMNS}) /*+ OVERRIDING SYSTEM VALUE */
    SELECT id, {{home}}, {{name}}, location, properties, managed, declared, registered, created_at, CAST(? AS BIGINT)
    FROM removed_tables WHERE {{which}} ON CONFLICT DO NOTHING RETURNING {TableRecord.COLUMNS}
"""
RESTORE_TABLE = RESTORE.format(home="CAST(? AS BIGINT)", name="CAST(? AS TEXT)", which="id = ?")
RESTORE_TABLES = RESTORE.format(home="namespace_id", name="name", which="removal = ?")
RESTORE_VERSIONS = f"""
    INSERT INTO table_versions ({VersionRecord.COLUMNS}, manifest)
    SELECT {VersionRecord.COLUMNS}, manifest FROM removed_versions
"""
RESTORE_VERSIONS_OF = f"{RESTORE_VERSIONS} WHERE table_id = ?"
RESTORE_VERSIONS_IN = f"{RESTORE_VERSIONS} WHERE table_id IN (SELECT id FROM removed_tables WHERE removal = ?)"
MARK_WRITTEN = "UPDATE removed_tables SET declared = FALSE WHERE id = ?"
FORGET_TABLE = "DELETE FROM removed_tables WHERE id = ?"

FIND_NAMESPACE = f"""
    SELECT {RemovedNamespace.COLUMNS} FROM removed_namespaces
    WHERE top AND path = ? AND id = COALESCE(?, id) ORDER BY removed_at DESC, id DESC LIMIT 1
"""
LIST_NAMESPACES = f"""
    SELECT {RemovedNamespace.COLUMNS} FROM removed_namespaces WHERE top AND (removed_at, id) < (?, ?)
    ORDER BY removed_at DESC, id DESC LIMIT ?
"""
SPARE_ALL = """
    DELETE FROM doomed_folders
    WHERE claims = 0 AND location IN (SELECT location FROM removed_tables WHERE removal = ?)
"""
TAKE_ALL = """
    SELECT (SELECT count(*) FROM removed_tables WHERE removal = ?) FROM removed_namespaces
    WHERE id = ? /*+ FOR UPDATE */
"""
RESTORE_NAMESPACE = f"""
    INSERT INTO namespaces ({NamespaceRecord.COLUMNS}) /*+ OVERRIDING SYSTEM VALUE */ VALUES (?, ?, ?, ?, ?)
    ON CONFLICT (parent_id, name) DO NOTHING RETURNING {NamespaceRecord.COLUMNS}
"""
NAMESPACES_IN = f"SELECT {RemovedNamespace.COLUMNS} FROM removed_namespaces WHERE removal = ?"
FORGET_TABLES_IN = "DELETE FROM removed_tables WHERE removal = ?"
FORGET_NAMESPACES_IN = "DELETE FROM removed_namespaces WHERE removal = ?"

FORGET_AT = "DELETE FROM removed_tables WHERE location = ? RETURNING removal, id"
EXPIRE_TABLES = "DELETE FROM removed_tables WHERE due_at <= ? AND NOT dropped"
EXPIRE_NAMESPACES = "DELETE FROM removed_namespaces WHERE due_at <= ?"

NEWEST = (1 << 62, 0)


def keep_table(
    connection: Connection, path: Path, home: int, only: int | None, *, dropped: bool, removed_at: int, due_at: int
) -> None:
    """Keep what the catalog knows of a table that is about to be removed; do nothing if there is none (of this id)."""
    if row := connection.row(HOLD_TABLE, home, path[-1], only):
        values = None, encode(list(path[:-1])), dropped, removed_at, due_at
        connection.change(KEEP_TABLE, *values, row[0])
        connection.change(KEEP_VERSIONS_OF, row[0])


def keep_tree(connection: Connection, path: Path, top: int, removed_at: int, due_at: int) -> None:
    """Keep a namespace with all that is in it; the caller holds the locks, and dooms the folders."""
    removal = str(uuid4())
    paths: dict[int, Path] = {}
    rows = []
    for row in connection.rows(TREE, top):
        record = NamespaceRecord.of(row)
        assert record.parent_id is not None
        paths[record.id] = path if record.id == top else (*paths[record.parent_id], record.name)
        head = removal, record.id == top, removed_at, due_at, record.id, record.parent_id
        rows.append((*head, encode(list(paths[record.id])), encode(record.properties), record.created_at))
    connection.change_many(KEEP_NAMESPACE, rows)
    tables = [(removal, encode(list(names)), True, removed_at, due_at, id_) for id_, names in paths.items()]
    connection.change_many(KEEP_TABLES_IN, tables)
    connection.change(KEEP_VERSIONS_IN, removal)


def forget_removed(connection: Connection, location: str) -> None:
    """Note that a folder is deleted now: its table cannot be brought back, and no namespace as a whole with it."""
    for removal, id_ in connection.rows(FORGET_AT, location):
        forget(connection, TABLE, "?", id_)
        if removal is not None:
            forget(connection, NAMESPACE, "SELECT id FROM removed_namespaces WHERE removal = ?", removal)
            connection.change(FORGET_NAMESPACES_IN, removal)


def forget_expired(connection: Connection, now: int) -> None:
    """Forget what is kept without a folder and whose time is over."""
    forget(connection, TABLE, "SELECT id FROM removed_tables WHERE due_at <= ? AND NOT dropped", now)
    forget(connection, NAMESPACE, "SELECT id FROM removed_namespaces WHERE due_at <= ?", now)
    connection.change(EXPIRE_TABLES, now)
    connection.change(EXPIRE_NAMESPACES, now)


class Removals(Scope):
    """The methods for what was removed."""

    __slots__ = ()

    @reads
    def list_removed_tables(self, before: tuple[int, int] | None, limit: int) -> list[RemovedTable]:
        """Return up to `limit` tables that can be brought back, removed before a (removed_at, id); newest first."""
        return [RemovedTable.of(row) for row in self.connection.rows(LIST, *(before or NEWEST), limit)]

    @reads
    def list_removed_namespaces(self, before: tuple[int, int] | None, limit: int) -> list[RemovedNamespace]:
        """Return up to `limit` namespaces that can be brought back, removed before a (removed_at, id); newest first."""
        rows = self.connection.rows(LIST_NAMESPACES, *(before or NEWEST), limit)
        return [RemovedNamespace.of(row) for row in rows]

    @reads
    def find_removed_table(self, path: Path, removed_id: int | None = None) -> RemovedTable:
        """Return the table that had a name, the last removed one unless its id is given. Raises TableNotFoundError."""
        parent, name = split(path)
        if row := self.connection.row(FIND, encode(list(parent)), name, removed_id):
            return RemovedTable.of(row)
        raise TableNotFoundError(f"No dropped table is kept under the name {shown(path)}")

    @reads
    def find_removed_namespace(self, path: Path, removed_id: int | None = None) -> RemovedNamespace:
        """Return the namespace that had a name, the last removed one unless its id is given.

        Raises NamespaceNotFoundError.
        """
        split(path)
        if row := self.connection.row(FIND_NAMESPACE, encode(list(path)), removed_id):
            return RemovedNamespace.of(row)
        raise NamespaceNotFoundError(f"No dropped namespace is kept under the name {shown(path)}")

    @writes
    def mark_removed_written(self, table_id: int) -> None:
        """Note that a table that was removed has data, if it is kept: it comes back as one that has."""
        self.connection.change(MARK_WRITTEN, table_id)

    @writes
    def restore_table(
        self,
        path: Path,
        new_path: Path | None = None,
        removed_id: int | None = None,
        *,
        expected_parent_id: int | None = None,
    ) -> TableRecord:
        """Bring back the table that had a name, the last removed one unless its id is given; return what it is again.

        With `expected_parent_id` only into the namespace of this id.
        Raises TableNotFoundError (none is kept, or its time is over), NamespaceNotFoundError,
        TableAlreadyExistsError (the name was given again), InvalidInputError (another table has the location).
        """
        removed = self.find_removed_table(path, removed_id)
        space, new_name = split(path if new_path is None else new_path)
        home_id = namespace_id(self.connection, space, expected_parent_id)
        if removed.dropped:
            self.connection.change(SPARE, removed.location)
        else:
            check_not_doomed(self.connection, removed.location)
        if self.connection.row(TAKE, removed.id) is None:  # the sweeper was first, or another who brings it back
            raise TableNotFoundError(f"No dropped table is kept any more under the name {shown(path)}")
        try:
            row = self.connection.row(RESTORE_TABLE, home_id, new_name, self._clock(), removed.id)
        except ForeignKeyError:
            raise no_namespace(space) from None
        if row is None and self.connection.row(HAS_NAME, home_id, new_name):
            raise TableAlreadyExistsError(f"Table already exists: {shown((*space, new_name))}")
        if row is None:
            raise InvalidInputError(f"Another table has the location by now: {removed.location}")
        if not removed.dropped:  # else its folder was kept from others
            check_apart(self.connection, removed.location)
        self.connection.change(RESTORE_VERSIONS_OF, removed.id)
        self.connection.change(FORGET_TABLE, removed.id)
        return TableRecord.of(row)

    @writes
    def restore_namespace(
        self,
        path: Path,
        new_path: Path | None = None,
        removed_id: int | None = None,
        *,
        expected_parent_id: int | None = None,
    ) -> tuple[NamespaceRecord, int]:
        """Bring back a namespace with all that was dropped with it; return it, and how many tables came back.

        With `expected_parent_id` only into the namespace of this id.
        Tables of it that were brought back one by one before stay where they are.
        Raises NamespaceNotFoundError (none is kept, its time is over, or the parent is missing),
        NamespaceAlreadyExistsError (the name was given again), ConcurrentModificationError.
        """
        removed = self.find_removed_namespace(path, removed_id)
        space, name = split(path if new_path is None else new_path)
        home_id = namespace_id(self.connection, space, expected_parent_id)
        spared = self.connection.change(SPARE_ALL, removed.removal)
        held = self.connection.row(TAKE_ALL, removed.removal, removed.id)
        if held is None or held[0] != spared:  # the sweeper was first, or another who brings it back
            raise NamespaceNotFoundError(f"No dropped namespace is kept any more under the name {shown(path)}")
        record = self._restore_tree(removed, home_id, name)
        if record is None:
            raise NamespaceAlreadyExistsError(f"Namespace already exists: {shown((*space, name))}")
        tables = self.connection.rows(RESTORE_TABLES, self._clock(), removed.removal)
        if len(tables) != spared:
            raise ConcurrentModificationError(f"Namespace is being changed by others: {shown(path)}")
        self.connection.change(RESTORE_VERSIONS_IN, removed.removal)
        self.connection.change(FORGET_TABLES_IN, removed.removal)
        self.connection.change(FORGET_NAMESPACES_IN, removed.removal)
        self.connection.change(
            COUNT_UP, GRANTS_GENERATION
        )  # what is inherited there depends on the place, which may be another
        return record, len(tables)

    def _restore_tree(self, removed: RemovedNamespace, home: int, name: str) -> NamespaceRecord | None:
        """Put the namespaces back, the top one under a name; None if that is taken."""
        top: NamespaceRecord | None = None
        kept = [RemovedNamespace.of(row) for row in self.connection.rows(NAMESPACES_IN, removed.removal)]
        for below in sorted(kept, key=lambda one: len(one.path)):  # parents first
            parent, own_name = (home, name) if below.top else (below.parent_id, below.path[-1])
            values = below.id, parent, own_name, encode(below.properties), below.created_at
            try:
                made = self.connection.row(RESTORE_NAMESPACE, *values)
            except ForeignKeyError:
                raise NamespaceNotFoundError("The namespace above was dropped meanwhile") from None
            if made is None:
                return None
            if below.top:
                top = NamespaceRecord.of(made)
        return top
