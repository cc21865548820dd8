"""Mirrors: other catalogs in which tables of ours are registered, and the entries that are kept in step there.

On the wire and in the database they are publications; in the code that is several tables committed at once.
"""

# ruff: noqa: S608 - only constants of the code are put into SQL, never values

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
from lance_namespace.errors import ConcurrentModificationError
from msgspec.structs import replace

from tiltyard.store.earlier_names import pin_namespace
from tiltyard.store.repository import Path, Record, Repository, reads, writes

if TYPE_CHECKING:
    from collections.abc import Sequence


class MirrorRecord(Record, frozen=True):
    """A mirror: the other catalog, what is published there, and how far that has come.

    Published are the tables in `namespace` and below it (None: in none), for as long as that is the one with
    `namespace_id` (None of an earlier server's, until it is claimed), and those whose property says so. `target` is
    the namespace there, () where it follows from the tables' own; `levels` is how many levels of namespaces there are,
    None for any number. Without entries to keep, it is `removing` them, and goes then. `fingerprint` is that of our
    tables at `synced_at`, when all was last in step. After `failures` in a row with `error` it is next due at `due_at`.
    """

    id: int
    name: str
    kind: str
    settings: dict[str, Any]
    levels: int | None
    namespace: Path | None
    target: Path
    has_columns: bool
    removing: bool
    fingerprint: str
    synced_at: int | None
    verified_at: int
    failures: int
    error: str | None
    due_at: int
    lease_owner: str | None
    lease_until: int
    created_at: int
    namespace_id: int | None


INSERT = """
    INSERT INTO publications (name, kind, settings, levels, namespace, target, has_columns, removing, fingerprint,
        verified_at, failures, due_at, lease_until, created_at, namespace_id)
    VALUES (?, ?, ?, ?, ?, ?, ?, FALSE, '', ?, 0, ?, 0, ?, ?) ON CONFLICT (name) DO NOTHING
"""
LIST = f"SELECT {MirrorRecord.COLUMNS} FROM publications WHERE name > ? ORDER BY name LIMIT ?"
FIND = f"SELECT {MirrorRecord.COLUMNS} FROM publications WHERE name = ?"
START_REMOVING = "UPDATE publications SET removing = TRUE, due_at = ?, failures = 0 WHERE id = ?"
DELETE = "DELETE FROM publications WHERE id = ?"
CLAIM = f"""
    UPDATE publications SET lease_owner = ?, lease_until = ? WHERE id = ? AND lease_until <= ?
    RETURNING {MirrorRecord.COLUMNS}
"""
RENEW = "UPDATE publications SET lease_until = ? WHERE id = ? AND lease_owner = ?"
FINISH = """
    UPDATE publications SET fingerprint = ?, synced_at = ?, verified_at = ?, failures = ?, error = ?, due_at = ?,
        lease_owner = NULL, lease_until = 0
    WHERE id = ? AND lease_owner = ?
"""
ENTRIES = "SELECT path, table_id, location, digest, marked FROM published_entries WHERE publication_id = ?"
COUNT_ENTRIES = "SELECT COUNT(*) FROM published_entries WHERE publication_id = ? AND digest <> ''"
WRITE_ENTRY = """
    INSERT INTO published_entries (publication_id, path, table_id, location, digest, marked) VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (publication_id, path) DO UPDATE SET table_id = excluded.table_id, location = excluded.location,
        digest = excluded.digest, marked = excluded.marked
"""
DELETE_ENTRY = "DELETE FROM published_entries WHERE publication_id = ? AND path = ?"
PROBLEMS = "SELECT path, problem FROM publication_problems WHERE publication_id = ? ORDER BY path LIMIT ?"
COUNT_PROBLEMS = "SELECT COUNT(*) FROM publication_problems WHERE publication_id = ?"
DELETE_PROBLEMS = "DELETE FROM publication_problems WHERE publication_id = ?"
INSERT_PROBLEM = "INSERT INTO publication_problems (publication_id, table_id, path, problem) VALUES (?, ?, ?, ?)"
# Sums of ids and of the low 32 bits of times: no sum of either can overflow.
FINGERPRINT_TABLES = """
    SELECT COUNT(*), COALESCE(SUM(id), 0), COALESCE(SUM(updated_at & 4294967295), 0) FROM tables WHERE mount_id IS NULL
"""
FINGERPRINT_NAMESPACES = "SELECT COUNT(*), COALESCE(SUM(id), 0) FROM namespaces WHERE mount_id IS NULL"
OWN_NAMESPACES = "SELECT id, parent_id, name, properties FROM namespaces WHERE mount_id IS NULL"
OWN_TABLES = """
    SELECT id, namespace_id, name, location, properties FROM tables WHERE mount_id IS NULL AND NOT declared ORDER BY id
"""


class PublishedEntry(Record, frozen=True):
    """An entry in the other catalog, at `path` there: see the columns of `published_entries`."""

    path: Path
    table_id: int
    location: str
    digest: str
    marked: bool


class SyncOutcome(msgspec.Struct, frozen=True):
    """What a sync of a mirror leaves; see MirrorRecord."""

    fingerprint: str
    synced_at: int | None
    verified_at: int
    failures: int
    error: str | None
    due_at: int


class TableProblem(Record, frozen=True):
    """Why the table at `path` has not the entry that it should have."""

    path: Path
    problem: str


class OwnNamespace(Record, frozen=True):
    """A namespace of this catalog itself."""

    id: int
    parent_id: int | None
    name: str
    properties: dict[str, str]


class OwnTable(Record, frozen=True):
    """A table of this catalog itself that has data."""

    id: int
    namespace_id: int
    name: str
    location: str
    properties: dict[str, str]


class Mirrors(Repository):
    """The methods for mirrors."""

    __slots__ = ()

    @writes
    def add_mirror(
        self,
        name: str,
        kind: str,
        settings: dict[str, Any],
        levels: int | None,
        *,
        namespace: Path | None,
        target: Path,
        has_columns: bool,
        namespace_id: int | None = None,
    ) -> bool:
        """Add a mirror, due at once; return False if there is one of this name, which stays as it is."""
        scope, now = None if namespace is None else json.dumps(namespace), self._clock()
        what = name, kind, json.dumps(settings), levels, scope, json.dumps(target), has_columns
        return self.connection.change(INSERT, *what, now, now, now, namespace_id) == 1

    @reads
    def list_mirrors(self, after: str | None, limit: int) -> list[MirrorRecord]:
        """Return up to `limit` mirrors, those with names after `after`."""
        return [MirrorRecord.of(row) for row in self.connection.rows(LIST, after or "", limit)]

    @reads
    def find_mirror(self, name: str) -> MirrorRecord | None:
        """Return the mirror of a name, if there is one."""
        row = self.connection.row(FIND, name)
        return MirrorRecord.of(row) if row else None

    @writes
    def start_removing_entries(self, mirror: int) -> None:
        """Let a mirror remove its entries, and then go."""
        self.connection.change(START_REMOVING, self._clock(), mirror)

    @writes
    def delete_mirror(self, mirror: int) -> None:
        """Delete a mirror; its entries in the other catalog stay."""
        self.connection.change(DELETE, mirror)

    @writes
    def claim_mirror(self, mirror: int, owner: str, lease_ms: int) -> MirrorRecord | None:
        """Lease a mirror to `owner`; return None if another holds the lease, or it is gone.

        Of one that an earlier server has made, the namespace is pinned now.
        """
        now = self._clock()
        row = self.connection.row(CLAIM, owner, now + lease_ms, mirror, now)
        if row is None:
            return None
        record = MirrorRecord.of(row)
        if record.namespace is None or record.namespace_id is not None:
            return record
        return replace(record, namespace_id=pin_namespace(self.connection, record.id, record.namespace))

    @writes
    def renew_mirror(self, mirror: int, owner: str, lease_ms: int) -> None:
        """Renew a lease. Raises ConcurrentModificationError if another holds it, or the mirror is gone."""
        if not self.connection.change(RENEW, self._clock() + lease_ms, mirror, owner):
            raise ConcurrentModificationError("Another server syncs this publication, or it was dropped.")

    @writes
    def finish_sync(
        self, mirror: int, owner: str, outcome: SyncOutcome, problems: dict[int, TableProblem] | None
    ) -> None:
        """Record how a sync ended, and release the lease; `problems` by table's id replace those before, None does not.

        Does nothing where another holds the lease, or the mirror is gone.
        """
        values = outcome.fingerprint, outcome.synced_at, outcome.verified_at, outcome.failures, outcome.error
        if not self.connection.change(FINISH, *values, outcome.due_at, mirror, owner) or problems is None:
            return
        self.connection.change(DELETE_PROBLEMS, mirror)
        rows = [(mirror, table_id, json.dumps(each.path), each.problem) for table_id, each in problems.items()]
        self.connection.change_many(INSERT_PROBLEM, rows)

    @reads
    def published_entries(self, mirror: int) -> list[PublishedEntry]:
        """Return all entries of a mirror."""
        return [PublishedEntry.of(row) for row in self.connection.rows(ENTRIES, mirror)]

    @writes
    def write_published_entry(self, mirror: int, owner: str, lease_ms: int, entry: PublishedEntry) -> None:
        """Record an entry, and renew the lease. Raises as `renew_mirror` does."""
        self.renew_mirror(mirror, owner, lease_ms)
        values = entry.table_id, entry.location, entry.digest, entry.marked
        self.connection.change(WRITE_ENTRY, mirror, json.dumps(entry.path), *values)

    @writes
    def delete_published_entry(self, mirror: int, owner: str, lease_ms: int, path: Path) -> None:
        """Forget an entry, and renew the lease. Raises as `renew_mirror` does."""
        self.renew_mirror(mirror, owner, lease_ms)
        self.connection.change(DELETE_ENTRY, mirror, json.dumps(path))

    @reads
    def count_published_entries(self, mirror: int) -> int:
        """Return how many tables have their entry."""
        return int(self.connection.rows(COUNT_ENTRIES, mirror)[0][0])

    @reads
    def mirror_problems(self, mirror: int, limit: int) -> tuple[int, Sequence[TableProblem]]:
        """Return how many tables have a problem, and up to `limit` of those."""
        count = int(self.connection.rows(COUNT_PROBLEMS, mirror)[0][0])
        rows = self.connection.rows(PROBLEMS, mirror, limit) if count else []
        return count, [TableProblem.of(row) for row in rows]

    @reads
    def tables_fingerprint(self) -> str:
        """Return a text that differs after each change of this catalog's own tables and namespaces.

        Changes of data are none: only names, properties, and whether a table has data.
        """
        rows = *self.connection.rows(FINGERPRINT_TABLES), *self.connection.rows(FINGERPRINT_NAMESPACES)
        return " ".join(str(int(number)) for row in rows for number in row)

    @reads
    def own_namespaces(self) -> list[OwnNamespace]:
        """Return all namespaces but those below mounts."""
        return [OwnNamespace.of(row) for row in self.connection.rows(OWN_NAMESPACES)]

    @reads
    def own_tables(self) -> list[OwnTable]:
        """Return all tables that have data, but those below mounts, in the order of their ids."""
        return [OwnTable.of(row) for row in self.connection.rows(OWN_TABLES)]
