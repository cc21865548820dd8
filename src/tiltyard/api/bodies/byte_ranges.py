"""Send the bytes of one value, or the range of them that a request's header `Range` asks for (RFC 9110, section 14).

One range is sent as 206. A header that is malformed, of another unit, or made conditional by `If-Range` (no value here
has a validator) is ignored, as the RFC has it: then the whole value is sent. Several ranges, and one that begins behind
the end, are refused with 416; a null has no bytes, and is 204.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lance_namespace.errors import ErrorCode

from tiltyard.api.errors import HttpError
from tiltyard.model.spec import OCTET_STREAM

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tiltyard.model.operations import BytesAnswer

CHUNK_BYTES = 1 << 20
"""Bytes that are read and sent at once."""
VERSION_HEADER = b"x-lancedb-version"
"""The header with the table's version: lancedb's clients pin it for their further reads."""

_RANGES = re.compile(rb"bytes=(.+)")
_RANGE = re.compile(rb"[ \t]*(\d{0,19})-(\d{0,19})[ \t]*")

Header = tuple[bytes, bytes]


class ByteDownload:
    """A response of bytes in chunks: read in a thread, the first one by the constructor.

    `first` are the first bytes; `complete` says whether they are all. `status` and `headers` are the response's.
    """

    media = OCTET_STREAM

    def __init__(self, answer: BytesAnswer, requested: bytes | None, *, is_head: bool = False) -> None:
        """`requested` is the header `Range`; the response to a HEAD is that of the whole value, without its bytes.

        Raises HttpError 416, and what reading raises, as `next_chunk`.
        """
        requested = None if is_head else requested
        common: tuple[Header, ...] = (VERSION_HEADER, b"%d" % answer.version), (b"accept-ranges", b"bytes")
        self.headers = common
        self._read = answer.read
        size = answer.size
        if size is None:
            self.status, self._next, self._end = 204, 0, 0
        elif (span := parse_range(requested, size, common)) is None:
            self.status, self._next, self._end = 200, 0, size
            self.headers = (*common, _ATTACHMENT, (b"content-length", b"%d" % size))
        else:
            first, last = span
            self.status, self._next, self._end = 206, first, last + 1
            sent = (b"content-range", b"bytes %d-%d/%d" % (first, last, size))
            self.headers = (*common, _ATTACHMENT, sent, (b"content-length", b"%d" % (last + 1 - first)))
        if is_head:
            self._next = self._end
        self.first = self.next_chunk() or b""
        self.complete = self._next >= self._end

    def next_chunk(self) -> bytes | None:
        """Return the next chunk, None after the last."""
        length = min(CHUNK_BYTES, self._end - self._next)
        if length <= 0:
            return None
        chunk = self._read(self._next, length)
        self._next += length
        return chunk

    def close(self) -> None:
        """Do nothing: between two chunks nothing is open."""


_ATTACHMENT = (b"content-disposition", b"attachment")
"""Bytes of a table are never shown as a page of the server's own."""


def requested_range(headers: Mapping[bytes, bytes]) -> bytes | None:
    """Return a request's header `Range`, None for one that is to be ignored."""
    return None if b"if-range" in headers else headers.get(b"range")


def parse_range(requested: bytes | None, size: int, headers: tuple[Header, ...] = ()) -> tuple[int, int] | None:
    """Return the first and the last byte of a requested range of a value; None for the whole value.

    Raises HttpError 416, with the size of the value and `headers`, for what cannot be sent.
    """
    ranges = None if requested is None else _RANGES.fullmatch(requested)
    if ranges is None:
        return None
    spans = [_RANGE.fullmatch(text) for text in ranges[1].split(b",")]
    bounds = [span.groups() for span in spans if span is not None and span.groups() != (b"", b"")]
    if len(bounds) < len(spans) or any(first and last and int(first) > int(last) for first, last in bounds):
        return None
    refusal = (*headers, (b"content-range", b"bytes */%d" % size))
    if len(bounds) > 1:
        raise HttpError(416, ErrorCode.INVALID_INPUT, "One range at a time: send a request for each.", refusal)
    first, last = bounds[0]
    start = int(first) if first else max(0, size - int(last))
    end = min(int(last), size - 1) if first and last else size - 1
    if start > end or (not first and int(last) == 0):
        raise HttpError(
            416, ErrorCode.INVALID_INPUT, f"This value has {size} bytes: the range is behind them.", refusal
        )
    return start, end
