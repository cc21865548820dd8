"""When a view refreshes by itself, as people say it: `on change`, or `every 5m`."""

from __future__ import annotations

from lance_namespace.errors import InvalidInputError

from tiltyard.model.schedules import parse_duration

ON_CHANGE_SECONDS = 5.0
"""How often it is looked whether the tables of a view that refreshes on change have another version."""


def parse_refresh(text: object) -> float:
    """Return the interval in seconds in which a view refreshes where its tables have changed.

    Raises InvalidInputError for another text.
    """
    words = text.lower().split() if isinstance(text, str) and len(text) <= 40 else []
    if words == ["on", "change"]:
        return ON_CHANGE_SECONDS
    try:
        if len(words) == 2 and words[0] == "every" and (seconds := parse_duration(words[1])):
            return seconds
    except InvalidInputError:
        pass  # what is wrong is said below, with both forms
    raise InvalidInputError(
        f"refresh is {str(text)[:40]!r}: it is 'on change', or 'every' with a time: 'every 30s', 'every 5m'."
    )
