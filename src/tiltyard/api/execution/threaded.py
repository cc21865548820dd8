"""Run operations in threads: one pool for each kind of work.

Kinds do not wait for each other: a hundred slow uploads leave the catalog answering, and queries get as many threads
as the processors can feed (`docs/architecture.md` has the measurement).
"""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol

from tiltyard.model.operations import Pool
from tiltyard.runtime.current_request import TrackingExecutor
from tiltyard.runtime.failpoints import Point, reach

if TYPE_CHECKING:
    from tiltyard.api.exchange import Exchange
    from tiltyard.context import Context
    from tiltyard.model.operations import Handler

CATALOG_THREADS = 32
WRITE_THREADS = 64
IDENTITY_THREADS = 4
"""Few: a flood of invalid keys must not take the threads, and the database, from callers with a valid one."""


class Execution(Protocol):
    """A way to run an operation, chosen for each route when the server starts (`tiltyard.api.execution.choice`)."""

    async def run(self, exchange: Exchange, ctx: Context, request: Any) -> Any:
        """Authorize and run the operation; return its response. Raises what the operation raises."""


class ThreadPools:
    """The thread pools of one process."""

    def __init__(self) -> None:
        processors = os.cpu_count() or 1
        self.identity = TrackingExecutor(IDENTITY_THREADS, "identity")
        self.catalog = TrackingExecutor(CATALOG_THREADS, "catalog")
        self._pools = {
            Pool.CATALOG: self.catalog,
            "identity": self.identity,
            Pool.QUERIES: TrackingExecutor(max(8, 4 * processors), "query"),
            Pool.WRITES: TrackingExecutor(WRITE_THREADS, "write"),
        }

    def __getitem__(self, pool: Pool) -> ThreadPoolExecutor:
        return self._pools[pool]

    def gauges(self) -> dict[str, float]:
        """Return the number of calls that wait for a thread of each pool, for the metrics."""
        return {f"{name} waiting for a thread": pool._work_queue.qsize() for name, pool in self._pools.items()}

    def close(self) -> None:
        """Start nothing more. The server has drained by now: what still runs is not waited for."""
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)


class Threaded:
    """Authorize and run an operation in a thread: its checks read the catalog as well."""

    def __init__(self, handler: Handler, pool: Executor) -> None:
        self._handler = handler
        self.pool = pool

    async def run(self, exchange: Exchange, ctx: Context, request: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self.pool, self.call, ctx, request)

    def call(self, ctx: Context, request: Any, *upload: Any) -> Any:
        """Run the operation in this thread; `upload` is the third argument of an operation that takes Arrow."""
        ctx = self._handler.authorize(ctx, request)
        response = self._handler.run(ctx, request, *upload)
        reach(Point.BEFORE_ANSWER)
        return response


class Authorization:
    """The check of a principal's privileges before a query takes a slot, or an upload's body is read."""

    def __init__(self, handler: Handler, pool: Executor | None) -> None:
        """`pool` runs the check's reads of the catalog; None where they are fast enough for the event loop."""
        self._handler = handler
        self._pool = pool

    async def check(self, ctx: Context, request: Any) -> Context:
        """Return the context to run in, if the principal may run the operation.

        Raises what the operation would raise if the object did not exist, PermissionDeniedError,
        ServiceUnavailableError.
        """
        if self._pool is None:
            authorized: Context = self._handler.authorize(ctx, request)
            return authorized
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._handler.authorize, ctx, request)
