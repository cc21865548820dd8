"""Limit the number of connections of one process, of all its ports, and end those that make no progress.

A connection costs file descriptors, and these run out before anything else does. So there are at most as many
connections as leave enough of them. A new one is always accepted, in the place of the oldest that has not
authenticated: connections of authenticated clients are displaced only by each other, and only while they are idle.

Progress is checked for all connections once a second, which costs requests nothing.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import struct
import termios
import time
from collections import Counter
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tiltyard.config import Settings

CONNECTIONS = "tiltyard.connections"
"""The entry of the lifespan's state that has a `Connections`."""
RECOGNIZE = "tiltyard.recognize"
"""The extension of the ASGI scope to call once a connection's first request is authenticated; absent after that."""

CHECK_SECONDS = 1.0
DRAIN_SECONDS = 60.0
"""How long the rest of a body may take to come after its request was answered."""
CANDIDATES = 64
"""Anonymous connections, oldest first, among which an idle one is searched for."""
WARN_SECONDS = 60.0
ANONYMOUS_BYTES = 128 << 20
"""Bytes of running requests that all anonymous connections together may have sent: a head and a small body of each are
held until it is authenticated, and there may be tens of thousands."""

_INT = struct.Struct("i")

log = logging.getLogger("tiltyard.api")


class Phase(StrEnum):
    """What a connection waits for its client to do."""

    HEAD = "head"
    """Send the end of a request's head."""
    BODY = "body"
    """Send the rest of a body whose request was answered."""
    RESPONSE = "response"
    """Read its response."""
    IDLE = "idle"
    """Send another request."""


Progress = tuple[Phase, int]
"""A phase, and how far it has come: the same at each check if the client does nothing."""


class ClientConnection(Protocol):
    """A connection, as the protocol of its port implements it."""

    descriptors: int
    """File descriptors that it takes."""

    unchanged: tuple[Progress, float] | None
    """Its progress at the last check, and since when it has been that."""
    held_bytes: int
    """Bytes of its running requests, until it is authenticated."""

    @property
    def is_busy(self) -> bool:
        """Whether a request is running."""

    def progress(self) -> Progress | None:
        """Return what it waits for its client to do; None where it does not wait."""

    def expire(self, phase: Phase) -> None:
        """End it: its client took too long."""

    def displace(self) -> None:
        """End it: another connection needs its place."""

    def turn_away(self) -> None:
        """Respond that the server has too many connections, and end it."""


class Connections:
    """The connections of one process. Belongs to its event loop."""

    def __init__(self, settings: Settings, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        """`limit` is how many descriptors the connections may take."""
        self._limit = limit
        self._descriptors = 0
        self._clock = clock
        self._allowed_seconds: Mapping[Phase, float] = {
            Phase.HEAD: settings.head_timeout,
            Phase.BODY: DRAIN_SECONDS,
            Phase.RESPONSE: settings.send_timeout,
            Phase.IDLE: settings.keep_alive,
        }
        # Dicts, since they keep the order in which connections came.
        self._anonymous: dict[ClientConnection, None] = {}
        self._authenticated: dict[ClientConnection, None] = {}
        self._check_timer: asyncio.TimerHandle | None = None
        self._held_bytes = 0
        self._ended: Counter[str] = Counter()
        self._warned_at: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._anonymous) + len(self._authenticated)

    def add(self, connection: ClientConnection) -> None:
        """Add a connection; at the limit, another one ends for it."""
        self._anonymous[connection] = None
        self._descriptors += connection.descriptors
        if self._check_timer is None:
            self._schedule_check()
        while self._descriptors > self._limit:
            self._warn(f"{self._limit} connections, as many as this process takes (max_connections, ulimit -n)")
            displaced = self._oldest_anonymous(connection) or self._oldest_idle()
            if displaced is None:
                self.remove(connection)
                connection.turn_away()
                return
            self.remove(displaced)
            displaced.displace()

    def hold(self, connection: ClientConnection, size: int) -> None:
        """Count bytes of an anonymous connection; where all hold too much, those that hold the most end."""
        connection.held_bytes += size
        self._held_bytes += size
        if self._held_bytes > ANONYMOUS_BYTES:
            self._end_largest()

    def release(self, connection: ClientConnection) -> None:
        """Count no bytes of a connection any more: its requests have ended, or it is authenticated."""
        self._held_bytes -= connection.held_bytes
        connection.held_bytes = 0

    def _end_largest(self) -> None:
        """End connections until half of the allowed bytes are free, so that this is rare however many there are."""
        ended = 0
        for connection in sorted(self._anonymous, key=lambda anonymous: anonymous.held_bytes, reverse=True):
            if self._held_bytes <= ANONYMOUS_BYTES // 2:
                break
            self.remove(connection)
            connection.displace()
            ended += 1
        self._warn(f"{ANONYMOUS_BYTES >> 20} MiB of requests are held of clients not authenticated yet", ended)

    def authenticate(self, connection: ClientConnection) -> None:
        """Count a connection as authenticated."""
        self.release(connection)
        if connection in self._anonymous:
            del self._anonymous[connection]
            self._authenticated[connection] = None

    def remove(self, connection: ClientConnection) -> None:
        """Remove a connection that has ended, or will."""
        self.release(connection)
        if connection in self._anonymous or connection in self._authenticated:
            self._descriptors -= connection.descriptors
        self._anonymous.pop(connection, None)
        self._authenticated.pop(connection, None)

    def gauges(self) -> dict[str, float]:
        """Return the number of connections, for the metrics."""
        return {"connections": len(self), "connections of nobody known": len(self._anonymous)}

    def _oldest_anonymous(self, newest: ClientConnection) -> ClientConnection | None:
        """Return an idle one of the oldest anonymous connections, else the oldest; None if there is only the newest."""
        oldest = [connection for connection in islice(self._anonymous, CANDIDATES) if connection is not newest]
        return next((connection for connection in oldest if not connection.is_busy), oldest[0] if oldest else None)

    def _oldest_idle(self) -> ClientConnection | None:
        """Return an idle authenticated connection; busy ones move to the end of the order."""
        for _ in range(len(self._authenticated)):
            connection = next(iter(self._authenticated))
            if not connection.is_busy:
                return connection
            del self._authenticated[connection]
            self._authenticated[connection] = None
        return None

    def _warn(self, reason: str, ended: int = 1) -> None:
        """Log one line a minute for each reason, with the number of connections that ended."""
        self._ended[reason] += ended
        now = self._clock()
        if now < self._warned_at.get(reason, -WARN_SECONDS) + WARN_SECONDS:
            return
        log.warning("%s; ended for others: %d", reason, self._ended.pop(reason))
        self._warned_at[reason] = now

    def _schedule_check(self) -> None:
        self._check_timer = asyncio.get_running_loop().call_later(CHECK_SECONDS, self._check)

    def _check(self) -> None:
        """End connections without progress for too long."""
        self._check_timer = None
        now = self._clock()
        for connection in (*self._anonymous, *self._authenticated):
            progress = connection.progress()
            if progress is None:
                connection.unchanged = None
            elif connection.unchanged is None or connection.unchanged[0] != progress:
                connection.unchanged = progress, now
            elif now - connection.unchanged[1] >= self._allowed_seconds[progress[0]]:
                connection.expire(progress[0])
        if len(self):
            self._schedule_check()


def unacknowledged_bytes(transport: asyncio.Transport) -> int:
    """Return the bytes that the kernel still has to send, or to resend: they show that a slow client reads."""
    descriptor = transport.get_extra_info("socket").fileno()
    unsent: int = _INT.unpack(fcntl.ioctl(descriptor, termios.TIOCOUTQ, _INT.pack(0)))[0]
    return unsent
