"""Move a table's record between this catalog and a mount. Its id stays, and all that refers to that: grants, policies,
versions, jobs. So whoever a policy binds is bound by it at every moment.
"""

# ruff: noqa: S608 - only constants of the code are put into SQL, never values

from __future__ import annotations

from typing import TYPE_CHECKING

from lance_namespace.errors import ConcurrentModificationError, TableAlreadyExistsError

from tiltyard.model.ids import check_composed
from tiltyard.store.access.grants import TABLE, place_grants
from tiltyard.store.backend import UniqueError
from tiltyard.store.repository import (
    GRANTS_GENERATION,
    Path,
    Properties,
    Repository,
    check_not_mounted,
    count_up,
    display_path,
    encode,
    namespace_id,
    reads,
    split_path,
    table_not_found,
    writes,
)
from tiltyard.store.tables.location_overlap import check_no_overlap, check_not_scheduled
from tiltyard.store.tables.lookup import TableRecord

if TYPE_CHECKING:
    from collections.abc import Sequence


TAKE = f"""
    UPDATE tables SET namespace_id = ?, name = ?, properties = ?, declared = ?, registered = TRUE, updated_at = ?,
        mount_id = NULL, foreign_id = NULL
    WHERE id = ? AND mount_id IS NOT NULL AND location = ?
    RETURNING {TableRecord.COLUMNS}, (SELECT mount_id FROM namespaces WHERE namespaces.id = namespace_id)
"""
GIVE = """
    UPDATE tables SET properties = '{}', managed = ?, mount_id = ?, foreign_id = ?
    WHERE id = ? AND mount_id IS NULL AND location = ?
"""
# All grants on a namespace and on those above it.
GRANTS_ABOVE = """
    WITH RECURSIVE up (id) AS (
        SELECT CAST(? AS BIGINT)
        UNION ALL
        SELECT namespaces.parent_id FROM up JOIN namespaces ON namespaces.id = up.id
        WHERE namespaces.parent_id IS NOT NULL
    )
    SELECT grantee, privileges FROM grants WHERE kind = 'namespace' AND object_id IN (SELECT id FROM up)
"""
GRANTS_OF_TABLE = "SELECT grantee, privileges FROM grants WHERE kind = 'table' AND object_id = ?"
COPY_GRANTS = """
    INSERT INTO grants (grantee, kind, object_id, privileges, granted_by, granted_at)
    SELECT grantee, kind, ?, privileges, granted_by, granted_at FROM grants WHERE kind = 'table' AND object_id = ?
"""
COPY_POLICIES = """
    INSERT INTO policies (table_id, name, document, set_by, set_at)
    SELECT ?, name, document, set_by, set_at FROM policies WHERE table_id = ?
"""
COPY_CLASSIFICATIONS = """
    INSERT INTO classifications (kind, object_id, key, value, set_by, set_at)
    SELECT kind, ?, key, value, set_by, set_at FROM classifications WHERE kind = 'table' AND object_id = ?
"""
COPY_CLASSIFIED_COLUMNS = """
    INSERT INTO classified_columns (table_id, field_id, path, earlier)
    SELECT ?, field_id, path, '[]' FROM classified_columns WHERE table_id = ? AND path IS NOT NULL
"""
COPY_OF_COLUMNS = """
    INSERT INTO classifications (kind, object_id, key, value, set_by, set_at)
    SELECT kind, new.id, key, value, set_by, set_at
    FROM classified_columns old JOIN classified_columns new ON new.path = old.path
        JOIN classifications ON kind = 'column' AND object_id = old.id
    WHERE old.table_id = ? AND new.table_id = ?
"""


class TableMoves(Repository):
    """The methods for tables that move."""

    __slots__ = ()

    @writes
    def take_from_mount(self, table: TableRecord, path: Path, properties: Properties, *, declared: bool) -> TableRecord:
        """Make the record of a table below a mount one of this catalog's own; return it.

        Raises NamespaceNotFoundError, TableAlreadyExistsError, TableNotFoundError (it is gone, or moved already),
        InvalidInputError (its folder is in, or around, that of another table, or is being deleted).
        """
        parent, name = split_path(path)
        parent_id = namespace_id(self.connection, parent)
        values = encode(dict(properties)), declared, self._clock(), table.id, table.location
        try:
            row = self.connection.row(TAKE, parent_id, name, *values)
        except UniqueError:
            raise TableAlreadyExistsError(f"Table already exists: {display_path(path)}") from None
        if row is None:
            raise table_not_found((table.name,))
        check_no_overlap(self.connection, table.location)
        check_not_scheduled(self.connection, table.location)
        check_composed(name)
        check_not_mounted(row[-1], path)
        record = TableRecord.of(row[:-1])
        place_grants(self.connection, TABLE, "object_id = ?", record.id)
        count_up(self.connection, GRANTS_GENERATION)  # what it is classified as by the namespaces above it changes
        return record

    @writes
    def give_to_mount(self, table: TableRecord, mount_id: int, foreign_id: str | None, *, managed: bool) -> None:
        """Make a table's record one of a mount's, still under its name here: `move_mounted_table` gives it the other.

        Raises ConcurrentModificationError (it is gone, or was moved).
        """
        if not self.connection.change(GIVE, managed, mount_id, foreign_id, table.id, table.location):
            raise ConcurrentModificationError(f"The table was dropped or moved meanwhile: {table.name}")

    @reads
    def grants_above(self, namespace: int) -> dict[str, int]:
        """Return the privileges of each grantee on a namespace and those above it, as bits."""
        return _by_grantee(self.connection.rows(GRANTS_ABOVE, namespace))

    @reads
    def grants_of_table(self, table_id: int) -> dict[str, int]:
        """Return the privileges of each grantee on a table itself, as bits."""
        return _by_grantee(self.connection.rows(GRANTS_OF_TABLE, table_id))

    @writes
    def copy_access(self, table_id: int, source_id: int) -> None:
        """Give a new table the grants, policies and classifications of another.

        No server has cached any of an id that is new.
        """
        self.connection.change(COPY_GRANTS, table_id, source_id)
        place_grants(self.connection, TABLE, "object_id = ?", table_id)
        self.connection.change(COPY_POLICIES, table_id, source_id)
        self.connection.change(COPY_CLASSIFICATIONS, table_id, source_id)
        self.connection.change(COPY_CLASSIFIED_COLUMNS, table_id, source_id)
        self.connection.change(COPY_OF_COLUMNS, source_id, table_id)


def _by_grantee(rows: Sequence[tuple[str, int]]) -> dict[str, int]:
    bits: dict[str, int] = {}
    for grantee, privileges in rows:
        bits[grantee] = bits.get(grantee, 0) | privileges
    return bits
