"""A catalog over HTTP that answers each request by a function, and keeps what it was sent."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class StubRequest:
    """A request, its header names in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body; None without one."""
        return json.loads(self.body) if self.body else None


Answer = tuple[int, object]
"""A status, and content: bytes as they are, else written as JSON; None for no content."""


@dataclass
class StubCatalog:
    """Where it is, and what it was sent."""

    answer: Callable[[StubRequest], Answer]
    url: str = ""
    requests: list[StubRequest] = field(default_factory=list)


@contextmanager
def stub_catalog(answer: Callable[[StubRequest], Answer]) -> Iterator[StubCatalog]:
    """Run one on a free port of the loopback."""
    stub = StubCatalog(answer)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def respond(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = StubRequest(self.command, self.path, headers, body)
            stub.requests.append(request)
            status, content = stub.answer(request)
            data = content if isinstance(content, bytes) else b"" if content is None else json.dumps(content).encode()
            with suppress(OSError):  # the client has given up
                self.send_response(status)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        do_GET = do_POST = do_PATCH = do_DELETE = do_HEAD = respond  # noqa: N815  # the names that http.server calls

        def log_message(self, *_: Any) -> None:
            """Write nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        server.block_on_close = False
        stub.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        try:
            yield stub
        finally:
            server.shutdown()
