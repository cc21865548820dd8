"""Add, rename, replace and remove tables; change their properties and what they declare."""

# ruff: noqa: S608 - only constants of the code are put into SQL, never values

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    TableAlreadyExistsError,
    TableNotFoundError,
)

from tiltyard.model.ids import check_composed
from tiltyard.model.quotas import Resource
from tiltyard.store.access.grants import TABLE, delete_dependents, grant_to_creator, place_grants
from tiltyard.store.access.quotas import note_creator, refuse_further
from tiltyard.store.backend import ForeignKeyError, UniqueError
from tiltyard.store.protections import refuse_change, refuse_escape, refuse_removal, refuse_removal_of_files
from tiltyard.store.repository import (
    GRANTS_GENERATION,
    Path,
    Properties,
    Repository,
    at_depth,
    check_not_mounted,
    count_up,
    decode,
    display_path,
    encode,
    namespace_id,
    namespace_not_found,
    split_path,
    table_not_found,
    writes,
)
from tiltyard.store.tables.folder_deletions import CREATING, DROPPED, RESERVED, SCHEDULE
from tiltyard.store.tables.location_overlap import check_no_overlap, check_not_scheduled
from tiltyard.store.tables.lookup import DESCRIBE, TableRecord, require_row
from tiltyard.store.tables.trash import move_table_to_trash, purge_table_at
from tiltyard.store.tables.versions import LATEST_OF_BRANCHES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tiltyard.store.access.grants import Creator

INSERT = f"""
    INSERT INTO tables
        (namespace_id, name, location, properties, managed, declared, registered, created_at, updated_at)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING
    RETURNING {TableRecord.COLUMNS}, (SELECT mount_id FROM namespaces WHERE namespaces.id = namespace_id)
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
    WHERE table_id = ? AND status IN ('Queued', 'Running')
"""
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


class Tables(Repository):
    """The methods that change tables."""

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
        created_by: str = "",
        expected_parent_id: int | None = None,
    ) -> TableRecord:
        """Add a table to the catalog and grant its creator its privileges on it; return the table.

        `created_by` is the principal whose quota it counts for, "" for nobody's.

        With `in_creation` its folder was scheduled for deletion with the reason 'creating' while data was written to
        it, and no longer is from now on.
        Raises NamespaceNotFoundError, also if the namespace has not the `expected_parent_id` (any more),
        TableAlreadyExistsError, InvalidInputError for a location that another table has or that is being deleted, or,
        where a client gave it (`registered`), inside or around such a folder; ConcurrentModificationError for a
        creation whose lease has expired, PermissionDeniedError where the namespace is read-only, or a quota is full.
        """
        parent, name = split_path(path)
        parent_id, now = namespace_id(self.connection, parent, expected_parent_id), self._clock()
        refuse_change(self.connection, parent_id)
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
        note_creator(self.connection, record.id, created_by)
        refuse_further(self.connection, Resource.TABLES, parent_id, created_by, now)
        return record

    @writes
    def rename_table(
        self, path: Path, new_path: Path, *, expected_id: int | None = None, expected_parent_id: int | None = None
    ) -> TableRecord:
        """Rename a table, or move it to another namespace; its location stays.

        Raises TableNotFoundError, also if the table has not the `expected_id` (any more), TableAlreadyExistsError,
        NamespaceNotFoundError for either namespace, also if the new one has not the `expected_parent_id`,
        PermissionDeniedError for a table that is read-only, would leave what protects it, or is one too many there.
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
        refuse_change(self.connection, old_id, record.id)
        refuse_change(self.connection, new_id)
        refuse_escape(self.connection, f"the table {display_path(path)}", record.id, old_id, new_id)
        place_grants(self.connection, TABLE, "object_id = ?", record.id)
        if new_id != old_id:
            refuse_further(self.connection, Resource.TABLES, new_id, "", self._clock())
            count_up(self.connection, GRANTS_GENERATION)  # what it is classified as by the namespaces above it changes
        return record

    @writes
    def remove_table(
        self,
        path: Path,
        *,
        delete_folder: bool,
        keep_ms: int = 0,
        expected_id: int | None = None,
        approved: bool = False,
        withdrawn: bool = False,
    ) -> TableRecord:
        """Remove a table from the catalog and return its record; cancel its unfinished transactions.

        With `delete_folder` its folder is scheduled for deletion (drop), without it stays (deregister). For `keep_ms`
        the table can be restored. Raises TableNotFoundError, also if it has not the `expected_id` (any more),
        NamespaceNotFoundError, PermissionDeniedError where it is protected: not for one that is `withdrawn`, whose
        declaration is of this very request; `approved` says that a second principal has approved the call.
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
        if not withdrawn:
            refuse_removal(self.connection, f"the table {display_path(path)}", parent_id, record.id, approved=approved)
        if delete_folder:
            refuse_removal_of_files(self.connection, record.location)
            self.connection.change(SCHEDULE, record.location, now + keep_ms, None, DROPPED)
            if not keep_ms:  # nor can a table be restored that was at this location before
                purge_table_at(self.connection, record.location)
        self.connection.change(CANCEL_TRANSACTIONS, now, record.id)
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
        created_by: str = "",
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
                created_by=created_by,
                expected_parent_id=expected_parent_id,
            )
        except TableAlreadyExistsError as error:
            raise ConcurrentModificationError(f"Table is being created by another: {display_path(path)}") from error

    @writes
    def mark_written(self, table_id: int) -> TableRecord:
        """Record that a table has data, so that it is no longer `declared`. Raises TableNotFoundError."""
        return require_row(self.connection.row(MARK_WRITTEN, self._clock(), table_id), table_id)

    @writes
    def change_table_properties(self, table_id: int, changes: Mapping[str, str | None]) -> TableRecord:
        """Set some of a table's properties, and remove those whose value is None. Raises TableNotFoundError.

        Others stay as they are by then, whoever has set them.
        """
        row = self.connection.row(LOCK_PROPERTIES, table_id)
        properties = _changed(row[0] if row else None, changes)
        return require_row(self.connection.row(SET_PROPERTIES, properties, self._clock(), table_id), table_id)

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
        return require_row(self.connection.row(SET_DECLARATIONS, *values), table.id)


def _changed(properties: str | None, changes: Mapping[str, str | None]) -> str:
    """Return the text of a table's properties after changes: a new value, or None to remove it, for each key."""
    merged = {**(decode(properties) if properties else {}), **changes}
    return encode({key: value for key, value in merged.items() if value is not None})
