"""Balancing of connections among the processes of one server: which one leaves a connection to which."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tiltyard.server import connection_balancing
from tiltyard.server.connection_balancing import (
    SHARED_FILE,
    SHED_SECONDS,
    BalancingLoop,
    ConnectionCounts,
    ConnectionShedding,
    LimitedServer,
    shared_connection_counts,
)

WORKER = """
import sys
from pathlib import Path
from tiltyard.server.connection_balancing import ConnectionCounts
counts = ConnectionCounts(Path(sys.argv[1]))
for line in sys.stdin:
    counts.add(int(line))
    print(counts.mine, counts.least, flush=True)
counts.leave()
"""


class Worker:
    """Another process that counts."""

    def __init__(self, file: Path) -> None:
        command = [sys.executable, "-c", WORKER, str(file)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def add(self, number: int) -> tuple[int, int]:
        """Return its count, and the least of the others."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{number}\n")
        self.process.stdin.flush()
        own, least = self.process.stdout.readline().split()
        return int(own), int(least)

    def end(self) -> None:
        self.process.communicate()


@pytest.fixture
def file() -> Iterator[Path]:
    with shared_connection_counts(2):
        yield Path(os.environ[SHARED_FILE])
    assert SHARED_FILE not in os.environ


def test_counts_of_processes_know_of_each_other_until_they_end(file: Path) -> None:
    first = Worker(file)
    assert first.add(3) == (3, 3)  # there is no other
    second = Worker(file)
    assert second.add(5) == (5, 3)
    assert first.add(4) == (7, 5)
    second.end()
    assert first.add(-7) == (0, 0)
    first.end()


def test_counts_of_a_killed_process_are_those_of_the_one_in_its_place(file: Path) -> None:
    first = Worker(file)
    assert first.add(9) == (9, 9)
    second = Worker(file)
    assert second.add(2) == (2, 9)
    first.process.send_signal(signal.SIGKILL)
    first.end()
    third = Worker(file)
    assert third.add(1) == (1, 2)
    assert second.add(0) == (2, 1)
    for worker in (second, third):
        worker.end()


class Shared:
    """The counts of two servers in one process."""

    def __init__(self, counts: list[int | None], own: int, changed: asyncio.Event) -> None:
        self._counts = counts
        self._mine = own
        self._changed = changed

    @property
    def mine(self) -> int:
        return self._counts[self._mine] or 0

    @property
    def least(self) -> int:
        return min(count for number, count in enumerate(self._counts) if number != self._mine and count is not None)

    def add(self, number: int) -> None:
        self._counts[self._mine] = self.mine + number
        self._changed.set()

    def leave(self) -> None:
        self._counts[self._mine] = None


class Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


def listening() -> socket.socket:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(128)
    listener.setblocking(False)
    return listener


async def connect(address: tuple[str, int]) -> asyncio.StreamWriter:
    """A connection that has been answered."""
    reader, writer = await asyncio.open_connection(*address)
    writer.write(b"?")
    assert await reader.readexactly(1) == b"?"
    return writer


def run(counts: list[int | None], servers: int, connections: int) -> None:
    """Open connections one after the other, see where they are, and that none is once they are closed."""

    async def test() -> None:
        listener, loop, changed = listening(), asyncio.get_running_loop(), asyncio.Event()
        shared = [Shared(counts, number, changed) for number in range(servers)]
        sockets = [listener.dup() for _ in shared]  # as each process has one
        serving = [
            LimitedServer(loop, Echo, each, None, counter)  # type: ignore[arg-type]  # it does what ConnectionCounts does
            for each, counter in zip(sockets, shared, strict=True)
        ]
        before = list(counts)
        writers = [await connect(listener.getsockname()) for _ in range(connections)]
        received.extend(counts)
        for writer in writers:
            writer.close()
        while counts != before:
            changed.clear()
            await changed.wait()
        for server in serving:
            server.close()
        for each in (listener, *sockets):
            each.close()

    received: list[int | None] = []
    with asyncio.Runner(loop_factory=BalancingLoop) as runner:
        runner.run(asyncio.wait_for(test(), 60))
    counts[:] = received


def test_connections_one_after_the_other_are_spread_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_balancing, "PAUSES", 10_000)  # however slow this machine is
    counts: list[int | None] = [0, 0]
    run(counts, 2, 20)
    assert counts == [10, 10]


def test_connection_that_nobody_else_takes_is_taken() -> None:
    counts: list[int | None] = [0, 0]  # the second is stuck: there is no server for it
    run(counts, 1, 5)
    assert counts == [5, 0]


class Clock:
    """A clock that is advanced by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def shed(counts: list[int | None], clock: Clock) -> ConnectionShedding:
    return ConnectionShedding(Shared(counts, 0, asyncio.Event()), clock)  # type: ignore[arg-type]  # it does what ConnectionCounts does


def test_connections_are_ended_one_by_one_until_others_have_as_many() -> None:
    counts: list[int | None] = [8, 1]
    clock = Clock()
    ended, shedding = 0, shed(counts, clock)
    for _ in range(20):
        clock.now += SHED_SECONDS
        if shedding.should_shed():
            assert not shedding.should_shed()  # no other one at once
            ended += 1
            counts[:] = [counts[0] - 1, counts[1] + 1]  # type: ignore[operator]  # there are two
    assert ended == 3 and counts == [5, 4]


def test_connections_that_nobody_else_takes_are_hardly_ever_ended() -> None:
    clock = Clock()
    shedding = shed([8, 0], clock)  # the other is stuck: each client comes back to this one
    ended = 0
    while clock.now < 600:
        clock.now += SHED_SECONDS
        ended += shedding.should_shed()
    assert ended < 25


def test_server_of_one_process_is_uvloops_own() -> None:
    async def test() -> bool:
        server = await asyncio.get_running_loop().create_server(Echo, sock=listening())
        server.close()
        return isinstance(server, LimitedServer)

    with asyncio.Runner(loop_factory=BalancingLoop) as runner:
        assert not runner.run(test())


def test_more_processes_than_places_are_refused(file: Path) -> None:
    workers = [Worker(file) for _ in range(4)]
    for worker in workers:
        worker.add(0)
    with pytest.raises(RuntimeError, match="more processes"):
        ConnectionCounts(file)
    for worker in workers:
        worker.end()
