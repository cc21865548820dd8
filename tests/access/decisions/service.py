"""A service that decides by HTTP, in Open Policy Agent's protocol and in OpenFGA's, and that fails as it is told."""

from __future__ import annotations

import http.server
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

STORE = "01JDECISIONS"
TOKEN = "a-token-of-the-service"
SECONDS = 30


@dataclass
class Service:
    """What it has been asked, and how it answers.

    `allows(privilege, kind, path)` decides. `raw` is sent instead of an answer at `raw_path`, `status` with it; while
    `hangs` is set, it sends nothing, and while `drips`, a byte now and then.
    """

    url: str = ""
    allows: Callable[[str, str, str], bool] = lambda privilege, kind, path: True  # a default
    raw: bytes | None = None
    raw_path: str = "/"
    """The beginning of the paths at which `raw` is the answer."""
    status: int = 200
    hangs: bool = False
    drips: bool = False
    inputs: list[dict[str, Any]] = field(default_factory=list)
    """What Open Policy Agent was given."""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    """What OpenFGA was given."""
    paths: list[str] = field(default_factory=list)
    tokens: set[str] = field(default_factory=set)
    connections: int = 0
    released: threading.Event = field(default_factory=threading.Event)

    def reset(self) -> None:
        """Allow everything, and forget what was asked."""
        self.allows = lambda privilege, kind, path: True
        self.raw, self.raw_path, self.status, self.hangs, self.drips = None, "/", 200, False, False
        for each in (self.inputs, self.bodies, self.paths, self.tokens):
            each.clear()

    def answer(self, path: str, body: dict[str, Any]) -> Any:
        """Return the answer to a request, in the protocol of its path."""
        if path.startswith("/v1/data/"):
            given = body["input"]
            self.inputs.append(given)
            if "objects" in given:
                return {"decision_id": "batch-1", "result": self._positions(given["objects"])}
            asked = given["object"]
            allowed = self._allows_all(given["privileges"], asked["kind"], asked["path"])
            return {"decision_id": f"decision-{len(self.inputs)}", "result": {"allow": allowed}}
        assert path.startswith(f"/stores/{STORE}/"), path
        self.bodies.append(body)
        if path.endswith("/batch-check"):
            assert len(body["checks"]) <= 50, "OpenFGA takes no more"
            return {"result": {each["correlation_id"]: {"allowed": self._has(each)} for each in body["checks"]}}
        return {"allowed": self._has(body)}

    def _positions(self, objects: list[dict[str, Any]]) -> list[int]:
        allowed = [self._allows_all(each["privileges"], each["kind"], each["path"]) for each in objects]
        return [position for position, each in enumerate(allowed) if each]

    def _allows_all(self, privileges: list[str], kind: str, path: list[str]) -> bool:
        return all(self.allows(privilege, kind, "/".join(path)) for privilege in privileges)

    def _has(self, check: dict[str, Any]) -> bool:
        key = check["tuple_key"]
        kind, _, path = key["object"].partition(":")
        return self.allows(key["relation"], kind, path)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    service: Service

    def setup(self) -> None:
        super().setup()
        self.service.connections += 1

    def do_POST(self) -> None:
        service = self.service
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        service.paths.append(self.path)
        service.tokens.add(self.headers.get("authorization", ""))
        answer = json.dumps(service.answer(self.path, body)).encode()
        if service.hangs:
            service.released.wait(SECONDS)
            return
        self.send_response(service.status)
        has_raw = service.raw is not None and self.path.startswith(service.raw_path)
        content = service.raw if has_raw and service.raw is not None else answer
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        if service.drips:
            for byte in content:
                self.wfile.write(bytes([byte]))
                if service.released.wait(0.2):
                    return
        else:
            self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that have left."""


@contextmanager
def decision_service() -> Iterator[Service]:
    service = Service()
    handler = type("ServiceHandler", (Handler,), {"service": service})
    with Server(("127.0.0.1", 0), handler) as server:
        service.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield service
        finally:
            service.released.set()
            server.shutdown()
            thread.join()


def opa(service: Service, **options: Any) -> dict[str, Any]:
    """The settings of a service of Open Policy Agent's protocol."""
    return {"opa": {"kind": "opa", "url": service.url, "path": "tiltyard/allow", **options}}


def openfga(service: Service, **options: Any) -> dict[str, Any]:
    """The settings of a service of OpenFGA's protocol."""
    return {"fga": {"kind": "openfga", "url": service.url, "store": STORE, **options}}


def unused_url() -> str:
    """An address where nobody listens."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{unused.getsockname()[1]}"
