"""The index of lineage: recurring jobs, replaced rows, places of sources."""

from __future__ import annotations

import pytest

from tiltyard.model.columns.lineage import ColumnInput, ColumnOrigin, Derivation, Origins
from tiltyard.model.lineage import CommitLineage, LineageSource
from tiltyard.store import Store
from tiltyard.store.tables import lineage as index
from tiltyard.store.tables.lineage import LineageRecord


def commit(
    store: Store, version: int, *uris: str, table: int = 1, source: int | None = None, replaces: bool = False
) -> bool:
    """Add a commit of a job of its own, made from files or from a table."""
    sources = tuple(LineageSource(uri, version=None if source is None else version) for uri in uris)
    lineage = CommitLineage("ingest", f"job {version}", sources)
    ids = (source,) * len(uris)
    record = LineageRecord.of(lineage, table, "", version, replaces=replaces, source_ids=ids, principal="ann")
    return store.add_lineage(record)


def versions(records: list[LineageRecord]) -> list[int]:
    return [record.version for record in records]


def test_commit_is_added_once_and_read_as_it_was(store: Store) -> None:
    assert [commit(store, 1, "/raw/a", "/raw/b") for _ in range(2)] == [True, False]
    (record,) = store.lineage_of(1, "", None, 10)
    assert (record.kind, record.job, record.principal, record.source_ids) == ("ingest", "job 1", "ann", (None, None))
    assert [source.name for source in record.sources] == ["/raw/a", "/raw/b"] and record.created_at > 0
    assert store.lineage_of(1, "dev", None, 10) == store.lineage_of(2, "", None, 10) == []


def test_recurring_job_is_its_newest_commit_and_old_ones_are_forgotten(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for version in range(1, 6):
        commit(store, version, "/raw/a")
    commit(store, 6, "/raw/b")
    assert versions(store.lineage_of(1, "", None, 10)) == [6, 5]
    assert versions(store.lineage_of(1, "", 3, 10)) == [3]
    monkeypatch.setattr(index, "FORGET_REPETITIONS", index.FORGET_REPETITIONS.replace("OFFSET 100", "OFFSET 2"))
    commit(store, 7, "/raw/a")
    assert versions(store.lineage_of(1, "", 5, 10)) == [5] and store.lineage_of(1, "", 4, 10) == []


def test_replaced_rows_end_what_was_recorded_before(store: Store) -> None:
    commit(store, 1, "/raw/a")
    commit(store, 2, "films", source=9)
    commit(store, 3, "/raw/c", replaces=True)
    commit(store, 4, "/raw/d")
    assert versions(store.lineage_of(1, "", None, 10)) == [4, 3]
    assert versions(store.lineage_of(1, "", 2, 10)) == [2, 1]
    assert store.lineage_from_table(9, "", 10) == store.lineage_from_place("/raw/a", 10) == []


def test_refresh_of_a_view_keeps_the_columns_that_backfills_have_filled(store: Store) -> None:
    def add(version: int, kind: str, columns: Origins | None, *, replaces: bool = False) -> None:
        lineage = CommitLineage(kind, f"job {version}", (LineageSource("films"),), columns=columns)
        record = LineageRecord.of(lineage, 1, "", version, replaces=replaces, source_ids=(1,), principal="ann")
        assert store.add_lineage(record)

    filled = (ColumnOrigin("vector", (ColumnInput(0, "text", Derivation.FUNCTION, "digest"),)),)
    add(1, "backfill", filled)
    add(2, "ingest", None)
    add(3, "refresh", (ColumnOrigin("text", ()),), replaces=True)
    assert [(record.version, record.columns) for record in store.lineage_of(1, "", None, 10)] == [
        (3, (ColumnOrigin("text", ()),)), (1, filled)
    ]  # fmt: skip
    add(4, "ingest", None, replaces=True)
    assert versions(store.lineage_of(1, "", None, 10)) == [4]


def test_sources_are_found_by_table_and_by_file_folder_and_pattern(store: Store) -> None:
    commit(store, 1, "films", table=1, source=9)
    commit(store, 2, "s3://lake/raw/*.parquet", table=2)
    commit(store, 3, "s3://lake/raw/a.parquet", table=3)
    commit(store, 4, "s3://lake/rawer/a.parquet", table=4)
    assert versions(store.lineage_from_table(9, "", 10)) == [1]
    assert versions(store.lineage_from_place("s3://lake/raw/a.parquet", 10)) == [3, 2]
    assert versions(store.lineage_from_place("s3://lake/raw", 10)) == [3, 2]
    assert versions(store.lineage_from_place("s3://lake/raw/b.parquet", 10)) == [2]
    assert versions(store.lineage_from_place("s3://lake", 10)) == [4, 3, 2]
    assert len(store.lineage_from_place("s3://lake", 2)) == 2
