"""Random rows of every type that filters compare, and random filters of them, some of which Lance refuses."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hypothesis.strategies import SearchStrategy

_INTEGERS = {f"{sign}{bits}": pa.type_for_alias(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)}
_EDGES = [*(2**bits + near for bits in (7, 8, 15, 16, 24, 31, 32, 53, 63, 64) for near in (-1, 0, 1)), 10**25]
_FLOATS = [0.0, -0.0, 1.0, -1.0, 0.1, 1.5, 2.5, 3.0, 1e-45, 1e38, -1e38, 1e308, 9.3e18, 2.0**53 + 2]
_FLOATS += [2.0**24, 2.0**24 + 2]
_NANS = [math.nan, -math.nan, math.inf, -math.inf]
_TEXTS = ["", "a", "A", "b", "ab", "a'b", "é", "ﬀ", "日本", "😀", "1", "2020-01-01", "true", "null", "%", "a%"]
_DAYS = [date(1970, 1, 1), date(1969, 12, 31), date(2020, 2, 29), date(2024, 5, 6), date(1700, 1, 1), date(2199, 1, 1)]
_TIMES = [
    *(datetime(day.year, day.month, day.day, tzinfo=UTC) for day in _DAYS),
    *(datetime(2024, 5, 6, 7, 8, 9, part, tzinfo=UTC) for part in (0, 1, 1000, 500_000, 123_456)),
    datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    datetime(1600, 1, 1, tzinfo=UTC),
    datetime(2500, 1, 1, tzinfo=UTC),
]
_TIMESTAMPS = {f"t_{unit}": pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")}
TYPES: Mapping[str, pa.DataType] = {
    **{f"i{name}": type_ for name, type_ in _INTEGERS.items()},
    "f16": pa.float16(),
    "f32": pa.float32(),
    "f64": pa.float64(),
    "flag": pa.bool_(),
    "text": pa.string(),
    "long_text": pa.large_string(),
    "day": pa.date32(),
    "day64": pa.date64(),
    **_TIMESTAMPS,
    "t_zone": pa.timestamp("us", "UTC"),
    "money": pa.decimal128(10, 2),
    "raw": pa.binary(),
    "kind": pa.dictionary(pa.int8(), pa.string()),
    "Mixed": pa.int64(),
    "two words": pa.int32(),
    "order": pa.int64(),
    "twice": pa.int64(),
    "Twice": pa.int64(),
    "größe": pa.int64(),
    "part": pa.struct([("x", pa.int64())]),
}
_KEYWORDS = ("order", "two words", "größe", "Mixed", "Twice")


def _value(type_: pa.DataType, number: int) -> Any:
    """Return one of a few values of a type, edges of it among them."""
    types = pa.types
    if types.is_dictionary(type_) or types.is_string(type_) or types.is_large_string(type_):
        return _TEXTS[number % len(_TEXTS)]
    if types.is_binary(type_):
        return _TEXTS[number % len(_TEXTS)].encode()
    if types.is_boolean(type_):
        return bool(number % 2)
    if types.is_integer(type_):
        least = -(2 ** (type_.bit_width - 1)) if types.is_signed_integer(type_) else 0
        greatest = 2 ** (type_.bit_width - (1 if types.is_signed_integer(type_) else 0)) - 1
        return [least, least + 1, greatest, greatest - 1, 0, 1, 2, 3, 5, max(least, -1)][number % 10]
    if types.is_floating(type_):
        values = [*_FLOATS, *_NANS]
        value = values[number % len(values)]
        fits = not math.isfinite(value) or abs(value) < {16: 6e4, 32: 3e38, 64: math.inf}[type_.bit_width]
        return value if fits else 2.0
    if types.is_date(type_):
        return _DAYS[number % len(_DAYS)]
    if types.is_timestamp(type_):
        times = _TIMES[:-2] if type_.unit == "ns" else _TIMES  # others do not fit
        time = times[number % len(times)]
        per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[type_.unit]
        seconds = (time.replace(microsecond=0) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(seconds=1)
        return seconds * per_second + time.microsecond * per_second // 10**6
    if types.is_decimal(type_):
        return Decimal(number % 7) / 4
    return {"x": number % 5}


def _column(type_: pa.DataType, numbers: list[int | None]) -> pa.Array:
    values = [None if number is None else _value(type_, number) for number in numbers]
    if pa.types.is_floating(type_) and not any(value is None for value in values):
        return pa.array(np.array(values, type_.to_pandas_dtype()))  # keeps the sign of NaN
    return pa.array(values, type_)


@st.composite
def tables(draw: st.DrawFn, *, max_rows: int = 40) -> pa.Table:
    """Draw rows with a column of each type: some without nulls, some with, some of nulls alone."""
    count = draw(st.integers(1, max_rows))
    numbers = draw(st.lists(st.integers(0, 40), min_size=count, max_size=count))
    seed = draw(st.integers(0, 1000))
    columns = {}
    for place, (name, type_) in enumerate(TYPES.items()):
        nulls = (seed + place * 7) % 5
        column = [
            None if nulls == 4 or (nulls and (number + place + row) % (2 + nulls) == 0) else number + place * row
            for row, number in enumerate(numbers)
        ]
        columns[name] = _column(type_, column)
    return pa.table(columns)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


_NUMBERS = st.one_of(
    st.sampled_from([0, 1, 2, 3, 5, 7]),
    st.sampled_from(_EDGES),
    st.sampled_from(_EDGES).map(lambda number: -number),
).map(str)
_FRACTIONS = st.sampled_from(
    [
        *("0.0", "-0.0", "0.1", "1.0", "1.5", "2.5", "1e0", "1E-45", "3e38", "1e39", "1e308", "1e309", "-0", "-1.5"),
        *("16777217.0", "007", "1.", ".5", "+1", "- 1", "--1", "0x1", "1_0", "9007199254740993", "9.3e18", "00.10"),
    ]
)
_TEXT_LITERALS = st.sampled_from(_TEXTS).map(_quoted)
_TIME_TEXTS = st.one_of(
    st.sampled_from(_TIMES).map(lambda time: time.strftime("%Y-%m-%d %H:%M:%S")),
    st.sampled_from(_TIMES).map(lambda time: time.strftime("%Y-%m-%d %H:%M:%S.%f")),
    st.sampled_from(_TIMES).map(lambda time: time.strftime("%Y-%m-%d %H:%M:%S.") + f"{time.microsecond // 1000:03}"),
    st.sampled_from(_TIMES).map(lambda time: time.strftime("%Y-%m-%dT%H:%M:%S")),
    st.sampled_from(_TIMES).map(lambda time: time.strftime("%Y-%m-%d")),
    st.sampled_from(
        [
            *("2024-02-30", "2024-13-01", "1600-01-01 00:00:00", "2500-01-01 00:00:00", "2024-05-06 25:00:00", "now"),
            *("2024-05-06 07:08:09+02:00", "2024-05-06 07:08:60", "2024-05-06 07:08", "0001-01-01", "2024-5-6"),
        ]
    ),
)
_LITERALS = st.one_of(
    _NUMBERS,
    _FRACTIONS,
    _TEXT_LITERALS,
    _TIME_TEXTS.map(_quoted),
    st.tuples(st.sampled_from(["timestamp ", "TIMESTAMP", "date ", "Date "]), _TIME_TEXTS.map(_quoted)).map("".join),
    st.sampled_from(["true", "FALSE", "null", "NULL", "'nan'", "X'00'", "current_date", "1 + 1", "(1)"]),
)


def _fitting(type_: pa.DataType) -> SearchStrategy[str]:
    """Return constants of a type."""
    types = pa.types
    if types.is_floating(type_):
        return st.one_of(_FRACTIONS, _NUMBERS, st.sampled_from(_FLOATS).map(repr))
    if types.is_integer(type_):
        return st.one_of(_NUMBERS, st.integers(0, 9).map(lambda number: str(_value(type_, number))))
    if types.is_decimal(type_):
        return st.one_of(_NUMBERS, _FRACTIONS)
    if types.is_boolean(type_):
        return st.sampled_from(["true", "false", "TRUE", "1", "0"])
    if types.is_date(type_):
        return _TIME_TEXTS.map(_quoted).map("date ".__add__)
    if types.is_timestamp(type_):
        return _TIME_TEXTS.map(_quoted).map("timestamp ".__add__)
    return _TEXT_LITERALS


@st.composite
def _comparisons(draw: st.DrawFn) -> str:
    name = draw(st.sampled_from(list(TYPES)))
    type_ = TYPES[name]
    literals = draw(st.sampled_from([_fitting(type_)] * 9 + [_LITERALS]))
    written = f"`{name}`" if name in _KEYWORDS or draw(st.integers(0, 9)) == 0 else name
    if draw(st.integers(0, 19)) == 0:
        written = draw(st.sampled_from([name, name.upper(), f"`{name.upper()}`", f'"{name}"', f"{name}.x", "nowhere"]))
    literal = draw(literals)
    match draw(st.integers(0, 11)):
        case 0 | 1 | 2 | 3:
            operator = draw(st.sampled_from(["=", "<", "<=", ">", ">=", "!=", "<>", "=="]))
            return f"{written} {operator} {literal}"
        case 4:
            return f"{literal} {draw(st.sampled_from(['=', '<', '<=', '>', '>=', '!=', '<>']))} {written}"
        case 5:
            return f"{written} IS {draw(st.sampled_from(['', 'NOT ']))}NULL"
        case 6 | 7:
            listed = ", ".join([literal, *draw(st.lists(literals, max_size=4))])
            return f"{written} {draw(st.sampled_from(['', 'not ']))}in ({listed})"
        case 8 | 9:
            return f"{written} {draw(st.sampled_from(['', 'NOT ']))}BETWEEN {literal} AND {draw(literals)}"
        case 10:
            behind = draw(st.sampled_from(["", f" = {written}", " IS TRUE", " LIKE 'a%'"]))
            return f"{written}{behind}"
        case _:
            return f"{written}{draw(st.sampled_from(['=', '<', '>=', '<>']))}{literal}"


def filters() -> SearchStrategy[str]:
    """Return filters of comparisons joined by AND, OR and NOT."""

    def join(terms: SearchStrategy[str]) -> SearchStrategy[str]:
        joined = st.tuples(terms, st.sampled_from([" AND ", " OR ", " and ", " or "]), terms).map("".join)
        return st.one_of(joined, joined.map("({})".format), terms.map("NOT {}".format), terms.map("not ({})".format))

    return st.recursive(_comparisons(), join, max_leaves=6)
