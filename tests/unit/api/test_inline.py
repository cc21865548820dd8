"""Requests on the event loop that share a part of their work: it is done at once for all that wait."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from tiltyard.api.execution.inline import MAX_SHARED_CALLS, SharedCalls
from tiltyard.model.operations import SharedWork


@dataclass
class Doubling:
    """Work on boxes of one number, which fails where one has 13; `sizes` has how many were done at once."""

    sizes: list[int] = field(default_factory=list)

    def run(self, boxes: Sequence[list[int]]) -> None:
        self.sizes.append(len(boxes))
        if [13] in boxes:
            raise ValueError("no 13")
        for box in boxes:
            box[0] *= 2

    def calls(self) -> SharedCalls:
        return SharedCalls(SharedWork(lambda box: box, self.run))


async def outcomes(calls: SharedCalls, boxes: Sequence[Any]) -> list[Any]:
    return list(await asyncio.gather(*(calls.do_part_of(box) for box in boxes), return_exceptions=True))


def test_all_that_wait_are_done_at_once_and_no_more_than_a_bound() -> None:
    work = Doubling()
    boxes = [[number] for number in range(100, 140)]
    assert asyncio.run(outcomes(work.calls(), boxes)) == [None] * 40
    assert boxes == [[2 * number] for number in range(100, 140)]
    assert work.sizes == [MAX_SHARED_CALLS, MAX_SHARED_CALLS, 40 - 2 * MAX_SHARED_CALLS]


def test_calls_one_after_the_other_wait_for_nobody() -> None:
    work, box = Doubling(), [1]

    async def run() -> None:
        calls = work.calls()
        for _ in range(3):
            await calls.do_part_of(box)  # type: ignore[arg-type]

    asyncio.run(run())
    assert box == [8]
    assert work.sizes == [1, 1, 1]


def test_a_request_without_such_a_part_goes_on() -> None:
    work = Doubling()
    assert asyncio.run(outcomes(work.calls(), [None, None])) == [None, None]
    assert not work.sizes


def test_an_error_is_that_of_all_that_were_done_at_once_and_of_no_later_call() -> None:
    work, boxes = Doubling(), [[1], [13], [3]]

    async def run() -> list[Any]:
        calls = work.calls()
        return [*await outcomes(calls, boxes), *await outcomes(calls, [[4]])]

    results = asyncio.run(run())
    assert [str(result) for result in results] == ["no 13"] * 3 + ["None"]


def test_a_request_that_was_cancelled_is_not_done() -> None:
    work, boxes = Doubling(), [[1], [2]]

    async def run() -> None:
        calls = work.calls()
        cancelled, other = (asyncio.ensure_future(calls.do_part_of(box)) for box in boxes)  # type: ignore[arg-type]
        await asyncio.sleep(0)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        await other

    asyncio.run(run())
    assert boxes in ([[1], [4]], [[2], [4]])  # the part may have begun before
