"""Serve the pages that are no operations: health, the OpenAPI document, OAuth tokens, metrics and events."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec
from lance_namespace.errors import ErrorCode, LanceNamespaceError

from tiltyard import __version__
from tiltyard.api import event_stream, metrics, oauth
from tiltyard.api.authentication import RequestAuthentication, check_single, is_own_page
from tiltyard.api.errors import HttpError
from tiltyard.context import Context, Services
from tiltyard.model.operations import bound_operations
from tiltyard.model.spec import JSON, Json, document, schemas, strict_schemas
from tiltyard.runtime.process import allocated_bytes

if TYPE_CHECKING:
    from tiltyard.api.binding import Headers
    from tiltyard.api.exchange import Exchange
    from tiltyard.api.execution.threaded import ThreadPools
    from tiltyard.api.limits.connections import Connections
    from tiltyard.api.limits.requests import Limits
    from tiltyard.api.request_log import RequestLog


log = logging.getLogger("tiltyard.api")

Page = Callable[[Services], tuple[int, bytes]]


def live(services: Services) -> tuple[int, bytes]:
    """Report that the process answers."""
    return 200, msgspec.json.encode({"status": "ok", "version": __version__})


def ready(services: Services) -> tuple[int, bytes]:
    """Report whether the database and the storage answer, by a call to each, and which mounts lately did not.

    A mount that does not answer leaves the server ready, for all that is not below it. The reason for a failure goes to
    the log; with authentication, the page has none, and names no mount.
    """
    checks: dict[str, str] = {}
    for name, check in (("database", services.store.check_ready), ("storage", services.storage.probe)):
        try:
            check()
            checks[name] = "ok"
        except LanceNamespaceError as error:
            checks[name] = str(error)
            if not services.outage_log.report(error):
                log.warning("not ready: %s", error)
    is_ready = all(outcome == "ok" for outcome in checks.values())
    outages = {f"mount {mount.path}": mount.outage for mount in services.mounts.all() if mount.outage is not None}
    status = "unavailable" if not is_ready else "degraded" if outages else "ok"
    body: dict[str, object] = {"status": status}
    if not services.settings.auth:
        body["checks"] = checks | outages
    return 200 if is_ready else 503, msgspec.json.encode(body)


def openapi_document(services: Services) -> tuple[int, bytes]:
    """Return the OpenAPI document."""
    return 200, openapi_json(services.settings.auth)


PAGES: Mapping[bytes, Page] = {b"/health/live": live, b"/health/ready": ready, b"/openapi.json": openapi_document}
PATHS = frozenset({*PAGES, oauth.PATH, metrics.PATH, event_stream.PATH})


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
        self._events = event_stream.EventStreams(services, authentication, pools)
        log.counts.read_loads = self._gauges
        log.counts.read_routes = services.route_counts.read
        log.counts.read_appends = services.append_counts.read
        if services.decisions is not None:
            log.counts.read_decisions = services.decisions.counts
            log.counts.read_decision_seconds = services.decisions.seconds

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
        if path == event_stream.PATH:
            await self._events.serve(scope, headers, exchange)
            return
        loop = asyncio.get_running_loop()
        status, body = await loop.run_in_executor(self._pools.catalog, PAGES[path], self._services)
        await exchange.send(status, body, JSON)

    async def _serve_metrics(self, scope: dict[str, Any], headers: Headers, exchange: Exchange) -> None:
        """Serve metrics to administrators, and to requests from this machine. Raises PermissionDeniedError."""
        loop = asyncio.get_running_loop()
        if not (metrics.is_local_request(scope, headers) and is_own_page(headers)):
            principal, _ = await self._authentication.authenticate(headers, exchange.receive)
            ctx = Context(self._services, exchange.request_id, principal=principal)
            await loop.run_in_executor(self._pools.catalog, metrics.check_reader, ctx)
        state = metrics.State(self._services.store, self._gauges, self._services.storage.datasets.shared_caches)
        encoded = self._log.counts.encoded()
        text = await loop.run_in_executor(self._pools.catalog, self._export, encoded, state)
        await exchange.send(200, text, metrics.MEDIA)

    def _export(self, encoded: bytes, state: metrics.State) -> bytes:
        """Return the metrics of all processes; `encoded` are the counts of this one."""
        return metrics.export(self._log.counts.read_processes(encoded), state)

    def _gauges(self) -> dict[str, float]:
        """Return how much waits, runs, is cached or was lost in this process, by name."""
        datasets = self._services.storage.datasets
        cached = {
            "bytes of rows in memory": datasets.column_cache.size,
            "bytes of Lance's pages in memory": datasets.session_bytes,
            "bytes of vectors in memory": datasets.vector_cache.size,
            "searches of vectors in memory": datasets.vector_cache.hits,
            "bytes of tables on disk": datasets.disk_cache.size,
            "reads of tables on disk": datasets.disk_cache.hits,
            "blocks of tables read from disk": datasets.disk_cache.ranges.counts[0],
            "blocks of tables read from object stores": datasets.disk_cache.ranges.counts[1],
        }
        allocated = {"blocks of Python's memory": float(sys.getallocatedblocks())}
        if (given_out := allocated_bytes()) is not None:
            allocated["bytes of memory that the allocator has given out"] = float(given_out)
        running = {
            "queries running": self._limits.running_queries,
            "bytes of queries running": self._services.query_memory.used,
            "SQL queries running": (self._services.sql_processes or self._services.sql_sessions).running,
        }
        if self._services.sql_processes is not None:
            running["bytes of SQL processes"] = self._services.sql_processes.used_bytes
        connected = self._connections.gauges() if self._connections is not None else {}
        outages = [mount.outage for mount in self._services.mounts.all() if mount.outage is not None]
        mounts = {"mounts without an answer": float(len(outages))}
        readers = self._events.gauges()
        own = {**self._pools.gauges(), **self._log.gauges(), **readers}
        return {**own, **running, **cached, **allocated, **connected, **mounts}


SCHEMES: Json = {
    "OAuth2": {"type": "oauth2", "flows": {"clientCredentials": {"tokenUrl": "/oauth/token", "scopes": {}}}},
    "BearerAuth": {"type": "http", "scheme": "bearer"},
    "ApiKeyAuth": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}
"""How clients authenticate, as the specification has it."""


def openapi_json(requires_auth: bool) -> bytes:
    """Return the OpenAPI 3.1 document; without `requires_auth`, clients may be anonymous."""
    security: list[Json] = [*({name: []} for name in SCHEMES), *([] if requires_auth else [{}])]
    return msgspec.json.encode({**_document(), "security": security})


@cache
def _document() -> Json:
    """Return the document without what an operator chooses."""
    facts = document()["operations"]
    paths: dict[str, Json] = {}
    for name, (operation, handler) in bound_operations().items():
        if handler is not None:
            paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(
                name, facts[name], handler.function
            )
    return {
        "openapi": "3.1.0",
        "info": {"title": "Tiltyard: Lance REST Namespace", "version": __version__},
        "paths": paths,
        "components": {"schemas": _schemas(), "securitySchemes": SCHEMES},
    }


def _schemas() -> dict[str, Json]:
    closed = {name: {"additionalProperties": False} for name in strict_schemas()}
    return {name: schema | closed.get(name, {}) for name, schema in schemas().items()}


def _operation(name: str, facts: Json, function: object) -> Json:
    description: Json = {
        "operationId": name,
        "tags": facts.get("tags", []),
        "summary": (function.__doc__ or name).strip().splitlines()[0],
        "parameters": list(facts["parameters"].values()),
        "responses": {
            status: {"description": "Success." if status.startswith("2") else "An error.", "content": content}
            for status, content in facts["responses"].items()
        },
    }
    if facts["request"]:
        description["requestBody"] = {"content": facts["request"]}
    return description
