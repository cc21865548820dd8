"""What happened to transactions: a bounded log of the claims, pauses and ends of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tiltyard.store.repository import Record, Repository, reads

if TYPE_CHECKING:
    from tiltyard.store.backend import Connection
    from tiltyard.store.records import TransactionRecord

MAX_EVENTS = 1_000
"""How many events of a transaction are stored: the last ones."""

CLAIM_EVENT = "claim"
"""A worker or a driver has claimed it, under a lease."""
COMPLETE_EVENT = "claim_complete"
"""Whoever had claimed it has ended it, or released it for another one."""

INSERT = """
    INSERT INTO job_events
        (transaction_id, number, happened_at, event, status, caused_by, attempt, rows_processed, message)
    VALUES (?, (SELECT COALESCE(MAX(number), 0) + 1 FROM job_events WHERE transaction_id = ?), ?, ?, ?, ?, ?, ?, ?)
    RETURNING number
"""
DELETE_OLD = "DELETE FROM job_events WHERE transaction_id = ? AND number <= ?"
LIST = """
    SELECT happened_at, event, status, caused_by, attempt, rows_processed, message FROM job_events
    WHERE transaction_id = ? ORDER BY number
"""

_ROWS = ("rows", "num_indexed_rows")
"""The properties that say how many rows a job has processed."""


class JobEvent(Record, frozen=True):
    """An event of a transaction. `caused_by` is the principal who requested it, None for who runs the transaction."""

    happened_at: int
    event: str
    status: str
    caused_by: str | None
    attempt: int
    rows_processed: int | None
    message: str | None


def add_event(
    connection: Connection, record: TransactionRecord, event: str, now: int, caused_by: str | None = None
) -> None:
    """Record an event of a transaction, in the state that it has now, whose row is locked."""
    rows = next((record.properties[name] for name in _ROWS if record.properties.get(name, "").isdecimal()), None)
    row = connection.row(
        INSERT,
        *(record.id, record.id, now, event, record.status.value, caused_by, record.attempts),
        None if rows is None else min(int(rows[:19]), (1 << 63) - 1),
        record.error,
    )
    if row is not None and row[0] > MAX_EVENTS:
        connection.change(DELETE_OLD, record.id, row[0] - MAX_EVENTS)


class JobEvents(Repository):
    """The methods for events of transactions."""

    __slots__ = ()

    @reads
    def list_job_events(self, transaction_id: str) -> list[JobEvent]:
        """Return the events of a transaction, oldest first; at most MAX_EVENTS."""
        return [JobEvent.of(row) for row in self.connection.rows(LIST, transaction_id)]
