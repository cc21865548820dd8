"""Say whether a JSON value contains another one: by DuckDB's `json_contains`, and by PostgreSQL's `@>`.

They differ: `@>` compares from the outermost value on, `json_contains` looks for the value at any depth. To PostgreSQL
the numbers 1 and 1.0 are equal, to DuckDB they are not. Comparisons of one pair of values are counted, so that two long
lists do not take the product of their lengths.
"""

from __future__ import annotations

from decimal import Decimal
from functools import lru_cache
from typing import Any

import msgspec

from tiltyard.sql.dialects.functions import FunctionError
from tiltyard.sql.dialects.json_documents import read

MAX_COMPARISONS = 100_000
"""Pairs of values that one containment compares."""
_KEPT = 64
"""Values that were looked for, which are mostly one for all rows."""

_read_exactly = msgspec.json.Decoder(float_hook=Decimal).decode


class _Comparison:
    """One containment, which may compare so many pairs of values."""

    def __init__(self) -> None:
        self._left = MAX_COMPARISONS

    def count(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise FunctionError(
                f"A JSON value is compared with another one in more than {MAX_COMPARISONS} pairs: compare less of it,"
                " as by -> 'key'."
            )

    def is_found(self, value: Any, wanted: Any) -> bool:
        """Return whether a value, or one within it, has all of another one."""
        waiting = [value]
        while waiting:
            current = waiting.pop()
            if self._has_all(current, wanted):
                return True
            if isinstance(current, dict):
                waiting += current.values()
            elif isinstance(current, list):
                waiting += current
        return False

    def _has_all(self, value: Any, wanted: Any) -> bool:
        self.count()
        if type(value) is not type(wanted):
            return False
        if isinstance(value, dict):
            return all(key in value and self._has_all(value[key], each) for key, each in wanted.items())
        if isinstance(value, list):
            return all(any(self._has_all(own, each) for own in value) for each in wanted)
        return bool(value == wanted)

    def contains(self, value: Any, wanted: Any) -> bool:
        """Return whether a value has all of another one in the places where that has it."""
        self.count()
        if isinstance(wanted, dict):
            return isinstance(value, dict) and all(
                key in value and self.contains(value[key], each) for key, each in wanted.items()
            )
        if isinstance(wanted, list):
            return isinstance(value, list) and all(any(self.contains(own, each) for own in value) for each in wanted)
        return not isinstance(value, dict | list) and _is_bool(value) == _is_bool(wanted) and bool(value == wanted)


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


@lru_cache(_KEPT)
def _read_wanted(text: str, *, exactly: bool) -> Any:
    return read(text, _read_exactly) if exactly else read(text)


def is_found(document: str, wanted: str) -> bool:
    """Return whether a JSON text has another one, at any depth (DuckDB's `json_contains`)."""
    return _Comparison().is_found(read(document), _read_wanted(wanted, exactly=False))


def contains(document: str, wanted: str) -> bool:
    """Return whether a JSON text contains another one from its outermost value on (PostgreSQL's `@>`)."""
    value, other = read(document, _read_exactly), _read_wanted(wanted, exactly=True)
    comparison = _Comparison()
    if isinstance(value, list) and not isinstance(other, dict | list):  # the one exception that PostgreSQL makes
        return any(comparison.contains(each, other) for each in value)
    return comparison.contains(value, other)
