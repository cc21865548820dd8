"""Jobs work with any names of the inner fields of Arrow's lists and maps, at any depth."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lance_namespace.errors import InvalidInputError

from tests.services.server import ServerProcess
from tiltyard.model.refusals import RefusedError
from tiltyard.pipeline.catalog_client import CatalogConnection, Table, table
from tiltyard.pipeline.ingest.job import ingest, upsert
from tiltyard.pipeline.runs import LocalRun

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def named(key: str, value: str, item: str) -> pa.Schema:
    """The same columns, with other names inside of them."""
    word_map = pa.map_(pa.field(key, pa.string(), nullable=False), pa.field(value, pa.int32()))
    item_list = pa.list_(
        pa.field(item, pa.map_(pa.field(key, pa.string(), nullable=False), pa.field(value, pa.float64())))
    )
    inside = pa.struct([pa.field("tags", pa.list_(pa.field(item, pa.string()))), pa.field("words", word_map)])
    return pa.schema([("id", pa.int64()), ("words", word_map), ("listed", item_list), ("inside", inside)])


def rows(ids: range, schema: pa.Schema) -> pa.Table:
    maps = [[(f"word {n}", n), ("all", 1)] if n % 3 else None for n in ids]
    columns = {
        "id": list(ids),
        "words": maps,
        "listed": [[[("half", n / 2)], None, []] for n in ids],
        "inside": [{"tags": ["a", None], "words": value} for value in maps],
    }
    return pa.table(columns, schema=schema)


ARROWS, OTHERS = named("key", "value", "item"), named("k", "v", "element")


@pytest.fixture
def create_table(
    spark: SparkSession, catalog: CatalogConnection, fresh: Callable[[str], str], tmp_path: Path
) -> Callable[[str], Table]:
    """A table of ten rows from Parquet, by a job or by plain pylance."""

    def make(how: str) -> Table:
        target = table(catalog, fresh("maps"))
        pq.write_table(rows(range(10), OTHERS), tmp_path / "first.parquet")
        if how == "job":
            ingest(LocalRun(), catalog, spark, str(tmp_path / "first.parquet"), str(target))
        else:
            first_rows = pq.read_table(tmp_path / "first.parquet") if how == "parquet" else rows(range(10), OTHERS)
            lance.write_dataset(first_rows, namespace_client=target.client, table_id=target.id)
        return target

    return make


@pytest.mark.parametrize("how", [pytest.param("job", marks=pytest.mark.extended), "parquet", "memory"])
def test_table_with_maps_takes_appends_and_upserts_of_any_file(
    spark: SparkSession,
    shared_server: ServerProcess,
    catalog: CatalogConnection,
    create_table: Any,
    tmp_path: Path,
    how: str,
) -> None:
    target = create_table(how)
    path, name = str(tmp_path / "more.parquet"), str(target)
    for number, schema in enumerate((OTHERS, ARROWS)):
        pq.write_table(rows(range(10 * number, 10 * number + 10), schema), path)
        ingest(LocalRun(), catalog, spark, path, name, mode="append")
        figures = upsert(LocalRun(), catalog, spark, path, name, on=["id"])
        assert (figures["updated"], figures["inserted"]) == (10, 0), schema
    pq.write_table(rows(range(20, 25), OTHERS), path)
    assert upsert(LocalRun(), catalog, spark, path, name, on=["id"])["inserted"] == 5
    frame = spark.read.format("tiltyard").options(uri=shared_server.url, table=name).load()
    frame.filter("id < 5").selectExpr("id + 25 as id", "words", "listed", "inside").write.format("tiltyard").options(
        uri=shared_server.url, table=name
    ).mode("append").save()
    stored = target.dataset().to_table().sort_by("id")
    expected = rows(range(25), ARROWS).to_pylist() + [
        {**row, "id": row["id"] + 25} for row in rows(range(5), ARROWS).to_pylist()
    ]
    assert stored.to_pylist() == expected


def test_field_of_a_struct_that_the_table_lacks_is_an_error_and_not_left_out(
    spark: SparkSession, catalog: CatalogConnection, create_table: Any, tmp_path: Path
) -> None:
    target = create_table("job")
    inside = pa.array([{"tags": ["a"], "words": None, "more": 1}])
    pq.write_table(rows(range(1), ARROWS).set_column(3, "inside", inside), tmp_path / "more.parquet")
    with pytest.raises((RefusedError, InvalidInputError), match=r"'inside'.*more"):
        ingest(LocalRun(), catalog, spark, str(tmp_path / "more.parquet"), str(target), mode="append")
    assert target.dataset().count_rows() == 10
