"""The trash: tables and namespaces that were dropped, deregistered or replaced, kept for a while to be restored.

The record of a removed table exists for as long as the table can be restored: a sweeper that claims its folder deletes
the record in the same transaction. Restoring and sweeping both lock the folder first and the record then.
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

from tiltyard.store.access.grants import NAMESPACE, TABLE, delete_dependents, place_grants
from tiltyard.store.access.quotas import refuse_restored
from tiltyard.store.backend import ForeignKeyError
from tiltyard.store.protections import kept_namespaces, kept_tables, refuse_change, refuse_escape
from tiltyard.store.records import NamespaceRecord, RemovedNamespace, RemovedTable, VersionRecord
from tiltyard.store.repository import (
    GRANTS_GENERATION,
    Path,
    Repository,
    count_up,
    display_path,
    encode,
    namespace_id,
    namespace_not_found,
    reads,
    split_path,
    writes,
)
from tiltyard.store.tables.location_overlap import check_no_overlap, check_not_scheduled
from tiltyard.store.tables.lookup import TableRecord

if TYPE_CHECKING:
    from tiltyard.store.backend import Connection

LOCK_TABLE = "SELECT id FROM tables WHERE namespace_id = ? AND name = ? AND id = COALESCE(?, id) /*+ FOR UPDATE */"
COPIED_COLUMNS = (
    "id, namespace_id, name, location, properties, managed, declared, registered, created_at, primary_key, contract"
)
COPY_TABLES = f"""
    INSERT INTO removed_tables (removal, namespace, dropped, removed_at, due_at, {COPIED_COLUMNS})
    SELECT ?, ?, ?, ?, ?, {COPIED_COLUMNS} FROM tables WHERE
"""
COPY_TABLE = f"{COPY_TABLES} id = ?"
COPY_TABLES_IN = f"{COPY_TABLES} namespace_id = ?"
COPY_VERSIONS = f"""
    INSERT INTO removed_versions ({VersionRecord.COLUMNS}, manifest, checked_key, checks)
    SELECT {VersionRecord.COLUMNS}, manifest, checked_key, checks FROM table_versions
"""
COPY_VERSIONS_OF = f"{COPY_VERSIONS} WHERE table_id = ?"
COPY_VERSIONS_IN = f"{COPY_VERSIONS} WHERE table_id IN (SELECT id FROM removed_tables WHERE removal = ?)"
# Ordered by depth, so that parents come before their children. By id they would not: undrop may restore a namespace
# into a newer one.
TREE = f"""
    WITH RECURSIVE tree (id, depth) AS (
        SELECT id, 0 FROM namespaces WHERE id = ?
        UNION ALL SELECT child.id, tree.depth + 1 FROM namespaces child JOIN tree ON child.parent_id = tree.id
    )
    SELECT {NamespaceRecord.COLUMNS} FROM namespaces JOIN tree USING (id) ORDER BY depth
"""
COPY_NAMESPACE = """
    INSERT INTO removed_namespaces (removal, top, removed_at, due_at, id, parent_id, path, properties, created_at)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
"""

FIND = f"""
    SELECT {RemovedTable.COLUMNS} FROM removed_tables
    WHERE namespace = ? AND name = ? AND id = COALESCE(?, id) ORDER BY removed_at DESC, id DESC LIMIT 1
"""
LOCK_REMOVED = "SELECT id FROM removed_tables WHERE id = ? /*+ FOR UPDATE */"
# A table whose location another table has by now cannot be restored.
LIST = f"""
    SELECT {RemovedTable.COLUMNS} FROM removed_tables WHERE (removed_at, id) < (?, ?)
        AND NOT EXISTS (SELECT 1 FROM tables WHERE tables.location = removed_tables.location)
    ORDER BY removed_at DESC, id DESC LIMIT ?
"""
CANCEL_DELETION = "DELETE FROM doomed_folders WHERE location = ? AND claims = 0"
EXPIRE = """
    UPDATE doomed_folders SET due_at = ?
    WHERE claims = 0 AND location = (SELECT location FROM removed_tables WHERE id = ? AND dropped)
"""
HAS_NAME = "SELECT 1 FROM tables WHERE namespace_id = ? AND name = ?"
RESTORE = f"""
    INSERT INTO tables ({TableRecord.COLUMNS}) /*+ OVERRIDING SYSTEM VALUE */
    SELECT id, {{home}}, {{name}}, location, properties, managed, declared, registered, created_at, CAST(? AS BIGINT),
        primary_key, contract
    FROM removed_tables WHERE {{which}} ON CONFLICT DO NOTHING RETURNING {TableRecord.COLUMNS}
"""
RESTORE_TABLE = RESTORE.format(home="CAST(? AS BIGINT)", name="CAST(? AS TEXT)", which="id = ?")
RESTORE_TABLES = RESTORE.format(home="namespace_id", name="name", which="removal = ?")
RESTORE_VERSIONS = f"""
    INSERT INTO table_versions ({VersionRecord.COLUMNS}, manifest, checked_key, checks)
    SELECT {VersionRecord.COLUMNS}, manifest, checked_key, checks FROM removed_versions
"""
RESTORE_VERSIONS_OF = f"{RESTORE_VERSIONS} WHERE table_id = ?"
RESTORE_VERSIONS_IN = f"{RESTORE_VERSIONS} WHERE table_id IN (SELECT id FROM removed_tables WHERE removal = ?)"
MARK_WRITTEN = "UPDATE removed_tables SET declared = FALSE WHERE id = ?"
DELETE_TABLE = "DELETE FROM removed_tables WHERE id = ?"

FIND_NAMESPACE = f"""
    SELECT {RemovedNamespace.COLUMNS} FROM removed_namespaces
    WHERE top AND path = ? AND id = COALESCE(?, id) ORDER BY removed_at DESC, id DESC LIMIT 1
"""
LIST_NAMESPACES = f"""
    SELECT {RemovedNamespace.COLUMNS} FROM removed_namespaces WHERE top AND (removed_at, id) < (?, ?)
    ORDER BY removed_at DESC, id DESC LIMIT ?
"""
CANCEL_DELETION_ALL = """
    DELETE FROM doomed_folders
    WHERE claims = 0 AND location IN (SELECT location FROM removed_tables WHERE removal = ?)
"""
LOCK_REMOVAL = """
    SELECT (SELECT count(*) FROM removed_tables WHERE removal = ?) FROM removed_namespaces
    WHERE id = ? /*+ FOR UPDATE */
"""
RESTORE_NAMESPACE = f"""
    INSERT INTO namespaces ({NamespaceRecord.COLUMNS}) /*+ OVERRIDING SYSTEM VALUE */ VALUES (?, ?, ?, ?, ?)
    ON CONFLICT (parent_id, name) DO NOTHING RETURNING {NamespaceRecord.COLUMNS}
"""
NAMESPACES_IN = f"SELECT {RemovedNamespace.COLUMNS} FROM removed_namespaces WHERE removal = ?"
GRANTS_IN = {
    NAMESPACE: "object_id IN (SELECT id FROM removed_namespaces WHERE removal = ?)",
    TABLE: "object_id IN (SELECT id FROM removed_tables WHERE removal = ?)",
}
DELETE_TABLES_IN = "DELETE FROM removed_tables WHERE removal = ?"
DELETE_NAMESPACES_IN = "DELETE FROM removed_namespaces WHERE removal = ?"

PURGE_AT = "DELETE FROM removed_tables WHERE location = ? RETURNING removal, id"
EXPIRED_TABLES = "SELECT id FROM removed_tables WHERE due_at <= ? AND NOT dropped"
EXPIRED_NAMESPACES = """
    SELECT id FROM removed_namespaces WHERE due_at <= ? AND NOT EXISTS (
        SELECT 1 FROM removed_tables WHERE removed_tables.removal = removed_namespaces.removal
    )
"""
DELETE_NAMESPACE = "DELETE FROM removed_namespaces WHERE id = ?"

NEWEST = (1 << 62, 0)


def move_table_to_trash(
    connection: Connection,
    path: Path,
    parent_id: int,
    expected_id: int | None,
    *,
    dropped: bool,
    removed_at: int,
    due_at: int,
) -> None:
    """Copy the records of a table that is about to be removed; do nothing if there is none (of the expected id)."""
    if row := connection.row(LOCK_TABLE, parent_id, path[-1], expected_id):
        values = None, encode(list(path[:-1])), dropped, removed_at, due_at
        connection.change(COPY_TABLE, *values, row[0])
        connection.change(COPY_VERSIONS_OF, row[0])


def move_namespace_to_trash(connection: Connection, path: Path, top: int, removed_at: int, due_at: int) -> None:
    """Copy the records of a namespace and its contents; the caller holds the locks and schedules the deletions."""
    removal = str(uuid4())
    paths: dict[int, Path] = {}
    rows = []
    for row in connection.rows(TREE, top):
        record = NamespaceRecord.of(row)
        assert record.parent_id is not None
        paths[record.id] = path if record.id == top else (*paths[record.parent_id], record.name)
        head = removal, record.id == top, removed_at, due_at, record.id, record.parent_id
        rows.append((*head, encode(list(paths[record.id])), encode(record.properties), record.created_at))
    connection.change_many(COPY_NAMESPACE, rows)
    tables = [(removal, encode(list(names)), True, removed_at, due_at, id_) for id_, names in paths.items()]
    connection.change_many(COPY_TABLES_IN, tables)
    connection.change(COPY_VERSIONS_IN, removal)


def purge_table_at(connection: Connection, location: str) -> None:
    """Delete the record of the removed table at a location, whose folder is being deleted.

    The namespace that was dropped with it cannot be restored as a whole any more, so its record goes, too.
    """
    for removal, id_ in connection.rows(PURGE_AT, location):
        delete_dependents(connection, TABLE, "?", id_)
        if removal is not None:
            delete_dependents(connection, NAMESPACE, "SELECT id FROM removed_namespaces WHERE removal = ?", removal)
            connection.change(DELETE_NAMESPACES_IN, removal)


def purge_expired(connection: Connection, now: int) -> None:
    """Delete the expired records that no folder belongs to: deregistered tables, and namespaces without tables.

    A namespace with tables goes with the first of their folders that is claimed: one that is restored at this moment
    has none that can be, and stays. So does what is held, or was removed from what is read-only.
    """
    kept = kept_tables(connection)
    for (table_id,) in connection.rows(EXPIRED_TABLES, now):
        if table_id not in kept:
            delete_dependents(connection, TABLE, "?", table_id)
            connection.change(DELETE_TABLE, table_id)
    expired = {row[0] for row in connection.rows(EXPIRED_NAMESPACES, now)}
    for namespace in expired.difference(kept_namespaces(connection)):
        delete_dependents(connection, NAMESPACE, "?", namespace)
        connection.change(DELETE_NAMESPACE, namespace)


class Trash(Repository):
    """The methods for removed tables and namespaces."""

    __slots__ = ()

    @reads
    def list_removed_tables(self, before: tuple[int, int] | None, limit: int) -> list[RemovedTable]:
        """Return up to `limit` tables that can be restored, removed before a (removed_at, id); newest first."""
        return [RemovedTable.of(row) for row in self.connection.rows(LIST, *(before or NEWEST), limit)]

    @reads
    def list_removed_namespaces(self, before: tuple[int, int] | None, limit: int) -> list[RemovedNamespace]:
        """Return up to `limit` namespaces that can be restored, removed before a (removed_at, id); newest first."""
        rows = self.connection.rows(LIST_NAMESPACES, *(before or NEWEST), limit)
        return [RemovedNamespace.of(row) for row in rows]

    @reads
    def find_removed_table(self, path: Path, removed_id: int | None = None) -> RemovedTable:
        """Return the table removed last under a path, or the one of an id there. Raises TableNotFoundError."""
        parent, name = split_path(path)
        if row := self.connection.row(FIND, encode(list(parent)), name, removed_id):
            return RemovedTable.of(row)
        raise TableNotFoundError(f"No dropped table is kept under the name {display_path(path)}")

    @reads
    def find_removed_namespace(self, path: Path, removed_id: int | None = None) -> RemovedNamespace:
        """Return the namespace removed last under a path, or the one of an id there.

        Raises NamespaceNotFoundError.
        """
        split_path(path)
        if row := self.connection.row(FIND_NAMESPACE, encode(list(path)), removed_id):
            return RemovedNamespace.of(row)
        raise NamespaceNotFoundError(f"No dropped namespace is kept under the name {display_path(path)}")

    @writes
    def mark_removed_written(self, table_id: int) -> None:
        """Record that a removed table has data, if it is in the trash: it is restored as one that has."""
        self.connection.change(MARK_WRITTEN, table_id)

    @writes
    def expire_removed_table(self, table_id: int) -> bool:
        """Let the folder of a dropped table be deleted by the next sweep, which the table cannot be restored after.

        Return False for one that was restored, or is being deleted, or was deregistered: that has its folder still.
        """
        return self.connection.change(EXPIRE, self._clock(), table_id) == 1

    @writes
    def restore_table(
        self,
        path: Path,
        new_path: Path | None = None,
        removed_id: int | None = None,
        *,
        expected_parent_id: int | None = None,
    ) -> TableRecord:
        """Restore the table removed last under a path, or the one of an id there; return it.

        Raises TableNotFoundError (none is in the trash, or it has expired), NamespaceNotFoundError, also if the
        namespace has not the `expected_parent_id` (any more), TableAlreadyExistsError (the name is in use again),
        InvalidInputError (another table has the location), PermissionDeniedError (it would come into a namespace that
        is read-only or has as many tables as it may, or leave what protects it).
        """
        removed = self.find_removed_table(path, removed_id)
        parent, new_name = split_path(path if new_path is None else new_path)
        parent_id = namespace_id(self.connection, parent, expected_parent_id)
        refuse_change(self.connection, parent_id, removed.id)
        refuse_escape(self.connection, "the table", removed.id, removed.namespace_id, parent_id)
        if removed.dropped:
            self.connection.change(CANCEL_DELETION, removed.location)
        else:
            check_not_scheduled(self.connection, removed.location)
        if (
            self.connection.row(LOCK_REMOVED, removed.id) is None
        ):  # a sweeper was first, or another caller that restores it
            raise TableNotFoundError(f"No dropped table is kept any more under the name {display_path(path)}")
        try:
            row = self.connection.row(RESTORE_TABLE, parent_id, new_name, self._clock(), removed.id)
        except ForeignKeyError:
            raise namespace_not_found(parent) from None
        if row is None and self.connection.row(HAS_NAME, parent_id, new_name):
            raise TableAlreadyExistsError(f"Table already exists: {display_path((*parent, new_name))}")
        if row is None:
            raise InvalidInputError(f"Another table has the location by now: {removed.location}")
        if not removed.dropped:  # else its folder was scheduled for deletion, so that no table could overlap it
            check_no_overlap(self.connection, removed.location)
        self.connection.change(RESTORE_VERSIONS_OF, removed.id)
        refuse_restored(self.connection, parent_id, "removed_tables.id = ?", removed.id, self._clock())
        self.connection.change(DELETE_TABLE, removed.id)
        place_grants(self.connection, TABLE, "object_id = ?", removed.id)
        count_up(self.connection, GRANTS_GENERATION)  # what it is classified as by the namespaces above it may change
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
        """Restore a namespace with all that was dropped with it; return it and the number of restored tables.

        Tables of it that were restored one by one before stay where they are.
        Raises NamespaceNotFoundError (none is in the trash, it has expired, or the parent is missing or has not the
        `expected_parent_id`), NamespaceAlreadyExistsError (the name is in use again), ConcurrentModificationError,
        PermissionDeniedError as `restore_table` does.
        """
        removed = self.find_removed_namespace(path, removed_id)
        parent, name = split_path(path if new_path is None else new_path)
        parent_id = namespace_id(self.connection, parent, expected_parent_id)
        refuse_change(self.connection, parent_id)
        refuse_escape(self.connection, "the namespace", 0, removed.parent_id, parent_id)
        restorable = self.connection.change(CANCEL_DELETION_ALL, removed.removal)
        locked = self.connection.row(LOCK_REMOVAL, removed.removal, removed.id)
        if locked is None or locked[0] != restorable:  # a sweeper was first, or another caller that restores it
            raise NamespaceNotFoundError(f"No dropped namespace is kept any more under the name {display_path(path)}")
        record = self._restore_tree(removed, parent_id, name)
        if record is None:
            raise NamespaceAlreadyExistsError(f"Namespace already exists: {display_path((*parent, name))}")
        tables = self.connection.rows(RESTORE_TABLES, self._clock(), removed.removal)
        if len(tables) != restorable:
            raise ConcurrentModificationError(f"Namespace is being changed by others: {display_path(path)}")
        self.connection.change(RESTORE_VERSIONS_IN, removed.removal)
        for kind, which in GRANTS_IN.items():
            place_grants(self.connection, kind, which, removed.removal)
        refuse_restored(self.connection, parent_id, "removal = ?", removed.removal, self._clock())
        self.connection.change(DELETE_TABLES_IN, removed.removal)
        self.connection.change(DELETE_NAMESPACES_IN, removed.removal)
        count_up(self.connection, GRANTS_GENERATION)  # inherited grants depend on the parent, which may be another one
        return record, len(tables)

    def _restore_tree(self, removed: RemovedNamespace, parent_id: int, name: str) -> NamespaceRecord | None:
        """Restore the namespaces of a removal, the top one under a name; return that, or None if the name is in use."""
        top: NamespaceRecord | None = None
        namespaces = [RemovedNamespace.of(row) for row in self.connection.rows(NAMESPACES_IN, removed.removal)]
        for namespace in sorted(namespaces, key=lambda namespace: len(namespace.path)):  # parents first
            target = (parent_id, name) if namespace.top else (namespace.parent_id, namespace.path[-1])
            try:
                row = self.connection.row(
                    RESTORE_NAMESPACE, namespace.id, *target, encode(namespace.properties), namespace.created_at
                )
            except ForeignKeyError:
                raise NamespaceNotFoundError("The namespace above was dropped meanwhile") from None
            if row is None:
                return None
            if namespace.top:
                top = NamespaceRecord.of(row)
        return top
