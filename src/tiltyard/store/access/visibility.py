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
        UNION SELECT (SELECT parent_id FROM namespaces WHERE namespaces.id = up.id) FROM up WHERE id IS NOT NULL
    )
"""
IS_PARENT = f"{WITH_PARENTS} SELECT 1 FROM up WHERE id = ?"
NAMESPACES = f"""{WITH_PARENTS}
    SELECT name FROM up CROSS JOIN namespaces
    WHERE namespaces.id = up.id AND parent_id = ? AND name > ? ORDER BY name LIMIT ?
"""
# The grants say where tables are, so that an index of them has those of a page in order; the tables themselves decide.
# In a subquery with one value that is not null, as PostgreSQL expects of most: for a join, EXISTS or a comparison it
# would read all grants, or all tables.
GRANTED_TABLES = """
    SELECT * FROM (
        SELECT grants.namespace_id, table_name FROM grants
        WHERE grantee IN ({grantees}) AND kind = 'table' AND {place} AND (
            SELECT 1 FROM tables WHERE tables.id = object_id AND tables.namespace_id = grants.namespace_id
                AND tables.name = table_name AND (? OR NOT declared) AND (? OR mount_id IS NULL)
        ) IS NOT NULL
        GROUP BY grants.namespace_id, table_name ORDER BY grants.namespace_id, table_name LIMIT ?
    ) granted
"""
IN_NAMESPACE = "grants.namespace_id = ? AND table_name > ?"
IN_CATALOG = "(grants.namespace_id, table_name) > (?, ?)"
MOST_SELECTS = 16
"""Up to so many grantees have a select each, which ends with the page; for more, all their grants there are sorted."""
TABLES = "SELECT table_name FROM ({granted}) found ORDER BY 1 LIMIT ?"
HAS_GRANTED_TABLE = """
    SELECT 1 FROM grants
    WHERE grantee IN ({grantees}) AND kind = 'table' AND grants.namespace_id = ? AND table_name >= ''
        AND (SELECT tables.namespace_id FROM tables WHERE tables.id = object_id) = grants.namespace_id LIMIT 1
"""
# Whether a namespace is visible, from itself rather than from the grants: by a grant on it or on a table in it, or on a
# child or on a table in one, of so many at most. UNDECIDED if there may be one further down.
HIDDEN, VISIBLE, UNDECIDED = 0, 1, 2
_HAS_GRANT = """(
    SELECT count(*) FROM grants WHERE grantee IN ({grantees}) AND kind = 'namespace' AND object_id = NAMESPACE.id
) > 0 OR (
    SELECT 1 FROM grants WHERE grantee IN ({grantees}) AND kind = 'table'
        AND grants.namespace_id = NAMESPACE.id AND table_name >= ''
        AND (SELECT tables.namespace_id FROM tables WHERE tables.id = object_id) = grants.namespace_id LIMIT 1
) = 1"""


def _visibility(most: int) -> str:
    """Return SQL for the visibility of the namespace `here`, which looks at so many of its children at most."""
    children = f"(SELECT id FROM namespaces WHERE parent_id = here.id LIMIT {most}) child"
    return f"""CASE
        WHEN {_HAS_GRANT.replace("NAMESPACE", "here")} THEN {VISIBLE}
        WHEN (SELECT 1 FROM {children} WHERE {_HAS_GRANT.replace("NAMESPACE", "child")} LIMIT 1) = 1 THEN {VISIBLE}
        WHEN (SELECT count(*) FROM {children}) = {most} THEN {UNDECIDED}
        WHEN (SELECT 1 FROM {children} WHERE (SELECT 1 FROM namespaces WHERE parent_id = child.id LIMIT 1) = 1 LIMIT 1)
            = 1 THEN {UNDECIDED}
        ELSE {HIDDEN} END
    """


_GRANTEE_LISTS = 4
"""How often `_visibility` has the grantees."""
VISIBILITY_OF = f"SELECT {_visibility(1_000)} FROM namespaces here WHERE id = ?"
VISIBILITY_OF_CHILDREN = f"""
    SELECT name, {_visibility(16)} FROM namespaces here WHERE parent_id = ? AND name > ? ORDER BY name LIMIT ?
"""
LOOKED_AT, MOST_LOOKED_AT = 100, 2_000
"""Children that one statement looks at, and those that a page is sought among: past that, the grants take less time."""
COUNT = "SELECT count(*) FROM (SELECT 1 FROM grants WHERE grantee IN ({grantees}) LIMIT ?) found"
WITH_DESCENDANTS = """, down (id) AS (
        SELECT id FROM mine WHERE kind = 'namespace'
        UNION SELECT namespaces.id FROM down CROSS JOIN namespaces WHERE namespaces.parent_id = down.id
    )
"""
GRANTED_NAMESPACES = """
    WITH RECURSIVE mine (kind, id) AS MATERIALIZED (
        SELECT DISTINCT kind, object_id FROM grants WHERE grantee IN ({grantees}) AND kind = 'namespace'
    )
"""
ALL_TABLES = f"""{GRANTED_NAMESPACES}{WITH_DESCENDANTS}, page (namespace_id, name) AS (
        {{granted}}
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
    def has_grant_at_or_below(self, namespace_id: int, grantees: Sequence[str], *, few_grants: bool) -> bool:
        """Return whether there is a grant on a namespace or on anything in it.

        Where there are not `few_grants` to the grantees, it is sought from the namespace down first.
        """
        if not few_grants:
            sql = VISIBILITY_OF.format(grantees=placeholders(grantees))
            row = self.connection.row(sql, *(*grantees,) * _GRANTEE_LISTS, namespace_id)
            if row is None or row[0] != UNDECIDED:
                return row is not None and row[0] == VISIBLE
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
        self, namespace_id: int, grantees: Sequence[str], after: str | None, limit: int, *, few_grants: bool
    ) -> list[str]:
        """Return up to `limit` names of children with a grant on them or on anything in them, those after `after`.

        They are read from the grants if there are `few_grants` to the grantees, else sought among the children first.
        """
        names, place = ([], after or "") if few_grants else self._seek(namespace_id, grantees, after or "", limit)
        if place is None:
            return names
        sql = NAMESPACES.format(grantees=placeholders(grantees))
        rows = self.connection.rows(sql, *grantees, namespace_id, place, limit - len(names))
        return names + [row[0] for row in rows]

    def _seek(self, namespace_id: int, grantees: Sequence[str], after: str, limit: int) -> tuple[list[str], str | None]:
        """Return names of visible children, and the name after which the grants have to say more; None: all are there.

        It stops at the first child that is undecided, and after MOST_LOOKED_AT of them.
        """
        sql = VISIBILITY_OF_CHILDREN.format(grantees=placeholders(grantees))
        names: list[str] = []
        for _ in range(MOST_LOOKED_AT // LOOKED_AT):
            rows = self.connection.rows(sql, *(*grantees,) * _GRANTEE_LISTS, namespace_id, after, LOOKED_AT)
            for name, visibility in rows:
                if visibility == UNDECIDED:
                    return names, after
                after = name
                if visibility == VISIBLE:
                    names.append(name)
                    if len(names) == limit:
                        return names, None
            if len(rows) < LOOKED_AT:
                return names, None
        return names, after

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
        granted, values = _granted_tables(
            grantees, IN_NAMESPACE, (namespace_id, after or "", include_declared, True, limit)
        )
        return [row[0] for row in self.connection.rows(TABLES.format(granted=granted), *values, limit)]

    @reads
    def all_visible_tables(
        self, grantees: Sequence[str], after: tuple[int, str] | None, limit: int, include_declared: bool = True
    ) -> list[ListedTable]:
        """Return up to `limit` tables with a grant on them or an ancestor, as `list_all_tables` does."""
        place = after or (0, "")
        granted, values = _granted_tables(grantees, IN_CATALOG, (*place, include_declared, False, limit))
        sql = ALL_TABLES.format(grantees=placeholders(grantees), granted=granted)
        inherited = *place, include_declared, limit
        return read_listed_tables(self.connection.rows(sql, *grantees, *values, *inherited, limit))

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


def _granted_tables(grantees: Sequence[str], place: str, page: Sequence[object]) -> tuple[str, list[object]]:
    """Return SQL for a page of the (namespace id, name) of tables granted to any of the grantees, and its values."""
    parts = [(grantee,) for grantee in grantees] if len(grantees) <= MOST_SELECTS else [tuple(grantees)]
    selects = [GRANTED_TABLES.format(grantees=placeholders(part), place=place) for part in parts]
    return " UNION ".join(selects), [value for part in parts for value in (*part, *page)]
