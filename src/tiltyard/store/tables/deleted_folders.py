"""Folders that will be deleted: marked first, deleted by a sweeper once due, and only then forgotten.

A table in creation has its folder here too, due when the lease of its creator runs out: what a crash leaves behind
is swept like all the rest. So is a folder that a batch chose for a table that a later one of the same principal makes.
"""

# ruff: noqa: S608 - only constants of the code are put into SQL, never values

from __future__ import annotations

from lance_namespace.errors import ConcurrentModificationError

from tiltyard.store.connection_scope import Scope, reads, writes
from tiltyard.store.records import ScheduledDeletion
from tiltyard.store.tables.location_overlap import overlap
from tiltyard.store.tables.trash import forget_expired, forget_removed

CREATING = "creating"
DROPPED = "dropped"
RESERVED = "reserved"

DOOM = """
    INSERT INTO doomed_folders (location, due_at, transaction_id, reason, claims) VALUES (?, ?, ?, ?, 0)
    ON CONFLICT (location) DO UPDATE SET due_at = excluded.due_at,
        transaction_id = excluded.transaction_id, reason = excluded.reason, claims = 0
"""
# Whoever enters the table of a folder at this moment is waited for, so that the next statement sees it.
HOLD = "SELECT 1 FROM doomed_folders WHERE location = ? /*+ FOR UPDATE */"
# What a table uses stays; and for its time what a removed one holds, and no sweeper has begun to delete.
DOOM_UNLESS_KEPT = """
    INSERT INTO doomed_folders (location, due_at, transaction_id, reason, claims) SELECT ?, ?, ?, ?, 0
    WHERE NOT EXISTS (SELECT 1 FROM tables WHERE location = ?)
        AND NOT EXISTS (SELECT 1 FROM removed_tables WHERE location = ?)
    ON CONFLICT (location) DO UPDATE SET due_at = excluded.due_at,
        transaction_id = excluded.transaction_id, reason = excluded.reason, claims = 0
"""
# Beside all that, what shallow clones use.
DOOM_UNKNOWN = """
    INSERT INTO doomed_folders (location, due_at, transaction_id, reason, claims) SELECT ?, ?, NULL, ?, 0
    WHERE NOT EXISTS (SELECT 1 FROM tables WHERE location = ?)
        AND NOT EXISTS (SELECT 1 FROM removed_tables WHERE location = ?)
        AND NOT EXISTS (SELECT 1 FROM tables WHERE id IN (SELECT table_id FROM clone_sources WHERE location = ?))
        AND NOT EXISTS (
            SELECT 1 FROM removed_tables WHERE id IN (SELECT table_id FROM clone_sources WHERE location = ?)
        )
    ON CONFLICT (location) DO NOTHING
"""
EXTEND = "UPDATE doomed_folders SET due_at = ? WHERE location = ? AND claims = 0"
# A folder that a table uses is never handed out, whatever happened.
CLAIM = f"""
    WITH due (location) AS MATERIALIZED (
        SELECT location FROM doomed_folders
        WHERE due_at <= ? AND NOT EXISTS (SELECT 1 FROM tables WHERE tables.location = doomed_folders.location)
        ORDER BY due_at LIMIT ? /*+ FOR UPDATE SKIP LOCKED */
    )
    UPDATE doomed_folders SET due_at = ?, claims = claims + 1 WHERE location IN (SELECT location FROM due)
    RETURNING {ScheduledDeletion.COLUMNS}
"""
FORGET = "DELETE FROM doomed_folders WHERE location = ?"
IS_RESERVED = f"""
    SELECT 1 FROM doomed_folders JOIN transactions ON transactions.id = doomed_folders.transaction_id
    WHERE location = ? AND reason = '{RESERVED}' AND asked_by = ?
"""
COUNT = "SELECT count(*) FROM doomed_folders WHERE transaction_id = ?"


class Folders(Scope):
    """The methods for doomed folders."""

    __slots__ = ()

    @writes
    def schedule_deletion(self, location: str, due_at: int, reason: str, transaction_id: str | None = None) -> bool:
        """Mark a folder as one to delete once `due_at` has passed; mark it anew if it is marked already.

        That of a table, or of a removed one that can be brought back, is left as it is: False says so.
        """
        self.connection.row(HOLD, location)
        values = location, due_at, transaction_id, reason
        return bool(self.connection.change(DOOM_UNLESS_KEPT, *values, location, location))

    @writes
    def schedule_orphan_deletion(self, location: str, due_at: int, reason: str) -> bool:
        """Mark a folder that nobody was found to know; return whether it was marked.

        It is not if by now a table lies there, inside or around, can be brought back, or is a shallow clone of what
        lies there, or if the folder is marked already.
        """
        if overlap(self.connection, location):
            return False
        return bool(self.connection.change(DOOM_UNKNOWN, location, due_at, reason, *[location] * 4))

    @writes
    def postpone_deletion(self, location: str, due_at: int) -> None:
        """Put off the deletion of a folder. Raises ConcurrentModificationError when a sweeper has it, or had it."""
        if not self.connection.change(EXTEND, due_at, location):
            raise ConcurrentModificationError(f"The folder is being deleted: {location}")

    @writes
    def claim_due_deletions(self, limit: int, lease_ms: int) -> list[ScheduledDeletion]:
        """Hand out up to `limit` folders that are due. No other worker gets them for `lease_ms`.

        Their tables cannot be brought back from here on.
        """
        now = self._clock()
        rows = self.connection.rows(CLAIM, now, limit, now + lease_ms)
        folders = [ScheduledDeletion(*row) for row in rows]
        for folder in folders:
            forget_removed(self.connection, folder.location)
        forget_expired(self.connection, now)
        return folders

    @writes
    def complete_deletion(self, location: str) -> None:
        """Note that a folder is deleted."""
        self.connection.change(FORGET, location)

    @reads
    def is_location_reserved(self, location: str, principal: str) -> bool:
        """Whether a folder waits for a table that a principal makes."""
        return self.connection.row(IS_RESERVED, location, principal) is not None

    @reads
    def count_pending_deletions(self, transaction_id: str) -> int:
        """Return how many folders of a transaction are left to delete."""
        row = self.connection.row(COUNT, transaction_id)
        return int(row[0]) if row else 0
