"""The figures of a server over time: rates and quantiles of what was counted between two samples, in a bounded ring."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tiltyard.api import metrics_history
from tiltyard.api.metrics_history import MetricsHistory, operation_figures, quantile
from tiltyard.api.request_log import SECONDS, SHARED_FOLDER, RequestCounts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as running:
        yield running


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def count(metrics: RequestCounts, operation: str, status: int, seconds: float, times: int = 1) -> None:
    for _ in range(times):
        metrics.start_request()
        metrics.end_request(operation, status, seconds)


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(6000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise TimeoutError


def test_sample_has_what_was_counted_in_its_interval(pool: ThreadPoolExecutor) -> None:
    metrics, clock = RequestCounts(), Clock()
    metrics.read_loads = lambda: {"queries waiting for a thread": 3, "bytes of rows in memory": 99}
    history = MetricsHistory(metrics, pool, clock)
    count(metrics, "ListTables", 200, 0.2, 50)
    history.add(metrics.encoded())
    assert history.samples == ()
    count(metrics, "ListTables", 200, 0.002, 90)
    count(metrics, "QueryTable", 500, 0.7, 10)
    count(metrics, "", 404, 9.0, 20)  # no operation served it
    metrics.start_request()
    clock.now += 20
    current = history.current(metrics.encoded())
    history.add(metrics.encoded())
    [sample] = history.samples
    assert (sample.requests, sample.errors, sample.at) == (5.0, 0.5, 1020.0) == (current.requests, 0.5, current.at)
    assert sample.p50 is not None and 0.001 < sample.p50 < 0.0025
    assert sample.p99 is not None and 0.5 < sample.p99 < 1.0
    assert (sample.running, sample.waiting, sample.processes) == (1, 3.0, 1)
    assert sample.memory is None or sample.memory > 1 << 20
    clock.now += 20
    history.add(metrics.encoded())
    assert (history.samples[1].requests, history.samples[1].p99) == (0.0, None)


def test_ring_holds_the_last_samples_alone(pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_history, "SAMPLES", 5)
    metrics, clock = RequestCounts(), Clock()
    history = MetricsHistory(metrics, pool, clock)
    for _ in range(9):
        clock.now += 10
        history.add(metrics.encoded())
    assert [sample.at for sample in history.samples] == [1050.0, 1060.0, 1070.0, 1080.0, 1090.0]


def test_processes_have_the_figures_of_all_of_them_from_their_start(
    pool: ThreadPoolExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SHARED_FOLDER, str(tmp_path))
    monkeypatch.setattr(metrics_history, "INTERVAL_SECONDS", 0.05)
    first, second = RequestCounts(), RequestCounts()
    history = MetricsHistory(first, pool)

    async def run() -> None:
        second.share()
        history.start()
        await until(lambda: len(history.samples) > 0)
        count(second, "ListTables", 200, 0.1, 7)
        second.share()
        await until(lambda: any(sample.requests for sample in history.samples))
        history.stop()

    asyncio.run(run())
    assert history.samples[0].processes == 2
    assert sum(sample.requests > 0 for sample in history.samples) == 1


def test_quantiles_lie_between_the_bounds_of_their_bucket() -> None:
    def within(**numbers: int) -> list[int]:
        return [numbers.get(f"b{index}", 0) for index in range(len(SECONDS) + 1)]

    assert quantile(within(), 0.5) is None
    assert quantile(within(b0=10), 0.5) == pytest.approx(SECONDS[0] / 2)
    assert quantile(within(b3=1, b7=1), 0.99) == pytest.approx(SECONDS[6] + 0.98 * (SECONDS[7] - SECONDS[6]))
    assert quantile(within(b3=99, b18=1), 0.999) == SECONDS[-1]
    assert quantile(within(b2=1), 1.0) == pytest.approx(SECONDS[2])


def test_operations_are_told_by_requests(pool: ThreadPoolExecutor) -> None:
    metrics = RequestCounts()
    count(metrics, "ListTables", 200, 0.2, 2)
    count(metrics, "QueryTable", 200, 0.2, 3)
    count(metrics, "QueryTable", 503, 0.2, 1)
    figures = operation_figures(metrics.read_processes(metrics.encoded()))
    assert [(each.name, each.requests, each.errors) for each in figures] == [("QueryTable", 4, 1), ("ListTables", 2, 0)]
