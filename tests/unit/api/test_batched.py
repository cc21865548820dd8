"""Calls that wait at the same time run in one batch, and each gets its own response."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from lance_namespace.errors import ConcurrentModificationError, PermissionDeniedError

from tests.services.protections import NOTHING_LIMITED, NOTHING_PROTECTED
from tiltyard.api.execution import batched
from tiltyard.api.execution.batched import Batched
from tiltyard.model.operations import Handler, Needs, never
from tiltyard.model.principals import EVERYBODY, Principal

EXCHANGE: Any = None
"""A batch does not use it."""


@dataclass(frozen=True)
class Caller:
    """A fake context: all that authorization reads of one, where nothing is protected."""

    principal: Principal = EVERYBODY
    services: Any = field(
        default_factory=lambda: SimpleNamespace(protections=NOTHING_PROTECTED, quotas=NOTHING_LIMITED, decisions=None)
    )

    @property
    def is_unchecked(self) -> bool:
        return self.principal.administrator


@dataclass
class Operation:
    """An operation that runs batches once `may_run` is set; negative numbers conflict. `sizes` has those of batches."""

    has_started: threading.Event = field(default_factory=threading.Event)
    may_run: threading.Event = field(default_factory=threading.Event)
    sizes: list[int] = field(default_factory=list)

    def batch(self, calls: Sequence[tuple[Any, int]]) -> list[Any]:
        self.sizes.append(len(calls))
        self.has_started.set()
        assert self.may_run.wait(10)
        return [number * 2 if number >= 0 else ConcurrentModificationError(f"no {number}") for _, number in calls]

    def batched(self) -> Batched:
        handler = Handler(print, never, Needs("nothing", _authorize), batch=self.batch)
        return Batched(handler, ThreadPoolExecutor(2))


def _authorize(caller: Caller, number: int) -> Caller:
    if number == 13:
        raise PermissionDeniedError("not this one")
    return caller


async def outcomes(operation: Operation, callers: Sequence[tuple[Caller, int]]) -> list[Any]:
    """Run two calls, let the others wait meanwhile, and return the outcomes of all."""
    batches = operation.batched()
    first = [asyncio.ensure_future(batches.run(EXCHANGE, Caller(), number)) for number in (1, 2)]
    assert await asyncio.to_thread(operation.has_started.wait, 10)
    others = [asyncio.ensure_future(batches.run(EXCHANGE, *call)) for call in callers]
    await asyncio.sleep(0)
    operation.may_run.set()
    return list(await asyncio.gather(*first, *others, return_exceptions=True))


def test_calls_that_wait_run_in_one_batch_and_each_gets_its_response() -> None:
    operation = Operation()
    callers = [(Caller(), number) for number in range(10, 90)]
    results = asyncio.run(outcomes(operation, callers))
    assert results == [2, 4, *(number * 2 for number in range(10, 90))]
    assert operation.sizes == [2, batched.MAX_BATCH, len(callers) - batched.MAX_BATCH]


def test_batch_waits_for_clients_that_call_again_and_not_for_those_that_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batched, "LINGER_SECONDS", 0.5)
    operation = Operation()
    operation.may_run.set()

    async def call(batches: Batched, times: int) -> None:
        for number in range(times):
            assert await batches.run(EXCHANGE, Caller(), number) == number * 2
            await asyncio.sleep(0)

    async def run() -> None:
        batches = operation.batched()
        await asyncio.gather(*(call(batches, times) for times in (5, 5, 8)))

    asyncio.run(run())
    assert operation.sizes == [3] * 5 + [1] * 3


def test_call_that_conflicts_or_is_refused_fails_alone() -> None:
    stranger = Caller(Principal("mallory"))
    results = asyncio.run(outcomes(Operation(), [(Caller(), -1), (stranger, 13), (stranger, 7)]))
    assert results[:2] == [2, 4]
    assert [type(result) for result in results[2:]] == [ConcurrentModificationError, PermissionDeniedError, int]


def test_batch_of_refused_calls_alone_does_not_run() -> None:
    operation = Operation()
    operation.may_run.set()

    async def run() -> list[Any]:
        batches = operation.batched()
        strangers = [Caller(Principal("mallory")) for _ in range(2)]
        return await asyncio.gather(
            *(batches.run(EXCHANGE, caller, 13) for caller in strangers), return_exceptions=True
        )

    assert [type(result) for result in asyncio.run(run())] == [PermissionDeniedError] * 2
    assert operation.sizes == []


def test_batch_that_fails_fails_every_call() -> None:
    def broken(calls: Sequence[tuple[Any, int]]) -> list[Any]:
        raise RuntimeError("the disk is full")

    async def run() -> list[Any]:
        batches = Batched(Handler(print, never, Needs("nothing", _authorize), batch=broken), ThreadPoolExecutor(1))
        return await asyncio.gather(
            *(batches.run(EXCHANGE, Caller(), number) for number in range(3)), return_exceptions=True
        )

    assert [str(result) for result in asyncio.run(run())] == ["the disk is full"] * 3
