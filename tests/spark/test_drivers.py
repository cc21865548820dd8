"""The worker's drivers: queued jobs run in driver processes; workers and drivers are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from lance_namespace.errors import InvalidInputError

from tests.services.collector import Collector
from tests.services.forked_process import ForkedProcess, start_tiltyard
from tests.services.server import ServerProcess
from tests.spark.example_jobs import drivers, logged_steps
from tests.spark.job_processes import all_steps, transaction, wait_for
from tiltyard.model.principals import Privilege
from tiltyard.pipeline.catalog_client import connection
from tiltyard.pipeline.driver.catalog_run import submit_job
from tiltyard.pipeline.jobs import find_job
from tiltyard.store import open_store

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
Start = Callable[..., ForkedProcess]

CONF = {"spark.sql.shuffle.partitions": "3", "spark.driver.memory": "512m"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, environ: dict[str, str]) -> Iterator[ServerProcess]:
    """A server that runs no jobs of the pipeline itself."""
    running = ServerProcess(tmp_path_factory.mktemp("root"), environ=environ)
    yield running
    running.stop()


@pytest.fixture
def start_worker(server: ServerProcess, environ: dict[str, str]) -> Iterator[Start]:
    """Starts `tiltyard worker --spark local[1]` beside the server; other variables may be given."""
    started: list[ForkedProcess] = []

    def start(**variables: str) -> ForkedProcess:
        arguments = ["worker", "--root", str(server.root), "--jobs", "1", "--spark", "local[1]"]
        started.append(start_tiltyard(*arguments, **environ, TILTYARD_SPARK_CONF=json.dumps(CONF), **variables))
        return started[-1]

    yield start
    for process in started:
        process.terminate()
    for process in started:
        process.wait(60)


def submitted(server: ServerProcess, folder: Path, **arguments: object) -> str:
    """Submit a toy job; return its id."""
    folder.mkdir(exist_ok=True)
    return submit_job(connection(server.url).caller(), find_job("toy"), {"folder": str(folder), **arguments}).id


def ended(server: ServerProcess, job_id: str) -> str:
    """Wait for the end of a job; return its status."""
    return str(
        wait_for(lambda: (status := transaction(server, job_id).status) in ("Succeeded", "Failed") and status, 400)
    )


def let_go(folder: Path) -> None:
    """Let a held job go on, so that it ends by itself."""
    (folder / "go").touch()


@pytest.fixture(autouse=True)
def registered_example_jobs(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the example jobs in this process, too."""
    from tests.spark import example_jobs
    from tiltyard.model.jobs import PIPELINE_JOBS, pipeline_jobs

    for name in ("toy", "toy_on_spark"):
        monkeypatch.setitem(PIPELINE_JOBS, name, example_jobs.__name__)
    pipeline_jobs.cache_clear()


def test_submit_with_a_property_that_no_process_takes_is_refused(server: ServerProcess, tmp_path: Path) -> None:
    for spark in ({"spark.sql.shuffle.partitions": "5\0"}, {"spark\0a": ""}):
        with pytest.raises(InvalidInputError, match="of Spark"):
            submit_job(connection(server.url).caller(), find_job("toy"), {"folder": str(tmp_path)}, spark=spark)


@pytest.mark.extended
def test_queued_job_that_no_driver_can_be_started_for_fails_and_the_next_one_runs(
    server: ServerProcess, start_worker: Start, tmp_path: Path
) -> None:
    payload = {"arguments": {}, "table": [], "spark": {"spark.submit.pyFiles": "\0"}}
    with open_store(f"sqlite:///{server.root}/catalog.db") as store:
        job_id = store.create_transaction("toy", None, payload, {}).id
    start_worker()
    assert ended(server, job_id) == "Failed"
    assert "may not set the property" in (transaction(server, job_id).properties or {})["error"]
    assert ended(server, submitted(server, tmp_path)) == "Succeeded"


def test_queued_job_of_somebody_who_may_not_have_it_done_any_more_fails_before_a_driver_has_it(
    server: ServerProcess, start_worker: Start, tmp_path: Path
) -> None:
    asker = {"name": "ann", "groups": [], "method": "api key", "administrator": False}
    arguments = {"folder": str(tmp_path)}
    payload = {"arguments": arguments, "table": [], "spark": {}, "asker": asker, "wanted": int(Privilege.RUN_UDFS)}
    with open_store(f"sqlite:///{server.root}/catalog.db") as store:
        job_id = store.create_transaction("toy", None, payload, {}, requested_by="ann").id
    start_worker()
    assert ended(server, job_id) == "Failed"
    assert "ann, who submitted this job" in (transaction(server, job_id).properties or {})["error"]
    assert logged_steps(tmp_path) == []


@pytest.mark.extended
@pytest.mark.timeout(600)  # two JVMs start, one after the other, beside that of other tests
def test_submitted_jobs_run_in_one_warm_session_and_tell_of_spark(
    server: ServerProcess, start_worker: Start, tmp_path: Path
) -> None:
    """Their trace, which a server that traces requests writes into their properties, goes on into Spark's tasks."""
    calls = connection(server.url).caller()
    traced = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
    jobs = [
        submit_job(calls, find_job("toy_on_spark"), {"folder": str(tmp_path)}, properties=properties).id
        for properties in (traced, {})
    ]
    with_properties = submit_job(
        calls, find_job("toy_on_spark"), {"folder": str(tmp_path)}, spark={"spark.sql.shuffle.partitions": "5"}
    )
    with Collector() as collector:
        worker = start_worker(TILTYARD_TRACE_ENDPOINT=collector.url)
        assert [ended(server, job) for job in [*jobs, with_properties.id]] == ["Succeeded"] * 3
        job = collector.wait_for(lambda span: span.attributes.get("tiltyard.job") == jobs[0])
        assert (job.name, job.trace_id, job.parent_id) == ("job toy_on_spark", TRACE, "00f067aa0ba902b7")
        tasks = [span for span in collector.children(job) if span.name == "task length"]
        assert sorted(task.attributes["tiltyard.position"] for task in tasks) == [0, 1]
        assert {task.process for task in tasks}.isdisjoint({job.process, worker.pid})  # those of Spark's workers
    results = [transaction(server, job).properties or {} for job in [*jobs, with_properties.id]]
    assert [result["rows"] for result in results] == ["1000"] * 3
    assert [result["shuffles"] for result in results] == ["3", "3", "5"]
    # The first two ran in one application; the one with properties of its own was submitted by itself.
    applications = [result["spark_application"] for result in results]
    assert applications[0] == applications[1] != applications[2]
    assert len(drivers(tmp_path)) == 2
    with urllib.request.urlopen(results[0]["spark_ui"]) as page:
        assert b"Spark" in page.read()
    event_log = Path(results[2]["spark_event_log"].removeprefix("file://"))
    assert event_log.is_dir() and list(event_log.glob("events_*"))


@pytest.mark.extended
def test_submitted_job_whose_driver_is_killed_goes_on_in_another_and_ends_once(
    server: ServerProcess, start_worker: Start, tmp_path: Path
) -> None:
    job_id = submitted(server, tmp_path, steps=12, hold=3)
    start_worker()
    wait_for(lambda: len(logged_steps(tmp_path)) >= 3)
    (first,) = drivers(tmp_path)
    os.kill(first, signal.SIGKILL)
    let_go(tmp_path)
    assert ended(server, job_id) == "Succeeded"
    steps = logged_steps(tmp_path)
    assert sorted(set(steps)) == sorted(all_steps(12)) and len(steps) - len(set(steps)) <= 1
    assert len(drivers(tmp_path)) == 2


@pytest.mark.extended
def test_submitted_job_whose_worker_is_killed_ends_once(
    server: ServerProcess, start_worker: Start, tmp_path: Path
) -> None:
    job_id = submitted(server, tmp_path, steps=15, hold=2)
    worker = start_worker()
    wait_for(lambda: len(logged_steps(tmp_path)) >= 2)
    worker.kill()
    let_go(tmp_path)
    start_worker()
    assert ended(server, job_id) == "Succeeded"
    assert logged_steps(tmp_path) == all_steps(15) and len(drivers(tmp_path)) == 1


@pytest.mark.extended
def test_submitted_job_whose_worker_and_driver_are_killed_is_taken_over_when_the_lease_ends(
    server: ServerProcess, start_worker: Start, tmp_path: Path
) -> None:
    job_id = submitted(server, tmp_path, steps=12, hold=2)
    worker = start_worker()
    wait_for(lambda: len(logged_steps(tmp_path)) >= 2)
    worker.kill()
    os.kill(*drivers(tmp_path), signal.SIGKILL)
    let_go(tmp_path)
    start_worker()
    assert ended(server, job_id) == "Succeeded"
    steps = logged_steps(tmp_path)
    assert sorted(set(steps)) == sorted(all_steps(12)) and len(steps) - len(set(steps)) <= 1


@pytest.mark.extended
def test_submitted_jobs_and_two_workers_each_job_is_done_once(
    server: ServerProcess, start_worker: Start, tmp_path: Path
) -> None:
    jobs = {tmp_path / f"job{number}": submitted(server, tmp_path / f"job{number}") for number in range(4)}
    start_worker()
    start_worker()
    for folder, job_id in jobs.items():
        assert ended(server, job_id) == "Succeeded"
        assert logged_steps(folder) == all_steps(5)


@pytest.mark.extended
def test_submitted_job_of_a_worker_that_stops_is_handed_to_the_next(
    server: ServerProcess, start_worker: Start, tmp_path: Path
) -> None:
    job_id = submitted(server, tmp_path, steps=40, hold=2)
    worker = start_worker()
    wait_for(lambda: len(logged_steps(tmp_path)) >= 2)
    worker.terminate()
    assert worker.wait(60) == 0
    assert transaction(server, job_id).status == "Queued"
    let_go(tmp_path)
    start_worker()
    assert ended(server, job_id) == "Succeeded"
    assert sorted(logged_steps(tmp_path)) == sorted(all_steps(40)) and len(drivers(tmp_path)) == 2


def test_submitted_job_that_is_canceled_stops_and_the_worker_goes_on(
    server: ServerProcess, start_worker: Start, tmp_path: Path
) -> None:
    job_id = submitted(server, tmp_path / "one", steps=500, pause=0.05)
    start_worker()
    wait_for(lambda: len(logged_steps(tmp_path / "one")) >= 2)
    action = {"setStatusAction": {"status": "Canceled"}}
    connection(server.url).caller().call("AlterTransaction", id=[job_id], actions=[action])
    last = len(logged_steps(tmp_path / "one"))
    assert ended(server, submitted(server, tmp_path / "two")) == "Succeeded"
    assert "commit" not in logged_steps(tmp_path / "one") and len(logged_steps(tmp_path / "one")) - last <= 100
    assert transaction(server, job_id).status == "Canceled"


@pytest.mark.extended
def test_submitted_job_with_code_of_a_client_fails_where_that_is_off(
    server: ServerProcess, start_worker: Start, tmp_path: Path
) -> None:
    start_worker()
    job_id = submitted(server, tmp_path, udf="os:getcwd")
    assert ended(server, job_id) == "Failed"
    assert "setting 'udfs'" in (transaction(server, job_id).properties or {})["error"]
    assert logged_steps(tmp_path) == []


def test_worker_without_java_leaves_jobs_of_the_pipeline_to_others(
    server: ServerProcess, environ: dict[str, str], tmp_path: Path
) -> None:
    job_id = submitted(server, tmp_path)
    command = [sys.executable, "-m", "tiltyard", "worker", "--root", str(server.root), "--spark", "local"]
    variables = {**os.environ, **environ, "JAVA_HOME": str(tmp_path / "no-java")}
    worker = subprocess.Popen(command, env=variables, stderr=subprocess.PIPE, text=True)
    assert worker.stderr is not None
    lines = []
    while not (lines and "works on" in lines[-1]):
        lines.append(worker.stderr.readline())
    worker.terminate()
    lines += worker.communicate(timeout=60)[1].splitlines()
    assert any("Spark needs Java 17 or newer" in line and "runs no jobs of the pipeline" in line for line in lines)
    assert transaction(server, job_id).status == "Queued"
    action = {"setStatusAction": {"status": "Canceled"}}
    connection(server.url).caller().call("AlterTransaction", id=[job_id], actions=[action])


SIGNALED_AS_IT_ENDS = """
import atexit, os, signal
from tiltyard.pipeline.driver.process import main
atexit.register(lambda: os.kill(os.getpid(), signal.SIGTERM))
main()
"""


def handles(pid: int, number: int) -> bool:
    """Return whether a process has a handler for a signal."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    [caught] = [int(line.split()[1], 16) for line in status if line.startswith("SigCgt")]
    return bool(caught >> (number - 1) & 1)


@pytest.mark.extended
@pytest.mark.parametrize("waiting", [True, False], ids=["by a signal", "with its input"])
def test_driver_that_is_told_to_end_while_it_ends_does_so_quietly(server: ServerProcess, waiting: bool) -> None:
    started = subprocess.Popen(
        [sys.executable, "-c", SIGNALED_AS_IT_ENDS], stdin=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert started.stdin is not None
    started.stdin.write(json.dumps({"uri": server.url}).encode() + b"\n")
    started.stdin.flush()
    if waiting:
        wait_for(lambda: handles(started.pid, signal.SIGTERM))
        started.send_signal(signal.SIGTERM)
        assert started.wait(60) == 0
        assert started.stderr is not None and started.stderr.read() == b""
    else:
        assert (started.communicate(timeout=60)[1], started.returncode) == (b"", 0)


def test_driver_whose_worker_was_killed_says_so_in_one_line(
    server: ServerProcess, environ: dict[str, str], tmp_path: Path
) -> None:
    calls, owner = connection(server.url).caller(), "driver-of-a-dead-worker"
    job_id = submit_job(calls, find_job("toy"), {"folder": str(tmp_path), "hold": 2}, owner=owner).id
    pipe, variables = subprocess.PIPE, {**os.environ, **environ}
    command = [sys.executable, "-m", "tiltyard.pipeline.driver.process"]
    driver = subprocess.Popen(command, env=variables, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    assert driver.stdin is not None and driver.stdout is not None and driver.stderr is not None
    driver.stdin.write(json.dumps({"uri": server.url}) + "\n" + json.dumps({"job": job_id, "owner": owner}) + "\n")
    driver.stdin.flush()
    wait_for(lambda: len(logged_steps(tmp_path)) >= 2)
    driver.stdout.close()  # as the end of its worker does
    driver.stdin.close()
    let_go(tmp_path)
    log = driver.stderr.read()
    assert driver.wait(60) == 0 and transaction(server, job_id).status == "Succeeded"
    assert "Traceback" not in log and "BrokenPipe" not in log
    assert len([line for line in log.splitlines() if f"job {job_id} has ended, and the worker" in line]) == 1


def test_driver_takes_no_orders_from_its_environment(server: ServerProcess) -> None:
    variables = {**os.environ, "TILTYARD_JOB_CATALOG": json.dumps({"uri": server.url})}
    command = [sys.executable, "-m", "tiltyard.pipeline.driver.process"]
    stopped = subprocess.run(command, check=False, env=variables, input="", capture_output=True, text=True, timeout=120)
    assert stopped.returncode == 1 and "TILTYARD_JOB_CATALOG_FILE" in stopped.stderr
