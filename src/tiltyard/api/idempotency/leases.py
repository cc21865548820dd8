"""Renew the leases of the requests with a key that run in this process, so that no other process runs them."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Coroutine, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Any

from lance_namespace.errors import LanceNamespaceError

from tiltyard.context import Services

log = logging.getLogger("tiltyard.api")


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
        self._is_renewing = False
        self._expected = 0

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

    @contextmanager
    def renewing(self) -> Iterator[None]:
        """Renew leases from before a request has one: it may wait for a thread. For the event loop."""
        self._expected += 1
        if not self._is_renewing:
            self._is_renewing = True
            self.spawn(self._renew_until_idle())
        try:
            yield
        finally:
            self._expected -= 1

    async def _renew_until_idle(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                await asyncio.sleep(self.lease_ms / 3000)
                if not self._requests and not self._expected:
                    return
                try:
                    await loop.run_in_executor(self.pool, self._renew, list(self._requests))
                except LanceNamespaceError as error:
                    log.warning("cannot extend the leases of requests: %s", error)
        finally:
            self._is_renewing = False

    def _renew(self, ids: Sequence[str]) -> None:
        """Renew the leases of these requests alone: a claim without one was lost on its way from the catalog."""
        self.store.renew_request_leases(self.owner, self.lease_ms, ids)
