"""List the sinks of events and what they did not take; send that again, or all events from a position on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from lance_namespace.errors import InvalidInputError

from tiltyard.access.needs import ADMINISTRATORS
from tiltyard.events.stream import current_stream, replay_position
from tiltyard.model.operations import operation
from tiltyard.model.spec import models
from tiltyard.store.events.sinks import MAX_DEAD_LETTERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tiltyard.context import Context
    from tiltyard.store.events.sinks import DeadLetter, EventSinkRecord


@operation(needs=ADMINISTRATORS, changes=False)
def list_event_sinks(ctx: Context, request: models.ListEventSinksRequest) -> models.ListEventSinksResponse:
    """List the sinks: how far each has come, and what it did not take. Raises UnsupportedOperationError."""
    stream, letters = current_stream(ctx.store), ctx.store.dead_letter_counts()
    configured = ctx.services.settings.all_event_sinks
    return models.ListEventSinksResponse(
        sinks=[
            models.EventSinkEntry(
                name=sink.name,
                configured=sink.name in configured,
                position=sink.position,
                waiting=stream.last_position - sink.position,
                missed=sink.missed,
                attempts=sink.attempts,
                error=sink.error,
                due_at_millis=sink.due_at,
                sent_at_millis=sink.sent_at,
                dead_letters=letters.get(sink.name, (0, 0))[0],
                resending=letters.get(sink.name, (0, 0))[1],
            )
            for sink in ctx.store.list_event_sinks()
        ],
        last_position=stream.last_position,
        lost_until=stream.lost_until,
    )


@operation(needs=ADMINISTRATORS, changes=False)
def list_dead_letters(ctx: Context, request: models.ListDeadLettersRequest) -> models.ListDeadLettersResponse:
    """List the events that a sink did not take, in order. Raises InvalidInputError (no such sink)."""
    _find_sink(ctx, request.sink)

    def fetch(after: int | None, count: int) -> Sequence[DeadLetter]:
        return ctx.store.list_dead_letters(request.sink, -1 if after is None else after, count)

    letters, token = ctx.paging.fetch_page(
        f"dead letters {request.sink}", request.page_token, request.limit, fetch, lambda letter: letter.position
    )
    return models.ListDeadLettersResponse(dead_letters=[_to_entry(each) for each in letters], page_token=token)


@operation(needs=ADMINISTRATORS, while_read_only=True)
def resend_dead_letters(ctx: Context, request: models.ResendDeadLettersRequest) -> models.ResendDeadLettersResponse:
    """Let a server send dead letters again, those with these ids or all. Raises InvalidInputError (no such sink)."""
    _find_sink(ctx, request.sink)
    if len(request.event_ids or ()) > MAX_DEAD_LETTERS:
        raise InvalidInputError(f"event_ids names more than {MAX_DEAD_LETTERS} events.")
    count = ctx.store.resend_dead_letters(request.sink, tuple(request.event_ids or ()))
    return models.ResendDeadLettersResponse(resending=count)


@operation(needs=ADMINISTRATORS, while_read_only=True)
def replay_events(ctx: Context, request: models.ReplayEventsRequest) -> models.ReplayEventsResponse:
    """Let a sink get all events behind a position or since a time, again or not at all; without either what waits, now.

    A sink that rests after a failure is tried at once. Raises InvalidInputError (no such sink, a position that is not
    kept), UnsupportedOperationError.
    """
    if request.after is not None and request.since_millis is not None:
        raise InvalidInputError("Say from where: either after or since_millis.")
    stream, sink = current_stream(ctx.store), _find_sink(ctx, request.sink)
    position = sink.position
    if request.after is not None or request.since_millis is not None:
        position = replay_position(ctx.store, request.after, request.since_millis)
    if not ctx.store.move_event_sink(request.sink, position):
        raise _no_sink(request.sink)
    return models.ReplayEventsResponse(position=position, waiting=stream.last_position - position)


def _find_sink(ctx: Context, name: str) -> EventSinkRecord:
    sink = ctx.store.find_event_sink(name)
    if sink is None:
        raise _no_sink(name)
    return sink


def _no_sink(name: str) -> InvalidInputError:
    return InvalidInputError(f"There is no event sink '{name[:64]}': ListEventSinks has those that there are.")


def _to_entry(letter: DeadLetter) -> models.DeadLetterEntry:
    event = msgspec.json.decode(letter.body)
    return models.DeadLetterEntry(
        event_id=letter.event_id,
        position=letter.position,
        type=event["type"],
        subject=event.get("subject"),
        error=letter.error,
        failed_at_millis=letter.failed_at,
        resending=letter.is_resent,
        event=letter.body,
    )
