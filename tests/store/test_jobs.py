"""Jobs: claimed one by one, what they keep, how they are listed, on both databases."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from lance_namespace.errors import ConcurrentModificationError

from tiltyard.model.modes import TransactionStatus as Status
from tiltyard.store import JobFilter, RunKeyTakenError

if TYPE_CHECKING:
    from tests.store.conftest import Clock
    from tiltyard.store import Store


def test_claim_job_while_another_has_it_is_refused_until_its_lease_ends(store: Store, clock: Clock) -> None:
    queued = store.create_transaction("ingest", None, {}, {})
    first = store.claim_job(queued.id, "one", 1000)
    assert first is not None and (first.status, first.attempts) == (Status.RUNNING, 1)
    assert store.claim_job(queued.id, "two", 1000) is None
    clock.advance(1001)
    second = store.claim_job(queued.id, "two", 1000)
    assert second is not None and (second.lease_owner, second.attempts) == ("two", 2)


def test_claim_job_that_has_ended_is_none(store: Store) -> None:
    queued = store.create_transaction("ingest", None, {}, {})
    store.alter_transaction(queued.id, lambda _, properties: (Status.CANCELED, properties))
    assert store.claim_job(queued.id, "one", 1000) is None
    assert store.claim_job("nothing", "one", 1000) is None


def test_keep_part_of_the_owner_is_there_for_the_next_one(store: Store, clock: Clock) -> None:
    job = store.create_transaction("ingest", None, {}, {}, Status.RUNNING, owner="one", lease_ms=1000)
    for name, value in (("b", "2"), ("a", "1"), ("b", "3")):
        store.save_job_part(job.id, "one", name, value)
    clock.advance(1001)
    assert store.claim_job(job.id, "two", 1000)
    assert store.list_job_parts(job.id, "", 10) == [("a", "1"), ("b", "3")]
    assert store.list_job_parts(job.id, "a", 10) == [("b", "3")]
    assert store.list_job_parts(job.id, "", 1) == [("a", "1")]
    store.delete_job_parts(job.id)
    assert store.list_job_parts(job.id, "", 10) == []


def test_save_job_part_of_a_job_leased_to_another_is_refused(store: Store, clock: Clock) -> None:
    job = store.create_transaction("ingest", None, {}, {}, Status.RUNNING, owner="one", lease_ms=1000)
    clock.advance(1001)
    store.claim_job(job.id, "two", 1000)
    with pytest.raises(ConcurrentModificationError, match=job.id):
        store.save_job_part(job.id, "one", "a", "1")
    store.alter_transaction(job.id, lambda _, properties: (Status.CANCELED, properties))
    with pytest.raises(ConcurrentModificationError):
        store.save_job_part(job.id, "two", "a", "1")
    assert store.list_job_parts(job.id, "", 10) == []


def test_list_jobs_looks_at_kinds_and_status_newest_first(store: Store, clock: Clock) -> None:
    created = {}
    for kind in ("ingest", "create_index", "export", "ingest"):
        created[store.create_transaction(kind, None, {}, {}).id] = kind
        clock.advance(1)
    jobs = [key for key, kind in created.items() if kind != "create_index"][::-1]
    kinds = ("ingest", "export")
    assert [record.id for record in store.list_jobs(JobFilter(kinds), None, 10)] == jobs
    last = store.list_jobs(JobFilter(kinds), None, 1)[0]
    assert [record.id for record in store.list_jobs(JobFilter(kinds), (last.created_at, last.id), 10)] == jobs[1:]
    store.claim_job(jobs[1], "one", 1000)
    assert [record.id for record in store.list_jobs(JobFilter(kinds, Status.RUNNING), None, 10)] == [jobs[1]]


def test_list_jobs_of_a_namespace_has_those_of_what_is_and_was_in_it(store: Store) -> None:
    for path in (("a",), ("a", "b"), ("other",)):
        store.create_namespace(path, {})
    inner, other = store.describe_namespace(("a", "b")).id, store.describe_namespace(("other",)).id
    table = store.insert_table(("a", "b", "t"), "file:///t.lance", {})
    live = store.create_transaction("ingest", table.id, {}, {}).id
    dropped = store.create_transaction("ingest", None, {}, {}, namespace_id=inner).id
    elsewhere = store.create_transaction("ingest", None, {}, {}, namespace_id=other).id
    store.create_transaction("ingest", None, {}, {})  # of no namespace

    def listed(*path: str) -> set[str]:
        matching = JobFilter(("ingest",), namespace_id=store.describe_namespace(path).id)
        return {record.id for record in store.list_jobs(matching, None, 10)}

    assert (listed("a"), listed("a", "b"), listed("other")) == ({live, dropped}, {live, dropped}, {elsewhere})
    store.rename_table(("a", "b", "t"), ("other", "t"))
    assert (listed("a"), listed("other")) == ({dropped}, {live, elsewhere})
    store.remove_table(("other", "t"), delete_folder=False)
    assert (listed("a"), listed("other")) == ({live, dropped}, {elsewhere})
    assert store.is_job_in_namespace(elsewhere, other) and not store.is_job_in_namespace(elsewhere, inner)


def lose_runs(store: Store) -> int:
    return store.end_lost_runs(lambda record: f"{record.kind} is lost", 10)


def test_local_run_whose_lease_ended_is_lost_and_claimed_by_its_id_alone(store: Store, clock: Clock) -> None:
    local = store.create_transaction("stream", None, {}, {}, is_local=True)
    assert store.claim_job(local.id, "own", 10_000) is not None
    submitted = store.create_transaction("stream", None, {}, {})
    assert store.claim_transaction("worker", 10_000, ["stream"]).id == submitted.id  # type: ignore[union-attr]
    assert not store.has_lost_runs() and lose_runs(store) == 0
    clock.advance(10_001)
    assert store.describe_transaction(local.id).status_at(clock()) is Status.LOST
    for status, with_lost, listed in (
        (Status.LOST, False, [local.id]),
        (Status.RUNNING, False, [submitted.id]),
        (Status.FAILED, True, [local.id]),
        (Status.FAILED, False, []),
    ):
        found = store.list_jobs(JobFilter(["stream"], status, with_lost=with_lost), None, 10)
        assert [record.id for record in found] == listed, "before anybody has written that it is lost"
    assert store.has_lost_runs() and lose_runs(store) == 1
    lost = store.describe_transaction(local.id)
    assert (lost.status, lost.error) == (Status.LOST, "stream is lost")
    assert store.claim_transaction("worker", 10_000, ["stream"]).id == submitted.id  # type: ignore[union-attr]
    assert store.claim_transaction("worker", 10_000, ["stream"]) is None
    claimed = store.claim_job(local.id, "another", 10_000)
    assert claimed is not None and (claimed.status, claimed.error) == (Status.RUNNING, None)
    with pytest.raises(ConcurrentModificationError):
        store.heartbeat(local.id, "own", 10_000)


def test_local_run_that_was_only_cut_off_goes_on(store: Store, clock: Clock) -> None:
    local = store.create_transaction("stream", None, {}, {}, is_local=True)
    store.claim_job(local.id, "own", 10_000)
    clock.advance(10_001)
    lose_runs(store)
    assert store.heartbeat(local.id, "own", 10_000) is Status.RUNNING
    assert store.describe_transaction(local.id).error is None


def test_of_one_run_key_one_transaction_is_unfinished(store: Store, clock: Clock) -> None:
    first = store.create_transaction("stream", None, {}, {}, is_local=True, run_key="k")
    store.claim_job(first.id, "own", 10_000)
    with pytest.raises(RunKeyTakenError):
        store.create_transaction("stream", None, {}, {}, run_key="k")
    assert store.find_unfinished_run("k").id == first.id  # type: ignore[union-attr]
    clock.advance(10_001)
    lose_runs(store)
    second = store.create_transaction("stream", None, {}, {}, is_local=True, run_key="k")
    for again in (
        lambda: store.heartbeat(first.id, "own", 10_000),
        lambda: store.claim_job(first.id, "third", 10_000),
        lambda: store.alter_transaction(first.id, lambda status, properties: (Status.QUEUED, properties)),
    ):
        with pytest.raises(RunKeyTakenError):
            again()
    store.claim_job(second.id, "other", 10_000)
    store.finish_transaction(second.id, "other", Status.SUCCEEDED)
    assert store.claim_job(first.id, "third", 10_000) is not None
