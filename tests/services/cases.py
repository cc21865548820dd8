"""Cases of one behaviour, in one test: what they share is made once, and all that fail are told."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import pytest

Case = TypeVar("Case")


def check_each(cases: Iterable[Case], check: Callable[[Case], object]) -> None:
    """Run a check on each case, which leaves the next one what it found. Fails once, with each case and its reason."""
    count, failures = 0, []
    for case in cases:
        count += 1
        try:
            check(case)
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001  # each is told
            failures.append(f"{case}: {type(error).__name__}: {error}")
    assert count, "no case"
    if failures:
        pytest.fail(f"{len(failures)} of {count} cases failed:\n" + "\n".join(failures), pytrace=False)
