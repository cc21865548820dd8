"""The record of a snapshot: complete or not, and of one call at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tiltyard.store.tables.snapshots import SnapshotMember

if TYPE_CHECKING:
    from tests.store.conftest import Clock
    from tiltyard.store import Store

MEMBERS = (SnapshotMember(1, 2, ("films",)), SnapshotMember(2, 7, ("shop", "é")))


def test_snapshot_is_listed_once_complete_and_until_its_drop_begins(store: Store) -> None:
    assert store.begin_snapshot("a", "first", "ann", MEMBERS)
    assert store.list_snapshots(None, 10) == [] and not store.is_in_snapshot("a", 1)
    assert not store.complete_snapshot("a", "other") and store.complete_snapshot("a", "first")
    (record,) = store.list_snapshots(None, 10)
    assert (record.members, record.created_by, store.is_in_snapshot("a", 1)) == (MEMBERS, "ann", True)
    assert not store.begin_snapshot("a", "other", "bob", MEMBERS[:1])
    assert store.begin_snapshot_drop("a", "second") and store.list_snapshots(None, 10) == []
    assert not store.drop_snapshot("a", "first") and store.drop_snapshot("a", "second")
    assert store.find_snapshot("a") is None


def test_incomplete_snapshot_is_claimed_by_one_caller(store: Store, clock: Clock) -> None:
    store.begin_snapshot("a", "first", "ann", MEMBERS)
    store.begin_snapshot("whole", "w", "ann", MEMBERS)
    store.complete_snapshot("whole", "w")
    assert store.find_abandoned_snapshot(clock.now) is None
    clock.advance(1000)
    record = store.find_abandoned_snapshot(clock.now)
    assert record is not None and (record.name, record.token, record.members) == ("a", "first", MEMBERS)
    assert store.claim_incomplete_snapshot(record, "second")
    assert not store.claim_incomplete_snapshot(record, "third") and not store.complete_snapshot("a", "first")
    assert store.find_abandoned_snapshot(clock.now) is None  # the claim began just now
    clock.advance(1000)
    store.begin_snapshot_drop("whole", "x")
    assert (late := store.find_abandoned_snapshot(clock.now)) is not None and late.name == "a"
    assert store.drop_snapshot("a", "second") and store.find_abandoned_snapshot(clock.now) is None
