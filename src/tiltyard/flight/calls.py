"""A call of Flight: authenticated, within its caller's limits, recorded in the audit log and the metrics, and answered
with a status of gRPC where it fails.
"""

from __future__ import annotations

import logging
import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import grpc
import msgspec
from google.protobuf.message import DecodeError
from lance_namespace.errors import InvalidInputError, UnauthenticatedError
from msgspec import structs

from tiltyard.api.errors import clear_tracebacks, error_response
from tiltyard.api.lancedb.databases import DATABASE_HEADER, PREFIX_HEADER
from tiltyard.api.request_tracing import traced
from tiltyard.context import Context
from tiltyard.flight.credentials import normalize_credentials, read_headers
from tiltyard.flight.siblings import peer_of
from tiltyard.model.ids import Id, parse_id
from tiltyard.sql.tables import PUBLIC

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from tiltyard.api.app import Shared
    from tiltyard.api.request_log import LoggedRequest

MAX_REQUEST_ID = 128
_STATUS = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    406: grpc.StatusCode.UNIMPLEMENTED,
    409: grpc.StatusCode.FAILED_PRECONDITION,
    413: grpc.StatusCode.INVALID_ARGUMENT,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
DATABASE_METADATA = b"database"
"""What lancedb's client sends here in the place of its header of HTTP."""
_random = random.Random()  # noqa: S311  # for ids of requests, which are no secrets

log = logging.getLogger("tiltyard.flight")


class _Objects(msgspec.Struct):
    """The ids of a query's tables, as the audit log reads them from a request."""

    entries: list[_Object]


class _Object(msgspec.Struct):
    id: list[str]


class Call:
    """One call: `ctx` is its context, `namespace` the default one of its queries."""

    def __init__(self, ctx: Context, namespace: Id, logged: LoggedRequest) -> None:
        self.ctx = ctx
        self.namespace = namespace
        self._logged = logged
        self._has_begun = False

    @property
    def address(self) -> str:
        """The client's address."""
        return self._logged.address

    def record_tables(self, operation: str, paths: Sequence[Id]) -> None:
        """Set the operation, and the tables that it names, for the audit log."""
        self._logged.operation = operation
        self._logged.request = _Objects([_Object(list(path)) for path in paths])

    def on_first_byte(self) -> None:
        """Take the time of the first message; later ones do not count."""
        if not self._has_begun:
            self._has_begun = True
            self._logged.on_first_byte()


class Calls:
    """Opens the calls of one process."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared

    @asynccontextmanager
    async def open(self, context: grpc.aio.ServicerContext, operation: str) -> AsyncIterator[Call]:
        """Open a call for its handler; whatever the handler raises becomes the call's status."""
        headers = read_headers(context)
        scope = {"client": _address(peer_of(context))}
        logged = self._shared.log.start(scope, _request_id(headers))
        logged.operation = operation
        try:
            with traced(logged, headers):
                try:
                    yield await self._begin(headers, logged)
                    logged.status, logged.complete = 200, True
                except Exception as error:  # noqa: BLE001  # the one place where every failure becomes a status
                    self._shared.services.outage_log.report(error)
                    await self._abort(context, logged, error)
        finally:
            logged.end()

    async def _begin(self, headers: dict[bytes, bytes], logged: LoggedRequest) -> Call:
        headers, user = normalize_credentials(headers)
        principal = await self._shared.authentication.authenticate_headers(headers)
        if user and user != principal.name and not self._shared.authentication.is_open:
            raise UnauthenticatedError("The key is not one of this user.")
        ctx = Context(self._shared.services, logged.request_id, principal=principal)
        if (database := headers.get(DATABASE_HEADER) or headers.get(DATABASE_METADATA)) is not None:
            named = {DATABASE_HEADER: database, PREFIX_HEADER: headers.get(PREFIX_HEADER, b"")}
            ctx = structs.replace(ctx, database=await self._shared.databases.find(ctx, named))
        logged.ctx = ctx
        self._shared.limits.check_rate(ctx, logged.address)
        return Call(ctx, default_namespace(headers), logged)

    async def _abort(self, context: grpc.aio.ServicerContext, logged: LoggedRequest, error: Exception) -> None:
        """End a call with the status and the message of an error. Raises what ends a handler of gRPC."""
        if isinstance(error, grpc.aio.AbortError):
            raise error
        if isinstance(error, DecodeError):
            error = InvalidInputError("The message is none of Arrow Flight's.")
        status, body, _ = error_response(error, logged.request_id)
        clear_tracebacks(error)
        logged.status, logged.code = status, body.code
        context.set_trailing_metadata((("x-request-id", logged.request_id),))
        await context.abort(_STATUS.get(status, grpc.StatusCode.INTERNAL), body.error or "")


def default_namespace(headers: dict[bytes, bytes]) -> Id:
    """Return the namespace of names without a schema: that of the call's `namespace-path`, `public` being the root.

    Raises InvalidInputError.
    """
    text = headers.get(b"namespace-path", b"").decode(errors="replace")
    return Id() if text in ("", PUBLIC) else parse_id(text, "$")


def _request_id(headers: dict[bytes, bytes]) -> str:
    """Return the client's own id where it is fit for a log line, else a new one."""
    own_id = headers.get(b"x-request-id", b"")
    if 0 < len(own_id) <= MAX_REQUEST_ID and own_id.isascii() and (text := own_id.decode()).isprintable():
        return text
    return f"{_random.getrandbits(128):032x}"


def _address(peer: str) -> tuple[str, int] | None:
    """Return the address and port of a peer, as gRPC writes it: `ipv4:127.0.0.1:50123`, `ipv6:%5B::1%5D:50123`."""
    kind, _, rest = peer.partition(":")
    host, _, port = rest.rpartition(":")
    if kind not in ("ipv4", "ipv6") or not port.isdigit():
        return None
    return host.replace("%5B", "").replace("%5D", "").strip("[]"), int(port)
