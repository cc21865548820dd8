"""Turns of principals for threads."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, wait
from contextlib import contextmanager

import pytest

from tiltyard.runtime.pool import FairPool

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
