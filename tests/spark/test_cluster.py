"""Jobs on a standalone cluster, submitted to a server: nothing works only in `local` mode. Copies, kills, all compared.

One warm session for all: the tests of a file run in their order.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.services.jvm import LIGHT_EXECUTORS
from tests.services.server import ServerProcess
from tests.services.spark_cluster import spark_cluster
from tests.spark.cluster_functions import FOLDER, notes
from tests.spark.job_processes import children, wait_for
from tiltyard.pipeline.catalog_client import connection, table
from tiltyard.pipeline.driver.catalog_run import submit_job
from tiltyard.pipeline.jobs import find_job
from tiltyard.runtime.lease import LEASE_MS

ROWS, FILES = 3000, 6
DIMENSION = 600
"""Of vectors: each file is more than a MiB, and so a task of its own."""
CONF = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    **LIGHT_EXECUTORS,
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.task.duration.threshold": "2s",  # waves may have one task, which has no others to compare with
}

pytestmark = [pytest.mark.extended, pytest.mark.timeout(600)]  # JVMs start slowly where others work, too


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which functions log their executors."""
    return tmp_path_factory.mktemp("notes")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, environ: dict[str, str], folder: Path) -> Iterator[ServerProcess]:
    """A server whose jobs run on the cluster. What executors need is in the environment that they share."""
    shared = {**environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", FOLDER: str(folder)}
    settings = {"TILTYARD_SPARK_CONF": json.dumps(CONF), "TILTYARD_UDFS": "true"}
    with spark_cluster(tmp_path_factory.mktemp("cluster"), shared) as url:
        running = ServerProcess(tmp_path_factory.mktemp("root"), "--spark", url, environ={**shared, **settings})
        yield running
        running.stop(30)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rows, in files."""
    source_folder = tmp_path_factory.mktemp("source")
    for part in range(FILES):
        size = ROWS // FILES
        pq.write_table(rows().slice(part * size, size), source_folder / f"part{part}.parquet")
    return source_folder


def rows() -> pa.Table:
    vectors = np.random.default_rng(0).random(ROWS * DIMENSION, dtype=np.float32)
    texts = [f"word{number % 50} and more" for number in range(ROWS)]
    columns = {"id": range(ROWS), "x": [10 * number for number in range(ROWS)], "text": texts}
    vector = pa.FixedSizeListArray.from_arrays(pa.array(vectors), DIMENSION)
    return pa.table(columns).append_column("vector", vector)


def submit(server: ServerProcess, job: str, **arguments: object) -> str:
    """Submit a job; return its id."""
    return submit_job(connection(server.url).caller(), find_job(job), arguments).id


def describe_job(server: ServerProcess, job_id: str) -> dict[str, object]:
    """Describe a job."""
    job: dict[str, object] = connection(server.url).caller().call("DescribeJob", id=[job_id])["job"]
    return job


def succeeded(server: ServerProcess, job_id: str) -> dict[str, str]:
    """Wait for the success of a job; return its properties."""
    ended = ("Succeeded", "Failed", "Canceled")
    job = wait_for(lambda: (latest := describe_job(server, job_id))["status"] in ended and latest, 200)
    assert job["status"] == "Succeeded", job
    return dict(job["properties"])


def stored_rows(server: ServerProcess, name: str) -> pa.Table:
    """A table's contents, by plain pylance."""
    return lance.dataset(table(server.url, name).location().uri).to_table().sort_by("id")


def test_ingest_on_a_cluster_whose_task_is_speculated_brings_each_row_once(
    server: ServerProcess, folder: Path, source: Path
) -> None:
    code = "tests.spark.cluster_functions:passed_by"
    figures = succeeded(server, submit(server, "ingest", source=str(source), table="films", udf=code, task_mb=1))
    assert stored_rows(server, "films") == rows()
    assert figures["rows"] == str(ROWS) and figures["spark_application"].startswith("app-")
    first, second, *_ = [line.split(" ", 1)[0] for line in notes(folder) if line.endswith(" ingest 0")]
    assert first != second, "copies run on two hosts"
    assert all(host in first + second for host in ("/127.0.0.1/app-", "/127.0.0.2/app-"))


def test_backfill_on_a_cluster_whose_worker_is_killed_fills_every_row(server: ServerProcess, folder: Path) -> None:
    arguments = {
        "udf": "tests.spark.cluster_functions:doubled",
        "inputs": ["x"],
        "type": "int64",
        "resources": {"cpus": "1"},
    }
    figures = succeeded(server, submit(server, "backfill", table="films", column="y", **arguments))
    expected = rows().append_column("y", pa.array([20 * number for number in range(ROWS)], pa.int64()))
    assert stored_rows(server, "films") == expected
    assert figures["rows"] == str(ROWS)
    assert len([line for line in notes(folder) if line.endswith(" double")]) > 1


@pytest.mark.parametrize(
    ("column", "kind", "parameters"), [("text", "FTS", {}), ("vector", "IVF_FLAT", {"num_partitions": "4"})]
)
def test_index_on_a_cluster_answers_like_none(
    server: ServerProcess, column: str, kind: str, parameters: dict[str, str]
) -> None:
    vector = rows()["vector"][1234].as_py()
    search = {"full_text_query": "word7"} if kind == "FTS" else {"nearest": {"column": column, "q": vector, "k": 5}}
    nearest = table(server.url, "films").dataset().to_table(columns=["id"], **search) if kind != "FTS" else None
    word_ids = [number for number in range(ROWS) if number % 50 == 7]
    arguments = {"table": "films", "column": column, "type": kind, "parameters": parameters}
    figures = succeeded(server, submit(server, "index", **arguments))
    assert (figures["rows"], figures["spark_application"][:4]) == (str(ROWS), "app-")
    dataset = table(server.url, "films").dataset()
    assert [index.name for index in dataset.describe_indices() if index.name == f"{column}_idx"]
    if nearest is not None:
        search["nearest"]["nprobes"] = 4  # type: ignore[index]  # of a vector search
    ids = dataset.to_table(columns=["id"], **search)["id"].to_pylist()
    assert sorted(ids) == (word_ids if nearest is None else sorted(nearest["id"].to_pylist()))


@pytest.mark.parametrize("killed", ["driver", "server"])
def test_ingest_on_a_cluster_whose_driver_or_server_is_killed_brings_each_row_once(
    server: ServerProcess, folder: Path, source: Path, killed: str
) -> None:
    go = folder / "go"
    go.unlink(missing_ok=True)
    arguments = {"source": str(source), "table": killed, "udf": "tests.spark.cluster_functions:held", "task_mb": 1}
    job_id = submit(server, "ingest", **arguments)
    wait_for(lambda: int(describe_job(server, job_id)["properties"].get("tasks", 0)) >= 2, 120)  # type: ignore[attr-defined]  # a mapping
    if killed == "driver":
        [driver] = [
            pid for pid, command in children(server.process.pid) if "tiltyard.pipeline.driver.process" in command
        ]
        os.kill(driver, signal.SIGKILL)
        wait_for(lambda: describe_job(server, job_id)["attempts"] == 2, 120)
        attempts = (2,)
    else:
        started_at = time.monotonic()
        server.kill()
        server.start()
        # The driver goes on, unless its lease ended before there was a server again.
        attempts = (1,) if time.monotonic() - started_at < LEASE_MS / 2000 else (1, 2)
    go.touch()
    assert succeeded(server, job_id)["rows"] == str(ROWS)
    assert stored_rows(server, killed) == rows()
    assert table(server.url, killed).dataset().version == 1
    assert describe_job(server, job_id)["attempts"] in attempts
