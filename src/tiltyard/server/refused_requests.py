"""Requests that are refused while they are parsed: heads that are too large, or that frame a body in several ways."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from http import HTTPStatus

import msgspec
from lance_namespace.errors import ErrorCode

from tiltyard.api.exchange import SECURITY_LINES
from tiltyard.model.spec.models import ErrorResponse

MAX_HEAD_BYTES = 128 << 10
"""Bytes of a request line with its headers, and of all trailers; the parser itself would take any number."""
LINE_BYTES = 4
"""Bytes of a header line besides name and value: colon, space, and its end."""

HEAD = f"The URL and headers have more than {MAX_HEAD_BYTES} bytes."
TRAILERS = f"The trailers and chunk extensions have more than {MAX_HEAD_BYTES} bytes."


class RefusedRequestError(Exception):
    """A request is refused while it is parsed, with a response and the end of its connection."""

    def __init__(self, status: HTTPStatus, message: str, code: ErrorCode = ErrorCode.INVALID_INPUT) -> None:
        super().__init__(message)
        self.status, self.message, self.code = status, message, code


def too_large(text: str) -> RefusedRequestError:
    """Return the refusal of a head or of trailers that are too large."""
    return RefusedRequestError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, text)


def check_head(
    received: int, url: bytes, headers: Sequence[tuple[bytes, bytes]], coding: bytes | None, http_version: str
) -> None:
    """Raise RefusedRequestError for a head that is too large, or whose body could be framed in several ways.

    `received` are the bytes of it and of what came with it.
    """
    if received > MAX_HEAD_BYTES:
        fields = sum(len(name) + len(value) + LINE_BYTES for name, value in headers)
        if len(url) + fields > MAX_HEAD_BYTES:
            raise too_large(HEAD)
    if coding is None:
        return
    if coding.lower() != b"chunked":
        text = "This server accepts a body as it is, or chunked: send no other transfer coding."
        raise RefusedRequestError(HTTPStatus.NOT_IMPLEMENTED, text, ErrorCode.UNSUPPORTED)
    if http_version != "1.1":
        text = "HTTP/1.0 has no transfer codings: send a Content-Length."
        raise RefusedRequestError(HTTPStatus.BAD_REQUEST, text)


def encode_refusal(refusal: RefusedRequestError) -> bytes:
    """Return the response to a refused request, in the one JSON shape; its connection is closed after it."""
    request_id = uuid.uuid4().hex
    body = msgspec.json.encode(ErrorResponse(error=refusal.message, code=int(refusal.code), instance=request_id))
    status = b"%d %s" % (refusal.status, refusal.status.phrase.encode())
    return (
        b"HTTP/1.1 %s\r\ncontent-type: application/json\r\nconnection: close\r\n"
        b"x-request-id: %s\r\n%scontent-length: %d\r\n\r\n%s"
        % (status, request_id.encode(), SECURITY_LINES, len(body), body)
    )
