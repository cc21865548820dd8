"""Ask other servers of the catalog for shares of one search, as sub-queries of its caller.

A sub-query has the credentials, the address and the request id of its caller, and is signed as a forwarded request is,
with the segments of the index that it is about. It counts as no request of the caller, is forwarded and spread no more,
and is answered with the ids of rows and their distances alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec
import pyarrow as pa
import urllib3
from lance_namespace.errors import PermissionDeniedError, ServiceUnavailableError, UnauthenticatedError

from tiltyard.api.execution.forwarding import CONNECT_SECONDS, FIRST_BYTES_SECONDS, SEGMENTS
from tiltyard.api.lancedb.databases import DATABASE_HEADER
from tiltyard.model.ids import wire_delimiter
from tiltyard.model.spec import ARROW_STREAM, JSON
from tiltyard.runtime.client_arrow.reading import read_table
from tiltyard.runtime.tracing import trace_headers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tiltyard.api.deadlines import Deadline
    from tiltyard.api.exchange import Exchange
    from tiltyard.api.execution.forwarding import Forwarding
    from tiltyard.model.spec import models

_NOT_PASSED_ON = frozenset({DATABASE_HEADER.decode(), "idempotency-key", "range", "x-request-timeout-ms"})
"""Headers that are about the caller's own request, or its way to name tables."""
_REFUSALS = {401: UnauthenticatedError, 403: PermissionDeniedError}


class SubQueries:
    """Asks other servers for the caller of one request. Safe to use from several threads."""

    def __init__(self, forwarding: Forwarding, exchange: Exchange, deadline: Deadline | None) -> None:
        self._forwarding, self._exchange, self._deadline = forwarding, exchange, deadline

    def may_ask(self, url: str) -> bool:
        """Return whether a server has answered lately; of one that has not, now and then one caller may ask it."""
        return not self._forwarding.breaker(url).try_enter()

    def may_repeat(self) -> bool:
        """Return whether a share may be asked of others, too, whose server is slow; it counts as done."""
        return self._forwarding.repeats.take()

    def note_slow(self, url: str) -> None:
        """Note that others have answered in a server's place, since it did not in time."""
        self._forwarding.breaker(url).fail()

    def ask(self, url: str, request: models.QueryTableRequest, segments: Sequence[str]) -> pa.Table:
        """Return the answer of a server to a query of some segments.

        Raises ServiceUnavailableError where it gives none in time, UnauthenticatedError and PermissionDeniedError where
        it refuses the caller.
        """
        names = request.id or ()
        delimiter = wire_delimiter(names)
        target = f"/v1/table/{quote(delimiter.join(names), safe='')}/query?delimiter={quote(delimiter, safe='')}"
        seconds = FIRST_BYTES_SECONDS
        if self._deadline is not None:
            seconds = max(0.001, min(seconds, self._deadline.remaining))
        breaker = self._forwarding.breaker(url)
        try:
            response = self._forwarding.http.request(
                "POST",
                f"{url}{target}",
                body=msgspec.json.encode(request),
                headers=self._headers(target, f"{int(seconds * 1000)} {','.join(segments)}"),
                timeout=urllib3.Timeout(connect=CONNECT_SECONDS, read=seconds),
                redirect=False,
            )
        except urllib3.exceptions.HTTPError as error:
            breaker.fail()
            raise ServiceUnavailableError(f"The server {url} does not answer: {error}") from error
        breaker.succeed()
        self._forwarding.repeats.note_answer()
        if response.status in _REFUSALS:
            raise _REFUSALS[response.status](f"The server {url} refuses its part of this search: {_reason(response)}")
        if response.status != 200:
            raise ServiceUnavailableError(f"The server {url} gives no answer: {response.status}, {_reason(response)}")
        try:
            return read_table(response.data)
        except (ValueError, OSError, pa.ArrowException) as error:
            raise ServiceUnavailableError(f"The server {url} has cut its answer: {error}") from error

    def _headers(self, target: str, share: str) -> dict[str, str]:
        given = self._forwarding.headers(self._exchange, "POST", target.encode(), share.encode())
        headers = {name: value for name, value in given.items() if name not in _NOT_PASSED_ON}
        return headers | trace_headers() | {"content-type": JSON, "accept": ARROW_STREAM, SEGMENTS.decode(): share}


def _reason(response: urllib3.BaseHTTPResponse) -> str:
    """Return what the body of an error says."""
    try:
        return str(msgspec.json.decode(response.data, type=_Error).error)
    except msgspec.DecodeError:
        return "no reason"


class _Error(msgspec.Struct):
    """The body of an error."""

    error: str = ""
