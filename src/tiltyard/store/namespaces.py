"""Namespaces: create, describe, list and drop them."""

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
from tiltyard.store.access.grants import NAMESPACE, TABLE, delete_dependents, grant_to_creator
from tiltyard.store.backend import ForeignKeyError
from tiltyard.store.protections import refuse_change, refuse_removal, refuse_tree_removal
from tiltyard.store.records import DroppedNamespace, NamespaceRecord
from tiltyard.store.repository import (
    ROOT,
    Path,
    Properties,
    Repository,
    at_depth,
    check_not_mounted,
    display_path,
    encode,
    namespace_id,
    namespace_not_found,
    reads,
    resolve_prefix,
    split_path,
    writes,
)
from tiltyard.store.tables.trash import move_namespace_to_trash

if TYPE_CHECKING:
    from tiltyard.store.access.grants import Creator

INSERT = f"""
    INSERT INTO namespaces (parent_id, name, properties, created_at) VALUES (?, ?, ?, ?)
    ON CONFLICT (parent_id, name) DO NOTHING
    RETURNING {NamespaceRecord.COLUMNS}, (SELECT mount_id FROM namespaces parent WHERE parent.id = namespaces.parent_id)
"""
DESCRIBE = f"SELECT {NamespaceRecord.COLUMNS} FROM namespaces WHERE id = {{namespace}}"
IS_IN_ROOT = f"SELECT 1 FROM namespaces WHERE parent_id = {ROOT} AND name = ?"
LIST = "SELECT name AS text FROM namespaces WHERE parent_id = {namespace} AND name > ? ORDER BY name LIMIT ?"
DELETE = "DELETE FROM namespaces WHERE id = ?"
LOCK = "SELECT id FROM namespaces WHERE id = ? /*+ FOR UPDATE */"
HAS_FUNCTIONS = """
    SELECT 1 FROM named_secrets WHERE namespace_id = ? UNION ALL SELECT 1 FROM functions WHERE namespace_id = ?
    UNION ALL SELECT 1 FROM schedules WHERE namespace_id = ? LIMIT 1
"""

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
HAS_MOUNT = f"{TREE} SELECT 1 FROM namespaces WHERE id IN (SELECT id FROM tree) AND mount_id IS NOT NULL LIMIT 1"
LOCK_TABLES = f"""{TREE}
    SELECT count(*) FROM (
        SELECT id FROM tables WHERE namespace_id IN (SELECT id FROM tree) ORDER BY id /*+ FOR UPDATE */
    ) held
"""
SCHEDULE_DELETIONS = f"""{TREE}
    INSERT INTO doomed_folders (location, due_at, transaction_id, reason, claims)
    SELECT location, ?, ?, 'dropped', 0 FROM tables WHERE namespace_id IN (SELECT id FROM tree)
    ON CONFLICT (location) DO UPDATE SET due_at = excluded.due_at,
        transaction_id = excluded.transaction_id, reason = excluded.reason, claims = 0
"""
CANCEL_TRANSACTIONS = f"""{TREE}
    UPDATE transactions SET status = 'Canceled', lease_owner = NULL, updated_at = ?
    WHERE status IN ('Queued', 'Running') AND id <> COALESCE(?, '')
        AND table_id IN (SELECT id FROM tables WHERE namespace_id IN (SELECT id FROM tree))
"""
TABLES_BELOW = f"{TREE} SELECT id FROM tables WHERE namespace_id IN (SELECT id FROM tree)"
DELETE_TABLES = f"{TREE} DELETE FROM tables WHERE namespace_id IN (SELECT id FROM tree)"
DELETE_NAMESPACES = f"{TREE} DELETE FROM namespaces WHERE id IN (SELECT id FROM tree)"
# Those below come first: an event names what it is about, and so the namespaces above.
TREE_UPWARDS = """
    WITH RECURSIVE tree (id, depth) AS (
        SELECT id, 0 FROM namespaces WHERE id = ?
        UNION ALL SELECT child.id, tree.depth + 1 FROM namespaces child JOIN tree ON child.parent_id = tree.id
    )
    SELECT id FROM tree ORDER BY depth DESC
"""


class Namespaces(Repository):
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
        """Create a namespace and return it; under ExistOk return an existing one unchanged.

        Overwrite drops an existing one with all of its contents in the same transaction; for `keep_ms` that one can be
        restored. The creator is granted its privileges on the new one.
        Raises NamespaceNotFoundError without the parent, or if the parent has not the `expected_parent_id` (any more),
        NamespaceAlreadyExistsError under Create, InvalidInputError for the root, ConcurrentModificationError when
        others keep changing it, PermissionDeniedError where the parent is read-only, or what would be overwritten is
        protected.
        """
        parent, name = split_path(path)
        parent_id = namespace_id(self.connection, parent, expected_parent_id)
        refuse_change(self.connection, parent_id)
        for _ in range(3):
            try:
                row = self.connection.row(INSERT, parent_id, name, encode(dict(properties)), self._clock())
            except ForeignKeyError:
                raise namespace_not_found(parent) from None
            if row:
                check_not_mounted(row[-1], path)
                check_composed(name)
                grant_to_creator(self.connection, NAMESPACE, row[0], creator, self._clock())
                return NamespaceRecord.of(row[:-1])
            if mode is CreateMode.CREATE:
                raise NamespaceAlreadyExistsError(f"Namespace already exists: {display_path(path)}")
            row = self.connection.row(at_depth(DESCRIBE, 1), parent_id, name)
            if row and mode is CreateMode.EXIST_OK:
                return NamespaceRecord.of(row)
            if row:
                self._drop_tree(row[0], path, None, keep_ms)
        raise ConcurrentModificationError(f"Namespace is being changed by others: {display_path(path)}")

    @reads
    def describe_namespace(self, path: Path) -> NamespaceRecord:
        """Return a namespace, also the root. Raises NamespaceNotFoundError."""
        base, names = resolve_prefix(self.connection, path)
        if row := self.connection.row(at_depth(DESCRIBE, len(names)), base, *names):
            return NamespaceRecord.of(row)
        raise namespace_not_found(path)

    @reads
    def is_in_root(self, name: str) -> bool:
        """Return whether a namespace of this name is directly in the root."""
        return self.connection.row(IS_IN_ROOT, name) is not None

    @reads
    def list_namespaces(self, path: Path, after: str | None, limit: int) -> list[str]:
        """Return up to `limit` names of children, those after `after`, in the order of their UTF-8 bytes.

        Raises NamespaceNotFoundError.
        """
        base, names = resolve_prefix(self.connection, path)
        children = self.connection.texts(at_depth(LIST, len(names)), base, *names, after or "", limit)
        if not children:
            namespace_id(self.connection, path)
        return children

    @writes
    def drop_namespace(
        self,
        path: Path,
        cascade: bool = False,
        transaction_id: str | None = None,
        keep_ms: int = 0,
        *,
        expected_id: int | None = None,
        approved: bool = False,
    ) -> DroppedNamespace:
        """Drop a namespace; with `cascade` also its contents, all of which can be restored for `keep_ms`.

        The folders of its tables are scheduled for deletion under `transaction_id`, their unfinished transactions
        canceled. Raises NamespaceNotFoundError, also if it has not the `expected_id` (any more),
        NamespaceNotEmptyError without `cascade`, InvalidInputError for the root, PermissionDeniedError where it, or
        anything in it, is protected; `approved` says that a second principal has approved the call.
        """
        if not path:
            raise InvalidInputError("The root namespace cannot be dropped")
        record = self.describe_namespace(path)
        if expected_id not in (None, record.id):
            raise namespace_not_found(path)
        if cascade:
            tables = self._drop_tree(record.id, path, transaction_id, keep_ms, approved=approved)
            if tables is None:
                raise namespace_not_found(path)
            return DroppedNamespace(record.properties, tables)
        if self.connection.row(HAS_MOUNT, record.id):
            raise NamespaceNotEmptyError(f"This namespace is a mount: unmount it instead: {display_path(path)}")
        self.connection.row(LOCK, record.id)  # none of these can be added from here on
        refuse_removal(self.connection, f"the namespace {display_path(path)}", record.id, approved=approved)
        if self.connection.row(HAS_FUNCTIONS, record.id, record.id, record.id):
            raise NamespaceNotEmptyError(
                f"Namespace is not empty, it has functions, secrets or schedules: {display_path(path)}"
            )
        try:
            if not self.connection.change(DELETE, record.id):
                raise namespace_not_found(path)
        except ForeignKeyError:
            raise NamespaceNotEmptyError(f"Namespace is not empty: {display_path(path)}") from None
        delete_dependents(self.connection, NAMESPACE, "?", record.id)
        return DroppedNamespace(record.properties, 0)

    def _drop_tree(
        self, root: int, path: Path, transaction_id: str | None, keep_ms: int, *, approved: bool = False
    ) -> int | None:
        """Drop a namespace and its contents; return the number of its tables, or None if it was gone already."""
        now, locked_before = self._clock(), -1
        while (locked := self._count(LOCK_NAMESPACES, root)) != locked_before:
            locked_before = locked  # another may have added a child while we waited for the locks: until none is new
        if self.connection.row(HAS_MOUNT, root):
            raise NamespaceNotEmptyError(
                f"A mount is below the namespace, or it is one itself: unmount it first: {display_path(path)}"
            )
        tables = self._count(LOCK_TABLES, root)  # no table can come or go from here on
        refuse_tree_removal(self.connection, path, root, approved=approved)
        if locked and keep_ms:
            move_namespace_to_trash(self.connection, path, root, now, now + keep_ms)
        self.connection.change(SCHEDULE_DELETIONS, root, now + keep_ms, transaction_id)
        self.connection.change(CANCEL_TRANSACTIONS, root, now, transaction_id)
        if not keep_ms:
            delete_dependents(self.connection, TABLE, TABLES_BELOW, root)
            delete_dependents(self.connection, NAMESPACE, f"{TREE} SELECT id FROM tree", root)
        self.connection.change(DELETE_TABLES, root)
        self.connection.change_many(DELETE, self.connection.rows(TREE_UPWARDS, root))
        return tables if locked else None

    def _count(self, sql: str, root: int) -> int:
        row = self.connection.row(sql, root)
        return int(row[0]) if row else 0
