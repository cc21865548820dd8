"""Format values for people: short, on one line, and without anything that a terminal would obey."""

from __future__ import annotations

import datetime
import struct
from collections.abc import Mapping
from typing import Any

SHOWN_ITEMS = 3
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def format_cell(value: Any, width: int | None = None) -> str:
    """Format one value; `width` is the number of characters that it may have, None for all of it, with all digits."""
    text = printable(_format(value, short=width is not None))
    return text if width is None or len(text) <= width else f"{text[: max(1, width - 1)]}…"


def printable(text: str) -> str:
    """Replace what is no letter to be seen (control characters, escape sequences, changes of direction) by its code.

    A cell comes from whoever wrote the table, and a terminal obeys what it is sent.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else _escape(each) for each in text)


def text_width(text: str) -> int:
    """Return how many columns of a terminal a text takes: those of Chinese or Japanese take two, accents none."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def pad_text(text: str, width: int, *, is_number: bool) -> str:
    """Return a text with spaces up to a width, in front of a number, behind all others."""
    spaces = " " * (width - text_width(text))
    return f"{spaces}{text}" if is_number else f"{text}{spaces}"


def format_size(number: float) -> str:
    """Format a number of bytes."""
    unit = 0
    while number >= 1024 and unit < len(_UNITS) - 1:
        number, unit = number / 1024, unit + 1
    return f"{number:.0f} {_UNITS[unit]}" if not unit else f"{number:.1f} {_UNITS[unit]}"


def format_time(millis: int | None) -> str:
    """Format milliseconds since 1970 as a time in UTC; empty for None."""
    if millis is None:
        return ""
    return datetime.datetime.fromtimestamp(millis / 1000, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")


def _format(value: Any, *, short: bool) -> str:
    if value is None or value in ([], {}):
        return ""
    if isinstance(value, float):
        return f"{value:.6g}" if short else _all_digits(value)
    if isinstance(value, bytes):
        return f"<{format_size(len(value))}>"
    if isinstance(value, list | tuple):
        items = [_format(item, short=short) for item in (value[:SHOWN_ITEMS] if short else value)]
        more = f", … {len(value)}" if short and len(value) > SHOWN_ITEMS else ""
        return f"[{', '.join(items)}{more}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name}: {_format(inner, short=short)}' for name, inner in value.items())}}}"
    return str(value)


def _all_digits(value: float) -> str:
    """Return the shortest text of a number that gives it back; one of 32 bits has no more digits than that takes."""
    for digits in range(6, 10):
        text = f"{value:.{digits}g}"
        if float(text) == value or _as_float32(float(text)) == value:
            return text
    return repr(value)


def _as_float32(value: float) -> float:
    try:
        (narrow,) = struct.unpack("f", struct.pack("f", value))
    except OverflowError:
        return value
    return float(narrow)


def _escape(character: str) -> str:
    if character in "\n\r\t":
        return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}[character]
    return f"\\x{ord(character):02x}" if ord(character) < 256 else f"\\u{ord(character):04x}"
