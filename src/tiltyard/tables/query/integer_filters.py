"""Parse filters that select rows by the integers of one column: `id = 5`, `id IN (1, 2)`, `id >= 5 AND id < 9`.

Such rows are found, and counted, in a cached column. All other filters are left to Lance.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tiltyard.storage.caches.cached_rows import IntegerRange, Integers

ROW_ID, ROW_OFFSET = "_rowid", "_rowoffset"

_FLAGS = re.IGNORECASE | re.ASCII
_COLUMN = r"\s*(?!(?:true|false|null)\b|current_|local)([a-z_]\w*)"
"""Not a column whose name is a value to SQL."""
_PLAIN_COLUMN = re.compile(r"(?!(?:true|false|null)$|current_|local)[a-z_][a-z0-9_]*", re.ASCII)
_DIGITS = r"-?\d{1,18}"
"""Fits into 64 bits, whatever its digits are: Lance has rules of its own for larger ones."""
_INTEGER = rf"\s*({_DIGITS})\s*"
_VALUE = re.compile(rf"{_COLUMN}\s*=\s*(-?\d{{1,19}})\s*", _FLAGS)
_LIST = re.compile(rf"{_COLUMN}\s+IN\s*\(((?:\s*{_DIGITS}\s*,)*\s*{_DIGITS}\s*)\)\s*", _FLAGS)
_BETWEEN = re.compile(rf"{_COLUMN}\s+BETWEEN(?=[\s-]){_INTEGER}(?<=\s)AND(?=[\s-]){_INTEGER}", _FLAGS)
_BOUND = rf"{_COLUMN}\s*(<=?|>=?){_INTEGER}"
_BOUNDS = re.compile(rf"{_BOUND}(?:(?<=\s)AND(?=\s){_BOUND})?", _FLAGS)
_MAX_LENGTH = 16 << 10
"""Characters from which on a filter is left to Lance: a list of a thousand integers."""


@dataclass(frozen=True, slots=True)
class IntegerFilter:
    """A column, and the integers whose rows are selected."""

    column: str
    integers: Integers

    @property
    def row_ids(self) -> tuple[int, ...] | None:
        """The row ids by which rows are selected; None for a column, and for a range."""
        return self.integers if self.column == ROW_ID and isinstance(self.integers, tuple) else None

    @property
    def rows(self) -> tuple[int, ...] | None:
        """The row ids, or the offsets, by which rows are selected; None for a column, and for a range."""
        is_by_row = self.column in (ROW_ID, ROW_OFFSET)
        return self.integers if is_by_row and isinstance(self.integers, tuple) else None

    @property
    def is_one(self) -> bool:
        """Whether it is a single integer."""
        return isinstance(self.integers, tuple) and len(self.integers) == 1


def is_plain_column(expression: str) -> bool:
    """Return whether an expression can only be the column of that very name: lower case, and no value to SQL."""
    return _PLAIN_COLUMN.fullmatch(expression) is not None


def parse_integer_filter(expression: str) -> IntegerFilter | None:
    """Return what a filter selects by the integers of one column; None for all other filters."""
    if len(expression) > _MAX_LENGTH:
        return None
    if match := _VALUE.fullmatch(expression):
        return IntegerFilter(match[1], (int(match[2]),))
    if match := _LIST.fullmatch(expression):
        return IntegerFilter(match[1], tuple(map(int, match[2].split(","))))
    if match := _BETWEEN.fullmatch(expression):
        return IntegerFilter(match[1], IntegerRange(int(match[2]), int(match[3])))
    if match := _BOUNDS.fullmatch(expression):
        return _bounded(*match.groups())
    return None


def _bounded(
    column: str, operator: str, value: str, other: str | None, other_operator: str | None, other_value: str | None
) -> IntegerFilter | None:
    """Return the filter of one comparison, or of two with the same column that bound a range on both sides."""
    first = _range(operator, int(value))
    if other is None or other_operator is None or other_value is None:
        return IntegerFilter(column, first)
    second = _range(other_operator, int(other_value))
    if other != column or (first.first is None) == (second.first is None):
        return None
    low, high = (first, second) if second.first is None else (second, first)
    return IntegerFilter(column, IntegerRange(low.first, high.last))


def _range(operator: str, value: int) -> IntegerRange:
    match operator:
        case ">":
            return IntegerRange(value + 1, None)
        case ">=":
            return IntegerRange(value, None)
        case "<":
            return IntegerRange(None, value - 1)
        case _:
            return IntegerRange(None, value)
