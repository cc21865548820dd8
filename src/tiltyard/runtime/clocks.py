"""The clock of every process; passed as an argument where a test has to move it."""

from __future__ import annotations

import time


def file_clock() -> int:
    """Return the time that a file written right now gets on a local disk, in ms since 1970.

    Linux dates files by a clock that is behind by up to a tick of some milliseconds.
    """
    clock = getattr(time, "CLOCK_REALTIME_COARSE", time.CLOCK_REALTIME)
    return time.clock_gettime_ns(clock) // 1_000_000


def wall_clock() -> int:
    """Return milliseconds since 1970."""
    return time.time_ns() // 1_000_000
