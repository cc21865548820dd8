"""Read the events of a server as they come, and again after a cut connection, behind the last one that was read."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import msgspec
from lance_namespace.errors import InvalidInputError, ServiceUnavailableError

from tiltyard.calls.http_caller import HttpCaller

if TYPE_CHECKING:
    from tiltyard.calls.caller import Caller

PATH = "/tiltyard/v1/events"
RETRY_SECONDS = 1.0
"""How long a reader waits after its connection was cut."""


@dataclass(frozen=True, slots=True)
class StreamedEvent:
    """An event as CloudEvent, and its id in the stream: what a reader goes on behind."""

    id: str
    event: Mapping[str, Any]


def read_events(
    caller: Caller, *, types: Sequence[str] = (), object_id: str = "", after: str | None = None, follow: bool = False
) -> Iterator[StreamedEvent]:
    """Iterate over the events that the caller may see, behind one (None: from the oldest that is kept).

    With `follow` it waits for others, and reconnects. Raises InvalidInputError, as the server does; without `follow`
    ServiceUnavailableError.
    """
    if not isinstance(caller, HttpCaller):
        raise InvalidInputError(
            "Events are streamed by a server: connect to one, or use tiltyard events follow --root."
        )
    wanted = {"types": ",".join(types), "object": object_id, "follow": str(follow).lower()}
    last = after or "oldest"
    while True:
        query = urlencode({**wanted, "after": last})
        try:
            for event in _parse(caller.read_lines(f"{PATH}?{query}")):
                last = event.id
                yield event
        except ServiceUnavailableError:
            if not follow:
                raise
        if not follow:
            return
        time.sleep(RETRY_SECONDS)


def _parse(lines: Iterator[bytes]) -> Iterator[StreamedEvent]:
    id_ = ""
    for line in lines:
        name, _, value = line.partition(b": ")
        if name == b"id":
            id_ = value.decode()
        elif name == b"data":
            yield StreamedEvent(id_, msgspec.json.decode(value))
