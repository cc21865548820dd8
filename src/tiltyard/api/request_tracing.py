"""The span of a request, where traces are on; and the request's id for lines of the log, where those are JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tiltyard.runtime.tracing import MAX_SPANS, CurrentRequest, end_span, start_span, working_on

if TYPE_CHECKING:
    from tiltyard.api.request_log import LoggedRequest

_TRACE_HEADERS = (b"traceparent", b"tracestate")


@contextmanager
def traced(log: LoggedRequest, headers: Mapping[bytes, bytes]) -> Iterator[None]:
    """Serve a request in a block; its span is a child of the caller's, by the W3C headers of the request."""
    parent = {name.decode(): headers[name].decode("latin-1") for name in _TRACE_HEADERS if name in headers}
    request = CurrentRequest(log.request_id, start_span("request", parent))
    try:
        with working_on(request):
            yield
    finally:
        if request.span is not None:
            _end(request, log, headers)


def _end(request: CurrentRequest, log: LoggedRequest, headers: Mapping[bytes, bytes]) -> None:
    """Write what is known of a request by its end into its span."""
    span, objects, length = request.span, log.objects(), headers.get(b"content-length", b"")
    if log.operation:
        span.update_name(log.operation)
    attributes = {
        "http.response.status_code": log.status,
        "tiltyard.operation": log.operation or None,
        "tiltyard.object": ", ".join(objects[:10]) or None,
        "tiltyard.request_id": log.request_id,
        "tiltyard.code": log.code,
        "tiltyard.rows": request.rows,
        "tiltyard.request_bytes": int(length) if length.isdigit() else None,
        "tiltyard.response_bytes": log.response_bytes,
        "tiltyard.wait_ms": round(request.wait_seconds * 1000, 3),
        "tiltyard.run_ms": round(request.run_seconds * 1000, 3),
        "tiltyard.dropped_spans": max(0, request.spans - MAX_SPANS) or None,
    }
    is_failure = log.status >= 500 or not log.complete
    end_span(span, attributes, f"HTTP {log.status}" if is_failure else None)
