"""The ASGI application: one handler between the wire and the operations.

Route → authenticate → bind → execute (which authorizes first, where the operation runs) → render.
"""

from __future__ import annotations

import asyncio
import os
from functools import partial
from typing import Any

import msgspec
from lance_namespace.errors import UnsupportedOperationError

from tiltyard.api.authentication import RequestAuthentication
from tiltyard.api.binding import Headers, QueryString, Segments, context_entries, parse_query
from tiltyard.api.bodies.arrow_responses import Download
from tiltyard.api.bodies.connection_reader import COMPLETE_BODY
from tiltyard.api.bodies.uploads import read_body
from tiltyard.api.browser_security import check_single
from tiltyard.api.connection_limits import RECOGNIZE, Connections
from tiltyard.api.errors import clear_tracebacks, error_response
from tiltyard.api.exchange import Exchange, Receive, Send
from tiltyard.api.execution.choice import Executions
from tiltyard.api.execution.query import Stream
from tiltyard.api.execution.threaded import ThreadPools
from tiltyard.api.idempotency.requests import REPLAYED, IdempotentRequests, Replay
from tiltyard.api.lancedb import dialect
from tiltyard.api.pages import PATHS, Pages
from tiltyard.api.request_limits import Limits
from tiltyard.api.request_log import RequestLog
from tiltyard.api.routing import Route, Router
from tiltyard.context import Context, Services
from tiltyard.model.operations import bound_operations
from tiltyard.model.spec import JSON

Scope = dict[str, Any]

MAX_REQUEST_ID = 128
LARGE_BODY = 256 << 10
"""Bytes of a JSON body from which on it is bound in a thread: one of 16 MiB would take the event loop for seconds."""


class Api:
    """Serves every operation of the specification over ASGI; lives as long as the process."""

    def __init__(self, services: Services, connections: Connections | None = None) -> None:
        self._services = services
        self._pools = ThreadPools()
        self._limits = Limits(services.settings)
        executions = Executions(services, self._pools, self._limits)
        self._router = Router(
            Route(operation, handler, *(executions.choose(operation, handler) if handler else ()))
            for operation, handler in bound_operations().values()
        )
        self._authentication = RequestAuthentication(services, self._pools.identity)
        self._idempotent_requests = IdempotentRequests(services, self._pools.catalog)
        self._log = RequestLog(services)
        self._pages = Pages(services, self._authentication, self._pools, self._log, self._limits, connections)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request."""
        headers: Headers = dict(scope["headers"])
        log = self._log.start(scope, _request_id(headers))
        is_lancedb = dialect.is_lancedb_request(scope["raw_path"], scope["query_string"], headers)
        exchange = Exchange(scope, receive, send, log, is_lancedb)
        try:
            if scope["raw_path"] in PATHS:
                await self._pages.serve(scope, headers, exchange)
            else:
                await self._serve(scope, headers, exchange)
        except Exception as error:  # the one place where every failure becomes a response
            self._services.outage_log.report(error)
            if exchange.started:
                raise
            await self._send_error(error, headers, exchange)
        finally:
            log.end()

    async def _serve(self, scope: Scope, headers: Headers, exchange: Exchange) -> None:
        """Serve a request of an operation. Raises what the operation raises, and HttpError."""
        route, segments, query = self._route(scope, headers, exchange)
        principal = self._cached_principal(scope, headers)
        if principal is None:
            principal, exchange.body = await self._authentication.authenticate(
                headers, exchange.receive, takes_upload=route.takes_upload
            )
        exchange.extensions.get(RECOGNIZE, _ignore)()
        log, handler = exchange.log, route.handler
        ctx = log.ctx = Context(self._services, exchange.request_id, context_entries(headers), principal=principal)
        self._limits.check_rate(ctx, log.address)
        exchange.idempotent = self._idempotent_requests.open(
            route.operation, handler, scope, headers, principal, exchange.is_lancedb
        )
        if route.takes_upload:
            request = log.request = route.binder.bind(segments, query, headers, b"")
            if exchange.deadline is not None:
                ctx = dialect.apply_deadline(route.operation, ctx, request, exchange.deadline)
        else:
            request = log.request = await self._bind(route, segments, query, headers, ctx, exchange)
        exchange.accept = headers.get(b"accept", b"")
        execution = route.execution if exchange.idempotent is None else route.idempotent
        try:
            response = await execution.run(exchange, ctx, request)
            await self._render(route, response, exchange)
        finally:
            if exchange.slot is not None:
                exchange.slot.release()
