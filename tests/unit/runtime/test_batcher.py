"""Batches of concurrent calls: each caller gets its own outcome, and callers stay together."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from tiltyard.runtime.batcher import Batcher

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tiltyard.runtime.batcher import PendingItem


def test_submit_alone_runs_at_once() -> None:
    def run(batch: Sequence[PendingItem[int]]) -> None:
        (pending,) = batch
        pending.outcome = pending.item + 1

    assert Batcher("test", "Of a test").submit("key", 1, run).result(10) == 2


def test_submit_many_are_batched_and_each_gets_its_own_outcome() -> None:
    batcher, sizes, results = Batcher("test", "Of a test"), [], {}
    submitted, start_run = threading.Semaphore(0), threading.Event()

    def run(batch: Sequence[PendingItem[int]]) -> None:
        start_run.wait(10)  # the first batch runs once all others are submitted
        sizes.append(len(batch))
        time.sleep(0.005)
        for pending in batch:
            if pending.item % 10 == 3:
                pending.error = ValueError(str(pending.item))
            else:
                pending.outcome = pending.item * 2

    def call(number: int) -> None:
        submitted.release()
        try:
            results[number] = batcher.submit(number % 2, number, run).result(10)
        except ValueError as error:
            results[number] = str(error)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(100)]
    for thread in threads:
        thread.start()
    for _ in threads:
        submitted.acquire(timeout=10)
    start_run.set()
    for thread in threads:
        thread.join(timeout=10)
    assert results == {number: str(number) if number % 10 == 3 else number * 2 for number in range(100)}
    assert len(sizes) < 50
    assert sum(sizes) == 100


def test_submit_run_that_raises_fails_all_callers() -> None:
    batcher, failed = Batcher("test", "Of a test"), []

    def run(batch: Sequence[PendingItem[int]]) -> None:
        time.sleep(0.005)
        raise RuntimeError("no")

    def call(number: int) -> None:
        with pytest.raises(RuntimeError):
            batcher.submit("key", number, run).result(10)
        failed.append(number)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=10)
    assert sorted(failed) == list(range(20))


def test_submit_cannot_be_canceled_and_runs() -> None:
    batcher, started, release, done = Batcher("test", "Of a test"), threading.Event(), threading.Event(), []

    def run(batch: Sequence[PendingItem[int]]) -> None:
        started.set()
        release.wait(10)
        for pending in batch:
            done.append(pending.item)
            pending.outcome = pending.item

    first = batcher.submit("key", 1, run)
    assert started.wait(10)
    second = batcher.submit("key", 2, run)
    assert not second.cancel()
    release.set()
    assert (first.result(10), second.result(10), done) == (1, 2, [1, 2])


def test_submit_by_returning_callers_keeps_them_in_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiltyard.runtime.batcher.REGATHER_SECONDS", 10)
    monkeypatch.setattr("tiltyard.runtime.batcher.REGATHER_GAP_SECONDS", 2)
    batcher, sizes = Batcher("test", "Of a test"), list[int]()
    started, queued = threading.Event(), threading.Barrier(3)

    def run(batch: Sequence[PendingItem[int]]) -> None:
        if not sizes:
            started.set()
            queued.wait(10)  # the first caller is alone, and the others are queued meanwhile
        sizes.append(len(batch))
        for pending in batch:
            pending.outcome = pending.item

    def call(first: bool) -> None:
        if not first:
            assert started.wait(10)
        future = batcher.submit("key", 0, run)
        if not first:
            queued.wait(10)
        future.result(10)
        for number in range(1, 20):
            assert batcher.submit("key", number, run).result(10) == number

    threads = [threading.Thread(target=call, args=(first,)) for first in (True, False, False)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert sizes == [1] + [3] * 19 + [2]
