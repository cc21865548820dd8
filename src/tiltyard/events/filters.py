"""Which events a reader wants: of some types, of some objects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tiltyard.events.cloudevents import CALL, event_type, subject_of
from tiltyard.model.ids import DEFAULT_DELIMITER

if TYPE_CHECKING:
    from tiltyard.store.events.outbox import EventRecord


_AUDIT = "audit."


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Selects events whose type begins with one of `types`, of the object with an id, and of all in it.

    A type is written in full (`io.tiltyard.table.created.v1`), or without what all have in common (`table.created`, or
    `table`). Without types all changes are meant, and no records of the audit; without an object, all. `object_id` is
    an id as messages show it.
    """

    types: tuple[str, ...] = ()
    object_id: str = ""

    def matches(self, record: EventRecord) -> bool:
        """Return whether an event is wanted."""
        return self._has_type(record.type) and self._has_object(record)

    @property
    def has_calls(self) -> bool:
        """Whether records of the audit are wanted."""
        return self._has_type(f"{_AUDIT}{CALL}")

    def _has_type(self, name: str) -> bool:
        full = event_type(name)
        if not self.types:
            return not name.startswith(_AUDIT)
        return any(each in (full, name) or name.startswith(f"{each}.") for each in self.types)

    def _has_object(self, record: EventRecord) -> bool:
        if not self.object_id or self.object_id == DEFAULT_DELIMITER:
            return True
        subject = subject_of(record)
        return subject == self.object_id or subject.startswith(f"{self.object_id}{DEFAULT_DELIMITER}")
