"""A server process, from settings to a served socket, and back to a clean stop."""

from __future__ import annotations

import asyncio
import errno
import logging
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import uvicorn
from lance_namespace.errors import LanceNamespaceError

from tiltyard.api.app import Api
from tiltyard.api.connection_limits import CONNECTIONS, Connections
from tiltyard.api.metrics import shared_metrics
from tiltyard.api.rate_limits import shared_rates
from tiltyard.audit import check_audit
from tiltyard.bootstrap import open_services, register_operations
from tiltyard.config import ConfigError, Settings
from tiltyard.context import Services
from tiltyard.runtime.fatal import Refuse
from tiltyard.runtime.fatal import refuse as refuse_command
from tiltyard.server import child_process
from tiltyard.server.connection_spreading import shared_connections
from tiltyard.server.file_limits import connection_limit, raise_descriptor_limit
from tiltyard.server.http_protocol import Protocol
from tiltyard.server.memory import calm_collector, keep_large_buffers, release_when_idle
from tiltyard.server.startup_checks import greet, network, require_safe, scheme
from tiltyard.server.supervisor import NeverServedError, Supervisor
from tiltyard.storage import StorageError
from tiltyard.store import StoreVersionError
from tiltyard.worker import Drivers, Worker

DRAIN_SECONDS = 6
WORKER_SECONDS = 2.0
PORT_SECONDS = 15.0
"""How long a start waits for a port: longer than processes drain whose parent was killed."""
PORT_PAUSE_SECONDS = 0.1
BACKLOG = 2048
DRIVER_SECONDS = 5.0
"""How long drivers of jobs may take to hand them back."""

SPREADING_LOOP = "tiltyard.server.connection_spreading:SpreadingLoop"

log = logging.getLogger("tiltyard")


class Application:
    """The ASGI application of one process: the API, and a worker beside it for as long as it serves."""

    def __init__(self, services: Services, started: Callable[[], None] = lambda: None) -> None:
        """`started` is called once requests are answered."""
        self._services = services
        settings = services.settings
        self._started = started
        self._connections = Connections(settings, connection_limit(settings.max_connections))
        self._api = Api(services, self._connections)
        self._worker = Worker(services, services.settings.jobs)
        # Of several server processes none runs jobs: each would start a Spark of its own.
        self._drivers = spark_drivers(services) if services.settings.workers == 1 else None

    async def __call__(
        self, scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
    ) -> None:
        """Serve a request, or start and stop with the process."""
        if scope["type"] == "http":
            await self._api(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._live(scope, receive, send)
        else:
            await send({"type": "websocket.close"})

    async def _live(
        self, scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
    ) -> None:
        await receive()
        scope["state"][CONNECTIONS] = self._connections
        if self._services.settings.jobs:
            self._worker.start()
        if self._drivers:
            self._drivers.start()
        self._services.store.share_reads(asyncio.get_running_loop().call_soon)
        calm_collector()
        release_when_idle()
        await send({"type": "lifespan.startup.complete"})
        self._started()
        await receive()
        if self._drivers:
            self._drivers.stop(DRIVER_SECONDS)
        if self._services.settings.jobs:
            self._worker.stop(WORKER_SECONDS)
        self._api.close()
        self._services.finalized_log.close()
        self._services.storage.close()
        self._services.store.close()
        await send({"type": "lifespan.shutdown.complete"})


def set_up_logging(settings: Settings) -> None:
    """One line per event on standard error.

    psycopg's pool logs each try to connect; what came of them is logged once a minute (`tiltyard.runtime.outage_log`).
    """
    logging.basicConfig(
        level=settings.log_level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    for handler in logging.getLogger().handlers:
        handler.addFilter(_is_no_try_to_connect)


def _is_no_try_to_connect(record: logging.LogRecord) -> bool:
    return record.name != "psycopg.pool" or record.levelno >= logging.ERROR


def open_or_refuse(settings: Settings, refuse: Refuse) -> Services:
    """The services, or one sentence why not."""
    try:
        set_up_logging(settings)
        raise_descriptor_limit()
        keep_large_buffers()
        register_operations()
        return open_services(settings)
    except (StorageError, StoreVersionError, ConfigError, LanceNamespaceError, ValueError) as error:
        refuse(str(error))


def run_server(settings: Settings, refuse: Refuse) -> None:
    """Serve until a signal says to stop. Raises ConfigError for an audit that cannot be kept."""
    check_audit(settings)
    set_up_logging(settings)
    listener = _listen(settings, refuse)
    host, port = listener.getsockname()[:2]
    require_safe(settings, host, refuse)
    services = open_or_refuse(settings, refuse)
    greet(services, host)
    shown = f"[{host}]" if ":" in host else host
    # uvloop's own server gives nobody a say in how many connections are at their TLS handshake.
    loop = SPREADING_LOOP if settings.tls_certificate else "uvloop"
    server = None if settings.workers > 1 else _server(settings, Application(services), loop)
    # Before anybody knows that there is a server to stop. uvicorn takes the signals over, and raises the one it got
    # again once it has drained: that ends the process as asked, with status 0.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: _leave())
    print(f"Tiltyard serves {settings.root} on {scheme(settings)}://{shown}:{port}", file=sys.stderr, flush=True)
    if server is None:
        services.store.close()
        _supervise(settings, listener, refuse)
    else:
        with shared_connections(1) if settings.tls_certificate else nullcontext():
            server.run(sockets=[listener])
    _leave()


def _supervise(settings: Settings, listener: socket.socket, refuse: Refuse) -> None:
    """Serve by several processes. Refuses where none of them comes to serve."""
    spawn = multiprocessing.get_context("spawn")  # Lance does not survive a fork

    def start(child: Connection) -> BaseProcess:
        process = spawn.Process(target=child_process.run, args=(child, listener, settings))
        process.start()
        return process

    with shared_metrics(), shared_rates(), shared_connections(settings.workers):
        try:
            Supervisor(start, settings.workers, settings.worker_timeout).run()
        except NeverServedError as error:
            refuse(f"No server process could start: process {error}. The lines above say why.")


def serve_beside_others(settings: Settings, listener: socket.socket, started: Callable[[], None]) -> None:
    """Serve in one of several processes on a socket that they share, until a signal says to stop."""
    services = open_or_refuse(settings, refuse_command)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: _leave())
    server = _server(settings, Application(services, started), SPREADING_LOOP)
    server.run(sockets=[listener])
    _leave()


def _server(settings: Settings, application: Application, loop: str) -> uvicorn.Server:
    """The HTTP server of one process."""
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    config = uvicorn.Config(
        application,
        http=Protocol,
        loop=loop,
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        server_header=False,
        **network(settings),
        timeout_graceful_shutdown=DRAIN_SECONDS,
        timeout_keep_alive=settings.keep_alive,
    )
    return uvicorn.Server(config)


def run_worker(settings: Settings, refuse: Refuse) -> None:
    """Run queued work until a signal says to stop."""
    services = open_or_refuse(settings, refuse)
    worker = Worker(services, max(1, settings.jobs))
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    drivers = spark_drivers(services)
    release_when_idle()
    worker.start()
    if drivers:
        drivers.start()
    print(f"Tiltyard works on {settings.root}", file=sys.stderr, flush=True)
    stop.wait()
    if drivers:
        drivers.stop(DRIVER_SECONDS)
    worker.stop(WORKER_SECONDS)
    services.store.close()
    _leave()


def spark_drivers(services: Services) -> Drivers | None:
    """What runs jobs of the pipeline here; None where that is off, or Spark is missing: others may have it."""
    if services.settings.spark == "off":
        return None
    from tiltyard.pipeline.driver.spark_ui import check_spark
    from tiltyard.pipeline.java import SparkMissingError

    try:
        check_spark(services.settings.spark)
    except SparkMissingError as error:
        log.warning("%s Jobs of the pipeline are left to other workers.", error)
        return None
    return Drivers(services)


def _listen(settings: Settings, refuse: Refuse) -> socket.socket:
    """A listening socket. A port that is taken is waited for: processes of a server that was killed may still end."""
    deadline: float | None = None
    while True:
        try:
            return _bound(settings.host, settings.port)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
            if not taken or (deadline is not None and time.monotonic() > deadline):
                refuse(f"Cannot listen on {settings.host}:{settings.port} ({reason}): choose another --port or --host.")
        if deadline is None:
            deadline = time.monotonic() + PORT_SECONDS
            log.warning("%s:%d is taken: waiting for it for %g s", settings.host, settings.port, PORT_SECONDS)
        time.sleep(PORT_PAUSE_SECONDS)


def _bound(host: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def _leave() -> None:
    """End the process now: a thread deep in a long Lance call would keep the interpreter from ending in time."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
