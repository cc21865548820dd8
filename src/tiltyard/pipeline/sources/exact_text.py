"""Parse text losslessly: values whose type would not give back the text as written are refused."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation

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
    digits = len(written.normalize().as_tuple().digits)
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
