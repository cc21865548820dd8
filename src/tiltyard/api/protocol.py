"""uvicorn's HTTP/1.1, with our error shape for what is no HTTP, and a bound on what comes before a body."""

from __future__ import annotations

import uuid
from http import HTTPStatus

import msgspec
from lance_namespace.errors import ErrorCode
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tiltyard.api.safety import SAFETY_LINES
from tiltyard.spec.models import ErrorResponse

LARGEST_HEAD = 128 << 10
"""Bytes of a request line with its headers; the parser itself would take any number."""


class Protocol(HttpToolsProtocol):
    """What is refused here never becomes a request, so no other part of the api hears of it."""

    _in_head = True
    _head = 0

    def data_received(self, data: bytes) -> None:
        """Parse, and refuse a head that does not end."""
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
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """End a request: a head follows."""
        self._in_head = True
        super().on_message_complete()

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
