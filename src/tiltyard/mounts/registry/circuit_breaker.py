"""A circuit breaker: after several failures in a row a backend is not called for a while, and callers fail at once.

pybreaker holds a lock during each call, so that calls of several threads would wait for each other.
"""

from __future__ import annotations

import math
import threading
import time

from lance_namespace.errors import ServiceUnavailableError

FAILURES = 3
"""In a row, after which the circuit opens."""
FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 1.0, 10.0
"""Seconds for which it stays open: twice as long after each further failure."""


class MountPausedError(ServiceUnavailableError):
    """A backend is not called at the moment; it will be in so many `seconds`."""

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message)
        self.seconds = math.ceil(seconds)


class CircuitBreaker:
    """Counts the failures of one backend. Thread-safe.

    Once its pause is over one call may try; the others go on failing until that one has succeeded.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failures = 0
        self._open_until = 0.0

    @property
    def is_open(self) -> bool:
        """Whether the last calls have failed, and none has succeeded since."""
        return self._failures >= FAILURES

    def try_enter(self) -> float:
        """Return 0 if a call may be made, else for how many more seconds none may."""
        if self._failures < FAILURES:
            return 0.0
        with self._lock:
            now = time.monotonic()
            if now < self._open_until:
                return self._open_until - now
            self._open_until = now + self._pause()  # for all but this call
            return 0.0

    def succeed(self) -> None:
        """Note that a call has been answered, if only with an error."""
        if self._failures:
            with self._lock:
                self._failures = 0

    def fail(self) -> None:
        """Note that a call was not answered."""
        with self._lock:
            self._failures += 1
            if self._failures >= FAILURES:
                self._open_until = time.monotonic() + self._pause()

    def _pause(self) -> float:
        doublings = min(max(self._failures - FAILURES, 0), 16)
        return float(min(FIRST_PAUSE_SECONDS * 2**doublings, MAX_PAUSE_SECONDS))
