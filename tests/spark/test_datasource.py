"""`format("tiltyard")`: what Spark wrote is read by plain pylance, what pylance wrote by Spark, value by value."""

from __future__ import annotations

import decimal
import gc
from collections.abc import Callable, Iterator
from datetime import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lance
import pyarrow as pa
import pytest
from lance_namespace import AlterTableAddColumnsRequest, ListTablesRequest
from lance_namespace.errors import TableNotFoundError
from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSource, DataSourceReader, EqualTo, Filter

from tests.services.server import ServerProcess
from tiltyard.pipeline.catalog_client import table as table_of
from tiltyard.pipeline.datasource.source import TiltyardSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from tiltyard.pipeline.datasource.changes import ChangesReader
    from tiltyard.pipeline.datasource.reader import PinnedReader
    from tiltyard.pipeline.table_location import CatalogConnection

Fresh = Callable[[str], str]


@pytest.fixture
def write(shared_server: ServerProcess) -> Callable[..., None]:
    """Write a DataFrame."""

    def call(frame: DataFrame, name: str, mode: str = "append", **options: Any) -> None:
        frame.write.format("tiltyard").options(uri=shared_server.url, table=name, **options).mode(mode).save()

    return call


@pytest.fixture
def read(spark: SparkSession, shared_server: ServerProcess) -> Callable[..., DataFrame]:
    """Read a table as a DataFrame."""
    return lambda name, **options: (
        spark.read.format("tiltyard").options(uri=shared_server.url, table=name, **options).load()
    )


@pytest.fixture
def put(catalog: CatalogConnection) -> Callable[..., lance.LanceDataset]:
    """Write a table with plain pylance."""

    def call(name: str, table: pa.Table, **options: Any) -> lance.LanceDataset:
        target = table_of(catalog, name)
        lance.write_dataset(table, namespace_client=target.client, table_id=target.id, **options)
        return target.dataset()

    return call


def plain(catalog: CatalogConnection, name: str) -> pa.Table:
    """Return the table, read by plain pylance."""
    return lance.dataset(table_of(catalog, name).location().uri).to_table()


def numbers(count: int, first: int = 0) -> pa.Table:
    return pa.table({"n": list(range(first, first + count)), "text": [f"t{n}" for n in range(first, first + count)]})


@pytest.mark.parametrize(
    ("array", "word"),
    [
        (pa.array([1], pa.timestamp("ns")), "lose data"),
        (pa.array([decimal.Decimal(1)], pa.decimal256(50, 2)), "has no type"),
    ],
)
def test_read_what_spark_cannot_hold_is_an_error_that_names_the_column(
    put: Any, read: Any, fresh: Fresh, array: pa.Array, word: str
) -> None:
    name = fresh("types")
    put(name, pa.table({"odd_one": array, "n": [1]}))
    with pytest.raises(PySparkException, match=f"(?s)odd_one.*{word}"):
        read(name).collect()
    assert read(name, columns="n").collect() == [(1,)]


def test_write_without_a_column_of_the_table_is_refused_unless_it_is_named_as_null(
    spark: SparkSession, put: Any, write: Any, catalog: CatalogConnection, fresh: Fresh
) -> None:
    name = fresh("fewer")
    put(name, numbers(1))
    frame = spark.range(1, 2).withColumnRenamed("id", "n")
    with pytest.raises(PySparkException, match="no column 'text' of the table"):
        write(frame, name)
    write(frame, name, null="text")
    assert plain(catalog, name).to_pylist() == [{"n": 0, "text": "t0"}, {"n": 1, "text": None}]


def test_write_a_column_whose_name_could_not_be_read_again_is_refused_and_leaves_no_table(
    spark: SparkSession, write: Any, catalog: CatalogConnection, fresh: Fresh
) -> None:
    name = fresh("dotted")
    for column in ("a.b", "a`b"):
        with pytest.raises(PySparkException, match="cannot be the name of a column"):
            write(spark.createDataFrame([(1,)], [column]), name)
    assert name not in [str(table) for table in catalog.client().list_tables(ListTablesRequest(id=[])).tables]


def test_write_a_value_that_the_column_cannot_hold_is_an_error_and_nothing_is_added(
    spark: SparkSession, put: Any, write: Any, catalog: CatalogConnection, fresh: Fresh
) -> None:
    name = fresh("narrow")
    put(name, pa.table({"v": pa.array([[1.0, 2.0]], pa.list_(pa.float32(), 2))}))
    with pytest.raises(PySparkException, match=r"(?s)v:.*size"):
        write(spark.createDataFrame([([1.0, 2.0, 3.0],)], "v array<float>"), name)
    assert plain(catalog, name).num_rows == 1


@pytest.mark.parametrize("on", ["", "n"], ids=["append", "upsert"])
def test_write_is_checked_and_sets_rows_aside_as_a_job_does(
    spark: SparkSession, put: Any, write: Any, catalog: CatalogConnection, fresh: Fresh, tmp_path: Path, on: str
) -> None:
    name, key = fresh("checked"), {"on": on} if on else {}
    put(name, pa.table({"n": pa.array([1, 2], pa.int32()), "t": ["a", "b"]}))
    data = Path(table_of(catalog, name).location().uri) / "data"
    files = sorted(data.iterdir())
    with pytest.raises(PySparkException, match=r"Nothing was published: unique\(t\): 1 keys are there more than once"):
        write(spark.createDataFrame([(3, "a")], "n int, t string"), name, checks='["rows == 1", "unique(t)"]', **key)
    assert sorted(data.iterdir()) == files
    rows = spark.createDataFrame([(4, "d"), (5_000_000_000, "too large")], "n long, t string")
    write(rows, name, checks="rejected == 1", rejects=str(tmp_path / "bad"), **key)
    assert plain(catalog, name)["n"].to_pylist() == [1, 2, 4]
    [file] = (tmp_path / "bad").iterdir()
    assert "too large" in file.read_text()
    if not on:
        with pytest.raises(PySparkException, match="Table not found: nothing"):
            write(rows, "unmade", checks="foreign_key(n, nothing.n)")
        with pytest.raises(TableNotFoundError):
            table_of(catalog, "unmade").describe()


def test_read_in_partitions_sees_all_rows_and_filters_do_not_stick(put: Any, read: Any, fresh: Fresh) -> None:
    name = fresh("parts")
    put(name, numbers(100), max_rows_per_file=10)
    frame = read(name, partitions="4")
    assert frame.rdd.getNumPartitions() == 4
    assert frame.filter("n = 5").union(frame.filter("n = 7")).collect() == [(5, "t5"), (7, "t7")]
    assert frame.count() == 100


def test_planning_leaves_what_it_imported_out_of_later_garbage_collections(
    spark: SparkSession, put: Any, shared_server: ServerProcess, fresh: Fresh
) -> None:
    name = fresh("planned")
    put(name, numbers(3))

    class Observed(TiltyardSource):
        @classmethod
        def name(cls) -> str:
            return "observed_by_a_test"

        def schema(self) -> StructType:
            columns = super().schema()
            if not gc.get_freeze_count():
                raise RuntimeError("The process that plans columns walks through all imports after each DataFrame.")
            return columns

        def reader(self, schema: StructType) -> PinnedReader | ChangesReader:
            reader = super().reader(schema)
            if not gc.get_freeze_count():
                raise RuntimeError("The process that plans partitions walks through all imports after each query.")
            return reader

    spark.dataSource.register(Observed)
    frame = spark.read.format(Observed.name()).options(uri=shared_server.url, table=name).load()
    assert frame.count() == 3


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="Spark 4.3 keeps the plan of the first query's filters for all queries on the DataFrame "
    "(PythonDataSourceV2). Once this passes, TableReader can take filters.",
)
def test_filter_that_a_source_in_python_takes_does_not_stick_to_the_frame(spark: SparkSession) -> None:
    class Reader(DataSourceReader):
        number: int | None = None

        def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802  # Spark's name
            for each in filters:
                if isinstance(each, EqualTo):
                    self.number = each.value
                else:
                    yield each

        def read(self, partition: object) -> Iterator[tuple[int]]:
            return ((number,) for number in range(3) if self.number in (None, number))

    class Numbers(DataSource):
        @classmethod
        def name(cls) -> str:
            return "numbers_of_a_test"

        def schema(self) -> str:
            return "n int"

        def reader(self, schema: StructType) -> DataSourceReader:
            return Reader()

    spark.dataSource.register(Numbers)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = spark.read.format(Numbers.name()).load()
        assert (frame.filter("n = 1").count(), frame.count()) == (1, 3)
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_source_in_python_cannot_take_columns_or_limits_yet() -> None:
    methods = {name for name in vars(DataSourceReader) if not name.startswith("_")}
    assert methods == {"partitions", "read", "pushFilters"}, "a new one may spare the options `columns` and `limit`"


def test_write_without_a_mode_is_refused_and_names_those_that_work(spark: SparkSession, fresh: Fresh) -> None:
    with pytest.raises(PySparkException, match=r'"ErrorIfExists" mode. Please use either the "Append" or "Overwrite"'):
        spark.range(1).write.format("tiltyard").options(uri="http://127.0.0.1:1", table=fresh("none")).save()


def test_read_version_tag_branch_filter_and_columns_are_those_of_lance(
    put: Any, read: Any, catalog: CatalogConnection, fresh: Fresh
) -> None:
    name = fresh("versions")
    put(name, numbers(3))
    dataset = put(name, numbers(2, 3), mode="append")
    dataset.tags.create("first", 1)
    dataset.create_branch("side", 1)
    selections: list[dict[str, str]] = [{}, {"version": "1"}, {"tag": "first"}, {"branch": "side"}]
    assert [read(name, **options).count() for options in selections] == [5, 3, 3, 3]
    assert read(name, filter="n >= 2 and text <> 't3'", columns="text").collect() == [("t2",), ("t4",)]


def test_read_keeps_its_version_while_others_append(put: Any, read: Any, fresh: Fresh) -> None:
    name = fresh("pinned")
    put(name, numbers(3))
    frame = read(name)
    assert frame.count() == 3
    put(name, numbers(2, 3), mode="append")
    assert (frame.count(), read(name).count()) == (3, 5)


def test_read_nearest_and_full_text_are_ranked_by_lance(put: Any, read: Any, fresh: Fresh) -> None:
    name = fresh("search")
    vectors = pa.array([[float(n), 0.0] for n in range(20)], pa.list_(pa.float32(), 2))
    dataset = put(name, numbers(20).append_column("v", vectors), max_rows_per_file=5)
    dataset.create_scalar_index("text", "INVERTED")
    near = read(name, vector="[7.2, 0]", vector_column="v", k="3", columns="n", filter="n <> 8")
    assert [row["n"] for row in near.collect()] == [7, 6, 9]
    assert "_distance" in near.columns
    assert [row["n"] for row in read(name, text="t11", columns="n").collect()] == [11]


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"colums": "n"}, "no option 'colums'"),
        ({"columns": "m"}, "no column 'm'"),
        ({"version": "x"}, "whole number"),
        ({"version": "1", "tag": "a"}, "not both"),
        ({"vector": "[1]"}, "vector_column"),
    ],
)
def test_read_with_options_that_cannot_be_is_refused(
    put: Any, read: Any, fresh: Fresh, options: dict[str, str], word: str
) -> None:
    name = fresh("options")
    put(name, numbers(1))
    with pytest.raises(PySparkException, match=word):
        read(name, **options)


def test_write_append_and_overwrite_are_one_version_each(
    spark: SparkSession, write: Any, catalog: CatalogConnection, fresh: Fresh
) -> None:
    name = fresh("written")
    frame = spark.range(100).repartition(4)
    write(frame, name)
    write(frame.selectExpr("id + 100 as id"), name)
    dataset = table_of(catalog, name).dataset()
    assert (dataset.version, sorted(plain(catalog, name)["id"].to_pylist())) == (2, list(range(200)))
    write(spark.sql("select 'only' as word"), name, "overwrite")
    assert plain(catalog, name).to_pylist() == [{"word": "only"}]
    with pytest.raises(PySparkException):
        write(frame, name, "error")


def test_write_task_that_fails_at_first_adds_nothing_twice(
    spark: SparkSession, write: Any, catalog: CatalogConnection, fresh: Fresh, tmp_path: Path
) -> None:
    name, mark = fresh("retried"), tmp_path / "failed"

    def once(batches: Any) -> Any:
        yield from batches
        if not mark.exists():
            mark.touch()
            raise RuntimeError("the first attempt fails after its rows")

    write(spark.range(50).coalesce(1).mapInArrow(once, "id long"), name)
    assert mark.exists() and sorted(plain(catalog, name)["id"].to_pylist()) == list(range(50))


@pytest.mark.extended
def test_stream_batch_that_is_committed_again_is_there_once(
    spark: SparkSession, shared_server: ServerProcess, catalog: CatalogConnection, fresh: Fresh, tmp_path: Path
) -> None:
    name, files = fresh("stream"), tmp_path / "files"

    def run() -> None:
        stream = spark.readStream.schema("id long").json(str(files)).writeStream.format("tiltyard")
        options = {
            "uri": shared_server.url,
            "table": name,
            "stream": "numbers",
            "checkpointLocation": str(tmp_path / "seen"),
        }
        query = stream.options(**options).trigger(availableNow=True).start()
        query.awaitTermination()

    files.mkdir()
    for batch in range(2):
        (files / f"{batch}.json").write_text(f'{{"id": {batch}}}\n')
        run()
    last = max(int(file.name) for file in (tmp_path / "seen" / "commits").iterdir() if file.name.isdigit())
    for file in (tmp_path / "seen" / "commits").glob(f"*{last}*"):
        file.unlink()  # as if the query had died before it noted that the batch is done
    run()
    assert plain(catalog, name)["id"].to_pylist() == [0, 1]


def test_stream_reads_what_is_appended_once_also_across_compaction(
    put: Any, spark: SparkSession, shared_server: ServerProcess, fresh: Fresh, tmp_path: Path
) -> None:
    name = fresh("source")

    def run() -> None:
        stream = spark.readStream.format("tiltyard").options(uri=shared_server.url, table=name).load()
        out = stream.writeStream.format("json").option("checkpointLocation", str(tmp_path / "seen"))
        out.trigger(availableNow=True).start(str(tmp_path / "out")).awaitTermination()

    put(name, numbers(3))
    run()
    dataset = put(name, numbers(2, 3), mode="append")
    dataset.optimize.compact_files()
    put(name, numbers(1, 5), mode="append")
    run()
    streamed = spark.read.schema("n long, text string").json(str(tmp_path / "out")).collect()
    assert sorted(row["n"] for row in streamed) == list(range(6))


def test_aggregates_and_filters_over_a_table_with_times_work_and_computed_columns_are_null_on_write(
    fresh: Fresh, read: Callable[..., DataFrame], write: Callable[..., None], catalog: CatalogConnection,
    put: Callable[..., lance.LanceDataset],
) -> None:  # fmt: skip
    name = fresh("t")
    put(name, pa.table({"id": [1, 2], "at": pa.array([time(1, 2), None], pa.time64("us"))}))
    frame = read(name)
    assert frame.count() == 2
    assert frame.filter("id = 2").groupBy("id").count().collect()[0]["count"] == 1
    assert frame.filter("at = TIME'01:02:00'").select("id").collect() == [(1,)]
    columns = [{"name": "twice", "computed": "id * 2"}]
    request = AlterTableAddColumnsRequest.from_dict({"id": [name], "new_columns": columns})
    catalog.client().alter_table_add_columns(request)
    write(frame.selectExpr("id + 2 AS id", "at"), name)
    assert plain(catalog, name).to_pydict() == {
        "id": [1, 2, 3, 4], "at": [time(1, 2), None, time(1, 2), None], "twice": [None] * 4,
    }  # fmt: skip
