"""Grants: which privileges a grantee has on an object. Every change counts the generation `grants` up, but one.

That is the grant to an object's creator. Objects are named by the kind and id of their record: 'server' (0),
'namespace', 'table'. Privileges are a bit mask, opaque to the store; no bit is no grant.
"""

# ruff: noqa: S608 - only constants of the code are put into SQL, never values

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from tiltyard.store.repository import GRANTS_GENERATION, Record, Repository, count_up, placeholders, reads, writes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tiltyard.store.backend import Connection
    from tiltyard.store.repository import Path

SERVER, NAMESPACE, TABLE = "server", "namespace", "table"

ADD = """
    INSERT INTO grants (grantee, kind, object_id, privileges, granted_by, granted_at) VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (grantee, kind, object_id) DO UPDATE SET privileges = grants.privileges | excluded.privileges,
        granted_by = excluded.granted_by, granted_at = excluded.granted_at
"""
# The locks make a grant and a move of its table wait for each other.
PLACE = """
    UPDATE grants SET
        namespace_id = (SELECT tables.namespace_id FROM tables WHERE tables.id = object_id /*+ FOR KEY SHARE */),
        table_name = (SELECT tables.name FROM tables WHERE tables.id = object_id /*+ FOR KEY SHARE */)
    WHERE kind = 'table' AND {which}
"""
# Up to the first namespace that is there: those above it are, too. The lock makes a grant and a drop of a namespace
# wait for each other.
IS_NEW = """
    NOT EXISTS (SELECT 1 FROM granted_namespaces old WHERE old.namespace_id = up.id AND old.grantee = up.grantee)
"""
ADD_NAMESPACES = f"""
    WITH RECURSIVE up (grantee, id) AS (
        SELECT grantee, {{namespace}} FROM grants WHERE kind = '{{kind}}' AND {{which}}
        UNION
        SELECT up.grantee, namespaces.parent_id FROM up JOIN namespaces ON namespaces.id = up.id
        WHERE namespaces.parent_id IS NOT NULL AND {IS_NEW}
    )
    INSERT INTO granted_namespaces (namespace_id, grantee, parent_id, name)
    SELECT namespaces.id, up.grantee, namespaces.parent_id, namespaces.name
    FROM up JOIN namespaces ON namespaces.id = up.id
    WHERE {IS_NEW} /*+ FOR KEY SHARE OF namespaces */
    ON CONFLICT (namespace_id, grantee) DO NOTHING
"""
KEEP_ONLY = "UPDATE grants SET privileges = privileges & ? WHERE grantee = ? AND kind = ? AND object_id = ?"
DROP_EMPTY = "DELETE FROM grants WHERE grantee = ? AND kind = ? AND object_id = ? AND privileges = 0"
ON_OBJECT = "SELECT privileges FROM grants WHERE kind = ? AND object_id = ? AND grantee IN ({grantees})"
# A namespace and its ancestors. A dropped one in the trash still has its parent.
ANCESTORS = """
    WITH RECURSIVE up (id) AS (
        SELECT CAST(? AS BIGINT)
        UNION ALL
        SELECT COALESCE(here.parent_id, gone.parent_id)
        FROM up LEFT JOIN namespaces here ON here.id = up.id LEFT JOIN removed_namespaces gone ON gone.id = up.id
        WHERE COALESCE(here.parent_id, gone.parent_id) IS NOT NULL
    )
"""
ON_ANCESTORS = f"""{ANCESTORS}
    SELECT privileges FROM grants
    WHERE kind = 'namespace' AND object_id IN (SELECT id FROM up) AND grantee IN ({{grantees}})
"""


class GrantRecord(Record, frozen=True):
    """The privileges of one grantee on one object; `granted_by` is the principal who changed them last."""

    grantee: str
    kind: str
    object_id: int
    privileges: int
    granted_by: str
    granted_at: int


# The names from an object up to the root.
PATH = """
    WITH RECURSIVE up (id, name, height) AS (
        SELECT parent_id, name, 1 FROM namespaces WHERE id = ?
        UNION ALL SELECT above.parent_id, above.name, up.height + 1 FROM up JOIN namespaces above ON above.id = up.id
    )
    SELECT name FROM up WHERE id IS NOT NULL ORDER BY height DESC
"""
TABLE_NAME = "SELECT namespace_id, name FROM tables WHERE id = ?"
NAMESPACE_EXISTS = "SELECT 1 FROM namespaces WHERE id = ?"
LIST_ON = f"""
    SELECT {GrantRecord.COLUMNS} FROM grants WHERE kind = ? AND object_id = ? AND grantee > ?
    ORDER BY grantee LIMIT ?
"""
LIST_ALL = f"""
    SELECT {GrantRecord.COLUMNS} FROM grants WHERE (kind, object_id, grantee) > (?, ?, ?)
    ORDER BY kind, object_id, grantee LIMIT ?
"""
LIST_TO = f"""
    SELECT {GrantRecord.COLUMNS} FROM grants WHERE grantee = ? AND (kind, object_id) > (?, ?)
    ORDER BY kind, object_id LIMIT ?
"""
DELETE = (
    "DELETE FROM grants WHERE kind = '{kind}' AND object_id IN ({ids})",
    "DELETE FROM protections WHERE object_kind = '{kind}' AND object_id IN ({ids})",
)
_TABLE_DEPENDENTS = (
    "policies",
    "views",
    "column_refreshes",
    "deleted_versions",
    "lineage",
    "schedules",
    "schedule_sources",
    "table_tests",
    "max_ages",
    "table_usage",
)
DELETE_OF_NAMESPACES = (
    "DELETE FROM classifications WHERE kind = 'namespace' AND object_id IN ({ids})",
    *(
        f"DELETE FROM {name} WHERE namespace_id IN ({{ids}})"
        for name in ("named_secrets", "functions", "schedules", "quotas")
    ),
)
DELETE_OF_TABLES = (
    """
        DELETE FROM classifications WHERE kind = 'column' AND object_id IN (
            SELECT id FROM classified_columns WHERE table_id IN ({ids}) AND NOT EXISTS (
                SELECT 1 FROM lineage_sources WHERE lineage_sources.table_id = classified_columns.table_id
            )
        )
    """,
    """
        DELETE FROM classified_columns WHERE table_id IN ({ids})
        AND NOT EXISTS (SELECT 1 FROM lineage_sources WHERE lineage_sources.table_id = classified_columns.table_id)
    """,
    """
        DELETE FROM classifications WHERE kind = 'table' AND object_id IN ({ids})
        AND NOT EXISTS (SELECT 1 FROM lineage_sources WHERE lineage_sources.table_id = object_id)
    """,
    *(f"DELETE FROM {name} WHERE table_id IN ({{ids}})" for name in _TABLE_DEPENDENTS),
)
"""Classifications stay as long as lineage tells of tables that were made from this one, which inherit them."""


@dataclass(frozen=True, slots=True)
class Creator:
    """The principal who creates an object, and the privileges that it gets on it, as bits."""

    name: str
    privileges: int


def grant_to_creator(connection: Connection, kind: str, object_id: int, creator: Creator | None, now: int) -> None:
    """Grant the creator of an object its privileges on it, in the transaction that creates it.

    No server can have cached grants on an id that did not exist, so no generation is counted up.
    """
    if creator is not None:
        grantee = f"principal:{creator.name}"
        connection.change(ADD, grantee, kind, object_id, creator.privileges, creator.name, now)
        place_grants(connection, kind, "object_id = ? AND grantee = ?", object_id, grantee)


def place_grants(connection: Connection, kind: str, which: str, *values: object) -> None:
    """Record where the objects of grants are, for lists: whoever adds a grant or moves an object calls this.

    `which` is SQL that selects grants of the kind.
    """
    if kind == TABLE:
        connection.change(PLACE.format(which=which), *values)
    namespace = "namespace_id" if kind == TABLE else "object_id"
    connection.change(ADD_NAMESPACES.format(kind=kind, namespace=namespace, which=which), *values)


def delete_dependents(connection: Connection, kind: str, ids: str, *values: object) -> None:
    """Delete what depends on objects that are gone for good: their grants and protections, policies and more of tables,
    functions, secrets and schedules of namespaces.

    `ids` is SQL that yields the objects' ids.
    """
    for statement in DELETE:
        connection.change(statement.format(kind=kind, ids=ids), *values)
    for statement in {TABLE: DELETE_OF_TABLES, NAMESPACE: DELETE_OF_NAMESPACES}[kind]:
        connection.change(statement.format(ids=ids), *values)


class Grants(Repository):
    """The methods for grants. `grantees` are the names a principal has: its own, its groups', its roles'."""

    __slots__ = ()

    @writes
    def grant(self, grantee: str, kind: str, object_id: int, privileges: int, by: str) -> None:
        """Grant privileges on an object, besides those that the grantee has."""
        self.connection.change(ADD, grantee, kind, object_id, privileges, by, self._clock())
        if kind != SERVER:
            place_grants(self.connection, kind, "object_id = ? AND grantee = ?", object_id, grantee)
        count_up(self.connection, GRANTS_GENERATION)

    @writes
    def revoke(self, grantee: str, kind: str, object_id: int, remaining: int) -> bool:
        """Revoke from a grantee all privileges on an object but the bits of `remaining`; return whether it had any."""
        had_any = self.connection.change(KEEP_ONLY, remaining, grantee, kind, object_id) == 1
        self.connection.change(DROP_EMPTY, grantee, kind, object_id)
        count_up(self.connection, GRANTS_GENERATION)
        return had_any

    @reads
    def privileges_on(self, kind: str, object_id: int, grantees: Sequence[str]) -> int:
        """Return the privileges granted on the object itself to any of the grantees, as bits."""
        rows = self.connection.rows(ON_OBJECT.format(grantees=placeholders(grantees)), kind, object_id, *grantees)
        return reduce(or_, (row[0] for row in rows), 0)

    @reads
    def privileges_above(self, namespace_id: int, grantees: Sequence[str]) -> int:
        """Return the privileges granted on a namespace or an ancestor to any of the grantees, as bits."""
        rows = self.connection.rows(ON_ANCESTORS.format(grantees=placeholders(grantees)), namespace_id, *grantees)
        return reduce(or_, (row[0] for row in rows), 0)

    @reads
    def grants_on(self, kind: str, object_id: int, after: str | None, limit: int) -> list[GrantRecord]:
        """Return up to `limit` grants on an object, by grantee, those after `after`."""
        rows = self.connection.rows(LIST_ON, kind, object_id, after or "", limit)
        return [GrantRecord.of(row) for row in rows]

    @reads
    def all_grants(self, after: tuple[str, int, str] | None, limit: int) -> list[GrantRecord]:
        """Return up to `limit` grants by (kind, id, grantee), those after `after`."""
        rows = self.connection.rows(LIST_ALL, *(after or ("", 0, "")), limit)
        return [GrantRecord.of(row) for row in rows]

    @reads
    def grants_to(self, grantee: str, after: tuple[str, int] | None, limit: int) -> list[GrantRecord]:
        """Return up to `limit` grants of a grantee, by (kind, id), those after `after`."""
        rows = self.connection.rows(LIST_TO, grantee, *(after or ("", 0)), limit)
        return [GrantRecord.of(row) for row in rows]

    @reads
    def object_path(self, kind: str, object_id: int) -> Path | None:
        """Return the path of an object by its id: () for the server, None if there is no such object (any more)."""
        return find_object_path(self.connection, kind, object_id)


def find_object_path(connection: Connection, kind: str, object_id: int) -> Path | None:
    """Return what `Grants.object_path` does."""
    if kind == SERVER:
        return ()
    namespace: int = object_id
    table_name: Path = ()
    if kind == TABLE:
        row = connection.row(TABLE_NAME, object_id)
        if row is None:
            return None
        namespace, table_name = row[0], (row[1],)
    elif connection.row(NAMESPACE_EXISTS, object_id) is None:
        return None
    return (*(row[0] for row in connection.rows(PATH, namespace)), *table_name)
