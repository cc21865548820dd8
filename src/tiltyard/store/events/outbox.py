"""The outbox: events in the order of their stream, from the transaction of a change until the end of their retention.

A position is given after the commit, by whoever looks first (`number_events`): numbers that are given before it can
become visible out of order, and a reader that has seen the later one would miss the earlier one. Of one object, the
order of writing is that of its changes, since the second waits for the commit of the first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec

from tiltyard.store.repository import Path, Record, Repository, reads, writes

if TYPE_CHECKING:
    from collections.abc import Sequence


NUMBER_EVENTS = 1_000
"""How many events get their position in one transaction."""

STREAM = "SELECT name, last_position, lost_until FROM event_streams"
START = """
    INSERT INTO event_streams (name, last_position, lost_until, has_calls, created_at)
    SELECT ?, 0, 0, FALSE, ? WHERE NOT EXISTS (SELECT 1 FROM event_streams)
"""
ADD_CALLS = "UPDATE event_streams SET has_calls = TRUE"
ADD_SINK = """
    INSERT INTO event_sinks (name, position, missed, attempts, due_at, lease_until, created_at)
    SELECT ?, last_position, 0, 0, 0, 0, ? FROM event_streams WHERE TRUE ON CONFLICT (name) DO NOTHING
"""
HAS_UNNUMBERED = "SELECT 1 FROM events WHERE position IS NULL LIMIT 1"
LOCK = "SELECT last_position FROM event_streams /*+ FOR UPDATE */"
UNNUMBERED = "SELECT id FROM events WHERE position IS NULL ORDER BY id LIMIT ?"
NUMBER = "UPDATE events SET position = ? WHERE id = ?"
ADVANCE = "UPDATE event_streams SET last_position = ?"
COLUMNS = "position, event_id, at, type, kind, object_id, namespace_id, other_namespace_id, path, data"
LIST = f"SELECT {COLUMNS} FROM events WHERE position > ? ORDER BY position LIMIT ?"  # noqa: S608 - constants
LATEST = f"""
    SELECT {COLUMNS} FROM events WHERE position > 0 AND position < ? ORDER BY position DESC LIMIT ?
"""  # noqa: S608 - constants
SINCE = "SELECT min(position) FROM events WHERE position > 0 AND at >= ?"
OLDEST = "SELECT position, at FROM events WHERE position > 0 ORDER BY position LIMIT ?"
DELETE = "DELETE FROM events WHERE position > 0 AND position <= ?"
SET_LOST = "UPDATE event_streams SET lost_until = ?"
STOP = ("DELETE FROM event_dead_letters", "DELETE FROM event_sinks", "DELETE FROM event_streams", "DELETE FROM events")


class EventStream(msgspec.Struct, frozen=True):
    """The stream of a catalog's events: its name, its last position, and up to where events were deleted."""

    name: str
    last_position: int
    lost_until: int


class EventRecord(Record, frozen=True):
    """An event; see the columns of `events`. `data` is what it says of the change."""

    position: int
    id: str
    at: int
    type: str
    kind: str
    object_id: int | None
    namespace_id: int | None
    other_namespace_id: int | None
    path: Path | None
    data: dict[str, Any]


class Events(Repository):
    """The methods for the outbox. Triggers write it (`triggers`)."""

    __slots__ = ()

    @writes
    def start_recording(self, sinks: Sequence[str], *, has_calls: bool = False) -> None:
        """Record changes from now on, with `has_calls` the audit's records, too; note from where on sinks get them."""
        now = self._clock()
        self.connection.change(START, uuid4().hex[:8], now)
        if has_calls:
            self.connection.change(ADD_CALLS)
        for name in sinks:
            self.connection.change(ADD_SINK, name, now)

    @writes
    def stop_recording(self) -> None:
        """Record no changes any more, and forget all events, sinks and dead letters."""
        for statement in STOP:
            self.connection.change(statement)

    @reads
    def event_stream(self) -> EventStream | None:
        """Return the stream of events; None while none are recorded."""
        row = self.connection.row(STREAM)
        return EventStream(*row) if row else None

    @reads
    def has_unnumbered_events(self) -> bool:
        """Return whether `number_events` has something to do; this is cheaper than to try."""
        return self.connection.row(HAS_UNNUMBERED) is not None

    @writes
    def number_events(self) -> int:
        """Give events that have been committed their position; return how many got one, at most NUMBER_EVENTS."""
        row = self.connection.row(LOCK)
        if row is None:
            return 0
        ids = self.connection.rows(UNNUMBERED, NUMBER_EVENTS)
        last = row[0] + len(ids)
        self.connection.change_many(NUMBER, [(row[0] + number, id_) for number, (id_,) in enumerate(ids, 1)])
        if ids:
            self.connection.change(ADVANCE, last)
        return len(ids)

    @reads
    def list_events(self, after: int, limit: int) -> list[EventRecord]:
        """Return up to `limit` events behind a position, in order."""
        return [EventRecord.of(row) for row in self.connection.rows(LIST, after, limit)]

    @reads
    def list_latest_events(self, before: int, limit: int) -> list[EventRecord]:
        """Return up to `limit` events before a position, newest first."""
        return [EventRecord.of(row) for row in self.connection.rows(LATEST, before, limit)]

    @reads
    def position_before(self, at: int) -> int | None:
        """Return the position before the first event that is not older than a time; None if all are older."""
        row = self.connection.row(SINCE, at)
        return None if row is None or row[0] is None else row[0] - 1

    @writes
    def sweep_events(self, before: int, max_events: int, limit: int) -> int:
        """Delete up to `limit` events from before a time, and those beyond `max_events`; return how many."""
        row = self.connection.row(LOCK)
        last = row[0] if row else 0
        ended = 0
        for position, at in self.connection.rows(OLDEST, limit):
            if at >= before and position > last - max_events:
                break
            ended = position
        if not ended:
            return 0
        self.connection.change(SET_LOST, ended)
        return self.connection.change(DELETE, ended)
