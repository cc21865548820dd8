"""A plain TCP balancer: `python -m bench.balancer HOST:PORT …` says its own address, and passes bytes on.

Connections go to the servers in turn; one that does not accept a connection is passed over for a second.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from itertools import count

import uvloop

PASSED_OVER_SECONDS = 1.0


class Balancer:
    """The servers, and which of them did not accept a connection a moment ago."""

    def __init__(self, servers: Sequence[tuple[str, int]]) -> None:
        self._servers = servers
        self._numbers = count()
        self._usable_at = dict.fromkeys(servers, 0.0)

    def accept(self) -> asyncio.Protocol:
        """Return the protocol of a client's connection."""
        return _Client(self)

    async def connect(self, client: _End) -> _End | None:
        """Connect to the next server that accepts; None if none does."""
        loop = asyncio.get_running_loop()
        for _ in self._servers:
            server = self._servers[next(self._numbers) % len(self._servers)]
            if loop.time() < self._usable_at[server]:
                continue
            try:
                _, end = await loop.create_connection(lambda: _End(client), *server)
            except OSError:
                self._usable_at[server] = loop.time() + PASSED_OVER_SECONDS
            else:
                return end
        return None


class _End(asyncio.Protocol):
    """One end of a connection that is passed on; what arrives is written to the other."""

    def __init__(self, other: _End | None = None) -> None:
        self.other = other
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # TCP gives this kind

    def data_received(self, data: bytes) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()


class _Client(_End):
    """The end of a client; what it sends before a server has accepted is kept until then."""

    def __init__(self, balancer: Balancer) -> None:
        super().__init__()
        self._balancer = balancer
        self._kept: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._connecting = asyncio.get_running_loop().create_task(self._connect())

    def data_received(self, data: bytes) -> None:
        if self.other is None:
            self._kept.append(data)
        else:
            super().data_received(data)

    async def _connect(self) -> None:
        assert self.transport is not None
        self.other = await self._balancer.connect(self)
        if self.other is None:
            self.transport.close()
        elif self.transport.is_closing():
            self.connection_lost(None)
        else:
            super().data_received(b"".join(self._kept))


async def _serve(servers: Sequence[tuple[str, int]]) -> None:
    listening = await asyncio.get_running_loop().create_server(Balancer(servers).accept, "127.0.0.1", 0)
    print(f"Balancer on http://127.0.0.1:{listening.sockets[0].getsockname()[1]}", flush=True)
    await listening.serve_forever()


def main() -> None:
    """Serve until this process is ended."""
    addresses = (text.rpartition(":") for text in sys.argv[1:])
    uvloop.run(_serve([(host, int(port)) for host, _, port in addresses]))


if __name__ == "__main__":
    main()
