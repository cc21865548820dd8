"""Find the stream of a catalog's events, and the position from which a sink gets them again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lance_namespace.errors import InvalidInputError, UnsupportedOperationError

if TYPE_CHECKING:
    from tiltyard.store import Store
    from tiltyard.store.events.outbox import EventStream


def current_stream(store: Store) -> EventStream:
    """Return the stream, all events with their positions. Raises UnsupportedOperationError where none are recorded."""
    while store.has_unnumbered_events() and store.number_events():
        pass
    stream = store.event_stream()
    if stream is None:
        raise UnsupportedOperationError(
            "This catalog keeps no events: start its servers with the setting events, or event_sinks."
        )
    return stream


def replay_position(store: Store, after: int | None, since: int | None) -> int:
    """Return the position behind which a replay begins: `after`, or that of a time (`since`, in ms since 1970).

    Raises InvalidInputError for one that is not kept, UnsupportedOperationError where no events are recorded.
    """
    stream = current_stream(store)
    position = store.position_before(since) if since is not None else after
    position = stream.last_position if position is None else position
    if not stream.lost_until <= position <= stream.last_position:
        raise InvalidInputError(
            f"Events are kept from position {stream.lost_until} to {stream.last_position}: choose one of those."
        )
    return position
