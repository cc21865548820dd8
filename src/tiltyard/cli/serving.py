"""A server process, from settings to a served socket, and back to a clean stop."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
import socket
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import uvicorn
from lance_namespace.errors import LanceNamespaceError
from uvicorn.supervisors import Multiprocess

from tiltyard.api.app import Api
from tiltyard.api.metrics import shared_metrics
from tiltyard.api.protocol import Protocol
from tiltyard.api.rates import shared_rates
from tiltyard.audit import check_audit
from tiltyard.cli.memory import calm_collector, keep_large_buffers
from tiltyard.cli.options import Refuse
from tiltyard.cli.securing import greet, network, require_safe, scheme
from tiltyard.cli.spreading import shared_connections
from tiltyard.config import ConfigError, Settings
from tiltyard.context import Services
from tiltyard.rooms import open_rooms
from tiltyard.services import open_services
from tiltyard.storage import StorageError
from tiltyard.store import StoreVersionError
from tiltyard.worker import Drivers, Worker

DRAIN_SECONDS = 6
WORKER_SECONDS = 2.0
DRIVER_SECONDS = 5.0
"""How long drivers of jobs may take to hand them back."""
HANDED_DOWN = "TILTYARD_HANDED_DOWN"
"""How a parent gives its settings to the server processes it starts."""

log = logging.getLogger("tiltyard")


class Application:
    """The ASGI application of one process: the API, and a worker beside it for as long as it serves."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._api = Api(services)
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
            await self._live(receive, send)
        else:
            await send({"type": "websocket.close"})

    async def _live(self, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]) -> None:
        await receive()
        if self._services.settings.jobs:
            self._worker.start()
        if self._drivers:
            self._drivers.start()
        self._services.store.share_reads(asyncio.get_running_loop().call_soon)
        calm_collector()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        if self._drivers:
            self._drivers.stop(DRIVER_SECONDS)
        if self._services.settings.jobs:
            self._worker.stop(WORKER_SECONDS)
        self._api.close()
        self._services.finished.close()
        self._services.storage.close()
        self._services.store.close()
        await send({"type": "lifespan.shutdown.complete"})


def handed_down_application() -> Application:
    """The application of a process that a parent started."""
    settings = msgspec.json.decode(os.environ[HANDED_DOWN], type=Settings)
    set_up_logging(settings)
    _end_with_parent()
    keep_large_buffers()
    open_rooms()
    return Application(open_services(settings))


def _end_with_parent() -> None:
    """Stop as a signal would when the parent is gone: if it was killed, nobody else does, and the port stays taken."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def wait() -> None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="parent", daemon=True).start()


def set_up_logging(settings: Settings) -> None:
    """One line per event on standard error.

    psycopg's pool logs each try to connect; the store says in one sentence what came of them.
    """
    logging.getLogger("psycopg.pool").setLevel(logging.ERROR)
    logging.basicConfig(
        level=settings.log_level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )


def open_or_refuse(settings: Settings, refuse: Refuse) -> Services:
    """The services, or one sentence why not."""
    try:
        set_up_logging(settings)
        keep_large_buffers()
        open_rooms()
        return open_services(settings)
    except (StorageError, StoreVersionError, ConfigError, LanceNamespaceError, ValueError) as error:
        refuse(str(error))


def run_server(settings: Settings, refuse: Refuse) -> None:
    """Serve until a signal says to stop. Raises ConfigError for an audit that cannot be kept."""
    check_audit(settings)
    listener = _listen(settings, refuse)
    host, port = listener.getsockname()[:2]
    require_safe(settings, host, refuse)
    services = open_or_refuse(settings, refuse)
    greet(services, host)
    shown = f"[{host}]" if ":" in host else host
    several = settings.workers > 1
    if several:
        os.environ[HANDED_DOWN] = msgspec.json.encode(settings).decode()
        services.store.close()
    config = uvicorn.Config(
        "tiltyard.cli.serving:handed_down_application" if several else Application(services),
        factory=several,
        http=Protocol,
        loop="tiltyard.cli.spreading:SpreadingLoop" if several else "uvloop",
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        server_header=False,
        **network(settings),
        workers=settings.workers,
        timeout_graceful_shutdown=DRAIN_SECONDS,
        timeout_keep_alive=75,
    )
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    # Before anybody knows that there is a server to stop. uvicorn takes the signals over, and raises the one it got
    # again once it has drained: that ends the process as asked, with status 0.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: _leave())
    print(f"Tiltyard serves {settings.root} on {scheme(settings)}://{shown}:{port}", file=sys.stderr, flush=True)
    if several:
        with shared_metrics(), shared_rates(), shared_connections(settings.workers):
            Multiprocess(config, sockets=[listener]).run()
    else:
        uvicorn.Server(config).run(sockets=[listener])
    _leave()


def run_worker(settings: Settings, refuse: Refuse) -> None:
    """Run queued work until a signal says to stop."""
    services = open_or_refuse(settings, refuse)
    worker = Worker(services, max(1, settings.jobs))
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    drivers = spark_drivers(services)
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
    from tiltyard.pipeline.applications import check_spark
    from tiltyard.pipeline.java import SparkMissingError

    try:
        check_spark(services.settings.spark)
    except SparkMissingError as error:
        log.warning("%s Jobs of the pipeline are left to other workers.", error)
        return None
    return Drivers(services)


def _listen(settings: Settings, refuse: Refuse) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        refuse(f"Cannot listen on {settings.host}:{settings.port} ({reason}): choose another --port or --host.")
    listener.listen(2048)
    listener.set_inheritable(True)
    return listener


def _leave() -> None:
    """End the process now: a thread deep in a long Lance call would keep the interpreter from ending in time."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
