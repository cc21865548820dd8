"""GET /tiltyard/v1/events: the catalog's events as server-sent events, as they happen or behind a position.

A reader gets what its caller may see at the moment of sending, and ends when its credentials do. It holds one page of
events and no queue: one that reads slowly is read for slowly, and cut by the server's send_timeout.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import (
    InvalidInputError,
    PermissionDeniedError,
    ThrottlingError,
    UnauthenticatedError,
)
from msgspec import structs

from tiltyard.access.visible_events import visible_events
from tiltyard.api.binding import parse_query
from tiltyard.api.exchange import IS_STOPPING, wait_for_disconnect
from tiltyard.context import Context
from tiltyard.events.cloudevents import LOST_EVENTS, encode_event, encode_loss, event_type
from tiltyard.events.filters import EventFilter
from tiltyard.events.stream import current_stream
from tiltyard.model.decisions import AskedOperation

if TYPE_CHECKING:
    from tiltyard.api.authentication import RequestAuthentication
    from tiltyard.api.binding import Headers
    from tiltyard.api.exchange import Exchange
    from tiltyard.api.execution.threaded import ThreadPools
    from tiltyard.context import Services
    from tiltyard.store import Store

PATH = b"/tiltyard/v1/events"
OPERATION = "StreamEvents"
"""The operation's name in the audit and the metrics: the specification has none."""
MEDIA = "text/event-stream"
MAX_READERS = 200
"""Readers of one server process at once."""
MAX_READERS_OF_PRINCIPAL = 20
"""Readers of one principal at once, in one server process."""
PAGE_EVENTS = 100
"""Events that a reader reads, and holds, at a time."""
POLL_SECONDS = 0.5
"""How often it is looked whether there are new events: once for all readers of a process."""
KEEP_ALIVE_SECONDS = 10.0
"""How often a reader without events gets a line, and is authenticated again."""
OLDEST = "oldest"
_LAST_EVENT_ID = b"last-event-id"
_PARAMETERS = frozenset({"types", "object", "after", "follow"})


@dataclass(frozen=True, slots=True)
class EventRequest:
    """What a reader wants: which events, `after` which one ("" for those to come), and whether it waits for others."""

    conditions: EventFilter
    after: str
    follows: bool

    @classmethod
    def read(cls, query_string: bytes, headers: Headers) -> EventRequest:
        """Read the parameters. A reader that comes back says by a header where it was. Raises InvalidInputError."""
        values = dict(parse_query(query_string))
        if unknown := sorted({*values} - _PARAMETERS):
            raise InvalidInputError(f"Events have no parameter '{unknown[0]}': {', '.join(sorted(_PARAMETERS))}.")
        follow = values.get("follow", "true").lower()
        if follow not in ("true", "false"):
            raise InvalidInputError("The parameter follow is true or false.")
        types = tuple(each.strip() for each in values.get("types", "").split(",") if each.strip())
        after = headers.get(_LAST_EVENT_ID, b"").decode("latin-1") or values.get("after", "")
        return cls(EventFilter(types, values.get("object", "")), after, follow == "true")


@dataclass(frozen=True, slots=True)
class EventPage:
    """Events as they are sent, and where they end."""

    text: bytes
    position: int
    is_full: bool


class EventStreams:
    """The readers of one process. Belongs to its event loop."""

    def __init__(self, services: Services, authentication: RequestAuthentication, pools: ThreadPools) -> None:
        self._services = services
        self._authentication = authentication
        self._pools = pools
        self._readers: Counter[str] = Counter()
        self._newest = _NewestPosition(services.store, pools)

    def gauges(self) -> dict[str, float]:
        """Return how many readers there are, by name."""
        return {"readers of events": float(self._readers.total())}

    async def serve(self, scope: dict[str, Any], headers: Headers, exchange: Exchange) -> None:
        """Serve a reader.

        Raises InvalidInputError, UnauthenticatedError, ThrottlingError, UnsupportedOperationError.
        """
        exchange.log.operation = OPERATION
        principal = await self._authentication.authenticate_headers(headers)
        asked = AskedOperation(OPERATION)
        ctx = exchange.log.ctx = Context(self._services, exchange.request_id, principal=principal, asked=asked)
        request = EventRequest.read(scope["query_string"], headers)
        with self._reader(principal.name):
            position = await self._run(_start, ctx.store, request.after)
            await exchange.start(200, MEDIA)
            if exchange.is_head:
                await exchange.send_chunk(b"", last=True)
                return
            gone = asyncio.ensure_future(wait_for_disconnect(exchange.receive, None))
            try:
                await self._send(ctx, headers, exchange, request, position, gone)
            finally:
                gone.cancel()

    @contextmanager
    def _reader(self, principal: str) -> Iterator[None]:
        if self._readers[principal] >= MAX_READERS_OF_PRINCIPAL or self._readers.total() >= MAX_READERS:
            raise ThrottlingError("There are too many readers of events: close some, or try again later.")
        self._readers[principal] += 1
        try:
            yield
        finally:
            self._readers[principal] -= 1
            self._readers += Counter()  # forgets those without readers

    async def _send(
        self,
        ctx: Context,
        headers: Headers,
        exchange: Exchange,
        request: EventRequest,
        position: tuple[str, int],
        gone: asyncio.Future[None],
    ) -> None:
        """Send pages until the reader is gone, its credentials end, or the server stops."""
        stream, after = position
        with suppress(UnauthenticatedError, PermissionDeniedError):
            while not gone.done() and not exchange.extensions.get(IS_STOPPING, bool)():
                principal = await self._authentication.authenticate_headers(headers)
                current = structs.replace(ctx, principal=principal)
                page = await self._run(_read_page, current, request.conditions, stream, after)
                if page is None:  # the stream has ended: the reader comes again, and is told
                    break
                after = page.position
                if page.is_full or not request.follows:
                    await exchange.send_chunk(page.text, last=not page.is_full)
                    if not page.is_full:
                        return
                    continue
                await exchange.send_chunk(page.text or b": \n\n")
                await self._newest.wait_beyond(after, gone, exchange.extensions.get(IS_STOPPING, bool))
        await exchange.send_chunk(b"", last=True)

    async def _run(self, fn: Any, *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._pools.catalog, fn, *args)


class _NewestPosition:
    """The last position of the stream, read by one task for all readers that wait."""

    def __init__(self, store: Store, pools: ThreadPools) -> None:
        self._store = store
        self._pools = pools
        self._position = 0
        self._waiting = 0
        self._task: asyncio.Task[None] | None = None
        self._read = asyncio.Event()

    async def wait_beyond(self, position: int, gone: asyncio.Future[None], is_stopping: Any) -> None:
        """Wait for an event behind a position, for the reader to go, or for KEEP_ALIVE_SECONDS."""
        deadline = asyncio.get_running_loop().time() + KEEP_ALIVE_SECONDS
        self._waiting += 1
        try:
            if self._task is None or self._task.done():
                self._task = asyncio.ensure_future(self._poll())
            while asyncio.get_running_loop().time() < deadline and not gone.done() and not is_stopping():
                await self._read.wait()
                if self._position > position:
                    return
        finally:
            self._waiting -= 1

    async def _poll(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            await asyncio.sleep(POLL_SECONDS)
            with suppress(Exception):  # the database is away: readers are told when they read
                self._position = await loop.run_in_executor(self._pools.catalog, _newest_position, self._store)
            self._read.set()
            self._read = asyncio.Event()


def _newest_position(store: Store) -> int:
    """Give new events their positions; return the last one."""
    if store.has_unnumbered_events():
        store.number_events()
    stream = store.event_stream()
    return 0 if stream is None else stream.last_position


def _start(store: Store, after: str) -> tuple[str, int]:
    """Return the stream and the position that a reader begins behind.

    Raises InvalidInputError, UnsupportedOperationError (no events are recorded).
    """
    stream = current_stream(store)
    if not after:
        return stream.name, stream.last_position
    if after == OLDEST:
        return stream.name, stream.lost_until
    name, _, number = after.partition(".")
    if not number.isascii() or not number.isdigit() or len(number) > 18:
        raise InvalidInputError("No event has this id: send that of the last event you have, or after=oldest.")
    if name != stream.name:  # a restored catalog: what the reader has not got is nowhere any more
        return stream.name, -1
    return name, int(number)


def _read_page(ctx: Context, conditions: EventFilter, stream_name: str, after: int) -> EventPage | None:
    """Return the next events that the caller may see; None where the stream is another one by now."""
    stream = ctx.store.event_stream()
    if stream is None or stream.name != stream_name:
        return None
    parts: list[bytes] = []
    if after < stream.lost_until or after < 0:
        until = max(stream.lost_until, 0)
        body = encode_loss(stream_name, max(after, 0), until, ctx.clock())
        parts.append(_server_sent(stream_name, until, LOST_EVENTS, body))
        after = until
    events = ctx.store.list_events(after, PAGE_EVENTS)
    parts += [
        _server_sent(stream_name, seen.position, seen.type, encode_event(seen))
        for seen in visible_events(ctx, filter(conditions.matches, events))
    ]
    last = events[-1].position if events else after
    return EventPage(b"".join(parts), last, len(events) == PAGE_EVENTS)


def _server_sent(stream: str, position: int, name: str, body: bytes) -> bytes:
    return b"id: %s.%d\nevent: %s\ndata: %s\n\n" % (stream.encode(), position, event_type(name).encode(), body)
