"""Queries for maintenance: shallow clones, unfinished work, transactions that ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import pytest
from lance_namespace.errors import TransactionNotFoundError

from tiltyard.model.modes import TransactionStatus
from tiltyard.store import NewVersion

if TYPE_CHECKING:
    from tests.store.conftest import Clock
    from tiltyard.store import Store

T = TypeVar("T")
KEEP = 1000
HOUR = 3_600_000


def test_clone_locations_include_clones_that_can_be_restored(store: Store, clock: Clock) -> None:
    source = store.insert_table(("s",), "mem://s", {})
    clone = store.insert_table(("c",), "mem://c", {})
    store.add_clone(clone.id, source.location)
    second = store.insert_table(("d",), "mem://d", {})
    store.add_clone(second.id, clone.location)
    store.remove_table(("d",), delete_folder=True, keep_ms=KEEP)
    assert sorted(store.clone_locations("mem://s")) == ["mem://c", "mem://d"]
    assert store.clone_locations("mem://c") == ["mem://d"]
    store.remove_table(("c",), delete_folder=False)
    clock.advance(KEEP)
    store.claim_due_deletions(1, HOUR)
    assert store.clone_locations("mem://s") == []
    assert store.all_locations() == {"mem://s", "mem://d"}


@pytest.mark.parametrize("parts", [True, False], ids=["with parts", "without"])
@pytest.mark.parametrize("status", [TransactionStatus.FAILED, TransactionStatus.CANCELED, TransactionStatus.SUCCEEDED])
def test_job_that_can_be_resumed_counts_as_unfinished_work(
    store: Store, clock: Clock, status: TransactionStatus, parts: bool
) -> None:
    table = store.insert_table(("t",), "mem://t", {})
    for bound in (table.id, None):
        started_at = clock.now
        job = store.create_transaction("ingest", bound, {"arguments": {}, "table": ["t"]}, {})
        store.claim_transaction("me", HOUR)
        if parts:
            store.save_job_part(job.id, "me", "share-1", "{}")
        if status is TransactionStatus.CANCELED:
            store.alter_transaction(job.id, lambda _, properties: (status, properties))
        else:
            store.finish_transaction(job.id, "me", status)
        if status is TransactionStatus.SUCCEEDED:
            store.delete_job_parts(job.id)
        goes_on = parts and status is TransactionStatus.FAILED
        if bound:
            assert store.oldest_unfinished_work(table.id, "gc") == (started_at if goes_on else None)
        else:
            assert store.unfinished_jobs_by_table_name("gc") == ([(started_at, ("t",))] if goes_on else [])
        clock.advance(5)


def test_jobs_submitted_before_their_table_are_found_by_its_name(store: Store, clock: Clock) -> None:
    first = clock.now
    store.create_transaction("ingest", None, {"arguments": {}, "table": ["space", "t"]}, {})
    clock.advance(5)
    store.create_transaction("pipeline", None, {"arguments": {}, "table": []}, {})
    store.create_transaction("collect_garbage", None, {"dry_run": False}, {})
    assert sorted(store.unfinished_jobs_by_table_name("gc")) == [(first, ("space", "t")), (clock.now, ())]


@pytest.mark.parametrize("dropped", [True, False])
def test_clone_of_a_removed_clone_has_the_first_source_too(store: Store, clock: Clock, dropped: bool) -> None:
    first = store.insert_table(("c",), "mem://c", {})
    store.add_clone(first.id, "mem://s")
    store.remove_table(("c",), delete_folder=dropped, keep_ms=KEEP)
    second = store.insert_table(("d",), "mem://d", {})
    store.add_clone(second.id, "mem://c")
    clock.advance(KEEP)
    store.claim_due_deletions(1, HOUR)
    assert store.clone_locations("mem://s") == ["mem://d"]
    assert store.may_share_files("mem://d", "mem://s")


def test_oldest_unfinished_work_is_an_upload_or_a_transaction(store: Store, clock: Clock) -> None:
    table = store.insert_table(("t",), "mem://t", {})
    assert store.oldest_unfinished_work(table.id, "gc") is None
    store.create_transaction("gc", table.id, {}, {})
    assert store.oldest_unfinished_work(table.id, "gc") is None
    started_at = clock.now
    upload = store.create_upload(table.id, "main", "")
    clock.advance(5)
    store.create_transaction("index", table.id, {}, {})
    assert store.oldest_unfinished_work(table.id, "gc") == started_at
    store.delete_upload(upload.id)
    assert store.oldest_unfinished_work(table.id, "gc") == clock.now


def test_sweep_transactions_forgets_what_ended_long_ago_and_nothing_names(store: Store, clock: Clock) -> None:
    table = store.insert_table(("books",), "/data/books", {})
    ended, named, going = (store.create_transaction("index", table.id, {}, {}).id for _ in range(3))
    for transaction in (ended, named):
        store.alter_transaction(transaction, lambda status, properties: (TransactionStatus.SUCCEEDED, properties))
    new = NewVersion(table_id=table.id, version=1, staged_path="s", manifest_path="m")
    store.transact(lambda catalog: catalog.record_version(new, named))
    assert store.sweep_transactions(clock.now, 10) == 0
    clock.advance(1)
    assert store.sweep_transactions(clock.now, 10) == 1
    assert [store.describe_transaction(id_).id for id_ in (named, going)] == [named, going]
    with pytest.raises(TransactionNotFoundError):
        store.describe_transaction(ended)


def test_sweep_transactions_keeps_a_drop_whose_folders_wait(store: Store, clock: Clock) -> None:
    drop = store.create_transaction("drop", None, {}, {}).id
    store.alter_transaction(drop, lambda status, properties: (TransactionStatus.SUCCEEDED, properties))
    store.schedule_deletion("/data/gone", clock.now, "dropped", drop)
    clock.advance(10)
    assert store.sweep_transactions(clock.now, 10) == 0
    store.complete_deletion("/data/gone")
    assert store.sweep_transactions(clock.now, 10) == 1


def test_transaction_counts_counts_unfinished_ones_by_kind_and_status(store: Store) -> None:
    for kind in ("index", "index", "drop"):
        store.create_transaction(kind, None, {}, {})
    store.claim_transaction("worker", 1000, ["drop"])
    assert store.transaction_counts() == {("index", "Queued"): 2, ("drop", "Running"): 1}
