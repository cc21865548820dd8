"""The ASGI application: one handler between the wire and the operations.

Route → authenticate → bind → execute (which authorizes first, where the operation runs) → render.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
from lance_namespace.errors import ServiceUnavailableError, UnsupportedOperationError
from msgspec import structs

from tiltyard.api.authentication import RequestAuthentication, check_single
from tiltyard.api.binding import Headers, QueryString, Segments, context_entries, parse_query, read_freshness
from tiltyard.api.bodies.uploads import Receive, Send
from tiltyard.api.errors import clear_tracebacks, error_response
from tiltyard.api.exchange import Exchange
from tiltyard.api.execution import mounted
from tiltyard.api.execution.choice import Executions
from tiltyard.api.execution.forwarding import FORWARDED, Forwarding
from tiltyard.api.execution.query import DOWNLOADS, Stream
from tiltyard.api.execution.threaded import ThreadPools
from tiltyard.api.idempotency.requests import REPLAYED, IdempotentRequests, Replay
from tiltyard.api.lancedb import dialect
from tiltyard.api.lancedb.databases import DATABASE_HEADER, Databases, qualify, relative_response
from tiltyard.api.limits.connections import RECOGNIZE, Connections
from tiltyard.api.limits.requests import Limits
from tiltyard.api.metrics_history import MetricsHistory
from tiltyard.api.pages import PATHS, Pages
from tiltyard.api.request_log import RequestLog, request_id
from tiltyard.api.request_tracing import traced
from tiltyard.api.routing import Route, Router
from tiltyard.context import Context, Services
from tiltyard.model.operations import bound_operations
from tiltyard.model.principals import Principal
from tiltyard.model.spec import JSON
from tiltyard.runtime.tracing import is_tracked
from tiltyard.storage.errors import is_panic

Scope = dict[str, Any]
AsgiApplication = Callable[[Any, Receive, Send], Awaitable[None]]

CONSOLE_PATH = b"/console"

STOPPING = "The server stopped before this request had ended: it may be done or not, look before it is sent again."


@dataclass(frozen=True, slots=True)
class Shared:
    """What all protocols of a process share: limits hold for their requests together, and one log has them all."""

    services: Services
    pools: ThreadPools
    limits: Limits
    log: RequestLog
    authentication: RequestAuthentication
    databases: Databases
    history: MetricsHistory


class Api:
    """Serves every operation of the specification over ASGI; lives as long as the process."""

    def __init__(
        self,
        services: Services,
        connections: Connections | None = None,
        run_lifespan: AsgiApplication | None = None,
        make_console: Callable[[Shared], AsgiApplication] | None = None,
    ) -> None:
        """`run_lifespan` starts and stops what lives beside it, `make_console` makes what browsers get."""
        self._services = services
        self._run_lifespan = run_lifespan
        self._is_traced = is_tracked()
        self._pools = ThreadPools(services.settings)
        self._limits = Limits(services.settings)
        servers = services.table_servers
        self._forwarding = None if servers is None else Forwarding(services, servers)
        executions = Executions(services, self._pools, self._limits, self._forwarding)
        self._router = Router(
            Route(operation, handler, *(executions.choose(operation, handler) if handler else ()))
            for operation, handler in bound_operations().values()
        )
        self._authentication = RequestAuthentication(services, self._pools.identity)
        self._idempotent_requests = IdempotentRequests(services, self._pools.catalog)
        self._databases = Databases(services, self._pools.catalog)
        self._log = RequestLog(services)
        self._pages = Pages(services, self._authentication, self._pools, self._log, self._limits, connections)
        self._history = MetricsHistory(self._log.counts, self._pools.catalog)
        self._console = make_console(self.shared) if make_console is not None else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request, or start and stop with the process."""
        if scope["type"] != "http":
            await self._serve_other(scope, receive, send)
            return
        if self._console is not None and _asks_for_console(scope):
            await self._console(scope, receive, send)
            return
        headers: Headers = dict(scope["headers"])
        log = self._log.start(scope, request_id(headers))
        exchange = Exchange(scope, headers, receive, send, log)
        try:
            if self._is_traced:
                with traced(log, headers):
                    await self._respond(scope, headers, exchange)
            else:
                await self._respond(scope, headers, exchange)
        finally:
            log.end()

    async def _serve_other(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" and self._run_lifespan is not None:
            await self._run_lifespan(scope, receive, send)
        else:
            await send({"type": "websocket.close"})

    async def _respond(self, scope: Scope, headers: Headers, exchange: Exchange) -> None:
        """Serve a request, and send the error that it ends with. Raises one that comes behind a response's head."""
        try:
            if scope["raw_path"] in PATHS:
                await self._pages.serve(scope, headers, exchange)
            else:
                await self._serve(scope, headers, exchange)
        except asyncio.CancelledError:  # the server stops, and has no more time for those that still run
            if not exchange.started:
                await self._send_error(ServiceUnavailableError(STOPPING), headers, exchange)
        except BaseException as error:  # the one place where every failure becomes a response
            if not isinstance(error, Exception) and not is_panic(error):
                raise
            self._services.outage_log.report(error)
            if exchange.started:
                raise
            await self._send_error(error, headers, exchange)

    async def _serve(self, scope: Scope, headers: Headers, exchange: Exchange) -> None:
        """Serve a request of an operation. Raises what the operation raises, and HttpError."""
        route, segments, query = self._route(scope, headers, exchange)
        if FORWARDED in headers and self._forwarding is not None:
            self._forwarding.accept(exchange)
        principal = self._cached_principal(scope, headers)
        if principal is None:
            principal, exchange.body = await self._authentication.authenticate(
                headers, exchange.receive, takes_upload=route.takes_upload
            )
        ctx = self._open_context(route, scope, headers, principal, exchange)
        if DATABASE_HEADER in headers:
            ctx = await self._enter_database(ctx, headers, exchange)
        if exchange.body is None and not route.takes_upload:
            exchange.body = await exchange.read_body(self._services.settings.max_json_bytes)
        request = self._bind(route, ctx, segments, query, headers, exchange)
        named = (request.id or ()) if route.names_object else ()
        _check_quotas(route, ctx, named)
        if exchange.deadline is not None and route.takes_upload:
            ctx = dialect.apply_deadline(route.operation, ctx, request, exchange.deadline)
        execution = route.execution if exchange.idempotent is None else route.idempotent
        assert execution is not None
        if named and (found := self._services.mounts.find(named)) is not None:
            is_idempotent = exchange.idempotent is not None
            ctx, execution = await mounted.prepare(route, execution, ctx, request, *found, is_idempotent=is_idempotent)
        counted: Sequence[str] | None = None  # of one that fails, whether or not the caller may see what it names
        try:
            response = await execution.run(exchange, ctx, request)
            counted = _place_of(route, named)
            await self._render(route, response, exchange)
        finally:
            if exchange.log.forwarded_for is None:
                self._services.quotas.count_request(principal.name, counted)
            if route.names_namespace and route.handler is not None and route.handler.changes:
                self._databases.forget()
            if exchange.slot is not None:
                exchange.slot.release()

    def _route(self, scope: Scope, headers: Headers, exchange: Exchange) -> tuple[Route, Segments, QueryString]:
        """Return the route of a request, and set its deadline. Raises HttpError, UnsupportedOperationError."""
        query = parse_query(scope["query_string"])
        route, segments = self._router.match(scope["method"], scope["raw_path"], ("delimiter", ".") in query)
        if exchange.is_lancedb:
            name = route.operation.name
            route = self._router.named(dialect.SUBSTITUTES.get(name, name))
        handler = route.handler
        if handler is None:
            raise UnsupportedOperationError(f"{route.operation.name} is not supported by this server.")
        exchange.log.set_route(route.operation, handler, segments)
        if exchange.is_lancedb:
            exchange.deadline = dialect.read_deadline(route.operation, handler, headers)
        return route, segments, query

    def _cached_principal(self, scope: Scope, headers: Headers) -> Principal | None:
        """Return the principal, if that takes no I/O. Raises what `cached_principal` raises, InvalidInputError."""
        if len(headers) < len(scope["headers"]):
            check_single(scope["headers"])
        return self._authentication.cached_principal(headers)

    def _open_context(
        self, route: Route, scope: Scope, headers: Headers, principal: Principal, exchange: Exchange
    ) -> Context:
        """Return the context of an authenticated request, within its caller's rate limit, and find its idempotency key.

        Raises HttpError 429, InvalidInputError for a key that is too long, and for headers of freshness.
        """
        exchange.extensions.get(RECOGNIZE, _ignore)()
        log, handler = exchange.log, route.handler
        assert handler is not None
        ctx = log.ctx = Context(self._services, exchange.request_id, context_entries(headers), principal=principal)
        if log.forwarded_for is None:
            self._limits.check_rate(ctx, log.address)
        if handler.changes:
            exchange.idempotent = self._idempotent_requests.open(
                route.operation, handler, scope, headers, principal, exchange.is_lancedb
            )
        if (freshness := read_freshness(headers)) is not None:
            ctx = log.ctx = structs.replace(ctx, freshness=freshness)
        return ctx

    async def _enter_database(self, ctx: Context, headers: Headers, exchange: Exchange) -> Context:
        """Return the context within the database that the request names. Raises as `Databases.find` does."""
        exchange.database = await self._databases.find(ctx, headers)
        if exchange.database:
            ctx = exchange.log.ctx = structs.replace(ctx, database=exchange.database)
        return ctx

    def _bind(
        self,
        route: Route,
        ctx: Context,
        segments: Segments,
        query: QueryString,
        headers: Headers,
        exchange: Exchange,
    ) -> Any:
        """Bind a request, without the body of an upload, and check its limits. Raises InvalidInputError.

        On the event loop, large bodies too: msgspec holds the GIL while it decodes, so a thread would free nothing, and
        several would hold their numbers at once, before `Limits.acquire_slot` refuses a query.
        """
        operation, handler, limits = route.operation, route.handler, self._limits
        assert handler is not None
        body: Any = b"" if route.takes_upload else exchange.body
        limits.check_depth(body)
        has_other_body = exchange.is_lancedb and not route.takes_upload
        rewrite = dialect.rewrite(operation, ctx, headers) if has_other_body else None
        request = exchange.log.request = route.binder.bind(segments, query, headers, body, rewrite)
        if ctx.database:
            qualify(operation, request, ctx.database)
        if exchange.is_lancedb:
            dialect.adjust(operation, ctx, request)
        limits.check_entries(handler.entries, request)
        return request

    async def _render(self, route: Route, response: Any, exchange: Exchange) -> None:
        """Send a response in the shape of its operation. Raises ServiceUnavailableError if the audit fails."""
        status, idempotent = route.operation.status, exchange.idempotent
        if isinstance(response, DOWNLOADS):
            await exchange.send(response.status, response.first, response.media, response.headers)
            return
        if isinstance(response, Stream):
            await response.send(exchange)
            return
        if idempotent is not None and isinstance(response, Replay):
            exchange.log.is_replay = True
            begin, settle = exchange.begin(response.status), partial(idempotent.settle_replay, response)
            await idempotent.begin_response(begin, settle)
            await exchange.send(response.status, response.body, JSON, REPLAYED)
            return
        if exchange.database:
            relative_response(response, exchange.database)
        if exchange.is_lancedb:
            status = dialect.success_status(route.operation, response)
            response = dialect.convert_response(route.operation, response)
        elif response is None:
            response = {}
        elif route.has_bare_response:
            response = _unwrap(response)
        body = msgspec.json.encode(response)
        if idempotent is not None:
            await idempotent.begin_response(exchange.begin(status), partial(idempotent.settle, status, body))
        await exchange.send(status, body, JSON)

    async def _send_error(self, error: BaseException, headers: Headers, exchange: Exchange) -> None:
        """Send the error of a request that has no response yet."""
        status, body, error_headers = error_response(error, exchange.request_id)
        clear_tracebacks(error)
        exchange.log.code = body.code
        if exchange.is_lancedb:
            status = dialect.error_status(status, body.code, headers, late=exchange.is_late)
        await exchange.send(status, msgspec.json.encode(body), JSON, error_headers)

    @property
    def shared(self) -> Shared:
        """What other protocols of the process share with this one."""
        return Shared(
            services=self._services,
            pools=self._pools,
            limits=self._limits,
            log=self._log,
            authentication=self._authentication,
            databases=self._databases,
            history=self._history,
        )

    def start(self) -> None:
        """Note the figures of the server from now on."""
        self._history.start()
        self._services.quotas.start()

    def close(self) -> None:
        """Start nothing more, and write the audit records that wait."""
        self._history.stop()
        self._pools.close()
        self._idempotent_requests.close()
        self._log.close()


def _asks_for_console(scope: Scope) -> bool:
    """Whether a request is one of the console's: by its path, or a browser's that has the server's address alone."""
    raw_path: bytes = scope["raw_path"]
    if raw_path == b"/":
        return scope["method"] in ("GET", "HEAD") and any(
            name == b"accept" and b"text/html" in value for name, value in scope["headers"]
        )
    return raw_path.startswith(CONSOLE_PATH) and raw_path[len(CONSOLE_PATH) : len(CONSOLE_PATH) + 1] in (b"", b"/")


def _place_of(route: Route, named: Sequence[str]) -> Sequence[str] | None:
    """Return the path of the namespace that a request is about, or that has what it is about; None for neither."""
    if route.names_namespace:
        return named
    return named[:-1] if route.names_object else None


def _check_quotas(route: Route, ctx: Context, named: Sequence[str]) -> None:
    """Raise if all requests of the caller are used up, or, where its rights are not checked first, of what it names."""
    if route.handler is not None and not route.handler.unlimited:
        ctx.services.quotas.check_requests(ctx.principal.name, named if ctx.is_unchecked else ())


def _ignore() -> None:
    """Do nothing: the connection's principal was known before, or its connections are not counted."""


def _unwrap(response: Any) -> Any:
    """Return the one value of a response whose wire shape has no object around it."""
    if isinstance(response, msgspec.Struct):
        return next(
            getattr(response, name) for name in ("plan", "analysis", "metadata", "count") if hasattr(response, name)
        )
    return response
