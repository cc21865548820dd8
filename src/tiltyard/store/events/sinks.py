"""Sinks of events: how far each has come, who sends to it now, and what it did not take."""

# ruff: noqa: S608 - only constants of the code are put into SQL, never values

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from lance_namespace.errors import ConcurrentModificationError

from tiltyard.store.repository import Record, Repository, placeholders, reads, writes

if TYPE_CHECKING:
    from collections.abc import Sequence


MAX_DEAD_LETTERS = 10_000
"""How many dead letters of a sink are kept: the last ones."""

COLUMNS = "name, position, missed, attempts, error, due_at, sent_at, lease_owner, lease_until, created_at"
LIST = f"SELECT {COLUMNS} FROM event_sinks ORDER BY name"
FIND = f"SELECT {COLUMNS} FROM event_sinks WHERE name = ?"
CLAIM = f"""
    UPDATE event_sinks SET lease_owner = ?, lease_until = ?
    WHERE name = ? AND lease_until <= ? AND due_at <= ? RETURNING {COLUMNS}
"""
RENEW = "UPDATE event_sinks SET lease_until = ? WHERE name = ? AND lease_owner = ?"
ACKNOWLEDGE = """
    UPDATE event_sinks SET position = ?, missed = missed + ?, attempts = 0, error = NULL, sent_at = ?, lease_until = ?
    WHERE name = ? AND lease_owner = ?
"""
RELEASE = """
    UPDATE event_sinks SET attempts = ?, error = ?, due_at = ?, lease_owner = NULL, lease_until = 0
    WHERE name = ? AND lease_owner = ?
"""
# Whoever sends now must not acknowledge beyond the new position: its lease ends.
MOVE = """
    UPDATE event_sinks SET position = ?, attempts = 0, error = NULL, due_at = 0, lease_owner = NULL, lease_until = 0
    WHERE name = ?
"""
REMOVE = "DELETE FROM event_sinks WHERE name = ?"

DEAD_COLUMNS = "sink, event_id, position, body, error, failed_at, resend"
ADD_DEAD = f"""
    INSERT INTO event_dead_letters ({DEAD_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, 0)
    ON CONFLICT (sink, event_id) DO UPDATE SET error = excluded.error, failed_at = excluded.failed_at, resend = 0
"""
TRIM_DEAD = """
    DELETE FROM event_dead_letters WHERE sink = ? AND position <= (
        SELECT position FROM event_dead_letters WHERE sink = ? ORDER BY position DESC LIMIT 1 OFFSET ?
    )
"""
KEEP_DEAD = """
    UPDATE event_dead_letters SET error = ?, failed_at = ?, resend = 0 WHERE sink = ? AND event_id = ?
"""
LIST_DEAD = f"SELECT {DEAD_COLUMNS} FROM event_dead_letters WHERE sink = ? AND position > ? ORDER BY position LIMIT ?"
DUE_DEAD = f"SELECT {DEAD_COLUMNS} FROM event_dead_letters WHERE sink = ? AND resend = 1 ORDER BY position LIMIT ?"
RESEND = "UPDATE event_dead_letters SET resend = 1 WHERE sink = ?"
DELETE_DEAD = "DELETE FROM event_dead_letters WHERE sink = ?"
COUNT_DEAD = "SELECT sink, count(*), sum(resend) FROM event_dead_letters GROUP BY sink"


class EventSinkRecord(msgspec.Struct, frozen=True):
    """A sink; see the columns of `event_sinks`. Times are in ms since 1970."""

    name: str
    position: int
    missed: int
    attempts: int
    error: str | None
    due_at: int
    sent_at: int | None
    lease_owner: str | None
    lease_until: int
    created_at: int


class DeadLetter(Record, frozen=True):
    """An event that a sink did not take, as it was sent."""

    sink: str
    event_id: str
    position: int
    body: str
    error: str
    failed_at: int
    is_resent: bool


class EventSinks(Repository):
    """The methods for sinks. With an `owner`, they raise ConcurrentModificationError where another has the lease."""

    __slots__ = ()

    @reads
    def list_event_sinks(self) -> list[EventSinkRecord]:
        """Return all sinks by name."""
        return [EventSinkRecord(*row) for row in self.connection.rows(LIST)]

    @reads
    def find_event_sink(self, name: str) -> EventSinkRecord | None:
        """Return the sink of a name, if there is one."""
        row = self.connection.row(FIND, name)
        return EventSinkRecord(*row) if row else None

    @writes
    def claim_event_sink(self, name: str, owner: str, lease_ms: int) -> EventSinkRecord | None:
        """Lease a sink to `owner`; None if another holds the lease, or it is not due."""
        now = self._clock()
        row = self.connection.row(CLAIM, owner, now + lease_ms, name, now, now)
        return EventSinkRecord(*row) if row else None

    @writes
    def renew_event_sink(self, name: str, owner: str, lease_ms: int) -> None:
        """Renew a lease."""
        self._change_leased(RENEW, self._clock() + lease_ms, name, owner)

    @writes
    def acknowledge_events(self, name: str, owner: str, lease_ms: int, position: int, missed: int = 0) -> None:
        """Note that a sink has all events up to a position, but those that were `missed`; renew the lease."""
        now = self._clock()
        self._change_leased(ACKNOWLEDGE, position, missed, now, now + lease_ms, name, owner)

    @writes
    def release_event_sink(
        self, name: str, owner: str, attempts: int = 0, error: str | None = None, wait_ms: int = 0
    ) -> None:
        """Release a lease; after failed `attempts` the sink is due after a while."""
        self._change_leased(RELEASE, attempts, error, self._clock() + wait_ms if wait_ms else 0, name, owner)

    @writes
    def move_event_sink(self, name: str, position: int) -> bool:
        """Let a sink get the events behind a position, again or not at all; return False if there is no such sink."""
        return self.connection.change(MOVE, position, name) == 1

    @writes
    def remove_event_sink(self, name: str) -> bool:
        """Forget a sink with its dead letters; return whether there was one."""
        return self.connection.change(REMOVE, name) == 1

    @writes
    def add_dead_letter(self, name: str, owner: str, lease_ms: int, letter: DeadLetter, position: int) -> None:
        """Keep an event that a sink did not take, and go on behind a position; the lease is renewed."""
        self.acknowledge_events(name, owner, lease_ms, position)
        values = letter.sink, letter.event_id, letter.position, letter.body, letter.error, self._clock()
        self.connection.change(ADD_DEAD, *values)
        self.connection.change(TRIM_DEAD, name, name, MAX_DEAD_LETTERS)

    @writes
    def keep_dead_letter(self, letter: DeadLetter, error: str) -> None:
        """Note that a dead letter that was sent again was not taken once more."""
        self.connection.change(KEEP_DEAD, error, self._clock(), letter.sink, letter.event_id)

    @reads
    def list_dead_letters(self, name: str, after: int, limit: int) -> list[DeadLetter]:
        """Return up to `limit` dead letters of a sink behind a position, in order."""
        return [DeadLetter.of(row) for row in self.connection.rows(LIST_DEAD, name, after, limit)]

    @reads
    def dead_letters_to_resend(self, name: str, limit: int) -> list[DeadLetter]:
        """Return up to `limit` dead letters that are to be sent again, in order."""
        return [DeadLetter.of(row) for row in self.connection.rows(DUE_DEAD, name, limit)]

    @reads
    def dead_letter_counts(self) -> dict[str, tuple[int, int]]:
        """Return how many dead letters there are by sink, and how many of those are to be sent again."""
        return {sink: (count, int(resent)) for sink, count, resent in self.connection.rows(COUNT_DEAD)}

    @writes
    def resend_dead_letters(self, name: str, ids: Sequence[str] = ()) -> int:
        """Let dead letters be sent again, those of these ids or all; return how many."""
        return self._change_dead(RESEND, name, ids)

    @writes
    def delete_dead_letters(self, name: str, ids: Sequence[str] = ()) -> int:
        """Delete dead letters, those of these ids or all; return how many."""
        return self._change_dead(DELETE_DEAD, name, ids)

    def _change_dead(self, sql: str, name: str, ids: Sequence[str]) -> int:
        which = f" AND event_id IN ({placeholders(ids)})" if ids else ""
        return self.connection.change(f"{sql}{which}", name, *ids)

    def _change_leased(self, sql: str, *values: object) -> None:
        if not self.connection.change(sql, *values):
            raise ConcurrentModificationError("Another server sends events to this sink, or it was moved or removed.")
