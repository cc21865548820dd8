"""Functions on texts and times that DataFusion has not: patterns by RE2, as DuckDB's, and boundaries between times."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tiltyard.sql.dialects.functions import FunctionError, SqlFunction

MAX_PATTERNS = 100
"""Different patterns that one batch of rows may have in a column."""
_FOUND = "found"
_PARTS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*+\]?|\((\?)?|\^", re.DOTALL)
"""What brackets and places are in a pattern: those in escapes and classes are none."""
_PLACES = frozenset({"^", r"\A", r"\b", r"\B"})


def _by_constant(function: Callable[..., pa.Array], kind: pa.DataType, values: pa.Array, *others: pa.Array) -> pa.Array:
    """Return the results of a function for each combination of its other arguments, which is mostly one."""
    if not len(values):
        return pa.array([], kind)
    rows = list(zip(*(other.to_pylist() for other in others), strict=True)) if len(values) else []
    distinct = dict.fromkeys(rows)
    if len(distinct) == 1:
        return _of_one(function, kind, values, rows[0])
    if len(distinct) > MAX_PATTERNS:
        raise FunctionError(f"A function is called with more than {MAX_PATTERNS} different patterns or units.")
    parts = {row: _of_one(function, kind, values, row) for row in distinct}
    return pa.array([parts[row][at].as_py() for at, row in enumerate(rows)], kind)


def _of_one(
    function: Callable[..., pa.Array], kind: pa.DataType, values: pa.Array, others: tuple[Any, ...]
) -> pa.Array:
    if None in others:
        return pa.nulls(len(values), kind)
    try:
        return function(values, *others)
    except pa.ArrowInvalid as error:
        raise FunctionError(f"The pattern or unit {others[0]!r} is malformed: {str(error)[:200]}") from error


@lru_cache(64)
def _named_group(pattern: str, group: int) -> str:
    """Return a pattern in which one group alone has a name, and no other one is captured; 0 is all of it."""
    counted = 0

    def renamed(match: re.Match[str]) -> str:
        nonlocal counted
        if match[0] != "(":
            if match[0] == "(?" and re.match(r"P?<", pattern[match.end() :]):
                raise FunctionError("Groups of a pattern are named by their numbers here: leave (?P<name> out.")
            return match[0]
        counted += 1
        return f"(?P<{_FOUND}>" if counted == group else "(?:"

    written = _PARTS.sub(renamed, pattern)
    if not 0 <= group <= counted:
        raise FunctionError(f"The pattern {pattern[:100]!r} has {counted} groups, and no group {group}.")
    return written if group else f"(?P<{_FOUND}>{written})"


def _extract(values: pa.Array, pattern: str, group: int) -> pa.Array:
    found = pc.extract_regex(values, _named_group(pattern, group))
    return pc.if_else(pc.is_valid(values), pc.coalesce(pc.struct_field(found, [_FOUND]), pa.scalar("")), None)


def _split(values: pa.Array, pattern: str) -> pa.Array:
    """Divide texts at a pattern.

    pyarrow looks for it in the rest of a text, so a place in the text means something else there, and where the pattern
    matches no characters it does not end.
    """
    has_places = any(match[0] in _PLACES for match in _PARTS.finditer(pattern))
    if has_places or pc.match_substring_regex(pa.array([""]), pattern)[0].as_py():
        raise FunctionError(
            f"Texts are divided at characters, as by '[,;]+': {pattern[:100]!r} matches a place, or nothing."
        )
    return pc.split_pattern_regex(values, pattern)


def _split_at(values: pa.Array, separator: str) -> pa.Array:
    return pc.split_pattern(values, separator)


_BETWEEN: dict[str, Callable[[pa.Array, pa.Array], pa.Array]] = {
    "year": pc.years_between,
    "quarter": pc.quarters_between,
    "day": pc.days_between,
    "hour": pc.hours_between,
    "minute": pc.minutes_between,
    "second": pc.seconds_between,
    "millisecond": pc.milliseconds_between,
    "microsecond": pc.microseconds_between,
}
_UNITS = {
    **{name: name for name in (*_BETWEEN, "month")},
    **{f"{name}s": name for name in (*_BETWEEN, "month")},
    "y": "year", "yr": "year", "mon": "month", "d": "day", "h": "hour", "hr": "hour", "m": "minute",
    "min": "minute", "s": "second", "sec": "second", "ms": "millisecond", "us": "microsecond",
}  # fmt: skip


def _difference(units: pa.Array, starts: pa.Array, stops: pa.Array) -> pa.Array:
    """Return how many boundaries of a unit are between two times.

    Weeks are left out: DuckDB's releases count them differently.
    """
    return _by_constant(partial(_between, stops), pa.int64(), starts, units)


def _between(stops: pa.Array, starts: pa.Array, unit: str) -> pa.Array:
    known = _UNITS.get(unit.lower())
    if known is None:
        raise FunctionError(
            f"date_diff has no unit {unit[:50]!r}: it has {', '.join(('month', *_BETWEEN))}, and weeks are days / 7."
        )
    if known == "month":
        return pc.add(pc.multiply(pc.years_between(starts, stops), 12), pc.subtract(pc.month(stops), pc.month(starts)))
    return _BETWEEN[known](starts, stops)


_TIME = pa.timestamp("us")
TEXT_FUNCTIONS = (
    SqlFunction(
        "regexp_extract",
        (pa.string(), pa.string(), pa.int64()),
        pa.string(),
        partial(_by_constant, _extract, pa.string()),
    ),
    SqlFunction(
        "regexp_split",
        (pa.string(), pa.string()),
        pa.list_(pa.string()),
        partial(_by_constant, _split, pa.list_(pa.string())),
    ),
    SqlFunction(
        "string_split",
        (pa.string(), pa.string()),
        pa.list_(pa.string()),
        partial(_by_constant, _split_at, pa.list_(pa.string())),
    ),
    SqlFunction("date_diff", (pa.string(), _TIME, _TIME), pa.int64(), _difference),
)
