"""Calls that wait at the same time run together, and each is answered for itself."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest
from lance_namespace.errors import ConcurrentModificationError, PermissionDeniedError

from tiltyard.api.execution import batched
from tiltyard.api.execution.batched import Batched
from tiltyard.model.operations import Handler, Needs, never
from tiltyard.model.principals import EVERYBODY, Principal

EXCHANGE: Any = None
"""No batch looks at it."""


@dataclass
class Caller:
    """Stands where a context does: all that an admission looks at."""

    principal: Principal = EVERYBODY


@dataclass
class Operation:
    """Runs calls together, once it is let: negative numbers conflict. `sizes` are those of the groups that ran."""

    begun: threading.Event = field(default_factory=threading.Event)
    free: threading.Event = field(default_factory=threading.Event)
    sizes: list[int] = field(default_factory=list)

    def batch(self, calls: Sequence[tuple[Any, int]]) -> list[Any]:
        self.sizes.append(len(calls))
        self.begun.set()
        assert self.free.wait(10)
        return [number * 2 if number >= 0 else ConcurrentModificationError(f"no {number}") for _, number in calls]

    def batched(self) -> Batched:
        handler = Handler(print, never, Needs("nothing", _authorize), batch=self.batch)
        return Batched(handler, ThreadPoolExecutor(2))


def _authorize(caller: Caller, number: int) -> Caller:
    if number == 13:
        raise PermissionDeniedError("not this one")
    return caller


async def outcomes(operation: Operation, callers: Sequence[tuple[Caller, int]]) -> list[Any]:
    """Let the first ones run, then the others wait, and all of them end."""
    group = operation.batched()
    first = [asyncio.ensure_future(group.run(EXCHANGE, Caller(), number)) for number in (1, 2)]
    assert await asyncio.to_thread(operation.begun.wait, 10)
    rest = [asyncio.ensure_future(group.run(EXCHANGE, *call)) for call in callers]
    await asyncio.sleep(0)
    operation.free.set()
    return list(await asyncio.gather(*first, *rest, return_exceptions=True))


def test_group_of_calls_that_wait_runs_together_and_answers_each() -> None:
    operation = Operation()
    callers = [(Caller(), number) for number in range(10, 90)]
    found = asyncio.run(outcomes(operation, callers))
    assert found == [2, 4, *(number * 2 for number in range(10, 90))]
    assert operation.sizes == [2, batched.MAX_BATCH, len(callers) - batched.MAX_BATCH]


def test_group_keeps_callers_together_that_come_again_and_waits_for_none_that_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batched, "LINGER_SECONDS", 0.5)
    operation = Operation()
    operation.free.set()

    async def call(group: Batched, times: int) -> None:
        for number in range(times):
            assert await group.run(EXCHANGE, Caller(), number) == number * 2
            await asyncio.sleep(0)

    async def run() -> None:
        group = operation.batched()
        await asyncio.gather(*(call(group, times) for times in (5, 5, 8)))

    asyncio.run(run())
    assert operation.sizes == [3] * 5 + [1] * 3


def test_group_refuses_alone_who_conflicts_or_may_not() -> None:
    stranger = Caller(Principal("mallory"))
    found = asyncio.run(outcomes(Operation(), [(Caller(), -1), (stranger, 13), (stranger, 7)]))
    assert found[:2] == [2, 4]
    assert [type(one) for one in found[2:]] == [ConcurrentModificationError, PermissionDeniedError, int]


def test_group_of_those_who_may_not_alone_does_nothing() -> None:
    operation = Operation()
    operation.free.set()

    async def run() -> list[Any]:
        group = operation.batched()
        strangers = [Caller(Principal("mallory")) for _ in range(2)]
        return await asyncio.gather(*(group.run(EXCHANGE, caller, 13) for caller in strangers), return_exceptions=True)

    assert [type(one) for one in asyncio.run(run())] == [PermissionDeniedError] * 2
    assert operation.sizes == []


def test_group_whose_work_fails_tells_every_caller() -> None:
    def broken(calls: Sequence[tuple[Any, int]]) -> list[Any]:
        raise RuntimeError("the disk is full")

    async def run() -> list[Any]:
        group = Batched(Handler(print, never, Needs("nothing", _authorize), batch=broken), ThreadPoolExecutor(1))
        return await asyncio.gather(
            *(group.run(EXCHANGE, Caller(), number) for number in range(3)), return_exceptions=True
        )

    assert [str(one) for one in asyncio.run(run())] == ["the disk is full"] * 3
