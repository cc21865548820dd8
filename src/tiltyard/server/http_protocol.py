"""uvicorn's HTTP/1.1, with our error shape for what is no HTTP, bounds on all that is no body, and a way for threads to
read large bodies themselves, and one for short answers to go out in one piece.

The parser (llhttp, in its strict mode) refuses what readers might frame in different ways: a length that comes twice or
with a transfer coding, whitespace round names, folded lines, lines that end in LF alone. It has no bounds, and it hands
over trailers of a chunked body as if they were headers: both are seen to here.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import struct
import termios
import uuid
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Any
from weakref import ref

import httptools
import msgspec
from lance_namespace.errors import ErrorCode
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from tiltyard.api.bodies.connection_reader import COMPLETE_BODY, HAND_OVER, BodyReader
from tiltyard.api.browser_security import SECURITY_LINES
from tiltyard.api.connection_limits import CONNECTIONS, RECOGNIZE, Connections, Phase, Standing
from tiltyard.api.exchange import SEND_WHOLE, WATCH_CLIENT
from tiltyard.model.spec.models import ErrorResponse

LARGEST_HEAD = 128 << 10
"""Bytes of a request line with its headers, and of all trailers; the parser itself would take any number."""
MOST_FIELDS = 1000
"""Headers of a request: each takes some 100 bytes besides its own, for as few as 4 that are sent."""
FRAMING_PER_BYTE = 16
"""Bytes that frame a chunked body (sizes and extensions of chunks), for each of its own, on top of LARGEST_HEAD."""
MOST_PIPELINED = 32
"""Requests of a connection that wait for the answer to an earlier one; each takes some kilobytes."""
LINE_BYTES = 4
"""Of a header's line: colon, space, and its end."""

_INT = struct.Struct("i")
_CODED, _EXPECT = b"transfer-encoding", b"expect"


class RefusedError(Exception):
    """A request is refused while it is parsed, with an answer and the end of its connection."""

    def __init__(self, status: HTTPStatus, message: str, code: ErrorCode = ErrorCode.INVALID_INPUT) -> None:
        super().__init__(message)
        self.status, self.message, self.code = status, message, code


class Protocol(HttpToolsProtocol):
    """What is refused here never becomes a request, so no other part of the api hears of it."""

    _in_head = True
    _overhead = 0
    """Bytes of the present message that are no body, less what its body allows; see FRAMING_PER_BYTE."""
    _trailers = 0
    _coding: bytes | None = None
    """The transfer coding of the present request."""
    _restating = False
    """The parser reads a head that was read before: nothing of it counts."""
    _refusal: RefusedError | None = None
    _deaf = False
    """Nothing that comes now is read: the connection ends once its answers are sent."""
    _skip = 0
    """Bytes of a body that nobody wants any more, and that the parser must not see."""
    should_shed: Callable[[], bool] = staticmethod(lambda: False)
    """Says for each request whether its connection shall end with it: another process has fewer."""
    stood: tuple[Standing, float] | None = None
    held = 0
    _connections: Connections | None = None
    _recognized = False
    _answers = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn does
        """Begin; another connection may have to end for this one."""
        super().connection_made(transport)
        self._connections = self.app_state.get(CONNECTIONS)
        if self._connections is not None:
            self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        if self._connections is not None:
            self._connections.remove(self)
        super().connection_lost(exc)

    @property
    def busy(self) -> bool:
        """See Connection."""
        return self._overhead > 0 or self._answering

    @property
    def _answering(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    def standing(self) -> Standing | None:
        """See Connection."""
        if unsent := self.transport.get_write_buffer_size():
            return Phase.ANSWER, unsent + _unacknowledged(self.transport)
        if self._answering:
            return None
        if not self._in_head:
            return Phase.BODY, self._answers
        # Between requests, uvicorn's own timer runs until the first byte of the next one.
        return (Phase.HEAD, self._answers) if self.timeout_keep_alive_task is None else None

    def expire(self, phase: Phase) -> None:
        """See Connection."""
        if phase is Phase.ANSWER:
            self.transport.abort()  # to close it would wait for the client to read
        elif phase is Phase.HEAD and self._overhead:
            self._refuse(RefusedError(HTTPStatus.REQUEST_TIMEOUT, "The URL and headers took too long to come."))
        else:
            self.transport.close()

    def give_way(self) -> None:
        """See Connection."""
        self.transport.abort()

    def turn_away(self) -> None:
        """See Connection."""
        text = "All connections that this server takes are at work: try again later."
        self._refuse(RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, text, ErrorCode.SERVICE_UNAVAILABLE))

    def _recognize(self) -> None:
        if self._connections is not None and not self._recognized:
            self._recognized = True
            self._connections.recognize(self)

    def data_received(self, data: bytes) -> None:
        """Parse, and refuse what does not end."""
        self._unset_keepalive_if_required()
        if self._deaf or (self._skip and not (data := self._behind_the_body(data))):
            return
        self._hold(len(data))
        if self.transport.is_closing():
            return
        self._overhead += len(data)
        try:
            while data:
                data = self._parse(data)
        except httptools.HttpParserError:
            self._refuse(self._refusal or RefusedError(HTTPStatus.BAD_REQUEST, "Invalid HTTP request received."))
            return
        if self._overhead > LARGEST_HEAD:
            self._refuse(self._too_large())

    def _hold(self, size: int) -> None:
        """Have it counted what a stranger sends; the rest of a body that was answered is dropped."""
        if self._connections is not None and not self._recognized and (self._in_head or self._answering):
            self._connections.hold(self, size)

    def _parse(self, data: bytes) -> bytes:
        """Feed the parser; return what it left. Raises HttpParserError."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._stay()
            return data[upgrade.args[0] :]
        return b""

    def _stay(self) -> None:
        """Go on in HTTP/1.1 behind a head that offered another protocol, as a server may that knows no other.

        The parser takes what follows for that protocol, a body too: a new one hears of the body's length, and reads on.
        """
        length = self._content_length()
        self._renew_parser()
        if self._coding is not None or length:
            framing = b"transfer-encoding: chunked" if self._coding is not None else b"content-length: %d" % length
            self._restating = True
            self.parser.feed_data(b"POST / HTTP/1.1\r\n%s\r\n\r\n" % framing)
            self._restating = False

    def on_message_begin(self) -> None:
        """Begin a head."""
        if self._restating:
            return
        if len(self.pipeline) >= MOST_PIPELINED:
            self._deaf = True
            self.cycle.keep_alive = False  # its answer, the last one, says so: a client sends the others anew
            raise OverflowError("enough requests wait")
        self._coding = None
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Take a part of the URL."""
        if not self._restating:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; drop a trailer: it comes behind all checks, and proxies and servers read it differently."""
        if self._in_head:
            name = name.lower()
            if name == _CODED:
                self._coding = value if self._coding is None else b"%s,%s" % (self._coding, value)
            elif name == _EXPECT and value.lower() == b"100-continue":
                self.expect_100_continue = True
            if len(self.headers) >= MOST_FIELDS:
                raise self._end_with(self._too_large(f"The request has more than {MOST_FIELDS} headers."))
            self.headers.append((name, value))
        elif not self._restating:
            self._trailers += len(name) + len(value) + LINE_BYTES
            if self._trailers > LARGEST_HEAD:
                raise self._end_with(self._too_large())

    def on_headers_complete(self) -> None:
        """Begin a request: a body may be of any length."""
        if self._restating:
            return
        self._check_head()
        self._in_head = False
        self._overhead = self._trailers = 0
        extensions: dict[str, Any] = {HAND_OVER: self.hand_over_body}
        if not self._recognized:
            extensions[RECOGNIZE] = self._recognize
        self.scope["extensions"] = extensions
        super().on_headers_complete()
        extensions[COMPLETE_BODY] = partial(_take_complete_body, self.cycle)
        extensions[SEND_WHOLE] = partial(_send_whole, self.cycle)
        extensions[WATCH_CLIENT] = partial(_watch_client, self.cycle)
        self.cycle.on_response = partial(self._answered, extensions)
        if self.should_shed():
            self.cycle.keep_alive = False  # the answer will say so
        if self.expect_100_continue:
            # Before it begins, and weakly: a cycle that held itself would wait for the collector.
            self.cycle.send = partial(_send_expected, ref(self.cycle))  # type: ignore[method-assign]

    def _check_head(self) -> None:
        """Raise RefusedError for a head that is too large, or whose body could be framed in several ways."""
        if self._overhead > LARGEST_HEAD:
            fields = sum(len(name) + len(value) + LINE_BYTES for name, value in self.headers)
            if len(self.url) + fields > LARGEST_HEAD:
                raise self._end_with(self._too_large())
        if self._coding is None:
            return
        if self._coding.lower() != b"chunked":
            text = "This server takes a body as it is, or chunked: send no other transfer coding."
            raise self._end_with(RefusedError(HTTPStatus.NOT_IMPLEMENTED, text, ErrorCode.UNSUPPORTED))
        if self.parser.get_http_version() != "1.1":
            text = "HTTP/1.0 has no transfer codings: send a Content-Length."
            raise self._end_with(RefusedError(HTTPStatus.BAD_REQUEST, text))

    def _too_large(self, text: str = "") -> RefusedError:
        what = "URL and headers have" if self._in_head else "trailers and chunk extensions have"
        text = text or f"The {what} more than {LARGEST_HEAD} bytes."
        return RefusedError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, text)

    def _end_with(self, refusal: RefusedError) -> RefusedError:
        """Return what a callback raises to end the parser, which raises an error of its own instead."""
        self._refusal = refusal
        return refusal

    def on_body(self, body: bytes) -> None:
        """Take a part of a body."""
        self._overhead = max(0, self._overhead - (FRAMING_PER_BYTE + 1) * len(body))
        super().on_body(body)

    def _answered(self, extensions: dict[str, Any]) -> None:
        """End an exchange. Its request knows the extensions, and they know it: only the collector would free them."""
        more = bool(self.pipeline)
        self._answers += 1
        extensions.clear()
        if self._connections is not None and not more:
            self._connections.let_go(self)
        self.on_response_complete()
        if self._refusal is not None and not more:
            self._write_refusal(self._refusal)

    def on_message_complete(self) -> None:
        """End a request: a head follows, unless it offered another protocol, before its body (see `_stay`)."""
        if self.parser.should_upgrade() and (self._coding is not None or self._content_length()):
            return
        self._in_head = True
        self._overhead = 0
        super().on_message_complete()

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
        """Bytes of the body; 0 where the head does not say."""
        named = dict(self.headers)
        return 0 if b"transfer-encoding" in named else int(named.get(b"content-length", b"0"))

    def _on_body_closed(self, unread: int) -> None:
        """Go on with what follows the body, once the rest that was not read has come."""
        if self.transport.is_closing():
            return
        self._skip = unread
        if not unread:
            self._end_body()
        self.flow.resume_reading()

    def _behind_the_body(self, data: bytes) -> bytes:
        """What follows a body that nobody wants."""
        skipped = min(self._skip, len(data))
        self._skip -= skipped
        if not self._skip:
            self._end_body()
        return data[skipped:]

    def _end_body(self) -> None:
        """The request is complete: the parser, which saw less of it, begins anew."""
        self._renew_parser()
        self.on_message_complete()

    def _renew_parser(self) -> None:
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)

    def _refuse(self, refusal: RefusedError) -> None:
        """Answer and close: what follows on this connection cannot be told apart from the broken request.

        The answers to requests before it come first, else a client would take this one for theirs.
        """
        if self._deaf or self.transport.is_closing():
            return
        self._deaf, self._refusal = True, refusal
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
        elif not self.pipeline and not self._answering:
            self._write_refusal(refusal)

    def _write_refusal(self, refusal: RefusedError) -> None:
        """Answer in the one shape of errors, and close."""
        if self.transport.is_closing():
            return
        request_id = uuid.uuid4().hex
        body = msgspec.json.encode(ErrorResponse(error=refusal.message, code=int(refusal.code), instance=request_id))
        status = b"%d %s" % (refusal.status, refusal.status.phrase.encode())
        self.transport.write(
            b"HTTP/1.1 %s\r\ncontent-type: application/json\r\nconnection: close\r\n"
            b"x-request-id: %s\r\n%scontent-length: %d\r\n\r\n%s"
            % (status, request_id.encode(), SECURITY_LINES, len(body), body)
        )
        self.transport.close()


def _unacknowledged(transport: asyncio.Transport) -> int:
    """Bytes that the kernel still has to send, or to send again: a slow reader is seen to read by these."""
    descriptor = transport.get_extra_info("socket").fileno()
    unsent: int = _INT.unpack(fcntl.ioctl(descriptor, termios.TIOCOUTQ, _INT.pack(0)))[0]
    return unsent


def _take_complete_body(cycle: RequestResponseCycle) -> bytes | None:
    """See `tiltyard.api.bodies.connection_reader`."""
    if cycle.more_body:
        return None
    body, cycle.body = bytes(cycle.body), bytearray()
    cycle.flow.resume_reading()  # a long one has paused it
    return body


def _watch_client(cycle: RequestResponseCycle) -> Callable[[], bool]:
    """See `tiltyard.api.exchange`."""
    cycle.flow.resume_reading()  # a long body has paused it, and the end of a connection is read, too
    return partial(_has_left, cycle)


def _has_left(cycle: RequestResponseCycle) -> bool:
    return cycle.disconnected or cycle.transport.is_closing()


def _send_whole(cycle: RequestResponseCycle, status: int, lines: bytes, body: bytes) -> bool:
    """See `tiltyard.api.exchange`. Leaves the cycle as the two messages would that it stands for."""
    if cycle.response_started or cycle.flow.write_paused:
        return False
    _check_expected(cycle)
    if cycle.disconnected:
        return True
    cycle.response_started = cycle.response_complete = True
    cycle.waiting_for_100_continue = False
    always = b"".join(b"%s: %s\r\n" % header for header in cycle.default_headers)
    closing = b"" if cycle.keep_alive else b"connection: close\r\n"
    shown = b"" if cycle.scope["method"] == "HEAD" else body
    cycle.transport.write(b"%s%s%s%s\r\n%s" % (STATUS_LINE[status], always, lines, closing, shown))
    cycle.message_event.set()
    if not cycle.keep_alive:
        cycle.transport.close()
    cycle.on_response()
    return True


async def _send_expected(cycle: ref[RequestResponseCycle], message: Any) -> None:
    """Send a message of an answer to a request that expects to hear whether its body is wanted."""
    answering = cycle()
    assert answering is not None  # it is what runs
    _check_expected(answering)
    await RequestResponseCycle.send(answering, message)


def _check_expected(cycle: RequestResponseCycle) -> None:
    """End a connection whose body was not called for: its client may leave it out, and send a request instead."""
    if cycle.waiting_for_100_continue and cycle.more_body:
        cycle.keep_alive = False
