"""Calls of one operation that wait at the same time run together, where the operation can do that (`together`).

The first runs at once; what comes while it runs makes the next group. So a lone caller waits for nobody, and under load
a thread's start, a transaction and a sync of the disk are shared.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from functools import partial
from typing import Any

from tiltyard.context import Context
from tiltyard.faults import Point, reach
from tiltyard.operations import Served

MOST = 64
"""Calls in one group: bounds how long the first of them waits for the last."""
AT_ONCE = 2
"""Groups that run at the same time: while one waits for the disk, the next is read and checked."""

_Waiting = tuple[Context, Any, asyncio.Future[Any]]


class Group:
    """The calls of one operation. Belongs to the event loop."""

    def __init__(self, served: Served, pool: Executor) -> None:
        self._served = served
        self._pool = pool
        self._waiting: list[_Waiting] = []
        self._running = 0
        self._due = False

    async def run(self, ctx: Context, request: Any) -> Any:
        """What the operation answers. Raises what it raises."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        self._waiting.append((ctx, request, answer))
        if not self._due and self._running < AT_ONCE:
            self._due = True
            loop.call_soon(self._start, loop)  # not at once: other requests may have come in this very round
        return await answer

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due = False
        while self._waiting and self._running < AT_ONCE:
            calls, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
            self._running += 1
            work = loop.run_in_executor(self._pool, _together, self._served, [call[:2] for call in calls])
            work.add_done_callback(partial(self._ended, loop, calls))

    def _ended(self, loop: asyncio.AbstractEventLoop, calls: list[_Waiting], done: asyncio.Future[list[Any]]) -> None:
        self._running -= 1
        failure = done.exception() if not done.cancelled() else asyncio.CancelledError()
        outcomes = [failure] * len(calls) if failure is not None else done.result()
        for (_, _, answer), outcome in zip(calls, outcomes, strict=True):
            if answer.done():  # its caller has left
                continue
            if isinstance(outcome, BaseException):
                answer.set_exception(outcome)
            else:
                answer.set_result(outcome)
        self._start(loop)


def _together(served: Served, calls: list[tuple[Context, Any]]) -> list[Any]:
    """Runs in a thread: who may not do it is refused alone."""
    assert served.together is not None
    outcomes: list[Any] = [_admitted(served, *call) for call in calls]
    good = [number for number, one in enumerate(outcomes) if not isinstance(one, Exception)]
    done = served.together([(outcomes[number], calls[number][1]) for number in good])
    for number, outcome in zip(good, done, strict=True):
        outcomes[number] = outcome
    reach(Point.BEFORE_ANSWER)
    return outcomes


def _admitted(served: Served, ctx: Context, request: Any) -> Context | Exception:
    try:
        admitted: Context = served.admit(ctx, request)
    except Exception as error:  # noqa: BLE001  # it is its own caller's, who is told
        return error
    return admitted
