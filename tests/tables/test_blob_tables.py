"""Tables with blobs of each kind that Lance stores: no change, clone, compaction or cleanup loses one, or keeps one."""

from __future__ import annotations

from pathlib import Path

import lance
import pyarrow as pa
import pytest
from tests.tables.bodies import small
from tests.tables.served import Server, ask

from tiltyard.catalog.tables import drop_table
from tiltyard.model.columns.blob_columns import measure_blobs
from tiltyard.model.spec import models
from tiltyard.tables.rows.create import create_table
from tiltyard.tables.rows.insert import insert_into_table
from tiltyard.tables.rows.merge import merge_insert_into_table
from tiltyard.tables.rows.update_delete import delete_from_table, update_table
from tiltyard.tables.schema.column_additions import alter_table_add_columns
from tiltyard.tables.schema.computed_columns import alter_table_backfill_columns
from tiltyard.tables.upkeep.garbage import CollectOptions, collect
from tiltyard.tables.versions.clone import clone_table
from tiltyard.upkeep import compaction
from tiltyard.worker import Worker

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("n", pa.int64()), lance.blob_field("image")])
INLINE, PACKED, OWN = bytes(range(256)) * 4, b"packed" * 50_000, b"own file" * 600_000
IMAGES = {0: INLINE, 1: PACKED, 2: OWN, 3: b"", 4: None, 5: PACKED[::-1]}
Images = dict[int, bytes | None]


def rows(images: Images) -> pa.Table:
    ids = pa.array(images, pa.int64())
    return pa.table([ids, ids, lance.blob_array(list(images.values()))], schema=SCHEMA)


@pytest.fixture
def table(server: Server) -> Server:
    """A server with the table `t`, each of whose rows is a fragment."""
    for key, image in IMAGES.items():
        if key == 0:
            create_table(server.ctx, ask(models.CreateTableRequest, id="t"), small(rows({key: image})))
        else:
            insert_into_table(server.ctx, ask(models.InsertIntoTableRequest, id="t"), small(rows({key: image})))
    return server


def images_of(dataset: lance.LanceDataset) -> Images:
    found = dataset.to_table(columns=["id"], with_row_id=True)
    blobs = dataset.read_blobs("image", ids=found["_rowid"].to_pylist(), preserve_order=True)
    return dict(zip(found["id"].to_pylist(), (blob for _, blob in blobs), strict=True))


def stored_bytes(dataset: lance.LanceDataset) -> int:
    return sum(path.stat().st_size for path in Path(dataset.uri).rglob("*") if path.is_file())


def clean(server: Server, name: str = "t") -> None:
    """Remove all versions but the latest, and all files that none names."""
    written = server.ctx.clock()
    while server.ctx.clock() <= written + 1:
        pass
    record = server.services.store.describe_table((name,))
    collect(server.ctx, record, CollectOptions(keep_versions_days=0.0))


def total(images: Images) -> int:
    return sum(len(image or b"") for image in images.values())


def test_changes_keep_blobs_and_cleaned_up_keep_none_twice(table: Server) -> None:
    ctx, expected = table.ctx, {**IMAGES, 1: OWN[::-1], 9: INLINE}
    request = ask(models.MergeInsertIntoTableRequest, id="t", on=["id"], when_matched_update_all=True,
                  when_not_matched_insert_all=True)  # fmt: skip
    merge_insert_into_table(ctx, request, small(rows({1: OWN[::-1], 9: INLINE})))
    assert images_of(table.open("t")) == expected
    update_table(ctx, ask(models.UpdateTableRequest, id="t", predicate="id >= 4", updates=[["n", "n + 1"]]))
    assert images_of(table.open("t")) == expected
    delete_from_table(ctx, ask(models.DeleteFromTableRequest, id="t", predicate="id = 2"))
    del expected[2]
    new = [{"name": "twice", "computed": "n * 2"}]
    alter_table_add_columns(ctx, ask(models.AlterTableAddColumnsRequest, id="t", new_columns=new))
    before = stored_bytes(table.open("t"))
    alter_table_backfill_columns(ctx, ask(models.AlterTableBackfillColumnsRequest, id="t", column="twice"))
    assert Worker(table.services, 0).run_one()
    assert stored_bytes(table.open("t")) - before < 50_000  # its blobs stay where they are
    dataset = table.open("t")
    assert images_of(dataset) == expected
    assert None not in dataset.to_table(columns=["twice"])["twice"].to_pylist()
    clean(table)
    assert images_of(table.open("t")) == expected
    assert stored_bytes(table.open("t")) < 1.05 * total(expected) + 50_000
    table.open("t").validate()


def test_upkeep_compacts_by_the_bytes_of_blobs_and_keeps_each(table: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    assert measure_blobs(table.open("t")) == total(IMAGES)
    monkeypatch.setattr(
        compaction, "MAX_FRAGMENT_BYTES", total(IMAGES) // 2
    )  # of six rows, two, with their share of the files
    planned = compaction.plan_compaction(table.open("t"), 2)
    assert planned is not None and planned.options["target_rows_per_fragment"] == 2
    compaction.compact(table.open("t"), planned)
    dataset = table.open("t")
    assert len(dataset.get_fragments()) < 6 and images_of(dataset) == IMAGES
    clean(table)
    assert images_of(table.open("t")) == IMAGES and stored_bytes(table.open("t")) < 1.05 * total(IMAGES) + 50_000
    monkeypatch.setattr(compaction, "MAX_ROUND_BYTES", 1000)  # of blobs, too: nothing fits into a round
    monkeypatch.setattr(compaction, "MAX_FRAGMENT_BYTES", 1 << 40)
    assert compaction.plan_compaction(table.open("t"), 2) is None


@pytest.mark.parametrize("is_shallow", [True, False])
def test_clones_have_all_blobs_as_long_as_they_need_their_source(table: Server, is_shallow: bool) -> None:
    source = table.services.store.describe_table(("t",)).location
    request = ask(models.CloneTableRequest, id="copy", source_location=source, is_shallow=is_shallow)
    clone_table(table.ctx, request)
    copy = table.open("copy")
    assert images_of(copy) == IMAGES
    assert (stored_bytes(copy) < 50_000) is is_shallow
    merge = ask(models.MergeInsertIntoTableRequest, id="copy", on=["id"], when_matched_update_all=True)
    merge_insert_into_table(table.ctx, merge, small(rows({3: PACKED})))
    lance.dataset(source).optimize.compact_files()
    clean(table)  # files of the source that the clone alone names by now
    assert images_of(table.open("copy")) == {**IMAGES, 3: PACKED}
    assert images_of(table.open("t")) == IMAGES
    if not is_shallow:
        drop_table(table.ctx, ask(models.DropTableRequest, id="t"))
        assert images_of(table.open("copy")) == {**IMAGES, 3: PACKED}
        clean(table, "copy")
        assert images_of(table.open("copy")) == {**IMAGES, 3: PACKED}


def test_blobs_within_structs_and_of_old_tables_are_measured(tmp_path: Path) -> None:
    kind = pa.struct([pa.field("n", pa.int32()), lance.blob_field("image")])
    values = pa.StructArray.from_arrays(
        [pa.array([1, 2], pa.int32()), lance.blob_array([PACKED, None])], fields=list(kind)
    )
    inner = lance.write_dataset(pa.table({"s": values}), tmp_path / "inner", data_storage_version="2.2")
    assert measure_blobs(inner) == len(PACKED)
    field = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    old = pa.table([pa.array([PACKED, b"abc"], pa.large_binary())], schema=pa.schema([field]))
    assert measure_blobs(lance.write_dataset(old, tmp_path / "old", data_storage_version="2.0")) == len(PACKED) + 3
    assert measure_blobs(lance.write_dataset(pa.table({"a": [1]}), tmp_path / "none")) == 0
