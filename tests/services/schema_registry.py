"""A schema registry for tests: the two routes that readers use, of Confluent's REST API, with or without a password."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Registry:
    """Schemas by id, and by subject and version; `requests` counts what was asked."""

    def __init__(self, user_info: str | None = None) -> None:
        self.paths: dict[str, Any] = {}
        self.requests = 0
        self.status = 200
        self.authorization = user_info and f"Basic {base64.b64encode(user_info.encode()).decode()}"
        self.url = ""

    def add(self, schema: Any, references: Sequence[Mapping[str, Any]] = (), subject: str = "", **more: Any) -> int:
        """Register a schema, as the first version of a subject if one is named; return its id."""
        number = len(self.paths) + 1
        answer = {"schema": json.dumps(schema), "references": list(references), **more}
        self.paths[f"/subjects/{subject}/versions/1" if subject else f"/schemas/ids/{number}"] = answer
        return number


@contextmanager
def schema_registry(user_info: str | None = None) -> Iterator[Registry]:
    """Run a registry, which wants this user and password if they are given."""
    registry = Registry(user_info)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # http.server's name
            registry.requests += 1
            found, status = registry.paths.get(self.path), registry.status
            if registry.authorization is not None and self.headers.get("authorization") != registry.authorization:
                status = 401
            elif found is None:
                status = 404
            content = json.dumps(found if status == 200 else {"error_code": status, "message": "no"}).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    registry.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
