"""Locks between threads and processes."""

from __future__ import annotations

import os
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from lance_namespace.errors import ConcurrentModificationError

import tiltyard.storage.locks
from tests.services.forked_process import ForkedProcess
from tiltyard.storage.locks import LockKind, Locks


def test_hold_is_exclusive_between_threads() -> None:
    locks, holders, counts = Locks(), [], []

    def work() -> None:
        with locks.hold(LockKind.COMMITS, "a", 10):
            holders.append(1)
            counts.append(len(holders))
            time.sleep(0.001)
            holders.pop()

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == [1] * 16


def test_hold_after_its_timeout_is_a_conflict() -> None:
    locks = Locks()
    with (
        locks.hold(LockKind.COMMITS, "a", 1),
        pytest.raises(ConcurrentModificationError),
        locks.hold(LockKind.COMMITS, "a", 0.01),
    ):
        pass
    with locks.hold(LockKind.COMMITS, "a", 1), locks.hold(LockKind.COMMITS, "b", 1):
        pass


def test_one_name_has_a_lock_of_each_kind_though_all_names_share_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiltyard.storage.locks, "_LOCK_FILES", 1)
    locks = Locks()
    with ExitStack() as stack:
        for kind in LockKind:
            stack.enter_context(locks.hold(kind, "a", 0))
        with pytest.raises(ConcurrentModificationError), locks.hold(LockKind.COMMITS, "b", 0):
            pass


def test_hold_is_exclusive_between_processes(tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    counter.write_text("0")
    module = "tests.unit.storage.counting_process"
    processes = [ForkedProcess([str(counter)], os.environ, Path.cwd(), module=module) for _ in range(2)]
    assert [process.wait(60) for process in processes] == [0, 0]
    assert counter.read_text() == "100"
