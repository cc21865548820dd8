"""Versions and uploads, on both databases."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from lance_namespace.errors import (
    TableNotFoundError,
    TableVersionNotFoundError,
    TransactionNotFoundError,
)
from msgspec.structs import replace

from tiltyard.store import FinalManifest, NewVersion

if TYPE_CHECKING:
    from tests.store.conftest import Clock
    from tiltyard.store import Store, TableRecord


@pytest.fixture
def table(store: Store) -> TableRecord:
    return store.insert_table(("t",), "mem://t", {}, managed=True)


def new(table: TableRecord, version: int, staged: str = "staged", branch: str = "") -> NewVersion:
    return NewVersion(table.id, version, staged, f"_versions/{version}", 7, "tag", {"k": "v"}, branch=branch)


def test_record_version_tells_the_winner_from_the_loser(store: Store, table: TableRecord, clock: Clock) -> None:
    first, won = store.record_version(new(table, 1, "mine"), "tx")
    assert won
    assert store.describe_version(table.id, 1) == first
    assert (first.staged_path, first.manifest_path, first.manifest_size) == ("mine", "_versions/1", 7)
    assert (first.e_tag, first.metadata, first.naming_scheme) == ("tag", {"k": "v"}, "V2")
    assert (first.created_at, first.finalized, first.transaction_id) == (clock.now, False, "tx")
    assert store.record_version(new(table, 1, "theirs")) == (first, False)
    assert store.record_version(new(table, 1, "mine", "branch"))[1]


def test_manifest_is_stored_until_its_version_is_final(store: Store, table: TableRecord) -> None:
    record, _ = store.record_version(replace(new(table, 1), manifest=b"\x00\xffLANC"))
    other, _ = store.record_version(new(table, 2))
    assert (store.stored_manifest(record), store.stored_manifest(other)) == (b"\x00\xffLANC", None)
    assert store.stored_manifest(replace(record, staged_path="another's")) is None
    store.mark_finalized([FinalManifest(record, 6, None)])
    assert store.stored_manifest(record) is None
    assert [pending.version for pending in store.pending_versions(table.id)] == [2]
    assert store.has_pending_versions(table.id)


def test_record_versions_records_more_than_one_statement_holds(store: Store, table: TableRecord) -> None:
    entries = [new(table, version) for version in range(1, 101)]
    assert [won for _, won in store.record_versions(entries)] == [True] * 100
    assert store.list_versions(table.id, limit=200) == [record for record, _ in store.record_versions(entries)]


def test_record_versions_tells_winners_from_losers_and_stops_at_a_table_that_is_gone(
    store: Store, table: TableRecord
) -> None:
    other = store.insert_table(("u",), "mem://u", {})
    store.record_version(new(table, 1, "mine"))
    entries = [new(table, 1, "late"), new(other, 1), new(table, 2), new(table, 2, "twice")]
    outcomes = [(record.table_id, record.staged_path, won) for record, won in store.record_versions(entries)]
    assert outcomes == [
        (table.id, "mine", False),
        (other.id, "staged", True),
        (table.id, "staged", True),
        (table.id, "staged", False),
    ]
    with pytest.raises(TableNotFoundError):
        store.record_versions([new(table, 3), replace(new(table, 4), table_id=99)])
    assert [record.version for record in store.list_versions(table.id)] == [1, 2]


def test_record_versions_of_a_table_without_its_expected_name_records_nothing(store: Store, table: TableRecord) -> None:
    other = store.insert_table(("u",), "mem://u", {})
    path, other_path = (table.namespace_id, "t"), (table.namespace_id, "u")
    entries = [
        replace(new(table, 1), expected_name=path),
        replace(new(other, 1), expected_name=other_path),
        new(other, 2),
    ]
    assert [won for _, won in store.record_versions(entries)] == [True] * 3
    for place in (other_path, (table.namespace_id + 1, "t")):
        with pytest.raises(TableNotFoundError):
            store.record_versions([replace(new(table, 2), expected_name=place), new(other, 3)])
    store.rename_table(("t",), ("v",))
    with pytest.raises(TableNotFoundError):
        store.record_version(replace(new(table, 2), expected_name=path))
    assert store.record_version(replace(new(table, 2), expected_name=(table.namespace_id, "v")))[1]
    assert [len(store.list_versions(entry.id)) for entry in (table, other)] == [2, 2]


def test_mark_finalized_leaves_alone_what_is_gone_or_of_another_manifest(store: Store, table: TableRecord) -> None:
    records = [record for record, _ in store.record_versions([new(table, 1), new(table, 2), new(table, 3)])]
    store.delete_versions(table.id, "", [(2, 4)])
    store.record_version(new(table, 3, "other"))
    store.mark_finalized(FinalManifest(record, 5, None) for record in records)
    records_of_table = [
        (entry.version, entry.finalized, entry.manifest_size, entry.e_tag) for entry in store.list_versions(table.id)
    ]
    assert records_of_table == [(1, True, 5, "tag"), (3, False, 7, "tag")]


def test_mark_finalized_of_many_with_known_size_and_tag_marks_only_those(store: Store, table: TableRecord) -> None:
    other = store.insert_table(("u",), "mem://u", {})
    new_versions = [
        new(entry, version, f"{entry.name}-{version}") for entry in (table, other) for version in range(1, 101)
    ]
    records = [
        record for record, _ in store.record_versions([replace(entry, manifest=b"LANC") for entry in new_versions])
    ]
    store.delete_versions(table.id, "", [(50, 51)])
    store.record_version(new(table, 50, "another's"))
    pending = {(table.id, 50), (table.id, 60), (other.id, 100)}
    records_of_table = [
        FinalManifest(entry, 7, "tag")
        for entry in records
        if (entry.table_id, entry.version) not in pending - {(table.id, 50)}
    ]
    store.mark_finalized(reversed(records_of_table))
    assert {(entry.table_id, entry.version) for entry in store.pending_versions(limit=500)} == pending
    assert [store.stored_manifest(entry) is None for entry in records].count(False) == 2
    assert store.list_versions(table.id, limit=1) == [replace(records[0], finalized=True)]


def test_list_versions_pages_both_ways(store: Store, table: TableRecord) -> None:
    assert store.latest_version(table.id) is None
    assert store.list_versions(table.id, descending=True) == []
    store.record_versions([new(table, version) for version in range(1, 8)])
    store.record_version(new(table, 99, branch="b"))

    def page(after: int | None, *, descending: bool) -> list[int]:
        return [entry.version for entry in store.list_versions(table.id, "", after, 3, descending)]

    assert [page(after, descending=False) for after in (None, 3, 6, 7)] == [[1, 2, 3], [4, 5, 6], [7], []]
    assert [page(after, descending=True) for after in (None, 5, 2, 1)] == [[7, 6, 5], [4, 3, 2], [1], []]
    latest = store.latest_version(table.id)
    assert latest
    assert latest.version == 7
    with pytest.raises(TableVersionNotFoundError):
        store.describe_version(table.id, 8)


def test_delete_versions_takes_half_open_ranges(store: Store, table: TableRecord) -> None:
    store.record_versions([new(table, version) for version in range(1, 10)])
    store.record_version(new(table, 2, branch="b"))
    assert store.delete_versions(table.id, "", [(0, 3), (5, 6), (8, None)]) == 5
    assert [entry.version for entry in store.list_versions(table.id)] == [3, 4, 6, 7]
    assert store.delete_versions(table.id, "", [(0, 3)]) == 0
    assert store.describe_version(table.id, 2, "b").branch == "b"


def test_mark_finalized_ends_being_pending(store: Store, table: TableRecord) -> None:
    other = store.insert_table(("u",), "mem://u", {})
    store.record_versions([new(table, 1), new(other, 1), replace(new(other, 2), finalized=True)])
    assert [entry.table_id for entry in store.pending_versions()] == [table.id, other.id]
    store.mark_finalized([FinalManifest(store.describe_version(table.id, 1), 7, "final")])
    assert store.pending_versions(table.id) == []
    assert not store.has_pending_versions(table.id)
    assert store.has_pending_versions(other.id)
    assert [entry.table_id for entry in store.pending_versions()] == [other.id]
    final = store.describe_version(table.id, 1)
    assert (final.finalized, final.e_tag, final.manifest_size) == (True, "final", 7)


def test_versions_and_uploads_go_with_their_table(store: Store, table: TableRecord) -> None:
    store.record_version(new(table, 1))
    upload = store.create_upload(table.id, "", "append")
    store.add_upload_part(upload.id, "p", [], 0)
    store.remove_table(("t",), delete_folder=True)
    assert store.list_versions(table.id) == []
    with pytest.raises(TransactionNotFoundError):
        store.describe_upload(upload.id)


def test_upload_parts_are_added_once(store: Store, table: TableRecord, clock: Clock) -> None:
    upload = store.create_upload(table.id, "b", "append")
    assert store.describe_upload(upload.id) == upload
    assert store.upload_parts(upload.id) == []
    part, added = store.add_upload_part(upload.id, "2", [{"id": 0, "files": ["é"]}], 5)
    assert added
    assert store.add_upload_part(upload.id, "2", ["another"], 6) == (part, False)
    store.add_upload_part(upload.id, "1", [], 0)
    assert [(entry.part_id, entry.fragments) for entry in store.upload_parts(upload.id)] == [
        ("1", []),
        ("2", part.fragments),
    ]
    assert store.stale_uploads(clock.now, 10) == []
    clock.advance(1)
    assert store.stale_uploads(clock.now, 10) == [upload]
    store.delete_upload(upload.id)
    for gone in (
        lambda: store.delete_upload(upload.id),
        lambda: store.upload_parts(upload.id),
        lambda: store.add_upload_part(upload.id, "3", [], 0),
    ):
        with pytest.raises(TransactionNotFoundError):
            gone()
    with pytest.raises(TableNotFoundError):
        store.create_upload(99, "", "append")
