"""Protections of the server, of namespaces and of tables, which all below them inherit, and their checks.

A check runs in the transaction that it is for: what removes an object, or something of it, waits for a change of
protections under way, and that for it. So nothing is removed once a protection is acknowledged, by whatever way.
"""

# ruff: noqa: S608 - only constants of the code are put into SQL, never values

from __future__ import annotations

from typing import TYPE_CHECKING

from lance_namespace.errors import InvalidInputError, NamespaceNotFoundError, PermissionDeniedError, TableNotFoundError

from tiltyard.model.modes import KEPT_BY, ProtectionKind
from tiltyard.store.access.grants import ANCESTORS, NAMESPACE, SERVER, TABLE, find_object_path
from tiltyard.store.repository import (
    PROTECTIONS_GENERATION,
    ROOT,
    Record,
    Repository,
    count_up,
    display_path,
    placeholders,
    reads,
    writes,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tiltyard.store.backend import Connection
    from tiltyard.store.repository import Path

MAX_PROTECTIONS = 100_000
"""The greatest number of protections of a catalog."""


class Protection(Record, frozen=True):
    """A protection of an object, with the principal who has set it, and when (ms since 1970).

    `operation` is the one that needs approval, "" for every other kind; `removes` says that it removes its object.
    """

    object_kind: str
    object_id: int
    kind: str
    operation: str
    reason: str
    set_by: str
    set_at: int
    removes: bool = False


SET = f"""
    INSERT INTO protections ({Protection.COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (object_kind, object_id, kind, operation) DO UPDATE SET reason = excluded.reason,
        set_by = excluded.set_by, set_at = excluded.set_at, removes = excluded.removes
"""
LIFT = "DELETE FROM protections WHERE object_kind = ? AND object_id = ? AND kind = ? AND operation = ?"
COUNT = "SELECT count(*) FROM protections"
LIST = f"""
    SELECT {Protection.COLUMNS} FROM protections WHERE (object_kind, object_id, kind, operation) > (?, ?, ?, ?)
    ORDER BY object_kind, object_id, kind, operation LIMIT ?
"""
KINDS = "SELECT DISTINCT kind FROM protections"
# What changes protections counts their generation up first: a share lock of that row waits for it, and it for this.
LOCK = "SELECT number FROM generations WHERE name = 'protections' /*+ FOR SHARE */"
_ON_CHAIN = f"""
    SELECT {Protection.COLUMNS} FROM protections
    WHERE object_kind = 'server' OR object_kind = 'table' AND object_id = ?
        OR object_kind = 'namespace' AND object_id IN (SELECT id FROM up)
    ORDER BY CASE object_kind WHEN 'table' THEN 0 WHEN 'namespace' THEN 1 ELSE 2 END, object_id DESC, kind, operation
"""
ON_OBJECT = f"{ANCESTORS} {_ON_CHAIN}"
# All of a namespace and of what is below it; what is above it has been looked at.
TREE = """
    WITH RECURSIVE tree (id) AS (
        SELECT CAST(? AS BIGINT)
        UNION ALL SELECT child.id FROM namespaces child JOIN tree ON child.parent_id = tree.id
    )
"""
LOCATIONS_IN_TREE = f"{TREE} SELECT location FROM tables WHERE namespace_id IN (SELECT id FROM tree)"
IN_TREE = f"""{TREE}
    SELECT {Protection.COLUMNS} FROM protections
    WHERE object_kind = 'namespace' AND object_id IN (SELECT id FROM tree)
        OR object_kind = 'table'
            AND object_id IN (SELECT id FROM tables WHERE namespace_id IN (SELECT id FROM tree))
    ORDER BY object_kind, object_id, kind, operation
"""
PLACE_OF_TABLE = """
    SELECT namespace_id FROM tables WHERE id = ? UNION ALL SELECT namespace_id FROM removed_tables WHERE id = ?
"""
PLACES_OF_TABLES = "SELECT id, namespace_id FROM tables WHERE id IN ({ids})"
NAMESPACE_EXISTS = "SELECT id FROM namespaces WHERE id = ? UNION ALL SELECT id FROM removed_namespaces WHERE id = ?"
CHILD = "SELECT id FROM namespaces WHERE parent_id = ? AND name = ?"
TABLE_IN = "SELECT id FROM tables WHERE namespace_id = ? AND name = ?"
# Tables that can be restored at a location, and shallow clones that use its files.
_CLONES = "id IN (SELECT table_id FROM clone_sources WHERE location = ?)"
SHARING = f"""
    SELECT id, namespace_id FROM removed_tables WHERE location = ?
    UNION SELECT id, namespace_id FROM tables WHERE {_CLONES}
    UNION SELECT id, namespace_id FROM removed_tables WHERE {_CLONES}
"""
_KEPT = ", ".join(f"'{kind}'" for kind in KEPT_BY)
HAS_KEPT = f"SELECT 1 FROM protections WHERE kind IN ({_KEPT}) LIMIT 1"
IS_SERVER_READ_ONLY = "SELECT 1 FROM protections WHERE kind = 'read_only' AND object_kind = 'server'"
# What was removed and is kept, with all below it; whatever was removed last is still below what it was in.
_KEPT_TREE = f"""
    WITH RECURSIVE kept (id) AS (
        SELECT object_id FROM protections WHERE kind IN ({_KEPT}) AND object_kind = 'namespace'
        UNION
        SELECT child.id FROM kept JOIN (
            SELECT id, parent_id FROM namespaces UNION ALL SELECT id, parent_id FROM removed_namespaces
        ) child ON child.parent_id = kept.id
    )
"""
_IS_SERVER_KEPT = f"EXISTS (SELECT 1 FROM protections WHERE kind IN ({_KEPT}) AND object_kind = 'server')"
KEPT_TABLES = f"""{_KEPT_TREE}
    SELECT id, location FROM removed_tables WHERE {_IS_SERVER_KEPT} OR namespace_id IN (SELECT id FROM kept)
        OR id IN (SELECT object_id FROM protections WHERE kind IN ({_KEPT}) AND object_kind = 'table')
"""
KEPT_NAMESPACES = f"""{_KEPT_TREE}
    SELECT id FROM removed_namespaces WHERE {_IS_SERVER_KEPT} OR id IN (SELECT id FROM kept)
        OR removal IN (
            SELECT removal FROM removed_tables
            JOIN protections ON object_kind = 'table' AND object_id = removed_tables.id AND kind IN ({_KEPT})
        )
"""


def protections_on(connection: Connection, namespace_id: int, table_id: int = 0) -> list[Protection]:
    """Return the protections of a namespace, or of a table in it, with those that it inherits: its own first."""
    return [Protection.of(row) for row in connection.rows(ON_OBJECT, namespace_id, table_id)]


def refuse_removal(
    connection: Connection, what: str, namespace_id: int, table_id: int = 0, *, approved: bool = False
) -> None:
    """Raise PermissionDeniedError if a namespace, or a table in it, may not be removed: `what` is what it is called.

    With `approved`, a second principal has approved this removal.
    """
    connection.row(LOCK)
    own = (TABLE, table_id) if table_id else (NAMESPACE, namespace_id)
    for protection in protections_on(connection, namespace_id, table_id):
        if _blocks_removal(protection, approved=approved):  # its own record may be removed already
            is_own = (protection.object_kind, protection.object_id) == own
            raise protection_denial(_upper(what), protection, what if is_own else _where(connection, protection))


def refuse_tree_removal(connection: Connection, path: Path, namespace_id: int, *, approved: bool = False) -> None:
    """Raise PermissionDeniedError if a namespace, or anything in it, may not be removed."""
    refuse_removal(connection, f"the namespace {display_path(path)}", namespace_id, approved=approved)
    for row in connection.rows(IN_TREE, namespace_id):
        protection = Protection.of(row)
        is_top = (protection.object_kind, protection.object_id) == (NAMESPACE, namespace_id)
        if not is_top and _blocks_removal(protection, approved=False):
            raise _denial(connection, f"The namespace {display_path(path)}", protection)
    if connection.row(HAS_KEPT) is not None:
        for (location,) in connection.rows(LOCATIONS_IN_TREE, namespace_id):
            refuse_removal_of_files(connection, location)


def refuse_removal_of_files(connection: Connection, location: str) -> None:
    """Raise PermissionDeniedError if a folder has files of another table that is held: a removed one, or a clone."""
    if connection.row(HAS_KEPT) is None:
        return
    for table_id, namespace_id in connection.rows(SHARING, location, location, location):
        for protection in protections_on(connection, namespace_id, table_id):
            if protection.kind == ProtectionKind.HOLD:
                raise _denial(connection, "These files", protection)


def refuse_escape(connection: Connection, what: str, table_id: int, old_namespace: int, new_namespace: int) -> None:
    """Raise PermissionDeniedError if a table would leave a protection that it inherits, by a move to a namespace.

    Table 0 is none: then the old namespace is that which moves.
    """
    if old_namespace == new_namespace:
        return
    connection.row(LOCK)
    after = {_key(protection) for protection in protections_on(connection, new_namespace, table_id)}
    before = protections_on(connection, old_namespace, table_id)
    own = {(each.kind, each.operation) for each in before if (each.object_kind, each.object_id) == (TABLE, table_id)}
    for protection in before:
        if _key(protection) not in after and (protection.kind, protection.operation) not in own:
            raise _denial(connection, f"Here {what}", protection)


def refuse_change(connection: Connection, namespace_id: int, table_id: int = 0) -> None:
    """Raise PermissionDeniedError if a namespace, or a table in it, is read-only."""
    for protection in protections_on(connection, namespace_id, table_id):
        if protection.kind == ProtectionKind.READ_ONLY:
            raise _denial(connection, "", protection)


def kept_tables(connection: Connection) -> dict[int, str]:
    """Return the locations of removed tables that are kept whatever their time, by id: held, or read-only."""
    if connection.row(HAS_KEPT) is None:
        return {}
    return {row[0]: row[1] for row in connection.rows(KEPT_TABLES)}


def kept_namespaces(connection: Connection) -> list[int]:
    """Return the ids of removed namespaces that are kept likewise."""
    if connection.row(HAS_KEPT) is None:
        return []
    return [row[0] for row in connection.rows(KEPT_NAMESPACES)]


def _key(protection: Protection) -> tuple[str, int, str, str]:
    return protection.object_kind, protection.object_id, protection.kind, protection.operation


def _blocks_removal(protection: Protection, *, approved: bool) -> bool:
    if protection.kind == ProtectionKind.APPROVAL:
        return protection.removes and not approved
    return True


def _upper(what: str) -> str:
    return what[:1].upper() + what[1:]


def _denial(connection: Connection, what: str, protection: Protection) -> PermissionDeniedError:
    return protection_denial(what, protection, _where(connection, protection))


def _where(connection: Connection, protection: Protection) -> str:
    """Return the object of a protection as a message names it."""
    if protection.object_kind == SERVER:
        return "the server"
    path = find_object_path(connection, protection.object_kind, protection.object_id)
    name = f"id {protection.object_id}" if path is None else display_path(path)
    return name if not path else f"the {protection.object_kind} {name}"


def protection_denial(what: str, protection: Protection, where: str) -> PermissionDeniedError:
    """Return the error for what a protection of an object (`where`) refuses: who set it, why, and how it ends."""
    who = f"set by {protection.set_by}: {protection.reason}" if protection.reason else f"set by {protection.set_by}"
    end = f"`tiltyard protect lift {protection.kind.replace('_', '-')}`"
    match protection.kind:
        case ProtectionKind.READ_ONLY:
            text = f"{_upper(where)} is read-only ({who}). Reads go on; it ends with {end}."
        case ProtectionKind.HOLD:
            text = f"{what} cannot be removed: {where} is under a legal hold ({who}), until that is lifted: {end}."
        case ProtectionKind.APPROVAL:
            text = (
                f"{what} cannot be removed like this: on {where}, {protection.operation} needs the approval of a "
                f"second principal ({who}). Call {protection.operation} on it, which makes the request."
            )
        case _:
            text = f"{what} cannot be removed: {where} is protected from deletion ({who}). Lift that first: {end}."
    return PermissionDeniedError(text)


class Protections(Repository):
    """The methods for protections."""

    __slots__ = ()

    @writes
    def set_protection(self, protection: Protection) -> None:
        """Set a protection, or replace its reason. It holds for whatever is removed from the answer on.

        Raises TableNotFoundError, NamespaceNotFoundError (the object is gone), InvalidInputError (there are too many).
        """
        count_up(self.connection, PROTECTIONS_GENERATION)  # first: removals under way are waited for
        self._check_exists(protection.object_kind, protection.object_id)
        if int(self.connection.rows(COUNT)[0][0]) >= MAX_PROTECTIONS:
            raise InvalidInputError(f"There are {MAX_PROTECTIONS} protections, the most of a catalog: lift some first.")
        values = protection.reason, protection.set_by, self._clock(), protection.removes
        self.connection.change(SET, *_key(protection), *values)

    def _check_exists(self, kind: str, object_id: int) -> None:
        if kind == TABLE and self.connection.row(PLACE_OF_TABLE, object_id, object_id) is None:
            raise TableNotFoundError("The table was dropped meanwhile.")
        if kind == NAMESPACE and self.connection.row(NAMESPACE_EXISTS, object_id, object_id) is None:
            raise NamespaceNotFoundError("The namespace was dropped meanwhile.")

    @writes
    def lift_protection(self, object_kind: str, object_id: int, kind: str, operation: str = "") -> bool:
        """Lift a protection that is set on this very object; return whether there was one."""
        count_up(self.connection, PROTECTIONS_GENERATION)
        return self.connection.change(LIFT, object_kind, object_id, kind, operation) == 1

    @reads
    def list_protections(self, after: tuple[str, int, str, str] | None, limit: int) -> list[Protection]:
        """Return up to `limit` protections by (object kind, object id, kind, operation), those after `after`."""
        return [Protection.of(row) for row in self.connection.rows(LIST, *(after or ("", 0, "", "")), limit)]

    @reads
    def protections_of(self, namespace_id: int, table_id: int = 0) -> list[Protection]:
        """Return the protections of a namespace, or of a table in it, with those that it inherits: its own first."""
        return protections_on(self.connection, namespace_id, table_id)

    @reads
    def protection_kinds(self) -> frozenset[str]:
        """Return the kinds of which there are any protections."""
        return frozenset(row[0] for row in self.connection.rows(KINDS))

    @reads
    def protections_at(self, path: Path) -> list[Protection]:
        """Return the protections of what a path names, a namespace or a table, as far as it exists."""
        namespace = parent = ROOT
        for name in path:
            row = self.connection.row(CHILD, namespace, name)
            if row is None:
                break
            parent, namespace = namespace, int(row[0])
        else:
            table = self.connection.row(TABLE_IN, parent, path[-1]) if path else None
            return protections_on(self.connection, namespace, int(table[0]) if table else 0)
        table = self.connection.row(TABLE_IN, namespace, path[-1])
        return protections_on(self.connection, namespace, int(table[0]) if table else 0)

    @reads
    def find_table_protection(self, table_id: int, kind: ProtectionKind) -> Protection | None:
        """Return a protection of this kind that holds for a table, whether or not it was removed; None without any."""
        row = self.connection.row(PLACE_OF_TABLE, table_id, table_id)
        found = protections_on(self.connection, int(row[0]), table_id) if row else []
        return next((each for each in found if each.kind == kind), None)

    @writes
    def refuse_under_hold(self, table_id: int, what: str) -> None:
        """Raise PermissionDeniedError if a table is held: `what` is what would be removed of it."""
        self.connection.row(LOCK)
        held = self.find_table_protection(table_id, ProtectionKind.HOLD)
        if held is not None:
            raise _denial(self.connection, what, held)

    @writes
    def check_removable(self, namespace_id: int, table_id: int, what: str, *, approved: bool = False) -> None:
        """Raise PermissionDeniedError if a table may not be removed or replaced: in another catalog, or in storage."""
        refuse_removal(self.connection, what, namespace_id, table_id, approved=approved)

    @writes
    def check_move(self, table_id: int, old_namespace: int, new_namespace: int, what: str) -> None:
        """Raise PermissionDeniedError if a table would leave a protection that it inherits, by a move elsewhere."""
        refuse_escape(self.connection, what, table_id, old_namespace, new_namespace)

    @reads
    def check_tables_writable(self, table_ids: Sequence[int]) -> None:
        """Raise PermissionDeniedError if one of some tables is read-only."""
        for row in self.connection.rows(PLACES_OF_TABLES.format(ids=placeholders(table_ids)), *table_ids):
            refuse_change(self.connection, row[1], row[0])

    @reads
    def describe_protected(self, protection: Protection) -> str:
        """Return the object of a protection as a message names it."""
        return _where(self.connection, protection)
