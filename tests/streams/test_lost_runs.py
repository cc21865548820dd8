"""Runs of streams whose process was killed: Lost, adopted by no worker, and in no other job's way."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import urllib3
from lance_namespace.errors import ConcurrentModificationError

import tiltyard
from tests.services.forked_process import ForkedProcess, run_tiltyard, start_tiltyard
from tests.services.postgres import PostgresServer, postgres_server
from tests.services.server import ServerProcess
from tests.streams.conftest import Put
from tests.streams.test_stream_jobs import wait_until
from tiltyard.lake.errors import RunFailedError
from tiltyard.model.modes import TransactionStatus
from tiltyard.pipeline.driver.catalog_run import submit_job
from tiltyard.pipeline.jobs import find_job
from tiltyard.store import JobFilter, open_store

WORKER = "--spark", "local[1]"
"""The server drives submitted jobs; streams and small upserts start no JVM."""
SLOTS = {"TILTYARD_SPARK_JOBS": "1", "TILTYARD_STREAM_JOBS": "1"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path_factory.mktemp("lost"), *WORKER, environ=SLOTS)
    yield server
    server.stop()


def start_stream(server: ServerProcess, folder: Path, table: str) -> ForkedProcess:
    return start_tiltyard("job", "stream", "--uri", server.url, str(folder), table, "--batch-seconds", "0.05")


def tiltyard_job(server: ServerProcess, *arguments: str) -> str:
    done = run_tiltyard("job", *arguments, "--uri", server.url, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def kill_stream(server: ServerProcess, folder: Path, table: str) -> str:
    """Start a stream, and kill its process once it has committed; return the job's id."""
    calls = tiltyard.connect(server.url).catalog.caller()
    process = start_stream(server, folder, table)
    jobs: list[dict[str, object]] = []

    def has_rows() -> bool:
        jobs[:] = calls.call("ListJobs", name="stream", status="Running")["jobs"]
        return any(job["table"] == [table] and job["properties"].get("rows") == "1" for job in jobs)  # type: ignore[attr-defined]

    wait_until(has_rows)
    process.send_signal(signal.SIGKILL)
    process.wait(60)
    return next(str(job["id"]) for job in jobs if job["table"] == [table])


def expire_lease(database_url: str, job_id: str) -> None:
    """Let the lease of a run end now: its process is killed, and ten seconds are long for a test."""
    with open_store(database_url) as store:
        record = store.describe_transaction(job_id)
        assert record.lease_owner is not None and record.is_local
        store.heartbeat(job_id, record.lease_owner, 0)


def test_run_whose_process_was_killed_is_lost_and_adopted_by_no_worker(
    server: ServerProcess, folder: Path, put: Put
) -> None:
    put("1.jsonl", {"id": 1})
    lake = tiltyard.connect(server.url)
    calls = lake.catalog.caller()
    job_id = kill_stream(server, folder, "lost")
    with pytest.raises(ConcurrentModificationError, match=f"one run at a time.*{job_id}"):  # it may be alive
        submit_job(calls, find_job("stream"), {"source": str(folder), "table": "lost"})
    expire_lease(f"sqlite:///{server.root}/catalog.db", job_id)

    described = calls.call("DescribeJob", id=[job_id])["job"]
    assert (described["status"], described["attempts"]) == ("Lost", 1)
    assert f"tiltyard job resume {job_id}" in described["error"] and "run its command again" in described["error"]
    listed = tiltyard_job(server, "list", "--status", "lost")
    assert job_id in listed and "Lost" in listed
    assert job_id not in tiltyard_job(server, "list", "--status", "running")
    assert "status: Lost" in tiltyard_job(server, "show", job_id)
    assert lake.run(job_id).status == "Lost"
    with pytest.raises(RunFailedError, match="tiltyard job resume"):
        lake.run(job_id).wait(5)
    for page in ("console/jobs", f"console/job?id={job_id}"):
        assert ">lost<" in urllib3.request("GET", f"{server.url}/{page}").data.decode(), page
    for_clients = calls.call("DescribeJobState", job_id=job_id)
    assert (for_clients["job_state"], for_clients["failure"]["phase"]) == ("FAILED", "lost")
    assert calls.call("DescribeTransaction", id=[job_id])["status"] == "Failed"
    assert job_id not in urllib3.request("GET", f"{server.url}/metrics").data.decode()

    put("2.jsonl", {"id": 2})
    again = submit_job(calls, find_job("stream"), {"source": str(folder), "table": "lost", "available_now": True})
    lake.run(again.id).wait(120)  # the worker's only slot for streams is free
    assert sorted(lake.table("lost").to_arrow()["id"].to_pylist()) == [1, 2]
    after = calls.call("DescribeJob", id=[job_id])["job"]
    assert (after["status"], after["attempts"]) == ("Lost", 1)

    resumed = start_tiltyard("job", "resume", job_id, "--uri", server.url)
    put("3.jsonl", {"id": 3})
    wait_until(lambda: lake.table("lost").count() == 3)
    assert calls.call("DescribeJob", id=[job_id])["job"]["status"] == "Running"
    tiltyard_job(server, "cancel", job_id)
    assert resumed.wait(60) == 130


def test_stream_of_a_worker_keeps_no_other_job_waiting(
    server: ServerProcess, folder: Path, put: Put, tmp_path: Path
) -> None:
    lake = tiltyard.connect(server.url)
    calls = lake.catalog.caller()
    put("1.jsonl", {"id": 1})
    first, second = (
        submit_job(calls, find_job("stream"), {"source": str(folder), "table": f"endless_{number}"}).id
        for number in (1, 2)
    )
    wait_until(lambda: lake.run(first).figures.get("rows") == "1", 120)
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"id": 1}\n{"id": 2}\n')
    upsert = submit_job(calls, find_job("upsert"), {"source": str(rows), "table": "endless_1", "on": ["id"]})
    lake.run(upsert.id).wait(120)
    assert (lake.run(first).status, lake.run(second).status) == ("Running", "Queued")
    for job_id in (first, second):
        lake.run(job_id).cancel()


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest.mark.extended
def test_killed_streams_are_lost_within_their_lease_on_postgres(
    postgres: PostgresServer, folder: Path, put: Put, tmp_path: Path
) -> None:
    database = postgres.new_database()
    server = ServerProcess(tmp_path / "root", "--db", database, *WORKER, environ=SLOTS)
    try:
        put("1.jsonl", {"id": 1})
        killed = [kill_stream(server, folder, f"killed_{number}") for number in range(3)]
        calls = tiltyard.connect(server.url).catalog.caller()
        with open_store(database) as store:
            wait_until(lambda: len(store.list_jobs(JobFilter(("stream",), TransactionStatus.LOST), None, 10)) == 3, 30)
        for job_id in killed:
            described = calls.call("DescribeJob", id=[job_id])["job"]
            assert (described["status"], described["attempts"]) == ("Lost", 1)
        arguments = {"source": str(folder), "table": "killed_0", "available_now": True}
        tiltyard.connect(server.url).run(submit_job(calls, find_job("stream"), arguments).id).wait(120)
        with psycopg.connect(database) as connection:
            rows = connection.execute("SELECT count(*) FROM transactions WHERE status = 'Running'").fetchone()
        assert rows == (0,)
    finally:
        server.stop()
        postgres.drop_database(database)
