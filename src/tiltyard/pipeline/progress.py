"""What a run tells of itself: figures, how far it is, and how long it will take."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

TOTAL = "_total"


class Figures:
    """Figures by name. Where there is `rows` and `rows_total`, `progress` (0 to 1) and `eta_seconds` follow from them.

    With several such pairs it is the first one that was told since `stage` changed, else the first of all. Safe to use
    from several threads.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._figures: dict[str, str] = {}
        self._totals: list[str] = []
        self._began = clock()
        self._start: tuple[str, float, float] | None = None

    def set(self, figures: Mapping[str, object]) -> None:
        """Set figures; others stay."""
        with self._lock:
            if str(figures.get("stage", "")) not in ("", self._figures.get("stage")):
                self._totals.clear()
            self._totals += [name for name in figures if name.endswith(TOTAL) and name not in self._totals]
            self._figures.update({name: str(value) for name, value in figures.items()})

    def texts(self) -> dict[str, str]:
        """All figures, and what follows from them."""
        with self._lock:
            return {**self._figures, **self._derived()}

    def share(self) -> float | None:
        """How far it is, 0 to 1; None if that is not known."""
        with self._lock:
            return self._share()[1]

    def _derived(self) -> dict[str, str]:
        name, share = self._share()
        if share is None:
            return {}
        now = self._clock()
        if self._start is None or self._start[0] != name or share < self._start[2]:
            self._start = (name, now, share)  # what was done before, by another driver or stage, says nothing of speed
        _, since, first = self._start
        told = {"progress": f"{share:.4f}"}
        if first < share < 1:
            told["eta_seconds"] = f"{(now - since) * (1 - share) / (share - first):.0f}"
        elif share >= 1:
            told["eta_seconds"] = "0"
        return told

    def _share(self) -> tuple[str, float | None]:
        for name in (*self._totals, *self._figures):
            if name.endswith(TOTAL) and (done := self._figures.get(name.removesuffix(TOTAL))) is not None:
                total = float(self._figures[name])
                return name, min(1.0, float(done) / total) if total > 0 else 1.0
        return "", None
