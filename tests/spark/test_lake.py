"""The API of a lake on Spark: jobs by their methods, columns of functions, indexes, views, frames, and queued runs."""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from lance_namespace.errors import InvalidInputError, TableNotFoundError, UnsupportedOperationError

import tiltyard
from tests.openlineage.validation import check_event
from tests.services.server import ServerProcess
from tiltyard.cli import main
from tiltyard.model.settings.openlineage import OpenLineageSettings
from tiltyard.pipeline.openlineage import emitter as events
from tiltyard.pipeline.runs import LocalRun
from tiltyard.pipeline.writing import write_job
from tiltyard.pipeline.writing.distribution_checks import find_last_profiles
from tiltyard.pipeline.writing.target_table import WriteMode, prepare_target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Fresh = Callable[[str], str]

WORDS = """
import pyarrow.compute as pc

def length(rows):
    return pc.utf8_length(rows.column(0))

def strict_length(rows):
    if pc.any(pc.equal(rows.column(0), "film 7")).as_py():
        raise ValueError("no such word")
    return length(rows)
"""


@pytest.fixture
def lake(spark: SparkSession, shared_server: ServerProcess) -> tiltyard.Lake:
    """Return a lake over the server, whose jobs run in the session."""
    return tiltyard.connect(shared_server.url)


@pytest.fixture
def films(lake: tiltyard.Lake, fresh: Fresh, tmp_path: Path) -> tiltyard.Table:
    """Return a table of 1,000 films, ingested from a file."""
    ids = range(1000)
    vectors = pa.array([[float(number), 0.5] for number in ids], pa.list_(pa.float32(), 2))
    rows = {"id": ids, "title": [f"film {number}" for number in ids], "vector": vectors}
    pq.write_table(pa.table(rows), tmp_path / "films.parquet")
    films = lake.table(fresh("films"))
    run = films.ingest(tmp_path / "films.parquet", checks="unique(id)", rejects=tmp_path / "bad")
    assert (run.rows, run.version, run.progress) == (1000, 1, 1.0)
    return films


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """Return a module of a plain file, which other processes do not have."""
    (tmp_path / "own_words.py").write_text(WORDS)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("own_words")
    del sys.modules["own_words"]


def test_frames_are_written_upserted_and_read(spark: SparkSession, lake: tiltyard.Lake, films: tiltyard.Table) -> None:
    changed = spark.sql("SELECT id, concat('new ', id) AS title, array(0f, 1f) AS vector FROM range(998, 1002)")
    run = films.upsert(changed, on="id", cast={"vector": "float32[2]"})
    assert (run.figures["updated"], run.figures["inserted"], films.count()) == ("2", "2", 1002)
    assert films.delete("id >= 1000").rows == 2
    edges = films.lineage().edges
    assert [edge.job_kind for edge in edges] == ["delete", "upsert", "ingest"] and edges[0].source_version == 2
    assert [edge.source.name for edge in edges][:2] == [films.name, "memory:pyspark.DataFrame"]
    frame = films.to_spark(columns=["title"], filter="id >= 998")
    assert frame.columns == ["title"] and sorted(row.title for row in frame.collect()) == ["new 998", "new 999"]
    assert films.to_spark("id", version=1, limit=3).count() == 3
    with pytest.raises(InvalidInputError, match="columns or filter: "):
        films.to_spark(filter="nothing = 1")
    with pytest.raises(InvalidInputError, match="is not a condition on the table"):
        films.delete("nothing = 1")


def test_column_of_a_function_is_declared_tried_and_filled(
    films: tiltyard.Table, words: object, tmp_path: Path
) -> None:
    length = words.length  # type: ignore[attr-defined]  # it was made just now
    with pytest.raises(UnsupportedOperationError, match=r"'udfs' allows it. Or give the function to each backfill"):
        films.add_column("letters", length, inputs=["title"], type="int32")
    assert films.version == 1
    films = tiltyard.connect(tmp_path / "root").table("films")
    films.ingest(tmp_path / "films.parquet")
    films.add_column("letters", length, inputs=["title"], type="int32")
    assert films.count("letters IS NOT NULL") == 0
    assert films.backfill("letters").rows == 1000
    (edge,) = [edge for edge in films.lineage().edges if edge.job_kind == "backfill"]
    assert (edge.source, edge.source_version) == (edge.target, 2) and len(edge.code or "") == 64
    assert films.to_arrow("letters", "id = 5")["letters"].to_pylist() == [6]
    films.write(pa.table({"id": [1000], "title": ["x"], "vector": pa.array([[0.0, 0.0]], pa.list_(pa.float32(), 2))}),
                null="letters")  # fmt: skip
    assert films.backfill("letters").rows == 1
    version = films.version
    with pytest.raises(InvalidInputError, match="has a column 'letters' already"):
        films.add_column("letters", lambda rows: rows.column(0), inputs="title", type="string")
    with pytest.raises(
        InvalidInputError, match=r"no such word.*_rowid = 7: have.*backfill\('strict', .*, on_error='park'\)"
    ) as refused:
        films.add_column("strict", words.strict_length, inputs="title", type="int32")  # type: ignore[attr-defined]
    assert "with on_error park" not in str(refused.value) and "rejects" not in str(refused.value)
    assert films.version == version

    strict = words.strict_length  # type: ignore[attr-defined]  # the same
    run = films.backfill(
        "strict", strict, inputs="title", type="int32", rejects=tmp_path / "failed", batch_rows=100, rows_per_task=10
    )
    assert (run.rows, run.figures["rows_failed"]) == (1000, "1")
    assert films.to_arrow("id", "strict IS NULL")["id"].to_pylist() == [7]
    [file] = (tmp_path / "failed").iterdir()
    assert file.read_text().count("\n") == 1 and '"row": {"title": "film 7"}' in file.read_text()


def test_distribution_measured_by_spark_is_that_of_this_process(
    lake: tiltyard.Lake, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = pa.table({"price": pa.array([None, *(float(number % 997) for number in range(5000)), float("nan")])})
    kept = []
    for most in (1_000_000, 0):
        monkeypatch.setattr(write_job, "MAX_KEYS_IN_DRIVER", most)
        table = lake.table(fresh("prices"))
        table.ingest(rows, checks="distribution(price, 0.1)")
        kept.append(find_last_profiles(prepare_target(LocalRun(), table._table, WriteMode.APPEND))["price"])
    here, by_spark = kept
    assert (by_spark.rows, by_spark.nulls) == (here.rows, here.nulls) == (5002, 2)
    assert [by_spark.mean, *by_spark.quantiles] == pytest.approx([here.mean, *here.quantiles], abs=1)


def test_column_of_an_expression_is_filled(films: tiltyard.Table) -> None:
    films.add_column("loud", "upper(title)")
    films.backfill("loud", filter="id < 10")
    assert films.count("loud IS NOT NULL") == 10
    assert films.to_arrow("loud", "id = 5")["loud"].to_pylist() == ["FILM 5"]


def letters(title: str) -> int:
    return len(title)


def test_column_of_a_function_of_rows_has_the_columns_and_type_of_its_hints(
    spark: SparkSession, tmp_path: Path
) -> None:
    films = tiltyard.connect(tmp_path / "root").table("films")
    films.ingest(pa.table({"id": [1, 2], "title": ["Up", None]}))
    with pytest.raises(InvalidInputError, match=r"or hints that name them, as in def letters\(title: str\) -> int"):
        films.add_column("letters", lambda rows: rows["title"])
    films.add_column("letters", letters)
    assert films.schema.field("letters").type == pa.int64() and films.backfill("letters").rows == 2
    films.backfill("short", letters, inputs="title", type="int8")
    films.backfill("half", lambda rows: rows["id"].to_numpy() / 2, inputs="id", type="float64")
    assert films.to_arrow("letters, short, half").to_pylist() == [
        {"letters": 2, "short": 2, "half": 0.5},
        {"letters": None, "short": None, "half": 1.0},
    ]


def test_indexes_compaction_and_export(lake: tiltyard.Lake, films: tiltyard.Table, tmp_path: Path) -> None:
    assert films.create_index("id").figures["index"] == "id_idx"
    films.create_index("vector", "IVF_FLAT", metric="cosine", num_partitions=2)
    stats = films.dataset().stats.index_stats("vector_idx")
    assert stats["indices"][0]["metric_type"] == "cosine"
    with pytest.raises(InvalidInputError, match=r"name another one, or say replace\."):
        films.create_index("id")
    films.write(films.to_arrow(filter="id < 3"))
    assert films.optimize(compact=False).figures["rows_indexed"] == "6"
    films.export(tmp_path / "out", columns="id,title", filter="id < 500")
    assert pq.read_table(tmp_path / "out").column_names == ["id", "title"]
    with pytest.raises(InvalidInputError, match="format is one of parquet, and not 'orc'"):
        films.export(tmp_path / "orc", format="orc")


def test_create_index_builds_the_type_that_index_type_names(films: tiltyard.Table) -> None:
    """Lance has no parts of FM and MINHASHLSH: this process builds those."""
    columns = {"BITMAP": "id", "ZONEMAP": "id", "BLOOMFILTER": "title", "NGRAM": "title", "FTS": "title"}
    columns |= {"FM": "title", "MINHASHLSH": "title"}
    for kind, column in columns.items():
        films.create_index(column, index_type=kind, name=kind.lower())
    films.create_index("vector", index_type="IVF_FLAT", name="ivf_flat", num_partitions=2)
    built = {index.name: index.index_type.upper() for index in films.dataset().describe_indices()}
    assert built == {kind.lower(): kind for kind in columns} | {"fts": "INVERTED", "ivf_flat": "IVF_FLAT"}


def test_view_has_the_columns_of_its_query_and_errors_at_creation(
    lake: tiltyard.Lake, films: tiltyard.Table, fresh: Fresh, tmp_path: Path
) -> None:
    query = f"SELECT id, upper(title) AS title, vector FROM {films.name} WHERE id >= 990"
    late = lake.create_view(fresh("late"), query)
    assert late.schema.remove_metadata() == films.schema.remove_metadata() and late.sql == query
    events.configure(OpenLineageSettings(str(tmp_path / "events.jsonl"), namespace="test"))
    try:
        assert (late.count(), late.refresh().rows, late.count("title = 'FILM 999'")) == (0, 10, 1)
    finally:
        events.configure(None)
    complete = json.loads((tmp_path / "events.jsonl").read_text().splitlines()[-1])
    check_event(complete)
    assert complete["eventType"] == "COMPLETE" and complete["job"]["name"] == f"refresh.{late.name}"
    (read,), (written,) = complete["inputs"], complete["outputs"]
    assert (read["namespace"], read["name"], read["facets"]["version"]["datasetVersion"]) == ("test", films.name, "1")
    (title,) = written["facets"]["columnLineage"]["fields"]["title"]["inputFields"]
    assert (title["name"], title["field"], title["transformations"][0]["subtype"]) == (
        films.name, "title", "TRANSFORMATION"
    )  # fmt: skip
    assert lake.view(late.name).refresh().figures["mode"] == "unchanged"
    (edge,) = films.lineage("downstream").edges
    assert (edge.target.name, edge.job_kind, edge.source_version, edge.version) == (late.name, "refresh", 1, 2)
    assert late.lineage(depth=1).tables == (films.name,)
    name = fresh("wrong")
    for wrong, sentence in (
        (f"SELECT nothing FROM {films.name}", "nothing"),
        ("SELECT 1 AS a FROM nowhere", "nowhere"),
        (f"DROP TABLE {films.name}", "SELECT"),
    ):
        with pytest.raises((InvalidInputError, TableNotFoundError), match=sentence):
            lake.create_view(name, wrong)
    assert name not in lake.tables()
    with pytest.raises(InvalidInputError, match="is a table, and not a view"):
        lake.view(films.name).sql  # noqa: B018  # it raises


def test_publish_has_indexes_and_deletions_with_it(lake: tiltyard.Lake, films: tiltyard.Table) -> None:
    with lake.publish() as change:
        inner = change.table(films.name)
        assert inner.delete("id >= 500").rows == 500
        inner.create_index("id", "BTREE")
        assert (inner.count(), films.count()) == (500, 1000)
    assert films.count() == 500 and films.dataset().describe_indices()[0].name == "id_idx"


@pytest.mark.extended
def test_rows_of_jdbc_are_ingested(spark: SparkSession, lake: tiltyard.Lake, fresh: Fresh, tmp_path: Path) -> None:
    log = str(tmp_path / "derby.log")  # else it is written where the tests run
    spark.sparkContext._jvm.java.lang.System.setProperty("derby.stream.error.file", log)  # type: ignore[union-attr]
    url = f"jdbc:derby:{tmp_path / 'database'};create=true"
    spark.range(10).write.format("jdbc").options(url=url, dbtable="numbers").save()
    table = lake.table(fresh("numbers"))
    table.ingest(tiltyard.Jdbc(url, query='SELECT * FROM numbers WHERE "id" < 5'), rename={"id": "number"})
    assert sorted(table.to_arrow()["number"].to_pylist()) == [0, 1, 2, 3, 4]
    with pytest.raises(InvalidInputError, match="either a table or a query"):
        table.write(tiltyard.Jdbc(url))


@pytest.mark.extended
def test_command_creates_a_view(spark: SparkSession, lake: tiltyard.Lake, films: tiltyard.Table, fresh: Fresh) -> None:
    name = fresh("by_command")
    sql = f"SELECT id FROM {films.name} WHERE id < 10"
    done = CliRunner().invoke(main, ["view", "create", name, "--sql", sql, "--refresh", "--uri", lake.location])
    assert (done.exit_code, lake.table(name).count()) == (0, 10), done.output
    assert f"{name}: id int64" in done.output
    done = CliRunner().invoke(main, ["view", "create", name, "--sql", "SELECT", "--uri", lake.location])
    assert done.exit_code == 1 and "Traceback" not in done.output


@pytest.mark.extended
def test_run_that_is_queued_is_found_and_canceled(lake: tiltyard.Lake, films: tiltyard.Table, tmp_path: Path) -> None:
    """The server of these tests runs no jobs: what a worker does is in test_drivers."""
    run = films.ingest(tmp_path / "films.parquet", mode="append", submit=True, wait=False)
    assert run.status == "Queued" and lake.run(run.id).name == "ingest"
    with pytest.raises(TimeoutError):
        run.wait(timeout=0.1)
    lake.run(run.id).cancel()
    with pytest.raises(tiltyard.RunCanceledError):
        run.wait()
    assert (run.status, films.count()) == ("Canceled", 1000)


@pytest.mark.extended
def test_recorded_run_is_canceled_within_seconds(lake: tiltyard.Lake, films: tiltyard.Table, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import time\n\ndef wait(rows):\n    time.sleep(60)\n    return rows.column(0)\n")
    run = films.backfill("slow", f"{tmp_path / 'slow.py'}:wait", inputs="id", type="int64", wait=False)
    deadline = time.monotonic() + 60
    while lake.run(run.id).status != "Running" and time.monotonic() < deadline:
        time.sleep(0.05)
    run.cancel()
    with pytest.raises(tiltyard.RunCanceledError, match="nothing was committed"):
        run.wait()
    assert (run.status, lake.run(run.id).status, "slow" in films.schema.names) == ("Canceled", "Canceled", False)
