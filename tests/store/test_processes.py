"""Several processes on one catalog, and processes that die in the middle."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.services.forked_process import ForkedProcess
from tiltyard.store import open_store


def start(url: str, prefix: str, number: int, threads: int = 4) -> ForkedProcess:
    arguments = [url, prefix, str(number), str(threads)]
    return ForkedProcess(arguments, os.environ, Path.cwd(), module="tests.store.writer_process")


def test_processes_share_one_catalog_and_all_get_their_turn(url: str) -> None:
    processes = [start(url, prefix, 300) for prefix in ("a", "b", "c")]
    names = [process.communicate(timeout=180)[0].split() for process in processes]
    assert [process.wait() for process in processes] == [0, 0, 0]
    with open_store(url) as store:
        assert store.list_namespaces((), None, 1000) == sorted(
            name for names_of_process in names for name in names_of_process
        )
    assert [len(names_of_process) for names_of_process in names] == [300, 300, 300]


@pytest.mark.extended
def test_what_was_answered_survives_a_kill(url: str) -> None:
    for round_ in range(3):
        process = start(url, f"round{round_}", 100_000, threads=8)
        assert process.stdout
        answered = [process.stdout.readline().strip() for _ in range(200)]
        process.kill()  # SIGKILL, in the middle of whatever it is doing
        answered += [line.strip() for line in process.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
        process.wait(10)
        process.stdout.close()
        with open_store(url) as store:
            stored = set(store.list_namespaces((), None, 1_000_000))
            assert set(answered) <= stored
            store.create_namespace((f"after {round_}",), {})
