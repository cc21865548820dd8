"""Turns of principals for threads."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, wait
from contextlib import contextmanager

import pytest

from tiltyard.runtime.child_process import run_command
from tiltyard.runtime.pool import (
    MAX_SHARED_THREADS,
    FairPool,
    run_together,
    start_soon,
    start_thread,
    submit_shared,
)

SECONDS = 20


class Held:
    """Work that ends when it is told to; `begun` has who has begun, in order."""

    def __init__(self, executor: FairPool) -> None:
        self._executor = executor
        self._changed = threading.Condition()
        self.begun: list[str] = []
        self._may_end: dict[str, threading.Semaphore] = {}

    def submit(self, name: str, number: int = 1) -> list[Future[None]]:
        self._may_end.setdefault(name, threading.Semaphore(0))
        return [self._executor.share_of(name).submit(self._work, name) for _ in range(number)]

    def _work(self, name: str) -> None:
        with self._changed:
            self.begun.append(name)
            self._changed.notify_all()
        assert self._may_end[name].acquire(timeout=SECONDS)

    def end(self, name: str, number: int = 1) -> None:
        self._may_end[name].release(number)

    def wait_until_begun(self, number: int) -> list[str]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.begun) >= number, SECONDS), self.begun
            return list(self.begun)

    def end_all(self) -> None:
        for name in self._may_end:
            self.end(name, 1000)


@contextmanager
def held_work(threads: int, reserved: int = 0, **weights: float) -> Iterator[tuple[FairPool, Held]]:
    executor = FairPool("test", "Of a test", threads, reserved, weights)
    held = Held(executor)
    try:
        yield executor, held
    finally:
        held.end_all()
        executor.shutdown()


def test_principal_alone_has_all_threads_but_the_reserved() -> None:
    with held_work(3, 1) as (executor, held):
        held.submit("scanner", 10)
        assert held.wait_until_begun(3) == ["scanner"] * 3
        assert executor.waiting == 7


def test_first_work_of_another_begins_at_once_by_a_reserved_thread_that_is_free_again_after_it() -> None:
    with held_work(3, 1) as (executor, held):
        held.submit("scanner", 10)
        held.wait_until_begun(3)
        held.submit("reader", 2)
        assert held.wait_until_begun(4)[3] == "reader"
        held.end("reader")
        assert held.wait_until_begun(5)[4] == "reader"  # its second piece is its first one now
        assert held.begun.count("scanner") == 3
        assert executor.waiting == 7


def test_second_work_takes_no_reserved_thread() -> None:
    with held_work(3, 1) as (executor, held):
        held.submit("scanner", 10)
        held.wait_until_begun(3)
        held.submit("reader", 2)
        held.wait_until_begun(4)
        assert executor.waiting == 8
        held.end("scanner", 2)  # the first makes the reserved thread free, the second another one
        assert len(held.wait_until_begun(5)) == 5
        assert executor.waiting == 7


def test_free_thread_goes_to_the_principal_with_the_fewest() -> None:
    with held_work(4) as (_, held):
        held.submit("scanner", 20)
        held.wait_until_begun(4)
        held.submit("reader", 20)
        for number in (5, 6):
            held.end("scanner")
            held.wait_until_begun(number)
        assert held.begun[4:] == ["reader", "reader"]
        held.end("reader")  # one against two
        assert held.wait_until_begun(7)[6:] == ["reader"]
        held.end("scanner")
        assert held.wait_until_begun(8)[7:] == ["scanner"]


def test_weight_is_the_share_of_threads() -> None:
    with held_work(6, gold=2.0) as (_, held):
        held.submit("filler", 6)
        held.wait_until_begun(6)
        held.submit("gold", 20)
        held.submit("plain", 20)
        held.end("filler", 6)
        begun = held.wait_until_begun(12)[6:]
        assert (begun.count("gold"), begun.count("plain")) == (4, 2)


def test_queue_of_one_does_not_delay_another() -> None:
    with held_work(1) as (_, held):
        held.submit("scanner", 100)
        held.wait_until_begun(1)
        held.submit("reader")
        held.end("scanner")
        assert held.wait_until_begun(2) == ["scanner", "reader"]


def test_result_and_error_are_those_of_the_work() -> None:
    with held_work(2) as (executor, _):
        assert executor.share_of("a").submit(lambda number, *, more: number + more, 1, more=2).result(SECONDS) == 3
        with pytest.raises(ZeroDivisionError):
            executor.submit(lambda: 1 // 0).result(SECONDS)


def test_cancelled_work_does_not_begin_and_takes_no_turn() -> None:
    with held_work(1) as (executor, held):
        held.submit("scanner")
        held.wait_until_begun(1)
        (cancelled,) = held.submit("reader")
        assert cancelled.cancel()
        (next_one,) = held.submit("reader")
        held.end("scanner")
        held.end("reader")
        next_one.result(SECONDS)
        assert held.begun == ["scanner", "reader"]
        assert executor.waiting == 0


def test_shutdown_cancels_what_waits_and_refuses_more() -> None:
    with held_work(1) as (executor, held):
        (running,) = held.submit("a")
        held.wait_until_begun(1)
        (waiting,) = held.submit("a")
        executor.shutdown(wait=False, cancel_futures=True)
        with pytest.raises(CancelledError):
            waiting.result(SECONDS)
        with pytest.raises(RuntimeError):
            executor.submit(int)
        held.end("a")
        running.result(SECONDS)


def test_thread_keeps_nothing_of_work_that_has_ended() -> None:
    class Rows:
        pass

    with held_work(1) as (executor, _):
        rows = Rows()
        released = weakref.ref(rows)
        executor.share_of("a").submit(lambda kept: None, rows).result(SECONDS)
        del rows
        executor.share_of("a").submit(int).result(SECONDS)
        gc.collect()
        assert released() is None


def test_principals_are_forgotten_once_they_have_no_work() -> None:
    with held_work(4, 1) as (executor, _):
        work: list[Callable[[], int]] = [int] * 500
        wait([executor.share_of(f"principal {n % 50}").submit(one) for n, one in enumerate(work)], SECONDS)
        executor.submit(int).result(SECONDS)
        deadline = threading.Event()
        for _ in range(100):
            if not executor._principals:
                break
            deadline.wait(0.05)
        assert not executor._principals
        assert executor._free == 5


def test_run_together_returns_results_in_order_and_runs_at_once() -> None:
    meeting = threading.Barrier(3)

    def work(number: int) -> int:
        meeting.wait(SECONDS)  # ends only where three run at the same time
        return number * number

    assert run_together(work, range(3), 3) == [0, 1, 4]
    assert run_together(work, [], 3) == []


def test_run_together_begins_nothing_after_an_error_and_raises_it() -> None:
    begun: list[int] = []

    def work(number: int) -> None:
        begun.append(number)
        raise ValueError(f"number {number}")

    with pytest.raises(ValueError, match="number 0"):
        run_together(work, range(100), 1)
    assert begun == [0]


def test_run_together_inside_of_itself_never_waits_for_a_free_thread() -> None:
    """Four levels of sixteen at once would take more threads than there are."""

    def work(depth: int) -> int:
        return 1 if depth == 0 else sum(run_together(work, [depth - 1] * 6, 6))

    assert work(4) == 6**4


def test_start_soon_without_a_free_thread_is_done_by_who_waits_for_it() -> None:
    go_on = threading.Event()
    blocking = [submit_shared(go_on.wait) for _ in range(MAX_SHARED_THREADS)]
    started = start_soon(threading.get_ident)
    assert started.result() == threading.get_ident()
    go_on.set()
    for each in blocking:
        each.result()


def test_start_thread_raises_what_its_work_raises() -> None:
    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        start_thread("test", fail).result()
    assert start_thread("test", threading.get_ident).result() != threading.get_ident()


def test_shared_threads_after_a_fork_are_the_childs_own() -> None:
    """The child of a fork has no threads of its parent: its pool may not wait for them."""
    command = (
        "import os\n"
        "from tiltyard.runtime.pool import submit_shared\n"
        "submit_shared(int).result()\n"
        "if not (child := os.fork()):\n"
        "    os._exit(submit_shared(int, 7).result(20))\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    assert run_command([sys.executable, "-c", command], 60, text=True).stdout == "7\n"
