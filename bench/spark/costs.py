"""What a measurement cost, by the clock and in processor time: medians over rounds in which the sides alternate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench.spark.line_processes import Process

Measure = Callable[[int], "Cost"]
"""Run one side in a round, of this number."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds by the clock, and processor seconds of all processes that took part."""

    seconds: float
    cpu: float

    def __str__(self) -> str:
        return f"{self.seconds:.2f} s ({self.cpu:.2f} s CPU)"

    def rate(self, rows: int) -> str:
        """Return the rows per second, in words."""
        return f"{rows / self.seconds:,.0f} rows/s ({self.cpu:.2f} s CPU)"

    @classmethod
    def of(cls, process: Process, do: str, **order: Any) -> Cost:
        """Measure one order of a process, which responds with its seconds."""
        seconds = float(process.ask(do, **order))
        return cls(seconds, process.cpu)


def alternate(rounds: int, ours: Measure, theirs: Measure) -> tuple[Cost, Cost]:
    """Measure both sides in each round; return their medians. Who is first changes with each round."""
    costs: dict[Measure, list[Cost]] = {ours: [], theirs: []}
    for number in range(rounds):
        for measure in (theirs, ours) if number % 2 == 0 else (ours, theirs):
            costs[measure].append(measure(number))
    return _median(costs[ours]), _median(costs[theirs])


def _median(costs: Sequence[Cost]) -> Cost:
    return Cost(median(cost.seconds for cost in costs), median(cost.cpu for cost in costs))


def size(path: str) -> str:
    """Return the bytes of a file, or of the files of a folder, in words."""
    files = [Path(path)] if Path(path).is_file() else [file for file in Path(path).rglob("*") if file.is_file()]
    return f"{sum(file.stat().st_size for file in files) / 1e6:,.1f} MB"
