"""Jobs of the data pipeline: transactions that a driver process runs, with the parts of them that it has saved."""

# ruff: noqa: S608 - only constants of the code are put into SQL, never values

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from lance_namespace.errors import ConcurrentModificationError, TransactionNotFoundError

from tiltyard.model.modes import TransactionStatus
from tiltyard.store.backend import ForeignKeyError
from tiltyard.store.jobs.transactions import IS_WRITABLE, note_claim, refusing_second_run
from tiltyard.store.records import TransactionRecord
from tiltyard.store.repository import Repository, placeholders, reads, writes

CLAIM = f"""
    UPDATE transactions SET status = 'Running', lease_owner = ?, available_at = ?, attempts = attempts + 1,
        updated_at = ?, error = CASE WHEN status = 'Lost' THEN NULL ELSE error END
    WHERE id = ? AND (status IN ('Queued', 'Running') AND available_at <= ? AND paused_at IS NULL OR status = 'Lost')
        AND {IS_WRITABLE}
    RETURNING {TransactionRecord.COLUMNS}
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
    WHERE {{matching}} AND (created_at, id) < (?, ?)
    ORDER BY created_at DESC, id DESC LIMIT ?
"""
# Where a job's table is now, or where the object of a job was that has none (any more), is in or below a namespace.
IN_NAMESPACE = """
    COALESCE((SELECT namespace_id FROM tables WHERE tables.id = transactions.table_id), transactions.namespace_id) IN (
        WITH RECURSIVE inside (id) AS (
            SELECT CAST(? AS BIGINT)
            UNION SELECT namespaces.id FROM inside CROSS JOIN namespaces WHERE namespaces.parent_id = inside.id
        )
        SELECT id FROM inside
    )
"""
IS_IN_NAMESPACE = f"SELECT 1 FROM transactions WHERE transactions.id = ? AND {IN_NAMESPACE}"
IS_LOST_RUN = "is_local AND status = 'Running' AND available_at <= ?"
"""As TransactionRecord.status_at has it: nobody has written yet that it is Lost."""
NEWEST = (1 << 62, "")


class JobFilter(msgspec.Struct, frozen=True):
    """Which jobs are listed: of these kinds, and of one status, paused or not, of one table, if those are given.

    `with_lost` adds the lost ones to those of the status. With `namespace_id`, those of the objects in that namespace
    and below it.

    Of the kind `without_succeeded` those that have succeeded are left out.
    """

    kinds: Sequence[str]
    status: TransactionStatus | None = None
    with_lost: bool = False
    is_paused: bool | None = None
    table_id: int | None = None
    without_succeeded: str | None = None
    namespace_id: int | None = None

    def conditions(self, now: int) -> tuple[str, tuple[object, ...]]:
        """Return SQL on the columns of `transactions`, and its values; their statuses are those at `now`."""
        conditions = [f"kind IN ({placeholders(self.kinds)})"]
        values: list[object] = [*self.kinds]
        if self.status is not None:
            conditions.append(f"CASE WHEN {IS_LOST_RUN} THEN 'Lost' ELSE status END IN (?, ?)")
            values += (now, self.status.value, (TransactionStatus.LOST if self.with_lost else self.status).value)
        if self.is_paused is not None:
            conditions.append("paused_at IS NOT NULL" if self.is_paused else "paused_at IS NULL")
        if self.table_id is not None:
            conditions.append("table_id = ?")
            values.append(self.table_id)
        if self.without_succeeded is not None:
            conditions.append("NOT (kind = ? AND status = ?)")
            values += (self.without_succeeded, TransactionStatus.SUCCEEDED.value)
        if self.namespace_id is not None:
            conditions.append(IN_NAMESPACE)
            values.append(self.namespace_id)
        return " AND ".join(conditions), tuple(values)


class Jobs(Repository):
    """The methods for jobs, besides those for all transactions."""

    __slots__ = ()

    @writes
    def claim_job(self, transaction_id: str, owner: str, lease_ms: int) -> TransactionRecord | None:
        """Claim this transaction if it is queued and due, lost, or its lease has expired; return None otherwise.

        Nor is it claimed while its table is read-only.

        Raises RunKeyTakenError if it is lost, and another one does the same by now.
        """
        now = self._clock()
        with refusing_second_run(transaction_id):
            row = self.connection.row(CLAIM, owner, now + lease_ms, now, transaction_id, now)
        return note_claim(self.connection, row, now)

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
    def is_job_in_namespace(self, transaction_id: str, namespace_id: int) -> bool:
        """Return whether the object of a job is, or was, in a namespace or below it."""
        return self.connection.row(IS_IN_NAMESPACE, transaction_id, namespace_id) is not None

    @reads
    def list_jobs(self, matching: JobFilter, before: tuple[int, str] | None, limit: int) -> list[TransactionRecord]:
        """Return up to `limit` matching transactions older than `before`, a (created_at, id); newest first."""
        conditions, values = matching.conditions(self._clock())
        rows = self.connection.rows(LIST.format(matching=conditions), *values, *(before or NEWEST), limit)
        return [TransactionRecord.of(row) for row in rows]
