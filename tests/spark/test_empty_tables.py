"""Tables without rows are tables: they are read, indexed, exported, optimized, changed and filled like others.

There are three ways to have none: declared and never written, created without rows, and all rows deleted.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lance
import lance_namespace as upstream
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from pyspark.errors import PySparkException

from tests.services.server import ServerProcess
from tiltyard.cli import main
from tiltyard.pipeline.catalog_client import Table, connection, table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = pa.table(
    {
        "id": pa.array(range(5), pa.int64()),
        "title": [f"film {n}" for n in range(5)],
        "st": pa.array([{"x": n, "y": f"y{n}"} for n in range(5)]),
        "v": pa.array([[float(n), 0.5] for n in range(5)], pa.list_(pa.float32(), 2)),
    }
)
UDF = "import pyarrow.compute as pc\n\ndef length(rows):\n    return pc.utf8_length(rows.column(0))\n"
JOBS = {
    "index {} id BTREE": {"rows": "0"},
    "index {} id BITMAP --name bits": {"rows": "0"},
    "index {} title FTS --parameters with_position=true": {"rows": "0"},
    "index {} st.y FTS": {"rows": "0"},
    "index {} v IVF_FLAT": {"rows": "0"},
    "index {} v IVF_PQ --name pq --parameters num_sub_vectors=1": {"rows": "0"},
    "optimize {}": {"rows_indexed": "0"},
    "export {0} {0}_out --columns id --columns title": {"rows": "0", "files": "1"},
    "export {0} {0}_few --filter 'id > 3'": {"rows": "0", "files": "1"},
    "delete {} --where 'id > 3'": {"rows": "0"},
    "backfill {} letters --udf words.py:length --inputs title --type int32": {"rows": "0"},
    "upsert none.parquet {} --on id --null letters": {"rows": "0", "inserted": "0"},
    "upsert rows.parquet {} --on id --null letters": {"rows": "5", "updated": "0", "inserted": "5"},
    "optimize {} --no-compact": {"indexes": "6", "rows_indexed": "25"},  # PQ waits for 256 rows
}
"""What is done to an empty table, in this order, and figures of it."""


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Make the working folder of the commands."""
    working_folder = tmp_path_factory.mktemp("empty")
    pq.write_table(ROWS, working_folder / "rows.parquet")
    pq.write_table(ROWS.slice(0, 0), working_folder / "none.parquet")
    (working_folder / "words.py").write_text(UDF)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(working_folder)
        yield working_folder


@pytest.fixture
def read(spark: SparkSession, shared_server: ServerProcess) -> Callable[..., DataFrame]:
    """Read a table, with a schema of the caller's own if there is one."""

    def call(name: str, schema: str | None = None, **options: str) -> DataFrame:
        reader = spark.read.schema(schema) if schema else spark.read
        return reader.format("tiltyard").options(uri=shared_server.url, table=name, **options).load()

    return call


def emptied(shared_server: ServerProcess, name: str, how: str) -> Table:
    target = table(connection(shared_server.url), name)
    if how == "declared":
        target.client.declare_table(upstream.DeclareTableRequest(id=target.id))
    else:
        rows = ROWS if how == "deleted" else ROWS.slice(0, 0)
        lance.write_dataset(rows, namespace_client=target.client, table_id=target.id, mode="create")
    if how == "deleted":
        target.dataset().delete("true")
    return target


def command(shared_server: ServerProcess, line: str) -> tuple[int, str, dict[str, str]]:
    done = CliRunner().invoke(main, [*shlex.split(line), "--uri", shared_server.url])
    assert done.exception is None or isinstance(done.exception, SystemExit), (line, done.exc_info)
    figures = [text.partition(": ") for text in done.output.splitlines()]
    return done.exit_code, done.output, {name: value for name, _, value in figures}


@pytest.mark.parametrize("how", ["created", "deleted"])
def test_read_of_an_empty_table_gives_no_rows_with_its_schema(
    spark: SparkSession, shared_server: ServerProcess, read: Any, fresh: Callable[[str], str], how: str
) -> None:
    name = fresh("empty")
    emptied(shared_server, name, how)
    option_sets: list[dict[str, str]] = [{}, {"filter": "id > 3"}, {"columns": "id,title"}, {"limit": "3"}]
    option_sets.append({"vector": "[1, 2]", "vector_column": "v"})
    for options in option_sets:
        frame = read(name, **options)
        assert (frame.collect(), frame.count(), frame.columns[0]) == ([], 0, "id"), options
    assert spark.range(3).join(read(name, columns="id,title"), "id", "left").filter("title is null").count() == 3
    assert read(name).join(spark.range(3), "id").count() == 0
    read(name).write.format("tiltyard").options(uri=shared_server.url, table=f"{name}_copy").mode("append").save()
    assert (read(f"{name}_copy").collect(), read(f"{name}_copy").columns) == ([], ROWS.column_names)


def test_read_of_a_declared_table_says_so_or_gives_no_rows_of_the_columns_that_the_caller_says(
    shared_server: ServerProcess, read: Any, fresh: Callable[[str], str]
) -> None:
    name = fresh("declared")
    emptied(shared_server, name, "declared")
    assert read(name, "id long, title string").collect() == []
    with pytest.raises(PySparkException, match=f"{name} is only declared, and has no columns yet"):
        read(name)
    for line in JOBS:
        if "parquet" in line:
            continue
        status, output, _ = command(shared_server, "job " + line.format(name))
        assert (status, "is only declared" in output, output.count("\n")) == (1, True, 1), output


@pytest.mark.extended
def test_stream_over_an_empty_table_goes_on_with_the_first_rows(
    spark: SparkSession, shared_server: ServerProcess, fresh: Callable[[str], str], tmp_path: Path
) -> None:
    for how in ("declared", "deleted"):
        name = fresh("streamed")
        target, checkpoints = emptied(shared_server, name, how), tmp_path / how

        def run(name: str = name, checkpoint_folder: Path = checkpoints) -> int:
            source = (
                spark.readStream.schema("id long").format("tiltyard").options(uri=shared_server.url, table=name).load()
            )
            out = source.writeStream.format("json").option("checkpointLocation", str(checkpoint_folder / "seen"))
            out.trigger(availableNow=True).start(str(checkpoint_folder / "out")).awaitTermination()
            return (
                spark.read.schema("id long").json(str(checkpoint_folder / "out")).count()
                if (checkpoint_folder / "out").exists()
                else 0
            )

        assert run() == 0, how
        pq.write_table(ROWS.select(["id"]), "ids.parquet")
        nulls = "" if how == "declared" else " --null title --null st --null v"
        assert command(shared_server, f"job ingest ids.parquet {name} --mode append{nulls}")[0] == 0, how
        assert run() == 5, how
        assert target.dataset().count_rows() == 5


@pytest.mark.parametrize("how", ["created", "deleted"])
def test_jobs_on_an_empty_table_do_what_there_is_to_do(
    shared_server: ServerProcess, spark: SparkSession, fresh: Callable[[str], str], how: str
) -> None:
    name = fresh("jobs")
    target = emptied(shared_server, name, how)
    for line, expected in JOBS.items():
        status, output, figures = command(shared_server, "job " + line.format(name))
        assert (status, {key: figures.get(key) for key in expected}) == (0, expected), (line, output)
    assert pq.read_table(f"{name}_out").schema.names == ["id", "title"]
    assert pq.read_table(f"{name}_few").schema.equals(ROWS.schema)
    assert {index.name: index.num_rows_indexed for index in target.dataset().describe_indices()} == {
        "id_idx": 5, "bits": 5, "title_idx": 5, "st.y_idx": 5, "v_idx": 5, "pq": 0,
    }  # fmt: skip
    assert target.dataset().to_table(filter="id = 3")["title"].to_pylist() == ["film 3"]


def test_index_within_a_struct_of_an_empty_table_is_told_to_wait(
    shared_server: ServerProcess, spark: SparkSession, fresh: Callable[[str], str]
) -> None:
    name = fresh("waits")
    target = emptied(shared_server, name, "created")
    status, output, _ = command(shared_server, f"job index {name} st.x BTREE")
    assert (status, "st.x, which is within a struct, needs rows" in output) == (1, True), output
    assert target.dataset().describe_indices() == []


def test_pipeline_over_an_empty_table_publishes_empty_tables_with_their_indexes(
    spark: SparkSession, shared_server: ServerProcess, read: Any, fresh: Callable[[str], str], tmp_path: Path
) -> None:
    source, first, second, files = (fresh(stem) for stem in ("source", "made", "again", "files"))
    emptied(shared_server, source, "deleted")
    plan = tmp_path / "plan.yaml"
    plan.write_text(f"""
reads: {{src: {source}}}
tables:
  {first}:
    sql: SELECT id, title FROM src
    indexes:
      - {{column: id, type: BTREE}}
      - {{column: title, type: FTS}}
  {second}:
    sql: SELECT id, upper(title) AS loud FROM {first}
  {files}:
    files: {Path("none.parquet").resolve()}
    indexes:
      - {{column: id, type: BITMAP}}
""")
    status, output, _ = command(shared_server, f"pipeline run {plan}")
    assert status == 0, output
    assert (read(first).collect(), read(second).columns, read(files).count()) == ([], ["id", "loud"], 0)
    named = {index.name for index in table(connection(shared_server.url), first).dataset().describe_indices()}
    assert named == {"id_idx", "title_idx"}
