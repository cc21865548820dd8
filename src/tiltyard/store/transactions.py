"""Transactions: work that outlives the request that asked for it. Workers claim it under a lease."""

# ruff: noqa: S608 - only constants of the code are put into SQL, never values

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import uuid4

from lance_namespace.errors import ConcurrentModificationError, TableNotFoundError, TransactionNotFoundError

from tiltyard.model.modes import TransactionStatus
from tiltyard.store.connection_scope import Scope, reads, writes
from tiltyard.store.paths import among
from tiltyard.store.records import Properties, TransactionRecord, encode

Change = Callable[[TransactionStatus, dict[str, str]], tuple[TransactionStatus, Properties]]

INSERT = f"""
    INSERT INTO transactions (id, kind, status, table_id, payload, properties, error, attempts, lease_owner,
        available_at, created_at, updated_at, asked_by)
    VALUES (?, ?, ?, ?, ?, ?, NULL, 0, ?, ?, ?, ?, ?) RETURNING {TransactionRecord.COLUMNS}
"""
# Held until this transaction is done, so that whoever drops the table cancels this one too.
HOLD_TABLE = "SELECT id FROM tables WHERE id = ? /*+ FOR KEY SHARE */"
DESCRIBE = f"SELECT {TransactionRecord.COLUMNS} FROM transactions WHERE id = ?"
CLAIM = f"""
    UPDATE transactions SET status = 'Running', lease_owner = ?, available_at = ?, attempts = attempts + 1,
        updated_at = ?
    WHERE id = (
        SELECT id FROM transactions WHERE status IN ('Queued', 'Running') AND available_at <= ? {{kinds}}
        ORDER BY available_at, created_at LIMIT 1 /*+ FOR UPDATE SKIP LOCKED */
    )
    RETURNING {TransactionRecord.COLUMNS}
"""
WAITS = "SELECT 1 FROM transactions WHERE status IN ('Queued', 'Running') AND available_at <= ? {kinds} LIMIT 1"
HEARTBEAT = """
    UPDATE transactions SET available_at = ?, updated_at = ?
    WHERE id = ? AND lease_owner = ? AND status = 'Running' RETURNING status
"""
FINISH = f"""
    UPDATE transactions SET status = ?, error = ?, lease_owner = NULL, available_at = ?, updated_at = ?
    WHERE id = ? AND lease_owner = ? AND status = 'Running' RETURNING {TransactionRecord.COLUMNS}
"""
ALTER = f"""
    UPDATE transactions SET status = ?, properties = ?, updated_at = ?,
        lease_owner = CASE WHEN ? THEN NULL ELSE lease_owner END
    WHERE id = ? RETURNING {TransactionRecord.COLUMNS}
"""
UNFINISHED = f"""
    SELECT {TransactionRecord.COLUMNS} FROM transactions
    WHERE table_id = ? AND status IN ('Queued', 'Running') AND kind = COALESCE(?, kind) ORDER BY created_at, id
"""
FAILED = f"""
    SELECT {TransactionRecord.COLUMNS} FROM transactions
    WHERE table_id = ? AND status = 'Failed' AND kind IN ({{kinds}}) ORDER BY created_at, id
"""


class Transactions(Scope):
    """The methods for transactions."""

    __slots__ = ()

    @writes
    def create_transaction(
        self,
        kind: str,
        table_id: int | None,
        payload: Mapping[str, Any],
        properties: Properties,
        status: TransactionStatus = TransactionStatus.QUEUED,
        *,
        owner: str | None = None,
        lease_ms: int = 0,
        requested_by: str | None = None,
    ) -> TransactionRecord:
        """Add a transaction; one that is created Running belongs to `owner` for `lease_ms`.

        `requested_by` is the name of the principal who wants it, None the servers themselves.
        Raises TableNotFoundError when the table is gone.
        """
        if table_id is not None and self.connection.row(HOLD_TABLE, table_id) is None:
            raise TableNotFoundError(f"Table not found: it was dropped (id {table_id})")
        now = self._clock()
        head = str(uuid4()), kind, status.value, table_id, encode(dict(payload)), encode(dict(properties))
        return self._described(INSERT, *head, owner, now + lease_ms, now, now, requested_by)

    @reads
    def describe_transaction(self, transaction_id: str) -> TransactionRecord:
        """Return a transaction. Raises TransactionNotFoundError."""
        return self._described(DESCRIBE, transaction_id)

    @reads
    def has_claimable_transaction(self, kinds: Sequence[str]) -> bool:
        """Return whether `claim_transaction` may find something: cheaper than to try."""
        return self.connection.row(WAITS.format(kinds=_among(kinds)), self._clock(), *kinds) is not None

    @writes
    def claim_transaction(
        self, owner: str, lease_ms: int, kinds: Sequence[str] | None = None
    ) -> TransactionRecord | None:
        """Hand out the transaction that waits longest, or one whose worker let its lease run out; None without any.

        It is Running, and `owner`'s until the lease ends; `attempts` counts how often it was handed out.
        """
        now = self._clock()
        row = self.connection.row(CLAIM.format(kinds=_among(kinds)), owner, now + lease_ms, now, now, *(kinds or ()))
        return TransactionRecord.of(row) if row else None

    @writes
    def heartbeat(self, transaction_id: str, owner: str, lease_ms: int) -> TransactionStatus:
        """Extend the lease, and return the status now: stop unless it is Running.

        Raises TransactionNotFoundError, ConcurrentModificationError when another worker has it.
        """
        now = self._clock()
        if row := self.connection.row(HEARTBEAT, now + lease_ms, now, transaction_id, owner):
            return TransactionStatus(row[0])
        record = self._described(DESCRIBE, transaction_id)
        if not record.status.finished:
            raise _lost(transaction_id)
        return record.status

    @writes
    def finish_transaction(
        self,
        transaction_id: str,
        owner: str,
        status: TransactionStatus,
        error: str | None = None,
        *,
        available_at: int | None = None,
    ) -> TransactionRecord:
        """Write how the owner's run ended; Queued puts it back, to be handed out from `available_at` on.

        Raises TransactionNotFoundError, ConcurrentModificationError when it is canceled or another worker has it.
        """
        now = self._clock()
        due = now if available_at is None else available_at
        row = self.connection.row(FINISH, status.value, error, due, now, transaction_id, owner)
        if row is None:
            self._described(DESCRIBE, transaction_id)
            raise _lost(transaction_id)
        return TransactionRecord.of(row)

    @writes
    def alter_transaction(self, transaction_id: str, change: Change) -> TransactionRecord:
        """Replace status and properties by what `change` makes of them; nobody else changes them meanwhile.

        `change` may run more than once, and what it raises is raised. Raises TransactionNotFoundError.
        """
        seen = self._described(DESCRIBE + " /*+ FOR UPDATE */", transaction_id)
        status, properties = change(seen.status, dict(seen.properties))
        released = status is not TransactionStatus.RUNNING
        values = status.value, encode(dict(properties)), self._clock(), released, transaction_id
        return self._described(ALTER, *values)

    @writes
    def merge_properties(self, transaction_id: str, properties: Properties) -> None:
        """Let properties join those that are there, of whomever; of the same name they replace them.

        Raises TransactionNotFoundError.
        """
        self.alter_transaction(transaction_id, lambda status, seen: (status, {**seen, **properties}))

    @reads
    def unfinished_transactions(self, table_id: int, kind: str | None = None) -> list[TransactionRecord]:
        """Return the Queued and Running transactions of a table, oldest first."""
        rows = self.connection.rows(UNFINISHED, table_id, kind)
        return [TransactionRecord.of(row) for row in rows]

    @reads
    def failed_transactions(self, table_id: int, kinds: Sequence[str]) -> list[TransactionRecord]:
        """Return the Failed transactions of a table, of these kinds, oldest first."""
        rows = self.connection.rows(FAILED.format(kinds=among(kinds)), table_id, *kinds)
        return [TransactionRecord.of(row) for row in rows]

    def _described(self, sql: str, *values: object) -> TransactionRecord:
        if row := self.connection.row(sql, *values):
            return TransactionRecord.of(row)
        raise TransactionNotFoundError(f"Transaction not found: {values[-1]}")


def _among(kinds: Sequence[str] | None) -> str:
    return "" if kinds is None else f"AND kind IN ({among(kinds)})"


def _lost(transaction_id: str) -> ConcurrentModificationError:
    return ConcurrentModificationError(f"Transaction is no longer this worker's: {transaction_id}")
