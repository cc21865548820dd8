"""Jobs of the data pipeline: transactions that a driver process runs, with the parts of them that it has saved."""

# ruff: noqa: S608 - only constants of the code are put into SQL, never values

from __future__ import annotations

from collections.abc import Sequence

from lance_namespace.errors import ConcurrentModificationError, TransactionNotFoundError

from tiltyard.model.modes import TransactionStatus
from tiltyard.store.backend import ForeignKeyError
from tiltyard.store.paths import placeholders
from tiltyard.store.records import TransactionRecord
from tiltyard.store.repository import Repository, reads, writes

CLAIM = f"""
    UPDATE transactions SET status = 'Running', lease_owner = ?, available_at = ?, attempts = attempts + 1,
        updated_at = ?
    WHERE id = ? AND status IN ('Queued', 'Running') AND available_at <= ? RETURNING {TransactionRecord.COLUMNS}
"""
# Locked, so that a lease which expires meanwhile is not claimed by another before the part is saved.
LOCK_OWNED = "SELECT id FROM transactions WHERE id = ? AND lease_owner = ? AND status = 'Running' /*+ FOR UPDATE */"
SAVE_PART = """
    INSERT INTO job_parts (transaction_id, name, value) VALUES (?, ?, ?)
    ON CONFLICT (transaction_id, name) DO UPDATE SET value = excluded.value
"""
PARTS = "SELECT name, value FROM job_parts WHERE transaction_id = ? AND name > ? ORDER BY name LIMIT ?"
DELETE_PARTS = "DELETE FROM job_parts WHERE transaction_id = ?"
LIST = f"""
    SELECT {TransactionRecord.COLUMNS} FROM transactions
    WHERE kind IN ({{kinds}}) AND status = COALESCE(?, status) AND (created_at, id) < (?, ?)
    ORDER BY created_at DESC, id DESC LIMIT ?
"""
NEWEST = (1 << 62, "")


class Jobs(Repository):
    """The methods for jobs, besides those for all transactions."""

    __slots__ = ()

    @writes
    def claim_job(self, transaction_id: str, owner: str, lease_ms: int) -> TransactionRecord | None:
        """Claim this transaction if it is queued and due, or its lease has expired; return None otherwise."""
        now = self._clock()
        row = self.connection.row(CLAIM, owner, now + lease_ms, now, transaction_id, now)
        return TransactionRecord.of(row) if row else None

    @writes
    def save_job_part(self, transaction_id: str, owner: str, name: str, value: str) -> None:
        """Save a part of a job's checkpoint, replacing the part of the same name.

        Raises TransactionNotFoundError, ConcurrentModificationError when the job is canceled or another driver holds
        the lease.
        """
        if self.connection.row(LOCK_OWNED, transaction_id, owner) is None:
            raise ConcurrentModificationError(f"Job is no longer this driver's: {transaction_id}")
        try:
            self.connection.change(SAVE_PART, transaction_id, name, value)
        except ForeignKeyError:
            raise TransactionNotFoundError(f"Transaction not found: {transaction_id}") from None

    @reads
    def list_job_parts(self, transaction_id: str, after: str, limit: int) -> list[tuple[str, str]]:
        """Return up to `limit` parts of a job's checkpoint as (name, value), those after a name."""
        return [(name, value) for name, value in self.connection.rows(PARTS, transaction_id, after, limit)]

    @writes
    def delete_job_parts(self, transaction_id: str) -> None:
        """Delete the checkpoint of a job that has ended."""
        self.connection.change(DELETE_PARTS, transaction_id)

    @reads
    def list_jobs(
        self, kinds: Sequence[str], status: TransactionStatus | None, before: tuple[int, str] | None, limit: int
    ) -> list[TransactionRecord]:
        """Return up to `limit` transactions of these kinds older than `before`, a (created_at, id); newest first."""
        sql = LIST.format(kinds=placeholders(kinds))
        rows = self.connection.rows(sql, *kinds, status and status.value, *(before or NEWEST), limit)
        return [TransactionRecord.of(row) for row in rows]
