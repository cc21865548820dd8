"""Infer types from text: the narrowest type that gives back the text as written, otherwise string."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tiltyard.pipeline.sources.exact_text import (
    INTEGER,
    NOT_FINITE,
    NUMBER,
    OFFSET,
    parse_text,
    parse_utc_offset,
    round_trips_as_float64,
)

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
            return pa.list_(_null_to_string(self.items.infer_type(top=False) if self.items else pa.null()))
        if kind == "struct":
            return pa.struct(
                [(name, _null_to_string(profile.infer_type(top=False))) for name, profile in self.fields.items()]
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


def _null_to_string(dtype: pa.DataType) -> pa.DataType:
    """Return string for a column that is all null: it loses no value that comes later."""
    return pa.string() if pa.types.is_null(dtype) else dtype
