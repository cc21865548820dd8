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
        """Count a use; return whether they are often now."""
        self._times.append(monotonic())
        return self.are_often

    @property
    def are_often(self) -> bool:
        """Whether there were as many uses within the last minute as are often."""
        return len(self._times) == self._times.maxlen and self._times[0] > monotonic() - _WINDOW_SECONDS

    def clear(self) -> None:
        """Forget all uses."""
        self._times.clear()
