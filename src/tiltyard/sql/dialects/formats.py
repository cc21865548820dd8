"""Translate the formats of times: those of DuckDB's `strftime`, and of PostgreSQL's `to_char`, to DataFusion's.

What has no counterpart is refused: DataFusion writes a part that it does not know as it stands.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from lance_namespace.errors import UnsupportedOperationError

_STRFTIME = re.compile(r"%(-?[a-zA-Z%])")
_STRFTIME_PARTS: Mapping[str, str] = {
    **{f"%{letter}": f"%{letter}" for letter in "aAbBdHIjmMpSuUVGwWyY%"},
    **{f"%-{letter}": f"%-{letter}" for letter in "dHIjmMSy"},
    "%f": "%6f",
    "%g": "%3f",
    "%n": "%9f",
    "%x": "%Y-%m-%d",
    "%X": "%H:%M:%S",
    "%c": "%Y-%m-%d %H:%M:%S",
}
_TEMPLATE = re.compile(
    r'"[^"]*"|FMMonth|FMDay|FMMM|FMDD|FMHH24|FMHH12|FMHH|YYYY|IYYY|YY|HH24|HH12|HH|MON|Mon|mon|MM|MI|MS|US|SS|DDD|DD'
    r"|Dy|ID|IW|AM|PM|am|pm|[^A-Za-z\"%]|.",
    re.DOTALL,
)
_TEMPLATE_PARTS: Mapping[str, str] = {
    "YYYY": "%Y",
    "IYYY": "%G",
    "YY": "%y",
    "FMMonth": "%B",
    "FMDay": "%A",
    "Mon": "%b",
    "Dy": "%a",
    "MM": "%m",
    "FMMM": "%-m",
    "DD": "%d",
    "FMDD": "%-d",
    "DDD": "%j",
    "ID": "%u",
    "IW": "%V",
    "HH24": "%H",
    "FMHH24": "%-H",
    "HH12": "%I",
    "HH": "%I",
    "FMHH12": "%-I",
    "FMHH": "%-I",
    "MI": "%M",
    "SS": "%S",
    "MS": "%3f",
    "US": "%6f",
    "AM": "%p",
    "PM": "%p",
    "am": "%P",
    "pm": "%P",
}


def from_strftime(text: str) -> str:
    """Return DataFusion's format for one of DuckDB. Raises UnsupportedOperationError."""

    def translated(match: re.Match[str]) -> str:
        found = _STRFTIME_PARTS.get(match[0])
        if found is None:
            raise UnsupportedOperationError(f"The part {match[0]!r} of the format {text[:100]!r} is not served.")
        return found

    return _STRFTIME.sub(translated, text)


def from_template(text: str) -> str:
    """Return DataFusion's format for one of PostgreSQL; one with a % is DataFusion's own, and stays.

    Raises UnsupportedOperationError.
    """
    return text if "%" in text else "".join(map(_from_template_part, _TEMPLATE.findall(text)))


def _from_template_part(part: str) -> str:
    if part[0] == '"':
        return part[1:-1]
    if (found := _TEMPLATE_PARTS.get(part)) is not None:
        return found
    if part[0].isascii() and part[0].isalpha():
        raise UnsupportedOperationError(
            f"The part {part!r} of a format of times is not served: write YYYY, MM, DD, HH24, MI, SS, or a format of"
            " strftime, as '%Y-%m-%d'. Words that are no parts are in double quotes."
        )
    return part


_HOURS = re.compile(r"%-?[HI]")


def check_parsed(format_: str) -> str:
    """Return a format by which texts are parsed. Raises UnsupportedOperationError where DataFusion would lose a part.

    It takes a time without minutes for none at all, and reads the digits of a fraction as nanoseconds.
    """
    if _HOURS.search(format_) and not re.search(r"%-?M", format_):
        raise UnsupportedOperationError(
            "A format with hours that has no minutes is not served: add minutes to the text."
        )
    if re.search(r"%[369]f", format_):
        format_ = re.sub(r"\.%[369]f", "%.f", format_)
        if re.search(r"%[369]f", format_):
            raise UnsupportedOperationError("A fraction of a second is parsed after a point alone, as by '%S.%f'.")
    return format_
