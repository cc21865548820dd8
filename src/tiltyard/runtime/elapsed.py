"""Time that has passed, by a clock that nobody sets and that goes on while the machine sleeps."""

from __future__ import annotations

import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Linux has the first; `time.monotonic` stands still there while the machine sleeps."""


def elapsed_ms() -> int:
    """Return milliseconds since some moment."""
    return time.clock_gettime_ns(_CLOCK) // 1_000_000
