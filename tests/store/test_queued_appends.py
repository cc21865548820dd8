"""Appends of several servers that are queued for one commit, and the turns in which they are committed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from lance_namespace.errors import ServiceUnavailableError, TableNotFoundError

from tiltyard.store import RETURNED, AppendNotWaitingError, NewVersion, Store, UnitOfWork, open_store

if TYPE_CHECKING:
    from collections.abc import Iterator

LEASE_MS = 2000
FAR_MS = 100_000


class Clock:
    """A clock that a test sets; in ms."""

    def __init__(self) -> None:
        self.now = 1_000_000

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def catalog(url: str, clock: Clock) -> Iterator[Store]:
    with open_store(url, clock=clock) as store:
        yield store


@pytest.fixture
def table(catalog: Store) -> int:
    return catalog.insert_table(("t",), "/r/t", {}, managed=True).id


def queue(catalog: Store, table: int, *ids: str) -> None:
    for id_ in ids:
        catalog.queue_append(id_, table, "", id_.encode(), 1_000_000 + FAR_MS)


def version_of(catalog: Store, id_: str) -> int | None:
    state = catalog.append_state(id_)
    assert state is not None
    return state.version


def test_turn_is_of_one_server_until_it_ends_or_its_lease_expires(catalog: Store, table: int, clock: Clock) -> None:
    assert catalog.claim_turn(table, "", "a", LEASE_MS) == 1
    assert catalog.claim_turn(table, "", "b", LEASE_MS) is None
    assert catalog.claim_turn(table, "branch", "b", LEASE_MS) == 1
    assert catalog.claim_turn(table, "", "a", LEASE_MS) == 1, "again, as after a lost connection"
    clock.now += LEASE_MS
    assert catalog.claim_turn(table, "", "b", LEASE_MS) == 1
    catalog.end_turn(table, "", "a", 3)
    assert catalog.claim_turn(table, "", "c", LEASE_MS) is None, "a turn that expired ends no other"
    catalog.end_turn(table, "", "b", 3)
    assert catalog.claim_turn(table, "", "c", LEASE_MS) == 3


def test_turn_expects_as_many_appends_as_the_last_one_brought_and_left(catalog: Store, table: int) -> None:
    queue(catalog, table, "a", "b", "c")
    catalog.claim_turn(table, "", "a", LEASE_MS)
    catalog.mark_appends_committed(["a", "b"], "a", 2)
    catalog.end_turn(table, "", "a", 2)
    assert catalog.claim_turn(table, "", "c", LEASE_MS) == 3


def test_append_waits_until_a_version_brings_it_or_it_expires(catalog: Store, table: int, clock: Clock) -> None:
    queue(catalog, table, "a", "b")
    queue(catalog, table, "a")
    assert [append.id for append in catalog.waiting_appends(table, "", 10)] == ["a", "b"]
    assert [append.content for append in catalog.waiting_appends(table, "", 1)] == [b"a"]
    assert catalog.waiting_appends(table, "branch", 10) == []
    catalog.mark_appends_committed(["a"], "turn", 2)
    assert [append.id for append in catalog.waiting_appends(table, "", 10)] == ["b"]
    assert version_of(catalog, "a") == 2
    clock.now += FAR_MS
    assert catalog.waiting_appends(table, "", 10) == []


def test_append_is_committed_by_one_turn_alone(catalog: Store, table: int) -> None:
    queue(catalog, table, "a", "b")

    def commit(catalog: UnitOfWork) -> None:
        catalog.record_version(NewVersion(table, 2, "/r/t/_versions/2-x", "_versions/2.manifest"))
        catalog.mark_appends_committed(["a", "b"], "second", 2)

    catalog.mark_appends_committed(["b"], "first", 1)
    with pytest.raises(AppendNotWaitingError):
        catalog.transact(commit)
    assert version_of(catalog, "a") is None
    assert catalog.latest_version(table) is None


def test_withdrawn_append_is_in_no_version(catalog: Store, table: int) -> None:
    queue(catalog, table, "a", "b")
    assert catalog.withdraw_append("a", table) is None
    with pytest.raises(AppendNotWaitingError):
        catalog.mark_appends_committed(["a", "b"], "turn", 2)
    catalog.mark_appends_committed(["b"], "turn", 2)
    assert catalog.withdraw_append("b", table) == 2
    with pytest.raises(ServiceUnavailableError):
        catalog.withdraw_append("b", table)


def test_returned_append_waits_for_no_turn(catalog: Store, table: int) -> None:
    queue(catalog, table, "a", "b")
    catalog.mark_appends_committed(["b"], "turn", 2)
    catalog.return_appends(["a", "b"])
    assert (version_of(catalog, "a"), version_of(catalog, "b")) == (RETURNED, 2)
    assert catalog.waiting_appends(table, "", 10) == []
    assert catalog.withdraw_append("a", table) is None


def test_state_says_whether_the_turn_that_committed_is_over(catalog: Store, table: int, clock: Clock) -> None:
    queue(catalog, table, "a")
    catalog.claim_turn(table, "", "turn", LEASE_MS)
    catalog.mark_appends_committed(["a"], "turn", 2)
    state = catalog.append_state("a")
    assert state is not None and not state.is_ended and not state.is_turn_free
    clock.now += LEASE_MS
    state = catalog.append_state("a")
    assert state is not None and not state.is_ended and state.is_turn_free
    catalog.claim_turn(table, "", "next", LEASE_MS)
    state = catalog.append_state("a")
    assert state is not None and state.is_ended and not state.is_turn_free


def test_appends_of_a_version_that_is_rolled_back_wait_again(catalog: Store, table: int) -> None:
    queue(catalog, table, "a")
    record, _ = catalog.record_version(NewVersion(table, 2, "/r/t/_versions/2-x", "_versions/2.manifest"))
    catalog.mark_appends_committed(["a"], "turn", 2)
    assert catalog.roll_back_version(record)
    assert [append.id for append in catalog.waiting_appends(table, "", 10)] == ["a"]


def test_appends_end_with_their_table_and_what_servers_left_is_swept(catalog: Store, table: int, clock: Clock) -> None:
    queue(catalog, table, "a", "b")
    assert catalog.sweep_queued_appends(10) == 0
    clock.now += 2 * FAR_MS + 3_600_000
    assert catalog.sweep_queued_appends(1) == 1
    catalog.delete_append("b")
    assert catalog.append_state("b") is None
    for call in (
        lambda: catalog.queue_append("c", table + 1, "", b"", 0),
        lambda: catalog.claim_turn(table + 1, "", "c", LEASE_MS),
        lambda: catalog.withdraw_append("c", table + 1),
    ):
        with pytest.raises(TableNotFoundError):
            call()
