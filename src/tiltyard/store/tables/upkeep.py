"""Queries for upkeep: which tables got commits, and when each is looked at; what gc and repair have to know of one.

That is the locations in use, unfinished work, shallow clones, and transactions that ended.
"""

# ruff: noqa: S608 - only constants of the code are put into SQL, never values

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tiltyard.runtime.lease import LOOK_LEASE_MS
from tiltyard.store.jobs.schedules import mark_due
from tiltyard.store.repository import Path, Record, Repository, placeholders, reads, writes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tiltyard.store.backend import Connection

UPKEEP_DELAY_MS = 3_000
"""How long after its first commit a table is looked at: further commits are likely to come with it."""
MAX_ENDED = 2
"""Upkeep transactions of one table, and refreshes of one view or column that nobody requested, that stay."""
UPKEEP = "upkeep"
"""The kind of their transactions."""


class TableUpkeep(Record, frozen=True):
    """A table that got commits, the last one noted at `changed_at`; see the columns of `upkeep` (ms since 1970)."""

    table_id: int
    changed_at: int
    due_at: int
    rests_until: int
    clean_at: int | None
    state: dict[str, Any]


NOTE = """
    INSERT INTO upkeep (table_id, changed_at, due_at, rests_until, clean_at, state) VALUES (?, ?, ?, 0, NULL, '{}')
    ON CONFLICT (table_id) DO UPDATE SET changed_at = excluded.changed_at, due_at = CASE
        WHEN upkeep.due_at <= excluded.due_at THEN upkeep.due_at
        WHEN upkeep.rests_until > excluded.due_at THEN upkeep.rests_until
        ELSE excluded.due_at END
"""
HAS_DUE = "SELECT 1 FROM upkeep WHERE due_at <= ? LIMIT 1"
CLAIM = f"""
    UPDATE upkeep SET due_at = ?, rests_until = ? WHERE table_id = (
        SELECT table_id FROM upkeep WHERE due_at <= ? ORDER BY due_at, table_id LIMIT 1 /*+ FOR UPDATE SKIP LOCKED */
    ) RETURNING {TableUpkeep.COLUMNS}
"""
FIND = f"SELECT {TableUpkeep.COLUMNS} FROM upkeep WHERE table_id = ?"
PLAN = """
    UPDATE upkeep SET due_at = CASE WHEN changed_at > ? AND ? < ? THEN ? ELSE ? END, rests_until = ?, clean_at = ?,
        state = ?
    WHERE table_id = ?
"""
FORGET = "DELETE FROM upkeep WHERE table_id = ? AND changed_at <= ?"
DELETE_ENDED = """
    DELETE FROM transactions WHERE kind = ? AND table_id = ? AND status NOT IN ('Queued', 'Running') AND id NOT IN (
        SELECT id FROM transactions
        WHERE kind = ? AND table_id = ? AND status NOT IN ('Queued', 'Running')
        ORDER BY created_at DESC, id DESC LIMIT ?
    )
"""
SWEEP = """
    DELETE FROM transactions WHERE id IN (
        SELECT id FROM transactions WHERE kind = ? AND created_at < ? AND status NOT IN ('Queued', 'Running')
        ORDER BY created_at, id LIMIT ?
    )
"""
# Nothing may refer to one that is deleted: no version, and no folder scheduled for deletion.
UNREFERENCED = """
    t.status NOT IN ('Queued', 'Running')
        AND NOT EXISTS (SELECT 1 FROM doomed_folders WHERE transaction_id = t.id)
        AND NOT EXISTS (SELECT 1 FROM table_versions WHERE transaction_id = t.id)
        AND NOT EXISTS (SELECT 1 FROM removed_versions WHERE transaction_id = t.id)
"""
DELETE_UNREFERENCED = f"""
    DELETE FROM transactions WHERE id IN (SELECT id FROM transactions t WHERE id IN ({{ids}}) AND {UNREFERENCED})
"""
MOUNT = "SELECT mount_id FROM tables WHERE id = ?"
OLDEST_RUNNING = "SELECT MIN(created_at) FROM transactions WHERE status IN ('Queued', 'Running') AND kind <> ?"

# The folders of all tables, of those that can be restored, and those scheduled for deletion.
LOCATIONS = (
    "SELECT location FROM tables UNION SELECT location FROM doomed_folders UNION SELECT location FROM removed_tables"
)
# A failed job can be resumed, and then uses the parts that it has saved.
UNFINISHED_OR_RESUMABLE = """
    (status IN ('Queued', 'Running') AND kind <> ?
        OR status IN ('Failed', 'Lost') AND EXISTS (SELECT 1 FROM job_parts WHERE transaction_id = transactions.id))
"""
OLDEST_WORK = f"""
    SELECT MIN(since) FROM (
        SELECT created_at AS since FROM transactions WHERE table_id = ? AND {UNFINISHED_OR_RESUMABLE}
        UNION ALL SELECT created_at FROM uploads WHERE table_id = ?
    ) work
"""
JOBS_BY_NAME = f"SELECT created_at, payload FROM transactions WHERE table_id IS NULL AND {UNFINISHED_OR_RESUMABLE}"
ADD_CLONE = "INSERT INTO clone_sources (table_id, location) VALUES (?, ?) ON CONFLICT DO NOTHING"
# A clone's source may be a folder inside a table's: that of its data, or of a branch.
CLONES = """
    WITH clones (id) AS (
        SELECT table_id FROM clone_sources WHERE location = ? OR (location > ? AND location < ?)
    )
    SELECT location FROM tables WHERE id IN (SELECT id FROM clones)
    UNION SELECT location FROM removed_tables WHERE id IN (SELECT id FROM clones)
"""
MAY_SHARE = """
    SELECT 1 FROM clone_sources WHERE location = ? AND table_id IN (
        SELECT id FROM tables WHERE location = ? UNION ALL SELECT id FROM removed_tables WHERE location = ?
    ) LIMIT 1
"""
ADD_SOURCES_OF_SOURCE = """
    INSERT INTO clone_sources (table_id, location) SELECT ?, location FROM clone_sources
    WHERE table_id IN (
        SELECT id FROM tables WHERE location = ? UNION ALL SELECT id FROM removed_tables WHERE location = ?
    ) ON CONFLICT DO NOTHING
"""
# Index builds, drops and the like.
SWEEP_TRANSACTIONS = f"""
    DELETE FROM transactions WHERE id IN (
        SELECT id FROM transactions t WHERE created_at < ? AND updated_at < ? AND {UNREFERENCED}
        ORDER BY created_at, id LIMIT ?
    )
"""
TRANSACTION_COUNTS = """
    SELECT kind, status, count(*) FROM transactions WHERE status IN ('Queued', 'Running') GROUP BY kind, status
"""
BRANCHES = "SELECT DISTINCT branch FROM table_versions WHERE table_id = ? ORDER BY branch"


class Upkeep(Repository):
    """The methods for upkeep, gc and repair."""

    __slots__ = ()

    @writes
    def note_changes(self, table_ids: Iterable[int]) -> None:
        """Note that tables got commits."""
        note_changes(self.connection, table_ids, self._clock())

    @reads
    def has_due_upkeep(self) -> bool:
        """Return whether `claim_upkeep` may return a table; this is cheaper than to try."""
        return self.connection.row(HAS_DUE, self._clock()) is not None

    @writes
    def claim_upkeep(self) -> TableUpkeep | None:
        """Claim the table that is due for longest, for a look at it; return None without any."""
        now = self._clock()
        row = self.connection.row(CLAIM, now + LOOK_LEASE_MS, now + LOOK_LEASE_MS, now)
        return TableUpkeep.of(row) if row else None

    @reads
    def find_upkeep(self, table_id: int) -> TableUpkeep | None:
        """Return what is noted of a table, if it is."""
        row = self.connection.row(FIND, table_id)
        return TableUpkeep.of(row) if row else None

    @writes
    def plan_upkeep(
        self,
        seen: TableUpkeep,
        *,
        rests_until: int,
        due_at: int | None,
        clean_at: int | None,
        state: Mapping[str, Any],
    ) -> None:
        """Record what a look at a table came to: when it is next due, None for not before its next commit.

        A table with commits since it was `seen` is due after its rest at the latest.
        """
        if due_at is None and self.connection.change(FORGET, seen.table_id, seen.changed_at):
            return
        due = rests_until if due_at is None else max(due_at, rests_until)
        soon = max(rests_until, self._clock() + UPKEEP_DELAY_MS)
        plan = seen.changed_at, soon, due, soon, due, rests_until, clean_at, json.dumps(state)
        self.connection.change(PLAN, *plan, seen.table_id)

    @writes
    def delete_ended_upkeep(self, table_id: int) -> None:
        """Delete all but the last of a table's upkeep transactions that have ended: there are many over time."""
        self.connection.change(DELETE_ENDED, UPKEEP, table_id, UPKEEP, table_id, MAX_ENDED - 1)

    @writes
    def delete_ended_transactions(self, ids: Sequence[str]) -> None:
        """Delete those of some transactions that have ended and that nothing refers to."""
        if ids:
            self.connection.change(DELETE_UNREFERENCED.format(ids=placeholders(ids)), *ids)

    @writes
    def sweep_upkeep(self, before: int, limit: int) -> int:
        """Delete up to `limit` of its transactions that have ended and began before a time; return how many."""
        return self.connection.change(SWEEP, UPKEEP, before, limit)

    @reads
    def mount_of_table(self, table_id: int) -> int | None:
        """Return the id of the mount that a table is below, None for a table of this catalog itself."""
        row = self.connection.row(MOUNT, table_id)
        return row[0] if row else None

    @reads
    def oldest_work(self) -> int | None:
        """Return when (ms since 1970) the oldest unfinished transaction of all tables began, without upkeep's own."""
        row = self.connection.row(OLDEST_RUNNING, UPKEEP)
        return row[0] if row else None

    @reads
    def all_locations(self) -> set[str]:
        """Return the locations of tables, of those that can be restored, and of folders scheduled for deletion."""
        return {row[0] for row in self.connection.rows(LOCATIONS)}

    @reads
    def oldest_unfinished_work(self, table_id: int, except_kind: str) -> int | None:
        """Return when (ms since 1970) the oldest unfinished work on a table began, or None without any.

        That is an upload, an unfinished transaction or a failed job that can be resumed, but none of `except_kind`.
        """
        row = self.connection.row(OLDEST_WORK, table_id, except_kind, table_id)
        return row[0] if row else None

    @reads
    def unfinished_jobs_by_table_name(self, except_kind: str) -> list[tuple[int, Path]]:
        """Return when each unfinished job began that names its table, having been submitted before the table existed.

        With each comes the table's path, () for a job that may write any table.
        """
        jobs = [(since, json.loads(payload)) for since, payload in self.connection.rows(JOBS_BY_NAME, except_kind)]
        return [(since, tuple(payload["table"])) for since, payload in jobs if "table" in payload]

    @reads
    def recorded_branches(self, table_id: int) -> list[str]:
        """Return the branches of a table that have commit records; '' is main."""
        return [row[0] for row in self.connection.rows(BRANCHES, table_id)]

    @writes
    def sweep_transactions(self, before: int, limit: int) -> int:
        """Delete up to `limit` transactions that ended before a time and that nothing refers to; return how many."""
        return self.connection.change(SWEEP_TRANSACTIONS, before, before, limit)

    @reads
    def transaction_counts(self) -> dict[tuple[str, str], int]:
        """Return the number of unfinished transactions by kind and status."""
        return {(kind, status): count for kind, status, count in self.connection.rows(TRANSACTION_COUNTS)}

    @writes
    def add_clone(self, table_id: int, source: str) -> None:
        """Record that a table is a shallow clone of the one at a location, whose files and sources it uses."""
        self.connection.change(ADD_CLONE, table_id, source)
        self.connection.change(ADD_SOURCES_OF_SOURCE, table_id, source, source)

    @reads
    def clone_locations(self, location: str) -> list[str]:
        """Return the locations of the shallow clones that use files of a location, or of a folder in it."""
        below = f"{location}/", f"{location}0"  # "0" is what follows "/"
        return [row[0] for row in self.connection.rows(CLONES, location, *below)]

    @reads
    def may_share_files(self, location: str, base: str) -> bool:
        """Return whether a table (or one that can be restored) may use files at a base outside its folder."""
        return self.connection.row(MAY_SHARE, base, location, location) is not None


def note_changes(connection: Connection, table_ids: Iterable[int], now: int) -> None:
    """Note within a transaction that tables got commits; in the order of their ids, so that no two wait for another.

    It makes the schedules due that wait for such commits.
    """
    rows = [(table_id, now, now + UPKEEP_DELAY_MS) for table_id in sorted(set(table_ids))]
    if rows:
        connection.change_many(NOTE, rows)
        mark_due(connection, [row[0] for row in rows], now)
