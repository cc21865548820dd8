"""Runs that failed, were stopped, or lost a worker, and go on: what is committed in the end is all there, once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lance_namespace.errors import InvalidInputError

from tiltyard.pipeline.catalog_client import Table
from tiltyard.pipeline.catalog_client import table as table_of
from tiltyard.pipeline.ingest.job import ingest, upsert
from tiltyard.pipeline.runs import LocalRun, RunCanceledError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tiltyard.pipeline.table_location import CatalogConnection

pytestmark = pytest.mark.extended

Fresh = Callable[[str], str]
ROWS, FIRST = 400, 250
"""All rows, and those of the first file: the larger one, so that each file is a task of its own."""

CODE = """
import os, signal, time
from pathlib import Path

import pyarrow as pa

FOLDER = Path({folder!r})

def late(rows):
    if rows["id"][0].as_py() >= {second} and not (FOLDER / "mended").exists():
        while not (FOLDER / "kept").exists():
            time.sleep(0.01)
        return pa.record_batch([["not yet"] * rows.num_rows, rows["v"]], names=["id", "v"])
    return rows

def waiting(rows):
    while rows["id"][0].as_py() >= {second} and not (FOLDER / "mended").exists():
        time.sleep(0.01)
    return rows

def deadly(rows):
    if rows["id"][0].as_py() >= {second} and not (FOLDER / "killed").exists():
        (FOLDER / "killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return rows
"""


@dataclass(slots=True)
class KeepingRun(LocalRun):
    """A run that records when a share is saved, and is then canceled if `stops`."""

    folder: Path = Path()
    stops: bool = False

    def save_checkpoint(self, key: str, value: str) -> None:
        super(KeepingRun, self).save_checkpoint(key, value)
        if key.startswith("share-"):
            (self.folder / "kept").touch()
            if self.stops:
                self.canceled.set()


def rows(first: int, value: str) -> pa.Table:
    ids = range(first, first + ROWS)
    return pa.table({"id": ids, "v": [f"{value} {number}" for number in ids]})


@pytest.fixture(params=["ingest", "upsert"])
def work(
    request: pytest.FixtureRequest, spark: SparkSession, catalog: CatalogConnection, fresh: Fresh, tmp_path: Path
) -> Callable[..., Any]:
    """Bring the rows of two files, a task each, into a table through a function; `work.table` and `work.expected`."""
    target = table_of(catalog, fresh(request.param))
    source, code = tmp_path / "source", tmp_path / "own.py"
    source.mkdir()
    for part, new in enumerate([rows(0, "new").slice(0, FIRST), rows(0, "new").slice(FIRST)]):
        pq.write_table(new, source / f"{part}.parquet")
    code.write_text(CODE.format(folder=str(tmp_path), second=FIRST))
    job: Callable[..., Any] = ingest
    options: dict[str, Any] = {}
    if request.param == "upsert":
        job, options = upsert, {"on": ["id"]}
        lance.write_dataset(rows(ROWS // 2, "old"), namespace_client=target.client, table_id=target.id)

    def call(run: LocalRun, function: str) -> Any:
        return job(run, catalog, spark, str(source), str(target), udf=f"{code}:{function}", **options)

    unchanged = [rows(ROWS // 2, "old").slice(ROWS // 2)] if request.param == "upsert" else []
    call.expected = pa.concat_tables([rows(0, "new"), *unchanged])  # type: ignore[attr-defined]  # a fixture of three parts
    call.table = target  # type: ignore[attr-defined]  # the same
    return call


def check(work: Any) -> None:
    """All rows are there, once, by plain pylance; every file that a version names is one that can be read."""
    target: Table = work.table
    dataset = lance.dataset(target.location().uri)
    dataset.validate()
    assert dataset.to_table().sort_by("id") == work.expected


def test_run_that_failed_and_is_resumed_commits_no_file_that_was_deleted(work: Any, tmp_path: Path) -> None:
    run = KeepingRun(folder=tmp_path)
    with pytest.raises(InvalidInputError, match="not yet"):
        work(run, "late")
    assert (tmp_path / "kept").exists(), "the first share was kept before the second failed"
    (tmp_path / "mended").touch()
    assert work(run, "late")["rows"] == ROWS
    check(work)


def test_run_that_was_stopped_and_is_resumed_goes_on_with_its_files(work: Any, tmp_path: Path) -> None:
    run = KeepingRun(folder=tmp_path, stops=True)
    with pytest.raises(RunCanceledError):
        work(run, "waiting")
    (tmp_path / "mended").touch()
    # As the next driver has it: the same run, what it kept, and no cancel.
    resumed = LocalRun(run.id, _checkpoints=dict(run.checkpoints()))
    checkpoints = [key for key in run.checkpoints() if key.startswith("share-")]
    assert work(resumed, "waiting")["rows"] == ROWS
    assert {key: resumed.checkpoints()[key] for key in checkpoints} == {
        key: run.checkpoints()[key] for key in checkpoints
    }
    check(work)


def test_run_whose_worker_is_killed_brings_each_row_once(work: Any, tmp_path: Path) -> None:
    assert work(LocalRun(), "deadly")["rows"] == ROWS
    assert (tmp_path / "killed").exists()
    check(work)
