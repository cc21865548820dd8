"""The supervisor of a server's processes: it replaces those that ended or hang, not slow ones, and stops all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.faults.conftest import wait_until

SILENCE = 6.0


class Supervised:
    """A supervisor over toy processes, and its log."""

    def __init__(self, folder: Path, number: int = 2, silence: float = SILENCE, stop_seconds: float = 30) -> None:
        self.folder = folder
        self.output = folder / "output"
        arguments = [str(folder), str(number), str(silence), str(stop_seconds)]
        with self.output.open("wb") as output:
            command = [sys.executable, "-m", "tests.faults.supervised", *arguments]
            self.process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)

    @property
    def started(self) -> list[int]:
        """The ids of all processes that were ever started."""
        file = self.folder / "started"
        return [int(line) for line in file.read_text().split()] if file.exists() else []

    @property
    def log_lines(self) -> list[str]:
        return self.output.read_text().splitlines()

    def wait_for(self, number: int) -> list[int]:
        """Wait until so many processes have been started; return their ids."""
        wait_until(lambda: len(self.started) >= number, f"{number} processes have started")
        return self.started

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


def is_alive(pid: int) -> bool:
    """Return whether a process exists and is no zombie."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.fixture
def supervise(tmp_path: Path) -> Iterator[Callable[..., Supervised]]:
    """A function that starts a supervisor; all its processes end with the test."""
    running: list[Supervised] = []

    def start(**options: float) -> Supervised:
        running.append(Supervised(tmp_path, **options))  # type: ignore[arg-type]
        return running[-1]

    yield start
    for supervised in running:
        supervised.process.kill()
        supervised.process.wait()
        for pid in supervised.started:
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)


def test_process_that_is_killed_is_replaced_at_once_and_its_signal_is_logged(
    supervise: Callable[..., Supervised],
) -> None:
    supervised = supervise(silence=600)
    first, second = supervised.wait_for(2)
    os.kill(first, signal.SIGKILL)
    supervised.wait_for(3)
    assert supervised.log_lines == [f"server process {first} was ended by SIGKILL: another one starts now"]
    assert is_alive(second)
    assert supervised.stop() == 0
    assert not any(map(is_alive, supervised.started))


def test_process_that_is_stopped_for_a_while_stays_and_one_that_stays_silent_is_replaced(
    supervise: Callable[..., Supervised],
) -> None:
    supervised = supervise()
    first, second = supervised.wait_for(2)
    os.kill(first, signal.SIGSTOP)
    time.sleep(SILENCE / 3)
    os.kill(first, signal.SIGCONT)
    assert supervised.log_lines == [] and is_alive(first)
    os.kill(second, signal.SIGSTOP)
    supervised.wait_for(3)
    line = f"server process {second} was killed after no heartbeat for {SILENCE:g} s: another one starts now"
    assert supervised.log_lines == [line] and not is_alive(second)
    assert supervised.stop() == 0


@pytest.mark.extended
def test_supervisor_that_was_stopped_itself_kills_no_process(supervise: Callable[..., Supervised]) -> None:
    """As on a machine that slept: all heartbeats of that time are missing, or wait in the pipe."""
    supervised = supervise()
    processes = supervised.wait_for(2)
    for pid in (supervised.process.pid, *processes):
        os.kill(pid, signal.SIGSTOP)
    time.sleep(SILENCE + 1)
    os.kill(supervised.process.pid, signal.SIGCONT)
    time.sleep(1)  # it checks twice a second
    for pid in processes:
        os.kill(pid, signal.SIGCONT)
    assert supervised.started == processes and supervised.log_lines == []
    assert supervised.stop() == 0


def test_processes_that_all_end_at_their_start_end_the_command_with_the_reason(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    (tmp_path / "die").touch()
    supervised = supervise()
    assert supervised.process.wait(60) == 1
    assert 3 <= len(supervised.started) <= 6
    assert supervised.log_lines[-1].startswith("none served: ") and supervised.log_lines[-1].endswith(
        "ended with status 3"
    )


@pytest.mark.extended
def test_process_that_ends_at_its_start_over_and_over_is_started_after_pauses(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    supervised = supervise(number=1)
    [first] = supervised.wait_for(1)
    (tmp_path / "die").touch()
    os.kill(first, signal.SIGKILL)
    begin = time.monotonic()
    supervised.wait_for(4)
    assert time.monotonic() - begin > 2  # a pause of 1 second, one of 2: else it would be as fast as Python starts
    wait_until(lambda: len(supervised.log_lines) == 4, "the fourth has ended")
    assert [line.rpartition("starts ")[2] for line in supervised.log_lines] == ["now", "in 1 s", "in 2 s", "in 4 s"]
    (tmp_path / "die").unlink()
    last = supervised.wait_for(5)[-1]
    assert supervised.stop() == 0 and not is_alive(last)
    assert len(supervised.log_lines) == 4


def test_processes_end_when_their_parent_is_killed(supervise: Callable[..., Supervised]) -> None:
    supervised = supervise()
    processes = supervised.wait_for(2)
    supervised.process.kill()
    supervised.process.wait()
    wait_until(lambda: not any(map(is_alive, processes)), "they have ended", 20)


def test_hangup_restarts_all_processes_one_after_the_other(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    supervised = supervise(silence=600)
    old = supervised.wait_for(2)
    supervised.process.send_signal(signal.SIGHUP)
    new = supervised.wait_for(4)[2:]
    wait_until(lambda: not any(map(is_alive, old)), "the old ones have ended")
    assert all(map(is_alive, new)) and supervised.log_lines == []
    (tmp_path / "die").touch()
    supervised.process.send_signal(signal.SIGHUP)
    wait_until(lambda: supervised.log_lines, "the failure is logged")
    [line] = supervised.log_lines
    assert line.endswith("ended with status 3: the processes that serve are not replaced")
    assert all(map(is_alive, new)) and len(supervised.started) == 5
    assert supervised.stop() == 0


def test_hangup_keeps_the_old_process_until_the_new_one_serves(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    supervised = supervise(silence=600, number=1)
    [old] = supervised.wait_for(1)
    (tmp_path / "late").touch()
    supervised.process.send_signal(signal.SIGHUP)
    new = supervised.wait_for(2)[1]
    time.sleep(1)
    assert is_alive(old) and is_alive(new)
    assert supervised.stop() == 0


def test_stop_kills_a_process_that_does_not_end(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    (tmp_path / "stay").touch()
    supervised = supervise(silence=600, stop_seconds=1)
    processes = supervised.wait_for(2)
    assert supervised.stop() == 0
    assert not any(map(is_alive, processes))
    assert len(supervised.log_lines) == 2 and all("did not end within 1 s" in line for line in supervised.log_lines)
