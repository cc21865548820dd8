"""Choose how each route runs its operation, once, when the server starts.

- `Inline`: a few reads of the catalog, or what is in memory, on the event loop. Where they are slow, or a request needs
  more, another way.
- `Threaded`: in a thread of the operation's pool.
- `Batched`: calls that wait at the same time run together.
- `QueryExecution`: in a thread with a slot and a deadline, its response streamed.
- `Upload`: with an Arrow body that a thread reads while it comes in.
- `Idempotent`: once, where the request has a key; a repeat gets the stored response.
- `LatestVersionTurn`, `CommitTurn`: clients that commit to one table in turn, before one of the others.

Each authorizes the request where it runs, since that reads the catalog.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tiltyard.api.exchange import wait_for_disconnect
from tiltyard.api.execution.batched import Batched
from tiltyard.api.execution.commit_queue import CommitQueues, CommitTurn, LatestVersionTurn
from tiltyard.api.execution.inline import Inline
from tiltyard.api.execution.query import QueryExecution
from tiltyard.api.execution.threaded import Authorization, Threaded
from tiltyard.api.execution.upload import MAX_INLINE_BODY_BYTES, Deferred, LoopBridge, Upload
from tiltyard.model.operations import CommitStep, PoolName, never, pool_of
from tiltyard.model.spec import Shape

if TYPE_CHECKING:
    from tiltyard.api.exchange import Exchange
    from tiltyard.api.execution.forwarding import Forwarding
    from tiltyard.api.execution.threaded import Execution, ThreadPools
    from tiltyard.api.limits.requests import Limits
    from tiltyard.context import Context, Services
    from tiltyard.model.operations import Handler
    from tiltyard.model.spec import Operation


class Executions:
    """How the operations of one process run."""

    def __init__(
        self, services: Services, pools: ThreadPools, limits: Limits, forwarding: Forwarding | None = None
    ) -> None:
        self._settings = services.settings
        self._has_inline_reads = services.store.inline_reads and services.decisions is None
        self._has_decisions = services.decisions is not None
        self._pools = pools
        self._limits = limits
        self._forwarding = forwarding
        self._bridge = LoopBridge()
        self._commit_queues = CommitQueues(services.storage.locks)

    def choose(self, operation: Operation, handler: Handler) -> tuple[Execution, Execution]:
        """Return how the operation runs, and how a request with an idempotency key does."""
        pool = self._pools[pool_of(operation, handler)]
        threaded = Threaded(handler, pool)
        authorization = Authorization(handler, None if self._has_inline_reads else self._pools.catalog)
        execution: Execution = threaded
        takes_upload = operation.request_shape is Shape.ARROW
        idempotent: Execution = Idempotent(threaded, takes_upload)
        if takes_upload:
            limit = self._settings.max_upload_bytes
            deferred = Deferred(handler, pool, self._bridge, MAX_INLINE_BODY_BYTES if self._has_inline_reads else -1)
            return Upload(deferred, limit, authorization), Upload(idempotent, limit, None)
        if handler.batch is not None and not self._has_decisions:  # one caller's would wait for all others'
            execution = Batched(handler, pool)
        elif handler.query:
            forwarding = self._forwarding if pool_of(operation, handler) is PoolName.QUERIES else None
            pools = pool, self._pools.shares
            execution = QueryExecution(handler, pools, self._settings, self._limits, authorization, forwarding)
        if self._has_inline_reads and handler.inline is not never:
            execution = Inline(handler, execution, self._settings.max_result_bytes)
        if handler.commit_step is CommitStep.READ_LATEST:
            execution = LatestVersionTurn(self._commit_queues, execution)
        elif handler.commit_step is CommitStep.COMMIT:
            execution = CommitTurn(self._commit_queues, execution)
            idempotent = CommitTurn(self._commit_queues, idempotent)
        return execution, idempotent


class Idempotent:
    """Run a request with a key once, in a thread; return the stored response to its repeats."""

    def __init__(self, threaded: Threaded, takes_upload: bool) -> None:
        self._threaded = threaded
        self._takes_upload = takes_upload

    async def run(self, exchange: Exchange, ctx: Context, request: Any) -> Any:
        """Return the response, or a `Replay`. Raises what `IdempotentRequest.run` raises."""
        idempotent, body = exchange.idempotent, exchange.body
        assert idempotent is not None
        assert body is not None
        upload = (body,) if self._takes_upload else ()

        def work(ctx: Context) -> Any:
            return self._threaded.call(ctx, request, *upload)

        idempotent.watch_client(wait_for_disconnect(exchange.receive, exchange.feed))
        return await idempotent.run(ctx, request, body, work, self._threaded.executor(exchange, ctx))
