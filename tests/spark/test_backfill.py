"""Backfill: in the end every row has its value, computed once, beside concurrent writers."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance_namespace.errors import (
    InvalidInputError,
    ServiceUnavailableError,
    TableBranchNotFoundError,
    TableColumnNotFoundError,
)
from pyspark import cloudpickle

from tests.services.server import ServerProcess
from tests.spark import functions
from tests.spark.functions import Counting, Late
from tiltyard.change_feed.table_history import read_transactions
from tiltyard.column_refresh import refresh
from tiltyard.model.columns.computed_columns import ExpressionDeclaration, UdfDeclaration
from tiltyard.pipeline.backfill import job as backfilling
from tiltyard.pipeline.backfill.job import backfill
from tiltyard.pipeline.catalog_client import CatalogConnection, Table, connection, table
from tiltyard.pipeline.functions.user_functions import UserFunction
from tiltyard.pipeline.runs import LocalRun, RunCanceledError
from tiltyard.pipeline.writing.commit import JobTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Fresh = Callable[[str], str]


def rows(ids: range | list[int]) -> pa.Table:
    """Rows of (id, x); x is ten times the id."""
    return pa.table({"id": list(ids), "x": [10 * number for number in ids]})


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CatalogConnection]:
    """A server that lets clients declare code."""
    server = ServerProcess(tmp_path_factory.mktemp("declared"), environ={"TILTYARD_UDFS": "true"})
    yield connection(server.url)
    server.stop()


@pytest.fixture
def name(fresh: Fresh) -> str:
    return fresh("filled")


@pytest.fixture
def target(catalog: CatalogConnection, name: str) -> Table:
    """A table of four fragments."""
    target = table(catalog, name)
    client = target.client
    lance.write_dataset(rows(range(1000)), namespace_client=client, table_id=target.id, max_rows_per_file=250)
    return target


def declare(target: Table, code: Any, column: str = "y", version: str = "1", inputs: tuple[str, ...] = ("x",)) -> None:
    """Add a column that code computes, as AlterTableAddColumns does."""
    declaration = UdfDeclaration("test", version, base64.b64encode(cloudpickle.dumps(code)).decode(), inputs)
    target.dataset().add_columns(pa.field(column, pa.int64(), metadata=declaration.metadata()))


def values(target: Table, column: str = "y") -> dict[int, int | None]:
    """The column by id; fails if an id is there twice."""
    columns = target.dataset().to_table().to_pydict()
    assert len(set(columns["id"])) == len(columns["id"])
    return dict(zip(columns["id"], columns[column], strict=True))


def doubles(*ids: range) -> dict[int, int | None]:
    return {number: 20 * number for part in ids for number in part}


def wait_for_idle_executors(spark: SparkSession) -> None:
    """Wait until no task runs any more: those of a canceled job end after it."""
    tracker = spark.sparkContext._jsc.sc().statusTracker()
    deadline = time.monotonic() + 60
    while any(executor.numRunningTasks() for executor in tracker.getExecutorInfos()):
        assert time.monotonic() < deadline, "a task does not end"
        time.sleep(0.05)


def test_backfill_of_a_declared_column_fills_it_once(
    spark: SparkSession, catalog: CatalogConnection, target: Table, name: str, tmp_path: Path
) -> None:
    counting = Counting(tmp_path)
    declare(target, counting)
    target.dataset().delete("id % 7 = 0")
    expected = {number: 20 * number for number in range(1000) if number % 7}
    figures = backfill(LocalRun(), catalog, spark, name, "y")
    assert (figures["rows"], figures["fragments"]) == (len(expected), 4)
    assert values(target) == expected
    assert counting.seen() == len(expected)
    repeated = backfill(LocalRun(), catalog, spark, name, "y")
    assert repeated["rows"] == 0
    assert counting.seen() == 0


def test_backfill_after_appends_and_a_compaction_computes_what_is_missing(
    spark: SparkSession, catalog: CatalogConnection, target: Table, name: str, tmp_path: Path
) -> None:
    counting = Counting(tmp_path)
    declare(target, counting)
    backfill(LocalRun(), catalog, spark, name, "y")
    partly_filled = rows(range(2000, 2010)).append_column("y", pa.array([-1] * 5 + [None] * 5, pa.int64()))
    target.dataset().insert(rows(range(1000, 1100)))
    target.dataset().insert(partly_filled)
    target.dataset().optimize.compact_files()
    assert len(target.dataset().get_fragments()) == 1
    counting.seen()
    backfill(LocalRun(), catalog, spark, name, "y")
    assert counting.seen() == 105  # the appended rows without a value, no other
    assert values(target) == doubles(range(1100), range(2005, 2010)) | dict.fromkeys(range(2000, 2005), -1)


def test_backfill_after_an_update_of_the_inputs_computes_those_rows(
    spark: SparkSession, catalog: CatalogConnection, target: Table, name: str, tmp_path: Path
) -> None:
    counting = Counting(tmp_path)
    declare(target, counting)
    backfill(LocalRun(), catalog, spark, name, "y")
    counting.seen()
    target.dataset().update({"x": "5"}, where="id < 10")
    target.dataset().optimize.compact_files()
    backfill(LocalRun(), catalog, spark, name, "y")
    assert values(target) == doubles(range(10, 1000)) | dict.fromkeys(range(10), 10)


def test_backfill_of_a_new_version_of_the_code_computes_all(
    spark: SparkSession, catalog: CatalogConnection, target: Table, name: str
) -> None:
    backfill(LocalRun(), catalog, spark, name, "z", udf="tests.spark.functions:doubled", inputs=["x"], type="int64")
    assert values(target, "z") == doubles(range(1000))
    backfill(LocalRun(), catalog, spark, name, "z", udf="tests.spark.functions:tripled", inputs=["x"])
    assert values(target, "z") == {number: 30 * number for number in range(1000)}


def test_identity_of_code_is_what_files_of_earlier_releases_are_named_by() -> None:
    code = UserFunction("words.py", "length", "x = 1")
    assert backfilling._CodeOverride(code, ("title",), "2").identity == (
        "dca9fbef6ec63636a79edc002271e318a34a8cf8599ae42ae2f952f2a5fee376"
    )


@pytest.mark.parametrize("step", ["fail", "wait"])
def test_backfill_that_fails_or_is_canceled_leaves_no_column_of_its_own_without_values(
    spark: SparkSession, catalog: CatalogConnection, target: Table, name: str, tmp_path: Path, step: str
) -> None:
    late, run = Late(tmp_path), LocalRun()
    arguments: dict[str, Any] = {"udf": late.write(), "inputs": ["x"], "type": "int64"}
    late.do(step)
    canceling = threading.Thread(target=lambda: late.waits() and run.canceled.set())
    canceling.start()
    with pytest.raises(RunCanceledError if step == "wait" else InvalidInputError):
        backfill(run, catalog, spark, name, "y", **arguments)
    canceling.join()
    assert target.dataset().schema.names == ["id", "x"]
    assert [type(entry.operation).__name__ for _, entry in read_transactions(target.dataset(), 1)] == [
        "Project",
        "Merge",
    ]
    if step == "fail":
        late.do("")
        assert backfill(run, catalog, spark, name, "y", **arguments)["rows"] == 1000  # as a run that is resumed
        assert values(target) == doubles(range(1000))


@pytest.mark.parametrize("canceled", [False, True])
def test_backfill_that_ends_with_an_outage_drops_its_empty_column_unless_the_job_may_be_anothers(
    spark: SparkSession,
    catalog: CatalogConnection,
    target: Table,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    canceled: bool,
) -> None:
    run = LocalRun()

    def run_tasks(*_: Any, **__: Any) -> None:
        if canceled:
            run.canceled.set()  # as a run hears of another driver
        raise ServiceUnavailableError("The catalog is away.")

    monkeypatch.setattr(backfilling, "run_tasks", run_tasks)
    with pytest.raises(ServiceUnavailableError):
        backfill(run, catalog, spark, name, "y", udf="tests.spark.functions:doubled", inputs=["x"], type="int64")
    assert target.dataset().schema.names == (["id", "x", "y"] if canceled else ["id", "x"])


def test_backfill_that_fails_keeps_a_column_with_values_and_one_that_was_there(
    spark: SparkSession, catalog: CatalogConnection, target: Table, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target.dataset().add_columns(pa.field("there", pa.int64()))
    with pytest.raises(InvalidInputError, match="no idea"):
        backfill(
            LocalRun(), catalog, spark, name, "there", udf="tests.spark.functions:failing", inputs=["x"], type="int64"
        )
    assert target.dataset().schema.names == ["id", "x", "there"]
    monkeypatch.setattr(refresh, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(backfilling, "ROWS_PER_TASK", 1)
    run = LocalRun()
    with pytest.raises(InvalidInputError, match="too many"):
        backfill(run, catalog, spark, name, "some", udf="tests.spark.functions:few", inputs=["id"], type="int64")
    assert set(target.dataset().to_table()["some"].drop_null().to_pylist()) >= set(range(250))
    assert int(run.figures["version"]) == target.dataset().version


def test_backfill_where_leaves_other_rows_and_later_the_rest(
    spark: SparkSession, catalog: CatalogConnection, target: Table, name: str, tmp_path: Path
) -> None:
    counting = Counting(tmp_path)
    declare(target, counting)
    figures = backfill(LocalRun(), catalog, spark, name, "y", where="id >= 300 and id < 600")
    assert figures["rows"] == counting.seen() == 300
    assert values(target) == dict.fromkeys(range(1000)) | doubles(range(300, 600))
    assert backfill(LocalRun(), catalog, spark, name, "y", where="id = 310")["rows"] == 0
    assert backfill(LocalRun(), catalog, spark, name, "y")["rows"] == counting.seen() == 700
    assert values(target) == doubles(range(1000))


def test_backfill_of_an_expression_needs_no_code(
    spark: SparkSession, catalog: CatalogConnection, target: Table, name: str
) -> None:
    target.dataset().add_columns(pa.field("e", pa.int64(), metadata=ExpressionDeclaration("x * 2").metadata()))
    target.dataset().delete("id = 5")
    assert backfill(LocalRun(), catalog, spark, name, "e")["rows"] == 999
    assert values(target, "e") == doubles(range(5), range(6, 1000))


def test_backfill_of_vectors_and_lists_keeps_their_types(
    spark: SparkSession, catalog: CatalogConnection, target: Table, name: str, tmp_path: Path
) -> None:
    code = tmp_path / "code.py"
    code.write_text(
        "import pyarrow as pa\n"
        "def vector(rows):\n"
        "    x = rows.column(0).to_pylist()\n"
        "    return pa.array([[float(i), 0.5] for i in x], pa.list_(pa.float32(), 2))\n"
        "def words(rows):\n"
        "    return pa.array([[str(i)] * 2 for i in rows.column(0).to_pylist()], pa.list_(pa.string()))\n"
    )
    for column, kind in (("vector", "float32[2]"), ("words", "list<string>")):
        backfill(LocalRun(), catalog, spark, name, column, udf=f"{code}:{column}", inputs=["id"], type=kind)
    columns = target.dataset().to_table()
    assert columns.schema.field("vector").type == pa.list_(pa.float32(), 2)
    assert np.array_equal(columns["vector"].to_pylist(), [[float(number), 0.5] for number in columns["id"].to_pylist()])
    assert columns["words"].to_pylist() == [[str(number)] * 2 for number in columns["id"].to_pylist()]


def test_backfill_of_a_branch_fills_the_branch_alone_and_resumes(
    spark: SparkSession,
    catalog: CatalogConnection,
    target: Table,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(refresh, "CHECKPOINT_SECONDS", 0)
    counting = Counting(tmp_path)
    declare(target, counting)
    target.dataset().create_branch("dev")
    branch = target.dataset(branch="dev")
    branch.insert(rows(range(1000, 1100)))
    branch.delete("id % 7 = 0")
    run, commit = LocalRun(), JobTable.commit

    def last(*arguments: Any, **options: Any) -> int:
        version = commit(*arguments, **options)
        run.canceled.set()
        return version

    monkeypatch.setattr(JobTable, "commit", last)
    with pytest.raises(RunCanceledError):
        backfill(run, catalog, spark, name, "y", branch="dev")
    monkeypatch.setattr(JobTable, "commit", commit)
    before = counting.seen()
    run.canceled.clear()
    figures = backfill(run, catalog, spark, name, "y", branch="dev", concurrency=1)
    expected = {number: 20 * number for number in range(1100) if number % 7}
    assert before and figures["rows"] == len(expected)  # of both drivers
    assert before + counting.seen() <= len(expected) + 3 * 250  # what was written and not committed is computed again
    columns = target.dataset(branch="dev").to_table().to_pydict()
    assert dict(zip(columns["id"], columns["y"], strict=True)) == expected
    assert values(target) == dict.fromkeys(range(1000))
    figures = backfill(LocalRun(), catalog, spark, name, "y")
    assert figures["rows"] == 1000 and values(target) == doubles(range(1000))


@pytest.mark.parametrize("writer", ["append", "delete", "update", "merge", "compact", "column"])
def test_backfill_overtaken_by_another_writer_is_rebased(
    spark: SparkSession,
    catalog: CatalogConnection,
    target: Table,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    writer: str,
) -> None:
    counting = Counting(tmp_path)
    declare(target, counting)
    writers: dict[str, Callable[[lance.LanceDataset], Any]] = {
        "append": lambda dataset: dataset.insert(rows([5000])),
        "delete": lambda dataset: dataset.delete("id = 3"),
        "update": lambda dataset: dataset.update({"x": "7"}, where="id = 3"),
        "merge": lambda dataset: (
            dataset.merge_insert("id")
            .when_matched_update_all()
            .when_not_matched_insert_all()
            .execute(pa.table({"id": [3, 5000], "x": [7, 7]}))
        ),
        "compact": lambda dataset: dataset.optimize.compact_files(),
        "column": lambda dataset: dataset.add_columns({"other": "x + 1"}),
    }
    writes = iter([writers[writer]])
    commit = JobTable.commit

    def late(*arguments: Any, **options: Any) -> int:
        for write in writes:
            write(target.dataset())
        return commit(*arguments, **options)

    monkeypatch.setattr(JobTable, "commit", late)
    backfill(LocalRun(), catalog, spark, name, "y")
    expected = doubles(range(1000))
    changes: dict[str, dict[int, int | None]] = {
        "append": {5000: None},  # came in after the beginning: the next run's
        "update": {3: 14},
        "merge": {3: 14, 5000: 14},
    }
    expected |= changes.get(writer, {})
    if writer == "delete":
        del expected[3]
    assert values(target) == expected
    assert counting.seen() == {"compact": 2000, "update": 1001, "merge": 1002}.get(writer, 1000)


def test_backfill_whose_worker_is_killed_fills_all(
    spark: SparkSession, catalog: CatalogConnection, target: Table, name: str, tmp_path: Path
) -> None:
    declare(target, Counting(tmp_path, kill=True))
    backfill(LocalRun(), catalog, spark, name, "y")
    assert (tmp_path / "killed").exists()
    assert values(target) == doubles(range(1000))
    target.dataset().validate()


def test_backfill_canceled_keeps_its_checkpoints(
    spark: SparkSession,
    catalog: CatalogConnection,
    target: Table,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tiltyard.column_refresh.refresh.CHECKPOINT_SECONDS", 0)
    counting = Counting(tmp_path)
    declare(target, counting)
    run = LocalRun()
    commit = JobTable.commit

    def last(*arguments: Any, **options: Any) -> int:
        version = commit(*arguments, **options)
        run.canceled.set()
        return version

    monkeypatch.setattr(JobTable, "commit", last)
    with pytest.raises(RunCanceledError):
        backfill(run, catalog, spark, name, "y")
    monkeypatch.setattr(JobTable, "commit", commit)
    filled = sum(value is not None for value in values(target).values())
    assert filled in (250, 500)
    wait_for_idle_executors(spark)  # a task that the canceled run had begun still counts
    counting.seen()
    assert backfill(LocalRun(), catalog, spark, name, "y")["rows"] == counting.seen() == 1000 - filled
    assert values(target) == doubles(range(1000))


def test_backfill_that_cannot_be_says_why(
    spark: SparkSession, catalog: CatalogConnection, target: Table, name: str
) -> None:
    failing = "tests.spark.functions:failing"
    with pytest.raises(InvalidInputError, match="ValueError: no idea"):
        backfill(LocalRun(), catalog, spark, name, "y", udf=failing, inputs=["x"], type="int64")
    with pytest.raises(InvalidInputError, match="does not declare how"):
        backfill(LocalRun(), catalog, spark, name, "x")
    with pytest.raises(TableColumnNotFoundError, match="no column 'nothing'"):
        backfill(LocalRun(), catalog, spark, name, "nothing")
    with pytest.raises(TableBranchNotFoundError, match="other"):
        backfill(LocalRun(), catalog, spark, name, "y", branch="other")
    with pytest.raises(InvalidInputError, match="not a condition"):
        backfill(LocalRun(), catalog, spark, name, "y", udf=f"{functions.__name__}:doubled", inputs=["x"], where="a(")
