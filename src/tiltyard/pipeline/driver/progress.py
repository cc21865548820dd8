"""The figures of a run, and its progress and remaining time, which follow from them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

TOTAL = "_total"


class Figures:
    """Figures by name. From `rows` and `rows_total` follow `progress` (0 to 1) and `eta_seconds`.

    Of several such pairs, the first one that was set since `stage` changed counts, else the first of all. Thread-safe.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._figures: dict[str, str] = {}
        self._totals: list[str] = []
        self._start: tuple[str, float, float] | None = None
        self._is_done = False

    def finish(self, figures: Mapping[str, object]) -> None:
        """Set the last figures of a run that has succeeded: whatever was counted on the way, all of it is done."""
        self.set(figures)
        self._is_done = True

    def set(self, figures: Mapping[str, object]) -> None:
        """Set figures; others stay."""
        with self._lock:
            if str(figures.get("stage", "")) not in ("", self._figures.get("stage")):
                self._totals.clear()
            self._totals += [name for name in figures if name.endswith(TOTAL) and name not in self._totals]
            self._figures.update({name: str(value) for name, value in figures.items()})

    def texts(self) -> dict[str, str]:
        """Return all figures as text, with progress and remaining time."""
        with self._lock:
            return {**self._figures, **self._derived()}

    def share(self) -> float | None:
        """Return the progress, 0 to 1; None if unknown."""
        with self._lock:
            share = self._share()[1]
            return share if share is None or not self._is_done else 1.0

    def _derived(self) -> dict[str, str]:
        name, share = self._share()
        if share is None:
            return {}
        if self._is_done:
            return {"progress": "1.0000", "eta_seconds": "0"}
        now = self._clock()
        if self._start is None or self._start[0] != name or share < self._start[2]:
            self._start = (name, now, share)  # work of another driver or stage says nothing about the speed
        _, started_at, first_share = self._start
        figures = {"progress": f"{share:.4f}"}
        if first_share < share < 1:
            figures["eta_seconds"] = f"{(now - started_at) * (1 - share) / (share - first_share):.0f}"
        elif share >= 1:
            figures["eta_seconds"] = "0"
        return figures

    def _share(self) -> tuple[str, float | None]:
        for name in (*self._totals, *self._figures):
            if name.endswith(TOTAL) and (done := self._figures.get(name.removesuffix(TOTAL))) is not None:
                total = float(self._figures[name])
                return name, min(1.0, float(done) / total) if total > 0 else 1.0
        return "", None


def figure_reader(figures: Mapping[str, str]) -> Callable[[], dict[str, str]]:
    """Return a function that reads the figures of a run as they are by then, with what follows from them."""
    shown = Figures()

    def read() -> dict[str, str]:
        shown.set(dict(figures))
        return shown.texts()

    return read
