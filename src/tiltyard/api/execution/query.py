"""Queries: in threads, for as long as they may take.

Lance gives no way to stop it inside of one batch. So a query that is out of time is answered at once, hears of it
between two batches, and keeps its place until its thread has really ended. A query whose client has left is stopped in
the same way, and does not begin if it still waits for a thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import ErrorCode, ServiceUnavailableError
from msgspec import structs

from tiltyard.api.bodies.arrow_responses import Download, outgoing
from tiltyard.api.errors import HttpError
from tiltyard.runtime.failpoints import Point, reach

if TYPE_CHECKING:
    from tiltyard.api.request_limits import Slot
    from tiltyard.context import Context
    from tiltyard.model.operations import Served


class QueryStoppedError(HttpError):
    """A query was out of time. 504 is what clients do not try again by themselves, as they do 503."""

    def __init__(self, message: str) -> None:
        super().__init__(504, ErrorCode.SERVICE_UNAVAILABLE, message)


@dataclass(frozen=True, slots=True)
class Deadline:
    """When work has to be done, by the clock `time.monotonic`; `seconds` is how long it was given."""

    seconds: float
    at: float
    work: str = "query"

    @classmethod
    def after(cls, seconds: float) -> Deadline | None:
        """The deadline of a query that begins now; None where `seconds` is 0."""
        return cls.in_seconds(seconds, "query") if seconds else None

    @classmethod
    def in_seconds(cls, seconds: float, work: str) -> Deadline:
        """The deadline of work that begins now; with 0 seconds it is over at once."""
        return cls(seconds, time.monotonic() + seconds, work)

    @property
    def left(self) -> float:
        """Seconds until then."""
        return self.at - time.monotonic()

    def check(self) -> None:
        """For the thread that works. Raises ServiceUnavailableError when time is over: nobody waits any more."""
        if self.left <= 0:
            raise ServiceUnavailableError(self._message)

    def check_begin(self) -> None:
        """Raise QueryStoppedError if there is no time to begin in."""
        if self.left <= 0:
            raise self.over()

    def over(self) -> QueryStoppedError:
        """For the caller."""
        return QueryStoppedError(self._message)

    def laid_on(self, ctx: Context) -> Context:
        """The context in which an operation hears of it."""
        return structs.replace(ctx, check_deadline=self.check)

    @property
    def _message(self) -> str:
        advice = "narrow it, or index what it filters by" if self.work == "query" else "give it more time, or send less"
        return f"The {self.work} timed out: it took more than {self.seconds:g} s and was stopped; {advice}."


def earlier(one: Deadline | None, other: Deadline | None) -> Deadline | None:
    """The deadline that comes first."""
    if one is None or other is None:
        return one or other
    return min(one, other, key=lambda deadline: deadline.at)


class Query:
    """One query. Its methods run on the event loop, what is started in a thread of `pool`."""

    def __init__(
        self,
        pool: Executor,
        deadline: Deadline | None,
        slot: Slot | None,
        most: int,
        has_left: Callable[[], bool] | None = None,
    ) -> None:
        """`most` is how many bytes an Arrow answer may have, 0 for any number.

        `has_left` tells whether the client has closed its connection.
        """
        self._pool = pool
        self._has_left = has_left
        self._deadline = deadline
        self._slot = slot
        self._most = most
        self._running: asyncio.Future[Any] | None = None

    async def run(self, served: Served, ctx: Context, request: Any, media: str) -> Any:
        """What the operation answers; Arrow as a Download, whose first chunks are made.

        Raises QueryStoppedError, TooLargeError, and what the operation raises.
        """
        ctx = structs.replace(ctx, check_deadline=self._check)

        def work() -> Any:
            self._check()  # it may have waited long for its thread
            result = served.function(ctx, request)
            reach(Point.BEFORE_ANSWER)
            return outgoing(result, media, self._most)

        running = self.start(work)
        try:
            return await self.wait(running)
        except QueryStoppedError:
            running.add_done_callback(_let_go)
            raise

    def _check(self) -> None:
        """For the thread that works. Raises ServiceUnavailableError where nobody waits for the answer any more."""
        if self._has_left is not None and self._has_left():
            raise ServiceUnavailableError("The client closed its connection, so its query was stopped.")
        if self._deadline is not None:
            self._deadline.check()

    def start(self, work: Callable[[], Any]) -> asyncio.Future[Any]:
        """Begin a piece of work; one at a time."""
        self._running = asyncio.get_running_loop().run_in_executor(self._pool, work)
        return self._running

    async def wait(self, running: asyncio.Future[Any]) -> Any:
        """What came of a piece of work. Raises QueryStoppedError when time is over before that."""
        if self._deadline is None:
            return await running
        done, _ = await asyncio.wait([running], timeout=max(0.0, self._deadline.left))
        if not done:
            raise self._stopped(self._deadline)
        return running.result()

    async def sent(self, sending: Coroutine[Any, Any, None]) -> None:
        """Wait until a part of the answer is on its way: who takes nothing of it has no more time than others.

        Raises QueryStoppedError when time is over before that.
        """
        if self._deadline is None:
            await sending
            return
        try:
            async with asyncio.timeout(max(0.0, self._deadline.left)):
                await sending
        except TimeoutError:
            raise self._stopped(self._deadline) from None

    def _stopped(self, deadline: Deadline) -> QueryStoppedError:
        """What to raise; the query keeps its place until what runs of it has ended."""
        if self._slot is not None and self._running is not None and not self._running.done():
            self._slot.hold(self._running)
        return deadline.over()

    def end(self, download: Download) -> None:
        """Let go of an answer, as soon as no thread is at work on it."""
        if self._running is not None and not self._running.done():
            self._running.add_done_callback(lambda running: _close_after(running, download))
        else:
            _close(download)


def _let_go(running: asyncio.Future[Any]) -> None:
    """Drop the result of work whose caller was answered already, and its error, which nobody else asks for."""
    if not running.cancelled() and running.exception() is None and isinstance(result := running.result(), Download):
        _close(result)


def _close_after(running: asyncio.Future[Any], download: Download) -> None:
    if not running.cancelled():
        running.exception()  # taken, so that it is not reported as lost
    _close(download)


def _close(download: Download) -> None:
    """Close in a thread of its own kind: those for queries may all be at work."""
    asyncio.get_running_loop().run_in_executor(None, download.close)
