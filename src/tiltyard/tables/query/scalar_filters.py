"""Parse filters that compare columns of scalars with constants, joined by AND, OR and NOT: memory answers them.

All other filters are left to Lance, and so are those that it refuses or reads in a way of its own: integers that a
column cannot have, fractions beside integers, times between two of a column's units.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, NoReturn

import numpy as np
import pyarrow as pa
from lance_namespace.errors import InvalidInputError

from tiltyard.access.predicates import PredicateToken, tokenize
from tiltyard.storage.vector_cache.scalar_values import (
    InRange,
    IsNull,
    Joined,
    Not,
    OneOf,
    ScalarColumn,
    ScalarFilter,
    Value,
    scalar_columns,
    sortable_floats,
)
from tiltyard.tables.query.integer_filters import is_plain_column

if TYPE_CHECKING:
    import lance

_MAX_LENGTH = 4096
"""Characters of a filter beyond which Lance evaluates it."""
_MAX_VALUES = 256
"""Values of a list beyond which Lance does: each is looked up in each fragment."""
_MAX_DEPTH = 32
_MAX_EXACT_DIGITS = 15
"""Digits of an integer up to which a float of 64 bits is equal to it."""
_MAX_INTEGER = 2**63 - 1
_MAX_FLOAT32 = float(np.finfo(np.float32).max)
_KEYWORD = re.compile(
    """
    all | and | any | array | as | asc | begin | between | by | case | cast | check | collate | column | current
    | date | default | desc | distinct | else | end | escape | except | exists | extract | false | fetch | floor
    | ceil | for | from | full | group | having | if | ilike | in | inner | interval | into | intersect | is |
    join | left | like | limit | natural | not | null | nullif | offset | on | or | order | outer | over |
    overlaps | overlay | partition | position | qualify | regexp | right | rlike | row | select | set | similar
    | some | struct | substring | sum | table | then | time | timestamp | to | trim | true | try_cast | union |
    unique | unknown | using | values | when | where | window | with | xor
    """,
    re.VERBOSE,
)
"""Names without quotes that SQL may read as another thing than a column."""
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_TIME = re.compile(r"(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d)(\.\d{1,6})?", re.ASCII)
_YEARS = range(1700, 2200)
"""Years of times that fit into nanoseconds, which Lance makes of them."""
_UNITS_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_END = PredicateToken("end", "")


ColumnsByName = Mapping[str, ScalarColumn]


def filtered_columns(dataset: lance.LanceDataset) -> ColumnsByName:
    """Return the columns of a version that filters in memory may name, but those whose names differ in case alone."""
    names = [name.casefold() for name in dataset.schema.names]
    columns = scalar_columns(dataset).values()
    return {column.name: column for column in columns if names.count(column.name.casefold()) == 1}


class _OtherFilterError(Exception):
    """A filter is left to Lance."""


def parse_scalar_filter(expression: str, columns: ColumnsByName) -> ScalarFilter | None:
    """Return what a filter compares; None for one that is left to Lance."""
    if len(expression) > _MAX_LENGTH:
        return None
    try:
        return _Parser(tokenize(expression, "filter"), columns).parse()
    except (InvalidInputError, _OtherFilterError):
        return None


class _Parser:
    """Parses the tokens of a filter, from the operator that binds least to constants."""

    def __init__(self, tokens: list[PredicateToken], columns: ColumnsByName) -> None:
        self._tokens, self._columns = tokens, columns
        self._place = self._depth = self._nots = 0

    def parse(self) -> ScalarFilter:
        """Return the filter of all tokens. Raises _OtherFilterError."""
        parsed = self._any()
        return parsed if self._next is _END else self._refuse()

    @property
    def _next(self) -> PredicateToken:
        return self._tokens[self._place] if self._place < len(self._tokens) else _END

    def _take(self) -> PredicateToken:
        token = self._next
        self._place += 1
        return token

    def _takes(self, *words: str) -> bool:
        """Take keywords if they are next; return whether they were."""
        following = self._tokens[self._place : self._place + len(words)]
        is_next = [token.word for token in following] == list(words)
        self._place += len(words) if is_next else 0
        return is_next

    def _any(self) -> ScalarFilter:
        terms = [self._all()]
        while self._takes("or"):
            terms.append(self._all())
        return terms[0] if len(terms) == 1 else Joined(tuple(terms), is_all=False)

    def _all(self) -> ScalarFilter:
        terms = [self._negated()]
        while self._takes("and"):
            term = self._negated()
            bounded = _bound(terms[-1], term)
            terms[-1:] = [terms[-1], term] if bounded is None else [bounded]
        return terms[0] if len(terms) == 1 else Joined(tuple(terms), is_all=True)

    def _negated(self) -> ScalarFilter:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            self._refuse()
        if self._takes("not"):
            self._nots += 1
            term: ScalarFilter = Not(self._negated())
            self._nots -= 1
        elif self._next.kind == "open":
            self._take()
            term = self._any()
            if self._take().kind != "close" or not self._is_at_end_of_term():
                self._refuse()
        else:
            term = self._comparison()
        self._depth -= 1
        return term

    def _is_at_end_of_term(self) -> bool:
        return self._next is _END or self._next.kind == "close" or self._next.word in ("and", "or")

    def _comparison(self) -> ScalarFilter:
        if (column := self._column(self._next)) is None:
            return self._flipped()
        self._take()
        if self._next.kind == "compare":
            return _compare(column, self._take().text, self._constant(column))
        if self._takes("is", "null"):
            return IsNull(column)
        if self._takes("is", "not", "null"):
            return Not(IsNull(column))
        is_not = self._takes("not")
        if self._takes("between"):
            first = self._constant(column)
            if not self._takes("and"):
                self._refuse()
            term: ScalarFilter = InRange(column, first, self._constant(column))
        elif self._takes("in"):
            term = OneOf(column, self._list(column))
        elif not is_not and pa.types.is_boolean(column.type) and self._is_at_end_of_term():
            term = OneOf(column, (1,))
        else:
            self._refuse()
        return Not(term) if is_not else term

    def _flipped(self) -> ScalarFilter:
        """Return a comparison whose column is on its right."""
        start = self._place
        while self._next.kind != "compare" and self._place - start < 3:  # a sign and a number, or `date` and a text
            self._take()
        operator = self._take()
        column = self._column(self._take())
        if operator.kind != "compare" or column is None:
            self._refuse()
        end, self._place = self._place, start
        value = self._constant(column)
        if self._next is not operator:
            self._refuse()
        self._place = end
        return _compare(column, _FLIPPED.get(operator.text, operator.text), value)

    def _column(self, token: PredicateToken) -> ScalarColumn | None:
        if token.kind != "name" or len(token.parts) > 1:
            return None
        is_quoted = token.text[0] == "`"
        if not is_quoted and (not is_plain_column(token.text) or _KEYWORD.fullmatch(token.text)):
            return None
        return self._columns.get(token.parts[0])

    def _list(self, column: ScalarColumn) -> tuple[Value, ...]:
        if self._take().kind != "open":
            self._refuse()
        values = [self._constant(column)]
        while (token := self._take()).kind == "comma":
            values.append(self._constant(column))
        return tuple(values) if token.kind == "close" and len(values) <= _MAX_VALUES else self._refuse()

    def _constant(self, column: ScalarColumn) -> Value:
        """Return the next constant as a column's values are compared; it has to be one of these."""
        token, types, type_ = self._take(), pa.types, column.type
        if token.text == "-" or token.kind == "number":
            sign = "-" if token.text == "-" else ""
            number = self._take() if sign else token
            if number.kind != "number":
                self._refuse()
            return self._number(sign + number.text, type_)
        if types.is_string(type_) and token.kind == "text":
            return token.text[1:-1].replace("''", "'")
        if types.is_boolean(type_) and token.word in ("true", "false"):
            return int(token.word == "true")
        if self._next.kind == "text" and token.word == "date" and types.is_date32(type_):
            return (self._day(self._take().text[1:-1]) - date(1970, 1, 1)).days
        if self._next.kind == "text" and token.word == "timestamp" and types.is_timestamp(type_):
            return self._moment(self._take().text[1:-1], _UNITS_PER_SECOND[type_.unit])
        return self._refuse()

    def _number(self, text: str, type_: pa.DataType) -> int:
        """Return a number: beside a float of 32 bits it is one, too, but for fractions behind NOT."""
        is_whole = text.lstrip("-").isdecimal()
        if pa.types.is_floating(type_) and (len(text) <= _MAX_EXACT_DIGITS or not is_whole):
            number, is_short = float(text), pa.types.is_float32(type_)
            if abs(number) >= (_MAX_FLOAT32 if is_short else np.inf):
                self._refuse()
            rounded = float(np.float32(number)) if is_short and (is_whole or not self._nots) else number
            return int(sortable_floats(np.array([rounded]))[0])
        if not pa.types.is_integer(type_) or not is_whole:
            self._refuse()
        bounds = np.iinfo(type_.to_pandas_dtype())
        return number if max(bounds.min, -_MAX_INTEGER) <= (number := int(text)) <= bounds.max else self._refuse()

    def _day(self, text: str) -> date:
        try:
            day = date.fromisoformat(text) if _DATE.fullmatch(text) else self._refuse()
        except ValueError:
            self._refuse()
        return day if day.year in _YEARS else self._refuse()

    def _moment(self, text: str, units_per_second: int) -> int:
        match = _TIME.fullmatch(text)
        if match is None:
            self._refuse()
        self._day(match[1])
        try:
            moment = datetime.fromisoformat(f"{match[1]} {match[2]}").replace(tzinfo=UTC)
        except ValueError:
            self._refuse()
        seconds = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(seconds=1)
        microseconds = int((match[3] or ".0")[1:].ljust(6, "0"))
        units, rest = divmod(microseconds * units_per_second, 10**6)
        return self._refuse() if rest else seconds * units_per_second + units

    def _refuse(self) -> NoReturn:
        raise _OtherFilterError


def _bound(one: ScalarFilter, other: ScalarFilter) -> ScalarFilter | None:
    """Return the range of two terms that bound a column's values from below and from above; None for other terms."""
    if not isinstance(one, InRange) or not isinstance(other, InRange) or one.column != other.column:
        return None
    low, high = (one, other) if other.first is None else (other, one)
    if low.last is not None or high.first is not None:
        return None
    return replace(low, last=high.last, excludes_last=high.excludes_last)


def _compare(column: ScalarColumn, operator: str, value: Value) -> ScalarFilter:
    match operator:
        case "=":
            return OneOf(column, (value,))
        case "<":
            return InRange(column, last=value, excludes_last=True)
        case "<=":
            return InRange(column, last=value)
        case ">":
            return InRange(column, first=value, excludes_first=True)
        case ">=":
            return InRange(column, first=value)
        case _:
            return Not(OneOf(column, (value,)))
