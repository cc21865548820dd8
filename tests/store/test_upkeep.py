"""Which tables are due for upkeep: noted by commits, claimed by one server, and planned by what it finds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tiltyard.model.modes import TransactionStatus
from tiltyard.runtime.lease import LOOK_LEASE_MS
from tiltyard.store import FinalManifest, NewVersion
from tiltyard.store.jobs.jobs import JobFilter
from tiltyard.store.tables.upkeep import MAX_ENDED, UPKEEP, UPKEEP_DELAY_MS

if TYPE_CHECKING:
    from tests.store.conftest import Clock
    from tiltyard.store import Store


def test_claim_upkeep_of_noted_table_is_given_to_one_after_a_delay(store: Store, clock: Clock) -> None:
    store.note_changes([7, 3, 7])
    assert not store.has_due_upkeep()
    assert store.claim_upkeep() is None
    clock.advance(UPKEEP_DELAY_MS)
    claimed = [store.claim_upkeep(), store.claim_upkeep()]
    assert {each.table_id for each in claimed if each} == {3, 7}
    assert store.claim_upkeep() is None, "each is looked at by one"
    clock.advance(LOOK_LEASE_MS)
    assert store.claim_upkeep() is not None, "whoever had it is gone"


def test_plan_upkeep_with_commits_since_is_due_after_the_rest(store: Store, clock: Clock) -> None:
    store.note_changes([1])
    clock.advance(UPKEEP_DELAY_MS)
    seen = store.claim_upkeep()
    assert seen is not None
    clock.advance(1)
    store.note_changes([1])
    rest = clock() + 20_000
    store.plan_upkeep(seen, rests_until=rest, due_at=rest + 10**9, clean_at=5, state={"failures": 1})
    store.note_changes([1])
    clock.advance(19_999)
    assert not store.has_due_upkeep()
    clock.advance(1)
    again = store.claim_upkeep()
    assert again is not None
    assert (again.clean_at, again.state) == (5, {"failures": 1})


def test_plan_upkeep_without_anything_to_do_forgets_the_table(store: Store, clock: Clock) -> None:
    store.note_changes([1])
    clock.advance(UPKEEP_DELAY_MS)
    seen = store.claim_upkeep()
    assert seen is not None
    store.plan_upkeep(seen, rests_until=clock(), due_at=None, clean_at=None, state={})
    assert store.find_upkeep(1) is None
    store.note_changes([1])
    clock.advance(UPKEEP_DELAY_MS)
    seen = store.claim_upkeep()
    assert seen is not None
    clock.advance(1)
    store.note_changes([1])  # while it was looked at
    store.plan_upkeep(seen, rests_until=clock(), due_at=None, clean_at=None, state={})
    assert store.find_upkeep(1) is not None


def test_mark_finalized_notes_tables_whose_main_branch_got_a_version(store: Store) -> None:
    ids = [store.insert_table((name,), f"/root/{name}", {}, managed=True).id for name in "ab"]
    new = [
        NewVersion(
            table_id=number, branch=branch, version=1, staged_path=f"/root/{number}/x", manifest_path="1.manifest"
        )
        for number, branch in zip(ids, ("", "dev"), strict=True)
    ]
    for each in new:
        record, _ = store.record_version(each)
        store.mark_finalized([FinalManifest(record, 10, None)])
    assert [store.find_upkeep(each) is not None for each in ids] == [True, False]


def test_delete_ended_upkeep_leaves_the_last_ones_of_a_table(store: Store, clock: Clock) -> None:
    table = store.insert_table(("a",), "/root/a", {}).id
    made = []
    for _ in range(6):
        store.delete_ended_upkeep(table)
        made.append(store.create_transaction(UPKEEP, table, {}, {}).id)
        assert store.claim_transaction("me", 1000, (UPKEEP,)) is not None
        store.finish_transaction(made[-1], "me", TransactionStatus.SUCCEEDED)
        clock.advance(1)
    other = store.create_transaction("other", table, {}, {}, status=TransactionStatus.FAILED).id
    left = [record.id for record in store.list_jobs(JobFilter((UPKEEP,)), None, 100)]
    assert left == made[: -MAX_ENDED - 1 : -1]
    clock.advance(1)
    assert store.sweep_upkeep(clock(), 100) == MAX_ENDED
    assert store.describe_transaction(other)


def test_oldest_work_is_unfinished_and_not_of_upkeep(store: Store, clock: Clock) -> None:
    table = store.insert_table(("a",), "/root/a", {}).id
    store.create_transaction(UPKEEP, table, {}, {})
    assert store.oldest_work() is None
    clock.advance(5)
    store.create_transaction("refresh", table, {}, {})
    assert store.oldest_work() == clock()
