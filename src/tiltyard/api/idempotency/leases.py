"""Renew the leases of the requests with a key that run in this process, so that no other process runs them."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Coroutine
from concurrent.futures import Executor
from typing import Any

from tiltyard.context import Services
from tiltyard.runtime.lease import Lease


class LeasedRequest:
    """A request that holds a lease in the catalog."""

    has_client_left = False


class Leases:
    """The leases of one process; `pool` runs the catalog's writes."""

    def __init__(self, services: Services, pool: Executor) -> None:
        self.store = services.store
        self.pool = pool
        self.owner = uuid.uuid4().hex
        self.lease_ms = int(services.settings.repeat_lease * 1000)
        self.retention_ms = services.settings.repeat_memory * 1000
        self._requests: dict[str, LeasedRequest] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._report = services.outage_log.report
        self._lease: Lease | None = None
        """All of them as one, renewed in one statement."""

    def attended(self) -> list[str]:
        """Return the ids of requests that run here and whose clients are still there: none of them is retried yet."""
        return [id_ for id_, request in list(self._requests.items()) if not request.has_client_left]

    def add(self, id_: str, request: LeasedRequest) -> None:
        """Renew the lease of a request from now on."""
        self._requests[id_] = request

    def remove(self, id_: str, request: LeasedRequest) -> None:
        """Renew a lease no longer, unless a repeat of the request holds it by now."""
        if self._requests.get(id_) is request:
            del self._requests[id_]

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine in the background of a response, on the event loop."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def keep(self) -> None:
        """Renew leases from now on: a request may have to wait for a thread before it has one. For the event loop."""
        if self._lease is None:
            self._lease = Lease("requests", self._renew, self.lease_ms, report=self._report)

    def close(self) -> None:
        """Renew no lease any more."""
        if self._lease is not None:
            self._lease.close()

    def _renew(self) -> None:
        """Renew the leases of these requests alone: a claim without one was lost on its way from the catalog."""
        if ids := list(self._requests):
            self.store.renew_request_leases(self.owner, self.lease_ms, ids)
