"""Pauses of transactions, and the log of what happened to them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from lance_namespace.errors import InvalidInputError, TransactionNotFoundError

from tests.store.conftest import Clock
from tiltyard.model.modes import TransactionStatus as Status
from tiltyard.store import JobFilter, Store
from tiltyard.store.jobs.events import MAX_EVENTS


def allow(record: object) -> None:
    """Let any transaction be paused."""


def refuse(record: object) -> None:
    raise InvalidInputError("no")


def test_pause_queued_is_claimed_only_when_resumed(store: Store, clock: Clock) -> None:
    job = store.create_transaction("export", None, {}, {})
    with pytest.raises(InvalidInputError):
        store.pause_transaction(job.id, refuse, "ann")
    assert store.pause_transaction(job.id, allow, "ann")
    assert not store.pause_transaction(job.id, allow, "ann")
    assert not store.has_claimable_transaction(["export"])
    assert store.claim_transaction("me", 1000, ["export"]) is None
    assert store.claim_job(job.id, "me", 1000) is None
    assert store.describe_transaction(job.id).is_paused
    assert store.resume_transaction(job.id, "bob")
    assert not store.resume_transaction(job.id, "bob")
    claimed = store.claim_job(job.id, "me", 1000)
    assert claimed is not None
    assert (claimed.attempts, claimed.is_paused) == (1, False)
    events = [(event.event, event.status, event.caused_by) for event in store.list_job_events(job.id)]
    assert events == [("pause", "Queued", "ann"), ("resume", "Queued", "bob"), ("claim", "Running", None)]


def test_pause_running_waits_after_its_release(store: Store, clock: Clock) -> None:
    job = store.create_transaction("export", None, {}, {}, Status.RUNNING, owner="me", lease_ms=1000)
    assert store.pause_transaction(job.id, allow, None)
    assert store.heartbeat(job.id, "me", 1000) is Status.RUNNING
    store.finish_transaction(job.id, "me", Status.QUEUED)
    clock.advance(10_000)
    assert store.claim_transaction("you", 1000) is None
    assert store.resume_transaction(job.id, None)
    assert store.claim_transaction("you", 1000) is not None


def test_pause_running_whose_driver_died_is_claimed_by_nobody(store: Store, clock: Clock) -> None:
    job = store.create_transaction("export", None, {}, {}, Status.RUNNING, owner="me", lease_ms=1000)
    store.pause_transaction(job.id, allow, None)
    clock.advance(10_000)
    assert store.claim_transaction("you", 1000) is None
    store.resume_transaction(job.id, None)
    assert store.claim_transaction("you", 1000) is not None


def test_events_record_how_it_ended(store: Store) -> None:
    job = store.create_transaction("export", None, {}, {"rows": "12"})
    store.claim_job(job.id, "me", 1000)
    store.finish_transaction(job.id, "me", Status.FAILED, error="no disk")
    store.alter_transaction(job.id, lambda _, properties: (Status.CANCELED, properties), altered_by="ann")
    ended, canceled = store.list_job_events(job.id)[1:]
    assert (ended.event, ended.status, ended.rows_processed, ended.message) == (
        "claim_complete",
        "Failed",
        12,
        "no disk",
    )
    assert (canceled.event, canceled.status, canceled.caused_by) == ("set_canceled", "Canceled", "ann")


def test_events_keep_the_last_ones(store: Store) -> None:
    job = store.create_transaction("export", None, {}, {})

    def work(catalog: Store) -> None:
        for _ in range(MAX_EVENTS // 2 + 10):
            catalog.pause_transaction(job.id, allow, None)
            catalog.resume_transaction(job.id, None)

    run: Callable[..., None] = store.transact
    run(work)
    events = store.list_job_events(job.id)
    assert (len(events), events[-1].event) == (MAX_EVENTS, "resume")


def test_pause_unknown_raises(store: Store) -> None:
    for call in (lambda: store.pause_transaction("x", allow, None), lambda: store.resume_transaction("x", None)):
        with pytest.raises(TransactionNotFoundError):
            call()


def test_list_jobs_filters(store: Store) -> None:
    paused, queued = (store.create_transaction(kind, None, {}, {}).id for kind in ("export", "ingest"))
    store.pause_transaction(paused, allow, None)
    kinds = ("export", "ingest")

    def listed(**fields: object) -> list[str]:
        return [record.id for record in store.list_jobs(JobFilter(kinds, **fields), None, 10)]  # type: ignore[arg-type]

    assert (listed(is_paused=True), listed(is_paused=False)) == ([paused], [queued])
    assert listed(status=Status.QUEUED, is_paused=True) == [paused]
    assert listed(table_id=7) == []
