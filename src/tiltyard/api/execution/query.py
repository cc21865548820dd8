"""Run queries in threads, for as long as they may take, and stream their responses.

Lance gives no way to stop a query within one batch. So a query whose deadline has passed is answered at once, its
thread notices between two batches, and it holds its slot until that thread has really ended. A query whose client has
left is stopped in the same way, and does not start if it still waits for a thread.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, get_args

from lance_namespace.errors import ServiceUnavailableError
from msgspec import structs

from tiltyard.api.bodies.arrow_responses import Download, ResponseTooLargeError, encode_response, media_type
from tiltyard.api.bodies.byte_ranges import ByteDownload, requested_range
from tiltyard.api.deadlines import Deadline, DeadlineExceededError, earliest
from tiltyard.api.exchange import wait_for_disconnect
from tiltyard.api.execution.forwarding import ForwardedAnswer
from tiltyard.api.execution.sub_queries import SubQueries
from tiltyard.api.execution.threaded import executor_for
from tiltyard.runtime.failpoints import Point, reach

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from concurrent.futures import Executor

    from tiltyard.api.exchange import Exchange
    from tiltyard.api.execution.forwarding import Forwarding
    from tiltyard.api.execution.threaded import Authorization
    from tiltyard.api.limits.requests import Limits, QuerySlot
    from tiltyard.config import Settings
    from tiltyard.context import Context
    from tiltyard.model.operations import Handler

log = logging.getLogger("tiltyard.api")

AnyDownload = Download | ByteDownload | ForwardedAnswer
"""A response that is sent in chunks."""
DOWNLOADS = get_args(AnyDownload)


class QueryExecution:
    """Run a query in a thread, with a slot and a deadline. Raises HttpError 429 for one without a free slot."""

    def __init__(
        self,
        handler: Handler,
        pools: tuple[Executor, Executor],
        settings: Settings,
        limits: Limits,
        authorization: Authorization,
        forwarding: Forwarding | None = None,
    ) -> None:
        """`pools` run queries, and shares of searches that other servers spread."""
        self._handler = handler
        self._pools = pools
        self._timeout = settings.query_timeout
        self._max_result_bytes = settings.max_result_bytes
        self._limits = limits
        self._authorization = authorization
        self._forwarding = forwarding

    async def run(self, exchange: Exchange, ctx: Context, request: Any) -> Any:
        """Return the response; one of several chunks as a `Stream`.

        Raises HttpError 429, DeadlineExceededError, ResponseTooLargeError, and what the operation raises.
        """
        if not ctx.is_unchecked:
            ctx = await self._authorization.check(ctx, request)
        body: Any = exchange.body
        is_share = bool(exchange.segments)  # of a query that has its slot on the server which spreads it
        slot = exchange.slot = None if is_share else self._limits.acquire_slot(ctx, exchange.log.address, len(body))
        deadline = earliest(Deadline.for_query(self._timeout), exchange.deadline)
        pool = executor_for(self._pools[is_share], ctx, exchange.log.address)
        query = RunningQuery(pool, deadline, slot, exchange.watch_client())
        forwarding = self._forwarding
        ctx = structs.replace(ctx, check_deadline=query.check, segments=exchange.segments)
        if forwarding is not None and not is_share:
            ctx = structs.replace(ctx, sub_queries=SubQueries(forwarding, exchange, deadline))
        function, media, limit = (
            self._handler.function,
            media_type(exchange.headers.get(b"accept", b"")),
            self._max_result_bytes,
        )

        def work() -> Any:
            query.check()  # it may have waited long for its thread
            if forwarding is not None and (answer := forwarding.forward(exchange, request, deadline)) is not None:
                return answer
            response = function(ctx, request)
            reach(Point.BEFORE_ANSWER)
            return encode_response(response, media, limit, requested_range(exchange.headers), is_head=exchange.is_head)

        response = await query.run(work)
        return Stream(response, query) if isinstance(response, DOWNLOADS) and not response.complete else response


class RunningQuery:
    """The threads of one query, one at a time. Its methods run on the event loop, but for `check`."""

    def __init__(
        self,
        pool: Executor,
        deadline: Deadline | None,
        slot: QuerySlot | None,
        has_client_left: Callable[[], bool] | None = None,
    ) -> None:
        self._pool = pool
        self._deadline = deadline
        self._slot = slot
        self._has_client_left = has_client_left
        self._running: asyncio.Future[Any] | None = None

    async def run(self, work: Callable[[], Any]) -> Any:
        """Run the query's first piece of work and return its result. Raises what `wait` raises."""
        running = self.start(work)
        try:
            return await self.wait(running)
        except DeadlineExceededError:
            running.add_done_callback(_discard)
            raise

    def check(self) -> None:
        """Raise ServiceUnavailableError, in the query's thread, once its deadline has passed or its client has left."""
        if self._has_client_left is not None and self._has_client_left():
            raise ServiceUnavailableError("The client closed its connection, so its query was stopped.")
        if self._deadline is not None:
            self._deadline.check()

    def start(self, work: Callable[[], Any]) -> asyncio.Future[Any]:
        """Start a piece of work in a thread."""
        self._running = asyncio.get_running_loop().run_in_executor(self._pool, work)
        return self._running

    async def wait(self, running: asyncio.Future[Any]) -> Any:
        """Return the result of a piece of work. Raises what it raises, DeadlineExceededError."""
        if self._deadline is None:
            return await running
        done, _ = await asyncio.wait([running], timeout=max(0.0, self._deadline.remaining))
        if not done:
            raise self._exceeded(self._deadline)
        try:
            return running.result()
        except ServiceUnavailableError as error:
            if self._deadline.remaining > 0:
                raise
            raise self._exceeded(self._deadline) from error  # the thread saw the end of its time before the loop did

    async def wait_until_sent(self, sending: Coroutine[Any, Any, None]) -> None:
        """Wait until a chunk is sent: a client that does not read has no more time than others.

        Raises DeadlineExceededError.
        """
        if self._deadline is None:
            await sending
            return
        try:
            async with asyncio.timeout(max(0.0, self._deadline.remaining)):
                await sending
        except TimeoutError:
            raise self._exceeded(self._deadline) from None

    def _exceeded(self, deadline: Deadline) -> DeadlineExceededError:
        """Return the error to raise; the query holds its slot until its running thread has ended."""
        if self._slot is not None and self._running is not None and not self._running.done():
            self._slot.hold_until(self._running)
        return deadline.exceeded()

    def close(self, download: AnyDownload) -> None:
        """Close a response, as soon as no thread works on it."""
        if self._running is not None and not self._running.done():
            self._running.add_done_callback(lambda running: _close_after(running, download))
        else:
            _close(download)


class Stream:
    """A response of several chunks: the next one is encoded while the last one is sent."""

    def __init__(self, download: AnyDownload, query: RunningQuery) -> None:
        self._download = download
        self._query = query

    async def send(self, exchange: Exchange) -> None:
        """Send the response. One that fails behind its head is cut: all that is left is to close the connection."""
        disconnected = asyncio.get_running_loop().create_task(wait_for_disconnect(exchange.receive, None))
        download, query = self._download, self._query
        try:
            await exchange.start(download.status, download.media, download.headers)
            chunk: bytes | None = download.first
            while chunk is not None and not disconnected.done():
                encoding = query.start(download.next_chunk)
                await query.wait_until_sent(exchange.send_chunk(chunk))
                chunk = await query.wait(encoding)
            if chunk is None:
                await exchange.send_chunk(b"", last=True)
        except (DeadlineExceededError, ResponseTooLargeError) as error:
            log.warning("request %s: %s", exchange.request_id, error)
        finally:
            disconnected.cancel()
            query.close(download)


def _discard(running: asyncio.Future[Any]) -> None:
    """Drop the result of work whose client was answered already, and retrieve its error, so that asyncio logs none."""
    if not running.cancelled() and running.exception() is None and isinstance(running.result(), DOWNLOADS):
        _close(running.result())


def _close_after(running: asyncio.Future[Any], download: AnyDownload) -> None:
    if not running.cancelled():
        running.exception()  # retrieved, so that asyncio does not log it as lost
    _close(download)


def _close(download: AnyDownload) -> None:
    """Close in a thread of another pool: those for queries may all be at work."""
    asyncio.get_running_loop().run_in_executor(None, download.close)
