"""A proxy in front of a server that records each request by the name of its operation."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

import httpx

from tiltyard.model.spec import operations

HOP_BY_HOP = {"connection", "content-encoding", "content-length", "host", "keep-alive", "transfer-encoding"}
"""Headers of one connection, or of a body as it was before httpx unpacked it."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request as it came, and the status that it got."""

    operation: str
    target: str
    headers: dict[str, str]
    body: bytes
    status: int


def operation_of(method: str, path: str) -> str:
    """The operation at this raw path; empty if there is none."""
    for name, facts in operations().items():
        pattern = re.sub(r"\\{\w+\\}", "[^/]+", re.escape(facts.path))
        if facts.method == method and re.fullmatch(pattern, path.rstrip("/")):
            return name
    return ""


class Recorder:
    """Relays whole requests to a server; `url` is where to reach it instead. `drain` gives the calls since the last."""

    def __init__(self, target: str) -> None:
        self._calls: list[Call] = []
        self._lock = threading.Lock()
        self._client = httpx.Client(base_url=target, timeout=60)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def drain(self) -> list[Call]:
        with self._lock:
            calls, self._calls = self._calls, []
        return calls

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _relay(self, method: str, target: str, headers: dict[str, str], body: bytes) -> httpx.Response:
        passed = {name: value for name, value in headers.items() if name.lower() not in HOP_BY_HOP}
        response = self._client.request(method, target, headers=passed, content=body)
        call = Call(operation_of(method, target.partition("?")[0]), target, passed, body, response.status_code)
        with self._lock:
            self._calls.append(call)
        return response

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        relay = self._relay

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def relay(self) -> None:
                response = relay(self.command, self.path, dict(self.headers), self._body())
                self.send_response(response.status_code)
                for name, value in response.headers.items():
                    if name not in HOP_BY_HOP and name not in ("date", "server"):
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(response.content)))
                self.end_headers()
                self.wfile.write(response.content)

            do_GET = do_POST = relay  # noqa: N815  # http.server's names

            def _body(self) -> bytes:
                if "chunked" not in self.headers.get("Transfer-Encoding", ""):
                    return self.rfile.read(int(self.headers.get("Content-Length", 0)))
                body = b""
                while size := int(self.rfile.readline().partition(b";")[0], 16):
                    body += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
                return body

            def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002  # the name it has there
                """Log nothing: `drain` returns the requests."""

        return Handler
