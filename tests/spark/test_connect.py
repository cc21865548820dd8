"""Spark Connect: the same jobs and the same data source, from a client that has no JVM."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.services.server import ServerProcess
from tests.services.spark_cluster import connect_server
from tiltyard.pipeline.catalog_client import table


def rows(ids: range, value: str) -> pa.Table:
    return pa.table({"id": ids, "v": [f"{value} {number}" for number in ids]})


def stored(url: str, name: str) -> pa.Table:
    """A table's contents, by plain pylance."""
    return lance.dataset(table(url, name).location().uri).to_table().sort_by("id")


def twice(ids: range, given: int) -> pa.Array:
    """The computed column: rows from `given` on have none yet."""
    return pa.array([2 * number if number < given else None for number in ids], pa.int64())


@pytest.mark.extended
@pytest.mark.timeout(600)  # a JVM starts, beside that of the tests
def test_jobs_and_data_source_through_spark_connect_are_the_same_rows(environ: dict[str, str], tmp_path: Path) -> None:
    pq.write_table(rows(range(100), "old"), tmp_path / "source.parquet", row_group_size=25)
    pq.write_table(rows(range(90, 120), "new"), tmp_path / "changed.parquet")
    server = ServerProcess(tmp_path / "served")
    with connect_server(environ) as remote:
        arguments = [remote, server.url, str(tmp_path / "source.parquet"), str(tmp_path / "changed.parquet")]
        client = subprocess.run(
            [sys.executable, "-m", "tests.spark.connect_client", *arguments],
            env={**os.environ, **environ, "JAVA_HOME": str(tmp_path / "no-java")},
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
        assert client.returncode == 0, client.stderr
    result = json.loads(client.stdout.splitlines()[-1])
    assert (result["connect"], result["slots"], result["rows"], result["count"]) == (True, 2, 100, 120)
    assert result["canceled_after"] < 20  # the tasks would sleep for 60
    films = pa.concat_tables([rows(range(90), "old"), rows(range(90, 120), "new")])
    assert stored(server.url, "films") == films.append_column("twice", twice(range(120), 90))
    few = rows(range(5), "old").append_column("twice", twice(range(5), 5)).to_pylist()
    few += [{"id": number + 5, "v": f"OLD {number}", "twice": 2 * number} for number in range(10)]
    assert stored(server.url, "few").to_pylist() == few
    server.stop()
