"""Run calls of one operation together that wait at the same time, where the operation has a `batch` function.

The first call starts at once; those that come while it runs are the next batch. So a lone client waits for no other,
and under load the start of a thread, a transaction and a sync of the disk are shared. Clients whose calls were in one
batch are given a moment to call again: otherwise the first of them would get a batch for itself, and the others would
wait for that.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING, Any

from tiltyard.context import Context
from tiltyard.model.operations import map_successes
from tiltyard.runtime.batcher import WorkQueue
from tiltyard.runtime.failpoints import Point, reach

if TYPE_CHECKING:
    from tiltyard.api.exchange import Exchange
    from tiltyard.model.operations import Handler

MAX_BATCH = 64
"""Calls in one batch: bounds how long the first of them waits for the last."""
LINGER_SECONDS = 0.002
"""How long a batch waits for the clients of the one before."""

_Call = tuple[Context, Any, asyncio.Future[Any]]


class Batched(WorkQueue):
    """Run an operation's calls in batches, in threads. Belongs to the event loop.

    Not a `runtime.batcher.Batcher`, whose locks and futures between threads cost 15 % of the calls of 8 clients and
    23 % of those of 32, with batches of 2 ms, and half as much processor time again.
    """

    def __init__(self, handler: Handler, pool: Executor) -> None:
        self._handler = handler
        self._pool = pool
        self._waiting: list[_Call] = []
        self._is_running = self._is_scheduled = False
        self._expected_calls = 0
        self._linger: asyncio.TimerHandle | None = None
        super().__init__("batched calls", "Calls of one short operation at once, which run in one thread together")

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def run(self, exchange: Exchange, ctx: Context, request: Any) -> Any:
        loop = asyncio.get_running_loop()
        response: asyncio.Future[Any] = loop.create_future()
        self._waiting.append((ctx, request, response))
        self._start_if_ready(loop)
        return await response

    def _start_if_ready(self, loop: asyncio.AbstractEventLoop) -> None:
        """Schedule a batch, unless one runs or more calls are expected."""
        has_enough = self._waiting and len(self._waiting) >= self._expected_calls
        if has_enough and not self._is_running and not self._is_scheduled:
            self._is_scheduled = True
            loop.call_soon(self._start, loop)  # not at once: other requests may have come in this iteration of the loop

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_scheduled, self._is_running = False, True
        if self._linger is not None:
            self._linger.cancel()
        calls, self._waiting = self._waiting[:MAX_BATCH], self._waiting[MAX_BATCH:]
        future = self._pool.submit(_run_batch, self._handler, [call[:2] for call in calls])
        # By the thread itself: run_in_executor would take two iterations of the loop.
        future.add_done_callback(lambda done: loop.call_soon_threadsafe(self._deliver, loop, calls, done))

    def _deliver(self, loop: asyncio.AbstractEventLoop, calls: list[_Call], future: Future[list[Any]]) -> None:
        """Give each call its response or exception, and start the next batch."""
        self._is_running = False
        failure = future.exception() if not future.cancelled() else asyncio.CancelledError()
        outcomes = [failure] * len(calls) if failure is not None else future.result()
        for (_, _, response), outcome in zip(calls, outcomes, strict=True):
            if response.done():  # the request was cancelled
                continue
            if isinstance(outcome, BaseException):
                response.set_exception(outcome)
            else:
                response.set_result(outcome)
        self._wait_for_clients(loop, len(calls))
        self._start_if_ready(loop)

    def _wait_for_clients(self, loop: asyncio.AbstractEventLoop, clients: int) -> None:
        """Let the next batch wait for so many more calls; it does not wait for a single one."""
        self._expected_calls = min(len(self._waiting) + clients, MAX_BATCH)
        if self._expected_calls > 1:
            self._linger = loop.call_later(LINGER_SECONDS, self._stop_waiting, loop)

    def _stop_waiting(self, loop: asyncio.AbstractEventLoop) -> None:
        self._expected_calls = 0
        self._start_if_ready(loop)


def _run_batch(handler: Handler, calls: list[tuple[Context, Any]]) -> list[Any]:
    """Authorize and run several calls, in a thread; a refused one has its exception as its outcome."""
    assert handler.batch is not None
    outcomes = map_successes([_authorized(handler, *call) for call in calls], handler.batch)
    reach(Point.BEFORE_ANSWER)
    return outcomes


def _authorized(handler: Handler, ctx: Context, request: Any) -> tuple[Context, Any] | Exception:
    try:
        authorized: Context = handler.authorize(ctx, request)
    except Exception as error:  # noqa: BLE001  # it is the outcome of this call alone
        return error
    return authorized, request
