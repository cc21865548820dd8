"""The connections of one process: bounded in number, and ended where they stand still.

A connection costs a descriptor, and descriptors end before anything else does. So there are at most as many connections
as leave enough of them, and a new one always gets in, in the place of the oldest that has not shown who it is: those of
callers who are known can only be crowded out by each other, and then while they are idle.

What stands still is seen by looking at all of them once a second, which costs requests nothing.
"""

from __future__ import annotations

import asyncio
import logging
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
"""The extension of the ASGI scope by which a connection hears that its caller is known; only until then."""

LOOK_SECONDS = 1.0
DRAIN_SECONDS = 60.0
"""How long the rest of a body may come in after its request was answered."""
LOOKED_AT = 64
"""Strangers, oldest first, among which one that asks nothing is looked for."""
WARN_SECONDS = 60.0
STRANGERS_BYTES = 128 << 20
"""Bytes that all strangers together may have sent of requests under way: of each of them a head and a small body are
held until it is known who asks, and there may be tens of thousands."""

log = logging.getLogger("tiltyard.api")


class Phase(StrEnum):
    """What the client of a connection is waited for."""

    HEAD = "head"
    """The end of its request's head."""
    BODY = "body"
    """The rest of a body whose request was answered."""
    ANSWER = "answer"
    """That it reads its answer."""


Standing = tuple[Phase, int]
"""A phase, and how far it has come: a connection that stands still has the same at each look."""


class Connection(Protocol):
    """A connection, as its protocol shows it."""

    stood: tuple[Standing, float] | None
    """Its standing at the last look, and since when."""
    held: int
    """Bytes of its requests under way, until it is known who asks."""

    @property
    def busy(self) -> bool:
        """Whether a request is under way."""

    def standing(self) -> Standing | None:
        """What the client is waited for; None where it is not."""

    def expire(self, phase: Phase) -> None:
        """End it: its client took too long."""

    def give_way(self) -> None:
        """End it: another one needs its place."""

    def turn_away(self) -> None:
        """Answer that there is no place, and end it."""


class Connections:
    """The connections of one process. Belongs to its event loop."""

    def __init__(self, settings: Settings, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        """`most` is how many there may be."""
        self._most = most
        self._clock = clock
        self._allowed: Mapping[Phase, float] = {
            Phase.HEAD: settings.head_timeout,
            Phase.BODY: DRAIN_SECONDS,
            Phase.ANSWER: settings.send_timeout,
        }
        # Dicts, since they keep the order in which connections came.
        self._strangers: dict[Connection, None] = {}
        self._known: dict[Connection, None] = {}
        self._looking: asyncio.TimerHandle | None = None
        self._held = 0
        self._ended: Counter[str] = Counter()
        self._warned: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._strangers) + len(self._known)

    def add(self, connection: Connection) -> None:
        """Take a connection in; where there are enough, another one ends for it."""
        self._strangers[connection] = None
        if self._looking is None:
            self._look_later()
        if len(self) <= self._most:
            return
        self._warn(f"{self._most} connections, as many as this process takes (max_connections, ulimit -n)")
        leaving = self._stranger_but(connection) or self._idle()
        if leaving is None:
            self.remove(connection)
            connection.turn_away()
            return
        self.remove(leaving)
        leaving.give_way()

    def hold(self, connection: Connection, size: int) -> None:
        """A stranger has sent so many bytes more; where all of them hold too much, those end that hold the most."""
        connection.held += size
        self._held += size
        if self._held > STRANGERS_BYTES:
            self._end_largest()

    def let_go(self, connection: Connection) -> None:
        """Nothing that it has sent is held any more, or it is known who asks."""
        self._held -= connection.held
        connection.held = 0

    def _end_largest(self) -> None:
        """Free half of what strangers may hold, so that this comes seldom however many there are."""
        ended = 0
        for connection in sorted(self._strangers, key=lambda one: one.held, reverse=True):
            if self._held <= STRANGERS_BYTES // 2:
                break
            self.remove(connection)
            connection.give_way()
            ended += 1
        self._warn(f"{STRANGERS_BYTES >> 20} MiB of requests are held whose callers nobody knows yet", ended)

    def recognize(self, connection: Connection) -> None:
        """Its caller is known."""
        self.let_go(connection)
        if connection in self._strangers:
            del self._strangers[connection]
            self._known[connection] = None

    def remove(self, connection: Connection) -> None:
        """It has ended, or will."""
        self.let_go(connection)
        self._strangers.pop(connection, None)
        self._known.pop(connection, None)

    def gauges(self) -> dict[str, float]:
        """Return the number of connections, for the metrics."""
        return {"connections": len(self), "connections of nobody known": len(self._strangers)}

    def _stranger_but(self, newest: Connection) -> Connection | None:
        """The oldest of nobody known: one that asks nothing, if there is one among the first."""
        oldest = [stranger for stranger in islice(self._strangers, LOOKED_AT) if stranger is not newest]
        return next((stranger for stranger in oldest if not stranger.busy), oldest[0] if oldest else None)

    def _idle(self) -> Connection | None:
        """A connection of a known caller that asks nothing; those that do are looked at last the next time."""
        for _ in range(len(self._known)):
            connection = next(iter(self._known))
            if not connection.busy:
                return connection
            del self._known[connection]
            self._known[connection] = None
        return None

    def _warn(self, reason: str, ended: int = 1) -> None:
        """One line a minute for each reason, however many come."""
        self._ended[reason] += ended
        now = self._clock()
        if now < self._warned.get(reason, -WARN_SECONDS) + WARN_SECONDS:
            return
        log.warning("%s; ended for others: %d", reason, self._ended.pop(reason))
        self._warned[reason] = now

    def _look_later(self) -> None:
        self._looking = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        """End what has stood still for too long."""
        self._looking = None
        now = self._clock()
        for connection in (*self._strangers, *self._known):
            standing = connection.standing()
            if standing is None:
                connection.stood = None
            elif connection.stood is None or connection.stood[0] != standing:
                connection.stood = standing, now
            elif now - connection.stood[1] >= self._allowed[standing[0]]:
                connection.expire(standing[0])
        if len(self):
            self._look_later()
