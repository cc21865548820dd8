"""Extend uvicorn's HTTP/1.1: limits on heads, our shape of errors, bodies read by threads, responses in one piece.

The parser (llhttp, in its strict mode) refuses what parsers might frame in different ways: a length that comes twice or
with a transfer coding, whitespace round names, folded lines, lines that end in LF alone. It has no limits, and it
passes on trailers of a chunked body as if they were headers: both are handled here.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Any
from weakref import ref

import httptools
from lance_namespace.errors import ErrorCode
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from tiltyard.api.bodies.connection_reader import COMPLETE_BODY, HAND_OVER, BodyReader
from tiltyard.api.exchange import IS_STOPPING, SEND_WHOLE, WATCH_CLIENT
from tiltyard.api.limits.connections import (
    CONNECTIONS,
    RECOGNIZE,
    Connections,
    Phase,
    Progress,
    unacknowledged_bytes,
)
from tiltyard.server.refused_requests import (
    HEAD,
    LINE_BYTES,
    MAX_HEAD_BYTES,
    TRAILERS,
    RefusedRequestError,
    check_head,
    encode_refusal,
    too_large,
)

TESTED_UVICORN, TESTED_HTTPTOOLS = "0.54.0", "0.9.0"
"""The versions that what is not public of them was tested with: `tests/unit/test_private_names.py` has its names."""
MAX_HEADERS = 1000
"""Headers of a request: each takes some 100 bytes besides its own, for as few as 4 that are sent."""
FRAMING_PER_BYTE = 16
"""Bytes that frame a chunked body (sizes and extensions of chunks), for each of its own, on top of MAX_HEAD_BYTES."""
MAX_PIPELINED = 32
"""Requests of a connection that wait for the response to an earlier one; each takes some kilobytes."""
_CODED, _EXPECT = b"transfer-encoding", b"expect"


class HttpProtocol(HttpToolsProtocol):
    """One connection. A request that is refused here never reaches the api."""

    cycle: RequestCycle
    """The newest request's; None before the first."""
    _in_head = True
    _overhead = 0
    """Bytes of the current message that are no body, less what its body allows; see FRAMING_PER_BYTE."""
    _trailers = 0
    _coding: bytes | None = None
    """The transfer coding of the current request."""
    _is_replaying_head = False
    """The parser reads a head again: its callbacks do nothing."""
    _refusal: RefusedRequestError | None = None
    _ignores_input = False
    """Nothing that comes now is read: the connection ends once its responses are sent."""
    _skipped_bytes = 0
    """Bytes of a body whose request was answered, which the parser must not see."""
    should_shed: Callable[[], bool] = staticmethod(lambda: False)
    """Returns for each request whether its connection shall end with it: another process has fewer."""
    unchanged: tuple[Progress, float] | None = None
    held_bytes = 0
    descriptors = 1
    _connections: Connections | None = None
    _is_recognized = False
    _responses = 0
    _is_stopping = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn does
        """Start the connection; another one may have to end for it."""
        super().connection_made(transport)
        self._connections = self.app_state.get(CONNECTIONS)
        if self._connections is not None:
            self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the connection."""
        if self._connections is not None:
            self._connections.remove(self)
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """End the connection once the response under way is sent: the server stops."""
        self._is_stopping = True
        super().shutdown()

    def _waits_for_end(self) -> bool:
        return self._is_stopping

    @property
    def is_busy(self) -> bool:
        return self._overhead > 0 or self._is_responding

    @property
    def _is_responding(self) -> bool:
        cycle: RequestCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    def progress(self) -> Progress | None:
        if unsent := self.transport.get_write_buffer_size():
            return Phase.RESPONSE, unsent + unacknowledged_bytes(self.transport)
        if self._is_responding:
            return None
        if not self._in_head:
            return Phase.BODY, self._responses
        return Phase.HEAD if self._overhead or not self._responses else Phase.IDLE, self._responses

    def expire(self, phase: Phase) -> None:
        if phase is Phase.RESPONSE:
            self.transport.abort()  # to close it would wait for the client to read
        elif phase is Phase.HEAD and self._overhead:
            self._refuse(
                RefusedRequestError(HTTPStatus.REQUEST_TIMEOUT, "The URL and headers took too long to arrive.")
            )
        else:
            self.transport.close()

    def displace(self) -> None:
        self.transport.abort()

    def turn_away(self) -> None:
        text = "All connections of this server are in use: try again later."
        self._refuse(RefusedRequestError(HTTPStatus.SERVICE_UNAVAILABLE, text, ErrorCode.SERVICE_UNAVAILABLE))

    def _recognize(self) -> None:
        if self._connections is not None and not self._is_recognized:
            self._is_recognized = True
            self._connections.authenticate(self)

    def data_received(self, data: bytes) -> None:
        """Parse bytes; refuse a head that is too large."""
        if self._ignores_input or (self._skipped_bytes and not (data := self._skip_body(data))):
            return
        if not self._is_recognized:
            self._hold(len(data))
        if self.transport.is_closing():
            return
        self._overhead += len(data)
        try:
            while data:
                data = self._parse(data)
        except httptools.HttpParserError:
            self._refuse(self._refusal or RefusedRequestError(HTTPStatus.BAD_REQUEST, "Invalid HTTP request received."))
            return
        if self._overhead > MAX_HEAD_BYTES:
            self._refuse(too_large(HEAD if self._in_head else TRAILERS))

    def _hold(self, size: int) -> None:
        """Count bytes of an unauthenticated client; the rest of a body whose request was answered is dropped."""
        if self._connections is not None and (self._in_head or self._is_responding):
            self._connections.hold(self, size)

    def _parse(self, data: bytes) -> bytes:
        """Feed the parser; return what it left. Raises HttpParserError."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._continue_http1()
            return data[upgrade.args[0] :]
        return b""

    def _continue_http1(self) -> None:
        """Continue in HTTP/1.1 after a head that offered to upgrade, as a server may that supports no other protocol.

        The parser takes what follows for the other protocol, a body too: a new parser is given a head with the body's
        length, and reads on.
        """
        length = self._content_length()
        self._renew_parser()
        if self._coding is not None or length:
            framing = b"transfer-encoding: chunked" if self._coding is not None else b"content-length: %d" % length
            self._is_replaying_head = True
            self.parser.feed_data(b"POST / HTTP/1.1\r\n%s\r\n\r\n" % framing)
            self._is_replaying_head = False

    def on_message_begin(self) -> None:
        """Start a head."""
        if self._is_replaying_head:
            return
        if len(self.pipeline) >= MAX_PIPELINED:
            self._ignores_input = True
            self.cycle.keep_alive = (
                False  # its response, the last one, says so: a client sends the other requests again
            )
            raise OverflowError("too many requests wait")
        self._coding = None
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Add a part of the URL."""
        if not self._is_replaying_head:
            self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header; drop a trailer: it comes after all checks, and proxies and servers read it differently."""
        if self._in_head:
            name = name.lower()
            if name == _CODED:
                self._coding = value if self._coding is None else b"%s,%s" % (self._coding, value)
            elif name == _EXPECT and value.lower() == b"100-continue":
                self.expect_100_continue = True
            if len(self.headers) >= MAX_HEADERS:
                raise self._end_with(too_large(f"The request has more than {MAX_HEADERS} headers."))
            self.headers.append((name, value))
        elif not self._is_replaying_head:
            self._trailers += len(name) + len(value) + LINE_BYTES
            if self._trailers > MAX_HEAD_BYTES:
                raise self._end_with(too_large(TRAILERS))

    def on_headers_complete(self) -> None:
        """Start a request: its body may be of any length.

        In place of uvicorn's method, which decodes the path: that takes 2 µs, and only the console reads it decoded.
        """
        if self._is_replaying_head:
            return
        if self._overhead > MAX_HEAD_BYTES or self._coding is not None:
            self._check_head()
        url = httptools.parse_url(self.url)
        path: bytes | None = url.path
        if path is None:
            raise self._end_with(RefusedRequestError(HTTPStatus.BAD_REQUEST, "The request's target has no path."))
        self._in_head = False
        self._overhead = self._trailers = 0
        scope, http_version = self.scope, self.parser.get_http_version()
        previous: RequestCycle | None = self.cycle
        scope["raw_path"], scope["query_string"] = path, url.query or b""
        scope["method"], scope["http_version"] = self.parser.get_method().decode(), http_version
        cycle = self.cycle = RequestCycle(self, scope, http_version != "1.0" and self.parser.should_keep_alive())
        extensions: dict[str, Any] = {
            HAND_OVER: self.hand_over_body,
            COMPLETE_BODY: cycle.take_complete_body,
            SEND_WHOLE: cycle.send_whole,
            WATCH_CLIENT: cycle.watch_client,
            IS_STOPPING: self._waits_for_end,
        }
        scope["extensions"] = extensions
        cycle.on_response = partial(self._on_response_sent, extensions)
        if not self._is_recognized:
            extensions[RECOGNIZE] = self._recognize
        if self.should_shed():
            cycle.keep_alive = False  # the response will say so
        if previous is None or previous.response_complete:
            self._start_asgi_task(cycle, self.app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, self.app))

    def _check_head(self) -> None:
        try:
            check_head(self._overhead, self.url, self.headers, self._coding, self.parser.get_http_version())
        except RefusedRequestError as refusal:
            raise self._end_with(refusal) from None

    def _end_with(self, refusal: RefusedRequestError) -> RefusedRequestError:
        """Set the refusal, and return it for a callback to raise: the parser raises an error of its own instead."""
        self._refusal = refusal
        return refusal

    def on_body(self, body: bytes) -> None:
        """Add a part of a body: as uvicorn does, where no request is upgraded to another protocol."""
        self._overhead = max(0, self._overhead - (FRAMING_PER_BYTE + 1) * len(body))
        cycle = self.cycle
        if cycle.response_complete:
            return
        cycle.body += body
        if len(cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        cycle.message_event.set()

    def _on_response_sent(self, extensions: dict[str, Any]) -> None:
        """End an exchange. Its cycle and the extensions refer to each other, so they are cleared."""
        has_more_requests = bool(self.pipeline)
        self._responses += 1
        extensions.clear()
        if self.held_bytes and self._connections is not None and not has_more_requests:
            self._connections.release(self)
        self.on_response_complete()
        if self._refusal is not None and not has_more_requests:
            self._write_refusal(self._refusal)

    def on_response_complete(self) -> None:
        """Start the connection's next request, without uvicorn's timer for the time until there is one.

        `Connections` checks that, as any other progress.
        """
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            self._start_asgi_task(cycle, app)

    def on_message_complete(self) -> None:
        """End a request, unless it offered to upgrade: its body is still to come then (see `_continue_http1`)."""
        if self.parser.should_upgrade() and (self._coding is not None or self._content_length()):
            return
        self._in_head = True
        self._overhead = 0
        cycle = self.cycle
        if not cycle.response_complete:
            cycle.more_body = False
            cycle.message_event.set()

    def hand_over_body(self, received: int) -> BodyReader | None:
        """Hand over the body that comes in now, of which `received` bytes were read before.

        None where its length is unknown, or the connection is encrypted. See `tiltyard.api.bodies.connection_reader`.
        """
        cycle, length = self.cycle, self._content_length()
        remaining = length - received - len(cycle.body)
        if self.scheme != "http" or remaining <= 0 or self.transport.is_closing():
            return None
        self.flow.pause_reading()
        first, cycle.body = bytes(cycle.body), bytearray()
        descriptor = os.dup(self.transport.get_extra_info("socket").fileno())
        return BodyReader(socket.socket(fileno=descriptor), first, remaining, self._on_body_closed)

    def _content_length(self) -> int:
        """Return the bytes of the body; 0 where the head does not say."""
        headers = dict(self.headers)
        return 0 if b"transfer-encoding" in headers else int(headers.get(b"content-length", b"0"))

    def _on_body_closed(self, unread: int) -> None:
        """Read what follows the body, once the rest that was not read has come."""
        if self.transport.is_closing():
            return
        self._skipped_bytes = unread
        if not unread:
            self._end_body()
        self.flow.resume_reading()

    def _skip_body(self, data: bytes) -> bytes:
        """Return what follows the rest of a body whose request was answered."""
        skipped = min(self._skipped_bytes, len(data))
        self._skipped_bytes -= skipped
        if not self._skipped_bytes:
            self._end_body()
        return data[skipped:]

    def _end_body(self) -> None:
        """End the request with a new parser: the old one has not seen all of the body."""
        self._renew_parser()
        self.on_message_complete()

    def _renew_parser(self) -> None:
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)

    def _refuse(self, refusal: RefusedRequestError) -> None:
        """Send an error and close: what follows on this connection cannot be told apart from the broken request.

        The responses to earlier requests come first, or a client would take this one for theirs.
        """
        if self._ignores_input or self.transport.is_closing():
            return
        self._ignores_input, self._refusal = True, refusal
        in_body = not self._in_head
        cycle = self.cycle
        if in_body and self.pipeline:
            self.pipeline.popleft()  # the newest: it is the one whose body this is
        elif in_body:
            begun = cycle.response_started
            cycle.disconnected = True
            cycle.message_event.set()
            if begun:
                self.transport.close()
            else:
                self._write_refusal(refusal)
        elif not self.pipeline and not self._is_responding:
            self._write_refusal(refusal)

    def _write_refusal(self, refusal: RefusedRequestError) -> None:
        """Send an error in the one JSON shape, and close."""
        if self.transport.is_closing():
            return
        self.transport.write(encode_refusal(refusal))
        self.transport.close()


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
