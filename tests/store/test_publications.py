"""Publications in the store: leases, entries under them, and a fingerprint that follows the catalog's tables."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from lance_namespace.errors import ConcurrentModificationError

from tests.store.conftest import Clock
from tiltyard.store import MirrorRecord, PublishedEntry, Store, SyncOutcome, TableProblem

LEASE_MS = 20_000


@pytest.fixture
def publication(store: Store) -> MirrorRecord:
    assert store.add_mirror(
        "lake", "hive", {"uri": "thrift://h"}, 1, namespace=("films",), target=("media",), has_columns=True
    )
    found = store.find_mirror("lake")
    assert found is not None
    return found


def test_a_publication_is_read_back_as_it_was_added(store: Store, publication: MirrorRecord) -> None:
    assert (publication.kind, publication.settings, publication.levels) == ("hive", {"uri": "thrift://h"}, 1)
    assert (publication.namespace, publication.target, publication.has_columns) == (("films",), ("media",), True)
    assert (publication.fingerprint, publication.synced_at, publication.removing) == ("", None, False)
    assert not store.add_mirror("lake", "dir", {}, None, namespace=None, target=(), has_columns=False)
    assert store.add_mirror("all", "dir", {}, None, namespace=(), target=(), has_columns=False)
    assert [each.name for each in store.list_mirrors(None, 10)] == ["all", "lake"]
    assert [each.name for each in store.list_mirrors("all", 10)] == ["lake"]
    assert [each.namespace for each in store.list_mirrors(None, 1)] == [()]


def test_a_lease_is_held_by_one_until_it_ends(store: Store, publication: MirrorRecord, clock: Clock) -> None:
    entry = PublishedEntry(("media", "t"), 7, "/root/t", "digest", marked=True)
    assert store.claim_mirror(publication.id, "first", LEASE_MS) is not None
    assert store.claim_mirror(publication.id, "second", LEASE_MS) is None
    clock.advance(LEASE_MS - 1)
    store.write_published_entry(publication.id, "first", LEASE_MS, entry)
    clock.advance(LEASE_MS - 1)
    assert store.claim_mirror(publication.id, "second", LEASE_MS) is None
    clock.advance(1)
    assert store.claim_mirror(publication.id, "second", LEASE_MS) is not None
    changes: list[Callable[[], None]] = [
        lambda: store.renew_mirror(publication.id, "first", LEASE_MS),
        lambda: store.write_published_entry(publication.id, "first", LEASE_MS, entry),
        lambda: store.delete_published_entry(publication.id, "first", LEASE_MS, entry.path),
    ]
    for change in changes:
        with pytest.raises(ConcurrentModificationError):
            change()
    assert store.published_entries(publication.id) == [entry]
    store.finish_sync(publication.id, "first", SyncOutcome("1", 1, 1, 0, None, 1), {})
    found = store.find_mirror("lake")
    assert found is not None and found.lease_owner == "second" and found.fingerprint == ""


def test_what_a_sync_leaves_is_read_back(store: Store, publication: MirrorRecord) -> None:
    store.claim_mirror(publication.id, "owner", LEASE_MS)
    for digest in ("", "digest"):
        entry = PublishedEntry(("mädia", "t"), 7, "/root/t", digest, marked=False)
        store.write_published_entry(publication.id, "owner", LEASE_MS, entry)
    store.write_published_entry(
        publication.id, "owner", LEASE_MS, PublishedEntry(("u",), 8, "/root/u", "", marked=True)
    )
    assert store.count_published_entries(publication.id) == 1
    problems = {9: TableProblem(("films", "b"), "folded"), 8: TableProblem(("films", "a"), "taken")}
    store.finish_sync(publication.id, "owner", SyncOutcome("1 2", 5, 4, 3, "away", 6), problems)
    found = store.find_mirror("lake")
    assert found is not None and found.lease_owner is None
    assert (found.fingerprint, found.synced_at, found.verified_at) == ("1 2", 5, 4)
    assert (found.failures, found.error, found.due_at) == (3, "away", 6)
    assert store.mirror_problems(publication.id, 1) == (2, [problems[8]])
    store.claim_mirror(publication.id, "owner", LEASE_MS)
    store.finish_sync(publication.id, "owner", SyncOutcome("", 5, 4, 0, None, 6), None)
    assert store.mirror_problems(publication.id, 9)[0] == 2
    store.delete_mirror(publication.id)
    assert store.find_mirror("lake") is None
    assert store.published_entries(publication.id) == []
    assert store.mirror_problems(publication.id, 9) == (0, [])


def test_the_fingerprint_differs_after_each_change_of_names_and_properties(store: Store, clock: Clock) -> None:
    changes: list[Callable[[], object]] = [
        lambda: store.create_namespace(("a",), {}),
        lambda: store.insert_table(("a", "t"), "/root/t", {}, declared=True),
        lambda: store.mark_written(store.describe_table(("a", "t")).id),
        lambda: store.rename_table(("a", "t"), ("a", "u")),
        lambda: store.rename_table(("a", "u"), ("v",)),
        lambda: store.insert_table(("a", "w"), "/root/w", {}),
        lambda: store.remove_table(("v",), delete_folder=False),
        lambda: store.drop_namespace(("a",), cascade=True),
    ]
    fingerprints = [store.tables_fingerprint()]
    for change in changes:
        clock.advance(1)
        change()
        fingerprints.append(store.tables_fingerprint())
    assert len(set(fingerprints[:-1])) == len(changes)
    assert store.tables_fingerprint() == fingerprints[0]  # nothing is left


def test_own_tables_are_those_with_data(store: Store) -> None:
    store.create_namespace(("a",), {"tiltyard.publish_to": "lake"})
    store.insert_table(("a", "t"), "/root/t", {"k": "v"})
    store.insert_table(("a", "declared"), "/root/d", {}, declared=True)
    (table,) = store.own_tables()
    root, namespace = sorted(store.own_namespaces(), key=lambda each: each.id)
    assert (table.name, table.location, table.properties) == ("t", "/root/t", {"k": "v"})
    assert root.parent_id is None and namespace.parent_id == root.id and table.namespace_id == namespace.id
    assert namespace.properties == {"tiltyard.publish_to": "lake"}
