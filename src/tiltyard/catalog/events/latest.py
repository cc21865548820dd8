"""List the latest events that a caller may see."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lance_namespace.errors import InvalidInputError

from tiltyard.access.needs import ANY_CALLER
from tiltyard.access.visible_events import visible_events
from tiltyard.events.cloudevents import encode_event, event_type, subject_of
from tiltyard.events.filters import EventFilter
from tiltyard.events.stream import current_stream
from tiltyard.model.operations import operation
from tiltyard.model.paging import page_size
from tiltyard.model.spec import models

if TYPE_CHECKING:
    from tiltyard.context import Context
    from tiltyard.store.events.outbox import EventRecord

MAX_LISTED_EVENTS = 500
"""Events of one response."""
PAGE_EVENTS = 200
"""Events that are read at a time."""
MAX_PAGES = 25
"""Pages that are read for one response: the next one goes on behind them, if it has to."""
MAX_TYPES = 100
"""Types that a request names."""


@operation(needs=ANY_CALLER, changes=False)
def list_events(ctx: Context, request: models.ListEventsRequest) -> models.ListEventsResponse:
    """List events that the caller may see, newest first; a page may have fewer than `limit`, and a next one.

    Raises InvalidInputError, UnsupportedOperationError (no events are recorded).
    """
    types = tuple(request.types or ())
    if len(types) > MAX_TYPES:
        raise InvalidInputError(f"types names {len(types)} types: at most {MAX_TYPES}.")
    size, conditions = page_size(request.limit, MAX_LISTED_EVENTS), EventFilter(types, request.object or "")
    stream = current_stream(ctx.store)
    scope = f"events {stream.name} {conditions!r}"
    before = ctx.paging.read_key(scope, request.page_token)
    before = stream.last_position + 1 if before is None else before
    found: list[EventRecord] = []
    has_more = True
    for _ in range(MAX_PAGES):
        page = ctx.store.list_latest_events(before, PAGE_EVENTS)
        found += visible_events(ctx, filter(conditions.matches, page))
        has_more = len(page) == PAGE_EVENTS
        before = page[-1].position if page else before
        if len(found) >= size or not has_more:
            break
    if len(found) > size:
        found, has_more = found[:size], True
        before = found[-1].position
    token = ctx.paging.make_token(scope, before) if has_more else None
    return models.ListEventsResponse(events=[_to_entry(each) for each in found], page_token=token)


def _to_entry(record: EventRecord) -> models.EventEntry:
    return models.EventEntry(
        position=record.position,
        type=event_type(record.type),
        at_millis=record.at,
        subject=subject_of(record) or None,
        event=encode_event(record).decode(),
    )
