"""Spark's Python workers import no namespace client for a task: that takes them a second."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.spark.task_payloads import Sent, clients_imported, recorded
from tiltyard.pipeline.catalog_client import CatalogConnection, table
from tiltyard.pipeline.delete import job as deleting
from tiltyard.pipeline.indexes import segments
from tiltyard.pipeline.jobs import find_job
from tiltyard.pipeline.optimize import job as optimizing
from tiltyard.pipeline.runs import LocalRun
from tiltyard.pipeline.upsert import plan as upserting
from tiltyard.pipeline.writing import row_sources

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    """Record what Spark is sent from now on: functions and their payloads. Everything runs in tasks."""
    payloads = recorded(monkeypatch)
    for module, limits in (
        (row_sources, ("MAX_DRIVER_BYTES",)),
        (upserting, ("MAX_DRIVER_ROWS",)),
        (deleting, ("MAX_DRIVER_ROWS",)),
        (segments, ("MAX_DRIVER_ROWS",)),
        (optimizing, ("MAX_DRIVER_BYTES", "MAX_DRIVER_ROWS")),
    ):
        for limit in limits:
            monkeypatch.setattr(module, limit, 0)
    return payloads


def test_tasks_of_jobs_that_are_sent_to_workers_import_no_namespace_client(
    spark: SparkSession,
    catalog: CatalogConnection,
    fresh: Callable[[str], str],
    tmp_path: Path,
    sent: Sent,
) -> None:
    name, source, out = fresh("light"), str(tmp_path / "source.parquet"), str(tmp_path / "out")
    pq.write_table(pa.table({"id": range(600), "v": [float(n) for n in range(600)]}), source)
    target = table(catalog, name)
    rows = pq.read_table(source)
    lance.write_dataset(rows.slice(0, 500), namespace_client=target.client, table_id=target.id, max_rows_per_file=250)
    jobs: list[tuple[str, dict[str, Any]]] = [
        ("ingest", {"source": source, "table": fresh("light")}),
        ("optimize", {"table": name, "indexes": False}),
        ("upsert", {"source": source, "table": name, "on": ["id"]}),
        ("delete", {"table": name, "where": "id >= 550"}),
        ("backfill", {"table": name, "column": "w", "udf": "tests.spark.functions:doubled", "inputs": ["v"],
                      "type": "double"}),
        ("deduplicate", {"table": name, "on": "id", "method": "exact", "id": "id"}),
        ("index", {"table": name, "column": "id", "type": "BTREE"}),
        ("export", {"table": name, "destination": out}),
    ]  # fmt: skip
    for job, arguments in jobs:
        before = len(sent)
        registered = find_job(job)
        registered.function(LocalRun(), catalog, spark, **registered.validate(arguments))
        assert len(sent) > before, f"{job} ran no tasks"
    assert clients_imported(sent, tmp_path) == ["[]"] * len(sent)
