"""Which connection is displaced by another one, and which ends without progress; without sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from tiltyard.api.limits.connections import ANONYMOUS_BYTES, DRAIN_SECONDS, Connections, Phase, Progress
from tiltyard.config import Settings

SETTINGS = Settings(head_timeout=10, send_timeout=60)


@dataclass(eq=False)
class FakeConnection:
    """A connection that notes what becomes of it."""

    is_busy: bool = False
    waits: Progress | None = None
    unchanged: tuple[Progress, float] | None = None
    held_bytes: int = 0
    descriptors: int = 1
    ended: list[Any] = field(default_factory=list)

    def progress(self) -> Progress | None:
        return self.waits

    def expire(self, phase: Phase) -> None:
        self.ended.append(phase)

    def displace(self) -> None:
        self.ended.append("gave way")

    def turn_away(self) -> None:
        self.ended.append("turned away")


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def in_loop(test: Callable[[], None]) -> None:
    async def run() -> None:
        test()

    asyncio.run(run())


def test_new_connection_displaces_the_oldest_idle_anonymous_one() -> None:
    def check() -> None:
        connections = Connections(SETTINGS, 3)
        known, asking, silent, newest = (FakeConnection(is_busy=number == 1) for number in range(4))
        for connection in (known, asking, silent):
            connections.add(connection)
        connections.authenticate(known)
        connections.add(newest)
        assert [one.ended for one in (known, asking, silent, newest)] == [[], [], ["gave way"], []]
        connections.remove(newest)
        connections.add(FakeConnection())
        connections.add(FakeConnection(is_busy=True))
        assert asking.ended == []
        assert known.ended == []
        assert len(connections) == 3

    in_loop(check)


def test_connection_of_several_descriptors_displaces_as_many_others_as_it_needs() -> None:
    def check() -> None:
        connections = Connections(SETTINGS, 4)
        small = [FakeConnection() for _ in range(4)]
        for connection in small:
            connections.add(connection)
        large = FakeConnection(descriptors=3)
        connections.add(large)
        assert [bool(one.ended) for one in (*small, large)] == [True, True, True, False, False]
        connections.remove(large)
        connections.remove(large)
        for _ in range(3):
            connections.add(FakeConnection())
        assert not small[3].ended
        assert len(connections) == 4

    in_loop(check)


def test_new_connection_displaces_an_idle_authenticated_one_or_is_turned_away() -> None:
    def check() -> None:
        connections = Connections(SETTINGS, 3)
        callers = [FakeConnection(is_busy=number != 1) for number in range(3)]
        for connection in callers:
            connections.add(connection)
            connections.authenticate(connection)
        first, second = FakeConnection(), FakeConnection()
        connections.add(first)
        assert [caller.ended for caller in callers] == [[], ["gave way"], []]
        connections.authenticate(first)
        first.is_busy = True
        connections.add(second)
        assert second.ended == ["turned away"]
        assert len(connections) == 3
        assert connections.gauges() == {"connections": 3, "connections of nobody known": 0}

    in_loop(check)


def test_strangers_that_hold_the_most_end_where_all_of_them_hold_too_much() -> None:
    def check() -> None:
        connections = Connections(SETTINGS, 100)
        small, large, known, *others = (FakeConnection() for _ in range(10))
        for connection in (small, large, known, *others):
            connections.add(connection)
        connections.hold(known, ANONYMOUS_BYTES)
        connections.authenticate(known)
        connections.hold(small, 100)
        connections.hold(large, ANONYMOUS_BYTES)
        assert [one.ended for one in (small, large, known)] == [[], ["gave way"], []]
        for connection in others:
            connections.hold(connection, ANONYMOUS_BYTES // 2)
            connections.release(connection)
        connections.remove(small)
        connections.hold(others[0], ANONYMOUS_BYTES)
        assert [other.ended for other in others] == [[]] * len(others)
        assert connections.gauges() == {"connections": 8, "connections of nobody known": 7}

    in_loop(check)


@pytest.mark.parametrize(
    ("phase", "seconds"),
    [(Phase.HEAD, 10.0), (Phase.RESPONSE, 60.0), (Phase.BODY, DRAIN_SECONDS), (Phase.IDLE, 75.0)],
)
def test_look_ends_who_stands_still_for_as_long_as_its_phase_may_take(phase: Phase, seconds: float) -> None:
    def check() -> None:
        clock = Clock()
        connections = Connections(SETTINGS, 10, clock)
        still, moving, idle = FakeConnection(waits=(phase, 1)), FakeConnection(waits=(phase, 1)), FakeConnection()
        for connection in (still, moving, idle):
            connections.add(connection)
        for tick in range(2 * int(seconds)):
            moving.waits = (phase, tick // 5)
            connections._check()
            clock.now += 1
            assert (still.ended != []) == (tick >= seconds)
        assert still.ended[0] is phase
        assert moving.ended == []
        assert idle.ended == []

    in_loop(check)
