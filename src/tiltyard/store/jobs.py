"""Jobs of the data pipeline: transactions that a driver outside of the server runs, and what it has done of them."""

# ruff: noqa: S608 - only constants of the code are put into SQL, never values

from __future__ import annotations

from collections.abc import Sequence

from lance_namespace.errors import ConcurrentModificationError, TransactionNotFoundError

from tiltyard.model.modes import TransactionStatus
from tiltyard.store.backend import ForeignKeyError
from tiltyard.store.connection_scope import Scope, reads, writes
from tiltyard.store.paths import among
from tiltyard.store.records import TransactionRecord

CLAIM = f"""
    UPDATE transactions SET status = 'Running', lease_owner = ?, available_at = ?, attempts = attempts + 1,
        updated_at = ?
    WHERE id = ? AND status IN ('Queued', 'Running') AND available_at <= ? RETURNING {TransactionRecord.COLUMNS}
"""
# The row is held, so that a lease which ends meanwhile is not given to another before the part is there.
OWNED = "SELECT id FROM transactions WHERE id = ? AND lease_owner = ? AND status = 'Running' /*+ FOR UPDATE */"
KEEP = """
    INSERT INTO job_parts (transaction_id, name, value) VALUES (?, ?, ?)
    ON CONFLICT (transaction_id, name) DO UPDATE SET value = excluded.value
"""
PARTS = "SELECT name, value FROM job_parts WHERE transaction_id = ? AND name > ? ORDER BY name LIMIT ?"
FORGET = "DELETE FROM job_parts WHERE transaction_id = ?"
LIST = f"""
    SELECT {TransactionRecord.COLUMNS} FROM transactions
    WHERE kind IN ({{kinds}}) AND status = COALESCE(?, status) AND (created_at, id) < (?, ?)
    ORDER BY created_at DESC, id DESC LIMIT ?
"""
LAST = (1 << 62, "")


class Jobs(Scope):
    """The methods for jobs."""

    __slots__ = ()

    @writes
    def claim_job(self, transaction_id: str, owner: str, lease_ms: int) -> TransactionRecord | None:
        """Hand out this transaction if it is Queued and due, or its lease has ended; None otherwise."""
        now = self._clock()
        row = self.connection.row(CLAIM, owner, now + lease_ms, now, transaction_id, now)
        return TransactionRecord.of(row) if row else None

    @writes
    def save_job_part(self, transaction_id: str, owner: str, name: str, value: str) -> None:
        """Remember that a part of the owner's job is done; a part that is there is replaced.

        Raises TransactionNotFoundError, ConcurrentModificationError when the job is canceled or another has it.
        """
        if self.connection.row(OWNED, transaction_id, owner) is None:
            raise ConcurrentModificationError(f"Job is no longer this driver's: {transaction_id}")
        try:
            self.connection.change(KEEP, transaction_id, name, value)
        except ForeignKeyError:
            raise TransactionNotFoundError(f"Transaction not found: {transaction_id}") from None

    @reads
    def list_job_parts(self, transaction_id: str, after: str, limit: int) -> list[tuple[str, str]]:
        """Return up to `limit` parts as (name, value), by name, those after a name."""
        return [(name, value) for name, value in self.connection.rows(PARTS, transaction_id, after, limit)]

    @writes
    def delete_job_parts(self, transaction_id: str) -> None:
        """Forget what was kept of a job, for it has ended."""
        self.connection.change(FORGET, transaction_id)

    @reads
    def list_jobs(
        self, kinds: Sequence[str], status: TransactionStatus | None, before: tuple[int, str] | None, limit: int
    ) -> list[TransactionRecord]:
        """Return up to `limit` transactions of these kinds older than `before`, a (created_at, id); newest first."""
        text = LIST.format(kinds=among(kinds))
        rows = self.connection.rows(text, *kinds, status and status.value, *(before or LAST), limit)
        return [TransactionRecord.of(row) for row in rows]
