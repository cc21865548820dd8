"""Mounts, and the rows below them: ids for the namespaces and tables of another catalog, which has all else of them.

Such a row is made when its object is first looked up. A table's row is found again by the id that the other catalog
gives it (`foreign_id`), or by its name and location where it gives none: what takes a name later gets an id of its own,
and none of the grants, jobs and versions of what had it before.
"""

# ruff: noqa: S608 - only constants of the code are put into SQL, never values

from __future__ import annotations

import json
from itertools import product
from typing import TYPE_CHECKING, Any

import msgspec
from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    NamespaceAlreadyExistsError,
    NamespaceNotFoundError,
)

from tiltyard.store.access.grants import NAMESPACE, PATH, TABLE, delete_dependents, grant_to_creator, place_grants
from tiltyard.store.backend import ForeignKeyError
from tiltyard.store.namespaces import CANCEL_TRANSACTIONS as CANCEL_BELOW
from tiltyard.store.namespaces import DELETE_NAMESPACES, DELETE_TABLES, TABLES_BELOW, TREE
from tiltyard.store.protections import Protection, refuse_tree_removal
from tiltyard.store.records import NamespaceRecord
from tiltyard.store.repository import (
    GRANTS_GENERATION,
    MOUNTS_GENERATION,
    Path,
    Properties,
    Repository,
    at_depth,
    count_up,
    display_path,
    encode,
    namespace_id,
    namespace_not_found,
    reads,
    resolve_prefix,
    split_path,
    writes,
)
from tiltyard.store.tables.location_overlap import find_foreign_overlap
from tiltyard.store.tables.lookup import BY_ID, TableRecord
from tiltyard.store.tables.tables import CANCEL_TRANSACTIONS

if TYPE_CHECKING:
    from tiltyard.store.access.grants import Creator
    from tiltyard.store.backend import Row

INSERT_NAMESPACE = f"""
    INSERT INTO namespaces (parent_id, name, properties, created_at, mount_id) VALUES (?, ?, ?, ?, ?)
    ON CONFLICT (parent_id, name) DO NOTHING RETURNING {NamespaceRecord.COLUMNS}
"""
MARK_MOUNT = "UPDATE namespaces SET mount_id = id WHERE id = ?"
INSERT_MOUNT = """
    INSERT INTO mounts
        (namespace_id, kind, settings, allowed_locations, max_age_ms, managed, vends_credentials, origin, created_at,
        updated_at)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
ALTER_MOUNT = """
    UPDATE mounts SET kind = ?, settings = ?, allowed_locations = ?, max_age_ms = ?, managed = ?,
        vends_credentials = ?, origin = ?, updated_at = ?
    WHERE namespace_id = ?
"""
SET_MANAGED = "UPDATE tables SET managed = ? WHERE mount_id = ?"
PENDING_BELOW = """
    SELECT DISTINCT table_id FROM table_versions JOIN tables ON tables.id = table_versions.table_id
    WHERE NOT finalized AND mount_id = ?
"""
# Each mount with the names from it up to the root.
LIST = """
    WITH RECURSIVE up (mount, parent_id, name, height) AS (
        SELECT mounts.namespace_id, namespaces.parent_id, namespaces.name, 1
        FROM mounts JOIN namespaces ON namespaces.id = mounts.namespace_id
        UNION ALL
        SELECT up.mount, above.parent_id, above.name, up.height + 1
        FROM up JOIN namespaces above ON above.id = up.parent_id
    )
    SELECT mounts.namespace_id, kind, settings, allowed_locations, max_age_ms, managed, vends_credentials, origin,
        created_at, updated_at, height, name
    FROM mounts JOIN up ON up.mount = mounts.namespace_id WHERE up.parent_id IS NOT NULL
    ORDER BY mounts.namespace_id, height DESC
"""
CHILD = "SELECT id FROM namespaces WHERE parent_id = ? AND name = ?"

FIND = f"SELECT {TableRecord.COLUMNS}, foreign_id FROM tables WHERE namespace_id = {{namespace}} AND name = ?"
FIND_IN = at_depth(FIND, 0)
FIND_FOREIGN = f"SELECT {TableRecord.COLUMNS} FROM tables WHERE mount_id = ? AND foreign_id = ?"
AT = f"SELECT {TableRecord.COLUMNS}, mount_id FROM tables WHERE location = ?"
WITH_MOUNT = f"SELECT {TableRecord.COLUMNS}, mount_id FROM tables WHERE id = ?"
INSERT_TABLE = f"""
    INSERT INTO tables (namespace_id, name, location, properties, managed, declared, registered, created_at, updated_at,
        mount_id, foreign_id)
    VALUES (?, ?, ?, '{{}}', ?, TRUE, TRUE, ?, ?, ?, ?) ON CONFLICT DO NOTHING RETURNING {TableRecord.COLUMNS}
"""
MOVE_TABLE = f"""
    UPDATE tables SET namespace_id = ?, name = ?, location = ?, updated_at = ? WHERE id = ?
    RETURNING {TableRecord.COLUMNS}
"""
DELETE_TABLE = "DELETE FROM tables WHERE id = ? AND mount_id IS NOT NULL"
DELETE_DECLARED = f"{DELETE_TABLE} AND declared"
DELETE_WITHOUT_POLICIES = f"""
    {DELETE_TABLE} AND NOT EXISTS (SELECT 1 FROM policies WHERE table_id = tables.id)
    AND NOT EXISTS (SELECT 1 FROM classified_columns WHERE table_id = tables.id)
    AND NOT EXISTS (SELECT 1 FROM classifications WHERE kind = 'table' AND object_id = tables.id)
    AND NOT EXISTS (SELECT 1 FROM protections WHERE object_kind = 'table' AND object_id = tables.id)
"""
MOVE_POLICIES = (
    "UPDATE policies SET table_id = ? WHERE table_id = ?",
    "UPDATE classified_columns SET table_id = ? WHERE table_id = ?",
    "UPDATE classifications SET object_id = ? WHERE object_id = ? AND kind = 'table'",
    f"""
    INSERT INTO protections ({Protection.COLUMNS})
    SELECT object_kind, CAST(? AS BIGINT), kind, operation, reason, set_by, set_at, removes FROM protections
    WHERE object_id = ? AND object_kind = 'table' ON CONFLICT DO NOTHING
    """,
)
"""What stays with a location whatever its table is called."""
CANCEL_DELETION = "DELETE FROM doomed_folders WHERE location = ? RETURNING claims"
LOCK_MOUNT = "SELECT namespace_id FROM mounts WHERE namespace_id = ? /*+ FOR UPDATE */"


class MountRecord(msgspec.Struct, frozen=True):
    """A mount: the namespace that it is, and how to reach the other catalog.

    `settings` are those of its kind, with references to secrets, never secrets. `allowed_locations` bound what may be
    opened below it; none bound it further than the server's roots do. What was looked up is used for `max_age_ms`.
    Tables are `managed` if their commits go through this catalog. With `vends_credentials` those of the other catalog
    open them, for this server and for clients. `origin` is "settings" for a mount of the server's
    settings, else "api".
    """

    id: int
    path: Path
    kind: str
    settings: dict[str, Any]
    allowed_locations: tuple[str, ...]
    max_age_ms: int
    managed: bool
    vends_credentials: bool
    origin: str
    created_at: int
    updated_at: int


class LocationTakenError(Exception):
    """A table that is looked up has the location of another one, or one inside or around it.

    `record` is that of the other, `path` its path. `is_same_mount` says whether it is below the same mount: there it
    may be gone, or have been renamed.
    """

    def __init__(self, record: TableRecord, path: Path, *, is_same_mount: bool) -> None:
        super().__init__(record.location)
        self.record = record
        self.path = path
        self.is_same_mount = is_same_mount


class LocationDroppedError(Exception):
    """A table that is looked up is in, at or around a folder that is to be deleted, or whose table can be restored."""


class Mounts(Repository):
    """The methods for mounts and what is below them."""

    __slots__ = ()

    @writes
    def add_mount(self, mount: MountRecord, properties: Properties) -> None:
        """Make a namespace with these properties that is a mount; its id and its times are not the record's.

        Raises NamespaceAlreadyExistsError, NamespaceNotFoundError (the parent).
        """
        parent, name = split_path(mount.path)
        parent_id, now = namespace_id(self.connection, parent), self._clock()
        row = self.connection.row(INSERT_NAMESPACE, parent_id, name, encode(dict(properties)), now, None)
        if row is None:
            raise NamespaceAlreadyExistsError(f"Namespace already exists: {display_path(mount.path)}")
        self.connection.change(MARK_MOUNT, row[0])
        limits = mount.max_age_ms, mount.managed, mount.vends_credentials, mount.origin
        settings = mount.kind, json.dumps(mount.settings), json.dumps(list(mount.allowed_locations))
        self.connection.change(INSERT_MOUNT, row[0], *settings, *limits, now, now)
        count_up(self.connection, MOUNTS_GENERATION)

    @reads
    def list_mounts(self) -> list[MountRecord]:
        """Return all mounts."""
        rows_by_mount: dict[int, list[Row]] = {}
        for row in self.connection.rows(LIST):
            rows_by_mount.setdefault(row[0], []).append(row)
        return [_read_mount(rows) for rows in rows_by_mount.values()]

    @writes
    def alter_mount(self, mount: MountRecord) -> None:
        """Replace a mount's kind, settings and limits by those of this record. Raises NamespaceNotFoundError."""
        values = mount.kind, json.dumps(mount.settings), json.dumps(list(mount.allowed_locations)), mount.max_age_ms
        flags = mount.managed, mount.vends_credentials
        changed = self.connection.change(ALTER_MOUNT, *values, *flags, mount.origin, self._clock(), mount.id)
        if not changed:
            raise namespace_not_found(mount.path)
        count_up(self.connection, MOUNTS_GENERATION)

    @writes
    def set_managed_below(self, mount: MountRecord) -> None:
        """Make all known tables below a mount managed, or not, as the mount is now."""
        self.connection.change(SET_MANAGED, mount.managed, mount.id)

    @reads
    def pending_tables_below(self, mount_id: int) -> list[int]:
        """Return the ids of the tables below a mount that have versions which are not finalized."""
        return [row[0] for row in self.connection.rows(PENDING_BELOW, mount_id)]

    @writes
    def remove_mount(self, mount: MountRecord) -> None:
        """Remove a mount with all that is kept for what is below it: ids, grants, policies, jobs. No file is touched.

        Raises NamespaceNotFoundError, PermissionDeniedError where it, or anything below it, is protected.
        """
        if self.connection.row(LOCK_MOUNT, mount.id) is None:
            raise namespace_not_found(mount.path)
        refuse_tree_removal(self.connection, mount.path, mount.id)
        self.forget_mounted_namespace(mount.id)  # and with its namespace the mount
        count_up(self.connection, MOUNTS_GENERATION)

    # Namespaces below a mount

    @reads
    def find_mounted_namespace(self, mount_id: int, below: Path) -> int | None:
        """Return the id of a namespace, by the names from the mount to it; None if it has none yet."""
        try:
            base, names = resolve_prefix(self.connection, below, mount_id)
        except NamespaceNotFoundError:
            return None
        if not names:
            return base
        row = self.connection.row(at_depth("SELECT {namespace}", len(names)), base, *names)
        return None if row is None else row[0]

    @writes
    def keep_mounted_namespace(self, mount_id: int, below: Path, creator: Creator | None = None) -> int:
        """Return the id of a namespace, which gets one if it has none yet; the creator is granted its privileges."""
        parent_id, now = mount_id, self._clock()
        for name in below:
            row = self.connection.row(CHILD, parent_id, name)
            if row is None:
                row = self._insert_below(INSERT_NAMESPACE, below, parent_id, name, "{}", now, mount_id)
                row = row or self.connection.row(CHILD, parent_id, name)  # another has made it meanwhile
            if row is None:
                raise NamespaceNotFoundError(f"Namespace not found: {display_path(below)}")
            parent_id = row[0]
        if creator is not None:
            grant_to_creator(self.connection, NAMESPACE, parent_id, creator, now)
        return parent_id

    def _insert_below(self, statement: str, below: Path, *values: object) -> Row | None:
        """Insert what is below a mount. Raises NamespaceNotFoundError if another server has unmounted it meanwhile."""
        try:
            return self.connection.row(statement, *values)
        except ForeignKeyError as error:
            raise namespace_not_found(below[:-1]) from error

    @writes
    def forget_mounted_namespace(self, namespace: int) -> None:
        """Remove what is kept for a namespace that was dropped in the other catalog, and for all below it."""
        self.connection.change(CANCEL_BELOW, namespace, self._clock(), None)
        delete_dependents(self.connection, TABLE, TABLES_BELOW, namespace)
        delete_dependents(self.connection, NAMESPACE, f"{TREE} SELECT id FROM tree", namespace)
        self.connection.change(DELETE_TABLES, namespace)
        self.connection.change(DELETE_NAMESPACES, namespace)
        count_up(self.connection, GRANTS_GENERATION)

    # Tables below a mount

    @reads
    def find_mounted_table(
        self, mount_id: int, below: Path, location: str, foreign_id: str | None
    ) -> TableRecord | None:
        """Return the record of a table as the other catalog has it; None if its record says anything else."""
        try:
            base, names = resolve_prefix(self.connection, below[:-1], mount_id)
        except NamespaceNotFoundError:
            return None
        row = self.connection.row(at_depth(FIND, len(names)), base, *names, below[-1])
        if row is None or row[-1] != foreign_id:
            return None
        record = TableRecord.of(row[:-1])
        return record if record.location == location else None

    @writes
    def keep_mounted_table(
        self,
        mount_id: int,
        below: Path,
        location: str,
        foreign_id: str | None,
        *,
        managed: bool,
        gone: int | None = None,
        creator: Creator | None = None,
    ) -> TableRecord:
        """Return the record of a table, which gets one if it has none yet, or is a new one under an old name.

        Its location was found free by `check_foreign_location`, which is checked again.

        A record that had the name belongs to another table, and goes with all that depends on it; so does the record
        `gone`, which has the location. Only policies and classifications stay with a location: they bind whoever reads
        what lies there.
        Raises LocationTakenError, LocationDroppedError, ConcurrentModificationError (the folder is being deleted).
        """
        namespace, now = self.keep_mounted_namespace(mount_id, below[:-1]), self._clock()
        occupant = self.connection.row(FIND_IN, namespace, below[-1])
        known = self._find_known(mount_id, occupant, location, foreign_id)
        known_id = None if known is None else known.id
        candidates = gone, None if occupant is None else int(occupant[0])
        removed = [id_ for id_ in candidates if id_ is not None and id_ != known_id]
        self._check_location(mount_id, location, {*removed, known_id})
        heirs = [id_ for id_ in removed if self._location_of(id_) == location]
        for id_ in removed:
            self.connection.change(DELETE_TABLE, id_)
        self._check_overlap(mount_id, location, serialized=True)
        deletion = self.connection.row(CANCEL_DELETION, location)  # what the other catalog has is not to be deleted
        if deletion is not None and deletion[0]:
            raise ConcurrentModificationError(f"The folder of the table is being deleted: {location}")
        if known is not None:
            row = self.connection.row(MOVE_TABLE, namespace, below[-1], location, now, known.id)
        else:
            values = namespace, below[-1], location, managed, now, now, mount_id, foreign_id
            row = self._insert_below(INSERT_TABLE, below, *values)
        if row is None:
            raise InvalidInputError(f"Another table has this location: {location}")
        record = TableRecord.of(row)
        if known is None:
            for id_, statement in product(heirs, MOVE_POLICIES):
                self.connection.change(statement, record.id, id_)
            grant_to_creator(self.connection, TABLE, record.id, creator, now)
        else:
            place_grants(self.connection, TABLE, "object_id = ?", record.id)
            count_up(self.connection, GRANTS_GENERATION)  # what it is classified as by the namespaces above it changes
        for id_ in removed:
            self._delete_dependents(id_)
        return record

    @writes
    def move_mounted_table(self, mount_id: int, below: Path, location: str, table_id: int) -> None:
        """Give a table's record another name, as it has in the other catalog now: what refers to its id stays."""
        namespace = self.keep_mounted_namespace(mount_id, below[:-1])
        occupant = self.connection.row(FIND_IN, namespace, below[-1])
        if occupant is not None and occupant[0] != table_id:
            self.forget_mounted_table(occupant[0])
        self.connection.row(MOVE_TABLE, namespace, below[-1], location, self._clock(), table_id)
        place_grants(self.connection, TABLE, "object_id = ?", table_id)

    def _find_known(
        self, mount_id: int, occupant: Row | None, location: str, foreign_id: str | None
    ) -> TableRecord | None:
        """Return the record of a table by its id in the other catalog, or else by its name and location."""
        if foreign_id is not None:
            row = self.connection.row(FIND_FOREIGN, mount_id, foreign_id)
            return TableRecord.of(row) if row is not None else None
        if occupant is None or occupant[-1] is not None:
            return None
        record = TableRecord.of(occupant[:-1])
        return record if record.location == location else None

    def _check_location(self, mount_id: int, location: str, own_ids: set[int | None]) -> None:
        """Raise LocationTakenError if a table with another id than these has a location."""
        row = self.connection.row(AT, location)
        if row is not None and row[0] not in own_ids:
            raise self._taken(mount_id, row)

    @reads
    def check_foreign_location(self, mount_id: int, location: str) -> None:
        """Check that the location of an entry of another catalog overlaps nothing that this catalog has, or had.

        Raises LocationTakenError for a table around or in it, LocationDroppedError. Who has the same location is
        checked as the table's record is made.
        """
        self._check_overlap(mount_id, location, serialized=False)

    def _check_overlap(self, mount_id: int, location: str, *, serialized: bool) -> None:
        overlap = find_foreign_overlap(self.connection, location, serialized=serialized)
        if overlap is None:
            return
        row = None if overlap[0] is None else self.connection.row(WITH_MOUNT, overlap[0])
        if row is None:
            raise LocationDroppedError(location)
        raise self._taken(mount_id, row)

    def _taken(self, mount_id: int, row: Row) -> LocationTakenError:
        """Return the error for the table of a row, whose last column is its mount."""
        record = TableRecord.of(row[:-1])
        path = (*(name for (name,) in self.connection.rows(PATH, record.namespace_id)), record.name)
        return LocationTakenError(record, path, is_same_mount=row[-1] == mount_id)

    def _location_of(self, table_id: int) -> str | None:
        row = self.connection.row(BY_ID, table_id)
        return TableRecord.of(row).location if row is not None else None

    @writes
    def forget_mounted_table(self, table_id: int) -> None:
        """Remove what is kept for a table that is gone in the other catalog."""
        self._forget(DELETE_TABLE, table_id)

    @writes
    def forget_declared_table(self, table_id: int) -> bool:
        """Remove what is kept for a table that has no data; return whether it was there, and had none."""
        return self._forget(DELETE_DECLARED, table_id)

    @writes
    def forget_table_without_policies(self, table_id: int) -> bool:
        """Remove what is kept for a table that is gone in the other catalog, unless policies or protections bind it.

        Return whether it was removed.
        """
        return self._forget(DELETE_WITHOUT_POLICIES, table_id)

    def _forget(self, statement: str, table_id: int) -> bool:
        if is_gone := bool(self.connection.change(statement, table_id)):
            self._delete_dependents(table_id)
        return is_gone

    def _delete_dependents(self, table_id: int) -> None:
        self.connection.change(CANCEL_TRANSACTIONS, self._clock(), table_id)
        delete_dependents(self.connection, TABLE, "?", table_id)
        count_up(self.connection, GRANTS_GENERATION)


def _read_mount(rows: list[Row]) -> MountRecord:
    """Read the rows of one mount of LIST, the outermost name first."""
    id_, kind, settings, allowed, max_age_ms, managed, vends, origin, created_at, updated_at = rows[0][:10]
    path = tuple(row[-1] for row in rows)
    head = id_, path, kind, json.loads(settings), tuple(json.loads(allowed)), max_age_ms
    return MountRecord(*head, bool(managed), bool(vends), origin, created_at, updated_at)
