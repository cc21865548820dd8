"""Call a Thrift service from several threads: pooled connections, each call within its time."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from lance_namespace.errors import ServiceUnavailableError, UnsupportedOperationError
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.Thrift import TApplicationException, TException, TMessageType
from thrift.transport.TSocket import TSocket
from thrift.transport.TTransport import TBufferedTransport, TTransportBase

from tiltyard.mounts.call_deadline import CallDeadline
from tiltyard.mounts.thrift.structs import Struct, read_struct, write_struct
from tiltyard.runtime.outage_log import SystemUnavailableError

MAX_TEXT_BYTES, MAX_CONTAINER_ENTRIES = 64 << 20, 4_000_000
"""Bytes of a text, and items of a container, that a service may answer with."""

_RESOLVING_THREADS = 2
"""For names of hosts; more than one, since a look-up that was given up goes on."""

Address = tuple[str, int]
Wrap = Callable[[TTransportBase, str], TTransportBase]
"""Return a transport over that of a new connection to a host."""


@dataclass(frozen=True, slots=True)
class ThriftLimits:
    """Seconds for a call and for the connection that it may need; how many connections there are at most."""

    timeout: float
    connect_timeout: float
    connections: int


class _DeadlineSocket(TSocket):  # type: ignore[misc]  # the package has no types
    """A socket whose reads and writes all end at one time: one timeout for each of them would add up."""

    def __init__(self, address: Address, deadline: float) -> None:
        super().__init__(*address, socket_keepalive=True)
        self.deadline = deadline

    def read(self, size: int) -> bytes:
        """Read what has arrived, up to a size. Raises TTransportException, OSError."""
        self._limit()
        data: bytes = super().read(size)
        return data

    def write(self, data: bytes) -> None:
        """Write. Raises TTransportException, OSError."""
        self._limit()
        super().write(data)

    def _limit(self) -> None:
        remaining = self.deadline - time.monotonic()
        if remaining <= 0:
            raise TimeoutError("the call has taken too long")
        self.handle.settimeout(remaining)


class _Connection:
    """A connection, for one thread at a time."""

    def __init__(self, handle: socket.socket, address: Address, deadline: float, wrap: Wrap | None) -> None:
        """Take over a socket that is connected to an address. Raises as `wrap` does."""
        self._socket = _DeadlineSocket(address, deadline)
        self._socket.setHandle(handle)
        transport = TBufferedTransport(self._socket, 1 << 16)
        self._protocol = TBinaryProtocol(
            transport if wrap is None else wrap(transport, address[0]),
            string_length_limit=MAX_TEXT_BYTES,
            container_length_limit=MAX_CONTAINER_ENTRIES,
        )

    def is_open(self) -> bool:
        """Whether the other side has not closed it, as far as is known here."""
        if isinstance(self._socket.handle, ssl.SSLSocket):
            return _is_tls_open(self._socket.handle)
        return bool(self._socket.isOpen())

    def call(self, method: str, arguments: Struct, deadline: float) -> Struct:
        """Return the result: field 0, or the field of a declared exception. Raises OSError, TException, ValueError."""
        self._socket.deadline = deadline
        self._protocol.writeMessageBegin(method, TMessageType.CALL, 0)
        write_struct(self._protocol, arguments)
        self._protocol.writeMessageEnd()
        self._protocol.trans.flush()
        name, message_type, _ = self._protocol.readMessageBegin()
        if message_type == TMessageType.EXCEPTION:
            error = TApplicationException()
            error.read(self._protocol)
            raise error
        if name != method:
            raise ValueError(f"an answer to {name}")
        return read_struct(self._protocol)

    def close(self) -> None:
        """Close it."""
        self._socket.close()


class ThriftClient:
    """Calls of one service, which several addresses may offer. Safe to use from several threads."""

    def __init__(
        self,
        name: str,
        addresses: Sequence[Address],
        limits: ThriftLimits,
        greeting: tuple[str, Struct] | None = None,
        tls: ssl.SSLContext | None = None,
        wrap: Wrap | None = None,
    ) -> None:
        """`name` is what messages call the service; `greeting` is a call that each connection begins with.

        `wrap` authenticates each connection before, and returns what is sent and received through.
        """
        self._name = name
        self._addresses = list(addresses)
        self._limits = limits
        self._greeting = greeting
        self._wrap = wrap
        self._tls = tls
        self._resolver = CallDeadline(name, limits.connect_timeout, _RESOLVING_THREADS)
        self._places = threading.BoundedSemaphore(limits.connections)
        self._idle: list[_Connection] = []
        self._lock = threading.Lock()
        self._is_closed = False

    def call(self, method: str, arguments: Struct, *, is_read: bool) -> Struct:
        """Return the result struct of a call.

        A read is tried again where the connection turns out to be gone. Raises ServiceUnavailableError,
        UnsupportedOperationError for a method that the service does not have.
        """
        deadline = time.monotonic() + self._limits.timeout
        with self._place(deadline):
            try:
                return self._call(method, arguments, deadline, is_read=is_read)
            except TApplicationException as error:
                if error.type == TApplicationException.UNKNOWN_METHOD:
                    raise UnsupportedOperationError(f"{self._name} cannot {method}: its version is too old.") from error
                raise SystemUnavailableError(f"{self._name} fails on {method}: try again.", self._name) from error
            except ssl.SSLCertVerificationError as error:
                raise SystemUnavailableError(
                    f"{self._name} has no certificate that the mount accepts.", self._name
                ) from error
            except (OSError, TException, ValueError, EOFError) as error:
                rest = "try again" if is_read else "what was to change may have changed"
                raise SystemUnavailableError(f"{self._name} does not answer: {rest}.", self._name) from error

    def close(self) -> None:
        """Close all connections; those in use after their call."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()
        self._resolver.close()

    @contextmanager
    def _place(self, deadline: float) -> Iterator[None]:
        """Hold one of the places for connections. Raises ServiceUnavailableError where none gets free in time."""
        if not self._places.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise ServiceUnavailableError(
                f"All {self._limits.connections} connections to {self._name} are in use: try again in a moment."
            )
        try:
            yield
        finally:
            self._places.release()

    def _call(self, method: str, arguments: Struct, deadline: float, *, is_read: bool) -> Struct:
        connection = self._idle_connection()
        if connection is not None:
            try:
                return self._run(connection, method, arguments, deadline)
            except (OSError, TException, EOFError) as error:
                if not is_read or isinstance(error, TApplicationException) or time.monotonic() >= deadline:
                    raise
                self._close_idle()  # the service was started anew, and all of them are gone
        return self._run(self._connect(deadline), method, arguments, deadline)

    def _run(self, connection: _Connection, method: str, arguments: Struct, deadline: float) -> Struct:
        """Call, and keep the connection for the next caller; after an error nobody knows what it will deliver."""
        try:
            result = connection.call(method, arguments, deadline)
        except BaseException:
            connection.close()
            raise
        with self._lock:
            if not self._is_closed:
                self._idle.append(connection)
                return result
        connection.close()
        return result

    def _idle_connection(self) -> _Connection | None:
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if connection.is_open():
                return connection
            connection.close()

    def _close_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _connect(self, deadline: float) -> _Connection:
        """Connect to the first address that answers; it is asked first from then on. Raises OSError, TException."""
        with self._lock:
            addresses = list(self._addresses)
        failure: OSError | TException = OSError("no address")
        for address in addresses:
            if time.monotonic() >= deadline:
                break
            try:
                connection = self._greeted(address, deadline)
            except (OSError, TException) as error:
                failure = error
                continue
            with self._lock:
                self._addresses.sort(key=_is_not(address))
            return connection
        raise failure

    def _greeted(self, address: Address, deadline: float) -> _Connection:
        handle = self._socket(address, deadline)
        try:
            connection = _Connection(handle, address, deadline, self._wrap)
        except BaseException:
            handle.close()
            raise
        if self._greeting is not None:
            try:
                connection.call(*self._greeting, deadline)
            except BaseException:
                connection.close()
                raise
        return connection

    def _socket(self, address: Address, deadline: float) -> socket.socket:
        """Return a socket that is connected, with TLS if that is used. Raises OSError."""
        failure = OSError(f"{address[0]} has no address")
        for family, _, _, _, place in self._resolve(address):
            handle = socket.socket(family, socket.SOCK_STREAM)
            try:
                handle.settimeout(max(0.001, min(self._limits.connect_timeout, deadline - time.monotonic())))
                handle.connect(place)
                handle.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return handle if self._tls is None else self._tls.wrap_socket(handle, server_hostname=address[0])
            except OSError as error:
                handle.close()
                failure = error
        raise failure

    def _resolve(self, address: Address) -> list[Any]:
        """Look up a host, which may hang, in a thread of its own. Raises OSError."""
        with suppress(socket.gaierror):  # for a name
            return socket.getaddrinfo(*address, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        try:
            return self._resolver.run(socket.getaddrinfo, *address, type=socket.SOCK_STREAM)
        except ServiceUnavailableError as error:
            raise TimeoutError(f"the address of {address[0]} has not been found in time") from error


def _is_tls_open(handle: ssl.SSLSocket) -> bool:
    """Whether nothing has arrived at an idle socket but what TLS itself sends."""
    timeout = handle.gettimeout()
    handle.settimeout(0)
    try:
        handle.recv(1)  # data, or the end: neither belongs here
    except ssl.SSLWantReadError:
        return True
    except OSError:
        return False
    finally:
        handle.settimeout(timeout)
    return False


def _is_not(address: Address) -> Callable[[Address], bool]:
    return lambda other: other != address
