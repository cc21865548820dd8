"""Folders scheduled for deletion: never one that a table uses, or that can be restored with one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import TYPE_CHECKING, TypeVar

import pytest
from lance_namespace.errors import InvalidInputError

from tests.store.test_races import race
from tiltyard.store import CREATING, DROPPED, NewVersion

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.store.conftest import Clock
    from tiltyard.store import Store, TableRecord, UnitOfWork

T = TypeVar("T")
KEEP = 1000
HOUR = 3_600_000


@pytest.fixture
def table(store: Store) -> TableRecord:
    """A managed table `a$t` with two versions."""
    store.create_namespace(("a",), {"k": "v"})
    record = store.insert_table(("a", "t"), "mem://t", {"n": "é"}, managed=True)
    for version in (1, 2):
        store.record_version(NewVersion(record.id, version, f"s{version}", f"m{version}", metadata={"x": "y"}))
    return record


def during(store: Store, change: Callable[[UnitOfWork], object], call: Callable[[], T]) -> T:
    """Return the result of a call that starts while a change is not committed yet, and has time to see that."""
    changed, returned = Event(), Event()

    def work(catalog: UnitOfWork) -> None:
        change(catalog)
        changed.set()
        returned.wait(0.5)

    with ThreadPoolExecutor(2) as pool:
        changing = pool.submit(store.transact, work)
        changed.wait(10)
        calling = pool.submit(call)
        calling.add_done_callback(lambda _: returned.set())
        changing.result()
        return calling.result()


def test_schedule_deletion_leaves_the_folder_of_a_table_in_the_trash(
    store: Store, clock: Clock, table: TableRecord
) -> None:
    store.remove_table(("a", "t"), delete_folder=True, keep_ms=KEEP)
    store.schedule_deletion("mem://t", clock.now, DROPPED)  # a write that came too late has its leftovers swept
    assert store.claim_due_deletions(10, HOUR) == []
    store.restore_table(("a", "t"))


@pytest.mark.parametrize("registered", [False, True])
def test_schedule_deletion_leaves_the_folder_of_a_table_for_good(store: Store, clock: Clock, registered: bool) -> None:
    store.insert_table(("t",), "mem://t", {}, registered=registered)
    assert not store.schedule_deletion(
        "mem://t", clock.now, DROPPED
    )  # as whoever does not know that the table was entered
    assert not store.schedule_orphan_deletion("mem://t", clock.now, "gc")
    store.remove_table(("t",), delete_folder=False, keep_ms=KEEP)
    assert store.claim_due_deletions(10, HOUR) == []
    store.restore_table(("t",))
    store.remove_table(("t",), delete_folder=False)
    assert store.schedule_deletion("mem://t", clock.now, DROPPED)
    assert [folder.location for folder in store.claim_due_deletions(10, HOUR)] == ["mem://t"]


def test_schedule_deletion_waits_for_an_insert_of_its_table_and_leaves_the_folder(store: Store, clock: Clock) -> None:
    store.schedule_deletion("mem://t", clock.now + HOUR, CREATING)
    outcome = during(
        store,
        lambda catalog: catalog.insert_table(("t",), "mem://t", {}, in_creation=True),
        lambda: store.schedule_deletion("mem://t", clock.now, CREATING),
    )
    assert not outcome
    store.remove_table(("t",), delete_folder=False)
    assert store.claim_due_deletions(10, HOUR) == []


def test_schedule_orphan_deletion_schedules_only_orphans(store: Store, clock: Clock) -> None:
    store.insert_table(("a",), "mem://around/t", {}, registered=True)
    store.insert_table(("i",), "mem://in", {}, registered=True)
    store.insert_table(("k",), "mem://kept", {})
    store.remove_table(("k",), delete_folder=False, keep_ms=KEEP)
    store.add_clone(store.insert_table(("c",), "mem://c", {}).id, "mem://copied")
    store.add_clone(store.insert_table(("d",), "mem://d", {}).id, "mem://copied and dropped")
    store.remove_table(("d",), delete_folder=True, keep_ms=KEEP)
    store.add_clone(store.insert_table(("g",), "mem://g", {}).id, "mem://copied once")
    store.remove_table(("g",), delete_folder=False)
    store.schedule_deletion("mem://scheduled", clock.now + HOUR, CREATING)
    names = "around", "in/side", "kept", "copied", "copied and dropped", "scheduled", "copied once", "unknown"
    marked = [name for name in names if store.schedule_orphan_deletion(f"mem://{name}", clock.now, "gc")]
    assert marked == ["copied once", "unknown"]
    assert {folder.location for folder in store.claim_due_deletions(10, HOUR)} == {f"mem://{name}" for name in marked}


@pytest.mark.parametrize("place", ["t", "t/inside"])
def test_schedule_orphan_deletion_waits_for_a_registration_and_leaves_its_folder(
    store: Store, clock: Clock, place: str
) -> None:
    outcome = during(
        store,
        lambda catalog: catalog.insert_table(("t",), f"mem://{place}", {}, registered=True),
        lambda: store.schedule_orphan_deletion("mem://t", clock.now, "gc"),
    )
    assert not outcome
    store.remove_table(("t",), delete_folder=False)
    assert store.claim_due_deletions(10, HOUR) == []


def test_schedule_orphan_deletion_against_a_registration_has_one_winner(store: Store, clock: Clock) -> None:
    for number in range(20):
        location = f"mem://{number}"
        entered, marked = race(
            lambda location=location: store.insert_table(("t",), location, {}, registered=True),
            lambda location=location: store.schedule_orphan_deletion(location, clock.now, "gc"),
        )
        assert isinstance(entered, InvalidInputError) == marked
        if not marked:
            store.remove_table(("t",), delete_folder=False)
        assert len(store.claim_due_deletions(10, HOUR)) == marked
