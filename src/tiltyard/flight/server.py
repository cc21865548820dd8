"""The gRPC server of one process, on its event loop: behind the connections that the process accepts for it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import grpc.aio

from tiltyard.flight.connections import FlightConnections
from tiltyard.flight.frames import MAX_BLOCK_BYTES
from tiltyard.flight.service import FlightService
from tiltyard.flight.siblings import Siblings
from tiltyard.sql.statements.text_checks import MAX_PARAMETER_BYTES

if TYPE_CHECKING:
    from tiltyard.api.app import Shared
    from tiltyard.api.limits.connections import Connections
    from tiltyard.config import Settings

MAX_STREAMS = 100
"""Calls of one connection at once."""
BYTES_OF_CHARACTER = 4
"""Bytes of UTF-8 that a character of a query takes at most."""
NO_COMPRESSION = 1
"""The set of algorithms that has none but that which leaves messages as they are."""
GRACE_SECONDS = 1.0

log = logging.getLogger("tiltyard.flight")


class FlightServer:
    """Serves Flight beside HTTP. Its methods run on the event loop."""

    def __init__(self, shared: Shared, connections: Connections, siblings_folder: str) -> None:
        """`connections` are those of all ports; `siblings_folder` has sockets at which processes reach one another.

        Raises OSError for a folder that can have none.
        """
        settings = shared.services.settings
        self._siblings = Siblings(siblings_folder)
        self.connections = FlightConnections(connections, self._siblings.own_path)
        self._service = FlightService(shared, self._siblings, self.connections)
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_concurrent_streams", MAX_STREAMS),
                ("grpc.max_receive_message_length", max_message_bytes(settings)),
                ("grpc.max_send_message_length", -1),
                ("grpc.absolute_max_metadata_size", MAX_BLOCK_BYTES),
                ("grpc.compression_enabled_algorithms_bitset", NO_COMPRESSION),
                ("grpc.per_message_decompression", 0),  # a message would be decompressed before its size is checked
                ("grpc.max_connection_idle_ms", settings.keep_alive * 1000),
                ("grpc.http2.bdp_probe", 0),  # which lets a stream send megabytes that nobody has asked for
            ],
        )
        self._server.add_generic_rpc_handlers((self._service.methods(),))
        for address in (self._siblings.own_address, self._siblings.address):
            self._server.add_insecure_port(address)

    async def start(self) -> None:
        """Answer calls from now on."""
        await self._server.start()

    async def stop(self) -> None:
        """Answer no new calls, and end those that run, with their queries."""
        self._service.queries.cancel_all()
        await self._server.stop(GRACE_SECONDS)
        self.connections.close()
        await self._siblings.close()


def max_message_bytes(settings: Settings) -> int:
    """Return the bytes that a message can need: a query, with parameters bound to it, and others that replace them."""
    return BYTES_OF_CHARACTER * settings.sql_max_length + 2 * MAX_PARAMETER_BYTES + MAX_BLOCK_BYTES
