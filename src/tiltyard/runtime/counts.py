"""Count events by name."""

from __future__ import annotations

import threading
from collections import Counter


class Counts:
    """How many events of each name there were since the process started. Safe to use from several threads."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, name: str) -> None:
        """Count one event."""
        with self._lock:
            self._counts[name] += 1

    def read(self) -> dict[str, int]:
        """Return the counts by name."""
        with self._lock:
            return dict(self._counts)
