"""A server that answers at once: what another server answered to the first request of each path.

What a client does with it in a second is the most that it can do with any server: `python -m bench.replay URL`.
"""

from __future__ import annotations

import asyncio
import http.client
import sys
from typing import Any
from urllib.parse import urlsplit

import uvloop

from bench.wire import TIMEOUT

_NOT_FORWARDED = frozenset({b"connection", b"content-length", b"host", b"transfer-encoding"})


class Responses:
    """The responses of a server, by method and path; asked for once."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port
        self._known: dict[bytes, bytes] = {}

    def of(self, line: bytes, headers: list[bytes], body: bytes) -> bytes:
        """Return the whole response to a request, whose first line is `line`."""
        if (known := self._known.get(line)) is None:
            known = self._known[line] = self._ask(line, headers, body)
        return known

    def _ask(self, line: bytes, headers: list[bytes], body: bytes) -> bytes:
        method, path, _ = line.decode().split(" ")
        pairs = (header.split(b": ", 1) for header in headers)
        sent = {name.decode(): value.decode() for name, value in pairs if name.lower() not in _NOT_FORWARDED}
        connection = http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT)
        try:
            connection.request(method, path, body or None, sent)
            response = connection.getresponse()
            content = response.read()
        finally:
            connection.close()
        fields = [(name, value) for name, value in response.getheaders() if name.lower().encode() not in _NOT_FORWARDED]
        head = "".join(f"{name}: {value}\r\n" for name, value in [*fields, ("content-length", f"{len(content)}")])
        return f"HTTP/1.1 {response.status} {response.reason}\r\n{head}\r\n".encode() + content


class Connection(asyncio.Protocol):
    """A client's connection, on which requests come one after the other."""

    def __init__(self, responses: Responses) -> None:
        self._responses = responses
        self._received = b""
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, rest = self._received.partition(b"\r\n\r\n")
        if not end:
            return
        line, *headers = head.split(b"\r\n")
        length = next((int(field[15:]) for field in headers if field.lower().startswith(b"content-length:")), 0)
        if len(rest) < length:
            return
        self._received = rest[length:]
        self._transport.write(self._responses.of(line, headers, rest[:length]))


async def serve(url: str) -> None:
    """Serve until the process is ended; say where on standard error."""
    responses = Responses(url)
    server = await asyncio.get_running_loop().create_server(lambda: Connection(responses), "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    print(f"Replays {url} on http://{host}:{port}", file=sys.stderr, flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1]))
