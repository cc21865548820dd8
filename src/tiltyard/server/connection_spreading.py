"""Connections spread evenly among the processes of one server.

They share a listening socket, and the first that looks takes a connection. With few connections, kept open as clients
keep them, one process then has most of them while another has nothing to do. So a process that has more than another
leaves a new connection to that for a moment, and takes it only if nobody did. And one that has far more than another,
which was replaced or has only just started, ends a connection with the request on it, as HTTP allows, now and then: its
client comes back, and to the other.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import mmap
import os
import socket
import ssl
import struct
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import uvloop

from tiltyard.runtime.shared_file import shared_file
from tiltyard.server.file_limits import descriptor_limit

log = logging.getLogger("tiltyard")

SHARED_FILE = "TILTYARD_CONNECTIONS"
"""The variable by which a parent tells its processes where they count."""
PAUSE_SECONDS = 0.001
PAUSES = 3
"""How often a process leaves a connection to others before it takes it: one of them may be stuck."""
SHED_SECONDS = 0.05
"""How often at most a connection is ended for another process to have it."""
LONGEST_SHED_SECONDS = 60.0
"""The same, where that other process takes none."""
EXHAUSTED_SECONDS = 1.0
"""How long nothing is taken when there are too many open files."""

HANDSHAKE_SECONDS = 10.0
"""How long a client may take to encrypt its connection."""
HANDSHAKES = 4
"""One of so many descriptors at most is a connection that is not encrypted yet: the oldest ends for a new one."""

_COUNT = struct.Struct("<i")
_NOBODY = -1


class Counts:
    """How many connections each process has, in a file that they share."""

    def __init__(self, file: Path) -> None:
        """Take a place of its own; the end of the process lets go of it. Raises RuntimeError if there is none."""
        self._file = os.open(file, os.O_RDWR | os.O_CLOEXEC)
        size = os.fstat(self._file).st_size
        self._places = mmap.mmap(self._file, size)
        self._others = list(range(0, size, _COUNT.size))
        self._mine = self._take_place()
        self._others.remove(self._mine)
        self._left = False
        self._write(0)

    def _take_place(self) -> int:
        for place in self._others:
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, _COUNT.size, place)
            except OSError:
                continue
            return place
        raise RuntimeError("more processes count their connections than were started")

    @property
    def mine(self) -> int:
        """Of this process."""
        return self._at(self._mine)

    @property
    def least(self) -> int:
        """Of the other process that has the fewest; of this one, if there is no other."""
        return min((count for place in self._others if (count := self._at(place)) != _NOBODY), default=self.mine)

    def add(self, number: int) -> None:
        """There are so many more in this process."""
        if not self._left:
            self._write(self.mine + number)

    def leave(self) -> None:
        """Take no more: none is left to this process."""
        self._left = True
        self._write(_NOBODY)

    def _write(self, count: int) -> None:
        _COUNT.pack_into(self._places, self._mine, count)

    def _at(self, place: int) -> int:
        count: int = _COUNT.unpack_from(self._places, place)[0]
        return count


def shared_connections(processes: int) -> AbstractContextManager[None]:
    """A file in which so many processes, started meanwhile, count their connections.

    While one is replaced both are there, so it has twice as many places.
    """
    return shared_file(SHARED_FILE, _COUNT.pack(_NOBODY) * (2 * processes))


class SpreadingLoop(uvloop.Loop):
    """An event loop whose servers leave connections to processes that have fewer."""

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        """Serve a listening socket that processes share; any other server is as it always is."""
        file, listener = os.environ.get(SHARED_FILE), options.get("sock")
        if file is None or listener is None:
            return await super().create_server(protocol_factory, host, port, **options)
        listener.setblocking(False)
        return SpreadServer(self, protocol_factory, listener, options.get("ssl"), Counts(Path(file)))


class SpreadServer:
    """What `create_server` gives, as far as uvicorn asks: it accepts until it is closed."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        protocol_factory: Callable[[], asyncio.Protocol],
        listener: socket.socket,
        context: ssl.SSLContext | None,
        counts: Counts,
    ) -> None:
        self._loop = loop
        self._factory = protocol_factory
        self._listener = listener
        self._context = context
        self._counts = counts
        self._pauses = 0
        self._pausing: asyncio.TimerHandle | None = None
        self._opening: dict[asyncio.Task[None], None] = {}
        self._most_opening = max(1, descriptor_limit() // HANDSHAKES)
        self._shed = _Shed(counts, loop.time)
        self._listen()

    def close(self) -> None:
        """Accept no more."""
        if self._pausing is None:
            self._loop.remove_reader(self._listener)
        else:
            self._pausing.cancel()
        self._counts.leave()

    async def wait_closed(self) -> None:
        """Give up connections that are still at their handshake: the others belong to their protocols."""
        for opening in self._opening:
            opening.cancel()
        if self._opening:
            await asyncio.wait(self._opening)

    def _listen(self) -> None:
        self._pausing = None
        self._loop.add_reader(self._listener, self._come)

    def _pause(self, seconds: float) -> None:
        self._loop.remove_reader(self._listener)
        self._pausing = self._loop.call_later(seconds, self._listen)

    def _come(self) -> None:
        """A connection waits: for this process or for another one."""
        if self._counts.mine > self._counts.least and self._pauses < PAUSES:
            self._pauses += 1
            self._pause(PAUSE_SECONDS)
            return
        self._pauses = 0
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):  # another process has it, or it is gone
            return
        except OSError as error:
            log.error("No connection can be taken for a while: %s.", error.strerror)  # noqa: TRY400  # it says it all
            self._pause(EXHAUSTED_SECONDS)
            return
        connection.setblocking(False)
        opening = self._loop.create_task(self._open(connection))
        self._opening[opening] = None
        opening.add_done_callback(self._opening.pop)
        if len(self._opening) > self._most_opening:
            next(iter(self._opening)).cancel()

    async def _open(self, connection: socket.socket) -> None:
        """Give a connection to a protocol of its own, and count it until it is lost."""
        self._counts.add(1)
        counted = True

        def lose() -> None:
            nonlocal counted
            if counted:
                counted = False
                self._counts.add(-1)

        def protocol() -> asyncio.Protocol:
            made: Any = self._factory()
            lost = made.connection_lost
            made.sheds = self._shed.one

            def connection_lost(error: Exception | None) -> None:
                lose()
                lost(error)

            made.connection_lost = connection_lost
            kept: asyncio.Protocol = made
            return kept

        try:
            timeout = HANDSHAKE_SECONDS if self._context else None
            await self._loop.connect_accepted_socket(
                protocol, connection, ssl=self._context, ssl_handshake_timeout=timeout
            )
        except (OSError, asyncio.CancelledError) as error:  # a handshake that fails; the client hears of it
            lose()
            connection.close()
            log.debug("a connection was not opened: %s", error)


class _Shed:
    """When connections are ended for another process to have them."""

    def __init__(self, counts: Counts, clock: Callable[[], float]) -> None:
        self._counts = counts
        self._clock = clock
        self._next = 0.0
        self._seconds = SHED_SECONDS
        self._had: int | None = None

    def one(self) -> bool:
        """Whether one shall be ended now: this process has more than another by two, or more."""
        now = self._clock()
        if now < self._next:
            return False
        mine = self._counts.mine
        helped = self._had is None or mine < self._had
        self._seconds = SHED_SECONDS if helped else min(self._seconds * 2, LONGEST_SHED_SECONDS)
        sheds = mine > self._counts.least + 1
        self._had = mine if sheds else None
        self._next = now + self._seconds
        return sheds
