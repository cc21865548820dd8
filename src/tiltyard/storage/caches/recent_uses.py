"""Tell what is used often: a copy or an index in memory is made of it."""

from __future__ import annotations

from collections import deque
from time import monotonic

_WINDOW_SECONDS = 60.0


class RecentUses:
    """The latest uses of something. Not safe to use from several threads without a lock."""

    __slots__ = ("_times",)

    def __init__(self, count: int) -> None:
        """`count` uses within a minute are often."""
        self._times: deque[float] = deque(maxlen=count)

    def add(self) -> bool:
        """Count a use; return whether there were as many within the last minute as are often."""
        now = monotonic()
        self._times.append(now)
        return len(self._times) == self._times.maxlen and self._times[0] > now - _WINDOW_SECONDS

    def clear(self) -> None:
        """Forget all uses."""
        self._times.clear()
