"""Headers of freshness: what they ask for, and what they cannot be."""

from __future__ import annotations

import pytest
from lance_namespace.errors import InvalidInputError

from tiltyard.api.binding import MIN_READ_VERSION, MIN_TIMESTAMP, MIN_VERSION, read_freshness
from tiltyard.context import Freshness


def test_headers_ask_for_the_later_version_and_a_time_in_milliseconds_rounded_up() -> None:
    assert read_freshness({}) is None
    assert read_freshness({MIN_VERSION: b"3", MIN_READ_VERSION: b"5"}) == Freshness(5, 0)
    for text, milliseconds in (
        (b"1970-01-01T00:00:01.000000001+00:00", 1000),
        (b"1970-01-01T00:00:01.000001+00:00", 1001),
        (b"1970-01-01T01:00:02+01:00", 2000),
        (b"1970-01-01T00:00:03Z", 3000),
    ):
        assert read_freshness({MIN_TIMESTAMP: text}) == Freshness(0, milliseconds)


@pytest.mark.parametrize("text", [b"", b"-1", b"x", b"1.5", b"9223372036854775808", "²".encode("latin-1")])
def test_malformed_version_is_invalid_input(text: bytes) -> None:
    for name in (MIN_VERSION, MIN_READ_VERSION):
        with pytest.raises(InvalidInputError, match=name.decode()):
            read_freshness({name: text})


@pytest.mark.parametrize(
    "text", [b"", b"yesterday", b"2026-11-24T00:00:00", b"\xff", b"2026-11-24T00:00:00Z" + b" " * 99]
)
def test_malformed_timestamp_is_invalid_input(text: bytes) -> None:
    with pytest.raises(InvalidInputError, match="RFC 3339"):
        read_freshness({MIN_TIMESTAMP: text})


def test_version_that_was_looked_up_before_the_time_is_not_fresh() -> None:
    assert Freshness(3, 1000).is_met_by(3, 1000)
    assert not Freshness(3, 1000).is_met_by(2, 1000)
    assert not Freshness(3, 1000).is_met_by(3, 999)
