"""The clock of a database that servers share: read now and then, and counted on in between.

Servers compare each other's times all the time: whether a lease has ended, whether a request is the repeat of another
one, which version is recent. By their own clocks they would be wrong by as much as these differ. So each process has
the database's time, give or take half a round trip to it, and no statement costs more for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

REFRESH_MS = 10_000
"""How long a reading is counted on from: clocks of computers drift by a millisecond or less in that time."""
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""What nobody sets; on Linux it goes on while the machine sleeps."""


def elapsed_ms() -> int:
    """Return milliseconds since some moment, by a clock that is never set."""
    return time.clock_gettime_ns(_CLOCK) // 1_000_000


class DatabaseClock:
    """The database's time in ms since 1970, once it was read. Safe to use from several threads."""

    def __init__(self, elapsed: Callable[[], int] = elapsed_ms) -> None:
        """`elapsed` counts milliseconds, whatever the time is."""
        self._elapsed = elapsed
        self._offset: int | None = None
        self._read_at = 0

    def __call__(self) -> int:
        """Return the time. Raises RuntimeError before the first reading."""
        if self._offset is None:
            raise RuntimeError("the database's clock was not read yet")
        return self._elapsed() + self._offset

    @property
    def is_due(self) -> bool:
        """Whether the clock is to be read again."""
        return self._offset is None or self._elapsed() >= self._read_at + REFRESH_MS

    def read(self, ask: Callable[[], int]) -> None:
        """Read the clock; `ask` returns what the database says. What it raises passes through."""
        before = self._elapsed()
        answer = ask()
        self._read_at = self._elapsed()
        self._offset = answer - (before + self._read_at) // 2
