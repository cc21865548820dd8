"""A call of Flight: authenticated by its metadata before its message is read, within its caller's limits, recorded in
the audit log and the metrics, and answered with a status of gRPC where it fails.

Credentials are those of HTTP, or the user and password that drivers of Flight SQL have. A password is an API key, or a
token; the user is the name of its principal, or empty. A driver sends them once, in its handshake, and gets what it has
to send in each further call, which the server keeps no state of.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
from collections import Counter
from contextlib import asynccontextmanager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import DecodeError
from lance_namespace.errors import InvalidInputError, ServiceUnavailableError, ThrottlingError, UnauthenticatedError
from msgspec import structs

from tiltyard.api.errors import clear_tracebacks, error_response
from tiltyard.api.lancedb.databases import DATABASE_HEADER, PREFIX_HEADER
from tiltyard.api.limits.requests import caller_name
from tiltyard.api.request_log import request_id
from tiltyard.api.request_tracing import traced
from tiltyard.calls.in_process_caller import find_handler
from tiltyard.context import Context
from tiltyard.flight.siblings import UnreachableError, passed_on_address, write_peer
from tiltyard.identity.credentials import API_KEY, AUTHORIZATION, MAX_BYTES
from tiltyard.model.decisions import AskedOperation
from tiltyard.model.ids import Id, parse_id
from tiltyard.sql.remote_query import EXECUTE
from tiltyard.sql.tables import PUBLIC

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    from tiltyard.api.app import Shared
    from tiltyard.api.request_log import LoggedRequest
    from tiltyard.flight.connections import FlightConnection, FlightConnections
    from tiltyard.flight.siblings import Sibling

MAX_CALLS = 512
"""Calls that one process answers at once."""
MAX_CALLS_OF_CALLER = MAX_CALLS // 4
"""The same of one principal, or of one address where callers are not authenticated."""
MAX_WAITING = 64
"""Calls whose message has not come yet, and may be in memory in part; beyond it the oldest ends for a new one."""


class CallPlaces:
    """The calls of one process. Belongs to its event loop."""

    def __init__(self, message_seconds: float) -> None:
        """`message_seconds` is how long a call's message may take to come."""
        self._message_seconds = message_seconds
        self._by_caller: Counter[str] = Counter()
        self._waiting: dict[asyncio.Timeout, object] = {}
        """The connections that messages are waited for from, in the order in which the calls began."""

    @contextmanager
    def take(self, caller: str) -> Iterator[None]:
        """Take a place for a caller's call during the block. Raises ThrottlingError."""
        if self._by_caller[caller] >= MAX_CALLS_OF_CALLER:
            raise ThrottlingError(f"{MAX_CALLS_OF_CALLER} calls of yours are being answered: try again in a moment.")
        if self._by_caller.total() >= MAX_CALLS:
            raise ThrottlingError(f"{MAX_CALLS} calls are being answered already: try again in a moment.")
        self._by_caller[caller] += 1
        try:
            yield
        finally:
            self._by_caller[caller] -= 1
            if not self._by_caller[caller]:
                del self._by_caller[caller]

    @asynccontextmanager
    async def wait_for_message(self, connection: object) -> AsyncIterator[None]:
        """Bound the time of the block, which reads a message from a connection.

        Where many wait, the oldest ends of the connection that has the most. Raises InvalidInputError, ThrottlingError.
        """
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + self._message_seconds
        try:
            async with asyncio.timeout_at(ends_at) as timeout:
                self._waiting[timeout] = connection
                try:
                    if len(self._waiting) > MAX_WAITING:
                        self._end_oldest(loop.time())
                    yield
                finally:
                    self._waiting.pop(timeout, None)
        except TimeoutError:
            if loop.time() < ends_at:
                raise ThrottlingError("Too many calls wait for their message: try again in a moment.") from None
            message = f"The call's message took more than {self._message_seconds:g} s to come."
            raise InvalidInputError(message) from None

    def _end_oldest(self, now: float) -> None:
        """End the call that waits longest of the connection from which most do."""
        ((most, _),) = Counter(self._waiting.values()).most_common(1)
        oldest = next(timeout for timeout, connection in self._waiting.items() if connection is most)
        del self._waiting[oldest]  # it is woken later, and must not be ended twice
        if not oldest.expired():  # one whose time is over ends by itself
            oldest.reschedule(now)


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
PROTOCOL = "lancedb-sql-protocol"
ADAPTIVE = "adaptive-v1"
POLLING_METADATA = ((PROTOCOL, ADAPTIVE),)
"""What lancedb sends with a query for which it can poll, and what tells it that the answer says whether it has to."""
DATABASE_METADATA = b"database"
"""What lancedb's client sends here in the place of its header of HTTP."""

log = logging.getLogger("tiltyard.flight")
Headers = dict[bytes, bytes]


class Call:
    """One call, whose caller is known: `ctx` is its context, `namespace` the default one of its queries."""

    def __init__(
        self,
        shared: Shared,
        places: CallPlaces,
        context: grpc.aio.ServicerContext,
        headers: Headers,
        logged: LoggedRequest,
        connection: FlightConnection | None,
    ) -> None:
        """`headers` are its metadata, with credentials as calls of HTTP have them."""
        assert logged.ctx is not None
        self.ctx: Context = logged.ctx
        self.namespace = Id()
        self.is_passed_on = False
        """Whether another process of the server answers it, and records it."""
        self._shared = shared
        self._places = places
        self._context = context
        self._headers = headers
        self._logged = logged
        self._connection = connection
        self._has_begun = False

    @property
    def address(self) -> str:
        """The client's address."""
        return self._logged.address

    @property
    def can_poll(self) -> bool:
        """Whether the client, which submits a query on one call, understands that it has to poll for its rows."""
        return self._headers.get(PROTOCOL.encode()) == ADAPTIVE.encode()

    @property
    def token(self) -> str | None:
        """The header that further calls of the same caller can bring; None for one without credentials."""
        return bearer_token(self._headers)

    async def read(self, decode: Callable[[bytes], Any], max_bytes: int = 0) -> Any:
        """Return the next message; None where no more come.

        Raises DecodeError, InvalidInputError for one that is too large or comes too slowly, ThrottlingError.
        """
        async with self._places.wait_for_message(self._connection or self):
            message = await self._context.read()
        if message is grpc.aio.EOF:
            return None
        if 0 < max_bytes < len(message):
            raise InvalidInputError(f"The message has more than {max_bytes} bytes.")
        if self._connection is not None:
            self._connection.authenticate()  # where everybody is let in, who sends a whole message is no stranger
        return decode(message)

    async def begin(self) -> Call:
        """Count the call for its caller's rate, and find its database and namespace. Raises HttpError 429, and as
        `Databases.find` and `default_namespace` do.
        """
        self._shared.limits.admit(self.ctx, self.address)
        headers = self._headers
        if (database := headers.get(DATABASE_HEADER) or headers.get(DATABASE_METADATA)) is not None:
            named = {DATABASE_HEADER: database, PREFIX_HEADER: headers.get(PREFIX_HEADER, b"")}
            found = await self._shared.databases.find(self.ctx, named)
            self.ctx = self._logged.ctx = structs.replace(self.ctx, database=found)
        self.namespace = default_namespace(headers)
        return self

    async def write(self, message: bytes) -> None:
        """Send a message. Where nothing is read of the answer for `send_timeout`, the connection ends, as of HTTP.

        The call's status would wait behind what is not read. Raises ServiceUnavailableError.
        """
        seconds = self.ctx.settings.send_timeout
        try:
            async with asyncio.timeout(seconds):
                await self._context.write(message)
        except TimeoutError:
            if self._connection is not None:
                self._connection.displace()
            raise ServiceUnavailableError(f"Nothing of the rows was read for {seconds:g} s (send_timeout).") from None

    async def pass_on(self, sibling: Sibling, method: str, request: Any) -> bool:
        """Let another process of the server answer the call, and record it; return whether it was there to."""
        self.is_passed_on = True
        try:
            async for message in sibling.stream(method, request, self._context, self._peer):
                await self.write(message)
        except UnreachableError:
            self.is_passed_on = False
        return self.is_passed_on

    @property
    def _peer(self) -> str:
        return write_peer(self._logged.client)

    async def send_initial_metadata(self, metadata: tuple[tuple[str, str], ...]) -> None:
        """Send metadata before the first message."""
        await self._context.send_initial_metadata(metadata)

    def when_done(self, function: Callable[[], None]) -> None:
        """Call a function when the call has ended, also while a message of it is sent."""
        self._context.add_done_callback(lambda _: function())

    def record_tables(self, operation: str, paths: Sequence[Id]) -> None:
        """Set the operation, and the tables that it names, for the audit log."""
        self._logged.set_query(operation, paths)

    def record_operation(self, name: str, paths: Sequence[Id]) -> None:
        """Record the call as one of an operation that clients call by HTTP, too."""
        self.record_tables(name, paths)
        handler = find_handler(name)
        self._logged.is_audited_change = handler.changes and handler.audited

    async def write_record(self) -> None:
        """Write the audit record of a change, before its client learns of it. Raises ServiceUnavailableError."""
        if (written := self._logged.before_response(200)) is not None:
            await written

    def on_first_byte(self) -> None:
        """Take the time of the first message; later ones do not count."""
        if not self._has_begun:
            self._has_begun = True
            self._logged.on_first_byte()


class Calls:
    """Opens the calls of one process."""

    def __init__(self, shared: Shared, connections: FlightConnections) -> None:
        self._shared = shared
        self._connections = connections
        self._places = CallPlaces(shared.services.settings.head_timeout)

    @asynccontextmanager
    async def open(self, context: grpc.aio.ServicerContext, operation: str) -> AsyncIterator[Call]:
        """Open a call by its metadata, and give it a place; whatever the block raises becomes the call's status."""
        headers = read_headers(context)
        connection = self._connections.find(headers)
        client = connection.address if connection is not None else passed_on_address(context, headers)
        if client is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "The connection has ended.")
        logged = self._shared.log.start({"client": client}, request_id(headers))
        logged.operation = operation
        call: Call | None = None
        try:
            with nullcontext() if connection is None else connection.answering(), traced(logged, headers):
                try:
                    call = await self._authenticate(context, headers, logged, connection)
                    with self._places.take(caller_name(call.ctx, call.address)):
                        yield call
                    logged.status, logged.complete = 200, True
                except Exception as error:  # noqa: BLE001  # the one place where every failure becomes a status
                    self._shared.services.outage_log.report(error)
                    await self._abort(context, logged, error)
        finally:
            if call is not None and call.is_passed_on:
                logged.discard()
            else:
                logged.end()

    async def _authenticate(
        self,
        context: grpc.aio.ServicerContext,
        headers: Headers,
        logged: LoggedRequest,
        connection: FlightConnection | None,
    ) -> Call:
        """Return the call of who its metadata say. Raises UnauthenticatedError, ServiceUnavailableError."""
        authentication = self._shared.authentication
        headers, user = normalize_credentials(headers)
        principal = await authentication.authenticate_headers(headers)
        if user and user != principal.name and not authentication.is_open:
            raise UnauthenticatedError("The key is not one of this user.")
        asked = AskedOperation(EXECUTE)  # what is called as an operation says which
        logged.ctx = Context(self._shared.services, logged.request_id, principal=principal, asked=asked)
        if connection is not None:
            if authentication.is_open:
                connection.admit()
            else:
                connection.authenticate()
        return Call(self._shared, self._places, context, headers, logged, connection)

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
    return Id() if text in ("", PUBLIC) else parse_id(text)


def read_headers(context: grpc.aio.ServicerContext) -> Headers:
    """Return the metadata of a call."""
    return {
        key.encode(): value if isinstance(value, bytes) else value.encode()
        for key, value in context.invocation_metadata() or ()
    }


def normalize_credentials(headers: Headers) -> tuple[Headers, str]:
    """Return headers as calls of HTTP have them, without a user and password, and the user, if any, who has to own it.

    Raises UnauthenticatedError.
    """
    scheme, _, text = headers.get(AUTHORIZATION, b"").partition(b" ")
    if scheme.lower() != b"basic":
        return headers, ""
    user, secret = _read_basic(text.strip())
    return {**headers, AUTHORIZATION: b"Bearer " + secret}, user


def bearer_token(headers: Headers) -> str | None:
    """Return the header that has the credentials of normalized headers as a bearer token; None where there are none."""
    if AUTHORIZATION in headers:
        return headers[AUTHORIZATION].decode()
    return f"Bearer {headers[API_KEY].decode()}" if API_KEY in headers else None


def _read_basic(text: bytes) -> tuple[str, bytes]:
    """Return the user and the password. Raises UnauthenticatedError."""
    try:
        decoded = base64.b64decode(text, validate=True) if len(text) <= 2 * MAX_BYTES else b""
        user, colon, password = decoded.partition(b":")
        name = user.decode()
    except (binascii.Error, UnicodeDecodeError):
        colon, name, password = b"", "", b""
    if not colon or not password.isascii():
        raise UnauthenticatedError("The header Authorization has no user and password: send an API key as password.")
    return name, password
