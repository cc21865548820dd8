"""Group commit and locks, without tables."""

from __future__ import annotations

import multiprocessing
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from lance_namespace.errors import ConcurrentModificationError

from tiltyard.runtime.batcher import Batcher
from tiltyard.storage.locks import Locks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tiltyard.runtime.batcher import PendingItem


def test_submit_alone_runs_at_once() -> None:
    def run(group: Sequence[PendingItem[int]]) -> None:
        (one,) = group
        one.outcome = one.item + 1

    assert Batcher().submit("key", 1, run).result(10) == 2


def test_submit_many_are_grouped_and_each_gets_its_own() -> None:
    gathering, sizes, results = Batcher(), [], {}
    at_the_door, open_door = threading.Semaphore(0), threading.Event()

    def run(group: Sequence[PendingItem[int]]) -> None:
        open_door.wait(10)  # whoever leads first waits until all the others have come
        sizes.append(len(group))
        time.sleep(0.005)
        for member in group:
            if member.item % 10 == 3:
                member.error = ValueError(str(member.item))
            else:
                member.outcome = member.item * 2

    def call(number: int) -> None:
        at_the_door.release()
        try:
            results[number] = gathering.submit(number % 2, number, run).result(10)
        except ValueError as error:
            results[number] = str(error)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(100)]
    for thread in threads:
        thread.start()
    for _ in threads:
        at_the_door.acquire(timeout=10)
    open_door.set()
    for thread in threads:
        thread.join(timeout=10)
    assert results == {number: str(number) if number % 10 == 3 else number * 2 for number in range(100)}
    assert len(sizes) < 50
    assert sum(sizes) == 100


def test_submit_run_that_fails_fails_all_and_leaves_no_one_waiting() -> None:
    gathering, failed = Batcher(), []

    def run(group: Sequence[PendingItem[int]]) -> None:
        time.sleep(0.005)
        raise RuntimeError("no")

    def call(number: int) -> None:
        with pytest.raises(RuntimeError):
            gathering.submit("key", number, run).result(10)
        failed.append(number)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=10)
    assert sorted(failed) == list(range(20))


def test_submit_whose_caller_gave_up_is_done_all_the_same() -> None:
    gathering, begun, go_on, done = Batcher(), threading.Event(), threading.Event(), []

    def run(group: Sequence[PendingItem[int]]) -> None:
        begun.set()
        go_on.wait(10)
        for member in group:
            done.append(member.item)
            member.outcome = member.item

    first = gathering.submit("key", 1, run)
    assert begun.wait(10)
    second = gathering.submit("key", 2, run)
    assert not second.cancel()
    go_on.set()
    assert (first.result(10), second.result(10), done) == (1, 2, [1, 2])


def test_submit_by_callers_that_come_again_keeps_them_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiltyard.runtime.batcher.REGATHER_SECONDS", 10)
    monkeypatch.setattr("tiltyard.runtime.batcher.REGATHER_GAP_SECONDS", 2)
    gathering, sizes = Batcher(), list[int]()
    begun, in_line = threading.Event(), threading.Barrier(3)

    def run(group: Sequence[PendingItem[int]]) -> None:
        if not sizes:
            begun.set()
            in_line.wait(10)  # the first caller is alone, and the others stand in line meanwhile
        sizes.append(len(group))
        for member in group:
            member.outcome = member.item

    def call(first: bool) -> None:
        if not first:
            assert begun.wait(10)
        future = gathering.submit("key", 0, run)
        if not first:
            in_line.wait(10)
        future.result(10)
        for number in range(1, 20):
            assert gathering.submit("key", number, run).result(10) == number

    threads = [threading.Thread(target=call, args=(first,)) for first in (True, False, False)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert sizes == [1] + [3] * 19 + [2]


def test_hold_lets_one_in_at_a_time() -> None:
    locks, inside, most = Locks(), [], []

    def work() -> None:
        with locks.hold("a", 10):
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.001)
            inside.pop()

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 16


def test_hold_taken_too_long_is_a_conflict() -> None:
    locks = Locks()
    with locks.hold("a", 1), pytest.raises(ConcurrentModificationError), locks.hold("a", 0.01):
        pass
    with locks.hold("a", 1), locks.hold("b", 1):
        pass


def _hold(path: str) -> None:
    for _ in range(50):
        with Locks().hold("a", 20):
            value = int(Path(path).read_text())
            Path(path).write_text(str(value + 1))


def test_hold_works_between_processes(tmp_path: Any) -> None:
    counter = tmp_path / "counter"
    counter.write_text("0")
    spawn = multiprocessing.get_context("spawn")
    others = [spawn.Process(target=_hold, args=(str(counter),)) for _ in range(2)]
    for other in others:
        other.start()
    for other in others:
        other.join()
    assert counter.read_text() == "100"
