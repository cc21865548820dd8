"""Namespaces."""

# ruff: noqa: S608 - only constants of the code are put into SQL, never values

from __future__ import annotations

from typing import TYPE_CHECKING

from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
)

from tiltyard.model.ids import check_composed
from tiltyard.model.modes import CreateMode
from tiltyard.store.access.grants import NAMESPACE, TABLE, forget, own
from tiltyard.store.backend import ForeignKeyError
from tiltyard.store.connection_scope import Scope, reads, writes
from tiltyard.store.paths import anchor, at_depth, namespace_id, no_namespace, shown, split
from tiltyard.store.records import DroppedNamespace, NamespaceRecord, Path, Properties, encode
from tiltyard.store.tables.trash import keep_tree

if TYPE_CHECKING:
    from tiltyard.store.access.grants import Creator

INSERT = f"""
    INSERT INTO namespaces (parent_id, name, properties, created_at) VALUES (?, ?, ?, ?)
    ON CONFLICT (parent_id, name) DO NOTHING RETURNING {NamespaceRecord.COLUMNS}
"""
DESCRIBE = f"SELECT {NamespaceRecord.COLUMNS} FROM namespaces WHERE id = {{namespace}}"
LIST = "SELECT name FROM namespaces WHERE parent_id = {namespace} AND name > ? ORDER BY name LIMIT ?"
DELETE = "DELETE FROM namespaces WHERE id = ?"

TREE = """
    WITH RECURSIVE tree (id) AS (
        SELECT id FROM namespaces WHERE id = ?
        UNION ALL SELECT child.id FROM namespaces child JOIN tree ON child.parent_id = tree.id
    )
"""
LOCK_NAMESPACES = f"""{TREE}
    SELECT count(*) FROM (
        SELECT id FROM namespaces WHERE id IN (SELECT id FROM tree) ORDER BY id /*+ FOR UPDATE */
    ) held
"""
LOCK_TABLES = f"""{TREE}
    SELECT count(*) FROM (
        SELECT id FROM tables WHERE namespace_id IN (SELECT id FROM tree) ORDER BY id /*+ FOR UPDATE */
    ) held
"""
DOOM_TABLES = f"""{TREE}
    INSERT INTO doomed_folders (location, due_at, transaction_id, reason, claims)
    SELECT location, ?, ?, 'dropped', 0 FROM tables WHERE namespace_id IN (SELECT id FROM tree)
    ON CONFLICT (location) DO UPDATE SET due_at = excluded.due_at,
        transaction_id = excluded.transaction_id, reason = excluded.reason, claims = 0
"""
CANCEL = f"""{TREE}
    UPDATE transactions SET status = 'Canceled', lease_owner = NULL, updated_at = ?
    WHERE status IN ('Queued', 'Running') AND id <> COALESCE(?, '')
        AND table_id IN (SELECT id FROM tables WHERE namespace_id IN (SELECT id FROM tree))
"""
TABLES_BELOW = f"{TREE} SELECT id FROM tables WHERE namespace_id IN (SELECT id FROM tree)"
DELETE_TABLES = f"{TREE} DELETE FROM tables WHERE namespace_id IN (SELECT id FROM tree)"
DELETE_NAMESPACES = f"{TREE} DELETE FROM namespaces WHERE id IN (SELECT id FROM tree)"


class Namespaces(Scope):
    """The methods for namespaces."""

    __slots__ = ()

    @writes
    def create_namespace(
        self,
        path: Path,
        properties: Properties,
        mode: CreateMode = CreateMode.CREATE,
        keep_ms: int = 0,
        creator: Creator | None = None,
        expected_parent_id: int | None = None,
    ) -> NamespaceRecord:
        """Create a namespace and return it, or under ExistOk the one that is there, as it is.

        With `expected_parent_id` only in the namespace of this id.
        Overwrite drops the one that is there with all that is in it, in the same transaction; for `keep_ms` it can
        be brought back. Whoever creates one is given what that gives.
        Raises NamespaceNotFoundError without the parent, NamespaceAlreadyExistsError under Create,
        InvalidInputError for the root, ConcurrentModificationError when others keep changing it.
        """
        parent, name = split(path)
        parent_id = namespace_id(self.connection, parent, expected_parent_id)
        for _ in range(3):
            try:
                row = self.connection.row(INSERT, parent_id, name, encode(dict(properties)), self._clock())
            except ForeignKeyError:
                raise no_namespace(parent) from None
            if row:
                check_composed(name)
                own(self.connection, NAMESPACE, row[0], creator, self._clock())
                return NamespaceRecord.of(row)
            if mode is CreateMode.CREATE:
                raise NamespaceAlreadyExistsError(f"Namespace already exists: {shown(path)}")
            row = self.connection.row(at_depth(DESCRIBE, 1), parent_id, name)
            if row and mode is CreateMode.EXIST_OK:
                return NamespaceRecord.of(row)
            if row:
                self._drop_tree(row[0], path, None, keep_ms)
        raise ConcurrentModificationError(f"Namespace is being changed by others: {shown(path)}")

    @reads
    def describe_namespace(self, path: Path) -> NamespaceRecord:
        """Return a namespace, also the root. Raises NamespaceNotFoundError."""
        base, names = anchor(self.connection, path)
        if row := self.connection.row(at_depth(DESCRIBE, len(names)), base, *names):
            return NamespaceRecord.of(row)
        raise no_namespace(path)

    @reads
    def list_namespaces(self, path: Path, after: str | None, limit: int) -> list[str]:
        """Return up to `limit` names of children that sort behind `after`, in the order of their UTF-8 bytes.

        Raises NamespaceNotFoundError.
        """
        base, names = anchor(self.connection, path)
        rows = self.connection.rows(at_depth(LIST, len(names)), base, *names, after or "", limit)
        if not rows:
            namespace_id(self.connection, path)
        return [row[0] for row in rows]

    @writes
    def drop_namespace(
        self,
        path: Path,
        cascade: bool = False,
        transaction_id: str | None = None,
        keep_ms: int = 0,
        *,
        expected_id: int | None = None,
    ) -> DroppedNamespace:
        """Drop a namespace; with `cascade` all below it too, which can be brought back for `keep_ms`.

        With `expected_id` none but that of this id is dropped.
        The folders of its tables are doomed under `transaction_id`, their unfinished transactions canceled.
        Raises NamespaceNotFoundError, NamespaceNotEmptyError without `cascade`, InvalidInputError for the root.
        """
        if not path:
            raise InvalidInputError("The root namespace cannot be dropped")
        record = self.describe_namespace(path)
        if expected_id not in (None, record.id):
            raise no_namespace(path)
        if cascade:
            tables = self._drop_tree(record.id, path, transaction_id, keep_ms)
            if tables is None:
                raise no_namespace(path)
            return DroppedNamespace(record.properties, tables)
        try:
            if not self.connection.change(DELETE, record.id):
                raise no_namespace(path)
        except ForeignKeyError:
            raise NamespaceNotEmptyError(f"Namespace is not empty: {shown(path)}") from None
        forget(self.connection, NAMESPACE, "?", record.id)
        return DroppedNamespace(record.properties, 0)

    def _drop_tree(self, root: int, path: Path, transaction_id: str | None, keep_ms: int) -> int | None:
        """Drop a namespace and all below it; return how many tables that were, or None if it was gone already."""
        now, seen = self._clock(), -1
        while (held := self._count(LOCK_NAMESPACES, root)) != seen:
            seen = held  # another may have added a child while we waited for the locks: look until none is new
        tables = self._count(LOCK_TABLES, root)  # no table can come or go from here on
        if held and keep_ms:
            keep_tree(self.connection, path, root, now, now + keep_ms)
        self.connection.change(DOOM_TABLES, root, now + keep_ms, transaction_id)
        self.connection.change(CANCEL, root, now, transaction_id)
        if not keep_ms:
            forget(self.connection, TABLE, TABLES_BELOW, root)
            forget(self.connection, NAMESPACE, f"{TREE} SELECT id FROM tree", root)
        self.connection.change(DELETE_TABLES, root)
        self.connection.change(DELETE_NAMESPACES, root)
        return tables if held else None

    def _count(self, sql: str, root: int) -> int:
        row = self.connection.row(sql, root)
        return int(row[0]) if row else 0
