"""The memory of running queries, by their estimates."""

from __future__ import annotations

import pytest
from lance_namespace.errors import InvalidInputError, ThrottlingError

from tiltyard.runtime.budgets import MemoryBudget

MIB = 1 << 20


def test_principal_has_half_of_the_memory_and_leaves_the_rest_to_others() -> None:
    budget = MemoryBudget(100 * MIB)
    first = budget.reserve("ann", 30 * MIB)
    with pytest.raises(ThrottlingError, match="30 MiB"):
        budget.reserve("ann", 30 * MIB)
    others = [budget.reserve("bob", 50 * MIB), budget.reserve("cleo", 20 * MIB)]
    with pytest.raises(ThrottlingError):
        budget.reserve("dora", MIB)
    first.release()
    first.release()
    assert budget.used == 70 * MIB
    again = budget.reserve("ann", 30 * MIB)
    for reservation in (*others, again):
        reservation.release()
    assert budget.used == 0


def test_running_query_that_grows_beyond_what_is_free_is_refused() -> None:
    budget = MemoryBudget(100 * MIB)
    first, second, other = budget.reserve("ann", MIB), budget.reserve("ann", MIB), budget.reserve("bob", MIB)
    first.resize(40 * MIB)
    with pytest.raises(ThrottlingError, match="yours 60 MiB"):
        second.resize(20 * MIB)
    other.resize(50 * MIB)
    first.resize(5 * MIB)
    second.resize(20 * MIB)
    assert budget.used == 75 * MIB
    for reservation in (second, other):
        reservation.release()
    with pytest.raises(InvalidInputError, match="more memory than 50 MiB"):
        first.resize(51 * MIB)
    first.release()
    assert budget.used == 0


def test_query_of_more_than_a_share_is_refused_for_good() -> None:
    budget = MemoryBudget(100 * MIB)
    with pytest.raises(InvalidInputError, match="51 MiB of memory: 50 at most"):
        budget.reserve("ann", 51 * MIB)
    assert budget.reserve(None, 100 * MIB) is not None


def test_query_that_is_dropped_releases_its_memory() -> None:
    budget = MemoryBudget(100 * MIB)
    reservation = budget.reserve("ann", 30 * MIB)
    assert budget.used == 30 * MIB
    del reservation
    assert budget.used == 0
