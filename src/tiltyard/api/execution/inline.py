"""Run requests on the event loop that need only a few reads of a fast catalog, or what is in memory."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from tiltyard.api.bodies.arrow_responses import encode_response, media_type
from tiltyard.storage.errors import is_panic

if TYPE_CHECKING:
    from tiltyard.api.exchange import Exchange
    from tiltyard.api.execution.threaded import Execution
    from tiltyard.context import Context
    from tiltyard.model.operations import Handler, SharedWork

MAX_SHARED_CALLS = 16
"""Calls whose shared work is done at once: other requests wait for it."""


class Inline:
    """Run a request on the event loop if it needs no thread; others by another execution."""

    def __init__(self, handler: Handler, execution: Execution, max_result_bytes: int) -> None:
        self._handler = handler
        self._inline = handler.inline
        self._execution = execution
        self._shared = None if handler.shared is None else SharedCalls(handler.shared)
        self._max_result_bytes = max_result_bytes

    async def run(self, exchange: Exchange, ctx: Context, request: Any) -> Any:
        inline_ctx = self._inline(ctx, request)
        if inline_ctx is None:
            return await self._execution.run(exchange, ctx, request)
        handler = self._handler
        authorized = handler.authorize(inline_ctx, request)
        if self._shared is not None:
            await self._shared.do_part_of(authorized)
        response = handler.function(authorized, request)
        if isinstance(response, msgspec.Struct):
            return response
        return encode_response(response, media_type(exchange.headers.get(b"accept", b"")), self._max_result_bytes)


class SharedCalls:
    """Do a part of all requests together that the event loop has read in one go. Belongs to the event loop."""

    def __init__(self, work: SharedWork) -> None:
        self._work = work
        self._waiting: list[tuple[Any, asyncio.Future[None]]] = []

    async def do_part_of(self, ctx: Context) -> None:
        """Return when the shared part of a request is done, if it has one. Raises what that raises."""
        call = self._work.call(ctx)
        if call is None:
            return
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._waiting.append((call, done))
        if len(self._waiting) == 1:
            loop.call_soon(self._run)  # after the requests that were read together with this one
        await done

    def _run(self) -> None:
        calls, self._waiting = self._waiting[:MAX_SHARED_CALLS], self._waiting[MAX_SHARED_CALLS:]
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._run)
        calls = [(call, done) for call, done in calls if not done.done()]  # the others' requests were cancelled
        try:
            self._work.run([call for call, _ in calls])
        except BaseException as error:  # it is the outcome of each call, also a panic of Lance, which is no Exception
            if not isinstance(error, Exception) and not is_panic(error):
                raise
            for _, done in calls:
                done.set_exception(error)
        else:
            for _, done in calls:
                done.set_result(None)
