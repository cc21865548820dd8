"""Export through a running server: the same rows, a manifest that is written last, one version beside writers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lance_namespace.errors import InvalidInputError

from tests.services.s3 import s3_server
from tiltyard.pipeline.catalog_client import connection
from tiltyard.pipeline.catalog_client import table as table_of
from tiltyard.pipeline.export.job import export
from tiltyard.pipeline.ingest.job import ingest
from tiltyard.pipeline.runs import LocalRun
from tiltyard.pipeline.sources.filesystem import list_files, open_file

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.services.server import ServerProcess
    from tiltyard.pipeline.table_location import CatalogConnection

ROWS = pa.table(
    {
        "id": list(range(100)),
        "v": pa.array([[float(n), 1.0] for n in range(100)], pa.list_(pa.float32(), 2)),
        "tag": pa.array(["odd" if n % 2 else "even" for n in range(100)]).dictionary_encode(),
    }
)


@pytest.fixture
def films(catalog: CatalogConnection, fresh: Callable[[str], str]) -> str:
    """A table of ten fragments."""
    target = table_of(catalog, fresh("films"))
    lance.write_dataset(ROWS, namespace_client=target.client, table_id=target.id, max_rows_per_file=10)
    return str(target)


class Appending(LocalRun):
    """A run during which another writer appends, when the first part is saved."""

    def save_checkpoint(self, key: str, value: str) -> None:
        if key == "version":
            self.append()
        super().save_checkpoint(key, value)

    append: Any = None


def test_export_to_parquet_is_the_rows_of_one_version(
    spark: SparkSession, catalog: CatalogConnection, films: str, tmp_path: Path
) -> None:
    run, source = Appending(), table_of(catalog, films)
    run.append = lambda: lance.write_dataset(ROWS, namespace_client=source.client, table_id=source.id, mode="append")
    figures = export(run, catalog, spark, films, str(tmp_path / "out"), rows_per_file=40)
    assert (figures["rows"], figures["files"], figures["version"]) == (100, 3, 1)
    assert pq.read_table(tmp_path / "out") == ROWS
    manifest = json.loads((tmp_path / "out" / "_SUCCESS").read_text())
    assert [(file["name"], file["rows"]) for file in manifest["files"]] == [
        ("part-00000.parquet", 30), ("part-00001.parquet", 40), ("part-00002.parquet", 30),
    ]  # fmt: skip
    with pytest.raises(InvalidInputError, match="empty folder"):
        export(LocalRun(), catalog, spark, films, str(tmp_path / "out"))


def test_export_of_some_rows_and_columns_by_tag_is_those(
    spark: SparkSession, catalog: CatalogConnection, films: str, tmp_path: Path
) -> None:
    dataset = table_of(catalog, films).dataset()
    dataset.tags.create("first", 1)
    dataset.delete("id < 50")
    export(LocalRun(), catalog, spark, films, str(tmp_path / "out"), tag="first", filter="id < 3", columns=["tag"])
    assert pq.read_table(tmp_path / "out").to_pydict() == {"tag": ["even", "odd", "even"]}


def test_export_and_ingest_on_an_object_store_bring_back_the_rows(
    spark: SparkSession, shared_server: ServerProcess, films: str, fresh: Callable[[str], str]
) -> None:
    with s3_server() as objects:
        folder = f"{objects.new_bucket('lake')}/films"
        catalog = connection(shared_server.url, storage=objects.options)
        export(LocalRun(), catalog, spark, films, folder, rows_per_file=40)
        assert [file.path for file in list_files(folder, objects.options)] == [
            f"{folder}/part-0000{number}.parquet" for number in range(3)
        ]
        with open_file(f"{folder}/_SUCCESS", objects.options) as file:
            assert json.loads(file.read())["rows"] == 100
        name = fresh("back")
        ingest(LocalRun(), catalog, spark, f"{folder}/*.parquet", name)
    back = table_of(catalog, name).dataset().to_table()
    assert back.schema == ROWS.schema and back.to_pylist() == ROWS.to_pylist()
