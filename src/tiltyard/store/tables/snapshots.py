"""Snapshots: named sets of versions over tables, which are there once they are complete."""

# ruff: noqa: S608 - only constants of the code are put into SQL, never values

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tiltyard.store.repository import Repository, placeholders, reads, writes

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class SnapshotMember:
    """A version of a table, by the table's id; `path` is the name that it had when the snapshot was made."""

    table_id: int
    version: int
    path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SnapshotRecord:
    """A snapshot; `is_complete` once the tags of all members exist, and until one is dropped.

    `token` is of the call that makes or drops it, `created_at` (ms since 1970) of an incomplete one is when that began.
    """

    name: str
    token: str
    is_complete: bool
    created_at: int
    created_by: str
    members: tuple[SnapshotMember, ...]


COLUMNS = "name, token, complete, created_at, created_by"
FIND = f"SELECT {COLUMNS} FROM snapshots WHERE name = ?"
LIST = f"SELECT {COLUMNS} FROM snapshots WHERE complete = 1 AND name > ? ORDER BY name LIMIT ?"
MEMBERS = "SELECT snapshot, table_id, version, path FROM snapshot_tables WHERE snapshot IN ({names}) ORDER BY path"
HOLDS = """
    SELECT 1 FROM snapshot_tables JOIN snapshots ON snapshots.name = snapshot_tables.snapshot
    WHERE snapshot = ? AND table_id = ? AND complete = 1
"""
DROP_INCOMPLETE = "DELETE FROM snapshots WHERE name = ? AND complete = 0"
ADD = """
    INSERT INTO snapshots (name, token, complete, created_at, created_by) VALUES (?, ?, 0, ?, ?) ON CONFLICT DO NOTHING
"""
ADD_MEMBER = "INSERT INTO snapshot_tables (snapshot, table_id, version, path) VALUES (?, ?, ?, ?)"
COMPLETE = "UPDATE snapshots SET complete = 1 WHERE name = ? AND token = ? AND complete = 0"
BEGIN_DROP = "UPDATE snapshots SET complete = 0, token = ?, created_at = ? WHERE name = ?"
FIND_ABANDONED = f"SELECT {COLUMNS} FROM snapshots WHERE complete = 0 AND created_at < ? ORDER BY created_at LIMIT 1"
CLAIM = "UPDATE snapshots SET token = ?, created_at = ? WHERE name = ? AND token = ? AND complete = 0"
DROP = "DELETE FROM snapshots WHERE name = ? AND token = ?"


class Snapshots(Repository):
    """The methods for snapshots."""

    __slots__ = ()

    @reads
    def find_snapshot(self, name: str) -> SnapshotRecord | None:
        """Return a snapshot, complete or not; None without one."""
        row = self.connection.row(FIND, name)
        return None if row is None else self._with_members([row])[0]

    @reads
    def list_snapshots(self, after: str | None, limit: int) -> list[SnapshotRecord]:
        """Return up to `limit` complete snapshots by name, those after `after`."""
        return self._with_members(self.connection.rows(LIST, after or "", limit))

    @reads
    def is_in_snapshot(self, name: str, table_id: int) -> bool:
        """Return whether a complete snapshot of this name has a version of the table."""
        return self.connection.row(HOLDS, name, table_id) is not None

    @writes
    def begin_snapshot(self, name: str, token: str, created_by: str, members: Sequence[SnapshotMember]) -> bool:
        """Record a snapshot whose tags are made next, in place of an incomplete one.

        Return False, and change nothing, where a complete one has the name.
        """
        self.connection.change(DROP_INCOMPLETE, name)
        if self.connection.change(ADD, name, token, self._clock(), created_by) != 1:
            return False
        for member in members:
            self.connection.change(ADD_MEMBER, name, member.table_id, member.version, json.dumps(member.path))
        return True

    @writes
    def complete_snapshot(self, name: str, token: str) -> bool:
        """Declare a snapshot complete; return False if another call has taken its place."""
        return self.connection.change(COMPLETE, name, token) == 1

    @writes
    def begin_snapshot_drop(self, name: str, token: str) -> bool:
        """Declare a snapshot incomplete, whose tags are dropped next; return whether there is one."""
        return self.connection.change(BEGIN_DROP, token, self._clock(), name) == 1

    @reads
    def find_abandoned_snapshot(self, before: int) -> SnapshotRecord | None:
        """Return the oldest incomplete snapshot of a call that began before a time (ms since 1970), or None."""
        row = self.connection.row(FIND_ABANDONED, before)
        return None if row is None else self._with_members([row])[0]

    @writes
    def claim_incomplete_snapshot(self, record: SnapshotRecord, token: str) -> bool:
        """Take over an incomplete snapshot; return False if another call has completed or claimed it."""
        return self.connection.change(CLAIM, token, self._clock(), record.name, record.token) == 1

    @writes
    def drop_snapshot(self, name: str, token: str) -> bool:
        """Delete a snapshot; return False if another call has taken its place."""
        return self.connection.change(DROP, name, token) == 1

    def _with_members(self, rows: Sequence[tuple[str, str, int, int, str]]) -> list[SnapshotRecord]:
        members: dict[str, list[SnapshotMember]] = {row[0]: [] for row in rows}
        if members:
            names = MEMBERS.format(names=placeholders(list(members)))
            for snapshot, table_id, version, path in self.connection.rows(names, *members):
                members[snapshot].append(SnapshotMember(table_id, version, tuple(json.loads(path))))
        return [
            SnapshotRecord(name, token, bool(complete), created_at, created_by, tuple(members[name]))
            for name, token, complete, created_at, created_by in rows
        ]
