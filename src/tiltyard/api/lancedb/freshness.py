"""Read the headers by which lancedb's clients read their own writes, and never an older state than before."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from lance_namespace.errors import InvalidInputError

from tiltyard.model.freshness import Freshness

if TYPE_CHECKING:
    from tiltyard.api.binding import Headers

MIN_VERSION = b"x-lancedb-min-version"
"""The version that the client wrote last."""
MIN_READ_VERSION = b"x-lancedb-min-read-version"
"""The version that the client has read."""
MIN_TIMESTAMP = b"x-lancedb-min-timestamp"
"""When the client wants all commits of before."""

_LARGEST_VERSION = 2**63 - 1
_LONGEST_TIMESTAMP = 64
_EPOCH = datetime.fromtimestamp(0, UTC)


def read_freshness(headers: Headers) -> Freshness | None:
    """Return how fresh the response to a request has to be; None for any. Raises InvalidInputError."""
    timestamp = headers.get(MIN_TIMESTAMP)
    if timestamp is None and MIN_VERSION not in headers and MIN_READ_VERSION not in headers:
        return None
    versions = [_version(name, headers[name]) for name in (MIN_VERSION, MIN_READ_VERSION) if name in headers]
    return Freshness(max(versions, default=0), 0 if timestamp is None else _milliseconds(timestamp))


def _version(name: bytes, text: bytes) -> int:
    if text.isdigit() and len(text) <= len(str(_LARGEST_VERSION)) and int(text) <= _LARGEST_VERSION:
        return int(text)
    raise InvalidInputError(f"The header {name.decode()} is the number of a version.")


def _milliseconds(text: bytes) -> int:
    """Parse a timestamp of RFC 3339, rounded up. Raises InvalidInputError."""
    try:
        parsed = datetime.fromisoformat(text[:_LONGEST_TIMESTAMP].decode("ascii"))
    except ValueError:
        parsed = None
    if parsed is None or parsed.tzinfo is None or len(text) > _LONGEST_TIMESTAMP:
        raise InvalidInputError(f"The header {MIN_TIMESTAMP.decode()} is a time in RFC 3339, with its offset from UTC.")
    return -((_EPOCH - parsed) // timedelta(milliseconds=1))
