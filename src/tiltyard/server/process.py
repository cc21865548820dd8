"""One server process: from settings to open services, the ASGI application, and the HTTP server that runs it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NoReturn
from urllib.parse import unquote

import uvicorn

from tiltyard.api.app import Api
from tiltyard.api.limits.connections import CONNECTIONS, Connections
from tiltyard.bootstrap import STARTUP_ERRORS, open_services
from tiltyard.config import Settings
from tiltyard.context import Services, do_nothing
from tiltyard.runtime.child_process import remove_socket_folders
from tiltyard.runtime.machinery import close_machinery
from tiltyard.runtime.process import describe, refuse
from tiltyard.runtime.tracing import flush_spans
from tiltyard.server.connection_balancing import connection_limit, raise_descriptor_limit
from tiltyard.server.flight_address import FlightAddress
from tiltyard.server.flight_listener import FlightListener
from tiltyard.server.http_protocol import HttpProtocol
from tiltyard.server.log_setup import set_up_logging, set_up_tracing
from tiltyard.server.memory import bound_vectors, give_memory_back, keep_large_buffers, tune_garbage_collector
from tiltyard.server.query_process import start_query_process
from tiltyard.server.startup_checks import uvicorn_network_options
from tiltyard.sql.processes import QueryProcesses
from tiltyard.worker import DriverPool, ProcessRecorder, Worker

if TYPE_CHECKING:
    from tiltyard.api.app import Shared
    from tiltyard.api.bodies.uploads import Receive, Send
    from tiltyard.console.app import Console

DRAIN_SECONDS = 6
WORKER_SECONDS = 2.0
"""How long workers may take to stop."""
DRIVER_SECONDS = 5.0
"""How long drivers of jobs may take to release their leases."""
RECORD_SECONDS = 1.0
"""How long it may take to say that this process ends."""

BALANCING_LOOP = "tiltyard.server.connection_balancing:BalancingLoop"

log = logging.getLogger("tiltyard")


class ServedApi:
    """The API of one process, which is its ASGI application, and a worker beside it for as long as it serves."""

    def __init__(
        self, services: Services, on_started: Callable[[], None] = lambda: None, flight: FlightAddress | None = None
    ) -> None:
        """Make the API; `on_started` is called once it answers requests, `flight` is where it serves SQL."""
        self._services = services
        settings = services.settings
        self._on_started = on_started
        self._connections = Connections(settings, connection_limit(settings.max_connections))
        make_console = ConsoleMount if settings.console else None
        self.api = Api(services, self._connections, self._run_lifespan, make_console)
        self._flight_address = flight
        self._flight: FlightListener | None = None
        # Of several server processes none runs jobs: each would start a Spark of its own.
        self._work = BackgroundWork(services, "server", settings.jobs, has_drivers=settings.workers == 1)

    async def _run_lifespan(self, scope: Any, receive: Receive, send: Send) -> None:
        await receive()
        scope["state"][CONNECTIONS] = self._connections
        self._work.start()
        self._services.storage.availability.start()
        self._services.store.share_reads(asyncio.get_running_loop().call_soon)
        tune_garbage_collector()
        give_memory_back(self._services.storage.datasets.vector_cache)
        await send({"type": "lifespan.startup.complete"})
        self.api.start()
        self._on_started()
        if self._flight_address is not None:
            self._flight = FlightListener(self._flight_address, self.api.shared, self._connections)
        await receive()
        if self._flight is not None:
            await self._flight.stop()
        self._work.stop()
        self.api.close()
        self._services.close()
        close_machinery()
        await send({"type": "lifespan.shutdown.complete"})


class BackgroundWork:
    """What a process does besides requests: queued transactions, jobs of the pipeline, the record that it is alive."""

    def __init__(
        self, services: Services, kind: Literal["server", "worker"], threads: int, *, has_drivers: bool
    ) -> None:
        """`kind` is what the catalog calls the process; without `threads` it runs no transactions."""
        self._worker = Worker(services, threads)
        self._runs_transactions = threads > 0
        self._drivers = job_drivers(services) if has_drivers else None
        self._record = ProcessRecorder(services, kind, self._worker, self._drivers)

    def start(self) -> None:
        """Start the threads."""
        if self._runs_transactions:
            self._worker.start()
        if self._drivers:
            self._drivers.start()
        self._record.start()

    def stop(self) -> None:
        """Stop them, within seconds: what still runs then is queued again."""
        if self._drivers:
            self._drivers.stop(DRIVER_SECONDS)
        if self._runs_transactions:
            self._worker.stop(WORKER_SECONDS)
        self._record.stop(RECORD_SECONDS)


def open_services_or_refuse(settings: Settings) -> Services:
    """Open the services of the process; end it with one sentence for the operator where `open_services` fails."""
    try:
        set_up_logging(settings)
        set_up_tracing(settings)
        raise_descriptor_limit()
        keep_large_buffers()
        services = open_services(settings)
        return replace(
            services,
            sql_processes=QueryProcesses(
                settings, partial(start_query_process, settings), services.quotas.check_memory
            ),
        )
    except STARTUP_ERRORS as error:
        refuse(describe(error))


def http_server(settings: Settings, api: Api, loop: str) -> uvicorn.Server:
    """Return the HTTP server of one process, on an event loop of this name."""
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    config = uvicorn.Config(
        api,
        http=HttpProtocol,
        loop=loop,
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        server_header=False,
        **uvicorn_network_options(settings),
        timeout_graceful_shutdown=DRAIN_SECONDS,
    )
    return uvicorn.Server(config)


def serve_shared_socket(
    settings: Settings, listener: socket.socket, flight: FlightAddress | None, on_started: Callable[[], None]
) -> None:
    """Serve in one of several processes on the socket that they share, until a signal stops it."""
    services = open_services_or_refuse(bound_vectors(settings))
    exit_on_signals()
    server = http_server(settings, ServedApi(services, on_started, flight).api, BALANCING_LOOP)
    server.run(sockets=[listener])
    exit_now()


def job_drivers(services: Services) -> DriverPool | None:
    """Return the drivers of pipeline jobs; None where they are off, or Spark is missing: another worker may have it."""
    if services.settings.spark == "off":
        return None
    from tiltyard.pipeline.java import SparkMissingError, check_spark

    try:
        check_spark(services.settings.spark)
    except SparkMissingError as error:
        log.warning("%s This process runs no jobs of the pipeline.", error)
        return None
    return DriverPool(services)


def exit_on_signals(on_exit: Callable[[], None] = do_nothing) -> None:
    """Let SIGTERM and SIGINT end the process with status 0, after `on_exit`.

    uvicorn takes the signals over, and raises the one it got again once it has drained.
    """

    def end(*_: object) -> None:
        on_exit()
        exit_now()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)


def exit_now(status: int = 0) -> NoReturn:
    """End the process now: a thread deep in a long Lance call would keep the interpreter from ending in time."""
    flush_spans()
    remove_socket_folders()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


class ConsoleMount:
    """Serves the requests of the console; the first one makes it."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._console: asyncio.Future[Console] | None = None

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if self._console is None:
            self._console = asyncio.get_running_loop().run_in_executor(None, self._make)
        try:
            console = await asyncio.shield(self._console)
        except Exception:
            self._console = None  # the next request tries again
            raise
        await console({**scope, "path": unquote(scope["raw_path"].decode())}, receive, send)

    def _make(self) -> Console:
        from tiltyard.console.app import Console

        return Console(self._shared)
