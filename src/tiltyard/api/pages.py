"""Serve the pages that are no operations: health, the OpenAPI document, OAuth tokens and metrics."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import ErrorCode

from tiltyard.api import health, metrics, oauth
from tiltyard.api.browser_security import check_single, is_own_page
from tiltyard.api.errors import HttpError
from tiltyard.context import Context
from tiltyard.model.spec import JSON

if TYPE_CHECKING:
    from tiltyard.api.authentication import RequestAuthentication
    from tiltyard.api.binding import Headers
    from tiltyard.api.connection_limits import Connections
    from tiltyard.api.exchange import Exchange
    from tiltyard.api.execution.threaded import ThreadPools
    from tiltyard.api.request_limits import Limits
    from tiltyard.api.request_log import RequestLog
    from tiltyard.context import Services

PATHS = frozenset({*health.PAGES, oauth.PATH, metrics.PATH})


class Pages:
    """The pages of one process."""

    def __init__(
        self,
        services: Services,
        authentication: RequestAuthentication,
        pools: ThreadPools,
        log: RequestLog,
        limits: Limits,
        connections: Connections | None,
    ) -> None:
        self._services = services
        self._authentication = authentication
        self._tokens = oauth.TokenEndpoint(authentication.authenticator, pools.identity)
        self._pools = pools
        self._log = log
        self._limits = limits
        self._connections = connections

    async def serve(self, scope: dict[str, Any], headers: Headers, exchange: Exchange) -> None:
        """Serve one page. Raises HttpError 405, and for foreign pages in a browser what operations raise."""
        check_single(scope["headers"])
        self._authentication.check_browser(headers)
        path, method = scope["raw_path"], scope["method"]
        if path == oauth.PATH:
            exchange.log.operation = oauth.OPERATION
            response = await self._tokens.issue(method, headers, exchange.receive, exchange.request_id)
            await exchange.send(response.status, response.body, JSON, response.headers)
            return
        if method not in ("GET", "HEAD"):
            raise HttpError(405, ErrorCode.UNSUPPORTED, "This page is only read: use GET.", ((b"allow", b"GET, HEAD"),))
        if path == metrics.PATH:
            await self._serve_metrics(scope, headers, exchange)
            return
        loop = asyncio.get_running_loop()
        status, body = await loop.run_in_executor(self._pools.catalog, health.PAGES[path], self._services)
        await exchange.send(status, body, JSON)

    async def _serve_metrics(self, scope: dict[str, Any], headers: Headers, exchange: Exchange) -> None:
        """Serve metrics to administrators, and to requests from this machine. Raises PermissionDeniedError."""
        loop = asyncio.get_running_loop()
        if not (metrics.is_local_request(scope, headers) and is_own_page(headers)):
            principal, _ = await self._authentication.authenticate(headers, exchange.receive)
            ctx = Context(self._services, exchange.request_id, principal=principal)
            await loop.run_in_executor(self._pools.catalog, metrics.check_reader, ctx)
        state = metrics.State(self._services.store, self._gauges)
        counts = self._log.metrics
        text = await loop.run_in_executor(self._pools.catalog, counts.export, counts.encoded(), state)
        await exchange.send(200, text, metrics.MEDIA)

    def _gauges(self) -> dict[str, float]:
        """Return how much waits, runs, is cached or was lost in this process, by name."""
        cached = {"bytes of rows in memory": self._services.storage.datasets.column_cache.size}
        running = {"queries running": self._limits.running_queries}
        connected = self._connections.gauges() if self._connections is not None else {}
        return {**self._pools.gauges(), **self._log.gauges(), **running, **cached, **connected}
