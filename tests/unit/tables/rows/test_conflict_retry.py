"""Retries after conflicts: until a deadline, and after conflicts alone."""

from __future__ import annotations

import pytest
from lance_namespace.errors import ConcurrentModificationError, InvalidInputError

from tiltyard.tables.rows.conflict_retry import ConflictRetry


def test_conflict_is_retried_until_the_deadline() -> None:
    retry = ConflictRetry(30.0)
    retry.wait_or_raise(ConcurrentModificationError("Another commit was first."))
    assert retry.attempts == 2
    retry = ConflictRetry(0.0)
    with pytest.raises(ConcurrentModificationError):
        retry.wait_or_raise(ConcurrentModificationError("Another commit was first."))
    assert (retry.attempts, retry.remaining_seconds) == (1, 0)


def test_other_errors_are_raised_at_once() -> None:
    retry = ConflictRetry(60.0)
    with pytest.raises(InvalidInputError):
        retry.wait_or_raise(InvalidInputError("The filter is wrong."))
    assert retry.attempts == 1
