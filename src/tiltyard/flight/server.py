"""The gRPC server of one process, on its event loop."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import grpc.aio

from tiltyard.flight.service import FlightService
from tiltyard.flight.siblings import Siblings

if TYPE_CHECKING:
    from tiltyard.api.app import Shared

MAX_CALLS = 256
"""Calls that one process answers at once, and those of one connection."""
MAX_MESSAGE_BYTES = 4 << 20
MAX_METADATA_BYTES = 64 << 10
GRACE_SECONDS = 1.0
HANDSHAKE_MS = 10_000

log = logging.getLogger("tiltyard.flight")


class FlightServer:
    """Serves Flight beside HTTP. Its methods run on the event loop."""

    def __init__(self, shared: Shared, host: str, port: int, *, shares_port: bool, siblings_folder: str = "") -> None:
        """`shares_port`: other processes of the server listen on it, and the kernel distributes connections.

        `siblings_folder` has sockets at which these processes reach one another.
        """
        settings = shared.services.settings
        self._siblings = Siblings(siblings_folder)
        self._service = FlightService(shared, self._siblings)
        self._server = grpc.aio.server(
            options=[
                ("grpc.so_reuseport", int(shares_port)),
                ("grpc.max_concurrent_streams", MAX_CALLS),
                ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
                ("grpc.max_send_message_length", -1),
                ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
                ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
            ],
            maximum_concurrent_rpcs=MAX_CALLS,
        )
        self._server.add_generic_rpc_handlers((self._service.handler(),))
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        if settings.tls_certificate:
            pair = Path(settings.tls_key).read_bytes(), Path(settings.tls_certificate).read_bytes()
            self._server.add_secure_port(address, grpc.ssl_server_credentials([pair]))
        else:
            self._server.add_insecure_port(address)
        if self._siblings.address is not None:
            self._server.add_insecure_port(self._siblings.address)

    async def start(self) -> None:
        """Answer calls from now on."""
        await self._server.start()

    async def stop(self) -> None:
        """Answer no new calls, and end those that run, with their queries."""
        self._service.queries.cancel_all()
        await self._server.stop(GRACE_SECONDS)
        await self._siblings.close()
