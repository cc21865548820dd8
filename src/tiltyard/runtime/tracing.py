"""The request or job that a thread or a task works on: followed into threads, named in lines of the log, and recorded
as spans, where that was started.

Nothing is kept unless `track` was called, as it is where logs are JSON or traces are on: then the work of a request is
followed from the event loop into the threads of a `Pool`. Spans are sent to a collector by OpenTelemetry (OTLP over
HTTP), whose packages the extra `tiltyard[otel]` has, and only `start_tracing` imports. A span of a request or a job has
spans of calls of the catalog's database and of the storage as children; the context of a job travels as text (W3C
`traceparent`) through the catalog into its driver, and from there into Spark's tasks.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from time import perf_counter
from typing import Any, ParamSpec, TypeVar

import msgspec

P = ParamSpec("P")
T = TypeVar("T")


class CurrentRequest:
    """One request: its id, its span (None without traces), the seconds that it waited for threads and ran in them.

    `rows` are those that were written or read so far, `spans` the children of its span.
    """

    __slots__ = ("request_id", "rows", "run_seconds", "span", "spans", "wait_seconds")

    def __init__(self, request_id: str, span: Any = None) -> None:
        self.request_id = request_id
        self.span = span
        self.wait_seconds = 0.0
        self.run_seconds = 0.0
        self.rows = 0
        self.spans = 0


_current: ContextVar[CurrentRequest | None] = ContextVar("tiltyard_request", default=None)
_is_tracked = False


def track() -> None:
    """Keep the current request from now on."""
    global _is_tracked  # noqa: PLW0603  # of the process, as logging is
    _is_tracked = True


def is_tracked() -> bool:
    """Return whether the current request is kept."""
    return _is_tracked


def is_in_request() -> bool:
    """Return whether this thread or task works on a request that is kept."""
    return _is_tracked and _current.get() is not None


def current_request() -> CurrentRequest | None:
    """Return the request that this thread or task works on; None outside of one, or where none is kept."""
    return _current.get() if _is_tracked else None


@contextmanager
def working_on(request: CurrentRequest) -> Iterator[None]:
    """Make a request the current one of a block."""
    token = _current.set(request)
    try:
        yield
    finally:
        _current.reset(token)


def bind_to_request(function: Callable[P, T]) -> Callable[P, T]:
    """Return a function that works on the current request wherever it is called; itself outside of one."""
    if (request := current_request()) is None:
        return function

    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        with working_on(request):
            return function(*args, **kwargs)

    return call


def add_rows(number: int) -> None:
    """Count rows that the current request has written or read."""
    if _is_tracked and (request := _current.get()) is not None:
        request.rows += number


def track_work(work: Callable[[], T]) -> Callable[[], T]:
    """Return work that belongs to the current request, for a thread; it adds its wait and its run to the request."""
    request = _current.get() if _is_tracked else None
    if request is None:
        return work
    submitted = perf_counter()

    def tracked() -> T:
        started = perf_counter()
        request.wait_seconds += started - submitted
        token = _current.set(request)
        try:
            return work()
        finally:
            _current.reset(token)
            request.run_seconds += perf_counter() - started

    return tracked


MAX_MESSAGE = 100_000
"""Characters of a message, and of a traceback."""


class JsonFormatter(logging.Formatter):
    """Formats a record as a JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage()[:MAX_MESSAGE],
        }
        if (request := current_request()) is not None:
            line["request_id"] = request.request_id
            if request.span is not None:
                context = request.span.get_span_context()
                line |= {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)[-MAX_MESSAGE:]
        return msgspec.json.encode(line).decode()


MISSING = "Traces need further packages: pip install 'tiltyard[otel]'."
MAX_SPANS = 200
"""Children of one span: a request may call the storage many times."""
MAX_ATTRIBUTE = 1000
EXPORT_SECONDS = 5
"""How long one export may take, and the last one of a process."""
_QUEUE_SPANS = 8192
"""Spans that wait for their export; more are dropped: a collector that is away costs memory for no more."""


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """Where spans go (`endpoint`, the URL of a collector), and the share of traces that begin here and are kept.

    `version` is that of Tiltyard, which spans have.
    """

    endpoint: str
    sample: float
    version: str


class _Tracing:
    """The tracing of this process; None where it was not started."""

    options: TraceOptions | None = None
    provider: Any = None
    tracer: Any = None


def is_installed() -> bool:
    """Return whether the packages for tracing are here."""
    try:
        return find_spec("opentelemetry.sdk") is not None and find_spec("opentelemetry.exporter.otlp") is not None
    except ModuleNotFoundError:
        return False


def start_tracing(options: TraceOptions) -> None:
    """Send spans to a collector from now on. Once in a process; later calls do nothing."""
    if _Tracing.tracer is not None:
        return
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415  # an extra
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace import SpanLimits, TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased  # noqa: PLC0415

    identity: dict[str, str | int] = {"service.name": "tiltyard", "service.version": options.version}
    identity["process.pid"] = os.getpid()
    provider = TracerProvider(
        resource=Resource.create(identity),
        sampler=ParentBased(TraceIdRatioBased(options.sample)),
        span_limits=SpanLimits(max_span_attribute_length=MAX_ATTRIBUTE),
        shutdown_on_exit=False,
    )
    exporter = OTLPSpanExporter(f"{options.endpoint.rstrip('/')}/v1/traces", timeout=EXPORT_SECONDS)
    provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=_QUEUE_SPANS))
    _Tracing.options, _Tracing.provider = options, provider
    _Tracing.tracer = provider.get_tracer("tiltyard", options.version)
    track()


def is_tracing() -> bool:
    """Return whether this process sends spans."""
    return _Tracing.tracer is not None


def flush_spans() -> None:
    """Send the spans that wait; give up after a few seconds."""
    if _Tracing.provider is not None:
        _Tracing.provider.force_flush(EXPORT_SECONDS * 1000)


def start_span(name: str, parent: Mapping[str, str], kind: str = "server") -> Any:
    """Start the span of a request or a job under a parent by its W3C headers, if they are there and can be read.

    Return None where tracing is off.
    """
    if _Tracing.tracer is None:
        return None
    from opentelemetry.trace import SpanKind  # noqa: PLC0415  # an extra
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

    context = TraceContextTextMapPropagator().extract(dict(parent))
    kinds = {"server": SpanKind.SERVER, "consumer": SpanKind.CONSUMER, "internal": SpanKind.INTERNAL}
    return _Tracing.tracer.start_span(name, context=context, kind=kinds[kind])


def end_span(span: Any, attributes: Mapping[str, Any], error: str | None = None) -> None:
    """End a span; with an error, which says its kind, it has failed."""
    from opentelemetry.trace import Status, StatusCode  # noqa: PLC0415  # an extra

    span.set_attributes({name: value for name, value in attributes.items() if value is not None})
    if error is not None:
        span.set_status(Status(StatusCode.ERROR, error))
    span.end()


class child_span:  # noqa: N801  # used like a function; a class, since `contextmanager` is slower
    """Record a block as a child of the current request's span; do nothing without one, or if it has many already."""

    __slots__ = ("_attributes", "_name", "_span")

    def __init__(self, name: str, **attributes: str) -> None:
        self._name = name
        self._attributes = attributes
        self._span: Any = None

    def __enter__(self) -> None:
        """Start the span."""
        self._span = start_child(self._name, self._attributes)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """End the span."""
        if self._span is not None:
            end_span(self._span, {}, None if error is None else type(error).__name__)


def start_child(name: str, attributes: Mapping[str, str]) -> Any:
    """Start a child of the current request's span; return None where there is none, or it has many children already."""
    request = current_request()
    if request is None or request.span is None or not request.span.is_recording():
        return None
    request.spans += 1
    if request.spans > MAX_SPANS:
        return None
    from opentelemetry.trace import set_span_in_context  # noqa: PLC0415  # an extra

    return _Tracing.tracer.start_span(name, context=set_span_in_context(request.span), attributes=attributes)


def trace_headers() -> dict[str, str]:
    """Return the W3C headers of the current request's span; none without one."""
    request = current_request()
    if request is None or request.span is None:
        return {}
    from opentelemetry.trace import set_span_in_context  # noqa: PLC0415  # an extra
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

    headers: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(headers, set_span_in_context(request.span))
    return headers


@contextmanager
def job_span(name: str, parent: Mapping[str, str], job_id: str, **attributes: Any) -> Iterator[None]:
    """Record a block as the work of a job, under a parent by its W3C headers; children of it are recorded, too."""
    span = start_span(name, parent, "consumer")
    if span is None:
        yield
        return
    request, error = CurrentRequest(job_id, span), None
    try:
        with working_on(request):
            yield
    except BaseException as raised:
        error = type(raised).__name__
        raise
    finally:
        counted = {"tiltyard.rows": request.rows or None, "tiltyard.dropped_spans": max(0, request.spans - MAX_SPANS)}
        end_span(span, {"tiltyard.job": job_id, **attributes, **counted}, error)


@dataclass(frozen=True, slots=True)
class TaskTrace:
    """What a task in another process needs to record itself: where spans go, and its parent."""

    options: TraceOptions
    headers: Mapping[str, str]


def task_trace() -> TaskTrace | None:
    """Return what tasks of the current job need; None where tracing is off, or there is no job."""
    headers = trace_headers() if _Tracing.options is not None else {}
    return TaskTrace(_Tracing.options, headers) if headers and _Tracing.options is not None else None


@contextmanager
def task_span(trace: TaskTrace | None, name: str, **attributes: Any) -> Iterator[None]:
    """Record a block as a task of a job, in this process, and send its spans at its end: the process may end then."""
    if trace is None or not is_installed():
        yield
        return
    start_tracing(trace.options)
    try:
        with job_span(name, trace.headers, name, **attributes):
            yield
    finally:
        flush_spans()
