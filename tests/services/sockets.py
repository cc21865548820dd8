"""HTTP written by hand on a socket: for requests that no client library would send."""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit


@dataclass(frozen=True)
class RawResponse:
    """A response; its status is 0 if the server closed the connection without one."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    def check_error(self) -> None:
        """Assert that it is an error in the one shape."""
        body = self.json()
        assert isinstance(body["error"], str) and type(body["code"]) is int, body
        assert body["instance"] == self.headers["x-request-id"], (body, self.headers)


def connect(url: str, timeout: float = 60) -> socket.socket:
    """Connect to the server."""
    parts = urlsplit(url)
    assert parts.hostname and parts.port
    return socket.create_connection((parts.hostname, parts.port), timeout=timeout)


def exchange(url: str, request: bytes | str, *, close_after: bool = False) -> RawResponse:
    """Send bytes and read one response; with `close_after` half-close the connection behind them."""
    raw = request.encode("latin-1") if isinstance(request, str) else request
    with connect(url) as connection:
        try:
            connection.sendall(raw)
            if close_after:
                connection.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # refused before it was all sent: there may be a response
        return read_response(connection)


def read_response(connection: socket.socket) -> RawResponse:
    """Read one response with a content-length, or all there is until the server closes."""
    data = b""
    try:
        while not _complete(data):
            part = connection.recv(1 << 16)
            if not part:
                break
            data += part
    except ConnectionResetError:
        pass
    if not data:
        return RawResponse(0, {}, b"")
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return RawResponse(int(first.split()[1]), headers, body)


def _complete(data: bytes) -> bool:
    head, end, body = data.partition(b"\r\n\r\n")
    if not end:
        return False
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return len(body) >= int(line.partition(b":")[2])
    return False
