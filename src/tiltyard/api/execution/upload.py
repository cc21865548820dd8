"""Run an operation that takes Arrow: a thread reads the body while it comes in."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

from tiltyard.api.bodies.connection_reader import COMPLETE_BODY, HAND_OVER
from tiltyard.api.bodies.uploads import StreamedBody, open_upload
from tiltyard.api.execution.threaded import executor_for
from tiltyard.model.operations import PendingResponse
from tiltyard.runtime.failpoints import Point, reach

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from tiltyard.api.exchange import Exchange
    from tiltyard.api.execution.threaded import Authorization, Execution
    from tiltyard.context import Context
    from tiltyard.model.operations import Handler

MAX_INLINE_BODY_BYTES = 16 << 10
"""Bytes of an Arrow body that is read on the event loop: to hand it to a thread would take longer."""


class LoopBridge:
    """Deliver results of worker threads to the event loop, with one wake-up per burst.

    Belongs to one event loop; results may come from any thread.
    """

    def __init__(self) -> None:
        self._done: deque[tuple[asyncio.Future[Any], Future[Any]]] = deque()
        self._scheduled = False

    async def wait(self, future: Future[Any]) -> Any:
        """Return the result of a future. Raises what it raises."""
        waiter: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        future.add_done_callback(partial(self._add, waiter))
        return await waiter

    def _add(self, waiter: asyncio.Future[Any], future: Future[Any]) -> None:
        self._done.append((waiter, future))
        if self._scheduled:  # `_deliver` clears this before it looks, so nothing is left behind
            return
        self._scheduled = True
        loop = waiter.get_loop()
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._scheduled = False
        while self._done:
            waiter, future = self._done.popleft()
            if waiter.done():  # the request was cancelled
                continue
            if error := future.exception():
                waiter.set_exception(error)
            else:
                waiter.set_result(future.result())


class Upload:
    """Open the Arrow body of a request, and feed it while the inner execution reads it."""

    def __init__(self, execution: Execution, limit: int, authorization: Authorization | None) -> None:
        """`limit` is how many bytes a body may have, 0 for any number.

        `authorization` runs before the body is read; None where the inner execution authorizes.
        """
        self._execution = execution
        self._limit = limit
        self._authorization = authorization

    async def run(self, exchange: Exchange, ctx: Context, request: Any) -> Any:
        if self._authorization is not None and not ctx.is_unchecked:
            ctx = await self._authorization.check(ctx, request)
        extensions, with_fingerprint = exchange.extensions, exchange.idempotent is not None
        upload = exchange.body = await open_upload(
            exchange.receive, self._limit, with_fingerprint, extensions.get(HAND_OVER), extensions.get(COMPLETE_BODY)
        )
        feed = None
        if isinstance(upload, StreamedBody):
            feed = exchange.feed = asyncio.get_running_loop().create_task(upload.feed())
        try:
            return await self._execution.run(exchange, ctx, request)
        except Exception as error:
            if upload.failure in (None, error):
                raise
            raise upload.failure from error
        finally:
            if feed is not None:
                feed.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await feed


class Deferred:
    """Run an authorized operation with its upload; wait without a thread for the response of one that can `begin`."""

    def __init__(self, handler: Handler, pool: Executor, bridge: LoopBridge, inline_bytes: int) -> None:
        """`inline_bytes` is up to how many bytes an upload is begun on the event loop."""
        self._function = handler.function
        self._begin = handler.begin
        self._pool = pool
        self._bridge = bridge
        self._inline_bytes = inline_bytes

    async def run(self, exchange: Exchange, ctx: Context, request: Any) -> Any:
        upload: Any = exchange.body
        response = None
        if self._begin is not None and upload.size is not None and upload.size <= self._inline_bytes:
            response = self._begin(ctx, request, upload)
        if response is None:
            pool = executor_for(self._pool, ctx, exchange.log.address)
            response = await asyncio.get_running_loop().run_in_executor(pool, self._call, ctx, request, upload)
        if isinstance(response, PendingResponse):
            response = response.finish(await self._bridge.wait(response.future))
            reach(Point.BEFORE_ANSWER)
        return response

    def _call(self, ctx: Context, request: Any, upload: Any) -> Any:
        if self._begin is not None and (pending := self._begin(ctx, request, upload)):
            return pending
        response = self._function(ctx, request, upload)
        reach(Point.BEFORE_ANSWER)
        return response
