"""A proxy in front of an object store that counts requests, and delays each by a fixed time.

A request is known by its method, by the kind of file that its path names, and by who sent it: the access key in its
signature. The store is one that does not verify signatures, as moto does not.
"""

from __future__ import annotations

import http.client
import re
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self
from urllib.parse import parse_qs, urlsplit

KINDS = {
    "staged manifest": r"/_versions/.+\.manifest[-.].+$",
    "manifest": r"/_versions/.+\.manifest$",
    "versions": r"/_versions/?$",
    "transaction": r"/_transactions/",
    "data": r"/data/",
    "deletions": r"/_deletions/",
    "index": r"/_indices/",
    "reference": r"/_refs/",
}
"""Kinds of paths by patterns; a list is of the kind of its prefix."""
_DROPPED = {"host", "connection", "date", "server", "transfer-encoding", "content-length"}
_ACCESS_KEY = re.compile(r"Credential=([^/]+)/")


@dataclass(frozen=True, slots=True)
class Request:
    """One request: LIST is a GET of a listing; times are those of `time.perf_counter`."""

    method: str
    kind: str
    access_key: str
    started_at: float
    ended_at: float


def sequential_round_trips(requests: list[Request]) -> int:
    """Return the most requests of which each began after the one before it had ended: the longest chain."""
    count, free_at = 0, 0.0
    for request in sorted(requests, key=lambda request: request.ended_at):
        if request.started_at >= free_at:
            count, free_at = count + 1, request.ended_at
    return count


class S3Proxy:
    """Relays to an object store at `target`; `url` is where to reach it instead, `delay` the seconds of a request."""

    def __init__(self, target: str, delay: float = 0.0) -> None:
        self.delay = delay
        self._target = urlsplit(target).netloc
        self._requests: list[Request] = []
        self._under_way = 0
        self._changed = threading.Condition()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def drain(self, access_key: str | None = None) -> list[Request]:
        """Wait until no request is under way; return those since the last call, of all keys or of one."""
        with self._changed:
            self._changed.wait_for(lambda: not self._under_way, 60)
            requests, self._requests = self._requests, []
        return [request for request in requests if access_key in (None, request.access_key)]

    def begin(self) -> float:
        """Count a request that has begun; return when."""
        with self._changed:
            self._under_way += 1
        return time.perf_counter()

    def end(self, method: str, path: str, authorization: str, started_at: float) -> None:
        """Record a request that has ended."""
        key = _ACCESS_KEY.search(authorization)
        kind, is_list = _kind_of(method, path)
        request = Request("LIST" if is_list else method, kind, key[1] if key else "", started_at, time.perf_counter())
        with self._changed:
            self._under_way -= 1
            self._requests.append(request)
            self._changed.notify_all()

    def connect(self) -> http.client.HTTPConnection:
        """Connect to the store."""
        return http.client.HTTPConnection(self._target, timeout=60)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def _kind_of(method: str, path: str) -> tuple[str, bool]:
    """Return the kind of a path, and whether it is that of a list."""
    parts = urlsplit(path)
    prefix = parse_qs(parts.query).get("prefix", [""])[0]
    is_list = method == "GET" and "list-type" in parts.query
    target = f"/{prefix}" if is_list else parts.path
    return next((kind for kind, pattern in KINDS.items() if re.search(pattern, target)), "other"), is_list


def _handler(proxy: S3Proxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """One client's connection, and one of its own to the store."""

        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1

        def relay(self) -> None:
            started_at = proxy.begin()
            try:
                time.sleep(proxy.delay)
                self._relay()
            finally:
                proxy.end(self.command, self.path, self.headers.get("authorization", ""), started_at)

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = relay  # noqa: N815  # http.server's names

        def _relay(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            headers = {name: value for name, value in self.headers.items() if name.lower() not in _DROPPED}
            headers["host"] = self.headers["host"]
            self._store = getattr(self, "_store", None) or proxy.connect()
            self._store.request(self.command, self.path, body, headers)
            response = self._store.getresponse()
            content = response.read()
            self.send_response_only(response.status)
            for name, value in response.getheaders():
                if name.lower() not in _DROPPED:
                    self.send_header(name, value)
            length = response.getheader("content-length", "0") if self.command == "HEAD" else str(len(content))
            self.send_header("content-length", length)
            self.end_headers()
            self.wfile.write(content)
            self.wfile.flush()

        def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002  # the name it has there
            """Log nothing: `drain` returns the requests."""

    return Handler
