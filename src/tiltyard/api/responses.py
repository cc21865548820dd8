"""The answer to one request, on its way out.

A short answer goes out in one piece, head and body, where the server has a way for that. By the messages of ASGI they
are two: two calls of the system, two packets, and a client that wakes up twice.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from tiltyard.api.browser_security import SAFETY, SAFETY_LINES
from tiltyard.api.lancedb.dialect import VERSION_HEADER

if TYPE_CHECKING:
    from tiltyard.api.execution.query import Deadline
    from tiltyard.api.request_log import Call

Send = Callable[[Any], Awaitable[None]]
SendWhole = Callable[[int, bytes, bytes], bool]
"""Sends status, lines of headers and body at once, and says whether it did; if not, nothing was sent."""
SEND_WHOLE = "tiltyard.send_whole"
"""The extension of the ASGI scope that has a `SendWhole`."""
WATCH_CLIENT = "tiltyard.watch_client"
"""The extension that gives, once the body was read, what tells any thread whether the client closed its connection."""

MOST_AT_ONCE = 64 << 10
"""Bytes of a body up to which it is worth a copy to have it behind its head."""

Header = tuple[bytes, bytes]

_VERSION_LINE = b"%s: %s\r\n" % VERSION_HEADER


class Exchange:
    """The answer to one request."""

    def __init__(self, send: Send, call: Call, send_whole: SendWhole | None, remote: bool) -> None:
        """`remote` is for clients of lancedb's remote protocol."""
        self._send = send
        self._send_whole = send_whole
        self.call = call
        self.request_id = call.request_id
        self.remote = remote
        self.deadline: Deadline | None = None
        self.watch: Callable[[], Callable[[], bool]] | None = None
        self.started = False

    @property
    def is_late(self) -> bool:
        """Whether the time is over that the client gave its request."""
        return self.deadline is not None and self.deadline.left <= 0

    async def send(self, status: int, body: bytes, media: str, further: tuple[Header, ...] = ()) -> None:
        """A whole answer. Raises ServiceUnavailableError, before anything is sent, if the audit is not written."""
        await self.begin(status)
        if not further and self._send_whole is not None and len(body) <= MOST_AT_ONCE:
            lines = b"content-type: %s\r\nx-request-id: %s\r\n%s%scontent-length: %d\r\n" % (
                media.encode(),
                self.request_id.encode(),
                SAFETY_LINES,
                _VERSION_LINE if self.remote else b"",
                len(body),
            )
            if self._send_whole(status, lines, body):
                self.call.complete = True
                return
        await self._send_head(status, media, (*further, (b"content-length", b"%d" % len(body))))
        await self.chunk(body, last=True)

    async def start(self, status: int, media: str) -> None:
        """The head of an answer that comes in parts. Raises as `send` does."""
        await self.begin(status)
        await self._send_head(status, media, ())

    async def chunk(self, body: bytes, last: bool = False) -> None:
        """A part of the body."""
        await self._send({"type": "http.response.body", "body": body, "more_body": not last})
        self.call.complete = last

    async def begin(self, status: int) -> None:
        """What comes before an answer's first byte; done once, whoever asks for it. Raises as `send` does."""
        if self.started:
            return
        if (kept := self.call.answer(status)) is not None:
            await kept
        self.started = True
        self.call.answering()

    async def _send_head(self, status: int, media: str, further: tuple[Header, ...]) -> None:
        named = ((b"content-type", media.encode()), (b"x-request-id", self.request_id.encode()))
        headers = [*named, *SAFETY, *further]
        if self.remote:
            headers.append(VERSION_HEADER)
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
