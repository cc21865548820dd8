"""One request of a connection and its response: uvicorn's cycle, with short responses sent in one piece."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import ref

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle


class RequestCycle(RequestResponseCycle):
    """One request and its response, with what the api wants of the connection beyond ASGI."""

    access_log = False
    chunked_encoding: bool | None = None
    disconnected = False
    expected_content_length = 0
    more_body = True
    response_complete = False
    response_started = False

    def __init__(self, protocol: HttpToolsProtocol, scope: Any, keep_alive: bool) -> None:
        """Start a cycle of a connection; its `on_response` is to be set.

        In place of uvicorn's, which takes twice as long: it sets what is the same for all requests, too.
        """
        self.scope = scope
        self.transport = protocol.transport
        self.flow = protocol.flow
        self.logger = protocol.logger
        self.default_headers = protocol.server_state.default_headers
        self.message_event = asyncio.Event()
        self.keep_alive = keep_alive
        self.waiting_for_100_continue = protocol.expect_100_continue
        self.body = bytearray()
        if self.waiting_for_100_continue:
            # Weakly: a cycle that referred to itself would wait for the garbage collector.
            self.send = partial(_send_expected, ref(self))  # type: ignore[method-assign]

    def take_complete_body(self) -> bytes | None:
        """Return a body if all of it has come (`tiltyard.api.bodies.connection_reader.TakeCompleteBody`)."""
        if self.more_body:
            return None
        body, self.body = bytes(self.body), bytearray()
        self.flow.resume_reading()  # a long one has paused it
        return body

    def watch_client(self) -> Callable[[], bool]:
        """Return a function that says whether the client left (`tiltyard.api.exchange.WATCH_CLIENT`)."""
        self.flow.resume_reading()  # a long body has paused it, and only reading notices the end of a connection
        return self._has_left

    def _has_left(self) -> bool:
        return self.disconnected or self.transport.is_closing()

    def send_whole(self, status: int, lines: bytes, body: bytes) -> bool:
        """Send a response (`tiltyard.api.exchange.SendWhole`); leave the cycle as the two ASGI messages would."""
        if self.response_started or self.flow.write_paused:
            return False
        _check_expected(self)
        if self.disconnected:
            return True
        self.response_started = self.response_complete = True
        self.waiting_for_100_continue = False
        closing = b"" if self.keep_alive else b"connection: close\r\n"
        sent_body = b"" if self.scope["method"] == "HEAD" else body
        default_lines = _default_lines.of(self.default_headers)
        self.transport.write(b"%s%s%s%s\r\n%s" % (STATUS_LINE[status], default_lines, lines, closing, sent_body))
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()
        return True


class _HeaderLines:
    """The header lines of the last list of headers: uvicorn makes a new one each second, for its date."""

    def __init__(self) -> None:
        self._headers: list[tuple[bytes, bytes]] = []
        self._lines = b""

    def of(self, headers: list[tuple[bytes, bytes]]) -> bytes:
        """Return the lines of a list that is not changed afterwards."""
        if headers is not self._headers:
            self._lines = b"".join(b"%s: %s\r\n" % header for header in headers)
            self._headers = headers
        return self._lines


_default_lines = _HeaderLines()


async def _send_expected(cycle: ref[RequestCycle], message: Any) -> None:
    """Send a message of the response to a request with `Expect: 100-continue`."""
    running = cycle()
    assert running is not None  # it awaits this call
    _check_expected(running)
    await RequestResponseCycle.send(running, message)


def _check_expected(cycle: RequestCycle) -> None:
    """Close the connection after a response without `100 Continue`: its client may send a request for the body."""
    if cycle.waiting_for_100_continue and cycle.more_body:
        cycle.keep_alive = False
