"""The registry of a process's machinery: what its pools, queues and child processes tell, and how they are closed."""

from __future__ import annotations

import sys
import threading

import pytest

from tiltyard.runtime.cache import Cache
from tiltyard.runtime.child_process import NOTHING, ChildProcess, run_command
from tiltyard.runtime.machinery import Kind, Machine, close_machinery, read_figures
from tiltyard.runtime.pool import FairPool, Pool


def figures_of(kind: Kind, name: str) -> dict[str, float]:
    return next(found.figures for found in read_figures() if (found.kind, found.name) == (kind, name))


def test_pool_tells_what_runs_and_waits() -> None:
    begun, go_on = threading.Semaphore(0), threading.Event()

    def work() -> None:
        begun.release()
        go_on.wait()

    with Pool("test pool", "Of a test", 2) as pool:
        running = [pool.submit(work) for _ in range(5)]
        for _ in range(2):
            begun.acquire()
        assert figures_of(Kind.POOL, "test pool") == {"size": 2, "bound": 2, "waiting": 3, "active": 2}
        go_on.set()
        for each in running:
            each.result()


def test_fair_pool_tells_what_runs_and_waits() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        go_on.wait()

    with FairPool("test fair pool", "Of a test", 1, 0, {}) as pool:
        running = [pool.share_of("ann").submit(work) for _ in range(3)]
        begun.wait()
        figures = figures_of(Kind.POOL, "test fair pool")
        assert (figures["active"], figures["waiting"], figures["bound"]) == (1, 2, 1)
        go_on.set()
        for each in running:
            each.result()


def test_close_machinery_ends_processes_and_pools_and_empties_caches() -> None:
    child = ChildProcess("test child", "Of a test", [sys.executable, "-c", "input()"])
    pool, cache = Pool("test closed", "Of a test", 1), Cache[int, int]("test", "", max_entries=1, invalidated_by="")
    cache.put(1, 1)
    assert figures_of(Kind.CHILD, "test child") == {"active": 1}
    close_machinery([cache, pool, child])
    assert (child.is_running, len(cache)) == (False, 0)
    with pytest.raises(RuntimeError, match="after shutdown"):
        pool.submit(int)


def test_close_machinery_goes_on_after_one_that_cannot_be_closed(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Machine):
        kind = Kind.CHILD

        def figures(self) -> dict[str, float]:
            return {}

        def close(self) -> None:
            raise OSError("it is broken")

    cache = Cache[int, int]("test", "", max_entries=1, invalidated_by="")
    cache.put(1, 1)
    close_machinery([cache, Broken("broken", "Of a test")])
    assert len(cache) == 0
    assert "the child process 'broken' could not be closed" in caplog.text


def test_child_process_that_does_not_end_is_killed() -> None:
    child = ChildProcess(
        "test", "Of a test", [sys.executable, "-c", "import signal; signal.pause()"], stdin=NOTHING, stdout=NOTHING
    )
    assert child.wait(0.01) == -9


def test_run_command_returns_what_it_writes() -> None:
    done = run_command([sys.executable, "-c", "import sys; print(1); sys.exit(3)"], text=True)
    assert (done.returncode, done.stdout) == (3, "1\n")
