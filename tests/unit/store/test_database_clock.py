"""The database's time as a process counts it on."""

from __future__ import annotations

import pytest

from tiltyard.store.clock import REFRESH_MS, DatabaseClock


def test_clock_counts_on_from_the_middle_of_its_reading_and_is_read_again_when_due() -> None:
    elapsed = [1_000]
    clock = DatabaseClock(lambda: elapsed[0])
    with pytest.raises(RuntimeError):
        clock()
    assert clock.is_due

    def ask() -> int:
        elapsed[0] += 10  # what asking takes
        return 500_000

    clock.read(ask)
    assert (clock(), clock.is_due) == (500_005, False)
    elapsed[0] += REFRESH_MS
    assert (clock(), clock.is_due) == (500_005 + REFRESH_MS, True)
    clock.read(lambda: 400_000)  # another database has taken over, or its clock was set
    assert clock() == 400_000


def test_clock_that_cannot_be_read_counts_on() -> None:
    elapsed = [0]
    clock = DatabaseClock(lambda: elapsed[0])
    clock.read(lambda: 500)
    elapsed[0] = REFRESH_MS

    def fail() -> int:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        clock.read(fail)
    assert (clock(), clock.is_due) == (500 + REFRESH_MS, True)
