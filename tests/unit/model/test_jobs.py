"""How a job that failed goes on: one rule for workers and for drivers."""

from __future__ import annotations

import pytest
from lance_namespace import errors

from tiltyard.model.jobs import MAX_RETRY_MS, is_transient, retry_wait_ms


@pytest.mark.parametrize(
    ("attempts", "wait_ms"), [(1, 1_000), (2, 2_000), (5, 16_000), (6, MAX_RETRY_MS), (10**6, MAX_RETRY_MS)]
)
def test_retry_wait_doubles_up_to_half_a_minute(attempts: int, wait_ms: int) -> None:
    assert retry_wait_ms(attempts) == wait_ms
    assert retry_wait_ms(attempts, is_endless=True) == 1_000


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (errors.ServiceUnavailableError("away"), True),
        (errors.ConcurrentModificationError("another commit"), True),
        (errors.InvalidInputError("wrong"), False),
        (OSError("a disk"), False),
    ],
)
def test_is_transient_is_what_may_succeed_again(error: Exception, expected: bool) -> None:
    assert is_transient(error) is expected
