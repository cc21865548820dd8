"""Values written as text, read without loss: what a type would not give back as it was written is refused."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation

import pyarrow as pa
import pyarrow.compute as pc

INTEGER = r"^(?:0|-?[1-9][0-9]{0,18})$"
"""A whole number as it is written canonically: no leading zeros, no plus sign, no minus zero."""

NUMBER = r"^-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*(?:[eE][+-]?[0-9]+)?|[eE][+-][0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?)$"
"""A number as programs write it. `1E5` is none: those sign an exponent, or write a point; codes of articles do not."""

NOT_FINITE = r"^(?i:[+-]?(?:nan|inf|infinity))$"
OFFSET = r"(?:Z|[+-][0-9]{2}(?::?[0-9]{2})?)$"
UTC = ("Z", "+00:00", "+0000", "+00")

_ALWAYS_EXACT = 15
"""So many decimal digits survive in a float64, whatever they are."""

_MOST_DIGITS = 17


def parse_text(texts: pa.Array, dtype: pa.DataType, *, exact: bool) -> pa.Array:
    """Convert text to a type; with `exact`, only where the type gives back what was written.

    Raises pa.ArrowInvalid with the first value that does not fit, pa.ArrowNotImplementedError where Arrow knows no way.
    """
    if dtype == texts.type:
        return texts
    if exact and pa.types.is_integer(dtype):
        return _integers(texts, dtype)
    if exact and pa.types.is_timestamp(dtype) and dtype.tz:
        _check_offsets(texts, dtype.tz)
    if exact and pa.types.is_floating(dtype):
        _check_digits(texts)
    parsed = texts.cast(dtype)
    if pa.types.is_floating(dtype):
        _check_overflow(texts, parsed)
    return parsed


def gives_back(text: str) -> bool:
    """Whether a float64 gives back all digits of a number as it is written."""
    try:
        written = Decimal(text)
    except InvalidOperation:
        return False
    digits = len(written.normalize().as_tuple().digits)
    if not written.is_finite() or digits <= _ALWAYS_EXACT:
        return not written.is_finite() or abs(float(text)) != float("inf")
    held = float(text)
    if abs(held) == float("inf"):
        return False
    return (digits <= _MOST_DIGITS and Decimal(f"{held:.{digits - 1}e}") == written) or Decimal(held) == written


def utc_offset(text: str) -> str | None:
    """The offset that a time ends with, as Arrow names it (`UTC`, `+02:00`); None without one."""
    found = re.search(OFFSET, text)
    if found is None:
        return None
    if found[0] in UTC:
        return "UTC"
    digits = found[0][1:].replace(":", "").ljust(4, "0")
    return f"{found[0][0]}{digits[:2]}:{digits[2:]}"


def _integers(texts: pa.Array, dtype: pa.DataType) -> pa.Array:
    trimmed = texts if texts.null_count == len(texts) else pc.ascii_trim_whitespace(texts)
    parsed = trimmed.cast(dtype)
    written = parsed.cast(texts.type)
    if not written.equals(trimmed):
        _refuse_first(trimmed, pc.not_equal(written, trimmed), "the number does not give it back")
    return parsed


def _check_digits(texts: pa.Array) -> None:
    """Raise pa.ArrowInvalid for a number that is not written as one, or that a float64 would round."""
    trimmed = pc.ascii_trim_whitespace(texts)
    words = pc.invert(pc.match_substring_regex(trimmed, NUMBER))
    if pc.any(words).as_py():
        _refuse_first(trimmed, pc.and_(words, pc.invert(pc.match_substring_regex(trimmed, NOT_FINITE))), "no number")
    long = trimmed.filter(pc.greater(pc.binary_length(trimmed), _ALWAYS_EXACT + 1))
    shortest = long.cast(pa.float64()).cast(long.type)  # most are written so, and need no second look
    for text in long.filter(pc.not_equal(shortest, long)).to_pylist():
        if not gives_back(text):
            raise pa.ArrowInvalid(f"'{text}' has more digits than a float64 holds")


def _check_overflow(texts: pa.Array, parsed: pa.Array) -> None:
    """Raise pa.ArrowInvalid for a number that became infinite."""
    infinite = pc.is_inf(parsed)
    if pc.any(infinite).as_py():
        trimmed = pc.ascii_trim_whitespace(texts)
        finite = pc.invert(pc.match_substring_regex(trimmed, NOT_FINITE))
        _refuse_first(trimmed, pc.and_(infinite, finite), f"beyond what a {parsed.type} holds")


def _check_offsets(texts: pa.Array, zone: str) -> None:
    """Raise pa.ArrowInvalid for a time with another offset than the type's."""
    for text in pc.unique(pc.utf8_slice_codeunits(texts, -6)).to_pylist():
        if text is not None and utc_offset(text) != zone:
            raise pa.ArrowInvalid(f"a time ends with '{text}', and the column's zone is {zone}")


def _refuse_first(texts: pa.Array, wrong: pa.Array, reason: str) -> None:
    found = texts.filter(wrong)
    if len(found):
        raise pa.ArrowInvalid(f"'{found[0]}': {reason}")
