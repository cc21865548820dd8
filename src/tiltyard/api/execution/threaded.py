"""Run operations in threads: one pool for each kind of work.

Kinds do not wait for each other: a hundred slow uploads leave the catalog answering, and queries get as many threads
as the processors can feed (`docs/architecture.md` has the measurement). Principals do not wait for each other either,
where work is long: they take turns for the threads of queries and writes.
"""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, Protocol

from tiltyard.api.limits.requests import caller_name
from tiltyard.model.operations import PoolName
from tiltyard.runtime.failpoints import Point, reach
from tiltyard.runtime.pool import RESERVED_SHARE, FairPool, Pool

if TYPE_CHECKING:
    from tiltyard.api.exchange import Exchange
    from tiltyard.config import Settings
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

    def __init__(self, settings: Settings) -> None:
        self.identity = Pool("identity", "Sign-ins, and first requests with a key or token", IDENTITY_THREADS)
        self.catalog = Pool("catalog", "Operations on the catalog, and all that is short", CATALOG_THREADS)
        query_threads = max(8, 4 * (os.cpu_count() or 1))
        reserved = query_threads // RESERVED_SHARE
        self.shares = FairPool(
            "shares",
            "Parts of searches that other servers spread: in threads of queries, servers would wait for each other",
            query_threads,
            reserved,
            settings.principal_weights,
        )
        self._pools: dict[str, Pool] = {
            "shares": self.shares,
            PoolName.CATALOG: self.catalog,
            "identity": self.identity,
            PoolName.QUERIES: FairPool(
                "query", "Queries of tables", query_threads, reserved, settings.principal_weights
            ),
            PoolName.WRITES: FairPool(
                "write", "Writes of tables", WRITE_THREADS, WRITE_THREADS // RESERVED_SHARE, settings.principal_weights
            ),
        }

    def __getitem__(self, pool: PoolName) -> Executor:
        return self._pools[pool]

    def gauges(self) -> dict[str, float]:
        """Return the number of calls that wait for a thread of each pool, for the metrics."""
        return {f"{name} waiting for a thread": pool.waiting for name, pool in self._pools.items()}

    def close(self) -> None:
        """Start nothing more. The server has drained by now: what still runs is not waited for."""
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)


def executor_for(pool: Executor, ctx: Context, address: str) -> Executor:
    """Return an executor for a caller's work in a pool; the caller waits for its turn if callers share the pool."""
    return pool.share_of(caller_name(ctx, address)) if isinstance(pool, FairPool) else pool


class Threaded:
    """Authorize and run an operation in a thread: its checks read the catalog as well."""

    def __init__(self, handler: Handler, pool: Executor) -> None:
        self._handler = handler
        self._pool = pool

    async def run(self, exchange: Exchange, ctx: Context, request: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self.executor(exchange, ctx), self.call, ctx, request)

    def executor(self, exchange: Exchange, ctx: Context) -> Executor:
        """Return the executor that runs the operation for a caller."""
        return executor_for(self._pool, ctx, exchange.log.address)

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
