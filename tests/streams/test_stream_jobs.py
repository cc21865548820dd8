"""Streams as jobs of a server: their lag is seen, they are canceled, and a killed driver repeats nothing."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import urllib3
from lance_namespace.errors import InvalidInputError, ServiceUnavailableError

import tiltyard
from tests.services.lossy import LossyProxy
from tests.services.server import ServerProcess
from tests.streams.conftest import Put
from tiltyard.lake.runs import Run
from tiltyard.model import jobs
from tiltyard.model.jobs import MAX_ATTEMPTS
from tiltyard.pipeline.driver.catalog_run import CatalogRun, QueuedJob, claim_job, drive_job, new_owner, submit_job
from tiltyard.pipeline.jobs import find_job
from tiltyard.pipeline.runs import RunCanceledError
from tiltyard.pipeline.streams import job as stream_job
from tiltyard.pipeline.streams import target as stream_target
from tiltyard.pipeline.streams.target import StreamTable
from tiltyard.runtime.failpoints import VARIABLE, Point

PAGE = Path(__file__).resolve().parents[2] / "docs/streams.md"


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait until a condition holds; fail after some time."""
    began = time.monotonic()
    while not condition():
        waited = time.monotonic() - began
        assert waited < seconds, "it took too long"
        time.sleep(min(max(0.02, waited / 20), 0.25))  # what is looked at needs the processors, too


def has_figure(run: Run, name: str, value: str) -> Callable[[], bool]:
    return lambda: run.figures.get(name) == value


def test_a_stream_shows_its_lag_and_is_canceled(streams_server: ServerProcess, folder: Path, put: Put) -> None:
    lake = tiltyard.connect(streams_server.url)
    put("1.jsonl", {"id": 1})
    run = lake.stream(folder, "followed", on="id", batch_seconds=0.05)
    listed = lake.run(run.id)
    wait_until(has_figure(listed, "rows", "1"))
    put("2.jsonl", {"id": 1}, {"id": 2})
    wait_until(has_figure(listed, "rows", "3"))
    assert listed.figures["lag"] == "0"
    metrics = urllib3.request("GET", f"{streams_server.url}/metrics").data.decode()
    assert f'tiltyard_stream_lag{{job="{run.id}",table="followed"}} 0.0' in metrics
    run.cancel()
    with pytest.raises(RunCanceledError, match="what it had committed by then stays"):
        run.wait(60)
    assert lake.table("followed").count() == 2


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    for source in (tmp_path / "tpyo", tmp_path / "tpyo" / "*.jsonl"):
        with pytest.raises(InvalidInputError, match=r"There is no folder .*tpyo: create it"):
            tiltyard.connect(tmp_path / "lake").stream(str(source), "films", available_now=True)


def test_a_stream_of_a_publication_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="stream"), tiltyard.connect(tmp_path / "root").publish() as change:
        change.stream("in", "films")


def test_a_stream_is_started_again_however_often(
    streams_server: ServerProcess, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "RETRY_MS", 0)
    lake = tiltyard.connect(streams_server.url)
    calls, job = lake.catalog.caller(), find_job("stream")
    job_id = submit_job(calls, job, {"source": str(folder), "table": "restarted", "available_now": True}).id

    def drive(work: Callable[[CatalogRun, QueuedJob], Mapping[str, object]]) -> int:
        owner = new_owner()
        claimed = claim_job(calls, job_id, owner)
        run = CatalogRun(calls, claimed, owner)
        drive_job(run, lambda: work(run, claimed), attempts=claimed.attempts)
        return claimed.attempts

    def fail(*_: object) -> Mapping[str, object]:
        raise ServiceUnavailableError("The server is away.")

    for _ in range(MAX_ATTEMPTS + 1):
        with pytest.raises(ServiceUnavailableError):
            drive(fail)
    assert drive(lambda run, claimed: claimed.execute(run, lake.catalog, None)) == MAX_ATTEMPTS + 2
    assert lake.run(job_id).status == "Succeeded"


@pytest.mark.extended
@pytest.mark.parametrize(
    ("on", "points", "expected"),
    [("", (Point.BEFORE_RECORD, Point.AFTER_FINALIZE), [0, 10]), ("id", (Point.AFTER_FINALIZE,) * 2, [10, 20])],
)
def test_a_killed_driver_repeats_nothing(
    streams_server: ServerProcess,
    folder: Path,
    put: Put,
    tmp_path: Path,
    on: str,
    points: tuple[Point, ...],
    expected: list[int],
) -> None:
    for number in range(4):
        put(f"{number}.jsonl", *({"id": 10 * number + row, "v": number} for row in range(10)))
    table = f"killed_by_{on or 'append'}"
    command = [sys.executable, "-m", "tiltyard", "job", "stream", "--uri", streams_server.url, "--available-now"]
    command += ["--batch-rows", "10", str(folder), table, *(["--on", on] if on else [])]
    counts = []
    for point in points:
        moment = tmp_path / "now"
        moment.touch()
        environ = {**os.environ, VARIABLE: f"{point}@{moment}"}
        assert subprocess.run(command, env=environ, check=False, timeout=120).returncode == -signal.SIGKILL
        counts.append(tiltyard.connect(streams_server.url).table(table).count())
    assert counts == expected
    lake = tiltyard.connect(streams_server.url)
    lake.stream(folder, table, available_now=True, **({"on": on} if on else {}))
    assert sorted(lake.table(table).to_arrow()["id"].to_pylist()) == list(range(40))


def test_a_stream_whose_server_dies_while_it_reads_its_position_goes_on(
    streams_server: ServerProcess, folder: Path, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    put("1.jsonl", {"id": 1})
    with monkeypatch.context() as killed:  # as a driver leaves its table that was killed: without its position
        killed.setattr(StreamTable, "record_position", lambda *_, **__: None)
        tiltyard.connect(streams_server.url).stream(folder, "cut", available_now=True)
    put("2.jsonl", {"id": 2})
    with LossyProxy(streams_server.url) as proxy:
        lake = tiltyard.connect(proxy.url)
        proxy.cuts = ["/cut/version/describe"]
        assert lake.stream(folder, "cut", available_now=True).rows == 1
        assert not proxy.cuts
        assert sorted(lake.table("cut").to_arrow()["id"].to_pylist()) == [1, 2]
        monkeypatch.setattr(stream_job, "OUTAGE_SECONDS", -1.0)
        proxy.cuts = ["/cut/version/list"]
        with pytest.raises(ServiceUnavailableError, match="did not answer, or not to the end: is it running"):
            lake.stream(folder, "cut", available_now=True)
        failed = lake.catalog.caller().call("ListJobs", name="stream", limit=1)["jobs"][0]
        assert (failed["status"], failed["properties"]["retryable"]) == ("Failed", "true")


def test_the_example_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert examples
    for example in examples:
        exec(compile(example, str(PAGE), "exec"), names)


@pytest.mark.extended
def test_a_stream_waits_for_a_server_that_is_replaced(
    folder: Path, put: Put, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = ServerProcess(tmp_path / "root")
    outages = iter((Point.BEFORE_RECORD, Point.AFTER_FINALIZE))
    awaited = [next(outages)]

    def replace_server(point: Point) -> None:
        if awaited and point is awaited[0]:
            awaited[:] = [later for later in [next(outages, None)] if later is not None]
            server.process.kill()
            server.process.wait(60)
            threading.Timer(0.5, server.start).start()

    monkeypatch.setattr(stream_target, "reach", replace_server)
    try:
        lake = tiltyard.connect(server.url)
        for number in range(3):
            put(f"{number}.jsonl", {"id": number}, {"id": number + 10})
        run = lake.stream(folder, "kept", batch_rows=2, available_now=True)
        assert run.rows == 6
        assert sorted(lake.table("kept").to_arrow()["id"].to_pylist()) == [0, 1, 2, 10, 11, 12]
    finally:
        server.stop()
