"""Colours of points by a column: the most frequent values, or equal stretches of a range of numbers."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tiltyard.console.templates import plain

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_VALUES = 7
"""Values with a colour of their own; all others share one."""
STEPS = 5
MAX_LABEL = 40
OTHERS = "c7"


@dataclass(frozen=True, slots=True)
class LegendEntry:
    """An entry of the legend: the name of its colour in the style sheet, what it stands for, and how many points."""

    color: str
    label: str
    count: int


@dataclass(frozen=True, slots=True)
class Coloring:
    """The legend, and each point's entry in it."""

    keys: Sequence[LegendEntry]
    codes: Sequence[int]


def color_by(values: Sequence[Any], kind: str) -> Coloring:
    """Colour points by their values of a column; numbers of more than MAX_VALUES kinds are in STEPS stretches."""
    if kind == "number" and len({value for value in values if _is_finite(value)}) > MAX_VALUES:
        return _by_range(values)
    return _by_value(values)


def _is_finite(value: Any) -> bool:
    return value is not None and math.isfinite(value)


def _by_range(values: Sequence[Any]) -> Coloring:
    numbers = [float(value) for value in values if _is_finite(value)]
    low, high = min(numbers), max(numbers)
    width = (high - low) / STEPS
    codes = [
        min(STEPS - 1, int((float(value) - low) / width)) if _is_finite(value) and width > 0 else STEPS
        for value in values
    ]
    counts = Counter(codes)
    labels = [f"{low + step * width:.4g} to {low + (step + 1) * width:.4g}" for step in range(STEPS)]
    keys = [LegendEntry(f"r{step}", label, counts[step]) for step, label in enumerate(labels)]
    if counts[STEPS]:
        keys.append(LegendEntry(OTHERS, "none", counts[STEPS]))
    return Coloring(keys, codes)


def _by_value(values: Sequence[Any]) -> Coloring:
    texts = ["null" if value is None else plain(value, MAX_LABEL) for value in values]
    counts = Counter(texts)
    frequent = [text for text, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))][: MAX_VALUES + 1]
    if len(counts) > MAX_VALUES:
        frequent = frequent[:MAX_VALUES]
    keys = [LegendEntry(f"c{index}", text, counts[text]) for index, text in enumerate(frequent)]
    rest = len(texts) - sum(key.count for key in keys)
    if rest:
        keys.append(LegendEntry(OTHERS, f"{len(counts) - len(frequent):,} others", rest))
    codes = {text: index for index, text in enumerate(frequent)}
    return Coloring(keys, [codes.get(text, len(frequent)) for text in texts])
