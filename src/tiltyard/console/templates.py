"""Templates: Jinja with autoescape everywhere, and the filters that pages format values by."""

from __future__ import annotations

import unicodedata
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tiltyard.console.static_files import StaticFiles

FOLDER = Path(__file__).parent / "templates"
MAX_TEXT = 2_000
"""Characters of one text out of a table that a page shows."""
NOTHING = "\N{EN DASH}"
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")


def make_templates(static: StaticFiles) -> Environment:
    """Return the environment of all pages."""
    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        plain=plain, number=number, size=size, moment=moment, ago=ago, plural=plural, percent=percent, millis=millis
    )
    environment.globals.update(static=static.url, link=link)
    return environment


def link(view: str, path: Sequence[str] = (), **query: Any) -> str:
    """Return the address of a view (`table`, `rows`, …) of an object; parameters that are None or "" are left out."""
    segments = "/".join(quote(name, safe="") for name in path)
    pairs = [
        f"{name}={quote(str(value), safe='')}"
        for name, values in query.items()
        for value in (values if isinstance(values, list | tuple) else (values,))
        if value not in (None, "")
    ]
    return f"/console/{view}{'/' if segments else ''}{segments}{'?' if pairs else ''}{'&'.join(pairs)}"


def plain(value: object, most: int = MAX_TEXT) -> str:
    """Return a text of others, cut, with characters that would hide or turn what stands around them made visible."""
    text = str(value)
    shown = "".join(_visible(character) for character in text[:most])
    return shown if len(text) <= most else f"{shown}…"


def _visible(character: str) -> str:
    if character in "\n\t" or character.isprintable() or character == "\u00ad":
        return character
    category = unicodedata.category(character)
    if category == "Zs":
        return " "
    return f"⟨U+{ord(character):04X}⟩" if category in ("Cc", "Cf", "Cs", "Zl", "Zp") else character


def number(value: float | None) -> str:
    """Return a number with thousands parted; a dash for None."""
    if value is None:
        return NOTHING
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def size(value: float | None) -> str:
    """Return a number of bytes in the unit that suits it; a dash for None."""
    if value is None:
        return NOTHING
    amount, unit = float(value), 0
    while amount >= 1024 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{int(amount):,} {_UNITS[0]}" if unit == 0 else f"{amount:.3g} {_UNITS[unit]}"


def millis(seconds: float | None) -> str:
    """Return a time in milliseconds; a dash for None."""
    return NOTHING if seconds is None else f"{seconds * 1000:,.3g} ms"


def moment(at_millis: int | None) -> str:
    """Return a moment (ms since 1970) as UTC; a dash for None."""
    if at_millis is None:
        return NOTHING
    try:
        return datetime.fromtimestamp(at_millis / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return str(at_millis)


def ago(at_millis: int | None, now: int) -> str:
    """Return how long ago a moment was, roughly."""
    if at_millis is None:
        return NOTHING
    seconds = max(0, now - at_millis) // 1000
    for unit, length in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if seconds >= length:
            return f"{plural(seconds // length, unit)} ago"
    return "just now"


def plural(count: int, noun: str) -> str:
    """Return a count with its noun."""
    return f"{count:,} {noun}{'' if count == 1 else 's' if noun[-1] not in 'xsh' else 'es'}"


def percent(part: float, whole: float) -> int:
    """Return a share in whole percent, 100 only where nothing is missing."""
    if whole <= 0 or part >= whole:
        return 100
    return int(100 * part / whole)
