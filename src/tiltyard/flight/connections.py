"""The connections of SQL's port: within the limits of all ports, and passed on to gRPC, which accepts no others.

gRPC accepts whatever comes, without a bound that could prefer one client to another. So the event loop accepts, and
passes a connection's bytes on to gRPC by a Unix socket. Until its client is authenticated, that is one call at a time,
and of a call its metadata alone: nothing of its message is read before they say who it is.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

from tiltyard.api.limits.connections import Connections, Phase, Progress, unacknowledged_bytes
from tiltyard.flight.frames import FrameCutter, ProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

CONNECTION_METADATA = "x-tiltyard-connection"
"""What each call's metadata end with: the token of its connection, which no client knows."""
DESCRIPTORS = 3
"""What a connection takes: itself, and both ends of its socket to gRPC."""
MAX_WAITING_BYTES = 64 << 10
"""Bytes of a client that wait to be passed on, after which no more are read."""

log = logging.getLogger("tiltyard.flight")


class FlightConnections:
    """The connections of SQL's port, by the tokens that their calls bring. Belongs to the event loop."""

    def __init__(self, connections: Connections, path: str) -> None:
        """`connections` are those of all ports; `path` is the Unix socket at which gRPC listens."""
        self.limits = connections
        self.path = path
        self._by_token: dict[str, FlightConnection] = {}

    def open(self) -> FlightConnection:
        """Return the protocol of a connection that was accepted."""
        return FlightConnection(self)

    def register(self, connection: FlightConnection) -> None:
        """Know a connection by its token, until it is lost."""
        self._by_token[connection.token] = connection

    def forget(self, connection: FlightConnection) -> None:
        """Forget a connection."""
        self._by_token.pop(connection.token, None)

    def find(self, metadata: Mapping[bytes, bytes]) -> FlightConnection | None:
        """Return the connection that a call came by; None for one that is gone."""
        return self._by_token.get(metadata.get(CONNECTION_METADATA.encode(), b"").decode(errors="replace"))

    def close(self) -> None:
        """End all connections."""
        for connection in list(self._by_token.values()):
            connection.displace()


class FlightConnection(asyncio.Protocol):
    """One connection of a client."""

    unchanged: tuple[Progress, float] | None = None
    held_bytes = 0
    descriptors = DESCRIPTORS

    def __init__(self, connections: FlightConnections) -> None:
        self.token = secrets.token_hex(16)
        self.address: tuple[str, int] | None = None
        """Where the client is."""
        self._connections = connections
        self._cutter = FrameCutter(CONNECTION_METADATA.encode(), self.token.encode())
        self._transport: asyncio.Transport = cast("asyncio.Transport", None)
        self._link = _GrpcLink(self)
        self._linking: asyncio.Task[None] | None = None
        self._calls = 0
        """Calls of it that are being answered."""
        self._begun_calls = 0
        self._is_authenticated = False
        self._is_undecided = False
        """A call of a client that is not authenticated was passed on, and gRPC has not said yet who it is."""
        self._is_paused = False

    # asyncio's

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the connection; another one may have to end for it."""
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        self.address = None if peer is None else (peer[0], peer[1])
        self._connections.register(self)
        self._connections.limits.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the connection, with its calls."""
        self._connections.limits.remove(self)
        self._connections.forget(self)
        if self._linking is not None:
            self._linking.cancel()
        self._link.close()

    def data_received(self, data: bytes) -> None:
        """Pass on what may be."""
        if not self._is_authenticated:
            self._connections.limits.hold(self, len(data))
        if self._transport.is_closing():
            return
        self._cutter.add(data)
        self._pass_on()

    def pause_writing(self) -> None:
        """Read no answers while the client reads none."""
        self._link.pause_reading()

    def resume_writing(self) -> None:
        """Read answers again."""
        self._link.resume_reading()

    # the limits of connections

    @property
    def is_busy(self) -> bool:
        return self._calls > 0 or (self._begun_calls > 0 and self._cutter.is_within_metadata)

    def progress(self) -> Progress | None:
        if unsent := self._transport.get_write_buffer_size():
            return Phase.RESPONSE, unsent + unacknowledged_bytes(self._transport)
        if self._is_undecided or not self._begun_calls or self._cutter.is_within_metadata:
            return Phase.HEAD, self._begun_calls
        if self._calls or self._is_authenticated:
            return None  # a call has deadlines of its own, and gRPC ends connections without calls
        return Phase.IDLE, self._begun_calls

    def expire(self, phase: Phase) -> None:
        if phase is Phase.RESPONSE:
            self._transport.abort()
        else:
            self._transport.close()

    def displace(self) -> None:
        self._transport.abort()

    def turn_away(self) -> None:
        self._transport.close()

    # gRPC's

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Count a call while it is answered; go on with the next one if this one's client was not authenticated."""
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1
            self.admit()

    def admit(self) -> None:
        """Pass on the message of the call, and what follows it."""
        if self._is_undecided:
            self._is_undecided = False
            if not self._is_authenticated:
                self._connections.limits.release(self)
            if not self._transport.is_closing():
                self._pass_on()

    def authenticate(self) -> None:
        """Count the connection as authenticated: a call has shown whose it is."""
        if not self._is_authenticated:
            self._is_authenticated = True
            self._connections.limits.authenticate(self)
        self.admit()

    def _pass_on(self) -> None:
        """Pass on what has come, up to the metadata of a call whose client is to be authenticated first."""
        try:
            while not self._is_undecided:
                data, begins_call = self._cutter.take()
                if not data:
                    break
                self._link.write(data)
                if begins_call:
                    self._begun_calls += 1
                    self._is_undecided = not self._is_authenticated
        except ProtocolError as error:
            log.debug("a connection of %s was ended: %s", self.address, error)
            self._transport.close()
            return
        if self._linking is None and self._link.has_bytes:
            self._linking = asyncio.get_running_loop().create_task(self._connect())
        self.adjust_reading()

    def adjust_reading(self) -> None:
        """Read from the client unless much of what it has sent waits."""
        is_full = self._link.is_full or (self._is_undecided and self._cutter.waiting_bytes > MAX_WAITING_BYTES)
        if is_full == self._is_paused or self._transport.is_closing():
            return
        self._is_paused = is_full
        if is_full:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    async def _connect(self) -> None:
        """Connect to gRPC."""
        try:
            await asyncio.get_running_loop().create_unix_connection(lambda: self._link, self._connections.path)
        except OSError as error:
            log.warning("A connection of SQL could not be opened: %s.", error.strerror)
            self._transport.abort()

    def write(self, data: bytes) -> None:
        """Send what gRPC answers."""
        self._transport.write(data)

    def on_grpc_lost(self) -> None:
        """End the connection: gRPC has ended its own."""
        self._transport.close()


class _GrpcLink(asyncio.Protocol):
    """The other end of a client's connection: this process's own connection to gRPC."""

    def __init__(self, client: FlightConnection) -> None:
        self._client = client
        self._transport: asyncio.Transport | None = None
        self._unsent: list[bytes] = []
        self._is_closed = False
        self._is_choked = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send what has come meanwhile."""
        self._transport = cast("asyncio.Transport", transport)
        if self._is_closed:
            self._transport.abort()
            return
        self._transport.writelines(self._unsent)
        self._unsent.clear()
        self._client.adjust_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the client's connection, once it has got what was answered."""
        if not self._is_closed:
            self._client.on_grpc_lost()

    def data_received(self, data: bytes) -> None:
        """Pass on an answer."""
        self._client.write(data)

    def pause_writing(self) -> None:
        """Read no more of the client: gRPC does not, either."""
        self._is_choked = True
        self._client.adjust_reading()

    def resume_writing(self) -> None:
        """Read from the client again."""
        self._is_choked = False
        self._client.adjust_reading()

    @property
    def has_bytes(self) -> bool:
        """Whether bytes wait for the connection."""
        return bool(self._unsent)

    @property
    def is_full(self) -> bool:
        """Whether gRPC takes no more for now."""
        return self._is_choked or sum(map(len, self._unsent)) > MAX_WAITING_BYTES

    def write(self, data: bytes) -> None:
        """Send bytes to gRPC, or keep them until there is a connection."""
        if self._transport is None:
            self._unsent.append(data)
        else:
            self._transport.write(data)

    def pause_reading(self) -> None:
        """Read no answers."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read answers again."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def close(self) -> None:
        """End it: the client is gone, or the connection."""
        self._is_closed = True
        if self._transport is not None:
            self._transport.abort()
