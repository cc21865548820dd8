"""Jobs over tables with blobs of each kind that Lance stores: none is lost, and none is stored twice."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lance
import lancedb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lance_namespace.errors import InvalidInputError

from tiltyard.pipeline.backfill.job import backfill
from tiltyard.pipeline.catalog_client import table as table_of
from tiltyard.pipeline.export import tasks
from tiltyard.pipeline.export.job import export
from tiltyard.pipeline.ingest.job import ingest, upsert
from tiltyard.pipeline.optimize.job import optimize
from tiltyard.pipeline.runs import LocalRun

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tiltyard.pipeline.table_location import CatalogConnection

INLINE, PACKED, OWN = bytes(range(256)) * 4, b"packed" * 50_000, b"own file" * 700_000
IMAGES = {0: INLINE, 1: PACKED, 2: OWN, 3: b"", 4: None, 5: PACKED[::-1]}
"""Blobs in the data file, in a file with others, in a file of their own; an empty one, a null."""

TOTAL = sum(len(image or b"") for image in IMAGES.values())


@pytest.fixture
def name(catalog: CatalogConnection, spark: SparkSession, fresh: Callable[[str], str], tmp_path: Path) -> str:
    """A table of two fragments."""
    name = fresh("blobs")
    for number, ids in enumerate(([0, 1, 2], [3, 4, 5])):
        source = write(tmp_path / f"part{number}.parquet", {key: IMAGES[key] for key in ids})
        ingest(LocalRun(), catalog, spark, source, name, cast={"image": "blob"}, mode="append" if number else "create")
    return name


def write(path: Path, images: dict[int, bytes | None]) -> str:
    rows = {"id": pa.array(images, pa.int64()), "image": pa.array(images.values(), pa.large_binary())}
    pq.write_table(pa.table(rows), path)
    return str(path)


def images_of(catalog: CatalogConnection, name: str) -> dict[int, bytes | None]:
    """Fetch the blobs by the stock client."""
    db = lancedb.connect("db://x", api_key="none", host_override=dict(catalog.properties)["uri"])
    hits = db.open_table(name).search().select(["id"]).with_row_id(True).limit(100).to_arrow()
    blobs = db.open_table(name).fetch_blobs("image", hits["_rowid"].to_pylist())
    return dict(zip(hits["id"].to_pylist(), blobs.to_pylist(), strict=True))


def stored_bytes(catalog: CatalogConnection, name: str) -> int:
    folder = Path(table_of(catalog, name).location().uri)
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_jobs_keep_blobs_and_store_none_twice(
    spark: SparkSession, catalog: CatalogConnection, name: str, tmp_path: Path
) -> None:
    first = stored_bytes(catalog, name)
    assert images_of(catalog, name) == IMAGES and first < TOTAL * 1.05
    changed = {1: OWN[::-1], 4: PACKED, 9: INLINE}
    figures = upsert(LocalRun(), catalog, spark, write(tmp_path / "new.parquet", changed), name, on=["id"])
    assert (figures["updated"], figures["inserted"]) == (2, 1)
    expected = {**IMAGES, **changed}
    assert images_of(catalog, name) == expected
    upserted = stored_bytes(catalog, name)
    assert upserted - first < 1.05 * sum(map(len, changed.values())) + 50_000  # the new rows' blobs alone
    code = tmp_path / "code.py"
    code.write_text("import pyarrow.compute as pc\ndef twice(rows):\n    return pc.multiply(rows.column(0), 2)\n")
    backfill(LocalRun(), catalog, spark, name, "twice", udf=f"{code}:twice", inputs=["id"], type="int64")
    target = table_of(catalog, name)
    assert images_of(catalog, name) == expected and stored_bytes(catalog, name) - upserted < 50_000
    assert optimize(LocalRun(), catalog, spark, name)["fragments_removed"] != 0
    dataset = target.dataset()
    assert len(dataset.get_fragments()) == 1 and images_of(catalog, name) == expected
    assert sorted(dataset.to_table(columns=["twice"])["twice"].to_pylist()) == [2 * key for key in sorted(expected)]
    dataset.validate()


@pytest.mark.parametrize("columns", [[], ["image"]])
def test_export_writes_the_bytes_of_blobs_within_bounded_memory(
    spark: SparkSession,
    catalog: CatalogConnection,
    name: str,
    tmp_path: Path,
    columns: list[str],
) -> None:
    target = table_of(catalog, name).dataset()
    target.delete("id = 5")
    figures = export(LocalRun(), catalog, spark, name, str(tmp_path / "out"), columns=columns, filter="id != 1")
    manifest = json.loads((tmp_path / "out" / "_SUCCESS").read_text())
    rows = pa.concat_tables([pq.read_table(tmp_path / "out" / file["name"]) for file in manifest["files"]])
    assert figures["rows"] == rows.num_rows == 4
    assert rows.schema.field("image").type == pa.large_binary()
    expected = [IMAGES[key] for key in (0, 2, 3, 4)]
    assert sorted(rows["image"].to_pylist(), key=lambda blob: blob or b"") == sorted(expected, key=lambda b: b or b"")
    if not columns:
        assert dict(zip(rows["id"].to_pylist(), rows["image"].to_pylist(), strict=True)) == {
            key: IMAGES[key] for key in (0, 2, 3, 4)
        }


def test_blobs_of_a_batch_are_read_up_to_a_number_of_bytes() -> None:
    most = tasks.BLOB_BYTES
    assert list(tasks._groups([1, most, 2, 0, most - 2, 1])) == [(0, 1), (1, 2), (2, 5), (5, 6)]
    assert list(tasks._groups([])) == [] and list(tasks._groups([0, 0])) == [(0, 2)]


def test_export_refuses_blobs_that_are_elsewhere_or_within_structs(
    spark: SparkSession, catalog: CatalogConnection, fresh: Callable[[str], str], tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"of the worker")
    elsewhere, inner = table_of(catalog, fresh("elsewhere")), table_of(catalog, fresh("inner"))
    schema = pa.schema([pa.field("id", pa.int64()), lance.blob_field("image")])
    rows = pa.table({"id": [1], "image": lance.blob_array([secret.as_uri()])}, schema=schema)
    options: dict[str, Any] = {"data_storage_version": "2.2", "allow_external_blob_outside_bases": True}
    lance.write_dataset(rows, namespace_client=elsewhere.client, table_id=elsewhere.id, **options)
    with pytest.raises(InvalidInputError, match="outside the table"):
        export(LocalRun(), catalog, spark, str(elsewhere), str(tmp_path / "out"))
    assert not list((tmp_path / "out").glob("*.parquet")) and not (tmp_path / "out" / "_SUCCESS").exists()
    kind = pa.struct([lance.blob_field("image")])
    value = pa.StructArray.from_arrays([lance.blob_array([b"x"])], fields=list(kind))
    lance.write_dataset(
        pa.table({"s": value}), namespace_client=inner.client, table_id=inner.id, data_storage_version="2.2"
    )
    with pytest.raises(InvalidInputError, match="holds blobs"):
        export(LocalRun(), catalog, spark, str(inner), str(tmp_path / "inner"))
