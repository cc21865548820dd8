"""Folders scheduled for deletion: recorded first, deleted by a sweeper once due, and removed from here after that.

The folder of a table in creation is scheduled, too, due when its creator's lease expires: so the remains of a crash are
swept like all others. So is a folder that a batch reserves for a table that a later batch of its principal creates.
"""

# ruff: noqa: S608 - only constants of the code are put into SQL, never values

from __future__ import annotations

from lance_namespace.errors import ConcurrentModificationError

from tiltyard.store.protections import HAS_KEPT, IS_SERVER_READ_ONLY, KEPT_TABLES, LOCK
from tiltyard.store.repository import Record, Repository, reads, writes
from tiltyard.store.tables.location_overlap import find_overlap
from tiltyard.store.tables.trash import purge_expired, purge_table_at

CREATING = "creating"
DROPPED = "dropped"
RESERVED = "reserved"


class ScheduledDeletion(Record, frozen=True):
    """A folder to delete at `due_at` (ms since 1970); `claims` counts how often a sweeper has claimed it."""

    location: str
    due_at: int
    transaction_id: str | None
    reason: str
    claims: int


SCHEDULE = """
    INSERT INTO doomed_folders (location, due_at, transaction_id, reason, claims) VALUES (?, ?, ?, ?, 0)
    ON CONFLICT (location) DO UPDATE SET due_at = excluded.due_at,
        transaction_id = excluded.transaction_id, reason = excluded.reason, claims = 0
"""
# Wait for a transaction that is inserting the table of the folder, so that the next statement sees that table.
HOLD = "SELECT 1 FROM doomed_folders WHERE location = ? /*+ FOR UPDATE */"
# Not the folder of a table, nor of one in the trash that no sweeper has begun to delete.
SCHEDULE_UNLESS_USED = """
    INSERT INTO doomed_folders (location, due_at, transaction_id, reason, claims) SELECT ?, ?, ?, ?, 0
    WHERE NOT EXISTS (SELECT 1 FROM tables WHERE location = ?)
        AND NOT EXISTS (SELECT 1 FROM removed_tables WHERE location = ?)
    ON CONFLICT (location) DO UPDATE SET due_at = excluded.due_at,
        transaction_id = excluded.transaction_id, reason = excluded.reason, claims = 0
"""
# Nor, besides, a folder that shallow clones use.
SCHEDULE_ORPHAN = """
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
# A folder that a table uses is never claimed, whatever happened.
_CLAIM = f"""
    WITH due (location) AS MATERIALIZED (
        SELECT location FROM doomed_folders
        WHERE due_at <= ? AND NOT EXISTS (SELECT 1 FROM tables WHERE tables.location = doomed_folders.location)
            {{unless_kept}}
        ORDER BY due_at LIMIT ? /*+ FOR UPDATE SKIP LOCKED */
    )
    UPDATE doomed_folders SET due_at = ?, claims = claims + 1 WHERE location IN (SELECT location FROM due)
    RETURNING {ScheduledDeletion.COLUMNS}
"""
CLAIM = _CLAIM.format(unless_kept="")
CLAIM_UNLESS_KEPT = _CLAIM.format(unless_kept=f"AND location NOT IN (SELECT location FROM ({KEPT_TABLES}) kept_tables)")
DELETE = "DELETE FROM doomed_folders WHERE location = ?"
IS_RESERVED = f"""
    SELECT 1 FROM doomed_folders JOIN transactions ON transactions.id = doomed_folders.transaction_id
    WHERE location = ? AND reason = '{RESERVED}' AND asked_by = ?
"""
IS_SCHEDULED = "SELECT 1 FROM doomed_folders WHERE location = ?"
COUNT = "SELECT count(*) FROM doomed_folders WHERE transaction_id = ?"


class FolderDeletions(Repository):
    """The methods for folders scheduled for deletion."""

    __slots__ = ()

    @writes
    def schedule_deletion(self, location: str, due_at: int, reason: str, transaction_id: str | None = None) -> bool:
        """Schedule a folder for deletion at `due_at` (ms since 1970), or reschedule it; return whether it was.

        The folder of a table, or of one that can be restored, is left alone.
        """
        self.connection.row(HOLD, location)
        values = location, due_at, transaction_id, reason
        return bool(self.connection.change(SCHEDULE_UNLESS_USED, *values, location, location))

    @writes
    def schedule_orphan_deletion(self, location: str, due_at: int, reason: str) -> bool:
        """Schedule an orphaned folder for deletion; return whether it was.

        It is not if by now a table lies in it or around it, one there can be restored or has shallow clones, or the
        folder is scheduled already.
        """
        if find_overlap(self.connection, location):
            return False
        return bool(self.connection.change(SCHEDULE_ORPHAN, location, due_at, reason, *[location] * 4))

    @writes
    def postpone_deletion(self, location: str, lease_ms: int) -> None:
        """Keep a folder for so long from now. Raises ConcurrentModificationError if a sweeper has claimed it."""
        if not self.connection.change(EXTEND, self._clock() + lease_ms, location):
            raise ConcurrentModificationError(f"The folder is being deleted: {location}")

    @writes
    def claim_due_deletions(self, limit: int, lease_ms: int) -> list[ScheduledDeletion]:
        """Claim up to `limit` folders that are due; no other worker gets them for `lease_ms`.

        Their tables cannot be restored from here on. Those of tables that are held, or were removed from what is
        read-only, are not claimed.
        """
        now = self._clock()
        self.connection.row(LOCK)
        if self.connection.row(IS_SERVER_READ_ONLY):
            return []
        claim = CLAIM_UNLESS_KEPT if self.connection.row(HAS_KEPT) else CLAIM
        rows = self.connection.rows(claim, now, limit, now + lease_ms)
        folders = [ScheduledDeletion.of(row) for row in rows]
        for folder in folders:
            purge_table_at(self.connection, folder.location)
        purge_expired(self.connection, now)
        return folders

    @writes
    def complete_deletion(self, location: str) -> None:
        """Remove the record of a folder that has been deleted."""
        self.connection.change(DELETE, location)

    @writes
    def overlaps_tables(self, location: str) -> bool:
        """Return whether a table's folder is inside or around this one."""
        return find_overlap(self.connection, location) is not None

    @reads
    def is_deletion_scheduled(self, location: str) -> bool:
        """Return whether a folder is scheduled for deletion."""
        return self.connection.row(IS_SCHEDULED, location) is not None

    @reads
    def is_location_reserved(self, location: str, principal: str) -> bool:
        """Return whether a batch reserved a folder for a table that this principal creates."""
        return self.connection.row(IS_RESERVED, location, principal) is not None

    @reads
    def count_pending_deletions(self, transaction_id: str) -> int:
        """Return how many folders of a transaction are still to be deleted."""
        row = self.connection.row(COUNT, transaction_id)
        return int(row[0]) if row else 0
