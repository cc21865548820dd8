"""A stand-in for a collector of OpenTelemetry: it takes traces by OTLP over HTTP, and decodes their protobuf."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True, slots=True)
class Span:
    """A span as it was sent; `process` is the process that sent it."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    attributes: dict[str, Any]
    has_failed: bool
    process: int


class Collector:
    """Listens on loopback at `url`; `spans` are all that have come."""

    def __enter__(self) -> Self:
        self.spans: list[Span] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                is_traces = self.path == "/v1/traces" and self.headers["content-type"] == "application/x-protobuf"
                if is_traces:
                    collector.spans += decode(
                        gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body
                    )
                self.send_response(200 if is_traces else 404)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def wait_for(self, condition: Callable[[Span], bool], seconds: float = 60) -> Span:
        """Return the first span for which a condition holds, once it has come."""
        until = time.monotonic() + seconds
        while True:
            if found := next(filter(condition, list(self.spans)), None):
                return found
            assert time.monotonic() < until, [(span.name, span.attributes) for span in self.spans]
            time.sleep(0.05)

    def children(self, span: Span) -> list[Span]:
        """Return the children of a span."""
        return [other for other in self.spans if (other.trace_id, other.parent_id) == (span.trace_id, span.span_id)]


def decode(body: bytes) -> list[Span]:
    """Decode the spans of a request."""
    request = ExportTraceServiceRequest.FromString(body)
    spans = []
    for resource in request.resource_spans:
        process = {pair.key: pair.value.int_value for pair in resource.resource.attributes}["process.pid"]
        for span in (span for scope in resource.scope_spans for span in scope.spans):
            values = {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in span.attributes}
            ids = span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex()
            spans.append(Span(span.name, *ids, values, span.status.code == 2, process))
    return spans
