"""Calls of one operation that wait at the same time run together, where the operation can do that (`together`).

The first runs at once; what comes while it runs makes the next group. So a lone caller waits for nobody, and under load
a thread's start, a transaction and a sync of the disk are shared. Callers that were in one group are given a moment to
come back together: else the first of them would have a group for itself, and the others would wait for that.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor, Future
from typing import Any

from tiltyard.context import Context
from tiltyard.model.operations import Served
from tiltyard.model.outcomes import go_on
from tiltyard.runtime.failpoints import Point, reach

MOST = 64
"""Calls in one group: bounds how long the first of them waits for the last."""
HOPING_SECONDS = 0.002
"""Who was in a group is expected back for so long at most."""

_Waiting = tuple[Context, Any, asyncio.Future[Any]]


class Group:
    """The calls of one operation. Belongs to the event loop."""

    def __init__(self, served: Served, pool: Executor) -> None:
        self._served = served
        self._pool = pool
        self._waiting: list[_Waiting] = []
        self._running = self._due = False
        self._hoped = 0
        self._patience: asyncio.TimerHandle | None = None

    async def run(self, ctx: Context, request: Any) -> Any:
        """What the operation answers. Raises what it raises."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        self._waiting.append((ctx, request, answer))
        self._start_if_ready(loop)
        return await answer

    def _start_if_ready(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start a group, unless one runs, or more callers are hoped for."""
        if self._waiting and len(self._waiting) >= self._hoped and not self._running and not self._due:
            self._due = True
            loop.call_soon(self._start, loop)  # not at once: other requests may have come in this very round

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due, self._running = False, True
        if self._patience is not None:
            self._patience.cancel()
        calls, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
        work = self._pool.submit(_together, self._served, [call[:2] for call in calls])
        # Told by the thread itself: a future of the loop's would take two rounds of it.
        work.add_done_callback(lambda done: loop.call_soon_threadsafe(self._ended, loop, calls, done))

    def _hope_for(self, loop: asyncio.AbstractEventLoop, callers: int) -> None:
        """Wait for so many more; for one alone nobody waits."""
        self._hoped = min(len(self._waiting) + callers, MOST)
        if self._hoped > 1:
            self._patience = loop.call_later(HOPING_SECONDS, self._hope_no_more, loop)

    def _hope_no_more(self, loop: asyncio.AbstractEventLoop) -> None:
        self._hoped = 0
        self._start_if_ready(loop)

    def _ended(self, loop: asyncio.AbstractEventLoop, calls: list[_Waiting], done: Future[list[Any]]) -> None:
        self._running = False
        failure = done.exception() if not done.cancelled() else asyncio.CancelledError()
        outcomes = [failure] * len(calls) if failure is not None else done.result()
        for (_, _, answer), outcome in zip(calls, outcomes, strict=True):
            if answer.done():  # its caller has left
                continue
            if isinstance(outcome, BaseException):
                answer.set_exception(outcome)
            else:
                answer.set_result(outcome)
        self._hope_for(loop, len(calls))
        self._start_if_ready(loop)


def _together(served: Served, calls: list[tuple[Context, Any]]) -> list[Any]:
    """Runs in a thread: who may not do it is refused alone."""
    assert served.together is not None
    outcomes = go_on([_admitted(served, *call) for call in calls], served.together)
    reach(Point.BEFORE_ANSWER)
    return outcomes


def _admitted(served: Served, ctx: Context, request: Any) -> tuple[Context, Any] | Exception:
    try:
        admitted: Context = served.admit(ctx, request)
    except Exception as error:  # noqa: BLE001  # it is its own caller's, who is told
        return error
    return admitted, request
