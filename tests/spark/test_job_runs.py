"""Tracked jobs: driven from the command line, canceled, killed, resumed; the server killed meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.services.forked_process import ForkedProcess
from tests.services.server import ServerProcess
from tests.spark.example_jobs import drivers, logged_steps
from tests.spark.job_processes import all_steps, job_commands, transaction, wait_for
from tiltyard.pipeline.catalog_client import connection


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, environ: dict[str, str]) -> Iterator[ServerProcess]:
    """Start a server that has the example jobs, too."""
    running = ServerProcess(tmp_path_factory.mktemp("root"), environ=environ)
    yield running
    running.stop()


@pytest.fixture
def command(server: ServerProcess, environ: dict[str, str]) -> Iterator[Callable[..., ForkedProcess]]:
    """Starts `tiltyard job …`, on the server unless another --uri is given."""
    with job_commands(server.url, environ) as start:
        yield start


def figures_of(process: ForkedProcess) -> dict[str, str]:
    """Return the figures that a command printed, after it succeeded."""
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return dict(line.split(": ", 1) for line in out.splitlines())


def running_job(server: ServerProcess, folder: Path) -> str:
    """Return the id of the job that works in a folder, once it has begun."""
    wait_for(lambda: len(logged_steps(folder)) >= 2)
    jobs = connection(server.url).caller().call("ListJobs", name="toy", status="Running")["jobs"]
    return next(str(job["id"]) for job in jobs if job["arguments"]["folder"] == str(folder))


def test_job_run_here_is_a_transaction_that_succeeded_with_its_figures(
    server: ServerProcess, command: Callable[..., ForkedProcess], tmp_path: Path
) -> None:
    figures = figures_of(command("toy", str(tmp_path), "--steps", "3"))
    assert (figures["rows"], figures["progress"]) == ("3", "1.0000")
    job = transaction(server, figures["job"])
    assert job.status == "Succeeded"
    assert job.properties is not None
    assert {"kind": "toy", "rows": "3", "rows_total": "3", "eta_seconds": "0"}.items() <= job.properties.items()
    assert logged_steps(tmp_path) == all_steps(3)


@pytest.mark.extended
def test_job_run_on_a_catalog_in_process_is_known_to_it(command: Callable[..., ForkedProcess], tmp_path: Path) -> None:
    root = tmp_path / "catalog"
    root.mkdir()
    figures = figures_of(command("toy", str(tmp_path), "--uri", str(root)))
    described = figures_of(command("show", figures["job"], "--uri", str(root)))
    assert (described["status"], described["rows"], logged_steps(tmp_path)) == ("Succeeded", "5", all_steps(5))


def test_job_untracked_is_no_transaction(
    server: ServerProcess, command: Callable[..., ForkedProcess], tmp_path: Path
) -> None:
    assert figures_of(command("toy", str(tmp_path), "--untracked")) == {"rows": "5"}
    jobs = connection(server.url).caller().call("ListJobs")["jobs"]
    assert str(tmp_path) not in [job["arguments"]["folder"] for job in jobs]


def test_job_that_is_canceled_stops_within_a_second_and_commits_nothing(
    server: ServerProcess, command: Callable[..., ForkedProcess], tmp_path: Path
) -> None:
    process = command("toy", str(tmp_path), "--steps", "500", "--pause", "0.05")
    job_id = running_job(server, tmp_path)
    action = {"setStatusAction": {"status": "Canceled"}}
    connection(server.url).caller().call("AlterTransaction", id=[job_id], actions=[action])
    canceled_at = time.monotonic()
    last = len(logged_steps(tmp_path))
    _, err = process.communicate(timeout=120)
    assert (process.returncode, "was canceled" in err) == (130, True)
    assert (
        "commit" not in logged_steps(tmp_path) and len(logged_steps(tmp_path)) - last <= 100
    )  # a quiet second's are 20
    assert time.monotonic() - canceled_at < 20  # all of them would take 25 at least
    assert transaction(server, job_id).status == "Canceled"


def test_job_that_is_interrupted_is_canceled(
    server: ServerProcess, command: Callable[..., ForkedProcess], tmp_path: Path
) -> None:
    process = command("toy", str(tmp_path), "--steps", "500", "--pause", "0.05")
    job_id = running_job(server, tmp_path)
    process.send_signal(signal.SIGINT)
    assert process.wait(120) == 130
    assert transaction(server, job_id).status == "Canceled"
    assert "commit" not in logged_steps(tmp_path)


@pytest.mark.extended
def test_job_that_is_interrupted_at_any_moment_ends_with_130_and_leaves_no_job_that_waits(
    server: ServerProcess, environ: dict[str, str], tmp_path: Path
) -> None:
    imports = (
        "tiltyard.cli",
        "click",
        "tiltyard.cli.jobs.job",
        "lance_namespace",
        "pyarrow",
        "tiltyard.cli.output.progress",
    )
    moments = [*(f"import {name}" for name in imports), "request 1", "request 2"]
    on_spark = ["import pyspark.sql", "start"]
    for moment in [*moments, *on_spark]:
        folder = tmp_path / moment.replace(" ", "_")
        folder.mkdir()
        job = "toy_on_spark" if moment in on_spark else "toy"
        line = [
            sys.executable,
            "-m",
            "tests.spark.breakpoint_process",
            moment,
            "job",
            job,
            str(folder),
            "--uri",
            server.url,
        ]
        pipe = subprocess.PIPE
        with subprocess.Popen(line, env={**os.environ, **environ}, stdout=pipe, stderr=pipe, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "there\n", moment
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=120)
        assert (process.returncode, "Traceback" in err, "tiltyard: " in err) == (130, False, True), (moment, err)
        jobs = connection(server.url).caller().call("ListJobs", name=job)["jobs"]
        statuses = [entry["status"] for entry in jobs if entry["arguments"].get("folder") == str(folder)]
        assert statuses == (["Canceled"] if moment.startswith("request") else []), moment
        assert "commit" not in logged_steps(folder), moment


@pytest.mark.extended
def test_job_whose_driver_was_killed_is_resumed_without_doing_anything_twice(
    server: ServerProcess, command: Callable[..., ForkedProcess], tmp_path: Path
) -> None:
    process = command("toy", str(tmp_path), "--steps", "8", "--hold", "4")
    job_id = running_job(server, tmp_path)
    process.kill()
    process.wait()
    done = len(logged_steps(tmp_path))
    (tmp_path / "go").touch()
    assert transaction(server, job_id).status == "Running"
    figures = figures_of(command("resume", job_id))
    steps = logged_steps(tmp_path)
    # A step that was done and not yet kept when its driver died may be done again: it is the only one.
    assert sorted(set(steps)) == sorted(all_steps(8)) and len(steps) - len(set(steps)) <= 1
    assert (figures["rows"], steps[-1], 2 <= done < 8) == ("8", "commit", True)
    job = connection(server.url).caller().call("DescribeJob", id=[job_id])["job"]
    assert (job["status"], job["attempts"], len(drivers(tmp_path))) == ("Succeeded", 2, 2)


@pytest.mark.extended
def test_job_whose_server_is_killed_and_replaced_goes_on(
    server: ServerProcess, command: Callable[..., ForkedProcess], tmp_path: Path
) -> None:
    process = command("toy", str(tmp_path), "--steps", "12", "--hold", "4")
    job_id = running_job(server, tmp_path)
    server.kill()
    (tmp_path / "go").touch()  # while there is no server to keep what it does
    server.start()
    assert figures_of(process)["rows"] == "12"
    assert logged_steps(tmp_path) == all_steps(12)
    assert transaction(server, job_id).status == "Succeeded"


def test_job_that_fails_says_why_and_can_be_resumed(
    server: ServerProcess, command: Callable[..., ForkedProcess], tmp_path: Path
) -> None:
    process = command("toy", str(tmp_path), "--broken")
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out, err) == (1, "", "tiltyard: The toy is broken: take another.\n")
    jobs = connection(server.url).caller().call("ListJobs", name="toy", status="Failed")["jobs"]
    failed = next(job for job in jobs if job["arguments"]["folder"] == str(tmp_path))
    assert failed["error"] == "The toy is broken: take another."
    resumed = command("resume", failed["id"])
    resumed.communicate(timeout=120)
    assert resumed.returncode == 1 and logged_steps(tmp_path) == all_steps(5)[:-1]


def test_job_list_wait_show_and_cancel_tell_what_the_catalog_knows(
    server: ServerProcess, command: Callable[..., ForkedProcess], tmp_path: Path
) -> None:
    queued = command("toy", str(tmp_path), "--submit")
    job_id = queued.communicate(timeout=120)[0].strip()
    assert transaction(server, job_id).status == "Queued"
    assert figures_of(command("cancel", job_id)) == {job_id: "Canceled"}
    output = command("list", "--status", "canceled").communicate(timeout=120)[0]
    assert job_id in output and "toy" in output
    waiting = command("wait", job_id)
    description, _ = waiting.communicate(timeout=120)
    assert waiting.returncode == 1 and "status: Canceled" in description
    ended = command("resume", job_id)
    assert "nothing to resume" in ended.communicate(timeout=120)[1]


def test_job_without_java_is_one_sentence_and_no_transaction(
    server: ServerProcess, environ: dict[str, str], tmp_path: Path
) -> None:
    arguments = ["job", "toy_on_spark", str(tmp_path), "--uri", server.url]
    variables = {**os.environ, **environ, "JAVA_HOME": str(tmp_path / "no-java")}
    done = subprocess.run(
        [sys.executable, "-m", "tiltyard", *arguments], env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and done.stderr.startswith("tiltyard: Spark needs Java 17 or newer")
    assert done.stderr.count("\n") == 1
    assert connection(server.url).caller().call("ListJobs", name="toy_on_spark")["jobs"] == []


@pytest.mark.extended
def test_job_submitted_with_what_the_worker_decides_is_refused(
    command: Callable[..., ForkedProcess], tmp_path: Path
) -> None:
    process = command("toy", str(tmp_path), "--submit", "--master", "local[4]")
    assert "the worker's settings choose Spark" in process.communicate(timeout=120)[1] and process.returncode == 2
