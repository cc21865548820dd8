"""Start Flight's server beside that of HTTP, which does not wait for the import of gRPC."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import LanceNamespaceError

from tiltyard.server.connection_balancing import LimitedServer
from tiltyard.server.flight_address import BACKLOG, sockets_folder

if TYPE_CHECKING:
    from tiltyard.api.app import Shared
    from tiltyard.api.limits.connections import Connections
    from tiltyard.config import Settings
    from tiltyard.runtime.owned_folders import OwnedFolder
    from tiltyard.server.flight_address import FlightAddress

log = logging.getLogger("tiltyard")


class FlightListener:
    """Flight's server of one process. Its methods run on the event loop."""

    def __init__(self, address: FlightAddress, shared: Shared, connections: Connections) -> None:
        """Start it in the background; what fails is logged. The port is the server's since that began to start."""
        self._address = address
        self._shared = shared
        self._connections = connections
        self._server: Any = None
        self._listener: LimitedServer | None = None
        self._folder: OwnedFolder | None = None
        self._starting = asyncio.get_running_loop().create_task(self._start())

    async def _start(self) -> None:
        # gRPC would look after forks that Python makes, of which there are none here, and warn of them.
        os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
        await asyncio.get_running_loop().run_in_executor(None, _import)
        from tiltyard.flight.server import FlightServer

        address, settings = self._address, self._shared.services.settings
        try:
            context, listener = _tls_context(settings), _listen(address)
            folder = address.siblings_folder or self._own_folder()
            server = FlightServer(self._shared, self._connections, folder)
            await server.start()
        except (OSError, RuntimeError):
            log.exception("SQL is not served: cannot listen on %s:%d", address.host, address.port)
            return
        self._server = server
        loop = asyncio.get_running_loop()
        self._listener = LimitedServer(loop, server.connections.open, listener, context)
        log.info("SQL is served by Arrow Flight on %s:%d", address.host, address.port)
        services = self._shared.services
        if settings.sql_prestart and services.sql_processes is not None:
            with suppress(LanceNamespaceError):  # the server stops already, or its queries have all places
                await asyncio.get_running_loop().run_in_executor(None, services.sql_processes.prestart)

    def _own_folder(self) -> str:
        self._folder = sockets_folder()
        return str(self._folder.path)

    async def stop(self) -> None:
        """Stop it, and the queries that run."""
        if self._server is None or self._listener is None:
            self._starting.cancel()  # the import of gRPC goes on in its thread, which the end of the process ends
        else:
            self._listener.close()
            await self._listener.wait_closed()
            await self._server.stop()
        if self._folder is not None:
            self._folder.remove()


def _listen(address: FlightAddress) -> socket.socket:
    """Return a listening socket; where processes share it, each has its own, and the kernel distributes connections.

    Raises OSError.
    """
    if address.held is not None:
        return address.held
    listener = socket.socket(socket.AF_INET6 if ":" in address.host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if address.is_shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((address.host, address.port))
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def _tls_context(settings: Settings) -> ssl.SSLContext | None:
    """Return what connections are encrypted by, with the certificate of HTTP; None without one."""
    if not settings.tls_certificate:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(settings.tls_certificate, settings.tls_key)
    context.set_alpn_protocols(["h2"])
    return context


def _import() -> None:
    import tiltyard.flight.server  # noqa: F401
