"""A load balancer that loses answers: it forwards a request, waits, cuts its connection to the server, and says so."""

from __future__ import annotations

import http.client
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

DROPPED_HEADERS = ("host", "content-length", "transfer-encoding", "connection", "date", "server")


@dataclass
class Loss:
    """Lose the next response to a path with `match`, while the file `held` holds the server at a failpoint.

    `status` is what the client is told; 0 cuts its connection, too.
    """

    match: str
    held: Path
    status: int

    @property
    def reached(self) -> Path:
        """The file that the server creates at the failpoint."""
        return self.held.with_name(f"{self.held.name}.reached")

    def arm(self) -> None:
        """From now on the server holds."""
        self.held.touch()


@dataclass
class LossyProxy:
    """Relays HTTP to `target`; `seen` has the path and request id of each request."""

    target: str
    seen: list[tuple[str, str]] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    cuts: list[str] = field(default_factory=list)
    """Parts of paths: of the next request to each the connection is cut, as by a server that dies."""

    def __post_init__(self) -> None:
        proxy = self

        class Handler(_Handler):
            owner = proxy

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def lose(self, match: str, held: Path, status: int = 502) -> None:
        """Lose one answer."""
        loss = Loss(match, held, status)
        loss.reached.unlink(missing_ok=True)
        self.losses.append(loss)

    def tries(self, match: str) -> list[str]:
        """Request ids of the requests whose path has `match`."""
        return [id_ for path, id_ in self.seen if match in path]

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(urlsplit(self.target).netloc, timeout=60)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner: LossyProxy

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def _relay(self) -> None:
        body = self._body()
        self.owner.seen.append((self.path, self.headers.get("x-request-id", "")))
        if (cut := next((part for part in self.owner.cuts if part in self.path), None)) is not None:
            self.owner.cuts.remove(cut)
            self.close_connection = True
            self.connection.shutdown(2)
            return
        headers = {name: value for name, value in self.headers.items() if name.lower() not in DROPPED_HEADERS}
        loss = next((loss for loss in self.owner.losses if loss.match in self.path), None)
        if loss is not None:
            self.owner.losses.remove(loss)
            loss.arm()
        upstream = self.owner.connect()
        wait_for(lambda: _connected(upstream))  # while a server starts again, requests queue up
        upstream.request(self.command, self.path, body, headers)
        if loss is not None:
            self._lose(loss, upstream)
            return
        response = upstream.getresponse()
        self._answer(response.status, response.read(), dict(response.getheaders()))
        upstream.close()

    def _lose(self, loss: Loss, upstream: http.client.HTTPConnection) -> None:
        """Cut, let the server go on, and tell the client what a load balancer would."""
        wait_for(loss.reached.exists)
        upstream.close()
        with suppress(OSError):  # a server that lives notices what was cut before it answers what came later
            again = self.owner.connect()
            again.request("GET", "/health/live")
            again.getresponse().read()
            again.close()
        loss.held.unlink(missing_ok=True)
        if loss.status:
            self._answer(loss.status, b"upstream went away", {"content-type": "text/plain"})
        else:
            self.close_connection = True
            self.connection.shutdown(2)

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in DROPPED_HEADERS:
                self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        with suppress(OSError):
            self.wfile.write(body)

    def _body(self) -> bytes:
        if self.headers.get("transfer-encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("content-length") or 0))
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    do_GET = do_POST = _relay  # noqa: N815 - the base class looks for these names


def _connected(connection: http.client.HTTPConnection) -> bool:
    try:
        connection.connect()
    except ConnectionRefusedError:
        return False
    return True


def wait_for(condition: Any, seconds: float = 60) -> None:
    """Until a condition holds. Raises TimeoutError."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError("it did not happen")
        time.sleep(0.005)
