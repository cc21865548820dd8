"""Places of calls: each caller's part of them, and the oldest that wait for their message."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack

import pytest
from lance_namespace.errors import InvalidInputError, ThrottlingError

from tiltyard.flight.calls import MAX_CALLS, MAX_CALLS_OF_CALLER, MAX_WAITING, CallPlaces


def test_take_beyond_a_callers_part_or_all_places_is_refused() -> None:
    places = CallPlaces(10)
    with ExitStack() as stack:
        for _ in range(MAX_CALLS_OF_CALLER):
            stack.enter_context(places.take("ann"))
        with pytest.raises(ThrottlingError, match="of yours"), places.take("ann"):
            pass
        for number in range(MAX_CALLS - MAX_CALLS_OF_CALLER):
            stack.enter_context(places.take(f"other {number}"))
        with pytest.raises(ThrottlingError, match="already"), places.take("bob"):
            pass
    with places.take("ann"):
        pass


def test_oldest_calls_that_wait_for_their_message_end_for_new_ones() -> None:
    async def check() -> None:
        places, done = CallPlaces(600), asyncio.Event()

        async def wait() -> None:
            async with places.wait_for_message(places):
                await done.wait()

        waiting = [asyncio.create_task(wait()) for _ in range(3 * MAX_WAITING)]  # woken together: none runs between
        await asyncio.wait(waiting[: 2 * MAX_WAITING], timeout=10)
        errors = [task.exception() for task in waiting[: 2 * MAX_WAITING]]
        assert all(isinstance(error, ThrottlingError) for error in errors)
        done.set()
        assert await asyncio.gather(*waiting[2 * MAX_WAITING :]) == [None] * MAX_WAITING

    asyncio.run(check())


def test_call_of_a_connection_with_few_others_is_not_ended_for_those_of_one_with_many() -> None:
    async def check() -> None:
        places, done = CallPlaces(600), asyncio.Event()

        async def wait(connection: str) -> None:
            async with places.wait_for_message(connection):
                await done.wait()

        patient = asyncio.create_task(wait("patient"))
        waiting = [asyncio.create_task(wait("greedy")) for _ in range(2 * MAX_WAITING)]
        await asyncio.wait(waiting[: MAX_WAITING + 1], timeout=10)
        done.set()
        await patient
        await asyncio.gather(*waiting, return_exceptions=True)

    asyncio.run(check())


def test_call_whose_time_is_over_is_not_ended_twice() -> None:
    """Its timeout has expired, and its task has not run yet, when others begin."""

    async def check() -> None:
        places, done = CallPlaces(0.02), asyncio.Event()

        async def wait() -> None:
            async with places.wait_for_message(places):
                await done.wait()

        async def begin_later() -> None:
            await asyncio.sleep(0.01)
            await wait()

        late = [asyncio.create_task(wait()) for _ in range(MAX_WAITING)]
        later = [asyncio.create_task(begin_later()) for _ in range(MAX_WAITING)]
        await asyncio.sleep(0)
        time.sleep(0.03)  # noqa: ASYNC251  # so that the loop finds both times over at once
        asyncio.get_running_loop().call_later(0.005, done.set)
        ended = await asyncio.gather(*late, *later, return_exceptions=True)
        assert {type(each) for each in ended} <= {InvalidInputError, ThrottlingError, type(None)}

    asyncio.run(check())


def test_message_that_takes_too_long_is_refused() -> None:
    async def check() -> None:
        with pytest.raises(InvalidInputError, match=r"more than 0\.01 s"):
            async with CallPlaces(0.01).wait_for_message(None):
                await asyncio.sleep(60)

    asyncio.run(check())
