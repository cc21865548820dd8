"""The write job, by each of its sources and runners: the same checks, rejects, lineage, keys, figures and resuming."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lance_namespace.errors import InvalidInputError, TableNotFoundError

from tiltyard.change_feed.table_history import read_transaction
from tiltyard.model.lineage import CommitLineage, LineageSource
from tiltyard.model.refusals import RefusedError
from tiltyard.pipeline.catalog_client import CatalogConnection, Table, table
from tiltyard.pipeline.ingest.job import ingest, upsert
from tiltyard.pipeline.plans.job import pipeline
from tiltyard.pipeline.runs import LocalRun, RunCanceledError
from tiltyard.pipeline.session import LazySession
from tiltyard.pipeline.sources import inspection
from tiltyard.pipeline.upsert import plan
from tiltyard.pipeline.writing import row_sources
from tiltyard.pipeline.writing.commit import JobTable
from tiltyard.pipeline.writing.options import WriteOptions
from tiltyard.pipeline.writing.row_sources import FrameRows, StreamRows
from tiltyard.pipeline.writing.write_job import RowSource, write_source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OLD = pa.table({"id": [1, 2, 3], "title": ["one", "two", "three"]})
FIGURES = {"rows", "rejected", "fragments", "bytes", "version"}
SOURCES = {
    "files": "file",
    "files in tasks": "file",
    "csv": "file",
    "frame": "memory",
    "stream": "memory",
}
"""All sources, each with what its rows are in."""


@dataclass(slots=True)
class Writer:
    """Writes rows to the table by one of the sources, as an ingest, or with `on` as an upsert."""

    source: str
    target: Table
    spark: Callable[[], SparkSession]
    folder: Path
    files: int = field(default=0)

    def __call__(self, rows: pa.Table, run: LocalRun | None = None, **options: Any) -> Mapping[str, Any]:
        run, on = run or LocalRun(), options.pop("on", None)
        mode = options.pop("mode", "append")
        if SOURCES[self.source] == "file":
            path, session = self._write_file(rows), LazySession(self.spark)
            if on is not None:
                return upsert(run, self.target.connection, session, path, str(self.target), on=on, **options)
            return ingest(run, self.target.connection, session, path, str(self.target), mode=mode, **options)
        opened = self._open(rows)
        return write_source(run, opened, self.target, WriteOptions.of(options, mode, on), "upsert" if on else "ingest")

    def _write_file(self, rows: pa.Table) -> str:
        self.files += 1
        path = self.folder / f"rows-{self.files}.{'csv' if self.source == 'csv' else 'parquet'}"
        if self.source == "csv":
            pa.csv.write_csv(rows, path)
        else:
            pq.write_table(rows, path)
        return str(path)

    def _open(self, rows: pa.Table) -> RowSource:
        made_from = (LineageSource("memory:test"),)
        if self.source == "frame":
            frame, naive = self.spark().createDataFrame(rows), pa.timestamp("us")
            times = [column.name for column in rows.schema if column.type == naive]
            frame = frame.withColumns({name: frame[name].cast("timestamp_ntz") for name in times})
            return FrameRows(made_from, frame)
        return StreamRows(made_from, rows.to_reader(), self.spark)

    def written(self) -> list[dict[str, Any]]:
        """Return all rows, by their keys."""
        return sorted(self.target.dataset().to_table().to_pylist(), key=lambda row: (row["id"] is None, row["id"]))

    def data_files(self) -> set[str]:
        """Return the data files in the table's folder."""
        return {file.name for file in (Path(self.target.location().uri) / "data").iterdir()}


@pytest.fixture(params=SOURCES)
def write(
    request: pytest.FixtureRequest,
    catalog: CatalogConnection,
    fresh: Callable[[str], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Writer:
    """Return a writer to a table that does not exist yet; Spark starts for the sources alone that need it."""
    if request.param == "files in tasks":
        monkeypatch.setattr(row_sources, "MAX_DRIVER_BYTES", 0)
        monkeypatch.setattr(plan, "MAX_DRIVER_ROWS", 0)
    return Writer(request.param, table(catalog, fresh("written")), lambda: request.getfixturevalue("spark"), tmp_path)


@pytest.fixture(params=["ingest", "upsert"])
def key(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return the options of an append, and of an upsert."""
    return {"on": ["id"]} if request.param == "upsert" else {}


def rejects(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in folder.iterdir() for line in file.read_text().splitlines()]


def test_write_has_the_same_figures_and_lineage_by_each_source(write: Writer, key: dict[str, Any]) -> None:
    made = write(OLD, mode="create")
    assert made.keys() - {"guessed"} == FIGURES and (made["rows"], made["rejected"], made["version"]) == (3, 0, 1)
    more = write(pa.table({"id": [3, 4], "title": ["new", "four"]}), **key)
    assert more.keys() - {"guessed"} == FIGURES | ({"updated", "inserted", "replaced"} if key else set())
    assert (more["rows"], more["fragments"]) == (2, len(write.data_files()) - made["fragments"])
    assert [row["id"] for row in write.written()] == ([1, 2, 3, 4] if key else [1, 2, 3, 3, 4])
    dataset = write.target.dataset()
    transaction = read_transaction(dataset, int(dataset.version))
    lineage = CommitLineage.from_properties(transaction and transaction.transaction_properties)
    assert lineage is not None and lineage.kind == ("upsert" if key else "ingest")
    [source] = lineage.sources
    assert source.name == "memory:test" if SOURCES[write.source] == "memory" else write.folder.name in source.name


def test_write_sets_rows_aside_that_do_not_fit(write: Writer, key: dict[str, Any], tmp_path: Path) -> None:
    rows = pa.table({"id": ["2", "x", "5"], "title": ["two", "no number", "five"]})
    with pytest.raises(InvalidInputError, match="A row does not fit"):
        write(rows, mode="create", cast={"id": "int64"})
    with pytest.raises(TableNotFoundError):
        write.target.describe()
    write(OLD, mode="create")
    options = {"cast": {"id": "int64"}, **key}
    files = write.data_files()
    with pytest.raises(InvalidInputError, match=r"A row does not fit: .*no number.*\(--rejects\)"):
        write(rows, **options)
    assert write.written() == OLD.to_pylist() and write.data_files() == files
    figures = write(rows, rejects=str(tmp_path / "bad"), checks=["rejected == 1"], **options)
    assert (figures["rows"], figures["rejected"]) == (2, 1)
    [rejected] = rejects(tmp_path / "bad")
    assert "no number" in str(rejected["row"]) and "id" in rejected["reason"]


def test_write_that_fails_a_check_publishes_nothing_and_leaves_no_file(write: Writer, key: dict[str, Any]) -> None:
    write(OLD, mode="create")
    files, run = write.data_files(), LocalRun()
    rows = pa.table({"id": [4, 5], "title": ["two", "five"]})
    checks = [
        "rows >= 3",
        "unique(title)",
        "unique(id, title)",
        "not_null(id)",
        "warn: in_set(title, five)",
        "between(id, 0, 4)",
    ]
    failed = r"rows >= 3: 2 rows; between\(id, 0, 4\): 1 rows are not; unique\(title\): 1 keys are there more than once"
    with pytest.raises(InvalidInputError, match=rf"Nothing was published: {failed}"):
        write(rows, run, checks=checks, **key)
    passed = {entry["check"]: entry["passed"] for entry in json.loads(run.figures["checks"])}
    assert passed == {
        "rows >= 3": False,
        "unique(title)": False,
        "unique(id, title)": True,
        "not_null(id)": True,
        "warn: in_set(title, five)": False,
        "between(id, 0, 4)": False,
    }
    assert write.written() == OLD.to_pylist() and write.data_files() == files
    assert json.loads(write(rows, run, checks=["warn: rows > 9", "distribution(id, 0.5)"], **key)["checks"])[0]["found"]


def test_write_of_keys_that_cannot_be_changes_nothing(write: Writer, tmp_path: Path) -> None:
    write(OLD, mode="create")
    files = write.data_files()
    for rows, reason in (
        (pa.table({"title": ["a"]}), "no column 'id' of the table"),
        (pa.table({"id": [1, 1], "title": ["a", "b"]}), "a key may be there once"),
        (pa.table({"id": pa.array([1, None]), "title": ["a", "b"]}), "'id' is null in 1 rows"),
    ):
        with pytest.raises(InvalidInputError, match=reason):
            write(rows, on=["id"])
    with pytest.raises(InvalidInputError, match="no column 'nothing'"):
        write(OLD, on=["nothing"])
    assert write.written() == OLD.to_pylist() and write.data_files() == files
    figures = write(rows, on=["id"], rejects=str(tmp_path / "bad"))
    assert (figures["updated"], figures["rejected"]) == (1, 1)
    assert [entry["reason"] for entry in rejects(tmp_path / "bad") if "key 'id' is null" in entry["reason"]]
    with pytest.raises(TableNotFoundError, match="none"):
        Writer(write.source, table(write.target.connection, "none"), write.spark, tmp_path)(OLD, on=["id"])


def test_upsert_checks_the_rows_that_the_table_has_afterwards(write: Writer) -> None:
    write(OLD, mode="create")
    swapped = pa.table({"id": [1, 2, 4], "title": ["two", "one", "four"]})
    assert write(swapped, on=["id"], checks=["unique(id)", "unique(title)"])["inserted"] == 1
    with pytest.raises(InvalidInputError, match=r"unique\(title\): 1 keys"):
        write(pa.table({"id": [1], "title": ["three"]}), on=["id"], checks=["unique(title)"])


def test_write_that_an_earlier_driver_has_committed_is_found(write: Writer, key: dict[str, Any]) -> None:
    write(OLD, mode="create")
    rows, run = pa.table({"id": [3, 4], "title": ["new", "four"]}), LocalRun()
    first = write(rows, run, checks=["rows == 2"], **key)
    files = write.data_files()
    assert write(rows, LocalRun(run.id, _checkpoints=dict(run.checkpoints())), checks=["rows == 2"], **key) == first
    assert (write.target.latest_version(), write.data_files()) == (2, files)
    if SOURCES[write.source] == "file":  # a driver of an earlier release kept no figures: the source may have changed
        kept = {name: text for name, text in run.checkpoints().items() if name != "figures"}
        found = write(rows, LocalRun(run.id, _checkpoints=kept), **key)
        assert (found["rows"], found["version"], write.data_files()) == (2, 2, files)


def test_write_of_a_time_without_a_zone_into_one_with_a_zone_is_refused(write: Writer, key: dict[str, Any]) -> None:
    there = pa.table({"id": [1], "at": pa.array([0], pa.timestamp("us", "UTC"))})
    without = pa.table({"id": [2], "at": pa.array([0], pa.timestamp("us"))})
    write(there, mode="create", cast={"at": "timestamp[us, UTC]"})
    reason = "expected a zone offset" if write.source == "csv" else "a time without a zone stands for UTC if"
    with pytest.raises(InvalidInputError, match=reason):
        write(without, **key)
    if write.source != "csv":  # whose text has no zone, whatever a cast says
        assert write(without, cast={"at": "timestamp[us, UTC]"}, **key)["version"] == 2


@pytest.mark.parametrize("limit", [0, 1 << 20], ids=["tasks", "threads"])
def test_csv_with_an_escape_is_read_by_both_runners_of_jobs_and_by_plans(
    catalog: CatalogConnection,
    fresh: Callable[[str], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    spark: SparkSession,
    limit: int,
) -> None:
    monkeypatch.setattr(row_sources, "MAX_DRIVER_BYTES", limit)
    monkeypatch.setattr(inspection, "RANGE_BYTES", 1000)
    name, file = fresh("escaped"), tmp_path / "rows.csv"
    texts = [f'{number}, "a"\\\nb' for number in range(200)]
    escaped = [re.sub(r'([\\,"\n])', r"\\\1", text) for text in texts]
    file.write_text("id,text\n" + "".join(f"{number},{text}\n" for number, text in enumerate(escaped)))
    ingest(LocalRun(), catalog, spark, str(file), name, escape="\\")
    figures = upsert(LocalRun(), catalog, spark, str(file), name, on=["id"], escape="\\")
    assert (figures["updated"], figures["inserted"]) == (200, 0)
    planned = fresh("planned")
    content = {"tables": {planned: {"files": str(file), "escape": "\\"}}}
    pipeline(LocalRun(), catalog, spark, json.dumps(content))
    for each in (name, planned):
        assert sorted(table(catalog, each).dataset().to_table()["text"].to_pylist()) == sorted(texts)


def test_write_that_is_canceled_leaves_nothing_visible(write: Writer, key: dict[str, Any]) -> None:
    run = LocalRun()
    run.canceled.set()
    with pytest.raises(RunCanceledError):
        write(OLD, run, mode="create")
    with pytest.raises(TableNotFoundError):
        write.target.describe()


def test_write_that_is_canceled_once_it_is_committed_keeps_its_rows(
    write: Writer, key: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(OLD, mode="create")
    run, commit = LocalRun(), JobTable.commit

    def commit_then_cancel(*arguments: Any, **options: Any) -> int:
        version = commit(*arguments, **options)
        run.canceled.set()
        return version

    monkeypatch.setattr(JobTable, "commit", commit_then_cancel)
    assert write(pa.table({"id": [4], "title": ["four"]}), run, **key)["version"] == 2
    assert [row["id"] for row in write.written()] == [1, 2, 3, 4]


def test_upsert_without_a_key_is_refused(write: Writer) -> None:
    write(OLD, mode="create")
    with pytest.raises((InvalidInputError, RefusedError), match="name at least one column"):
        write(OLD, on=[])
    assert write.written() == OLD.to_pylist()
