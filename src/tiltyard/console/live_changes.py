"""Server-sent events for a page that follows something: one at each change, which its script has a part loaded for."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import ErrorCode
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

from tiltyard.api.errors import HttpError
from tiltyard.console.browser_checks import HEADERS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping

STREAM_SECONDS = 5.0
"""How long one stream of events lasts: the browser opens the next one, and a server that stops need not wait longer."""
POLL_SECONDS = 0.5
RECONNECT_MS = 250
MAX_STREAMS = 100
"""Streams that one process serves at once."""


@dataclass(frozen=True, slots=True)
class Change:
    """What is followed, as it is now: what the script gets of it, and what else changes; `is_last` if nothing will."""

    data: Mapping[str, Any]
    detail: str = ""
    is_last: bool = False


class _Streams:
    """Counts the streams that are open."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = 0

    def check(self) -> None:
        """Raise HttpError 429 where there are as many as there may be."""
        if self._open >= MAX_STREAMS:
            raise HttpError(
                429, ErrorCode.THROTTLING, "Too many pages follow changes here: load this page again in a while."
            )

    @contextmanager
    def one_more(self) -> Iterator[None]:
        with self._lock:
            self._open += 1
        try:
            yield
        finally:
            with self._lock:
                self._open -= 1


_streams = _Streams()


def stream_changes(read: Callable[[], Change]) -> StreamingResponse:
    """Stream what `read` returns whenever that is another: `change`, the last one `end`. Raises what it raises."""
    _streams.check()
    headers = {**HEADERS, "x-accel-buffering": "no"}
    return StreamingResponse(_changes(read, read()), media_type="text/event-stream", headers=headers)


async def _changes(read: Callable[[], Change], current: Change) -> AsyncIterator[str]:
    with _streams.one_more():
        yield f"retry: {RECONNECT_MS}\n\n"
        end = time.monotonic() + STREAM_SECONDS
        last = None
        while time.monotonic() < end:
            if current != last:
                last = current
                yield f"event: {'end' if current.is_last else 'change'}\ndata: {json.dumps(current.data)}\n\n"
                if current.is_last:
                    return
            await asyncio.sleep(POLL_SECONDS)
            current = await run_in_threadpool(read)
