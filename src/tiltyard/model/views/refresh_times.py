"""When a view refreshes by itself, as people say it: `on change`, or `every 5m`."""

from __future__ import annotations

import re

from lance_namespace.errors import InvalidInputError

ON_CHANGE = "on change"
ON_CHANGE_SECONDS = 5.0
"""How often it is looked whether the tables of a view that refreshes on change have another version."""
_EVERY = re.compile(r"every\s+(\d{1,6})\s*([smhd])", re.ASCII)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_refresh(text: str) -> float:
    """Return the interval in seconds in which a view refreshes where its tables have changed.

    Raises InvalidInputError for another text.
    """
    if not isinstance(text, str) or len(text) > len("every 999999 s  "):
        raise _unknown(text)
    words = " ".join(text.lower().split())
    if words == ON_CHANGE:
        return ON_CHANGE_SECONDS
    match = _EVERY.fullmatch(words)
    if match is None or not int(match[1]):
        raise _unknown(text)
    return float(int(match[1]) * _SECONDS[match[2]])


def _unknown(text: object) -> InvalidInputError:
    return InvalidInputError(
        f"refresh is {str(text)[:40]!r}: it is 'on change', or 'every' with a time, such as 'every 30s', 'every 5m', "
        "'every 2h', 'every 1d'."
    )
