"""One HTTP exchange: what a request carries on its way through the api, how its body is read, its response sent.

A short response is sent in one piece, head and body, where the server has a way for that. By the messages of ASGI it
would be two: two system calls, two packets, and a client that wakes up twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tiltyard.access.databases import ROOT_DATABASE
from tiltyard.api.bodies.connection_reader import COMPLETE_BODY
from tiltyard.api.bodies.uploads import Receive, Send, body_too_long, read_body
from tiltyard.api.lancedb.databases import DATABASE_HEADER
from tiltyard.api.lancedb.dialect import VERSION_HEADER

if TYPE_CHECKING:
    from tiltyard.api.binding import Headers
    from tiltyard.api.bodies.connection_reader import TakeCompleteBody
    from tiltyard.api.bodies.uploads import MemoryBody, StreamedBody
    from tiltyard.api.deadlines import Deadline
    from tiltyard.api.idempotency.requests import IdempotentRequest
    from tiltyard.api.limits.requests import QuerySlot
    from tiltyard.api.request_log import LoggedRequest

SendWhole = Callable[[int, bytes, bytes], bool]
"""Sends status, header lines and body at once; returns whether it did. If not, nothing was sent."""
SEND_WHOLE = "tiltyard.send_whole"
"""The extension of the ASGI scope that has a `SendWhole`."""
WATCH_CLIENT = "tiltyard.watch_client"
"""The extension that returns, once the body was read, a function by which any thread asks whether the client left."""
IS_STOPPING = "tiltyard.is_stopping"
"""The extension that has a function which says whether the server waits for this response to end, so that it can."""

SEND_WHOLE_BYTES = 64 << 10
"""Bytes of a body up to which it is worth a copy to send it together with its head."""

NO_CONTENT = 204

Header = tuple[bytes, bytes]

SECURITY_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
)
SECURITY_LINES = b"".join(b"%s: %s\r\n" % pair for pair in SECURITY_HEADERS)
"""The same as header lines."""
_VERSION_LINE = b"%s: %s\r\n" % VERSION_HEADER


class Exchange:
    """One request and its response.

    - `is_lancedb`: its client speaks lancedb's remote protocol.
    - `body`: bytes of JSON, or an upload of Arrow, once they are there.
    - `feed`: the task that feeds a streamed upload while it comes in.
    - `database`: the namespace that its ids are relative to.
    - `deadline`: set where the client gave its request a time.
    - `idempotent`: runs the request once, where it has a key.
    - `segments`: what a sub-query of another server of the catalog is about; none for other requests.
    - `slot`: the query slot that it holds until its response is sent.
    """

    __slots__ = (
        "_scope",
        "_send",
        "_send_whole",
        "body",
        "database",
        "deadline",
        "extensions",
        "feed",
        "headers",
        "idempotent",
        "is_head",
        "is_lancedb",
        "log",
        "peer",
        "receive",
        "request_id",
        "segments",
        "slot",
        "started",
    )

    def __init__(
        self,
        scope: dict[str, Any],
        headers: Headers,
        receive: Receive,
        send: Send,
        log: LoggedRequest,
    ) -> None:
        self.headers = headers
        self.receive = receive
        self._send = send
        self.extensions: dict[str, Any] = scope.get("extensions", _NO_EXTENSIONS)
        self._send_whole: SendWhole | None = self.extensions.get(SEND_WHOLE)
        self.peer: tuple[str, int] = scope["client"]
        self.log = log
        self.request_id = log.request_id
        self.is_lancedb = is_lancedb_request(scope["raw_path"], scope["query_string"], headers)
        self._scope = scope
        self.is_head = scope["method"] == "HEAD"
        self.body: bytes | MemoryBody | StreamedBody | None = None
        self.feed: asyncio.Task[None] | None = None
        self.database = ROOT_DATABASE
        self.deadline: Deadline | None = None
        self.idempotent: IdempotentRequest | None = None
        self.segments: tuple[str, ...] = ()
        self.slot: QuerySlot | None = None
        self.started = False

    @property
    def method(self) -> str:
        """The method of the request."""
        method: str = self._scope["method"]
        return method

    @property
    def target(self) -> bytes:
        """The path and the query string, as they came."""
        path, query = self._scope["raw_path"], self._scope["query_string"]
        return b"%s?%s" % (path, query) if query else bytes(path)

    @property
    def is_late(self) -> bool:
        """Whether the time is over that the client gave its request."""
        return self.deadline is not None and self.deadline.remaining <= 0

    def watch_client(self) -> Callable[[], bool] | None:
        """Return a function by which any thread asks whether the client left; None where the server has none."""
        watch = self.extensions.get(WATCH_CLIENT)
        return None if watch is None else watch()

    async def read_body(self, limit: int) -> bytes:
        """Return the whole body of at most `limit` bytes. Raises HttpError 413 and 408, ClientGoneError."""
        take_complete: TakeCompleteBody | None = self.extensions.get(COMPLETE_BODY)
        body = None if take_complete is None else take_complete()
        if body is None:
            return await read_body(self.receive, limit)
        if len(body) > limit:
            raise body_too_long(limit)
        return body

    async def send(self, status: int, body: bytes, media: str, headers: tuple[Header, ...] = ()) -> None:
        """Send a whole response.

        Raises ServiceUnavailableError, before a byte is sent, if the audit cannot be written.
        """
        if not self.started:
            await self.begin(status)
        has_length = any(name == b"content-length" for name, _ in headers)
        if not has_length and self._send_whole is not None and len(body) <= SEND_WHOLE_BYTES:
            lines = b"content-type: %s\r\nx-request-id: %s\r\n%s%s%scontent-length: %d\r\n" % (
                media.encode(),
                self.request_id.encode(),
                SECURITY_LINES,
                _VERSION_LINE if self.is_lancedb else b"",
                b"".join([b"%s: %s\r\n" % pair for pair in headers]),
                len(body),
            )
            if self._send_whole(status, lines, body):
                self.log.complete, self.log.response_bytes = True, len(body)
                return
        if status != NO_CONTENT and not has_length:
            headers = (*headers, (b"content-length", b"%d" % len(body)))
        await self._send_head(status, media, headers)
        await self.send_chunk(body, last=True)

    async def start(self, status: int, media: str, headers: tuple[Header, ...] = ()) -> None:
        """Send the head of a response that comes in chunks. Raises as `send` does."""
        await self.begin(status)
        await self._send_head(status, media, headers)

    async def send_chunk(self, body: bytes, last: bool = False) -> None:
        """Send a chunk of the body."""
        await self._send({"type": "http.response.body", "body": body, "more_body": not last})
        self.log.complete = last
        self.log.response_bytes += len(body)

    async def begin(self, status: int) -> None:
        """Write the audit record of a change before its response's first byte; once per exchange. Raises as `send`."""
        if self.started:
            return
        if (written := self.log.before_response(status)) is not None:
            await written
        self.started = True
        self.log.on_first_byte()

    async def _send_head(self, status: int, media: str, headers: tuple[Header, ...]) -> None:
        lines = [
            (b"content-type", media.encode()),
            (b"x-request-id", self.request_id.encode()),
            *SECURITY_HEADERS,
            *headers,
        ]
        if self.is_lancedb:
            lines.append(VERSION_HEADER)
        await self._send({"type": "http.response.start", "status": status, "headers": lines})


def is_lancedb_request(raw_path: bytes, query_string: bytes, headers: Headers) -> bool:
    """Whether a request is in lancedb's dialect. `/v1/table/` alone is how rest-catalog-spec.md writes ListAllTables.

    The client of `namespace_client()` sends the headers of its connection, the database's too, and reads the
    specification's responses. It names the delimiter `$` in each request, and lancedb never does.
    """
    if query_string and (query_string.find(_DOLLAR) >= 0 or query_string.find(_ENCODED_DOLLAR) >= 0):
        return False
    return DATABASE_HEADER in headers or (raw_path.endswith(b"/") and raw_path.strip(b"/") != b"v1/table")


_DOLLAR, _ENCODED_DOLLAR = b"delimiter=$", b"delimiter=%24"


async def wait_for_disconnect(receive: Receive, feed: asyncio.Task[None] | None) -> None:
    """Return when the client has closed its connection; `feed` receives the rest of the body first."""
    if feed is not None:
        await asyncio.wait([feed])
    while (await receive())["type"] != "http.disconnect":
        pass


_NO_EXTENSIONS: dict[str, Any] = {}
