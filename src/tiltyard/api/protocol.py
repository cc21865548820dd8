"""uvicorn's HTTP/1.1, with our error shape for what is no HTTP, a bound on what comes before a body, and a way for
threads to read large bodies themselves, and one for short answers to go out in one piece.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Any

import httptools
import msgspec
from lance_namespace.errors import ErrorCode
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from tiltyard.api.exchange import SEND_WHOLE
from tiltyard.api.intake import ARRIVED, INTAKE, Intake
from tiltyard.api.safety import SAFETY_LINES
from tiltyard.spec.models import ErrorResponse

LARGEST_HEAD = 128 << 10
"""Bytes of a request line with its headers; the parser itself would take any number."""


class Protocol(HttpToolsProtocol):
    """What is refused here never becomes a request, so no other part of the api hears of it."""

    _in_head = True
    _head = 0
    _skip = 0
    """Bytes of a body that nobody wants any more, and that the parser must not see."""
    sheds: Callable[[], bool] = staticmethod(lambda: False)
    """Says for each request whether its connection shall end with it: another process has fewer."""

    def data_received(self, data: bytes) -> None:
        """Parse, and refuse a head that does not end."""
        if self._skip and not (data := self._behind_the_body(data)):
            return
        if self._in_head:
            self._head += len(data)
        super().data_received(data)
        if self._in_head and self._head > LARGEST_HEAD and not self.transport.is_closing():
            self._refuse(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"The URL and headers have more than {LARGEST_HEAD} bytes."
            )

    def on_headers_complete(self) -> None:
        """Begin a request: a body may be of any length."""
        self._in_head = False
        self._head = 0
        extensions: dict[str, Any] = {INTAKE: self.give_body}
        self.scope["extensions"] = extensions
        super().on_headers_complete()
        extensions[ARRIVED] = partial(_arrived, self.cycle)
        extensions[SEND_WHOLE] = partial(_send_whole, self.cycle)
        self.cycle.on_response = partial(self._answered, extensions)
        if self.sheds():
            self.cycle.keep_alive = False  # the answer will say so

    def _answered(self, extensions: dict[str, Any]) -> None:
        """End an exchange. Its request knows the extensions, and they know it: only the collector would free them."""
        extensions.clear()
        self.on_response_complete()

    def on_message_complete(self) -> None:
        """End a request: a head follows."""
        self._in_head = True
        super().on_message_complete()

    def give_body(self, taken: int) -> Intake | None:
        """Hand over the body that comes in now, of which `taken` bytes were received: see `tiltyard.api.intake`.

        None where its length is not known, or the connection is encrypted.
        """
        cycle, length = self.cycle, self._content_length()
        left = length - taken - len(cycle.body)
        if self.scheme != "http" or left <= 0 or self.transport.is_closing():
            return None
        self.flow.pause_reading()
        first, cycle.body = bytes(cycle.body), bytearray()
        descriptor = os.dup(self.transport.get_extra_info("socket").fileno())
        return Intake(socket.socket(fileno=descriptor), first, left, self._body_given)

    def _content_length(self) -> int:
        """Bytes of the body; 0 where the head does not say."""
        named = dict(self.headers)
        return 0 if b"transfer-encoding" in named else int(named.get(b"content-length", b"0"))

    def _body_given(self, unread: int) -> None:
        """Go on with what follows the body, once the rest that was not read has come."""
        if self.transport.is_closing():
            return
        self._skip = unread
        if not unread:
            self._end_body()
        self.flow.resume_reading()

    def _behind_the_body(self, data: bytes) -> bytes:
        """What follows a body that nobody wants."""
        self._unset_keepalive_if_required()
        skipped = min(self._skip, len(data))
        self._skip -= skipped
        if not self._skip:
            self._end_body()
        return data[skipped:]

    def _end_body(self) -> None:
        """The request is complete: the parser, which saw less of it, begins anew."""
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer what the parser cannot read."""
        self._refuse(HTTPStatus.BAD_REQUEST, msg)

    def _refuse(self, status: HTTPStatus, message: str) -> None:
        """Answer and close: what follows on this connection cannot be told apart from the broken request."""
        request_id = uuid.uuid4().hex
        body = msgspec.json.encode(ErrorResponse(error=message, code=int(ErrorCode.INVALID_INPUT), instance=request_id))
        self.transport.write(
            b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\nconnection: close\r\n"
            b"x-request-id: %s\r\n%scontent-length: %d\r\n\r\n%s"
            % (status, status.phrase.encode(), request_id.encode(), SAFETY_LINES, len(body), body)
        )
        self.transport.close()


def _arrived(cycle: RequestResponseCycle) -> bytes | None:
    """See `tiltyard.api.intake`."""
    if cycle.more_body:
        return None
    body, cycle.body = bytes(cycle.body), bytearray()
    cycle.flow.resume_reading()  # a long one has paused it
    return body


def _send_whole(cycle: RequestResponseCycle, status: int, lines: bytes, body: bytes) -> bool:
    """See `tiltyard.api.exchange`. Leaves the cycle as the two messages would that it stands for."""
    if cycle.response_started or cycle.flow.write_paused:
        return False
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
