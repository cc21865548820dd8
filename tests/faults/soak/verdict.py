"""Judge the figures of an endurance run: each has to stay within a bound, and to be flat in the last half."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from tests.faults.soak.samples import Sample

MAX_PAIRS_APART = 240
"""Samples that the slope is computed of: more are thinned out evenly."""


@dataclass(frozen=True, slots=True)
class Limit:
    """What the figures of a name may do: `figure` is a pattern of names, and the first that fits holds.

    `growth` is by how much one may grow in the last half, or `share` of its median if that is more; `most` is what it
    may never be above. Nothing is said of the growth of a figure that takes `settles` seconds to reach its level, while
    that is more than half of the run. One that rises and falls with a period has its maximum `over` that judged.
    """

    figure: str
    growth: float = math.inf
    share: float = 0.0
    most: float = math.inf
    settles: float = 0.0
    over: float = 0.0


@dataclass(frozen=True, slots=True)
class Judgement:
    """A figure over a run: at its start, its middle and its end, its maximum, and its growth in the last half."""

    figure: str
    first: float
    middle: float
    last: float
    most: float
    growth: float
    allowed: float
    complaint: str

    def __str__(self) -> str:
        numbers = (self.first, self.middle, self.last, self.most, self.growth)
        allowed = "" if math.isinf(self.allowed) else f"{self.allowed:,.1f}"
        columns = "".join(f"{number:12,.1f}" for number in numbers)
        return f"{self.figure:36}{columns}{allowed:>10}  {self.complaint}"


COLUMNS = ("first", "middle", "last", "most", "growth")
HEAD = f"{'figure':36}{''.join(f'{name:>12}' for name in COLUMNS)}   allowed"


def judge(samples: Sequence[Sample], limits: Sequence[Limit]) -> list[Judgement]:
    """Judge every figure that a limit names. A figure that is missing from a sample counts as 0 there."""
    names = sorted({name for sample in samples for name in sample.figures})
    bounds = {
        name.replace("bound.", "cache.", 1): max(sample.figures.get(name, 0.0) for sample in samples)
        for name in names
        if name.startswith("bound.")
    }
    return [
        _judge(name, samples, limit, bounds.get(name, math.inf))
        for name in names
        if (limit := next((limit for limit in limits if fnmatchcase(name, limit.figure)), None)) is not None
    ]


def _judge(name: str, samples: Sequence[Sample], limit: Limit, bound: float) -> Judgement:
    seconds = [sample.seconds for sample in samples]
    values = [float(sample.figures.get(name, 0.0)) for sample in samples]
    half = next(number for number, second in enumerate(seconds) if second >= (seconds[0] + seconds[-1]) / 2)
    growth = growth_of(seconds[half:], _maxima(seconds, values, limit.over)[half:])
    is_settled = limit.settles <= seconds[half]
    allowed = max(limit.growth, limit.share * statistics.median(values[half:])) if is_settled else math.inf
    most = min(limit.most, bound)
    complaints = []
    if growth > allowed:
        complaints.append(f"GROWS by {growth:,.1f} in the last half, {allowed:,.1f} allowed")
    if max(values) > most:
        complaints.append(f"ABOVE its bound of {most:,.1f}")
    return Judgement(name, values[0], values[half], values[-1], max(values), growth, allowed, "; ".join(complaints))


def _maxima(seconds: Sequence[float], values: Sequence[float], over: float) -> list[float]:
    """Return the maximum of the values up to each one, within so many seconds."""
    starts = [bisect_left(seconds, end - over) for end in seconds]
    return [max(values[start : number + 1]) for number, start in enumerate(starts)]


def growth_of(seconds: Sequence[float], values: Sequence[float]) -> float:
    """Return by how much values grow over their time: the median of the slopes of all pairs, so that no peak counts."""
    step = max(1, len(seconds) // MAX_PAIRS_APART)
    points = list(zip(seconds[::step], values[::step], strict=True))
    slopes = [
        (later - earlier) / (end - start)
        for number, (start, earlier) in enumerate(points)
        for end, later in points[number + 1 :]
        if end > start
    ]
    return statistics.median(slopes) * (seconds[-1] - seconds[0]) if slopes else 0.0
