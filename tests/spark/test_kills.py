"""Real jobs in processes of their own, and SIGKILL in their midst: of the server both talk to, and of a driver."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from tests.services.forked_process import ForkedProcess
from tests.services.server import ServerProcess
from tests.spark.job_processes import job_commands, transaction, wait_for
from tiltyard.cli import main
from tiltyard.pipeline.catalog_client import connection, table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CODE = """
import time
from pathlib import Path

FOLDER = Path({folder!r})

def held(rows):
    with (FOLDER / "rows").open("a") as told:
        told.write(str(rows["id"][0].as_py()) + "\\n")
    while rows["id"][0].as_py() >= 500 and not (FOLDER / "go").exists():
        time.sleep(0.02)
    return rows

def doubled(rows):
    (FOLDER / "filling").touch()
    while not (FOLDER / "go").exists():
        time.sleep(0.02)
    import pyarrow.compute as pc
    return pc.multiply(rows.column(0), 2)
"""
CONF = {"spark.driver.memory": "512m", "spark.ui.enabled": "false"}
SPARK = ["--master", "local[2]", *(part for name, value in CONF.items() for part in ("--conf", f"{name}={value}"))]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server that is killed."""
    running = ServerProcess(tmp_path / "root")
    yield running
    running.stop()


@pytest.fixture
def command(server: ServerProcess, environ: dict[str, str]) -> Iterator[Callable[..., ForkedProcess]]:
    """Starts `tiltyard job …` on the server, with a Spark of its own."""
    with job_commands(server.url, environ, *SPARK) as start:
        yield start


def rows(ids: range, value: str) -> pa.Table:
    return pa.table({"id": ids, "v": [f"{value} {number}" for number in ids]})


def stored(server: ServerProcess, name: str) -> pa.Table:
    """A table's contents, by plain pylance."""
    return lance.dataset(table(server.url, name).location().uri).to_table().sort_by("id")


def running(server: ServerProcess, name: str) -> str:
    """The id of the job of this name."""
    [job] = connection(server.url).caller().call("ListJobs", name=name, status="Running")["jobs"]
    return str(job["id"])


@pytest.mark.extended
@pytest.mark.timeout(600)  # two JVMs start, beside that of the tests
def test_upsert_and_backfill_whose_server_is_killed_and_a_driver_leave_each_row_once(
    spark: SparkSession,
    server: ServerProcess,
    command: Callable[..., ForkedProcess],
    tmp_path: Path,
) -> None:
    for name in ("shelf", "films"):
        target = table(server.url, name)
        old = rows(range(900, 1100), "old") if name == "shelf" else rows(range(1000), "film")
        lance.write_dataset(old, namespace_client=target.client, table_id=target.id, max_rows_per_file=250)
    source, code = tmp_path / "source", tmp_path / "own.py"
    source.mkdir()
    code.write_text(CODE.format(folder=str(tmp_path)))
    for part in range(2):
        pq.write_table(rows(range(part * 500, part * 500 + 500), "new"), source / f"{part}.parquet")

    upserting = command("upsert", str(source), "shelf", "--on", "id", "--udf", f"{code}:held")
    filling = command(
        "backfill", "films", "twice", "--udf", f"{code}:doubled", "--inputs", "id", "--type", "int64"
    )  # each holds in mid-job
    counted = tmp_path / "rows"
    wait_for(lambda: counted.exists() and "500" in counted.read_text() and (tmp_path / "filling").exists(), 200)
    upsert_id, backfill_id = running(server, "upsert"), running(server, "backfill")
    wait_for(lambda: connection(server.url).caller().call("ListJobParts", id=[upsert_id])["parts"])
    server.kill()
    upserting.kill()
    server.start()
    (tmp_path / "go").touch()

    resumed = CliRunner().invoke(main, ["job", "resume", upsert_id, "--uri", server.url], catch_exceptions=False)
    assert resumed.exit_code == 0 and "rows: 1000" in resumed.output, resumed.output
    out, err = filling.communicate(timeout=120)
    assert filling.returncode == 0 and "rows: 1000" in out, err

    assert stored(server, "shelf") == pa.concat_tables([rows(range(1000), "new"), rows(range(1000, 1100), "old")])
    twice = pa.array([2 * number for number in range(1000)], pa.int64())
    assert stored(server, "films") == rows(range(1000), "film").append_column("twice", twice)
    assert [transaction(server, job_id).status for job_id in (upsert_id, backfill_id)] == ["Succeeded"] * 2
    assert table(server.url, "shelf").dataset().version == 2
