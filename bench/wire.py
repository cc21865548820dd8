"""Requests as bytes, made once and sent often, and single calls for preparing and checking."""

from __future__ import annotations

import http.client
import io
import json
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from bench.load import Address

JSON = "application/json"
ARROW = "application/vnd.apache.arrow.stream"
TIMEOUT = 600.0


def request(method: str, path: str, body: bytes = b"", media: str = JSON) -> bytes:
    """One HTTP/1.1 request."""
    head = f"{method} {path} HTTP/1.1\r\nHost: bench\r\nAccept: */*\r\n"
    if method == "POST":
        head += f"Content-Type: {media}\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


def post(path: str, body: Any = None) -> bytes:
    """A POST with a JSON body, `{}` unless another is given."""
    return request("POST", path, json.dumps(body or {}).encode())


def with_key(text: bytes, key: str) -> bytes:
    """A request that shows an API key."""
    return text.replace(b"\r\n", f"\r\nx-api-key: {key}\r\n".encode(), 1)


def of_table(name: str, action: str) -> str:
    """The path of an operation on a table."""
    return f"/v1/table/{quote(name, safe='')}/{action}"


def stream(table: pa.Table) -> bytes:
    """A table as an Arrow IPC stream."""
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def call(address: Address, method: str, path: str, body: bytes = b"", media: str = JSON) -> bytes:
    """One request on a connection of its own. Raises RuntimeError unless it succeeds."""
    connection = http.client.HTTPConnection(address.host, address.port, timeout=TIMEOUT)
    try:
        connection.request(method, path, body if method == "POST" else None, {"Content-Type": media})
        response = connection.getresponse()
        answer = response.read()
    finally:
        connection.close()
    if not 200 <= response.status < 300:
        raise RuntimeError(f"{method} {path}: {response.status} {answer[:500].decode(errors='replace')}")
    return answer


def call_json(address: Address, path: str, body: Any = None) -> Any:
    """A POST with a JSON body, its answer decoded. Raises what `call` raises."""
    return json.loads(call(address, "POST", path, json.dumps(body or {}).encode()) or b"{}")


def upload(address: Address, path: str, file: Path) -> float:
    """Send a file as the body of a POST; the seconds until its answer. Raises RuntimeError unless it succeeds."""
    connection = http.client.HTTPConnection(address.host, address.port, timeout=TIMEOUT)
    connection.putrequest("POST", path)
    connection.putheader("Content-Type", ARROW)
    connection.putheader("Content-Length", str(file.stat().st_size))
    started_at = time.perf_counter()
    connection.endheaders()
    with file.open("rb") as source:
        connection.sock.sendfile(source)
    response = connection.getresponse()
    answer = response.read()
    seconds = time.perf_counter() - started_at
    connection.close()
    if not 200 <= response.status < 300:
        raise RuntimeError(f"POST {path}: {response.status} {answer[:500].decode(errors='replace')}")
    return seconds


@dataclass(frozen=True, slots=True)
class Arrival:
    """When an answer came: seconds to its first byte and to its last, and how many bytes of body."""

    first: float
    last: float
    size: int


def download(address: Address, path: str, body: Any) -> Arrival:
    """Read an answer and throw it away. Raises RuntimeError unless it is a success."""
    with socket.create_connection((address.host, address.port), timeout=TIMEOUT) as connection:
        connection.sendall(post(path, body))
        started_at = time.perf_counter()
        response = http.client.HTTPResponse(connection)
        response.begin()
        first_piece = response.read1(1 << 16)
        first = time.perf_counter() - started_at
        if not 200 <= response.status < 300:
            raise RuntimeError(f"POST {path}: {response.status} {first_piece[:500].decode(errors='replace')}")
        size, buffer = len(first_piece), bytearray(1 << 20)
        while count := response.readinto(buffer):
            size += count
        return Arrival(first, time.perf_counter() - started_at, size)
