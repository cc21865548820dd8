"""Types guessed from text: the narrowest that gives back what was written. What is none of them stays text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tiltyard.pipeline.sources.exact_text import INTEGER, NOT_FINITE, NUMBER, OFFSET, gives_back, parse_text, utc_offset

_BOOLEAN = "^(?:true|True|TRUE|false|False|FALSE)$"
_DATE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
_CLOCK = r"[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?"
_MOMENT = rf"^[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}[ T](?:{_CLOCK}|[0-9]{{2}}:[0-9]{{2}})"
_FINE = r"\.[0-9]{7,9}"
_LONGEST_INTEGER = 19


def guess_type(texts: pa.Array, *, clocks: bool = False) -> pa.DataType:
    """Guess the type of a column of text; null where all of it is null. `clocks` allows times of the day.

    Numbers that are not written as a program writes them (`01234`, `+5`, `1E5`), integers beyond 64 bits, numbers of
    more digits than a float64 holds, dates in another form than 2013-01-31 and times of differing offsets are text.
    """
    values = texts.drop_null()
    if not len(values):
        return pa.null()
    for dtype in _candidates(values, clocks=clocks):
        if pa.types.is_boolean(dtype) or pa.types.is_time(dtype) or _holds(values, dtype):
            return dtype
    return pa.string()


def merge_guesses(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """The guess for values of both: text where they differ, but for whole numbers among others."""
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    if {one, other} == {pa.int64(), pa.float64()}:
        return pa.float64()
    naive = [dtype for dtype in (one, other) if pa.types.is_timestamp(dtype) and dtype.tz is None]
    return pa.timestamp("ns") if len(naive) == 2 else pa.string()  # both of them


def _candidates(values: pa.Array, *, clocks: bool) -> Iterable[pa.DataType]:
    trimmed = pc.ascii_trim_whitespace(values)
    if _all(values, _BOOLEAN):
        yield pa.bool_()
    if _all(trimmed, INTEGER):
        yield pa.int64()
        return
    numbers = pc.match_substring_regex(trimmed, NUMBER)
    if pc.any(numbers).as_py() and _all(trimmed.filter(pc.invert(numbers)), NOT_FINITE):
        yield pa.float64()
    if _all(values, _DATE):
        yield pa.date32()
    if clocks and _all(values, f"^{_CLOCK}$"):
        yield pa.time64("ns" if _any(values, _FINE) else "us")
    if _all(values, f"{_MOMENT}$"):
        yield pa.timestamp(_unit(values))
    if _all(values, f"{_MOMENT}{OFFSET}"):
        zones = {utc_offset(text) for text in pc.unique(pc.utf8_slice_codeunits(values, -6)).to_pylist()}
        if len(zones) == 1:
            yield pa.timestamp(_unit(values), zones.pop())


def _holds(values: pa.Array, dtype: pa.DataType) -> bool:
    try:
        parse_text(values, dtype, exact=True)
    except pa.ArrowInvalid:
        return False
    return True


def _all(values: pa.Array, pattern: str) -> bool:
    return bool(pc.all(pc.match_substring_regex(values, pattern), min_count=0).as_py())


def _any(values: pa.Array, pattern: str) -> bool:
    return bool(pc.any(pc.match_substring_regex(values, pattern)).as_py())


def _unit(values: pa.Array) -> str:
    return "ns" if _any(values, _FINE) else "us"


class Integer(str):
    """A whole number as JSON has it."""

    __slots__ = ()


class Fraction(str):
    """Another number as JSON has it."""

    __slots__ = ()


@dataclass(slots=True)
class Evidence:
    """What JSON values in one place are like: how many of each kind, and the texts that decide between types."""

    kinds: Counter[str] = field(default_factory=Counter)
    items: Evidence | None = None
    fields: dict[str, Evidence] = field(default_factory=dict)
    texts: set[str] = field(default_factory=set)
    inexact: bool = False

    def add(self, value: Any) -> None:
        """Look at a value; numbers are Integer and Fraction."""
        match value:
            case None:
                return
            case bool():
                self.kinds["bool"] += 1
            case Integer():
                self._add_integer(value)
            case Fraction():
                self.kinds["float"] += 1
                self.inexact = self.inexact or not gives_back(value)
            case str():
                self.kinds["text"] += 1
                self.texts.add(value)
            case list():
                self.kinds["list"] += 1
                self.items = self.items or Evidence()
                for item in value:
                    self.items.add(item)
            case dict():
                self.kinds["struct"] += 1
                for name, own in value.items():
                    self.fields.setdefault(name, Evidence()).add(own)

    def _add_integer(self, text: str) -> None:
        fits = re.fullmatch(INTEGER[1:-1], text) and -(1 << 63) <= int(text) < 1 << 63
        self.kinds["int" if fits else "float" if text == "-0" else "huge"] += 1
        self.inexact = self.inexact or not gives_back(text)

    def join(self, other: Evidence) -> None:
        """Take over what other values of the same place are like."""
        self.kinds += other.kinds
        self.texts |= other.texts
        self.inexact = self.inexact or other.inexact
        if other.items:
            self.items = self.items or Evidence()
            self.items.join(other.items)
        for name, own in other.fields.items():
            self.fields.setdefault(name, Evidence()).join(own)

    def guess(self, *, top: bool = True) -> pa.DataType:
        """The type: that of most values where they disagree. Times are guessed at the `top`; deeper they stay text."""
        numbers = sum(self.kinds[kind] for kind in ("int", "float", "huge"))
        kinds = Counter({"number": numbers, **{kind: self.kinds[kind] for kind in ("bool", "text", "list", "struct")}})
        kind, count = kinds.most_common(1)[0]
        if not count:
            return pa.null()
        if kind == "number":
            return self._number()
        if kind == "list":
            return pa.list_(_or_text(self.items.guess(top=False) if self.items else pa.null()))
        if kind == "struct":
            return pa.struct([(name, _or_text(own.guess(top=False))) for name, own in self.fields.items()])
        if kind == "text" and top:
            found = guess_type(pa.array(sorted(self.texts), pa.string()))
            return found if pa.types.is_temporal(found) else pa.string()
        return pa.bool_() if kind == "bool" else pa.string()

    @property
    def is_number(self) -> bool:
        """Whether numbers are what it holds most of."""
        numbers = self.kinds["int"] + self.kinds["float"] + self.kinds["huge"]
        return numbers > 0 and numbers >= max(self.kinds[kind] for kind in ("bool", "text", "list", "struct"))

    def is_number_as_text(self) -> bool:
        """Whether its numbers are ones that only text holds."""
        if self.is_number and pa.types.is_string(self._number()):
            return True
        inner = [*self.fields.values(), *([self.items] if self.items else [])]
        return any(one.is_number_as_text() for one in inner)

    def _number(self) -> pa.DataType:
        if self.kinds["huge"] or (self.kinds["float"] and self.inexact):
            return pa.string()
        return pa.float64() if self.kinds["float"] else pa.int64()


def _or_text(dtype: pa.DataType) -> pa.DataType:
    """Values that are all null are of no type yet: text, which loses none that come later."""
    return pa.string() if pa.types.is_null(dtype) else dtype
