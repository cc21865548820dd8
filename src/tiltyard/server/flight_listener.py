"""Start Flight's server beside that of HTTP, which does not wait for the import of gRPC."""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import LanceNamespaceError

if TYPE_CHECKING:
    from tiltyard.api.app import Shared
    from tiltyard.server.flight_address import FlightAddress

log = logging.getLogger("tiltyard")


class FlightListener:
    """Flight's server of one process. Its methods run on the event loop."""

    def __init__(self, address: FlightAddress, shared: Shared) -> None:
        """Start it in the background. A port that cannot be had is logged; it was free when the server started."""
        self._address = address
        self._shared = shared
        self._server: Any = None
        self._starting = asyncio.get_running_loop().create_task(self._start())

    async def _start(self) -> None:
        # gRPC would look after forks that Python makes, of which there are none here, and warn of them.
        os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
        await asyncio.get_running_loop().run_in_executor(None, _import)
        from tiltyard.flight.server import FlightServer

        address = self._address
        try:
            server = FlightServer(
                self._shared,
                address.host,
                address.port,
                shares_port=address.is_shared,
                siblings_folder=address.siblings_folder,
            )
            await server.start()
        except RuntimeError:
            log.exception("SQL is not served: cannot listen on %s:%d", address.host, address.port)
            return
        self._server = server
        log.info("SQL is served by Arrow Flight on %s:%d", address.host, address.port)
        services = self._shared.services
        if services.settings.sql_prestart and services.sql_processes is not None:
            with suppress(LanceNamespaceError):  # the server stops already, or its queries have all places
                await asyncio.get_running_loop().run_in_executor(None, services.sql_processes.prestart)

    async def stop(self) -> None:
        """Stop it, and the queries that run."""
        if self._server is None:
            self._starting.cancel()  # the import of gRPC goes on in its thread, which the end of the process ends
        else:
            await self._server.stop()


def _import() -> None:
    import tiltyard.flight.server  # noqa: F401
