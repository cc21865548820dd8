"""The ASGI application: one generic handler between the wire and the operations.

parse → run the operation (inline where it only reads a little of a fast catalog, else in a thread) → render.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from functools import partial
from typing import Any

import msgspec
from lance_namespace.errors import ErrorCode, UnsupportedOperationError

from tiltyard.api import health, metrics, oauth
from tiltyard.api.authentication import Entrance
from tiltyard.api.binding import Binder, Headers, context_entries, parse_query
from tiltyard.api.binding import Query as QueryString
from tiltyard.api.bodies.arrow_encoder import media_type
from tiltyard.api.bodies.arrow_responses import Download, TooLargeError, outgoing
from tiltyard.api.bodies.connection_reader import ARRIVED, INTAKE
from tiltyard.api.bodies.uploads import MemoryBody, StreamedBody, open_upload, read_body
from tiltyard.api.browser_security import check_single, is_own_page
from tiltyard.api.connection_limits import RECOGNIZE, Connections
from tiltyard.api.errors import HttpError, forget_frames, problem
from tiltyard.api.execution.batched import Group
from tiltyard.api.execution.commit_queue import Turns
from tiltyard.api.execution.loop_bridge import Arrivals
from tiltyard.api.execution.query import Deadline, Query, QueryStoppedError, earlier
from tiltyard.api.execution.thread_pools import Threads
from tiltyard.api.idempotency.keys import REPLAYED, Repeats
from tiltyard.api.idempotency.requests import Once, Replay
from tiltyard.api.lancedb import dialect
from tiltyard.api.request_limits import QUERIES, Limits
from tiltyard.api.request_log import Accounts
from tiltyard.api.responses import SEND_WHOLE, WATCH_CLIENT, Exchange, Send
from tiltyard.api.routing import Route, Router, Segments
from tiltyard.context import Context, Services
from tiltyard.model.operations import Later, Served
from tiltyard.model.principals import Principal
from tiltyard.model.spec import JSON, Shape
from tiltyard.runtime.failpoints import Point, reach

Receive = Callable[[], Awaitable[Any]]
Scope = dict[str, Any]

log = logging.getLogger("tiltyard.api")

LONGEST_REQUEST_ID = 128
INLINE_BODY = 16 << 10
"""Bytes of an Arrow body that is read on the event loop: to hand it to a thread would take longer."""
BESIDE = frozenset({*health.PAGES, oauth.PATH, metrics.PATH})
"""Paths that lead to no operation."""


class Api:
    """Serves every operation of the specification over ASGI; lives as long as the process."""

    def __init__(self, services: Services, connections: Connections | None = None) -> None:
        self._services = services
        self._connections = connections
        self._router = Router()
        self._binders: dict[str, Binder] = {}
        self._groups: dict[str, Group] = {}
        self._threads = Threads()
        self._arrivals = Arrivals()
        self._turns = Turns(services.storage.locks)
        self._entrance = Entrance(services, self._threads.identity)
        self._tokens = oauth.TokenEndpoint(self._entrance.authenticator, self._threads.identity)
        self._repeats = Repeats(services, self._threads.catalog)
        self._accounts = Accounts(services)
        self._limits = Limits(services.settings)
        self._inline = services.store.inline_reads

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One HTTP request."""
        headers: Headers = dict(scope["headers"])
        call = self._accounts.open(scope, _request_id(headers))
        extensions = scope.get("extensions", {})
        send_whole = extensions.get(SEND_WHOLE)
        exchange = Exchange(send, call, send_whole, dialect.speaks(scope["raw_path"], scope["query_string"], headers))
        exchange.watch = extensions.get(WATCH_CLIENT)
        try:
            await self._answer(scope, headers, receive, exchange)
        except Exception as error:  # the one place where every failure becomes an answer
            self._services.outage_log.report(error)
            if exchange.started:
                raise
            status, body, further = problem(error, exchange.request_id)
            forget_frames(error)
            call.code = body.code
            if exchange.remote:
                status = dialect.status(status, body.code, headers, late=exchange.is_late)
            await exchange.send(status, msgspec.json.encode(body), JSON, further)
        finally:
            call.end()

    async def _answer(self, scope: Scope, headers: Headers, receive: Receive, exchange: Exchange) -> None:
        path, method = scope["raw_path"], scope["method"]
        if path in BESIDE:
            await self._answer_beside(path, method, scope, headers, receive, exchange)
            return
        route, segments, query = self._route(scope, headers, exchange)
        call = exchange.call
        principal, body = self._known(scope, headers), None
        if principal is None:
            principal, body = await self._entrance.admit(route.operation, headers, receive)
        extensions = scope.get("extensions", {})
        extensions.get(RECOGNIZE, _recognized)()
        binder = self._binder(route)
        ctx = Context(self._services, exchange.request_id, context_entries(headers), principal=principal)
        call.ctx = ctx
        self._limits.admit(ctx, call.address)
        once = self._repeats.find(route.operation, scope, headers, principal, exchange.remote)
        arrived = extensions.get(ARRIVED)
        if route.operation.request_shape is Shape.ARROW:
            request = call.request = binder.bind(segments, query, headers, b"")
            ctx = dialect.limit_time(route.operation, ctx, request, exchange.deadline)
            ctx = await self._admitted(route, ctx, request, once)
            limit, give = self._services.settings.max_upload_bytes, extensions.get(INTAKE)
            upload = await open_upload(receive, limit, once is not None, give, arrived)
            result = await self._run_upload(route, ctx, request, upload, once, receive)
        else:
            if body is None:
                body = await read_body(receive, self._services.settings.max_json_bytes, arrived)
            self._limits.check_depth(body)
            rewrite = dialect.rewrite(route.operation, ctx, headers) if exchange.remote else None
            request = call.request = binder.bind(segments, query, headers, body, rewrite)
            if exchange.remote:
                dialect.amend(route.operation, ctx, request)
            self._limits.check_entries(route.operation.name, request)
            await self._turns.wait(route.operation.name, request, scope["client"])
            accept = headers.get(b"accept", b"")
            assert route.served is not None
            if self._inline and (quick := route.served.inline(ctx, request)) is not None:
                result = self._at_once(route.served, quick, request, accept)
            else:
                if route.operation.name in QUERIES:
                    ctx = await self._admitted(route, ctx, request, once)
                    await self._query(route, ctx, request, len(body), accept, receive, exchange)
                    return
                run = partial(self._run, route, ctx, request, body, once, receive)
                result = await self._turns.run(route.operation.name, request, scope["client"], run)
        await self._render(route, ctx, result, receive, exchange, once)

    def _route(self, scope: Scope, headers: Headers, exchange: Exchange) -> tuple[Route, Segments, QueryString]:
        """What serves a request, and how long it may take. Raises HttpError, UnsupportedOperationError."""
        query = parse_query(scope["query_string"])
        route, segments = self._router.find(scope["method"], scope["raw_path"], ("delimiter", ".") in query)
        if exchange.remote:
            route = self._router.named(dialect.INSTEAD.get(route.operation.name, route.operation.name))
        if route.served is None:
            raise UnsupportedOperationError(f"{route.operation.name} is not supported by this server.")
        exchange.call.routed(route, segments)
        if exchange.remote:
            exchange.deadline = dialect.deadline(route.operation, headers)
        return route, segments, query

    def _known(self, scope: Scope, headers: Headers) -> Principal | None:
        """Who asks, if that is known at once. Raises what `Entrance.known` raises, InvalidInputError."""
        if len(headers) < len(scope["headers"]):
            check_single(scope["headers"])
        return self._entrance.known(headers)

    async def _admitted(self, route: Route, ctx: Context, request: Any, once: Once | None) -> Context:
        """The context to run in, if the principal may do this: before the body is read, where that is a stream.

        A request with a key is checked once it is known to be no repeat: what it dropped, nobody has rights on.
        """
        assert route.served is not None
        if ctx.principal.administrator or once is not None:
            return ctx
        if self._inline:
            checked: Context = route.served.admit(ctx, request)
            return checked
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads.catalog, route.served.admit, ctx, request)

    async def _answer_beside(
        self, path: bytes, method: str, scope: Scope, headers: Headers, receive: Receive, exchange: Exchange
    ) -> None:
        """What is no operation: health, the OpenAPI document, tokens, metrics.

        Raises HttpError 405, and for pages in a browser what operations raise.
        """
        check_single(scope["headers"])
        self._entrance.check_browser(headers)
        if path == oauth.PATH:
            exchange.call.operation = oauth.OPERATION
            status, answer, further = await self._tokens.answer(method, headers, receive, exchange.request_id)
            await exchange.send(status, answer, JSON, further)
            return
        if method not in ("GET", "HEAD"):
            raise HttpError(405, ErrorCode.UNSUPPORTED, "This page is only read: use GET.", ((b"allow", b"GET, HEAD"),))
        if path == metrics.PATH:
            await self._measure(scope, headers, receive, exchange)
            return
        loop = asyncio.get_running_loop()
        status, answer = await loop.run_in_executor(self._threads.catalog, health.PAGES[path], self._services)
        await exchange.send(status, answer, JSON)

    def _binder(self, route: Route) -> Binder:
        name = route.operation.name
        if name not in self._binders:
            self._binders[name] = Binder(route.operation)
        return self._binders[name]

    def _at_once(self, served: Served, ctx: Context, request: Any, accept: bytes) -> Any:
        """What an operation answers on the event loop; Arrow as a Download, all of which is made."""
        result = served.function(served.admit(ctx, request), request)
        return outgoing(result, media_type(accept), self._services.settings.max_result_bytes)

    async def _run(
        self, route: Route, ctx: Context, request: Any, body: bytes, once: Once | None, receive: Receive
    ) -> Any:
        """The operation in a thread."""
        assert route.served is not None
        served, pool = route.served, self._threads.of(route.operation)
        if once is None and served.together is not None:
            return await self._group(route, served, pool).run(ctx, request)

        def work(ctx: Context) -> Any:
            result = served.function(served.admit(ctx, request), request)
            reach(Point.BEFORE_ANSWER)
            return result

        if once is None:
            return await asyncio.get_running_loop().run_in_executor(pool, work, ctx)
        once.watch(_gone(receive))
        return await once.run(ctx, request, body, work, pool)

    def _group(self, route: Route, served: Served, pool: Executor) -> Group:
        name = route.operation.name
        if name not in self._groups:
            self._groups[name] = Group(served, pool)
        return self._groups[name]

    async def _query(
        self,
        route: Route,
        ctx: Context,
        request: Any,
        size: int,
        accept: bytes,
        receive: Receive,
        exchange: Exchange,
    ) -> None:
        """The operation in a thread, asked by a body of `size` bytes, within the limits of queries."""
        settings = self._services.settings
        slot = self._limits.enter(ctx, exchange.call.address, size)
        try:
            deadline = earlier(Deadline.after(settings.query_timeout), exchange.deadline)
            pool = self._threads.of(route.operation)
            has_left = None if exchange.watch is None else exchange.watch()
            query = Query(pool, deadline, slot, settings.max_result_bytes, has_left)
            assert route.served is not None
            result = await query.run(route.served, ctx, request, media_type(accept))
            if isinstance(result, Download) and not result.complete:
                await self._stream(route, result, query, receive, exchange)
            else:
                await self._render(route, ctx, result, receive, exchange, None)
        finally:
            if slot is not None:
                slot.leave()

    async def _run_upload(
        self,
        route: Route,
        ctx: Context,
        request: Any,
        upload: MemoryBody | StreamedBody,
        once: Once | None,
        receive: Receive,
    ) -> Any:
        assert route.served is not None
        served, pool = route.served, self._threads.of(route.operation)
        begin = served.begin or _never_later
        loop = asyncio.get_running_loop()
        feeding = loop.create_task(upload.feed()) if isinstance(upload, StreamedBody) else None

        def work(ctx: Context) -> Any:
            if once is not None:
                ctx = served.admit(ctx, request)
            elif later := begin(ctx, request, upload):
                return later
            result = served.function(ctx, request, upload)
            reach(Point.BEFORE_ANSWER)
            return result

        try:
            if once is None:
                small = self._inline and upload.size is not None and upload.size <= INLINE_BODY
                result = begin(ctx, request, upload) if small else None
                if result is None:
                    result = await loop.run_in_executor(pool, work, ctx)
                return await self._came(result) if isinstance(result, Later) else result
            once.watch(_gone(receive, feeding))
            return await once.run(ctx, request, upload, work, pool)
        except Exception as error:
            if upload.failure in (None, error):
                raise
            raise upload.failure from error
        finally:
            if feeding is not None:
                feeding.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await feeding

    async def _came(self, later: Later) -> Any:
        """The response that another thread gives."""
        result = later.finish(await self._arrivals.of(later.future))
        reach(Point.BEFORE_ANSWER)
        return result

    async def _render(
        self, route: Route, ctx: Context, result: Any, receive: Receive, exchange: Exchange, once: Once | None
    ) -> None:
        if once is not None and isinstance(result, Replay):
            exchange.call.repeated = True
            await once.answering(exchange.begin(result.status), partial(once.repeated, result))
            await exchange.send(result.status, result.body, JSON, REPLAYED)
            return
        if isinstance(result, Download):
            await exchange.send(route.operation.status, result.first, result.media)
            return
        if exchange.remote:
            result = dialect.answer(route.operation, ctx, result)
        elif result is None:
            result = {}
        elif route.operation.response_shape in (Shape.STRING, Shape.MAP, Shape.INTEGER):
            result = _bare(result)
        body = msgspec.json.encode(result)
        if once is not None:
            status = route.operation.status
            await once.answering(exchange.begin(status), partial(once.settle, status, body))
        await exchange.send(route.operation.status, body, JSON)

    async def _stream(
        self, route: Route, download: Download, query: Query, receive: Receive, exchange: Exchange
    ) -> None:
        """Send an Arrow answer; the next chunk is made while the last one goes out."""
        loop = asyncio.get_running_loop()
        gone = loop.create_task(_gone(receive))
        try:
            await exchange.start(route.operation.status, download.media)
            chunk: bytes | None = download.first
            while chunk is not None and not gone.done():
                making = query.start(download.more)
                await query.sent(exchange.chunk(chunk))
                chunk = await query.wait(making)
            if chunk is None:
                await exchange.chunk(b"", last=True)
        except (QueryStoppedError, TooLargeError) as error:  # its head has been sent: all that is left is to break off
            log.warning("request %s: %s", exchange.request_id, error)
        finally:
            gone.cancel()
            query.end(download)

    async def _measure(self, scope: Scope, headers: Headers, receive: Receive, exchange: Exchange) -> None:
        """Metrics, for administrators and for who asks from this machine. Raises PermissionDeniedError."""
        loop = asyncio.get_running_loop()
        if not (metrics.asked_from_here(scope, headers) and is_own_page(headers)):
            principal, _ = await self._entrance.admit(metrics.OPERATION, headers, receive)
            ctx = Context(self._services, exchange.request_id, principal=principal)
            await loop.run_in_executor(self._threads.catalog, metrics.check_reader, ctx)
        state = metrics.State(self._services.store, self._loads)
        counts = self._accounts.metrics
        text = await loop.run_in_executor(self._threads.catalog, counts.text, counts.counted(), state)
        await exchange.send(200, text, metrics.MEDIA)

    def _loads(self) -> dict[str, float]:
        """What waits, runs, is kept or was lost in this process."""
        kept = {"bytes of rows in memory": self._services.storage.datasets.pages.size}
        running = {"queries running": self._limits.running}
        connected = self._connections.loads() if self._connections is not None else {}
        return {**self._threads.waiting(), **self._accounts.loads(), **running, **kept, **connected}

    def close(self) -> None:
        """Start nothing more, and write what waits."""
        self._threads.close()
        self._accounts.close()


async def _gone(receive: Receive, feeding: asyncio.Task[None] | None = None) -> None:
    """Return when the client has left; what still feeds a body has its turn first."""
    if feeding is not None:
        await asyncio.wait([feeding])
    while (await receive())["type"] != "http.disconnect":
        pass


def _recognized() -> None:
    """A connection whose caller was known before, or that nobody counts."""


def _never_later(ctx: Context, request: Any, upload: Any) -> None:
    """How an operation begins that has no way to begin apart from its function."""


def _bare(result: Any) -> Any:
    """The one value of a response whose wire shape has no object around it."""
    if isinstance(result, msgspec.Struct):
        return next(
            getattr(result, name) for name in ("plan", "analysis", "metadata", "count") if hasattr(result, name)
        )
    return result


def _request_id(headers: Headers) -> str:
    """The client's own id where it is fit for a log line, else a new one."""
    given = headers.get(b"x-request-id", b"")
    if 0 < len(given) <= LONGEST_REQUEST_ID and given.isascii() and (text := given.decode()).isprintable():
        return text
    return os.urandom(16).hex()
