"""When a scheduled job is due: by a cron expression in a time zone, or in an interval; and which times are missed.

All moments are ms since 1970. A cron expression means what Debian's cron makes of it, also where clocks are put forward
or back: a job of a fixed time runs once on such a day, one of each hour in each hour that there is.
"""

from __future__ import annotations

import re
import zoneinfo
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
from cronsim import CronSim, CronSimError
from lance_namespace.errors import InvalidInputError

from tiltyard.model.text.typed_ids import format_id

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import tzinfo

MAX_CRON_CHARACTERS = 100
"""The length of a cron expression."""
MIN_EVERY_SECONDS, MAX_EVERY_SECONDS = 5.0, 366 * 86_400.0
"""The interval of a schedule: a job takes seconds to start."""
MAX_LATE_SECONDS = 60.0
"""A time that begins later than that is missed: no server was there, or the schedule was paused."""
_UNIT_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?) ?([smhdw]?)")
_CRON_FIELDS = 5
ON_CHANGE, ON_CHANGE_SECONDS = "on change", 5.0
"""How often it is looked whether the tables of a view that refreshes on change have another version."""
MAX_REFRESH_CHARACTERS = 40
_EVERY = "every "
_WORDS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}


class Timing(msgspec.Struct, frozen=True, omit_defaults=True):
    """When a job is due: one of `cron` (in a time zone, `UTC` by default) and `every_ms`; neither for commits alone.

    `catch_up` says that one run makes up for all times that were missed.
    """

    cron: str | None = None
    zone: str | None = None
    every_ms: int | None = None
    catch_up: bool = False

    @property
    def is_by_commits(self) -> bool:
        """Return whether the job is due after commits alone."""
        return self.cron is None and self.every_ms is None

    def next_after(self, moment: int, due: int | None = None) -> int | None:
        """Return the first time after a moment; None without any. Intervals are counted from `due`, an earlier one.

        Raises InvalidInputError for a cron expression that has none.
        """
        if self.every_ms is not None:
            start = moment if due is None else due
            return start + self.every_ms * max(1, (moment - start) // self.every_ms + 1)
        return None if self.cron is None else _next_of_cron(self.cron, find_zone(self.zone), moment)

    def is_missed(self, due: int, now: int) -> bool:
        """Return whether a time has passed that is not made up for; commits are never missed."""
        return not (self.catch_up or self.is_by_commits) and now - due > 1000 * MAX_LATE_SECONDS


def parse_timing(cron: str | None, zone: str | None, every_seconds: float | None, *, catch_up: bool | None) -> Timing:
    """Return when a job is due; by commits alone if neither `cron` nor `every_seconds` is there.

    Raises InvalidInputError: both, an expression or a time zone that is none, an interval out of bounds.
    """
    if cron is not None and every_seconds is not None:
        raise InvalidInputError("A schedule has a cron expression or an interval (every), not both: leave one out.")
    if zone is not None and cron is None:
        raise InvalidInputError("A time zone is for a cron expression: leave it out, or give cron.")
    if catch_up is not None and cron is None and every_seconds is None:
        raise InvalidInputError("catch_up is for cron and every: commits are never missed.")
    timing = Timing(cron, zone, None if every_seconds is None else _interval_ms(every_seconds), catch_up or False)
    if cron is not None:
        _next_of_cron(cron, find_zone(zone), int(datetime.now(UTC).timestamp() * 1000))
    return timing


def parse_duration(text: str) -> float:
    """Return the seconds of `90`, `30s`, `15m`, `1.5h`, `1d` or `1w`. Raises InvalidInputError."""
    if (found := _DURATION.fullmatch(text.strip().lower())) is None:
        raise InvalidInputError(f"{text[:40]!r} is no duration: write 30s, 15m, 6h, 1d or 1w.")
    return round(float(found[1]) * _UNIT_SECONDS[found[2]], 9)  # 1.1 d are no 95040.00000000001 s


def format_duration(seconds: float) -> str:
    """Return a duration as `parse_duration` reads it, in its largest whole unit: `15m`."""
    whole = [unit for unit, size in _UNIT_SECONDS.items() if unit and seconds % size == 0]
    unit = whole[-1] if whole else "s"
    return f"{seconds / _UNIT_SECONDS[unit]:.12g}{unit}"


def parse_refresh(text: object) -> float:
    """Return the seconds of `every 5m`, or of `on change`: how often it is looked whether a view's tables have changed.

    Raises InvalidInputError for anything else.
    """
    words = " ".join(text.lower().split()) if isinstance(text, str) and len(text) <= MAX_REFRESH_CHARACTERS else ""
    if words == ON_CHANGE:
        return ON_CHANGE_SECONDS
    try:
        if words.startswith(_EVERY) and (seconds := parse_duration(words.removeprefix(_EVERY))):
            return seconds
    except InvalidInputError:
        pass  # what is wrong is said below, with both forms
    raise InvalidInputError(
        f"refresh is {str(text)[:MAX_REFRESH_CHARACTERS]!r}: it is '{ON_CHANGE}', or 'every' with a time: 'every 30s', "
        "'every 5m'."
    )


def format_refresh(seconds: float) -> str:
    """Return an interval as `parse_refresh` reads it; 0, the server's own pace, is that of `on change`, too."""
    return ON_CHANGE if seconds in (0, ON_CHANGE_SECONDS) else f"{_EVERY}{format_duration(seconds)}"


def find_zone(name: str | None) -> tzinfo:
    """Return a time zone by its name, UTC without one. Raises InvalidInputError."""
    if name is None:
        return UTC
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidInputError(
            f"There is no time zone {name[:50]!r}: give a name of the tz database, such as Europe/Berlin."
        ) from None


def describe_timing(facts: Mapping[str, Any]) -> str:
    """Return when a schedule is due, as text for people; `facts` are those of a response."""
    if facts.get("cron") is not None:
        return f"{facts['cron']} ({facts['zone']})"
    if facts.get("every_seconds") is not None:
        return f"every {format_duration(facts['every_seconds'])}"
    return f"on commit of {', '.join(map(format_id, facts.get('on_commit') or ())) or 'tables that are dropped'}"


def _interval_ms(seconds: float) -> int:
    if not MIN_EVERY_SECONDS <= seconds <= MAX_EVERY_SECONDS:
        raise InvalidInputError(
            f"A schedule's interval is {MIN_EVERY_SECONDS:g} to {MAX_EVERY_SECONDS:g} seconds, not {seconds:g}."
        )
    return int(seconds * 1000)


def _next_of_cron(cron: str, zone: tzinfo, moment: int) -> int:
    """Return the first time of a cron expression after a moment. Raises InvalidInputError."""
    if len(cron) > MAX_CRON_CHARACTERS:
        raise InvalidInputError(f"A cron expression has {MAX_CRON_CHARACTERS} characters at most, not {len(cron)}.")
    expression = _WORDS.get(cron.strip().lower(), cron)
    if len(expression.split()) != _CRON_FIELDS:
        raise InvalidInputError(
            f"The cron expression {cron!r} has not five fields: minute, hour, day of month, month, day of week."
        )
    start = datetime.fromtimestamp(moment / 1000, UTC).astimezone(zone)
    try:
        times = CronSim(expression, start)
        found = next(time for time in times if time.timestamp() * 1000 > moment)
    except CronSimError as error:
        raise InvalidInputError(f"The cron expression {cron!r} is none: {str(error).lower()}.") from None
    except (StopIteration, RuntimeError, AssertionError, OverflowError):
        raise InvalidInputError(f"The cron expression {cron!r} has no time within the next 50 years.") from None
    return int(found.timestamp() * 1000)
