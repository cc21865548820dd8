"""Results of worker threads are delivered to the event loop."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from tiltyard.api.execution.upload import LoopBridge


def settle(future: Future[int], number: int) -> None:
    if number % 3:
        future.set_result(number)
    else:
        future.set_exception(ValueError(str(number)))


def test_wait_for_many_futures_gives_each_caller_its_own_outcome() -> None:
    async def ask() -> list[Any]:
        bridge, futures = LoopBridge(), [Future[int]() for _ in range(500)]
        waiting = [asyncio.ensure_future(bridge.wait(future)) for future in futures]
        await asyncio.sleep(0)
        waiting[1].cancel()  # a caller that leaves
        with ThreadPoolExecutor(8) as pool:
            pool.map(settle, futures, range(500))
            return await asyncio.gather(*waiting, return_exceptions=True)

    outcomes = asyncio.run(asyncio.wait_for(ask(), 20))
    assert isinstance(outcomes.pop(1), asyncio.CancelledError)
    assert [str(outcome) for outcome in outcomes] == [str(number) for number in range(500) if number != 1]


def test_wait_for_a_future_that_is_done_already_returns_its_result() -> None:
    done = Future[int]()
    done.set_result(7)
    assert asyncio.run(LoopBridge().wait(done)) == 7
