"""Every type through each way into a table is read back by plain pylance, value by value; errors name the column."""

from __future__ import annotations

import decimal
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import lance
import lance_namespace as upstream
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from lance_namespace.errors import InvalidInputError
from pyspark.errors import PySparkException

from tests.services.server import ServerProcess
from tests.spark.every_type import every_type
from tiltyard.pipeline.catalog_client import table as table_of
from tiltyard.pipeline.ingest.job import ingest
from tiltyard.pipeline.runs import LocalRun
from tiltyard.pipeline.writing.options import WriteOptions
from tiltyard.pipeline.writing.row_sources import FrameRows
from tiltyard.pipeline.writing.write_job import write_source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tiltyard.pipeline.table_location import CatalogConnection

Fresh = Callable[[str], str]


def plain(catalog: CatalogConnection, name: str) -> pa.Table:
    """The table, read by plain pylance."""
    return lance.dataset(table_of(catalog, name).location().uri).to_table()


def assert_same(actual: pa.Table, expected: pa.Table) -> None:
    """Assert that types and values are equal, column by column, so that a failure names the column."""
    assert actual.schema == expected.schema
    for name in expected.schema.names:
        assert actual[name].to_pylist() == expected[name].to_pylist(), name


@pytest.fixture
def types_table(catalog: CatalogConnection, fresh: Fresh) -> str:
    """Write a table with every type by plain pylance; return its name."""
    target = table_of(catalog, fresh("types"))
    lance.write_dataset(every_type(), namespace_client=target.client, table_id=target.id)
    return str(target)


@pytest.fixture
def frame(spark: SparkSession, shared_server: ServerProcess, types_table: str) -> DataFrame:
    """Read that table in Spark."""
    return spark.read.format("tiltyard").options(uri=shared_server.url, table=types_table).load()


@pytest.mark.parametrize("kind", ["feather", "parquet", "lance"])
def test_ingest_of_files_keeps_every_type_and_value(
    spark: SparkSession, catalog: CatalogConnection, fresh: Fresh, tmp_path: Path, kind: str
) -> None:
    file, table, name = tmp_path / f"rows.{kind}", every_type(), fresh("types")
    if kind == "feather":
        pyarrow.feather.write_feather(table, file)
    elif kind == "parquet":
        pq.write_table(table, file)
        table = pq.read_table(file)  # Parquet has no date64 and no seconds: what pyarrow reads is what there is
    else:
        lance.write_dataset(table, file)
    ingest(LocalRun(), catalog, spark, str(file), name)
    assert_same(plain(catalog, name), table)


def test_write_frame_keeps_every_type_and_value(catalog: CatalogConnection, frame: DataFrame, fresh: Fresh) -> None:
    name = fresh("types")
    write_source(LocalRun(), FrameRows((), frame), table_of(catalog, name), WriteOptions())
    assert_same(plain(catalog, name), every_type())


@pytest.mark.extended
def test_data_source_read_and_write_keep_every_type_and_value(
    shared_server: ServerProcess, catalog: CatalogConnection, frame: DataFrame, fresh: Fresh
) -> None:
    name = fresh("types")
    frame.write.format("tiltyard").options(uri=shared_server.url, table=name).mode("append").save()
    assert_same(plain(catalog, name), every_type())


def test_data_source_read_has_the_values_in_spark(frame: DataFrame) -> None:
    full, _, nulls = frame.collect()
    assert all(value is None for value in nulls)
    assert (full["int8"], full["uint64"], full["float16"], full["vector_int8"]) == (
        -128,
        decimal.Decimal(0),
        0.5,
        [1, -2],
    )
    assert (full["deep"]["price"], full["deep"]["inner"]["halves"]) == (decimal.Decimal("9.99"), [0.5, -1.0])
    assert (full["date32"], full["dictionary"], full["fixed_binary"]) == (date(1969, 1, 1), "red", b"abc")


@pytest.mark.parametrize(
    "dtype",
    [pa.month_day_nano_interval(), pa.list_view(pa.int32()), pa.struct([("deep", pa.decimal32(5, 2))])],
    ids=str,
)
def test_ingest_of_a_type_that_lance_lacks_names_the_column_and_makes_no_table(
    spark: SparkSession, catalog: CatalogConnection, fresh: Fresh, tmp_path: Path, dtype: pa.DataType
) -> None:
    file, name = tmp_path / "rows.feather", fresh("odd")
    pyarrow.feather.write_feather(pa.table({"n": [1], "odd_one": pa.nulls(1, dtype)}), file, compression="uncompressed")
    with pytest.raises(InvalidInputError, match=r"Column 'odd_one' is .*Lance has no type"):
        ingest(LocalRun(), catalog, spark, str(file), name)
    ingest(LocalRun(), catalog, spark, str(file), name, select=["n"])
    assert plain(catalog, name).to_pylist() == [{"n": 1}]


@pytest.mark.parametrize("way", ["frame", "source"])
def test_write_of_a_type_that_arrow_lacks_names_the_column_and_makes_no_table(
    spark: SparkSession, shared_server: ServerProcess, catalog: CatalogConnection, fresh: Fresh, way: str
) -> None:
    name, intervals = fresh("odd"), spark.sql("SELECT 1 AS n, make_ym_interval(1, 2) AS odd_one")
    writer = intervals.write.format("tiltyard").options(uri=shared_server.url, table=name).mode("append")
    writes = {
        "frame": lambda: write_source(LocalRun(), FrameRows((), intervals), table_of(catalog, name), WriteOptions()),
        "source": writer.save,
    }
    with pytest.raises((InvalidInputError, PySparkException), match="Column 'odd_one' is interval year to month"):
        writes[way]()
    assert name not in catalog.client().list_tables(upstream.ListTablesRequest(id=[])).tables
