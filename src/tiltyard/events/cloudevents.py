"""Events as CloudEvents 1.0 (https://cloudevents.io), in JSON: of changes, and the audit's of requests."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from tiltyard.model.ids import Id
from tiltyard.model.principals import privilege_names

if TYPE_CHECKING:
    from tiltyard.store.events.outbox import EventRecord

MEDIA_TYPE = "application/cloudevents+json"
SOURCE = "/tiltyard"
LOST_EVENTS = "events.lost"
"""The type of the event that tells a reader that events were deleted before it came to them."""
PARTITION_KEY = "partitionkey"
"""The attribute that is the same for all events of one object (CloudEvents' extension for partitioning)."""
CALL = "call"
"""The kind of event that is a record of the audit."""


def event_type(name: str) -> str:
    """Return the type of an event as receivers see it."""
    return f"io.tiltyard.{name}.v1"


def _cloud_event(id_: str, type_: str, at: int, subject: str, data: object) -> dict[str, Any]:
    """Return an event; `at` is in ms since 1970, `subject` the object's id as messages show it, "" for none."""
    time = datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    event = {
        "specversion": "1.0",
        "id": id_,
        "source": SOURCE,
        "type": event_type(type_),
        "time": time,
        "datacontenttype": "application/json",
        "data": data,
    }
    return {**event, "subject": subject} if subject else event


def encode_event(record: EventRecord) -> bytes:
    """Return an event of the outbox as CloudEvent.

    `sequence` orders the events of a catalog, as text too.
    """
    data = event_data(record)
    if record.path is not None:
        data["id"] = list(record.path)
    if record.kind in ("table", "namespace") and record.object_id is not None:
        data["object_id"] = record.object_id
    at = record.data["at_millis"] if record.kind == CALL else record.at
    event = _cloud_event(record.id, record.type, at, subject_of(record), data)
    return msgspec.json.encode({**event, "sequence": f"{record.position:020}", PARTITION_KEY: _partition_key(record)})


def event_data(record: EventRecord) -> dict[str, Any]:
    """Return what an event says of its change, without its object."""
    data: dict[str, Any] = {name: value for name, value in record.data.items() if value not in (None, {})}
    if isinstance(bits := data.get("privileges"), int):
        data["privileges"] = privilege_names(bits)
    data |= data.pop("changed_rows", {})
    if "rows" in data:
        data["rows"] = int(data["rows"]) if str(data["rows"]).isdecimal() else None
    return data


def _partition_key(record: EventRecord) -> str:
    """Return what orders an event among others: its object, by the id that renaming keeps; a job's is its table."""
    if record.object_id is not None:
        return f"{'table' if record.kind == 'job' else record.kind}/{record.object_id}"
    return f"{record.kind}/{record.data['job'] if 'job' in record.data else subject_of(record)}"


def encode_loss(sink: str, after: int, until: int, at: int) -> bytes:
    """Return the event that tells a reader which events were deleted before it came to them."""
    data = {"after": after, "until": until}
    event = _cloud_event(f"lost-{sink}-{after}-{until}", LOST_EVENTS, at, "", data)
    return msgspec.json.encode({**event, "sequence": f"{until:020}"})


def subject_of(record: EventRecord) -> str:
    """Return the id of an event's object as messages show it; "" where it has none, `$` for the root namespace."""
    if record.kind == CALL:
        return str(record.data["object"])
    return "" if record.path is None else str(Id(record.path))
