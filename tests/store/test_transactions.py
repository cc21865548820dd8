"""Transactions: claims, leases, heartbeats, on both databases."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidTableStateError,
    TableNotFoundError,
    TransactionNotFoundError,
)

from tiltyard.model.modes import TransactionStatus as Status

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.store.conftest import Clock
    from tiltyard.store import Store


def test_create_transaction_returns_what_describe_returns(store: Store, clock: Clock) -> None:
    created = store.create_transaction("index", None, {"columns": ["a"], "n": 1}, {"k": "é"})
    assert store.describe_transaction(created.id) == created
    assert (created.status, created.payload, created.properties) == (
        Status.QUEUED,
        {"columns": ["a"], "n": 1},
        {"k": "é"},
    )
    assert (created.attempts, created.error, created.lease_owner, created.created_at) == (0, None, None, clock.now)
    with pytest.raises(TransactionNotFoundError, match="nothing"):
        store.describe_transaction("nothing")


def test_create_transaction_of_a_dropped_table_is_not_found(store: Store) -> None:
    table = store.insert_table(("t",), "mem://t", {})
    store.create_transaction("index", table.id, {}, {})
    store.remove_table(("t",), delete_folder=True)
    with pytest.raises(TableNotFoundError):
        store.create_transaction("index", table.id, {}, {})


def test_claim_transaction_hands_out_each_once_and_oldest_first(store: Store, clock: Clock) -> None:
    ids = []
    for _ in range(3):
        ids.append(store.create_transaction("index", None, {}, {}).id)
        clock.advance(1)
    assert store.has_claimable_transaction(["index"])
    claimed = [store.claim_transaction(worker, 1000) for worker in ("one", "two", "one")]
    assert [record.id for record in claimed if record] == ids
    assert {record.attempts for record in claimed if record} == {1}
    assert store.claim_transaction("two", 1000) is None
    assert not store.has_claimable_transaction(["index"])


def test_claim_transaction_looks_at_kinds(store: Store) -> None:
    store.create_transaction("index", None, {}, {})
    assert store.claim_transaction("w", 1000, ["drop", "compact"]) is None
    assert store.claim_transaction("w", 1000, ["drop", "index"]) is not None


def test_claim_transaction_takes_over_when_the_lease_ends(store: Store, clock: Clock) -> None:
    created = store.create_transaction("index", None, {}, {})
    store.claim_transaction("one", 1000)
    clock.advance(900)
    assert store.heartbeat(created.id, "one", 1000) is Status.RUNNING
    store.merge_properties(created.id, {"progress": "5"})
    clock.advance(900)
    assert store.claim_transaction("two", 1000) is None
    clock.advance(200)
    claimed = store.claim_transaction("two", 1000)
    assert claimed
    assert (claimed.id, claimed.attempts, claimed.lease_owner, claimed.properties) == (
        created.id,
        2,
        "two",
        {"progress": "5"},
    )
    with pytest.raises(ConcurrentModificationError):
        store.heartbeat(created.id, "one", 1000)
    with pytest.raises(ConcurrentModificationError):
        store.finish_transaction(created.id, "one", Status.SUCCEEDED)
    done = store.finish_transaction(created.id, "two", Status.SUCCEEDED)
    assert (done.status, done.properties, done.lease_owner) == (Status.SUCCEEDED, {"progress": "5"}, None)
    with pytest.raises(ConcurrentModificationError):
        store.finish_transaction(created.id, "two", Status.FAILED)
    clock.advance(10_000)
    assert store.claim_transaction("three", 1000) is None


def test_finish_transaction_can_put_it_back_for_later(store: Store, clock: Clock) -> None:
    created = store.create_transaction("index", None, {}, {})
    store.claim_transaction("one", 1000)
    store.finish_transaction(created.id, "one", Status.QUEUED, error="busy", available_at=clock.now + 500)
    assert store.describe_transaction(created.id).error == "busy"
    assert store.claim_transaction("one", 1000) is None
    clock.advance(500)
    reclaimed = store.claim_transaction("one", 1000)
    assert reclaimed
    assert reclaimed.attempts == 2


def test_merge_properties_adds_and_replaces_and_changes_nothing_else(store: Store) -> None:
    created = store.create_transaction("index", None, {}, {"asked": "now", "progress": "0"})
    claimed = store.claim_transaction("one", 1000)
    assert claimed
    store.merge_properties(created.id, {"progress": "5", "rows": "1"})
    listed = store.describe_transaction(created.id)
    assert listed.properties == {"asked": "now", "progress": "5", "rows": "1"}
    assert (listed.status, listed.lease_owner, listed.available_at) == (Status.RUNNING, "one", claimed.available_at)
    with pytest.raises(TransactionNotFoundError):
        store.merge_properties("nothing", {"progress": "5"})


def test_heartbeat_tells_a_worker_that_it_is_canceled(store: Store) -> None:
    created = store.create_transaction("index", None, {}, {})
    store.claim_transaction("one", 1000)
    store.alter_transaction(created.id, lambda _, properties: (Status.CANCELED, properties))
    assert store.heartbeat(created.id, "one", 1000) is Status.CANCELED
    with pytest.raises(ConcurrentModificationError):
        store.finish_transaction(created.id, "one", Status.SUCCEEDED)
    with pytest.raises(TransactionNotFoundError):
        store.heartbeat("nothing", "one", 1000)
    assert store.describe_transaction(created.id).status is Status.CANCELED


def test_alter_transaction_changes_all_or_nothing(store: Store, clock: Clock) -> None:
    created = store.create_transaction("index", None, {}, {"a": "1"})
    clock.advance(3)
    altered = store.alter_transaction(created.id, lambda status, properties: (status, {**properties, "b": "2"}))
    assert (altered.status, altered.properties, altered.updated_at) == (Status.QUEUED, {"a": "1", "b": "2"}, clock.now)

    def refuse(_: Status, properties: Mapping[str, str]) -> tuple[Status, Mapping[str, str]]:
        raise InvalidTableStateError(f"no, not with {len(properties)}")

    with pytest.raises(InvalidTableStateError, match="with 2"):
        store.alter_transaction(created.id, refuse)
    assert store.describe_transaction(created.id) == altered
    with pytest.raises(TransactionNotFoundError):
        store.alter_transaction("nothing", lambda status, properties: (status, properties))


def test_alter_transaction_keeps_the_lease_of_a_running_one(store: Store) -> None:
    created = store.create_transaction("index", None, {}, {}, Status.RUNNING, owner="me", lease_ms=1000)
    assert store.claim_transaction("other", 1000) is None
    store.alter_transaction(created.id, lambda status, _: (status, {"k": "v"}))
    assert store.finish_transaction(created.id, "me", Status.SUCCEEDED).properties == {"k": "v"}


def test_failed_transactions_of_a_table(store: Store, clock: Clock) -> None:
    table, other = store.insert_table(("t",), "mem://t", {}), store.insert_table(("u",), "mem://u", {})
    created = []
    for kind, owner in (("index", table), ("compact", table), ("index", other), ("build", table), ("index", table)):
        record = store.create_transaction(kind, owner.id, {}, {}, Status.RUNNING, owner="me", lease_ms=1000)
        created.append(record.id)
        clock.advance(1)
    for transaction in created[:4]:
        store.finish_transaction(transaction, "me", Status.FAILED, error="why")
    listed = store.failed_transactions(table.id, ("index", "build"))
    assert [(record.id, record.error) for record in listed] == [(created[0], "why"), (created[3], "why")]


def test_unfinished_transactions_are_neither_ended_nor_of_another_kind(store: Store, clock: Clock) -> None:
    table = store.insert_table(("t",), "mem://t", {})
    created = []
    for kind in ("index", "compact", "index"):
        created.append(store.create_transaction(kind, table.id, {}, {}).id)
        clock.advance(1)
    store.alter_transaction(created[0], lambda _, properties: (Status.CANCELED, properties))
    assert [record.id for record in store.unfinished_transactions(table.id)] == created[1:]
    assert [record.id for record in store.unfinished_transactions(table.id, "index")] == created[2:]


def test_create_transaction_records_who_requested_it(store: Store) -> None:
    requested = store.create_transaction("work", None, {}, {}, requested_by="ann")
    alone = store.create_transaction("work", None, {}, {}, Status.SUCCEEDED)
    assert store.describe_transaction(requested.id).requested_by == "ann"
    assert store.describe_transaction(alone.id).requested_by is None
