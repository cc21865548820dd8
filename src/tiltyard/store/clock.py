"""The clock that all processes of a catalog have in common: that of its database."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tiltyard.runtime.process import elapsed_ms

if TYPE_CHECKING:
    from collections.abc import Callable

REFRESH_MS = 10_000
"""How long a reading is counted on from: clocks of computers drift by a millisecond or less in that time."""


class DatabaseClock:
    """The database's time in ms since 1970, once it was read, give or take half a round trip. Thread-safe.

    Processes compare each other's times all the time: whether a lease has ended, whether a request is the repeat of
    another one. Their own clocks would be wrong by as much as these differ; to ask each time would cost a statement.
    """

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
