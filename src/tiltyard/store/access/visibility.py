"""Pages of the objects visible to a principal with grants on some, read from the grants rather than by a filter.

An object is visible with any privilege on it or on an ancestor; a namespace also, by its name alone, if an object in it
is visible. Grantees are the names a principal has: its own, its groups', its roles'.
"""

# ruff: noqa: S608 - only constants of the code are put into SQL, never values

from __future__ import annotations

from typing import TYPE_CHECKING

from tiltyard.store.backend import Row
from tiltyard.store.jobs.jobs import NEWEST as NEWEST_JOB
from tiltyard.store.records import RemovedNamespace, RemovedTable, TransactionRecord
from tiltyard.store.repository import Repository, placeholders, reads
from tiltyard.store.tables.lookup import WITH_ANCESTORS, ListedTable, planned_limit, read_listed_tables
from tiltyard.store.tables.trash import NEWEST as NEWEST_REMOVAL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tiltyard.store.jobs.jobs import JobFilter

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
        GROUP BY grants.namespace_id, table_name ORDER BY grants.namespace_id, table_name LIMIT {limit}
    ) granted
"""
TABLES_IN_NAMESPACE = GRANTED_TABLES.replace("{place}", "grants.namespace_id = ? AND table_name > ?")
TABLES_IN_CATALOG = GRANTED_TABLES.replace("{place}", "(grants.namespace_id, table_name) > (?, ?)")
# A subquery hides the grantee from PostgreSQL's planner, so that a plan for any grantee looks as good as one for this.
TABLES_OF_GRANTEE = TABLES_IN_CATALOG.replace("IN ({grantees})", "= (SELECT CAST(? AS TEXT))")
MAX_SELECTS = 16
"""Up to so many grantees have a select each, which ends with the page; for more, all their grants there are sorted."""
TABLES = "SELECT table_name FROM ({granted}) found ORDER BY 1 LIMIT ?"
# A grantee's namespaces say where to look (`granted_namespaces`), the grants whether there is one: on a namespace, or
# on a table directly in it.
HAS_GRANT = """
    (SELECT count(*) FROM grants WHERE grantee = here.grantee AND kind = 'namespace' AND object_id = {namespace}) > 0
    OR (
        SELECT 1 FROM grants WHERE grantee = here.grantee AND kind = 'table'
            AND grants.namespace_id = {namespace} AND table_name >= ''
            AND (SELECT tables.namespace_id FROM tables WHERE tables.id = object_id) = grants.namespace_id LIMIT 1
    ) = 1
"""
HAS_GRANT_DOWN = f"""(
    WITH RECURSIVE down (id) AS (SELECT here.namespace_id UNION ALL {{step}})
    SELECT 1 FROM down WHERE {HAS_GRANT.format(namespace="down.id")} LIMIT 1
) = 1"""
# Nearly always the first namespace of each level leads to a grant. Where the last grant in that one is gone, all are
# searched; BETWEEN has PostgreSQL look up each of them, for = it would read all namespaces of the grantee.
FIRST_BELOW = """
    SELECT (
        SELECT below.namespace_id FROM granted_namespaces below
        WHERE below.grantee = here.grantee AND below.parent_id = down.id ORDER BY below.name LIMIT 1
    ) FROM down WHERE down.id IS NOT NULL
"""
ALL_BELOW = """
    SELECT below.namespace_id FROM down CROSS JOIN granted_namespaces below
    WHERE below.grantee = here.grantee AND below.parent_id BETWEEN down.id AND down.id
"""
IS_VISIBLE = f"""
    SELECT 1 FROM granted_namespaces here
    WHERE here.namespace_id = {{namespace}} AND here.grantee IN ({{grantees}})
        AND ({HAS_GRANT_DOWN.format(step=FIRST_BELOW)} OR {HAS_GRANT_DOWN.format(step=ALL_BELOW)})
    LIMIT 1
"""
NAMESPACES_OF_GRANTEE = """
    SELECT * FROM (
        SELECT min(namespace_id) AS namespace_id, name FROM granted_namespaces
        WHERE grantee IN ({grantees}) AND parent_id = ? AND name > ? GROUP BY name ORDER BY name LIMIT ?
    ) page
"""
NAMESPACES = """
    SELECT name, ({visible}) FROM (SELECT namespace_id, name FROM ({page}) pages ORDER BY name LIMIT ?) page
    ORDER BY name
"""
COUNT = "SELECT count(*) FROM (SELECT 1 FROM grants WHERE grantee IN ({grantees}) LIMIT ?) found"
WITH_DESCENDANTS = """, down (id) AS (
        SELECT id FROM mine WHERE kind = 'namespace'
        UNION SELECT namespaces.id FROM down CROSS JOIN namespaces WHERE namespaces.parent_id = down.id
    )
"""
# Namespaces with a grant on them or above them: each is reached once, from the nearest one with a grant, so that there
# are no duplicates to remove. BETWEEN as in ALL_BELOW.
INHERITING = """
    WITH RECURSIVE inheriting (id) AS (
        SELECT DISTINCT object_id FROM (VALUES {grantee_rows}) own CROSS JOIN grants
        WHERE grantee = own.column1 AND kind = 'namespace'
        UNION ALL
        SELECT namespaces.id FROM inheriting CROSS JOIN namespaces
        WHERE namespaces.parent_id BETWEEN inheriting.id AND inheriting.id AND (
            SELECT count(*) FROM grants
            WHERE grantee IN ({grantees}) AND kind = 'namespace' AND object_id = namespaces.id
        ) = 0
    )
"""
COUNT_INHERITING = f"{INHERITING} SELECT count(*) FROM (SELECT 1 FROM inheriting LIMIT ?) found"
# In three parts: tables with a grant of their own; the rest of the namespace where the last page ended, if it inherits;
# the later namespaces that inherit. All are read by an index, which PostgreSQL uses for an array, but not surely for a
# subquery.
ALL_TABLES = f"""{INHERITING}, later (id) AS (SELECT id FROM inheriting WHERE id > ?), page (namespace_id, name) AS (
        {{granted}}
        {{rest}}
        UNION
        SELECT * FROM (
            SELECT namespace_id, name FROM tables
            WHERE (namespace_id /*+ = ANY (ARRAY(SELECT id FROM later)) OR FALSE AND namespace_id */
                IN (SELECT id FROM later)) AND (? OR NOT declared) AND mount_id IS NULL
            ORDER BY namespace_id, name LIMIT {{limit}}
        ) inherited
        ORDER BY 1, 2 LIMIT ?
    ){WITH_ANCESTORS}
"""
REST_OF_NAMESPACE = """
        UNION
        SELECT * FROM (
            SELECT namespace_id, name FROM tables
            WHERE namespace_id = ? AND name > ? AND (SELECT count(*) FROM inheriting WHERE id = ?) > 0
                AND (? OR NOT declared) AND mount_id IS NULL
            ORDER BY namespace_id, name LIMIT {limit}
        ) rest
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
        sql = IS_VISIBLE.format(namespace="?", grantees=placeholders(grantees))
        return self.connection.row(sql, namespace_id, *grantees) is not None

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
        names: list[str] = []
        while len(names) < limit:
            sql, values = _page_of_namespaces(namespace_id, grantees, after or "", limit)
            rows = self.connection.rows(sql, *values)
            names += [name for name, is_visible in rows if is_visible]
            if len(rows) < limit:
                break
            after = rows[-1][0]
        return names[:limit]

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
        page = namespace_id, after or "", include_declared, True, limit
        granted, values = _for_each(grantees, TABLES_IN_NAMESPACE, page)
        return [row[0] for row in self.connection.rows(TABLES.format(granted=granted), *values, limit)]

    @reads
    def all_visible_tables(
        self, grantees: Sequence[str], after: tuple[int, str] | None, limit: int, include_declared: bool = True
    ) -> list[ListedTable]:
        """Return up to `limit` tables with a grant on them or an ancestor, as `list_all_tables` does."""
        sql, values = _page_of_all_tables(grantees, after, limit, include_declared)
        return read_listed_tables(self.connection.rows(sql, *values))

    @reads
    def count_inheriting_namespaces(self, grantees: Sequence[str], limit: int) -> int:
        """Return the number of namespaces with a grant on them or above them, counted up to `limit`."""
        sql = COUNT_INHERITING.format(grantee_rows=_rows_of(grantees), grantees=placeholders(grantees))
        row = self.connection.row(sql, *grantees, *grantees, limit)
        return int(row[0]) if row else 0

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
        conditions, matched = matching.conditions(self._clock())
        sql = JOBS.format(grantees=placeholders(grantees), matching=conditions)
        values = privileges, *matched, *(before or NEWEST_JOB), requested_by, limit
        return [TransactionRecord.of(row) for row in self.connection.rows(sql, *grantees, *values)]

    @reads
    def visible_removed_tables(
        self, grantees: Sequence[str], privileges: int, before: tuple[int, int] | None, limit: int
    ) -> list[RemovedTable]:
        """Return removed tables as `list_removed_tables` does, those with one of the privileges granted on them."""
        return [RemovedTable.of(row) for row in self._removals(REMOVED_TABLES, grantees, privileges, before, limit)]

    @reads
    def visible_removed_namespaces(
        self, grantees: Sequence[str], privileges: int, before: tuple[int, int] | None, limit: int
    ) -> list[RemovedNamespace]:
        """Return removed namespaces as `list_removed_namespaces` does, those with one of the privileges granted."""
        rows = self._removals(REMOVED_NAMESPACES, grantees, privileges, before, limit)
        return [RemovedNamespace.of(row) for row in rows]

    def _removals(
        self, sql: str, grantees: Sequence[str], privileges: int, before: tuple[int, int] | None, limit: int
    ) -> list[Row]:
        values = privileges, *(before or NEWEST_REMOVAL), limit
        return self.connection.rows(sql.format(grantees=placeholders(grantees)), *grantees, *values)


def _page_of_namespaces(namespace_id: int, grantees: Sequence[str], after: str, limit: int) -> tuple[str, list[object]]:
    """Return SQL for a page of the children where grants of some grantees may be, and whether they are; its values."""
    page, values = _for_each(grantees, NAMESPACES_OF_GRANTEE, (namespace_id, after, limit))
    visible = IS_VISIBLE.format(namespace="page.namespace_id", grantees=placeholders(grantees))
    return NAMESPACES.format(visible=visible, page=page), [*grantees, *values, limit]


def _page_of_all_tables(
    grantees: Sequence[str], after: tuple[int, str] | None, limit: int, include_declared: bool
) -> tuple[str, list[object]]:
    """Return SQL for a page of the tables with a grant of some grantees on them or above them, and its values."""
    namespace_id, name = after or (0, "")
    in_text = str(planned_limit(limit))
    select = TABLES_OF_GRANTEE if len(grantees) <= MAX_SELECTS else TABLES_IN_CATALOG
    granted, values = _for_each(grantees, select, (namespace_id, name, include_declared, False), in_text)
    rest = ""
    if after:
        rest = REST_OF_NAMESPACE.format(limit=in_text)
        values += [namespace_id, name, namespace_id, include_declared]
    sql = ALL_TABLES.format(
        grantee_rows=_rows_of(grantees), grantees=placeholders(grantees), granted=granted, rest=rest, limit=in_text
    )
    return sql, [*grantees, *grantees, namespace_id, *values, include_declared, limit]


def _rows_of(grantees: Sequence[str]) -> str:
    """Return a row with a placeholder for each grantee, as VALUES takes them."""
    return ", ".join(["(?)"] * len(grantees))


def _for_each(
    grantees: Sequence[str], select: str, values: Sequence[object], limit: str = "?"
) -> tuple[str, list[object]]:
    """Return the UNION of a select of a page for each of some grantees, whose values come first, and all values."""
    parts = [(grantee,) for grantee in grantees] if len(grantees) <= MAX_SELECTS else [tuple(grantees)]
    selects = [select.format(grantees=placeholders(part), limit=limit) for part in parts]
    return " UNION ".join(selects), [value for part in parts for value in (*part, *values)]
