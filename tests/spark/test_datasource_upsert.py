"""`df.write.format("tiltyard").option("on", …)`: keys are unique at the end, and a batch of a stream is there once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lance_namespace.errors import ServiceUnavailableError
from pyspark.errors import PySparkException

from tests.services.server import ServerProcess
from tiltyard.pipeline.catalog_client import Table
from tiltyard.pipeline.catalog_client import table as table_of
from tiltyard.pipeline.datasource.options import DataSourceOptions
from tiltyard.pipeline.datasource.spark_types import spark_schema
from tiltyard.pipeline.datasource.writer import TableWriter
from tiltyard.pipeline.ingest.job import upsert
from tiltyard.pipeline.runs import LocalRun
from tiltyard.pipeline.writing.commit import JobTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tiltyard.pipeline.table_location import CatalogConnection

Fresh = Callable[[str], str]
VECTOR = pa.list_(pa.float32(), 2)


def rows(ids: range | list[int], value: str) -> pa.Table:
    """Rows of (id, half, v, vector); the key is `id`, or `id` and `half`."""
    numbers = list(ids)
    vectors = pa.array([[float(n), 0.5] for n in numbers], VECTOR)
    return pa.table(
        {"id": numbers, "half": ["ab"[n % 2] for n in numbers], "v": [value] * len(numbers), "vector": vectors},
        schema=pa.schema([("id", pa.int64()), ("half", pa.string()), ("v", pa.string()), ("vector", VECTOR)]),
    )


@pytest.fixture
def target(catalog: CatalogConnection, fresh: Fresh) -> Table:
    """A table of 100 rows in four fragments."""
    table = table_of(catalog, fresh("upserted"))
    lance.write_dataset(rows(range(100), "old"), namespace_client=table.client, table_id=table.id, max_rows_per_file=25)
    return table


@pytest.fixture
def write(shared_server: ServerProcess) -> Callable[..., None]:
    """Upsert a DataFrame."""

    def call(frame: DataFrame, table: Table | str, on: str = "id", mode: str = "append", **options: Any) -> None:
        options_of_table = {"uri": shared_server.url, "table": str(table), "on": on, **options}
        frame.write.format("tiltyard").options(**options_of_table).mode(mode).save()

    return call


def frame(spark: SparkSession, first: int, end: int, value: str) -> DataFrame:
    """The same rows, as Spark has them."""
    columns = ["id", "substr('ab', id % 2 + 1, 1) as half", f"'{value}' as v", "array(float(id), 0.5f) as vector"]
    return spark.range(first, end, 1, 3).selectExpr(*columns)


def contents(target: Table) -> pa.Table:
    """The table, read by plain pylance; fails if an id is there twice."""
    stored = lance.dataset(target.location().uri).to_table().sort_by("id")
    assert len(set(stored["id"].to_pylist())) == stored.num_rows
    return stored


def test_upsert_of_some_columns_keeps_the_others(
    spark: SparkSession, target: Table, write: Callable[..., None]
) -> None:
    write(frame(spark, 50, 120, "new").select("v", "id", "half"), target)
    stored = contents(target)
    assert stored.slice(0, 100).equals(joined(rows(range(50), "old"), rows(range(50, 100), "new")))
    assert stored.slice(100)["v"].to_pylist() == ["new"] * 20 and stored.slice(100)["vector"].null_count == 20
    with pytest.raises(PySparkException, match="5 keys of the source are not in the table"):
        write(frame(spark, 100, 125, "newer").select("id", "v"), target, must_exist="true")
    write(frame(spark, 100, 120, "newer").select("id", "v"), target, must_exist="true")
    assert contents(target).slice(100)["half"].to_pylist() == ["a", "b"] * 10
    with pytest.raises(PySparkException, match="set the option on, too"):
        frame(spark, 0, 1, "x").write.format("tiltyard").options(
            uri="http://127.0.0.1:1", table="t", must_exist="true"
        ).mode("append").save()


def joined(*parts: pa.Table) -> pa.Table:
    return pa.concat_tables(parts).sort_by("id")


@pytest.mark.parametrize("on", ["id", "id, half"])
def test_write_on_a_key_replaces_and_adds_in_one_commit(
    spark: SparkSession, write: Any, target: Table, on: str
) -> None:
    write(frame(spark, 90, 120, "new"), target, on)
    assert contents(target) == joined(rows(range(90), "old"), rows(range(90, 120), "new"))
    assert target.dataset().version == 2


@pytest.mark.parametrize(
    ("columns", "options", "reason"),
    [
        (["id % 2 as id", "half", "v", "vector"], {}, "a key may be there once"),
        (["if(id = 1, null, id) as id", "half", "v", "vector"], {}, "null in 1 row"),
        (["half", "v", "vector"], {}, "no column 'id'"),
        (["*"], {"on": "nothing"}, "no column 'nothing'"),
        (["*"], {"mode": "overwrite"}, "write in the mode append"),
        (["*"], {"batch": 1}, "option 'stream'"),
    ],
    ids=["twice", "null", "column", "key", "overwrite", "batch"],
)
def test_write_on_a_key_that_cannot_be_changes_nothing_and_leaves_nothing(
    spark: SparkSession, write: Any, target: Table, columns: list[str], options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(PySparkException, match=reason):
        write(frame(spark, 0, 3, "new").selectExpr(*columns), target, **options)
    assert contents(target) == rows(range(100), "old") and target.dataset().version == 1
    assert len(list((Path(target.location().uri) / "data").iterdir())) == 4


def test_write_on_a_key_of_a_table_that_is_not_there_makes_none(
    spark: SparkSession, write: Any, catalog: CatalogConnection, fresh: Fresh
) -> None:
    name = fresh("missing")
    for _ in range(2):  # not even a name is left
        with pytest.raises(PySparkException, match="TableNotFoundError"):
            write(frame(spark, 0, 3, "new"), name)


@pytest.mark.extended
def test_write_on_a_key_beside_upserts_and_appends_keys_stay_unique(
    spark: SparkSession,
    shared_server: ServerProcess,
    write: Any,
    target: Table,
    catalog: CatalogConnection,
    tmp_path: Path,
) -> None:
    pq.write_table(rows(range(90, 140), "job"), tmp_path / "job.parquet")
    ended = threading.Event()

    def append() -> int:
        number = 0
        while not ended.wait(0.05):
            target.dataset().insert(rows([10_000 + number], "appended"))
            number += 1
        return number

    def stream(name: str) -> Any:
        files = tmp_path / name
        files.mkdir()
        frame(spark, 90, 140, name).write.json(str(files / "rows"))
        options = {"checkpointLocation": str(tmp_path / f"{name} seen"), "stream": name}
        source = spark.readStream.schema("id long, half string, v string, vector array<float>").json(f"{files}/rows")
        out = source.writeStream.format("tiltyard").options(
            uri=shared_server.url, table=str(target), on="id", **options
        )
        return out.trigger(availableNow=True).start()

    with ThreadPoolExecutor(2) as pool:
        appending = pool.submit(append)
        try:
            query = stream("stream")
            job = pool.submit(upsert, LocalRun(), catalog, spark, str(tmp_path / "job.parquet"), str(target), on=["id"])
            write(frame(spark, 90, 140, "batch"), target)
            assert job.result()["rows"] == 50
            query.awaitTermination()
        finally:
            ended.set()
    result = contents(target)
    [last] = set(result.slice(90, 50)["v"].to_pylist())  # all of one writer, the last: a commit is whole
    appended = rows(range(10_000, 10_000 + appending.result()), "appended")
    assert result == joined(rows(range(90), "old"), rows(range(90, 140), last), appended)


def _query(spark: SparkSession, files: Path) -> Any:
    return spark.readStream.schema("id long, v string").json(str(files))


def _forget_last(checkpoint: Path) -> None:
    """As if the query had died before it noted that its last batch is done."""
    last = max(int(file.name) for file in (checkpoint / "commits").iterdir() if file.name.isdigit())
    for file in (checkpoint / "commits").glob(f"*{last}*"):
        file.unlink()


@pytest.mark.extended
@pytest.mark.parametrize("way", ["append", "foreachBatch"])
def test_stream_on_a_key_batch_that_is_tried_again_is_upserted_once(
    spark: SparkSession, shared_server: ServerProcess, write: Any, target: Table, tmp_path: Path, way: str
) -> None:
    files, checkpoints = tmp_path / "files", tmp_path / "seen"
    files.mkdir()
    options = {"uri": shared_server.url, "table": str(target), "on": "id", "stream": "numbers"}
    columns = ["id", "substr('ab', int(id % 2) + 1, 1) as half", "v", "array(float(id), 0.5f) as vector"]

    def run() -> None:
        if way == "append":
            stream = _query(spark, files).selectExpr(*columns).writeStream.format("tiltyard").options(**options)
        else:  # Spark has no update mode for sources in Python: a batch by hand, under its number
            counted = _query(spark, files).groupBy("id").agg({"v": "max"}).toDF("id", "v").selectExpr(*columns)
            stream = counted.writeStream.outputMode("update").foreachBatch(
                lambda batch, number: write(batch, target, stream="numbers", batch=number)
            )
        stream.option("checkpointLocation", str(checkpoints)).trigger(availableNow=True).start().awaitTermination()

    (files / "0.json").write_text('{"id": 99, "v": "first"}\n{"id": 100, "v": "first"}\n')
    run()
    (files / "1.json").write_text('{"id": 100, "v": "second"}\n{"id": 101, "v": "second"}\n')
    run()
    target.dataset().update({"v": "'theirs'"}, where="id = 101")
    _forget_last(checkpoints)
    run()
    expected = [rows(range(99), "old"), rows([99], "first"), rows([100], "second"), rows([101], "theirs")]
    assert contents(target) == joined(*expected)


EITHER = pytest.mark.parametrize("on", [{}, {"on": "id"}], ids=["append", "upsert"])


def writer(url: str, table: Table, on: dict[str, str]) -> TableWriter:
    """Make the writer that Spark would make for a write, to call its methods one by one."""
    options = DataSourceOptions.parse({"uri": url, "table": str(table), **on})
    return TableWriter(options, spark_schema(rows([], "").schema), overwrite=False)


@EITHER
def test_write_whose_answer_got_lost_keeps_the_files_that_were_committed(
    shared_server: ServerProcess, target: Table, monkeypatch: pytest.MonkeyPatch, on: dict[str, str]
) -> None:
    """Spark aborts a write whose commit raised: what a version names must not be deleted then."""
    new = rows(range(100, 110), "new")
    table_writer = writer(shared_server.url, target, on)
    written = [table_writer.write(iter(new.to_batches()))]
    commit = JobTable.commit

    def lost(*arguments: Any, **options: Any) -> int:
        commit(*arguments, **options)
        raise ServiceUnavailableError("The server went away.")

    monkeypatch.setattr(JobTable, "commit", lost)
    with pytest.raises(ServiceUnavailableError):
        table_writer.commit(written)
    table_writer.abort(written)
    assert contents(target) == joined(rows(range(100), "old"), new)


@EITHER
def test_write_whose_task_failed_leaves_nothing(
    shared_server: ServerProcess, target: Table, on: dict[str, str]
) -> None:
    table_writer = writer(shared_server.url, target, on)
    table_writer.abort([table_writer.write(iter(rows([1000], "new").to_batches())), None])
    assert contents(target) == rows(range(100), "old")
    assert len(list((Path(target.location().uri) / "data").iterdir())) == 4


@EITHER
def test_stream_batch_that_two_drivers_commit_at_once_is_there_once(
    shared_server: ServerProcess, target: Table, monkeypatch: pytest.MonkeyPatch, on: dict[str, str]
) -> None:
    """A driver that was thought dead comes between: its batch has other rows, for the source gave others."""
    first, second = writer(shared_server.url, target, on), writer(shared_server.url, target, on)
    new = rows(range(100, 110), "theirs")
    first_messages = [first.write(iter(new.to_batches()))]
    second_messages = [second.write(iter(rows(range(110, 120), "ours").to_batches()))]
    commits, commit = iter([first_messages]), JobTable.commit

    def overtaken(*arguments: Any, **options: Any) -> int:
        for messages in commits:
            first.commit_batch(messages, "numbers", 0)
        return commit(*arguments, **options)

    monkeypatch.setattr(JobTable, "commit", overtaken)
    second.commit_batch(second_messages, "numbers", 0)
    assert contents(target) == joined(rows(range(100), "old"), new)
