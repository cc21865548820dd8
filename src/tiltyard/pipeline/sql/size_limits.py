"""How much an expression may make, judged by its text alone, before Spark evaluates any of it.

Spark evaluates constants while it plans, in the driver: `size(sequence(1, 2000000000))` would take its memory before a
task has begun. So a function that makes as many elements or bytes as an argument says needs one that is known: a
literal, or `least(…, 1000)`. What a query makes of one row this way is bounded as a whole, where one makes more of
what another one made. Everything else that grows (`concat`, `replace`, `collect_list`, joins) has the heap of the
driver and of executors for its bound: their end costs the job that came to it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from typing import Any

from lance_namespace.errors import InvalidInputError

from tiltyard.pipeline.sql.spark_plans import kind, literal, sequence, type_of

MOST_MADE = 1_000_000
"""How many elements, bytes or rows functions may make of one row, one of what another has made included."""

_COUNTS: Mapping[str, tuple[int, int]] = {
    "array_insert": (1, 100_000),
    "array_repeat": (1, 100_000),
    "lpad": (1, 100_000),
    "randstr": (0, 100_000),
    "repeat": (1, 100_000),
    "rpad": (1, 100_000),
    "space": (0, 100_000),
    "stack": (0, 1_000),
}
"""Functions that make as many elements, bytes or rows as an argument says: its position, and the most it may say."""

_REPEATING = frozenset({"array_repeat", "repeat"})
"""Those that make so many of their first argument, whose literals count by their length."""

_SIZES: Mapping[str, tuple[tuple[int, int], ...]] = {
    "approx_top_k": ((1, 10_000), (2, 100_000)),
    "bround": ((1, 100),),
    "ceil": ((1, 100),),
    "ceiling": ((1, 100),),
    "floor": ((1, 100),),
    "histogram_numeric": ((1, 10_000),),
    "max_by": ((2, 10_000),),
    "min_by": ((2, 10_000),),
    "round": ((1, 100),),
}
"""Functions that take memory as an argument says, where there is one: positions, and the most either way."""

_ARGUMENTS: Mapping[str, int] = {
    "from_csv": 2,
    "from_json": 2,
    "schema_of_csv": 1,
    "schema_of_json": 1,
    "session_window": 2,
    "to_csv": 1,
    "to_json": 1,
}
"""Functions that take options behind their arguments, which are refused: how many arguments are left."""

_SCHEMAS: Mapping[str, int] = {"from_csv": 1, "from_json": 1, "try_variant_get": 2, "variant_get": 2}
"""Functions that take a type as text: its position. As JSON it may name classes of the JVM, which Spark makes."""

_FORMATS = frozenset({"format_string", "printf"})
_MOST_DIGITS = 100
_LEAST_DEVIATION = 0.005
_MOST_WINDOWS = 100
"""How many windows of `window` a row may be in."""
_MOST_CUBED = 10
"""Of so many columns CUBE makes a thousand groupings."""

_WIDE = re.compile(r"\d{5,}")
_DURATION = re.compile(r"\s*(\d{1,9})\s+(second|minute|hour|day|week)s?\s*", re.IGNORECASE)
_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}
_DAY = 86_400_000_000
"""Microseconds, as Spark holds times and intervals."""


def made_by(expression: Any) -> int:
    """Return how many elements or bytes an expression may make, at least 1. Raises InvalidInputError."""
    below = [made_by(child) for child in sequence(expression.children())]
    if kind(expression) == "UnresolvedGenerator":  # of a LATERAL VIEW
        arguments = sequence(expression.children())
        own = _check_call(str(expression.name().funcName()).lower(), arguments)
    elif kind(expression) == "UnresolvedFunction":
        arguments = sequence(expression.arguments())
        own = _check_call(_called(expression), arguments)
    else:
        return math.prod(below) if kind(expression) == "LambdaFunction" else max(below, default=1)
    applies = any(kind(argument) == "LambdaFunction" for argument in arguments)
    return own * (math.prod(below) if applies else max(below, default=1))


def check_total(made: int) -> None:
    """Raise InvalidInputError if a query may make too much of one row."""
    if made > MOST_MADE:
        raise InvalidInputError(
            f"The query may make {made:,} values of one row, by functions within each other, and {MOST_MADE:,} are the "
            "most: make fewer, or store what is between as a view of its own."
        )


def check_groupings(found: Sequence[Any]) -> None:
    """Check the expressions of an aggregation. Raises InvalidInputError for groupings that multiply."""
    several = [one for one in found if kind(one) in ("Cube", "Rollup", "GroupingSets")]
    if len(several) > 1:
        raise InvalidInputError("A query has one CUBE, ROLLUP or GROUPING SETS in a GROUP BY, none within another.")
    if any(kind(one) == "Cube" and one.children().size() > _MOST_CUBED for one in several):
        raise InvalidInputError(f"CUBE takes at most {_MOST_CUBED} columns: it makes groupings of all their subsets.")


def _check_call(name: str, arguments: Sequence[Any]) -> int:
    """Check a call; how much it makes. Raises InvalidInputError."""
    most = _ARGUMENTS.get(name)
    if most is not None and len(arguments) > most:
        raise InvalidInputError(f"A query calls {name} without options: leave out what is behind argument {most}.")
    for position, limit in _SIZES.get(name, ()):
        _check_size(name, arguments, position, limit)
    if name in _SCHEMAS:
        _check_schema(name, arguments, _SCHEMAS[name])
    if check := _CHECKS.get(name):
        check(name, arguments)
    if name == "sequence":
        return _sequence_length(arguments)
    if name not in _COUNTS:
        return 1
    position, limit = _COUNTS[name]
    count = _most(arguments[position]) if position < len(arguments) else 1
    if count is None or count > limit:
        raise InvalidInputError(
            f"The query makes a value by {name} whose size is not bounded: write a literal up to {limit:,}, or "
            f"least(…, {limit}), as its argument {position + 1}."
        )
    repeated = _text_length(arguments[0]) if name in _REPEATING else 1
    return max(1, count) * max(1, repeated)


def _check_size(name: str, arguments: Sequence[Any], position: int, limit: int) -> None:
    if position >= len(arguments):
        return
    found = literal(arguments[position])
    if not isinstance(found, int) or abs(found) > limit:
        raise InvalidInputError(f"Argument {position + 1} of {name} is a literal up to {limit:,} in a query.")


def _check_schema(name: str, arguments: Sequence[Any], position: int) -> None:
    if position >= len(arguments):
        return
    given = arguments[position]
    derived = kind(given) == "UnresolvedFunction" and _called(given).startswith("schema_")
    text = literal(given)
    if not derived and (not isinstance(text, str) or any(sign in text for sign in "{}\"'\\")):
        raise InvalidInputError(f"{name} takes its type as a literal in a query, such as 'a INT, b ARRAY<STRING>'.")


def _check_format(name: str, arguments: Sequence[Any]) -> None:
    text = literal(arguments[0]) if arguments else ""
    if not isinstance(text, str) or _WIDE.search(text):
        raise InvalidInputError(f"{name} takes its format as a literal in a query, with widths of up to four digits.")


def _check_digits(name: str, arguments: Sequence[Any]) -> None:
    digits = literal(arguments[1]) if len(arguments) > 1 else 0
    if not isinstance(digits, str) and (not isinstance(digits, int) or abs(digits) > _MOST_DIGITS):
        raise InvalidInputError(f"{name} takes a format, or up to {_MOST_DIGITS} digits, as a literal in a query.")


def _check_deviation(name: str, arguments: Sequence[Any]) -> None:
    if len(arguments) < 2:
        return
    text = literal(arguments[1])
    try:
        fine = text is not None and float(text) >= _LEAST_DEVIATION
    except ValueError:
        fine = False
    if not fine:
        raise InvalidInputError(f"{name} takes a literal of at least {_LEAST_DEVIATION} as its deviation in a query.")


def _check_window(name: str, arguments: Sequence[Any]) -> None:
    if len(arguments) < 3:
        return
    whole, slide = (_DURATION.fullmatch(str(literal(argument))) for argument in arguments[1:3])
    if whole and slide:
        seconds = [int(found[1]) * _SECONDS[found[2].lower()] for found in (whole, slide)]
        if 0 < seconds[0] <= _MOST_WINDOWS * seconds[1]:
            return
    raise InvalidInputError(
        f"A row is in at most {_MOST_WINDOWS} windows: write both durations as literals, such as '1 hour', '5 minutes'."
    )


_CHECKS: Mapping[str, Callable[[str, Sequence[Any]], None]] = {
    "approx_count_distinct": _check_deviation,
    "format_number": _check_digits,
    "format_string": _check_format,
    "printf": _check_format,
    "window": _check_window,
}


def _most(expression: Any) -> int | None:
    """Return the most that a whole number can be; None if that is not known."""
    if kind(expression) == "UnresolvedFunction" and _called(expression) == "least":
        known = [most for one in sequence(expression.arguments()) if (most := _most(one)) is not None]
        return min(known, default=None)
    found = literal(expression)
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def _text_length(expression: Any) -> int:
    """Return how long the literals in an expression are together."""
    found = literal(expression)
    own = len(found) if isinstance(found, str) else 0
    return own + sum(_text_length(child) for child in sequence(expression.children()))


def _sequence_length(arguments: Sequence[Any]) -> int:
    """Return the most elements of `sequence`. Raises InvalidInputError if that is not known, or too much."""
    length = None
    if len(arguments) in (2, 3):
        start, stop = arguments[:2]
        step = _step(arguments[2]) if len(arguments) == 3 else _default_step(start)
        span = _span(start, stop, arguments[2] if len(arguments) == 3 else None)
        if step and span is not None:
            length = abs(span) // abs(step) + 1
    if length is None or length > MOST_MADE:
        raise InvalidInputError(
            "The query makes a sequence whose length is not bounded: write its ends and its step as literals, or as "
            f"sequence(a, least(b, a + 1000), 1). It has at most {MOST_MADE:,} elements."
        )
    return int(length)


def _span(start: Any, stop: Any, step: Any) -> int | None:
    """Return how far apart the ends of a sequence are at most, in whole numbers or microseconds; None if unknown.

    With a step that is written down a sequence cannot run the other way: an end that has a bound on one side will do.
    """
    first, last = _point(start), _point(stop)
    if first is not None and last is not None:
        return last - first
    if step is None or kind(stop) != "UnresolvedFunction" or _called(stop) != "least":
        return None
    spans = []
    for one in sequence(stop.arguments()):
        if first is not None and (point := _point(one)) is not None:
            spans.append(point - first)
        elif kind(one) == "Add" and str(one.left()) == str(start) and (more := _step(one.right())) is not None:
            days = _is_interval(step) and not _is_interval(one.right())  # a date takes days as plain numbers
            if _is_interval(step) or not _is_interval(one.right()):
                spans.append(more * _DAY if days else more)
    return min(spans, default=None)


def _point(expression: Any) -> int | None:
    """Return a literal end of a sequence as a whole number, of dates and times in microseconds."""
    if kind(expression) == "UnresolvedFunction" and _called(expression) == "to_date":
        return _day(expression.arguments().apply(0)) if expression.arguments().size() == 1 else None
    found = literal(expression)
    if not isinstance(found, int) or isinstance(found, bool):
        return None
    return found * _DAY if kind(expression) == "Literal" and type_of(expression) == "date" else found


def _day(expression: Any) -> int | None:
    """Return the day that a literal text names, in microseconds."""
    text = literal(expression)
    try:
        day = date.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return None if day is None else (day - date(1970, 1, 1)).days * _DAY


def _step(expression: Any) -> int | None:
    """Return a literal step as a whole number, of intervals in microseconds; of months, days of the shortest one."""
    found = literal(expression)
    if not isinstance(found, int) or isinstance(found, bool):
        return None
    months = _is_interval(expression) and any(unit in type_of(expression) for unit in ("month", "year"))
    return found * 28 * _DAY if months else found


def _is_interval(expression: Any) -> bool:
    return kind(expression) == "Literal" and type_of(expression).startswith("interval")


def _default_step(start: Any) -> int:
    return _DAY if kind(start) == "Literal" and type_of(start) in ("date", "timestamp", "timestamp_ntz") else 1


def _called(function: Any) -> str:
    return str(sequence(function.nameParts())[-1]).lower()
