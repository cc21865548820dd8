"""A child process in the background: its policy, its threads', and what it is started with."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tiltyard.runtime import child_process
from tiltyard.runtime.child_process import background_command, background_variables, end_idle, lower_priority

pytestmark = pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="policies of Linux")

THREADS = """
import sys, threading
sys.stdin.readline()
for _ in range(3):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
print("started", flush=True)
sys.stdin.readline()
"""


@contextmanager
def child() -> Iterator[subprocess.Popen[str]]:
    """A process that starts three threads when it gets a line, and ends with the next one."""
    pipe = subprocess.PIPE
    command = background_command([sys.executable, "-c", THREADS])
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, bufsize=1)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def start_threads(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("\n")
    assert process.stdout.readline() == "started\n"


def policies(process: int) -> list[int]:
    return [os.sched_getscheduler(int(task.name)) for task in Path(f"/proc/{process}/task").iterdir()]


def test_threads_run_while_processors_are_idle_until_they_may_wait_no_longer() -> None:
    if not child_process._can_leave_idle():
        pytest.skip("the user may not raise a process out of SCHED_IDLE")
    with child() as process:
        lower_priority(process.pid)
        start_threads(process)
        assert policies(process.pid) == [os.SCHED_IDLE] * 4
        end_idle(process.pid)
        assert policies(process.pid) == [os.SCHED_BATCH] * 4
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == max(10, os.getpriority(os.PRIO_PROCESS, 0))


def test_process_that_could_not_leave_idle_has_the_lowest_priority_from_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(child_process, "_can_leave_idle", lambda: False)
    with child() as process:
        lower_priority(process.pid)
        start_threads(process)
        end_idle(process.pid)
        assert policies(process.pid) == [os.SCHED_BATCH] * 4
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == 19


def test_process_that_has_ended_is_left_alone() -> None:
    with child() as process:
        process.kill()
        process.wait()
        lower_priority(process.pid)
        end_idle(process.pid)


def test_process_of_a_sandbox_that_forbids_it_keeps_its_priority_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(child_process, "_can_leave_idle", lambda: False)
    monkeypatch.setattr(child_process.os, "sched_setscheduler", refuse)
    caplog.set_level("INFO")
    with child() as process:
        lower_priority(process.pid)
        start_threads(process)
        assert policies(process.pid) == [os.SCHED_OTHER] * 4
    assert "keeps its priority" in caplog.text


def test_own_priority_stays() -> None:
    before = os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)
    child_process._can_leave_idle.cache_clear()
    child_process._can_leave_idle()
    assert (os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)) == before


def test_command_and_variables_limit_disk_and_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_process.shutil, "which", lambda name: f"/bin/{name}")
    assert background_command(["python", "-m", "x"]) == ("/bin/ionice", "-c", "3", "-t", "python", "-m", "x")
    monkeypatch.setattr(child_process.shutil, "which", lambda name: None)
    assert background_command(["python"]) == ("python",)
    assert background_variables()["LANCE_CPU_THREADS"] == "1"
