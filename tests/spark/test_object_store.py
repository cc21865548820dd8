"""A catalog on an object store: files of it are ingested, and the data source reads, appends and upserts there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import lance
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from tests.services.s3 import S3Server, s3_server
from tests.services.server import ServerProcess
from tiltyard.pipeline.backfill.job import backfill
from tiltyard.pipeline.catalog_client import connection, table
from tiltyard.pipeline.indexes import growth, training
from tiltyard.pipeline.indexes.job import index
from tiltyard.pipeline.ingest.job import ingest, upsert
from tiltyard.pipeline.optimize import job as optimizing
from tiltyard.pipeline.optimize.job import optimize
from tiltyard.pipeline.runs import LocalRun

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.extended

VECTOR = pa.list_(pa.float32(), 2)


@pytest.fixture(scope="module")
def objects() -> Iterator[S3Server]:
    """The object store."""
    with s3_server() as running:
        yield running


@pytest.fixture(scope="module")
def lake(objects: S3Server) -> str:
    """A bucket."""
    return objects.new_bucket("lake")


@pytest.fixture(scope="module")
def server(objects: S3Server, lake: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server whose tables are in the bucket."""
    settings = {"TILTYARD_STORAGE_OPTIONS": json.dumps(objects.options)}
    catalog = f"sqlite:///{tmp_path_factory.mktemp('catalog')}/catalog.db"
    running = ServerProcess(f"{lake}/tables", "--db", catalog, environ=settings)
    yield running
    running.stop()


def rows(first: int, count: int, value: str) -> pa.Table:
    ids = list(range(first, first + count))
    vectors = pa.array([[float(number), 0.5] for number in ids], VECTOR)
    return pa.table({"id": ids, "v": [value] * count, "vector": vectors})


def test_ingest_data_source_and_jobs_on_an_object_store_leave_every_row_as_it_should_be(
    spark: SparkSession, objects: S3Server, lake: str, server: ServerProcess, tmp_path: Path
) -> None:
    bucket = fs.S3FileSystem(
        access_key="testing", secret_key="testing", region="us-east-1", endpoint_override=objects.endpoint
    )
    for part in range(2):
        pq.write_table(rows(part * 50, 50, "old"), f"lake/source/{part}.parquet", filesystem=bucket)
    catalog = connection(server.url, storage=objects.options)
    assert ingest(LocalRun(), catalog, spark, f"{lake}/source", "films")["rows"] == 100

    options = {"uri": server.url, "table": "films"} | {
        f"storage.{key}": value for key, value in objects.options.items()
    }
    films = spark.read.format("tiltyard").options(**options).load()
    assert sorted(row["id"] for row in films.collect()) == list(range(100))

    def write(first: int, count: int, value: str, **more: str) -> None:
        source = films.filter("id = 0").selectExpr(
            "vector as made", f"explode(sequence({first}, {first + count - 1})) as id"
        )
        frame = source.selectExpr("bigint(id) as id", f"'{value}' as v", "array(float(id), 0.5f) as vector")
        frame.write.format("tiltyard").options(**options, **more).mode("append").save()

    write(100, 10, "appended")
    write(90, 15, "upserted", on="id")
    pq.write_table(rows(108, 4, "by the job"), tmp_path / "changed.parquet")
    upsert(LocalRun(), catalog, spark, str(tmp_path / "changed.parquet"), "films", on=["id"])
    arguments = {"udf": "tests.spark.functions:doubled", "inputs": ["id"], "type": "int64"}
    backfill(LocalRun(), catalog, spark, "films", "twice", **arguments)
    index(LocalRun(), catalog, spark, "films", "id", "BTREE")

    expected = pa.concat_tables(
        [rows(0, 90, "old"), rows(90, 15, "upserted"), rows(105, 3, "appended"), rows(108, 4, "by the job")]
    )
    expected = expected.append_column("twice", pa.array([2 * number for number in range(112)], pa.int64()))
    location = table(catalog, "films").location()
    dataset = lance.dataset(location.uri, storage_options=objects.options)
    assert location.uri.startswith(f"{lake}/tables/")
    assert dataset.to_table().sort_by("id") == expected
    assert dataset.to_table(filter="id = 95") == expected.slice(95, 1)


def test_vector_index_is_trained_merged_and_grown_on_an_object_store(
    spark: SparkSession, objects: S3Server, server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name in ((training, "MIN_SAMPLE_BYTES"), (growth, "MIN_NEW_ROWS"), (optimizing, "MAX_DRIVER_ROWS")):
        monkeypatch.setattr(module, name, 0)
    catalog = connection(server.url, storage=objects.options)
    target = table(catalog, "grown")
    flat = pa.array(np.random.default_rng(1).random(4000 * 8, np.float32))
    column = pa.FixedSizeListArray.from_arrays(flat, 8)
    options = {"namespace_client": target.client, "table_id": target.id, "storage_options": objects.options}
    lance.write_dataset(pa.table({"vector": column[:2000]}), max_rows_per_file=1000, **options)
    run = LocalRun()
    parameters = {"num_partitions": "4", "num_sub_vectors": "4"}
    index(run, catalog, spark, "grown", "vector", "IVF_PQ", parameters=parameters)
    assert (run.figures["training"], run.figures["merged"]) == ("codebook", "1")
    assert run.figures["merge_recall"]
    lance.write_dataset(pa.table({"vector": column[2000:]}), max_rows_per_file=1000, mode="append", **options)
    optimize(run, catalog, spark, "grown", compact=False)
    assert run.figures["extended"] == "vector_idx in tasks"
    dataset = lance.dataset(target.location().uri, storage_options=objects.options)
    [built] = dataset.describe_indices()
    assert (built.num_rows_indexed, len(built.segments)) == (4000, 1)
    files = fs.S3FileSystem(
        access_key="testing", secret_key="testing", region="us-east-1", endpoint_override=objects.endpoint
    )
    folder = target.location().uri.removeprefix("s3://")
    names = [each.path for each in files.get_file_info(fs.FileSelector(f"{folder}/_indices", recursive=True))]
    assert not [name for name in names if "/recall" in name or "centroids" in name or "sample" in name]
