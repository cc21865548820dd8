"""The request or job that a thread or a task works on, for lines of the log and for spans of traces; lines as JSON.

Nothing is kept unless `track` was called, as it is where logs are JSON or traces are on: then the work of a request is
followed from the event loop into the threads of a `Pool`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
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
