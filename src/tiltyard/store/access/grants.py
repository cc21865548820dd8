"""Grants: which privileges somebody has on an object. Every change but that of a creator counts `grants` up.

Objects are named by kind and id of their record: 'server' (0), 'namespace', 'table'. Privileges are bits, whose
meaning is not the store's business; no bit is no grant.
"""

# ruff: noqa: S608 - only constants of the code are put into SQL, never values

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from tiltyard.store.access.generations import COUNT_UP
from tiltyard.store.access.roles import GRANTS_GENERATION
from tiltyard.store.connection_scope import Scope, reads, writes
from tiltyard.store.paths import among

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tiltyard.store.backend import Connection
    from tiltyard.store.records import Path

SERVER, NAMESPACE, TABLE = "server", "namespace", "table"

ADD = """
    INSERT INTO grants (grantee, kind, object_id, privileges, granted_by, granted_at) VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (grantee, kind, object_id) DO UPDATE SET privileges = grants.privileges | excluded.privileges,
        granted_by = excluded.granted_by, granted_at = excluded.granted_at
"""
KEEP_ONLY = "UPDATE grants SET privileges = privileges & ? WHERE grantee = ? AND kind = ? AND object_id = ?"
DROP_EMPTY = "DELETE FROM grants WHERE grantee = ? AND kind = ? AND object_id = ? AND privileges = 0"
ON = "SELECT privileges FROM grants WHERE kind = ? AND object_id = ? AND grantee IN ({grantees})"
# A namespace, and those above it; one that was dropped, and can be brought back, has its place still.
ABOVE = """
    WITH RECURSIVE up (id) AS (
        SELECT CAST(? AS BIGINT)
        UNION ALL
        SELECT COALESCE(here.parent_id, gone.parent_id)
        FROM up LEFT JOIN namespaces here ON here.id = up.id LEFT JOIN removed_namespaces gone ON gone.id = up.id
        WHERE COALESCE(here.parent_id, gone.parent_id) IS NOT NULL
    )
    SELECT privileges FROM grants
    WHERE kind = 'namespace' AND object_id IN (SELECT id FROM up) AND grantee IN ({grantees})
"""


@dataclass(frozen=True, slots=True)
class GrantRecord:
    """What one grantee has on one object; `granted_by` is the principal who changed it last."""

    grantee: str
    kind: str
    object_id: int
    privileges: int
    granted_by: str
    granted_at: int

    COLUMNS = "grantee, kind, object_id, privileges, granted_by, granted_at"


# The names from an object up to the root.
PATH = """
    WITH RECURSIVE up (id, name, height) AS (
        SELECT parent_id, name, 1 FROM namespaces WHERE id = ?
        UNION ALL SELECT above.parent_id, above.name, up.height + 1 FROM up JOIN namespaces above ON above.id = up.id
    )
    SELECT name FROM up WHERE id IS NOT NULL ORDER BY height DESC
"""
HOME = "SELECT namespace_id, name FROM tables WHERE id = ?"
HERE = "SELECT 1 FROM namespaces WHERE id = ?"
LIST_ON = f"""
    SELECT {GrantRecord.COLUMNS} FROM grants WHERE kind = ? AND object_id = ? AND grantee > ?
    ORDER BY grantee LIMIT ?
"""
LIST_TO = f"""
    SELECT {GrantRecord.COLUMNS} FROM grants WHERE grantee = ? AND (kind, object_id) > (?, ?)
    ORDER BY kind, object_id LIMIT ?
"""
FORGET = "DELETE FROM grants WHERE kind = '{kind}' AND object_id IN ({ids})"
_OF_TABLES = "policies", "views", "deleted_versions"
FORGET_OF_TABLES = tuple(f"DELETE FROM {kind} WHERE table_id IN ({{ids}})" for kind in _OF_TABLES)


@dataclass(frozen=True, slots=True)
class Creator:
    """The principal who creates an object, and what that gives: bits of privileges."""

    name: str
    privileges: int


def own(connection: Connection, kind: str, object_id: int, creator: Creator | None, now: int) -> None:
    """Give the creator of an object what it is to have on it, in the transaction that creates it.

    No server can have looked yet for grants on an id that nobody knew, so no generation is counted.
    """
    if creator is not None:
        connection.change(ADD, f"principal:{creator.name}", kind, object_id, creator.privileges, creator.name, now)


def forget(connection: Connection, kind: str, ids: str, *values: object) -> None:
    """Forget the grants on objects that are gone for good, and what else hangs on tables; `ids` is SQL of ids."""
    connection.change(FORGET.format(kind=kind, ids=ids), *values)
    if kind == TABLE:
        for statement in FORGET_OF_TABLES:
            connection.change(statement.format(ids=ids), *values)


class Grants(Scope):
    """The methods for grants. `grantees` are all that a principal is: itself, its groups, its roles."""

    __slots__ = ()

    @writes
    def grant(self, grantee: str, kind: str, object_id: int, privileges: int, by: str) -> None:
        """Add privileges to those that a grantee has on an object."""
        self.connection.change(ADD, grantee, kind, object_id, privileges, by, self._clock())
        self.connection.change(COUNT_UP, GRANTS_GENERATION)

    @writes
    def revoke(self, grantee: str, kind: str, object_id: int, left: int) -> bool:
        """Leave a grantee, of what it has on an object, only the bits of `left`; whether it had any."""
        had = self.connection.change(KEEP_ONLY, left, grantee, kind, object_id) == 1
        self.connection.change(DROP_EMPTY, grantee, kind, object_id)
        self.connection.change(COUNT_UP, GRANTS_GENERATION)
        return had

    @reads
    def privileges_on(self, kind: str, object_id: int, grantees: Sequence[str]) -> int:
        """Return what was granted on this very object to any of the grantees, as bits."""
        rows = self.connection.rows(ON.format(grantees=among(grantees)), kind, object_id, *grantees)
        return reduce(or_, (row[0] for row in rows), 0)

    @reads
    def privileges_above(self, namespace_id: int, grantees: Sequence[str]) -> int:
        """Return what was granted on a namespace, or on one above it, to any of the grantees, as bits."""
        rows = self.connection.rows(ABOVE.format(grantees=among(grantees)), namespace_id, *grantees)
        return reduce(or_, (row[0] for row in rows), 0)

    @reads
    def grants_on(self, kind: str, object_id: int, after: str | None, limit: int) -> list[GrantRecord]:
        """Return up to `limit` grants on an object, by grantee, behind `after`."""
        rows = self.connection.rows(LIST_ON, kind, object_id, after or "", limit)
        return [GrantRecord(*row) for row in rows]

    @reads
    def grants_to(self, grantee: str, after: tuple[str, int] | None, limit: int) -> list[GrantRecord]:
        """Return up to `limit` grants of a grantee, by kind and id, behind `after`."""
        rows = self.connection.rows(LIST_TO, grantee, *(after or ("", 0)), limit)
        return [GrantRecord(*row) for row in rows]

    @reads
    def object_path(self, kind: str, object_id: int) -> Path | None:
        """Return the names of an object by its id: () for the server, None for what is not there (any more)."""
        if kind == SERVER:
            return ()
        home: int = object_id
        last: Path = ()
        if kind == TABLE:
            row = self.connection.row(HOME, object_id)
            if row is None:
                return None
            home, last = row[0], (row[1],)
        elif self.connection.row(HERE, object_id) is None:
            return None
        return (*(row[0] for row in self.connection.rows(PATH, home)), *last)
