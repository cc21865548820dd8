"""Pages of the objects visible to a principal with few grants, read from the grants rather than by a filter.

An object is visible with any privilege on it or on an ancestor; a namespace also, by its name alone, if an object in it
is visible. Grantees are the names a principal has: its own, its groups', its roles'.
"""

# ruff: noqa: S608 - only constants of the code are put into SQL, never values

from __future__ import annotations

from typing import TYPE_CHECKING

from tiltyard.store.jobs import NEWEST as NEWEST_JOB
from tiltyard.store.paths import placeholders
from tiltyard.store.records import ListedTable, RemovedNamespace, RemovedTable, TransactionRecord
from tiltyard.store.repository import Repository, reads
from tiltyard.store.tables.tables import WITH_ANCESTORS, read_listed_tables
from tiltyard.store.tables.trash import NEWEST as NEWEST_REMOVAL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tiltyard.store.jobs import JobFilter

# Granted objects, and with `up` their ancestors. MATERIALIZED and CROSS JOIN make SQLite begin with
# the grants, which are few.
GRANTED = """
    WITH RECURSIVE mine (kind, id) AS MATERIALIZED (
        SELECT DISTINCT kind, object_id FROM grants WHERE grantee IN ({grantees}) AND kind <> 'server'
    )
"""
WITH_PARENTS = f"""{GRANTED}, seeds (id) AS (
        SELECT id FROM mine WHERE kind = 'namespace'
        UNION SELECT namespace_id FROM mine CROSS JOIN tables WHERE tables.id = mine.id AND kind = 'table'
    ), up (id) AS (
        SELECT id FROM seeds
        UNION SELECT parent_id FROM up CROSS JOIN namespaces WHERE namespaces.id = up.id AND parent_id IS NOT NULL
    )
"""
IS_PARENT = f"{WITH_PARENTS} SELECT 1 FROM up WHERE id = ?"
NAMESPACES = f"""{WITH_PARENTS}
    SELECT name FROM up CROSS JOIN namespaces
    WHERE namespaces.id = up.id AND parent_id = ? AND name > ? ORDER BY name LIMIT ?
"""
# The plus keeps SQLite from going through all names of the namespace.
TABLES = """
    SELECT name FROM tables
    WHERE id IN (SELECT object_id FROM grants WHERE grantee IN ({grantees}) AND kind = 'table')
        AND +namespace_id = ? AND name > ? AND (? OR NOT declared)
    ORDER BY name LIMIT ?
"""
HAS_GRANTED_TABLE = """
    SELECT 1 FROM grants CROSS JOIN tables
    WHERE grantee IN ({grantees}) AND kind = 'table' AND tables.id = object_id AND namespace_id = ? LIMIT 1
"""
COUNT = "SELECT count(*) FROM (SELECT 1 FROM grants WHERE grantee IN ({grantees}) LIMIT ?) found"
WITH_DESCENDANTS = """, down (id) AS (
        SELECT id FROM mine WHERE kind = 'namespace'
        UNION SELECT namespaces.id FROM down CROSS JOIN namespaces WHERE namespaces.parent_id = down.id
    )
"""
ALL_TABLES = f"""{GRANTED}{WITH_DESCENDANTS}, page (namespace_id, name) AS (
        SELECT * FROM (
            SELECT namespace_id, name FROM mine CROSS JOIN tables
            WHERE tables.id = mine.id AND kind = 'table' AND (namespace_id, name) > (?, ?) AND (? OR NOT declared)
                AND mount_id IS NULL
            ORDER BY namespace_id, name LIMIT ?
        ) single
        UNION
        SELECT * FROM (
            SELECT namespace_id, name FROM tables
            WHERE namespace_id IN (SELECT id FROM down) AND (namespace_id, name) > (?, ?) AND (? OR NOT declared)
                AND mount_id IS NULL
            ORDER BY namespace_id, name LIMIT ?
        ) inherited
        ORDER BY 1, 2 LIMIT ?
    ){WITH_ANCESTORS}
"""
# Objects in the trash still have their grants and their parent: those with one of the privileges given as bits.
GRANTED_IN_TRASH = """
    WITH RECURSIVE mine (kind, id) AS MATERIALIZED (
        SELECT kind, object_id FROM grants
        WHERE grantee IN ({grantees}) AND kind <> 'server' AND (privileges & ?) <> 0
    ), places (id, parent_id) AS (
        SELECT id, parent_id FROM namespaces UNION ALL SELECT id, parent_id FROM removed_namespaces
    ), down (id) AS (
        SELECT id FROM mine WHERE kind = 'namespace'
        UNION SELECT places.id FROM down JOIN places ON places.parent_id = down.id
    )
"""
REMOVED_TABLES = f"""{GRANTED_IN_TRASH}
    SELECT {RemovedTable.COLUMNS} FROM removed_tables WHERE (removed_at, id) < (?, ?)
        AND (namespace_id IN (SELECT id FROM down) OR id IN (SELECT id FROM mine WHERE kind = 'table'))
        AND NOT EXISTS (SELECT 1 FROM tables WHERE tables.location = removed_tables.location)
    ORDER BY removed_at DESC, id DESC LIMIT ?
"""
REMOVED_NAMESPACES = f"""{GRANTED_IN_TRASH}
    SELECT {RemovedNamespace.COLUMNS} FROM removed_namespaces
    WHERE top AND (removed_at, id) < (?, ?) AND id IN (SELECT id FROM down)
    ORDER BY removed_at DESC, id DESC LIMIT ?
"""

JOBS = f"""
    WITH RECURSIVE mine (kind, id) AS MATERIALIZED (
        SELECT kind, object_id FROM grants
        WHERE grantee IN ({{grantees}}) AND kind <> 'server' AND (privileges & ?) <> 0
    ){WITH_DESCENDANTS}
    SELECT {TransactionRecord.COLUMNS} FROM transactions
    WHERE {{matching}} AND (created_at, id) < (?, ?) AND (
        asked_by = ? OR EXISTS (
            SELECT 1 FROM tables WHERE tables.id = transactions.table_id AND (
                tables.id IN (SELECT id FROM mine WHERE kind = 'table') OR namespace_id IN (SELECT id FROM down)
            )
        )
    )
    ORDER BY created_at DESC, id DESC LIMIT ?
"""


class Visibility(Repository):
    """The methods for the objects visible to some grantees."""

    __slots__ = ()

    @reads
    def has_grant_at_or_below(self, namespace_id: int, grantees: Sequence[str]) -> bool:
        """Return whether there is a grant on a namespace or on anything in it."""
        for sql in (HAS_GRANTED_TABLE, IS_PARENT):  # the first is the usual case, and cheaper
            if self.connection.row(sql.format(grantees=placeholders(grantees)), *grantees, namespace_id) is not None:
                return True
        return False

    @reads
    def count_grants(self, grantees: Sequence[str], limit: int) -> int:
        """Return the number of grants to any of the grantees, counted up to `limit`."""
        row = self.connection.row(COUNT.format(grantees=placeholders(grantees)), *grantees, limit)
        return int(row[0]) if row else 0

    @reads
    def visible_namespaces(
        self, namespace_id: int, grantees: Sequence[str], after: str | None, limit: int
    ) -> list[str]:
        """Return up to `limit` names of children with a grant on them or on anything in them, those after `after`."""
        sql = NAMESPACES.format(grantees=placeholders(grantees))
        return [row[0] for row in self.connection.rows(sql, *grantees, namespace_id, after or "", limit)]

    @reads
    def visible_tables(
        self,
        namespace_id: int,
        grantees: Sequence[str],
        after: str | None,
        limit: int,
        include_declared: bool = True,
    ) -> list[str]:
        """Return up to `limit` names of tables in a namespace with a grant of their own, those after `after`."""
        sql = TABLES.format(grantees=placeholders(grantees))
        values = namespace_id, after or "", include_declared, limit
        return [row[0] for row in self.connection.rows(sql, *grantees, *values)]

    @reads
    def all_visible_tables(
        self, grantees: Sequence[str], after: tuple[int, str] | None, limit: int, include_declared: bool = True
    ) -> list[ListedTable]:
        """Return up to `limit` tables with a grant on them or an ancestor, as `list_all_tables` does."""
        page = *(after or (0, "")), include_declared, limit
        sql = ALL_TABLES.format(grantees=placeholders(grantees))
        return read_listed_tables(self.connection.rows(sql, *grantees, *page, *page, limit))

    @reads
    def visible_jobs(
        self,
        grantees: Sequence[str],
        privileges: int,
        requested_by: str,
        matching: JobFilter,
        before: tuple[int, str] | None,
        limit: int,
    ) -> list[TransactionRecord]:
        """Return jobs as `list_jobs` does: those of `requested_by`, or with one of the privileges on the table."""
        conditions, matched = matching.conditions()
        sql = JOBS.format(grantees=placeholders(grantees), matching=conditions)
        values = privileges, *matched, *(before or NEWEST_JOB), requested_by, limit
        return [TransactionRecord.of(row) for row in self.connection.rows(sql, *grantees, *values)]

    @reads
    def visible_removed_tables(
        self, grantees: Sequence[str], privileges: int, before: tuple[int, int] | None, limit: int
    ) -> list[RemovedTable]:
        """Return removed tables as `list_removed_tables` does, those with one of the privileges granted on them."""
        sql = REMOVED_TABLES.format(grantees=placeholders(grantees))
        rows = self.connection.rows(sql, *grantees, privileges, *(before or NEWEST_REMOVAL), limit)
        return [RemovedTable.of(row) for row in rows]

    @reads
    def visible_removed_namespaces(
        self, grantees: Sequence[str], privileges: int, before: tuple[int, int] | None, limit: int
    ) -> list[RemovedNamespace]:
        """Return removed namespaces as `list_removed_namespaces` does, those with one of the privileges granted."""
        sql = REMOVED_NAMESPACES.format(grantees=placeholders(grantees))
        rows = self.connection.rows(sql, *grantees, privileges, *(before or NEWEST_REMOVAL), limit)
        return [RemovedNamespace.of(row) for row in rows]
