"""Balance connections among the processes of one server, which share a listening socket.

The first process that polls the socket accepts a connection. With few connections, kept open as clients keep them, one
process then has most of them while another is idle. So a process that has more connections than another pauses before
it accepts a new one, and accepts it only if no other process did. And a process that has far more than another, which
was replaced or has only just started, now and then closes a connection after a request, as HTTP allows: its client
reconnects, to the other process.

Without this, processes share connections by chance: of eight, two processes have six and two nearly as often as four
each. On two cores, with eight connections, on against off: two processes describe 1.29 as many tables, count 0.96 and
search 1.08 (the slowest of five rounds 1.51, 1.41 and 1.20); four processes 1.00, 1.20 and 0.92.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import mmap
import os
import resource
import socket
import ssl
import struct
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, cast

import uvloop

from tiltyard.runtime.owned_folders import shared_file

log = logging.getLogger("tiltyard")

SHARED_FILE = "TILTYARD_CONNECTIONS"
"""The environment variable that names the file of the processes' connection counts."""
PAUSE_SECONDS = 0.001
PAUSES = 3
"""How often a process pauses before it accepts a connection after all: the other process may be stuck."""
SHED_SECONDS = 0.05
"""The shortest time between two connections that are closed for another process to get them."""
MAX_SHED_SECONDS = 60.0
"""The same, where the other process accepts none of them."""
EXHAUSTED_SECONDS = 1.0
"""How long no connection is accepted when there are too many open files."""

HANDSHAKE_SECONDS = 10.0
"""How long a client may take for the TLS handshake."""
HANDSHAKES = 4
"""At most one of so many descriptors is a connection at its TLS handshake: the oldest is closed for a new one."""

_COUNT = struct.Struct("<i")
_UNUSED = -1
log = logging.getLogger("tiltyard")
MAX_DESCRIPTORS = 1 << 16
"""The limit that is set where the system allows more: so many connections take more memory than most machines have."""


class ConnectionCounts:
    """How many connections each process has, in a file that they share."""

    def __init__(self, file: Path) -> None:
        """Lock a slot of the file until the process ends. Raises RuntimeError if there is none."""
        self._file = os.open(file, os.O_RDWR | os.O_CLOEXEC)
        size = os.fstat(self._file).st_size
        self._slots = mmap.mmap(self._file, size)
        self._other_slots = list(range(0, size, _COUNT.size))
        self._own_slot = self._lock_slot()
        self._other_slots.remove(self._own_slot)
        self._has_left = False
        self._write(0)

    def _lock_slot(self) -> int:
        for slot in self._other_slots:
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, _COUNT.size, slot)
            except OSError:
                continue
            return slot
        raise RuntimeError("more processes count their connections than were started")

    @property
    def mine(self) -> int:
        """The number of connections of this process."""
        return self._read(self._own_slot)

    @property
    def least(self) -> int:
        """The number of the other process that has the fewest; of this one, if there is no other."""
        return min((count for slot in self._other_slots if (count := self._read(slot)) != _UNUSED), default=self.mine)

    def add(self, number: int) -> None:
        """Add to the number of this process."""
        if not self._has_left:
            self._write(self.mine + number)

    def leave(self) -> None:
        """Withdraw from the balance: others leave no more connections to this process."""
        self._has_left = True
        self._write(_UNUSED)

    def _write(self, count: int) -> None:
        _COUNT.pack_into(self._slots, self._own_slot, count)

    def _read(self, slot: int) -> int:
        count: int = _COUNT.unpack_from(self._slots, slot)[0]
        return count


def shared_connection_counts(processes: int) -> AbstractContextManager[None]:
    """Provide a file in which so many processes, started within the block, count their connections.

    A process and its successor run side by side for a while, so it has twice as many slots.
    """
    return shared_file(SHARED_FILE, _COUNT.pack(_UNUSED) * (2 * processes))


class Handshakes:
    """The connections at their TLS handshake, of all its ports; beyond a bound the oldest ends for a new one."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._most = max(1, descriptor_limit() // HANDSHAKES)

    def add(self, handshake: asyncio.Task[None]) -> None:
        """Add a handshake that begins."""
        self._tasks[handshake] = None
        handshake.add_done_callback(self._tasks.pop)
        if len(self._tasks) > self._most:
            next(iter(self._tasks)).cancel()

    async def cancel(self) -> None:
        """Cancel all of them."""
        for handshake in self._tasks:
            handshake.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)


class BalancingLoop(uvloop.Loop):
    """An event loop whose servers leave connections to processes that have fewer."""

    handshakes: Handshakes | None = None
    """Those of the servers of this loop, once there is one."""

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        """Serve a listening socket that processes share by a LimitedServer, any other as uvloop does."""
        file, listener = os.environ.get(SHARED_FILE), options.get("sock")
        if file is None or listener is None:
            return await super().create_server(protocol_factory, host, port, **options)
        return LimitedServer(self, protocol_factory, listener, options.get("ssl"), ConnectionCounts(Path(file)))


def loop_handshakes(loop: asyncio.AbstractEventLoop) -> Handshakes:
    """Return the handshakes of all servers of a loop."""
    if not isinstance(loop, BalancingLoop):
        return Handshakes()  # one that serves without TLS
    if loop.handshakes is None:
        loop.handshakes = Handshakes()
    return loop.handshakes


class LimitedServer:
    """A server as `create_server` returns it, as far as uvicorn uses it: it accepts connections until it is closed.

    With counts, it leaves connections to processes that have fewer.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        protocol_factory: Callable[[], asyncio.Protocol],
        listener: socket.socket,
        context: ssl.SSLContext | None,
        counts: ConnectionCounts | None = None,
    ) -> None:
        listener.setblocking(False)
        self._loop = loop
        self._factory = protocol_factory
        self._listener = listener
        self._context = context
        self._counts = counts
        self._pauses = 0
        self._pause_timer: asyncio.TimerHandle | None = None
        self._handshakes = loop_handshakes(loop)
        self._shedding = None if counts is None else ConnectionShedding(counts, loop.time)
        self._listen()

    def close(self) -> None:
        """Accept no more connections."""
        if self._pause_timer is None:
            self._loop.remove_reader(self._listener)
        else:
            self._pause_timer.cancel()
        if self._counts is not None:
            self._counts.leave()

    async def wait_closed(self) -> None:
        """Cancel connections that are still at their handshake: the others belong to their protocols."""
        await self._handshakes.cancel()

    def _listen(self) -> None:
        self._pause_timer = None
        self._loop.add_reader(self._listener, self._accept)

    def _pause(self, seconds: float) -> None:
        self._loop.remove_reader(self._listener)
        self._pause_timer = self._loop.call_later(seconds, self._listen)

    def _accept(self) -> None:
        """Accept the waiting connection, or leave it to another process for a moment."""
        counts = self._counts
        if counts is not None and counts.mine > counts.least and self._pauses < PAUSES:
            self._pauses += 1
            self._pause(PAUSE_SECONDS)
            return
        self._pauses = 0
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):  # another process has it, or it is closed
            return
        except OSError as error:
            log.error("No connection can be accepted for a while: %s.", error.strerror)  # noqa: TRY400  # it says it all
            self._pause(EXHAUSTED_SECONDS)
            return
        connection.setblocking(False)
        self._handshakes.add(self._loop.create_task(self._open(connection)))

    async def _open(self, connection: socket.socket) -> None:
        """Connect a protocol to the connection, and count it until it is lost."""
        self._count(1)
        is_counted = True

        def uncount() -> None:
            nonlocal is_counted
            if is_counted:
                is_counted = False
                self._count(-1)

        def make_protocol() -> asyncio.Protocol:
            protocol: Any = self._factory()
            if self._shedding is None:
                return cast("asyncio.Protocol", protocol)
            handle_lost = protocol.connection_lost
            protocol.should_shed = self._shedding.should_shed

            def connection_lost(error: Exception | None) -> None:
                uncount()
                handle_lost(error)

            protocol.connection_lost = connection_lost
            return cast("asyncio.Protocol", protocol)

        try:
            timeout = HANDSHAKE_SECONDS if self._context else None
            await self._loop.connect_accepted_socket(
                make_protocol, connection, ssl=self._context, ssl_handshake_timeout=timeout
            )
        except (OSError, asyncio.CancelledError) as error:  # a failed handshake, which the client is told
            uncount()
            connection.close()
            log.debug("a connection was not opened: %s", error)

    def _count(self, number: int) -> None:
        if self._counts is not None:
            self._counts.add(number)


class ConnectionShedding:
    """Decides when connections are closed for another process to get them."""

    def __init__(self, counts: ConnectionCounts, clock: Callable[[], float]) -> None:
        self._counts = counts
        self._clock = clock
        self._next = 0.0
        self._pause = SHED_SECONDS
        self._mine_before: int | None = None

    def should_shed(self) -> bool:
        """Whether to close a connection now: this process has at least two more than another.

        While that does not reduce the number of this process, the pauses double, up to MAX_SHED_SECONDS.
        """
        now = self._clock()
        if now < self._next:
            return False
        mine = self._counts.mine
        has_helped = self._mine_before is None or mine < self._mine_before
        self._pause = SHED_SECONDS if has_helped else min(self._pause * 2, MAX_SHED_SECONDS)
        must_shed = mine > self._counts.least + 1
        self._mine_before = mine if must_shed else None
        self._next = now + self._pause
        return must_shed


def raise_descriptor_limit() -> None:
    """Raise this process's limit of descriptors as far as allowed: the usual 1,024 is for programs that use select."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def descriptor_limit() -> int:
    """Return the limit of descriptors of this process."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft


def connection_limit(max_connections: int) -> int:
    """Return how many connections a process may have, at most `max_connections` if that is not 0.

    Half of the descriptors are for the database, for files of tables, and for threads that read bodies.
    """
    half = descriptor_limit() // 2
    if max_connections > half:
        log.warning(
            "max_connections is %d, and the limit of descriptors (ulimit -n) leaves %d of them", max_connections, half
        )
    return min(max_connections, half) if max_connections else half
