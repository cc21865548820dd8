"""Parse text as values of a type, exactly as written, and infer types from text.

The inferred type is the narrowest one that gives back the text as written, otherwise string.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation, Overflow
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

INTEGER = r"^(?:0|-?[1-9][0-9]{0,18})$"
"""A canonical integer: no leading zeros, no plus sign, no minus zero."""

NUMBER = r"^-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*(?:[eE][+-]?[0-9]+)?|[eE][+-][0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?)$"
"""A number as programs write it. `1E5` does not match: programs write a sign or a point; article codes do not."""

NOT_FINITE = r"^(?i:[+-]?(?:nan|inf|infinity))$"
OFFSET = r"(?:Z|[+-][0-9]{2}(?::?[0-9]{2})?)$"
UTC = ("Z", "+00:00", "+0000", "+00")

_SAFE_DIGITS = 15
"""Decimal digits that every float64 preserves."""

_MAX_DIGITS = 17


def parse_text(texts: pa.Array, dtype: pa.DataType, *, exact: bool) -> pa.Array:
    """Convert text to a type; with `exact`, only where the type gives back the text as written.

    Raises pa.ArrowInvalid with the first value that does not fit, pa.ArrowNotImplementedError where Arrow has no such
    cast.
    """
    if dtype == texts.type:
        return texts
    if exact and pa.types.is_integer(dtype):
        return _parse_integers(texts, dtype)
    if exact and pa.types.is_timestamp(dtype) and dtype.tz:
        _check_offsets(texts, dtype.tz)
    if exact and pa.types.is_floating(dtype):
        _check_precision(texts)
    parsed = texts.cast(dtype)
    if pa.types.is_floating(dtype):
        _check_overflow(texts, parsed)
    return parsed


def round_trips_as_float64(text: str) -> bool:
    """Return whether a float64 preserves all digits of a number as it is written."""
    try:
        written = Decimal(text)
    except InvalidOperation:
        return False
    try:
        digits = len(written.normalize().as_tuple().digits)
    except Overflow:
        return False
    if not written.is_finite() or digits <= _SAFE_DIGITS:
        return not written.is_finite() or abs(float(text)) != float("inf")
    held = float(text)
    if abs(held) == float("inf"):
        return False
    return (digits <= _MAX_DIGITS and Decimal(f"{held:.{digits - 1}e}") == written) or Decimal(held) == written


def parse_utc_offset(text: str) -> str | None:
    """Return the UTC offset that a time ends with, as Arrow names it (`UTC`, `+02:00`); None without one."""
    match = re.search(OFFSET, text)
    if match is None:
        return None
    if match[0] in UTC:
        return "UTC"
    digits = match[0][1:].replace(":", "").ljust(4, "0")
    return f"{match[0][0]}{digits[:2]}:{digits[2:]}"


def _parse_integers(texts: pa.Array, dtype: pa.DataType) -> pa.Array:
    trimmed = texts if texts.null_count == len(texts) else pc.ascii_trim_whitespace(texts)
    parsed = trimmed.cast(dtype)
    written = parsed.cast(texts.type)
    if not written.equals(trimmed):
        _raise_for_first(trimmed, pc.not_equal(written, trimmed), "the number does not give it back")
    return parsed


def _check_precision(texts: pa.Array) -> None:
    """Raise pa.ArrowInvalid for text that is not written as a number, or that a float64 would round."""
    trimmed = pc.ascii_trim_whitespace(texts)
    is_word = pc.invert(pc.match_substring_regex(trimmed, NUMBER))
    if pc.any(is_word).as_py():
        _raise_for_first(
            trimmed, pc.and_(is_word, pc.invert(pc.match_substring_regex(trimmed, NOT_FINITE))), "no number"
        )
    long = trimmed.filter(pc.greater(pc.binary_length(trimmed), _SAFE_DIGITS + 1))
    shortest = long.cast(pa.float64()).cast(
        long.type
    )  # most texts equal their shortest form and need no decimal arithmetic
    for text in long.filter(pc.not_equal(shortest, long)).to_pylist():
        if not round_trips_as_float64(text):
            raise pa.ArrowInvalid(f"'{text}' has more digits than a float64 holds")


def _check_overflow(texts: pa.Array, parsed: pa.Array) -> None:
    """Raise pa.ArrowInvalid for a finite number that became infinite."""
    infinite = pc.is_inf(parsed)
    if pc.any(infinite).as_py():
        trimmed = pc.ascii_trim_whitespace(texts)
        finite = pc.invert(pc.match_substring_regex(trimmed, NOT_FINITE))
        _raise_for_first(trimmed, pc.and_(infinite, finite), f"beyond what a {parsed.type} holds")


def _check_offsets(texts: pa.Array, zone: str) -> None:
    """Raise pa.ArrowInvalid for a time whose offset is not the type's."""
    for text in pc.unique(pc.utf8_slice_codeunits(texts, -6)).to_pylist():
        if text is not None and parse_utc_offset(text) != zone:
            raise pa.ArrowInvalid(f"a time ends with '{text}', and the column's zone is {zone}")


def _raise_for_first(texts: pa.Array, is_wrong: pa.Array, reason: str) -> None:
    refused = texts.filter(is_wrong)
    if len(refused):
        raise pa.ArrowInvalid(f"'{refused[0]}': {reason}")


_BOOLEAN = "^(?:true|True|TRUE|false|False|FALSE)$"
_DATE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
_CLOCK = r"[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?"
_MOMENT = rf"^[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}[ T](?:{_CLOCK}|[0-9]{{2}}:[0-9]{{2}})"
_NANOSECONDS = r"\.[0-9]{7,9}"


def infer_type(texts: pa.Array, *, clocks: bool = False) -> pa.DataType:
    """Infer the type of a column of text; null if all values are null. `clocks` allows times of day.

    Strings remain: numbers that are not written as a program writes them (`01234`, `+5`, `1E5`), integers beyond 64
    bits, numbers of more digits than a float64 holds, dates in another form than 2013-01-31, and times of differing
    offsets.
    """
    values = texts.drop_null()
    if not len(values):
        return pa.null()
    for dtype in _candidates(values, clocks=clocks):
        if pa.types.is_boolean(dtype) or pa.types.is_time(dtype) or _round_trips(values, dtype):
            return dtype
    return pa.string()


def merge_inferred_types(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return the type for values of both: string where they differ, except for integers among floats."""
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    if {one, other} == {pa.int64(), pa.float64()}:
        return pa.float64()
    naive = [dtype for dtype in (one, other) if pa.types.is_timestamp(dtype) and dtype.tz is None]
    return pa.timestamp("ns") if len(naive) == 2 else pa.string()  # both are times without a zone


def _candidates(values: pa.Array, *, clocks: bool) -> Iterable[pa.DataType]:
    trimmed = pc.ascii_trim_whitespace(values)
    if _all_match(values, _BOOLEAN):
        yield pa.bool_()
    if _all_match(trimmed, INTEGER):
        yield pa.int64()
        return
    numbers = pc.match_substring_regex(trimmed, NUMBER)
    if pc.any(numbers).as_py() and _all_match(trimmed.filter(pc.invert(numbers)), NOT_FINITE):
        yield pa.float64()
    if _all_match(values, _DATE):
        yield pa.date32()
    if clocks and _all_match(values, f"^{_CLOCK}$"):
        yield pa.time64("ns" if _any_match(values, _NANOSECONDS) else "us")
    if _all_match(values, f"{_MOMENT}$"):
        yield pa.timestamp(_unit(values))
    if _all_match(values, f"{_MOMENT}{OFFSET}"):
        zones = {parse_utc_offset(text) for text in pc.unique(pc.utf8_slice_codeunits(values, -6)).to_pylist()}
        if len(zones) == 1:
            yield pa.timestamp(_unit(values), zones.pop())


def _round_trips(values: pa.Array, dtype: pa.DataType) -> bool:
    try:
        parse_text(values, dtype, exact=True)
    except pa.ArrowInvalid:
        return False
    return True


def _all_match(values: pa.Array, pattern: str) -> bool:
    return bool(pc.all(pc.match_substring_regex(values, pattern), min_count=0).as_py())


def _any_match(values: pa.Array, pattern: str) -> bool:
    return bool(pc.any(pc.match_substring_regex(values, pattern)).as_py())


def _unit(values: pa.Array) -> str:
    return "ns" if _any_match(values, _NANOSECONDS) else "us"


class JsonInteger(str):
    """A whole number as written in JSON."""

    __slots__ = ()


class JsonFraction(str):
    """Any other number as written in JSON."""

    __slots__ = ()


@dataclass(slots=True)
class JsonProfile:
    """Statistics of the JSON values in one place: how many of each kind, and the texts that decide between types."""

    kinds: Counter[str] = field(default_factory=Counter)
    items: JsonProfile | None = None
    fields: dict[str, JsonProfile] = field(default_factory=dict)
    texts: set[str] = field(default_factory=set)
    inexact: bool = False

    def add(self, value: Any) -> None:
        """Add a value to the statistics; its numbers are JsonInteger and JsonFraction."""
        match value:
            case None:
                return
            case bool():
                self.kinds["bool"] += 1
            case JsonInteger():
                self._add_integer(value)
            case JsonFraction():
                self.kinds["float"] += 1
                self.inexact = self.inexact or not round_trips_as_float64(value)
            case str():
                self.kinds["text"] += 1
                self.texts.add(value)
            case list():
                self.kinds["list"] += 1
                self.items = self.items or JsonProfile()
                for item in value:
                    self.items.add(item)
            case dict():
                self.kinds["struct"] += 1
                for name, inner in value.items():
                    self.fields.setdefault(name, JsonProfile()).add(inner)

    def _add_integer(self, text: str) -> None:
        fits = re.fullmatch(INTEGER[1:-1], text) and -(1 << 63) <= int(text) < 1 << 63
        self.kinds["int" if fits else "float" if text == "-0" else "huge"] += 1
        self.inexact = self.inexact or not round_trips_as_float64(text)

    def merge(self, other: JsonProfile) -> None:
        """Add the statistics of other values of the same place."""
        self.kinds += other.kinds
        self.texts |= other.texts
        self.inexact = self.inexact or other.inexact
        if other.items:
            self.items = self.items or JsonProfile()
            self.items.merge(other.items)
        for name, profile in other.fields.items():
            self.fields.setdefault(name, JsonProfile()).merge(profile)

    def infer_type(self, *, top: bool = True) -> pa.DataType:
        """Return the type of most values. Times are inferred at the `top` only; nested ones stay text."""
        numbers = sum(self.kinds[kind] for kind in ("int", "float", "huge"))
        kinds = Counter({"number": numbers, **{kind: self.kinds[kind] for kind in ("bool", "text", "list", "struct")}})
        kind, count = kinds.most_common(1)[0]
        if not count:
            return pa.null()
        if kind == "number":
            return self._infer_number()
        if kind == "list":
            return pa.list_(null_to_string(self.items.infer_type(top=False) if self.items else pa.null()))
        if kind == "struct":
            return pa.struct(
                [(name, null_to_string(profile.infer_type(top=False))) for name, profile in self.fields.items()]
            )
        if kind == "text" and top:
            inferred = infer_type(pa.array(sorted(self.texts), pa.string()))
            return inferred if pa.types.is_temporal(inferred) else pa.string()
        return pa.bool_() if kind == "bool" else pa.string()

    @property
    def is_number(self) -> bool:
        """Return whether most values are numbers."""
        numbers = self.kinds["int"] + self.kinds["float"] + self.kinds["huge"]
        return numbers > 0 and numbers >= max(self.kinds[kind] for kind in ("bool", "text", "list", "struct"))

    def is_number_as_text(self) -> bool:
        """Return whether it has numbers that only text preserves, here or nested."""
        if self.is_number and pa.types.is_string(self._infer_number()):
            return True
        inner = [*self.fields.values(), *([self.items] if self.items else [])]
        return any(profile.is_number_as_text() for profile in inner)

    def _infer_number(self) -> pa.DataType:
        if self.kinds["huge"] or (self.kinds["float"] and self.inexact):
            return pa.string()
        return pa.float64() if self.kinds["float"] else pa.int64()


def null_to_string(dtype: pa.DataType) -> pa.DataType:
    """Return string for a column that is all null: it loses no value that comes later."""
    return pa.string() if pa.types.is_null(dtype) else dtype
