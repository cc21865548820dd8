"""What Spark's Python workers have to import for a task: never the namespace client, which takes them a second."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import cloudpickle

from tiltyard.pipeline import building, tasks
from tiltyard.pipeline import delete as deleting
from tiltyard.pipeline import optimize as optimizing
from tiltyard.pipeline import upsert as upserting
from tiltyard.pipeline.connecting import Connection, table
from tiltyard.pipeline.jobs import find_job
from tiltyard.pipeline.runs import LocalRun

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOADING = """
import pickle, sys
for function, payloads in pickle.load(open(sys.argv[1], "rb")):
    pickle.loads(function)
    for payload in payloads:
        pickle.loads(payload)
    print(sorted(name for name in sys.modules if name.startswith("lance_namespace")))
"""
"""Loads what a worker is sent, in a process that has imported nothing yet."""


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bytes, tuple[bytes, ...]]]:
    """What Spark is sent from now on: functions and their payloads. Everything runs in tasks."""
    found: list[tuple[bytes, tuple[bytes, ...]]] = []
    made = tasks._partition

    def recorded(work: Any, payloads: tuple[bytes, ...]) -> Any:
        function = made(work, payloads)
        found.append((cloudpickle.dumps(function), payloads))
        return function

    monkeypatch.setattr(tasks, "_partition", recorded)
    for module, limits in (
        (upserting, ("BYTES_IN_THE_DRIVER", "ROWS_IN_THE_DRIVER")),
        (deleting, ("ROWS_IN_THE_DRIVER",)),
        (building, ("ROWS_IN_THE_DRIVER",)),
        (optimizing, ("BYTES_IN_THE_DRIVER",)),
    ):
        for limit in limits:
            monkeypatch.setattr(module, limit, 0)
    return found


def test_tasks_of_jobs_that_are_sent_to_workers_import_no_namespace_client(
    spark: SparkSession,
    catalog: Connection,
    fresh: Callable[[str], str],
    tmp_path: Path,
    sent: list[tuple[bytes, tuple[bytes, ...]]],
) -> None:
    name, source, out = fresh("light"), str(tmp_path / "source.parquet"), str(tmp_path / "out")
    pq.write_table(pa.table({"id": range(600), "v": [float(n) for n in range(600)]}), source)
    found = table(catalog, name)
    rows = pq.read_table(source)
    lance.write_dataset(rows.slice(0, 500), namespace_client=found.client, table_id=found.id, max_rows_per_file=250)
    given: list[tuple[str, dict[str, Any]]] = [
        ("ingest", {"source": source, "table": fresh("light")}),
        ("optimize", {"table": name, "indexes": False}),
        ("upsert", {"source": source, "table": name, "on": ["id"]}),
        ("delete", {"table": name, "where": "id >= 550"}),
        ("backfill", {"table": name, "column": "w", "udf": "tests.spark.functions:doubled", "inputs": ["v"],
                      "type": "double"}),
        ("index", {"table": name, "column": "id", "type": "BTREE"}),
        ("export", {"table": name, "destination": out}),
    ]  # fmt: skip
    for job, arguments in given:
        before = len(sent)
        registered = find_job(job)
        registered.function(LocalRun(), catalog, spark, **registered.checked(arguments))
        assert len(sent) > before, f"{job} ran no tasks"
    dumped = tmp_path / "sent"
    dumped.write_bytes(cloudpickle.dumps(sent))
    told = subprocess.run([sys.executable, "-c", LOADING, dumped], capture_output=True, text=True, check=True)
    assert told.stdout.splitlines() == ["[]"] * len(sent)
