"""Limit how many values an expression may produce, judged by its text, before Spark evaluates any of it.

Spark evaluates constants while it plans, in the driver: `size(sequence(1, 2000000000))` would exhaust its memory before
a task has begun. So a function that produces as many elements or bytes as an argument says needs an argument with a
known bound: a literal, or `least(…, 1000)`. The product of nested functions is limited for each row. Everything else
that grows (`concat`, `replace`, `collect_list`, joins) is limited by the heap of the driver and of executors:
exhausting it fails only the job that did.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from typing import Any

from lance_namespace.errors import InvalidInputError

from tiltyard.pipeline.spark_sql.spark_plans import class_name, literal_type, literal_value, to_list

MAX_VALUES_PER_ROW = 1_000_000
"""Elements, bytes or rows that functions may produce for one row, nested ones multiplied."""

_COUNT_ARGUMENTS: Mapping[str, tuple[int, int]] = {
    "array_insert": (1, 100_000),
    "array_repeat": (1, 100_000),
    "lpad": (1, 100_000),
    "randstr": (0, 100_000),
    "repeat": (1, 100_000),
    "rpad": (1, 100_000),
    "space": (0, 100_000),
    "stack": (0, 1_000),
}
"""Functions that produce as many elements, bytes or rows as an argument says: its position, and its maximum."""

_REPEATING = frozenset({"array_repeat", "repeat"})
"""Functions that repeat their first argument, whose literals count by their length."""

_SIZE_ARGUMENTS: Mapping[str, tuple[tuple[int, int], ...]] = {
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
"""Functions whose memory depends on optional arguments: their positions, and their maximum magnitude."""

_MAX_ARGUMENTS: Mapping[str, int] = {
    "from_csv": 2,
    "from_json": 2,
    "schema_of_csv": 1,
    "schema_of_json": 1,
    "session_window": 2,
    "to_csv": 1,
    "to_json": 1,
}
"""Functions whose trailing options are refused: the number of arguments without options."""

_SCHEMA_ARGUMENTS: Mapping[str, int] = {"from_csv": 1, "from_json": 1, "try_variant_get": 2, "variant_get": 2}
"""Functions that take a type as text: its position. Types in JSON may name JVM classes, which Spark instantiates."""

_FORMATS = frozenset({"format_string", "printf"})
_MAX_DIGITS = 100
_MIN_DEVIATION = 0.005
_MAX_WINDOWS = 100
"""Sliding windows of `window` that a row may be in."""
_MAX_CUBE_COLUMNS = 10
"""CUBE of so many columns produces a thousand groupings."""

_WIDE_NUMBER = re.compile(r"\d{5,}")
_DURATION = re.compile(r"\s*(\d{1,9})\s+(second|minute|hour|day|week)s?\s*", re.IGNORECASE)
_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}
_DAY_MICROSECONDS = 86_400_000_000
"""A day in Spark's unit of times and intervals."""


def count_values(expression: Any) -> int:
    """Return how many elements or bytes an expression may produce, at least 1. Raises InvalidInputError."""
    nested = [count_values(child) for child in to_list(expression.children())]
    if class_name(expression) == "UnresolvedGenerator":  # of a LATERAL VIEW
        arguments = to_list(expression.children())
        count = _check_call(str(expression.name().funcName()).lower(), arguments)
    elif class_name(expression) == "UnresolvedFunction":
        arguments = to_list(expression.arguments())
        count = _check_call(_function_name(expression), arguments)
    else:
        return math.prod(nested) if class_name(expression) == "LambdaFunction" else max(nested, default=1)
    has_lambda = any(class_name(argument) == "LambdaFunction" for argument in arguments)
    return count * (math.prod(nested) if has_lambda else max(nested, default=1))


def check_value_count(count: int) -> None:
    """Raise InvalidInputError if a query may produce too many values for one row."""
    if count > MAX_VALUES_PER_ROW:
        raise InvalidInputError(
            f"The query may make {count:,} values of one row, by functions within each other, and "
            f"{MAX_VALUES_PER_ROW:,} are the most: make fewer, or store what is between as a view of its own."
        )


def check_groupings(expressions: Sequence[Any]) -> None:
    """Check the expressions of an aggregation. Raises InvalidInputError for groupings that multiply."""
    groupings = [
        expression for expression in expressions if class_name(expression) in ("Cube", "Rollup", "GroupingSets")
    ]
    if len(groupings) > 1:
        raise InvalidInputError("A query has one CUBE, ROLLUP or GROUPING SETS in a GROUP BY, none within another.")
    if any(
        class_name(expression) == "Cube" and expression.children().size() > _MAX_CUBE_COLUMNS
        for expression in groupings
    ):
        raise InvalidInputError(
            f"CUBE takes at most {_MAX_CUBE_COLUMNS} columns: it makes groupings of all their subsets."
        )


def _check_call(name: str, arguments: Sequence[Any]) -> int:
    """Check a function call; return how many values it produces. Raises InvalidInputError."""
    max_arguments = _MAX_ARGUMENTS.get(name)
    if max_arguments is not None and len(arguments) > max_arguments:
        raise InvalidInputError(
            f"A query calls {name} without options: leave out what is behind argument {max_arguments}."
        )
    for position, limit in _SIZE_ARGUMENTS.get(name, ()):
        _check_size(name, arguments, position, limit)
    if name in _SCHEMA_ARGUMENTS:
        _check_schema(name, arguments, _SCHEMA_ARGUMENTS[name])
    if check := _CALL_CHECKS.get(name):
        check(name, arguments)
    if name == "sequence":
        return _sequence_length(arguments)
    if name not in _COUNT_ARGUMENTS:
        return 1
    position, limit = _COUNT_ARGUMENTS[name]
    count = _upper_bound(arguments[position]) if position < len(arguments) else 1
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
    value = literal_value(arguments[position])
    if not isinstance(value, int) or abs(value) > limit:
        raise InvalidInputError(f"Argument {position + 1} of {name} is a literal up to {limit:,} in a query.")


def _check_schema(name: str, arguments: Sequence[Any], position: int) -> None:
    if position >= len(arguments):
        return
    argument = arguments[position]
    is_derived = class_name(argument) == "UnresolvedFunction" and _function_name(argument).startswith("schema_")
    text = literal_value(argument)
    if not is_derived and (not isinstance(text, str) or any(character in text for character in "{}\"'\\")):
        raise InvalidInputError(f"{name} takes its type as a literal in a query, such as 'a INT, b ARRAY<STRING>'.")


def _check_format(name: str, arguments: Sequence[Any]) -> None:
    text = literal_value(arguments[0]) if arguments else ""
    if not isinstance(text, str) or _WIDE_NUMBER.search(text):
        raise InvalidInputError(f"{name} takes its format as a literal in a query, with widths of up to four digits.")


def _check_digits(name: str, arguments: Sequence[Any]) -> None:
    digits = literal_value(arguments[1]) if len(arguments) > 1 else 0
    if not isinstance(digits, str) and (not isinstance(digits, int) or abs(digits) > _MAX_DIGITS):
        raise InvalidInputError(f"{name} takes a format, or up to {_MAX_DIGITS} digits, as a literal in a query.")


def _check_deviation(name: str, arguments: Sequence[Any]) -> None:
    if len(arguments) < 2:
        return
    text = literal_value(arguments[1])
    try:
        is_valid = text is not None and float(text) >= _MIN_DEVIATION
    except ValueError:
        is_valid = False
    if not is_valid:
        raise InvalidInputError(f"{name} takes a literal of at least {_MIN_DEVIATION} as its deviation in a query.")


def _check_window(name: str, arguments: Sequence[Any]) -> None:
    if len(arguments) < 3:
        return
    duration, slide = (_DURATION.fullmatch(str(literal_value(argument))) for argument in arguments[1:3])
    if duration and slide:
        seconds = [int(match[1]) * _SECONDS[match[2].lower()] for match in (duration, slide)]
        if 0 < seconds[0] <= _MAX_WINDOWS * seconds[1]:
            return
    raise InvalidInputError(
        f"A row is in at most {_MAX_WINDOWS} windows: write both durations as literals, such as '1 hour', '5 minutes'."
    )


_CALL_CHECKS: Mapping[str, Callable[[str, Sequence[Any]], None]] = {
    "approx_count_distinct": _check_deviation,
    "format_number": _check_digits,
    "format_string": _check_format,
    "printf": _check_format,
    "window": _check_window,
}


def _upper_bound(expression: Any) -> int | None:
    """Return the maximum of an integer expression; None if it is not known."""
    if class_name(expression) == "UnresolvedFunction" and _function_name(expression) == "least":
        bounds = [
            bound for argument in to_list(expression.arguments()) if (bound := _upper_bound(argument)) is not None
        ]
        return min(bounds, default=None)
    value = literal_value(expression)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _text_length(expression: Any) -> int:
    """Return the total length of the literals in an expression."""
    value = literal_value(expression)
    length = len(value) if isinstance(value, str) else 0
    return length + sum(_text_length(child) for child in to_list(expression.children()))


def _sequence_length(arguments: Sequence[Any]) -> int:
    """Return the maximum length of `sequence`. Raises InvalidInputError if it is unknown or too large."""
    length = None
    if len(arguments) in (2, 3):
        start, stop = arguments[:2]
        step = _literal_step(arguments[2]) if len(arguments) == 3 else _default_step(start)
        span = _span(start, stop, arguments[2] if len(arguments) == 3 else None)
        if step and span is not None:
            length = abs(span) // abs(step) + 1
    if length is None or length > MAX_VALUES_PER_ROW:
        raise InvalidInputError(
            "The query makes a sequence whose length is not bounded: write its ends and its step as literals, or as "
            f"sequence(a, least(b, a + 1000), 1). It has at most {MAX_VALUES_PER_ROW:,} elements."
        )
    return int(length)


def _span(start: Any, stop: Any, step: Any) -> int | None:
    """Return the maximum distance of a sequence's ends, in integers or microseconds; None if unknown.

    With a literal step a sequence cannot run in the other direction: a bound on one end is enough.
    """
    first, last = _literal_point(start), _literal_point(stop)
    if first is not None and last is not None:
        return last - first
    if step is None or class_name(stop) != "UnresolvedFunction" or _function_name(stop) != "least":
        return None
    spans = []
    for argument in to_list(stop.arguments()):
        if first is not None and (point := _literal_point(argument)) is not None:
            spans.append(point - first)
        elif (
            class_name(argument) == "Add"
            and str(argument.left()) == str(start)
            and (offset := _literal_step(argument.right())) is not None
        ):
            in_days = _is_interval(step) and not _is_interval(argument.right())  # a date takes days as plain numbers
            if _is_interval(step) or not _is_interval(argument.right()):
                spans.append(offset * _DAY_MICROSECONDS if in_days else offset)
    return min(spans, default=None)


def _literal_point(expression: Any) -> int | None:
    """Return a literal end of a sequence as an integer, of dates and times in microseconds."""
    if class_name(expression) == "UnresolvedFunction" and _function_name(expression) == "to_date":
        return _literal_day(expression.arguments().apply(0)) if expression.arguments().size() == 1 else None
    value = literal_value(expression)
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return (
        value * _DAY_MICROSECONDS
        if class_name(expression) == "Literal" and literal_type(expression) == "date"
        else value
    )


def _literal_day(expression: Any) -> int | None:
    """Return the day that a literal text names, in microseconds."""
    text = literal_value(expression)
    try:
        day = date.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return None if day is None else (day - date(1970, 1, 1)).days * _DAY_MICROSECONDS


def _literal_step(expression: Any) -> int | None:
    """Return a literal step as an integer, of intervals in microseconds; of months, as days of the shortest month."""
    value = literal_value(expression)
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    has_months = _is_interval(expression) and any(unit in literal_type(expression) for unit in ("month", "year"))
    return value * 28 * _DAY_MICROSECONDS if has_months else value


def _is_interval(expression: Any) -> bool:
    return class_name(expression) == "Literal" and literal_type(expression).startswith("interval")


def _default_step(start: Any) -> int:
    return (
        _DAY_MICROSECONDS
        if class_name(start) == "Literal" and literal_type(start) in ("date", "timestamp", "timestamp_ntz")
        else 1
    )


def _function_name(function: Any) -> str:
    return str(to_list(function.nameParts())[-1]).lower()
