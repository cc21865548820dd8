"""When a scheduled job is due: cron in time zones, over changes of the clock in both directions; intervals; errors."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from lance_namespace.errors import InvalidInputError

from tiltyard.model.schedules import (
    MAX_CRON_CHARACTERS,
    MAX_LATE_SECONDS,
    Timing,
    format_duration,
    format_refresh,
    parse_duration,
    parse_refresh,
    parse_timing,
)

# Known answers, in the time of the zone: clocks go forward on 2026-03-29 at 02:00 and back on 2026-10-25 at 03:00 in
# Berlin, forward on 2026-10-04 at 02:00 by half an hour on Lord Howe.
TIMES = [
    ("0 3 * * *", "UTC", "2026-03-28T12:00+00:00", ["2026-03-29T03:00+00:00", "2026-03-30T03:00+00:00"]),
    # A fixed time that does not exist is run once, at the first moment after the gap.
    ("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00+01:00", ["2026-03-29T03:00+02:00", "2026-03-30T02:30+02:00"]),
    ("30 1 * * *", "Europe/Berlin", "2026-03-28T12:00+01:00", ["2026-03-29T01:30+01:00", "2026-03-30T01:30+02:00"]),
    # One that exists twice is run once, the first time.
    ("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00+02:00", ["2026-10-25T02:30+02:00", "2026-10-26T02:30+01:00"]),
    # Every hour is every hour that there is.
    ("0 * * * *", "Europe/Berlin", "2026-03-29T00:30+01:00", ["2026-03-29T01:00+01:00", "2026-03-29T03:00+02:00"]),
    (
        "0 * * * *",
        "Europe/Berlin",
        "2026-10-25T01:30+02:00",
        ["2026-10-25T02:00+02:00", "2026-10-25T02:00+01:00", "2026-10-25T03:00+01:00"],
    ),
    (
        "*/30 * * * *",
        "Europe/Berlin",
        "2026-10-25T02:20+02:00",
        ["2026-10-25T02:30+02:00", "2026-10-25T02:00+01:00", "2026-10-25T02:30+01:00", "2026-10-25T03:00+01:00"],
    ),
    ("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T12:00+10:30", ["2026-10-04T02:30+11:00"]),
    ("0 0 29 2 *", "UTC", "2026-01-01T00:00+00:00", ["2028-02-29T00:00+00:00", "2032-02-29T00:00+00:00"]),
    ("0 9 * * MON-FRI", "America/New_York", "2026-11-27T10:00-05:00", ["2026-11-30T09:00-05:00"]),
    ("@daily", "Asia/Kolkata", "2026-11-29T00:00+05:30", ["2026-11-30T00:00+05:30"]),
]


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def test_times_of_cron_are_the_known_ones_whichever_way_clocks_are_put() -> None:
    for cron, zone, start, expected in TIMES:
        timing, moment = parse_timing(cron, zone, None, catch_up=None), ms(start)
        for time in expected:
            found = timing.next_after(moment)
            assert found == ms(time), (cron, zone, time, found and datetime.fromtimestamp(found / 1000, UTC))
            moment = found


def test_an_interval_is_counted_from_the_time_before_and_passes_over_what_was_missed() -> None:
    timing = parse_timing(None, None, 60, catch_up=True)
    assert timing.next_after(1_000) == 61_000
    assert timing.next_after(61_400, due=61_000) == 121_000
    assert timing.next_after(300_999, due=61_000) == 301_000
    assert Timing().next_after(0) is None


def test_a_late_time_is_missed_unless_it_is_made_up_for() -> None:
    late = int(1000 * MAX_LATE_SECONDS)
    assert [Timing(every_ms=5000).is_missed(0, now) for now in (late, late + 1)] == [False, True]
    assert not Timing(every_ms=5000, catch_up=True).is_missed(0, 10 * late)


def test_durations_are_read_as_they_are_written() -> None:
    texts = ["90s", "15m", "1.5h", "36h", "1d", "2w", "0.5s"]
    assert [format_duration(parse_duration(text)) for text in texts] == ["90s", "15m", "90m", "36h", "1d", "2w", "0.5s"]
    assert parse_duration("45") == 45 and parse_duration("1.1d") == 95_040
    for text in ("", "soon", "1y", "-5m", "1e9", "9" * 20):
        with pytest.raises(InvalidInputError, match="is no duration"):
            parse_duration(text)


BAD = [
    ({"cron": "* * * *"}, "five fields"),
    ({"cron": "0 0 3 * * *"}, "five fields"),
    ({"cron": "61 * * * *"}, "bad minute"),
    ({"cron": "* * * * MON#2/2"}, "bad day-of-week"),
    ({"cron": "*/0 * * * *"}, "bad minute"),
    ({"cron": "0 0 31 2 *"}, "bad day-of-month"),
    ({"cron": "²  * * * *"}, "bad minute"),
    ({"cron": "1," * MAX_CRON_CHARACTERS + "1 * * * *"}, f"{MAX_CRON_CHARACTERS} characters"),
    ({"cron": "0 3 * * *", "zone": "Europe/Atlantis"}, "no time zone"),
    ({"cron": "0 3 * * *", "zone": "../../etc/passwd"}, "no time zone"),
    ({"cron": "0 3 * * *", "zone": ""}, "no time zone"),
    ({"cron": "0 3 * * *", "every_seconds": 60.0}, "not both"),
    ({"zone": "UTC", "every_seconds": 60.0}, "time zone is for a cron"),
    ({"every_seconds": 4.9}, "5 to"),
    ({"every_seconds": float("nan")}, "5 to"),
    ({"every_seconds": 1e18}, "5 to"),
    ({"catch_up": False}, "catch_up is for"),
]


def test_bad_timings_are_refused_in_one_sentence() -> None:
    for given, sentence in BAD:
        fields = {"cron": None, "zone": None, "every_seconds": None, "catch_up": None, **given}
        with pytest.raises(InvalidInputError) as raised:
            parse_timing(fields.pop("cron"), fields.pop("zone"), fields.pop("every_seconds"), **fields)
        assert sentence in str(raised.value), given


def test_refreshes_are_read_as_they_are_written() -> None:
    read = {"on change": 5.0, " On  CHANGE ": 5.0, "every 5s": 5.0, "every 90s": 90.0, "every 1.5 h": 5400.0}
    assert {text: parse_refresh(text) for text in read} == read
    for text in ("on change", "every 90s", "every 5m"):
        assert format_refresh(parse_refresh(text)) == text
    assert format_refresh(0.0) == "on change"
    for wrong in ("sometimes", "every", "every 0s", "every soon", "every 5m 5m", "on change" + " " * 40, None, 5):
        with pytest.raises(InvalidInputError, match="it is 'on change', or 'every' with a time"):
            parse_refresh(wrong)
