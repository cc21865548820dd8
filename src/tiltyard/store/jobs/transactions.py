"""Transactions: long-running operations, which outlive their request. Workers claim them under a lease."""

# ruff: noqa: S608 - only constants of the code are put into SQL, never values

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

from lance_namespace.errors import ConcurrentModificationError, TableNotFoundError, TransactionNotFoundError

from tiltyard.model.modes import TransactionStatus
from tiltyard.model.quotas import Resource
from tiltyard.runtime.tracing import is_tracing, trace_headers
from tiltyard.store.access.quotas import refuse_further
from tiltyard.store.backend import Connection, Row, UniqueError
from tiltyard.store.jobs.events import CLAIM_EVENT, COMPLETE_EVENT, add_event
from tiltyard.store.records import TransactionRecord
from tiltyard.store.repository import Properties, Repository, encode, placeholders, reads, writes

Change = Callable[[TransactionStatus, dict[str, str]], tuple[TransactionStatus, Properties]]

INSERT = f"""
    INSERT INTO transactions (id, kind, status, table_id, payload, properties, error, attempts, lease_owner,
        available_at, created_at, updated_at, asked_by, namespace_id, is_local, run_key)
    VALUES (?, ?, ?, ?, ?, ?, NULL, 0, ?, ?, ?, ?, ?, COALESCE(?, (SELECT namespace_id FROM tables WHERE id = ?)), ?, ?)
    RETURNING {TransactionRecord.COLUMNS}
"""
# Locked until the database transaction ends, so that a concurrent drop of the table cancels this one, too.
LOCK_TABLE = "SELECT id FROM tables WHERE id = ? /*+ FOR KEY SHARE */"
DESCRIBE = f"SELECT {TransactionRecord.COLUMNS} FROM transactions WHERE id = ?"
# While something is read-only, jobs on tables in it wait; while the server is, all do.
IS_WRITABLE = """
    (NOT EXISTS (SELECT 1 FROM protections WHERE protections.kind = 'read_only') OR NOT EXISTS (
        WITH RECURSIVE up (id) AS (
            SELECT namespace_id FROM tables WHERE tables.id = transactions.table_id
            UNION
            SELECT namespaces.parent_id FROM up JOIN namespaces ON namespaces.id = up.id
            WHERE namespaces.parent_id IS NOT NULL
        )
        SELECT 1 FROM protections WHERE protections.kind = 'read_only' AND (
            protections.object_kind = 'server'
            OR protections.object_kind = 'table' AND protections.object_id = transactions.table_id
            OR protections.object_kind = 'namespace' AND protections.object_id IN (SELECT id FROM up)
        )
    ))
"""
CLAIM = f"""
    UPDATE transactions SET status = 'Running', lease_owner = ?, available_at = ?, attempts = attempts + 1,
        updated_at = ?
    WHERE id = (
        SELECT id FROM transactions
        WHERE status IN ('Queued', 'Running') AND NOT is_local AND available_at <= ? AND paused_at IS NULL
            AND {IS_WRITABLE} {{kinds}}
        ORDER BY available_at, created_at LIMIT 1 /*+ FOR UPDATE SKIP LOCKED */
    )
    RETURNING {TransactionRecord.COLUMNS}
"""
IS_CLAIMABLE = f"""
    SELECT 1 FROM transactions
    WHERE status IN ('Queued', 'Running') AND NOT is_local AND available_at <= ? AND paused_at IS NULL
        AND {IS_WRITABLE} {{kinds}} LIMIT 1
"""
# A driver that was cut off for longer than its lease has its job again, unless another has it by then.
HEARTBEAT = """
    UPDATE transactions SET status = 'Running', error = NULL, available_at = ?, updated_at = ?
    WHERE id = ? AND lease_owner = ? AND status IN ('Running', 'Lost') RETURNING status
"""
FINISH = f"""
    UPDATE transactions SET status = ?, error = ?, lease_owner = NULL, available_at = ?, updated_at = ?
    WHERE id = ? AND lease_owner = ? AND status IN ('Running', 'Lost') RETURNING {TransactionRecord.COLUMNS}
"""
ALTER = f"""
    UPDATE transactions SET status = ?, properties = ?, updated_at = ?,
        lease_owner = CASE WHEN ? THEN NULL ELSE lease_owner END
    WHERE id = ? RETURNING {TransactionRecord.COLUMNS}
"""
PAUSE = f"""
    UPDATE transactions SET paused_at = ?, updated_at = ? WHERE id = ? RETURNING {TransactionRecord.COLUMNS}
"""
# Its attempts are counted anew, since each pause has used up one of them.
RESUME = f"""
    UPDATE transactions SET paused_at = NULL, updated_at = ?,
        available_at = CASE WHEN status = 'Queued' THEN ? ELSE available_at END,
        attempts = CASE WHEN status = 'Queued' THEN 0 ELSE attempts END
    WHERE id = ? RETURNING {TransactionRecord.COLUMNS}
"""
UNFINISHED = f"""
    SELECT {TransactionRecord.COLUMNS} FROM transactions
    WHERE table_id = ? AND status IN ('Queued', 'Running') AND kind = COALESCE(?, kind) ORDER BY created_at, id
"""
FAILED = f"""
    SELECT {TransactionRecord.COLUMNS} FROM transactions
    WHERE table_id = ? AND status IN ('Failed', 'Lost') AND kind IN ({{kinds}}) ORDER BY created_at, id
"""
_IS_LOST = """
    is_local AND available_at <= ? AND (status = 'Running' OR status = 'Queued' AND paused_at IS NULL)
"""
HAS_LOST = f"SELECT 1 FROM transactions WHERE status IN ('Queued', 'Running') AND {_IS_LOST} LIMIT 1"
LOST = f"""
    SELECT {TransactionRecord.COLUMNS} FROM transactions WHERE status IN ('Queued', 'Running') AND {_IS_LOST}
    LIMIT ? /*+ FOR UPDATE SKIP LOCKED */
"""
# Its lease's owner stays: it may only have been cut off.
END_LOST = f"""
    UPDATE transactions SET status = 'Lost', error = ?, paused_at = NULL, updated_at = ? WHERE id = ?
    RETURNING {TransactionRecord.COLUMNS}
"""
HOLDER = f"""
    SELECT {TransactionRecord.COLUMNS} FROM transactions WHERE run_key = ? AND status IN ('Queued', 'Running')
"""
NAMESPACE = "SELECT namespace_id FROM transactions WHERE id = ?"
LOST_EVENT = "lost"


class Transactions(Repository):
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
        namespace_id: int | None = None,
        is_local: bool = False,
        run_key: str | None = None,
        is_limited: bool = True,
    ) -> TransactionRecord:
        """Create a transaction; one that is created Running is leased to `owner` for `lease_ms`.

        `requested_by` is the name of the principal who requested it, None for the servers themselves; `namespace_id`
        is where its object is or was, without it the namespace of its table. Where requests are traced, its properties
        say of which trace it is. One that `is_local` is claimed by its id alone; of those with one `run_key`, one may
        be unfinished; one that is not `is_limited` is refused by no quota. Raises TableNotFoundError when the table is
        gone, RunKeyTakenError, ThrottlingError (a quota).
        """
        if table_id is not None and self.connection.row(LOCK_TABLE, table_id) is None:
            raise TableNotFoundError(f"Table not found: it was dropped (id {table_id})")
        now = self._clock()
        kept = {**properties, **trace_headers()} if is_tracing() else dict(properties)
        head = str(uuid4()), kind, status.value, table_id, encode(dict(payload)), encode(kept)
        place = namespace_id, table_id
        with refusing_second_run(run_key or ""):
            created = self._require_row(
                INSERT, *head, owner, now + lease_ms, now, now, requested_by, *place, is_local, run_key
            )
        if requested_by is not None and is_limited and not status.is_final:
            refuse_further(self.connection, Resource.JOBS, self._namespace_of(created.id), requested_by, now)
        return created

    def _namespace_of(self, transaction_id: str) -> int:
        """Return where a transaction's object is; 0 for one without."""
        row = self.connection.row(NAMESPACE, transaction_id)
        return 0 if row is None else row[0] or 0

    @reads
    def find_unfinished_run(self, run_key: str) -> TransactionRecord | None:
        """Return the unfinished transaction with a run key, if there is one."""
        row = self.connection.row(HOLDER, run_key)
        return TransactionRecord.of(row) if row else None

    @reads
    def has_lost_runs(self) -> bool:
        """Return whether `end_lost_runs` has something to do; this is cheaper than to try."""
        return self.connection.row(HAS_LOST, self._clock()) is not None

    @writes
    def end_lost_runs(self, describe: Callable[[TransactionRecord], str], limit: int) -> int:
        """End as Lost up to `limit` runs whose own process is gone; return how many. `describe` returns their error."""
        now = self._clock()
        records = [TransactionRecord.of(row) for row in self.connection.rows(LOST, now, limit)]
        for record in records:
            lost = self._require_row(END_LOST, describe(record), now, record.id)
            add_event(self.connection, lost, LOST_EVENT, now)
        return len(records)

    @reads
    def describe_transaction(self, transaction_id: str) -> TransactionRecord:
        """Return a transaction. Raises TransactionNotFoundError."""
        return self._require_row(DESCRIBE, transaction_id)

    @reads
    def has_claimable_transaction(self, kinds: Sequence[str]) -> bool:
        """Return whether `claim_transaction` may return one; this is cheaper than to try."""
        return self.connection.row(IS_CLAIMABLE.format(kinds=_kind_condition(kinds)), self._clock(), *kinds) is not None

    @writes
    def claim_transaction(
        self, owner: str, lease_ms: int, kinds: Sequence[str] | None = None
    ) -> TransactionRecord | None:
        """Claim the transaction that has waited longest, queued or with an expired lease; return None without any.

        It is Running, and leased to `owner`; `attempts` counts how often it was claimed.
        """
        now = self._clock()
        row = self.connection.row(
            CLAIM.format(kinds=_kind_condition(kinds)), owner, now + lease_ms, now, now, *(kinds or ())
        )
        return note_claim(self.connection, row, now)

    @writes
    def heartbeat(self, transaction_id: str, owner: str, lease_ms: int) -> TransactionStatus:
        """Renew the lease and return the current status; the worker is to stop unless that is Running.

        Raises TransactionNotFoundError, ConcurrentModificationError when another worker holds the lease.
        """
        now = self._clock()
        with refusing_second_run(transaction_id):
            if row := self.connection.row(HEARTBEAT, now + lease_ms, now, transaction_id, owner):
                return TransactionStatus(row[0])
        record = self._require_row(DESCRIBE, transaction_id)
        if not record.status.is_final:
            raise _lease_lost(transaction_id)
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
        """Record how the owner's run ended; Queued requeues it, to be claimed from `available_at` (ms) on.

        Raises TransactionNotFoundError, ConcurrentModificationError when it is canceled or another holds the lease.
        """
        now = self._clock()
        due = now if available_at is None else available_at
        with refusing_second_run(transaction_id):
            row = self.connection.row(FINISH, status.value, error, due, now, transaction_id, owner)
        if row is None:
            self._require_row(DESCRIBE, transaction_id)
            raise _lease_lost(transaction_id)
        record = TransactionRecord.of(row)
        add_event(self.connection, record, COMPLETE_EVENT, now)
        return record

    @writes
    def alter_transaction(
        self, transaction_id: str, change: Change, *, altered_by: str | None = None
    ) -> TransactionRecord:
        """Replace status and properties by what `change` returns for them, under a lock.

        `change` may run more than once; its exceptions pass through. `altered_by` is the principal who requested it.
        Raises TransactionNotFoundError.
        """
        record = self._require_row(DESCRIBE + " /*+ FOR UPDATE */", transaction_id)
        status, properties = change(record.status, dict(record.properties))
        released = status is not TransactionStatus.RUNNING
        now = self._clock()
        with refusing_second_run(transaction_id):
            altered = self._require_row(ALTER, status.value, encode(dict(properties)), now, released, transaction_id)
        if status is not record.status:
            add_event(self.connection, altered, f"set_{status.value.lower()}", now, altered_by)
        return altered

    @writes
    def pause_transaction(
        self, transaction_id: str, check: Callable[[TransactionRecord], None], paused_by: str | None
    ) -> bool:
        """Let a transaction be claimed no more until it is resumed; return False if it was paused already.

        `check(record)` raises where it cannot be paused. Raises TransactionNotFoundError.
        """
        record = self._require_row(DESCRIBE + " /*+ FOR UPDATE */", transaction_id)
        check(record)
        if record.is_paused:
            return False
        now = self._clock()
        add_event(self.connection, self._require_row(PAUSE, now, now, transaction_id), "pause", now, paused_by)
        return True

    @writes
    def resume_transaction(self, transaction_id: str, resumed_by: str | None) -> bool:
        """Let a paused transaction be claimed again, at once; return False if it is not paused.

        Raises TransactionNotFoundError.
        """
        if not self._require_row(DESCRIBE + " /*+ FOR UPDATE */", transaction_id).is_paused:
            return False
        now = self._clock()
        add_event(self.connection, self._require_row(RESUME, now, now, transaction_id), "resume", now, resumed_by)
        return True

    @writes
    def merge_properties(self, transaction_id: str, properties: Properties) -> None:
        """Merge properties into a transaction's, replacing those of the same name, whoever holds the lease.

        Raises TransactionNotFoundError.
        """
        self.alter_transaction(transaction_id, lambda status, current: (status, {**current, **properties}))

    @reads
    def unfinished_transactions(self, table_id: int, kind: str | None = None) -> list[TransactionRecord]:
        """Return the Queued and Running transactions of a table, oldest first."""
        rows = self.connection.rows(UNFINISHED, table_id, kind)
        return [TransactionRecord.of(row) for row in rows]

    @reads
    def failed_transactions(self, table_id: int, kinds: Sequence[str]) -> list[TransactionRecord]:
        """Return the Failed transactions of a table, of these kinds, oldest first."""
        rows = self.connection.rows(FAILED.format(kinds=placeholders(kinds)), table_id, *kinds)
        return [TransactionRecord.of(row) for row in rows]

    def _require_row(self, sql: str, *values: object) -> TransactionRecord:
        if row := self.connection.row(sql, *values):
            return TransactionRecord.of(row)
        raise TransactionNotFoundError(f"Transaction not found: {values[-1]}")


class RunKeyTakenError(ConcurrentModificationError):
    """Another unfinished transaction has the run key: the same is being done already."""


def note_claim(connection: Connection, row: Row | None, now: int) -> TransactionRecord | None:
    """Return the transaction that was claimed, and add the event; None if none was."""
    if row is None:
        return None
    record = TransactionRecord.of(row)
    add_event(connection, record, CLAIM_EVENT, now)
    return record


@contextmanager
def refusing_second_run(what: str) -> Iterator[None]:
    """Raise RunKeyTakenError where the block makes a second unfinished transaction with one run key."""
    try:
        yield
    except UniqueError as error:
        raise RunKeyTakenError(f"Another job does the same already, and only one may: {what}") from error


def _kind_condition(kinds: Sequence[str] | None) -> str:
    return "" if kinds is None else f"AND kind IN ({placeholders(kinds)})"


def _lease_lost(transaction_id: str) -> ConcurrentModificationError:
    return ConcurrentModificationError(f"Transaction is no longer this worker's: {transaction_id}")
