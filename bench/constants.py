"""Constants that estimates rest on, and their numbers as words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_SMALL_UNITS = ((1e-3, "m"), (1e-6, "µ"), (1e-9, "n"))


@dataclass(frozen=True, slots=True)
class Constant:
    """A figure that an estimate rests on, and where it is from."""

    value: float
    what: str
    source: str


def short(value: float) -> str:
    """Return a number with three digits and its unit of thousands."""
    for size, unit in _UNITS:
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.4g}"


def short_bytes(value: float) -> str:
    """Return a number of bytes with three digits."""
    return f"{short(value)}B"


def short_time(seconds: float) -> str:
    """Return a duration in its largest unit of which it has two, or a small one in parts of a second."""
    for size, unit in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    for size, unit in _SMALL_UNITS:
        if size <= seconds < size * 1_000:
            return f"{seconds / size:.3g} {unit}s"
    return f"{seconds:.3g} s"


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(cells)} |" for cells in rows)])


def constants_table(constants: Any) -> str:
    """Return the table of a dataclass whose fields are constants."""
    values: list[Constant] = [getattr(constants, constant_field.name) for constant_field in fields(constants)]
    rows = ([constant.what, short(constant.value), constant.source] for constant in values)
    return markdown_table(("constant", "value", "from"), rows)
