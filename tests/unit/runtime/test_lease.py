"""Leases as a process holds them: a thread renews, and a holder knows when to stop."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from lance_namespace.errors import (
    ConcurrentModificationError,
    LanceNamespaceError,
    ServiceUnavailableError,
    TransactionNotFoundError,
)

from tiltyard.runtime.lease import Lease

if TYPE_CHECKING:
    from collections.abc import Callable

SHORT_MS, LONG_MS = 30, 3_600_000


class Catalog:
    """What a lease is renewed in: `answers` come one after the other, then the last one again and again."""

    def __init__(self, *answers: bool | LanceNamespaceError | None) -> None:
        self._answers = list(answers)
        self.renewals = threading.Semaphore(0)
        self.count = 0

    def renew(self) -> bool | None:
        self.count += 1
        self.renewals.release()
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, LanceNamespaceError):
            raise answer
        return answer

    def wait_for(self, renewals: int) -> None:
        for _ in range(renewals):
            assert self.renewals.acquire(timeout=10)


def test_lease_is_renewed_until_it_is_closed() -> None:
    catalog = Catalog(None)
    with Lease("x", catalog.renew, SHORT_MS) as lease:
        catalog.wait_for(5)
        assert lease.check()
    assert not any(thread.name == "lease of x" for thread in threading.enumerate())


def test_lease_that_another_has_claimed_is_renewed_before_the_first_check() -> None:
    catalog = Catalog(None)
    with Lease("x", catalog.renew, LONG_MS, is_new=False) as lease:
        assert lease.check() and catalog.count == 1
        assert lease.check() and catalog.count == 1


@pytest.mark.parametrize(
    "answer",
    [False, ConcurrentModificationError("another has it"), TransactionNotFoundError("it is gone")],
    ids=["canceled", "another's", "gone"],
)
def test_lease_that_the_catalog_says_is_lost_stops_its_holder(answer: bool | LanceNamespaceError) -> None:
    catalog = Catalog(True, answer, True)
    with Lease("x", catalog.renew, SHORT_MS) as lease:
        catalog.wait_for(2)
        lease._thread.join(10)  # it renews nothing any more
        assert (lease.is_lost, lease.check(), catalog.count) == (True, False, 2)


def test_renewal_that_fails_is_reported_and_tried_again() -> None:
    outage, reported = ServiceUnavailableError("the database is away"), []
    catalog = Catalog(outage, outage, True)
    with Lease("x", catalog.renew, SHORT_MS, report=lambda error: reported.append(error) is None) as lease:
        catalog.wait_for(4)
        assert lease.check() and reported == [outage, outage]


def test_holder_that_was_suspended_for_longer_than_its_lease_asks_first(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0]
    monkeypatch.setattr("tiltyard.runtime.lease.elapsed_ms", lambda: now[0])
    catalog = Catalog(True, ConcurrentModificationError("another has it by now"))
    with Lease("x", catalog.renew, LONG_MS) as lease:
        now[0] += LONG_MS
        assert lease.check() and catalog.count == 0
        now[0] += 1
        assert lease.check() and catalog.count == 1
        now[0] += LONG_MS
        lease.write(lambda: None)  # what renews it, too
        now[0] += LONG_MS
        assert lease.check() and catalog.count == 1
        now[0] += 1
        assert not lease.check() and catalog.count == 2
        assert not lease.check() and catalog.count == 2


@pytest.mark.parametrize("ending", ["look", "lose"])
def test_look_is_had_between_renewals_and_may_stop_the_holder(ending: str) -> None:
    looks, catalog = Catalog(True, True, ending != "look"), Catalog(True)
    with Lease("x", catalog.renew, LONG_MS, look=looks.renew, look_seconds=0.005) as lease:
        looks.wait_for(3)
        stop: dict[str, Callable[[], None]] = {"look": lambda: lease._thread.join(10), "lose": lease.lose}
        stop[ending]()
        assert not lease.check() and catalog.count == 0
