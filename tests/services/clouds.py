"""A server that responds to requests for credentials as Azure and Google document it, and records each.

No emulator in a registry knows directory signatures or access boundaries, so what the requests ask for is looked at.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from azure.core.pipeline.transport import RequestsTransport
from google.auth.transport.requests import Request

DELEGATION_KEY = """<?xml version="1.0" encoding="utf-8"?><UserDelegationKey><SignedOid>the-server</SignedOid>
<SignedTid>the-tenant</SignedTid><SignedStart>{start}</SignedStart><SignedExpiry>{expiry}</SignedExpiry>
<SignedService>b</SignedService><SignedVersion>2020-02-10</SignedVersion><Value>a2V5</Value></UserDelegationKey>"""


@dataclass(frozen=True)
class RecordedRequest:
    """A request as it was received."""

    method: str
    host: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: str

    @property
    def form(self) -> dict[str, str]:
        """The body, where it is a form."""
        return {name: values[0] for name, values in parse_qs(self.body).items()}


@dataclass
class Clouds:
    """The URL of the server and the requests it has received; `down` makes it refuse."""

    url: str
    requests: list[RecordedRequest] = field(default_factory=list)
    down: bool = False

    def answer(self, request: RecordedRequest) -> tuple[int, str, str]:
        """Return status, type and body of the response."""
        self.requests.append(request)
        if self.down:
            return 403, "application/json", '{"error": "access_denied", "error_description": "not today"}'
        if request.query.get("comp") == "userdelegationkey":
            times = [request.body.partition(f"<{one}>")[2].partition("<")[0] for one in ("Start", "Expiry")]
            return 200, "application/xml", DELEGATION_KEY.format(start=times[0], expiry=times[1])
        if request.path.endswith("/token"):
            narrowed = "options" in request.form
            token = {"access_token": "narrowed" if narrowed else "wide", "token_type": "Bearer"}
            return 200, "application/json", json.dumps(token if narrowed else {**token, "expires_in": 3599})
        if request.path.endswith(":generateAccessToken"):
            return 200, "application/json", '{"accessToken": "taken on", "expireTime": "2999-01-01T00:00:00Z"}'
        return 404, "application/xml", "<Error><Code>BlobNotFound</Code></Error>"

    def of_azure(self) -> RequestsTransport:
        """A transport of Azure's SDK that comes here."""
        here = self.url

        class Transport(RequestsTransport):
            def send(self, request: Any, **options: Any) -> Any:
                request.headers["x-asked-host"] = urlsplit(request.url).netloc
                request.url = f"{here}/{request.url.partition('://')[2].partition('/')[2]}"
                return super().send(request, **options)

        return Transport()

    def of_google(self) -> Any:
        """A transport of Google's library that comes here."""
        real = Request()

        def send(url: str, method: str = "GET", body: Any = None, headers: Any = None, **options: Any) -> Any:
            parts = urlsplit(url)
            return real(f"{self.url}{parts.path}", method, body, {**headers, "x-asked-host": parts.netloc}, **options)

        return send


@contextmanager
def clouds() -> Iterator[Clouds]:
    """Run the server."""

    class Handler(BaseHTTPRequestHandler):
        def _any(self) -> None:
            parts = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("content-length") or 0)).decode(errors="replace")
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = RecordedRequest(self.command, headers.get("x-asked-host", ""), parts.path, query, headers, body)
            status, kind, content = running.answer(request)
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content.encode())

        do_GET = do_POST = do_PUT = do_HEAD = _any  # noqa: N815  # the names that http.server wants

        def log_message(self, *arguments: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    running = Clouds(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield running
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
