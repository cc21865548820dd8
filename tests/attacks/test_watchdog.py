"""The watchdog itself: it has to see what a server's processes take."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.attacks.watchdog import MemoryWatchdog, cpu_seconds, resident_mib

GREEDY = "import sys, time; held = b'x' * (200 << 20); time.sleep(0.3); print('held', flush=True); sys.stdin.read()"
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {GREEDY!r}], check=True)"


@pytest.mark.parametrize("program", [GREEDY, PARENT])
def test_watchdog_of_a_process_that_takes_more_than_the_bound_fails(program: str) -> None:
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        watchdog = MemoryWatchdog(process.pid, 100).__enter__()
        assert process.stdout.readline() == b"held\n"
        process.stdin.close()
        assert process.wait() == 0
        with pytest.raises(AssertionError, match="100 MiB are allowed"):
            watchdog.__exit__(None)
    assert resident_mib(process.pid) == 0


def test_cpu_seconds_of_a_busy_process_rise() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        while cpu_seconds(process.pid) < 0.2:
            pass
        process.kill()
