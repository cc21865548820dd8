"""The page of events: the latest that its reader may see, as they happen, and the sinks for administrators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from lance_namespace.errors import InvalidInputError, UnsupportedOperationError

from tiltyard.console.access.forms import form_actions
from tiltyard.console.live_changes import Change, stream_changes
from tiltyard.console.page import Page, PageRequest, Redirect
from tiltyard.console.templates import link
from tiltyard.events.stream import current_stream

if TYPE_CHECKING:
    from starlette.responses import StreamingResponse

EVENTS = 50
"""Events on one page."""
LETTERS = 50
"""Dead letters on one page."""
_VIEW = "events"
KINDS = (
    *("namespace", "table", "table.version", "view", "job", "schedule", "classification", "policy", "grant", "role"),
    *("principal", "key", "protection", "approval", "erasure", "mount", "publication", "snapshot", "function"),
    *("secret", "quota", "audit"),
)
"""Beginnings of types that the filter offers."""
SINCE = {"hour": ("last hour", 3600), "day": ("last day", 86_400), "all": ("all kept", None)}
_TONES = {
    "created": "good", "undropped": "good", "succeeded": "good", "dropped": "warn", "deregistered": "warn",
    "revoked": "warn", "failed": "bad", "lost": "bad", "stale": "bad", "denied": "warn",
}  # fmt: skip
"""Colours of types, by their last word."""
_SHOWN_APART = frozenset({"id", "object_id"})


def show(page: PageRequest, problem: str = "", status: int = 200) -> Page:
    """Show the latest events, or those before them, or the part of the page that changes. Raises InvalidInputError."""
    kind, object_id = page.text("type"), page.text("object")
    values: dict[str, Any] = {
        "kinds": KINDS,
        "chosen": {"type": kind, "object": object_id},
        "is_recording": True,
        "events": [],
        "cursor": "",
        "position": 0,
        "sinks": [],
        "spans": SINCE,
        "problem": problem,
        "is_older": bool(page.text("cursor")),
    }
    try:
        listed = page.calls.call(
            "ListEvents",
            types=[kind] if kind else None,
            object=object_id or None,
            limit=EVENTS,
            page_token=page.text("cursor") or None,
        )
        values |= {"events": [_event(each) for each in listed.events], "cursor": listed.page_token or ""}
        values["position"] = current_stream(page.services.store).last_position
        sinks = None if values["is_older"] else page.calls.attempt("ListEventSinks")
        values["sinks"] = [] if sinks is None else sinks.sinks
    except UnsupportedOperationError:
        values["is_recording"] = False
    if not page.is_fragment:
        return Page("events.html", values, status)
    return Page("events_rows.html" if values["is_older"] else "events_live.html", values, fragment=True)


def follow(page: PageRequest) -> StreamingResponse:
    """Stream the position of the newest event, whenever there is one. Raises UnsupportedOperationError."""
    store = page.services.store
    return stream_changes(lambda: Change({"position": current_stream(store).last_position}))


def _event(entry: Any) -> dict[str, Any]:
    """Return an event as the list shows it: its type without what all have in common, its object, and its data."""
    event = msgspec.json.decode(entry.event)
    data = event["data"]
    name = entry.type.removeprefix("io.tiltyard.").removesuffix(".v1")
    details = {key: value for key, value in data.items() if key not in _SHOWN_APART}
    return {
        "position": entry.position,
        "id": event["id"],
        "at": entry.at_millis,
        "type": name,
        "tone": _TONES.get(name.rpartition(".")[2], ""),
        "path": data.get("id"),
        "details": {key: _text(value) for key, value in details.items()},
    }


def _text(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return " / ".join(value)
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def show_letters(page: PageRequest, problem: str = "", status: int = 200) -> Page:
    """Show what a sink did not take. Raises InvalidInputError (no such sink), PermissionDeniedError."""
    sink = page.text("sink")
    listed = page.calls.call("ListDeadLetters", sink=sink, limit=LETTERS, page_token=page.text("cursor") or None)
    values = {
        "sink": sink,
        "letters": [(each, each.type.removeprefix("io.tiltyard.").removesuffix(".v1")) for each in listed.dead_letters],
        "cursor": listed.page_token or "",
        "problem": problem,
        "section": _VIEW,
    }
    return Page("dead_letters.html", values, status)


def _retry(page: PageRequest) -> Redirect:
    page.calls.call("ReplayEvents", sink=page.text("sink"))
    return Redirect(link(_VIEW))


def _replay(page: PageRequest) -> Redirect:
    if (span := SINCE.get(page.text("since"))) is None:
        raise InvalidInputError(f"Events are replayed since {', '.join(SINCE)}.")
    if (seconds := span[1]) is not None:
        page.calls.call("ReplayEvents", sink=page.text("sink"), since_millis=page.services.clock() - seconds * 1000)
    else:
        oldest = page.calls.call("ListEventSinks").lost_until
        page.calls.call("ReplayEvents", sink=page.text("sink"), after=oldest)
    return Redirect(link(_VIEW))


def _resend(page: PageRequest) -> Redirect:
    event = page.text("event")
    page.calls.call("ResendDeadLetters", sink=page.text("sink"), event_ids=[event] if event else None)
    return Redirect(link("events/dead-letters", sink=page.text("sink")))


act = form_actions(show, {"retry": _retry, "replay": _replay, "resend": _resend})
