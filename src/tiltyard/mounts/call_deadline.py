"""Bound the time of calls that have no time limit of their own, or one that retries or waiting threads multiply."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import ParamSpec, TypeVar

from lance_namespace.errors import ServiceUnavailableError

from tiltyard.runtime.pool import start_thread

P = ParamSpec("P")
R = TypeVar("R")


class CallDeadline:
    """Run calls in threads of their own, and give up those that take too long, queueing included.

    A call that was given up goes on in its thread, to its own end. While all threads are taken by such calls, others
    wait in vain for one, and are given up after the same time: a backend that hangs costs a bounded number of threads.
    """

    def __init__(self, backend: str, seconds: float, threads: int) -> None:
        """`backend` is what messages call it."""
        self._backend = backend
        self._seconds = seconds
        self._places = threading.BoundedSemaphore(threads)
        self._is_closed = False

    def run(self, function: Callable[P, R], *args: P.args, **options: P.kwargs) -> R:
        """Return the result of a call. Raises ServiceUnavailableError where it takes too long."""
        return self.run_within(self._seconds, partial(function, *args, **options))

    def run_within(self, seconds: float, call: Callable[[], R]) -> R:
        """Return the result of a call that has so many seconds. Raises ServiceUnavailableError likewise."""
        until = time.monotonic() + seconds
        if not self._places.acquire(timeout=seconds):
            raise self._too_slow()
        try:
            if self._is_closed:
                raise RuntimeError("no call can be made after the end of its mount")
            future = start_thread("mount", call)
        except BaseException:
            self._places.release()
            raise
        future.add_done_callback(lambda _: self._places.release())
        try:
            return future.result(max(0.0, until - time.monotonic()))
        except TimeoutError as error:
            if future.done():
                raise  # the call's own
            raise self._too_slow() from error

    def close(self) -> None:
        """Start no further calls."""
        self._is_closed = True

    def _too_slow(self) -> ServiceUnavailableError:
        return ServiceUnavailableError(
            f"{self._backend} has not answered within {self._seconds:g} s: what was to change may have changed."
        )


@contextmanager
def held_in_time(lock: threading.Lock, backend: str, seconds: float) -> Iterator[None]:
    """Hold a lock under which a request is sent. Raises ServiceUnavailableError where others hold it for too long."""
    if not lock.acquire(timeout=seconds):
        raise ServiceUnavailableError(f"{backend} has not answered within {seconds:g} s: try again in a moment.")
    try:
        yield
    finally:
        lock.release()
