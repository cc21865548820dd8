"""The counts of requests of each process, and how processes share them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import TYPE_CHECKING

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tiltyard.api import metrics, request_log
from tiltyard.api.request_log import SHARED_FOLDER, RequestCounts

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tiltyard.store import Store


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that processes share."""
    monkeypatch.setenv(SHARED_FOLDER, str(tmp_path))
    monkeypatch.setattr(request_log, "SHARE_SECONDS", 0.01)
    return tmp_path


class _NoStore:
    """A catalog of which nothing is to be said."""

    def transaction_counts(self) -> dict[tuple[str, str], int]:
        return {}

    def list_jobs(self, *_: object) -> list[object]:
        return []

    def clock(self) -> int:
        return 0

    def list_table_ages(self) -> list[object]:
        return []

    def list_quotas(self) -> list[object]:
        return []

    def event_stream(self) -> None:
        return None

    def gauges(self) -> dict[str, float]:
        return {}


def samples(counts: RequestCounts) -> dict[tuple[str, ...], float]:
    """Values by name and labels, as one process answers them."""
    store: Store = _NoStore()  # type: ignore[assignment]  # all that a State asks of it
    text = metrics.export(counts.read_processes(counts.encoded()), metrics.State(store, dict)).decode()
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_time_is_counted_in_the_buckets_that_it_is_within() -> None:
    counts = RequestCounts()
    for seconds in (0.0005, 0.0006, 0.3, 100.0):
        counts.start_request()
        counts.end_request("DescribeTable", 200, seconds, first_seconds=seconds / 1000)
    counts.start_request()
    counts.end_request("DescribeTable", 404, 0.002)
    values = samples(counts)
    assert values["tiltyard_requests_total", "DescribeTable", "200"] == 4
    assert values["tiltyard_requests_total", "DescribeTable", "404"] == 1
    within = {"0.0005": 1, "0.001": 2, "0.0025": 2, "0.25": 2, "0.5": 3, "5.0": 3, "20.0": 3, "30.0": 3, "+Inf": 4}
    for bound, number in within.items():
        assert values["tiltyard_request_seconds_bucket", bound, "DescribeTable", "2xx"] == number
    assert values["tiltyard_request_seconds_bucket", "0.0025", "DescribeTable", "4xx"] == 1
    assert values["tiltyard_request_seconds_count", "DescribeTable", "2xx"] == 4
    assert values["tiltyard_request_seconds_sum", "DescribeTable", "2xx"] == pytest.approx(100.3011)
    # A client that reads for 100 s does not make a slow server.
    assert values["tiltyard_request_first_byte_seconds_bucket", "0.1", "DescribeTable", "2xx"] == 4
    assert values["tiltyard_request_first_byte_seconds_bucket", "0.05", "DescribeTable", "2xx"] == 3
    assert values["tiltyard_request_first_byte_seconds_sum", "DescribeTable", "2xx"] == pytest.approx(0.1003011)
    assert values["tiltyard_request_first_byte_seconds_count", "DescribeTable", "4xx"] == 1


def counted(*calls: Callable[[], None]) -> None:
    """Count on an event loop, and let processes tell each other."""

    async def count() -> None:
        for call in calls:
            call()
        await asyncio.sleep(0.1)

    asyncio.run(count())


def test_processes_tell_what_ended_and_what_runs(shared: Path) -> None:
    first, second = RequestCounts(), RequestCounts()
    listed = "ListTables", 200, 0.1
    counted(
        second.start_request,
        second.start_request,
        lambda: second.end_request(*listed),
        first.start_request,
        lambda: first.end_request(*listed),
    )
    values = samples(first)
    assert values["tiltyard_requests_total", "ListTables", "200"] == 2
    assert values["tiltyard_requests_running",] == 1


def test_a_request_is_told_however_long_it_runs(shared: Path) -> None:
    first, second = RequestCounts(), RequestCounts()

    async def run() -> None:
        second.start_request()
        await asyncio.sleep(0.1)
        second.end_request("", 404, 0.1)
        await asyncio.sleep(0.1)

    asyncio.run(run())
    values = samples(first)
    assert values["tiltyard_requests_total", "none", "404"] == 1
    assert values["tiltyard_requests_running",] == 0


def test_what_a_killed_process_ran_runs_no_more_and_what_it_ended_stays(shared: Path) -> None:
    killed = subprocess.Popen([sys.executable, "-c", ""])
    killed.wait()
    second = RequestCounts()
    counted(second.start_request, second.start_request, lambda: second.end_request("ListTables", 200, 0.1))
    [file] = shared.glob("*.json")
    saved = msgspec.json.decode(file.read_bytes())
    file.with_name("killed.json").write_bytes(msgspec.json.encode({**saved, "pid": killed.pid}))
    values = samples(second)
    assert values["tiltyard_requests_total", "ListTables", "200"] == 2
    assert values["tiltyard_requests_running",] == 1


def test_requests_are_counted_where_nothing_can_be_written(shared: Path, caplog: pytest.LogCaptureFixture) -> None:
    counts = RequestCounts()
    shared.rename(shared.with_name("moved"))
    counted(counts.start_request, lambda: counts.end_request("ListTables", 200, 0.1))
    assert "cannot share the counts of this process" in caplog.text
    assert samples(counts)["tiltyard_requests_total", "ListTables", "200"] == 1
