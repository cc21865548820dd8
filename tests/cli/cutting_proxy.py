"""A proxy that forwards requests, and cuts the connection where the answer to some of them should be."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx

_OF_THE_CONNECTION = ("host", "content-length", "transfer-encoding", "connection", "date", "server")


class CuttingProxy:
    """Forwards requests to `target`; of those of `path` after the first `spared` ones, it cuts off the next `cuts`.

    The server has done what such a request asks for: its client cannot know. `cut` is how many were cut off. With
    `answer` nothing is forwarded: all requests get these bytes as a part of a longer response.
    """

    def __init__(self, target: str, cuts: int, spared: int = 0, path: str = "/insert") -> None:
        self.target, self.cuts, self.spared, self.cut = target, cuts, spared, 0
        self.path = path
        self.answer: bytes | None = None
        proxy = self

        class Handler(_Handler):
            owner = proxy

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{server.server_port}"

    def cuts_off(self, path: str) -> bool:
        """Return whether the answer to this request is cut off, and count it."""
        if self.path not in path:
            return False
        if self.spared:
            self.spared -= 1
            return False
        if not self.cuts:
            return False
        self.cuts, self.cut = self.cuts - 1, self.cut + 1
        return True


class _Handler(BaseHTTPRequestHandler):
    owner: CuttingProxy

    def do_GET(self) -> None:
        self._forward()

    def do_POST(self) -> None:
        self._forward()

    def log_message(self, *_: object) -> None: ...

    def _forward(self) -> None:
        headers = {name: text for name, text in self.headers.items() if name.lower() not in _OF_THE_CONNECTION}
        body = self._read_body()
        if self.owner.answer is not None:
            self.send_response(200)
            self.send_header("content-length", str(len(self.owner.answer) + 1000))
            self.end_headers()
            self.wfile.write(self.owner.answer)
            self.close_connection = True
            return
        answer = httpx.request(self.command, self.owner.target + self.path, content=body, headers=headers, timeout=60)
        if self.owner.cuts_off(self.path):
            self.close_connection = True
            return
        self.send_response(answer.status_code)
        for name, text in answer.headers.items():
            if name.lower() not in _OF_THE_CONNECTION:
                self.send_header(name, text)
        self.send_header("content-length", str(len(answer.content)))
        self.end_headers()
        self.wfile.write(answer.content)

    def _read_body(self) -> bytes:
        if self.headers.get("transfer-encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("content-length") or 0))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)
