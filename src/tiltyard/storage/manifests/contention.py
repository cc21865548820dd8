"""Tell which version histories other processes commit to at the same time as this one."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

CONTENDED_SECONDS = 5.0
"""How long a history counts as contended after another process's commit, and how close together two of them are."""
MAX_HISTORIES = 1000
"""Histories that are remembered."""


@dataclass(slots=True)
class _History:
    version: int = 0
    overtaken_at: float = float("-inf")
    contended_until: float = float("-inf")


class Contention:
    """What this process's commits met, by the key of a version history. Safe to use from several threads.

    One commit of another process is no contention: an optimization or a change of columns may be alone.
    """

    def __init__(self) -> None:
        self._histories: dict[str, _History] = {}
        self._lock = threading.Lock()

    def add_commit(self, key: str, opened: int, committed: int) -> None:
        """Note a commit of this process: the version that it was made on, and its own."""
        with self._lock:
            history = self._histories[key] = self._histories.pop(key, _History())  # the last one now
            if len(self._histories) > MAX_HISTORIES:
                del self._histories[next(iter(self._histories))]
            is_overtaken = committed > opened + 1 or 0 < history.version < opened
            history.version = committed
            if is_overtaken:
                now = time.monotonic()
                if now - history.overtaken_at < CONTENDED_SECONDS:
                    history.contended_until = now + CONTENDED_SECONDS
                history.overtaken_at = now

    def extend(self, key: str) -> None:
        """Note that other processes have just committed to a contended history."""
        with self._lock:
            if (history := self._histories.get(key)) is not None:
                history.contended_until = time.monotonic() + CONTENDED_SECONDS

    def is_contended(self, key: str) -> bool:
        """Return whether other processes have lately committed to a history again and again."""
        history = self._histories.get(key)
        return history is not None and time.monotonic() < history.contended_until
