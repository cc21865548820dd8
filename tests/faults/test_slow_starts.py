"""Server processes that are slow to import, or suspended: they are not treated as dead."""

from __future__ import annotations

import http.client
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.faults.conftest import Installation, wait_until
from tests.services.server import ServerProcess

pytestmark = pytest.mark.extended

SLOW_SECONDS = 8
"""Longer than the timeout of uvicorn's own supervisor (5 s)."""
SLOW_START = f"""
import sys, time
if any("spawn_main" in word for word in sys.orig_argv):
    time.sleep({SLOW_SECONDS})
"""


BROKEN_START = """
import os, sys
if any("spawn_main" in word for word in sys.orig_argv):
    os._exit(7)
"""


def search_path(folder: Path) -> str:
    """Return a PYTHONPATH that begins with a folder."""
    return os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))


def request_status(server: ServerProcess) -> int:
    """Send a request on a new connection; return the response's status."""
    client = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=120)
    try:
        client.request("GET", "/health/live")
        return client.getresponse().status
    finally:
        client.close()


def test_processes_whose_imports_take_long_come_to_serve(small_installation: Installation, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(SLOW_START)
    server = small_installation.start("--workers", "2", PYTHONPATH=search_path(tmp_path))
    wait_until(lambda: len(server.workers) == 2, "both processes are there")
    first = server.workers
    assert request_status(server) == 200
    assert server.workers == first
    for process in first:
        assert str(small_installation.root).encode() not in Path(f"/proc/{process}/environ").read_bytes()
    assert not [line for line in server.log if "server process" in line], server.log
    assert server.stop() == 0


def test_process_that_stands_still_for_a_while_stays_and_one_that_is_killed_is_replaced(
    small_installation: Installation,
) -> None:
    server = small_installation.start("--workers", "2")
    wait_until(lambda: len(server.workers) == 2, "both processes are there")
    suspended, killed = server.workers
    assert request_status(server) == 200
    os.kill(suspended, signal.SIGSTOP)
    try:
        until = time.monotonic() + SLOW_SECONDS
        while time.monotonic() < until:
            assert request_status(server) == 200
            time.sleep(0.5)
    finally:
        os.kill(suspended, signal.SIGCONT)
    assert server.workers == [suspended, killed]
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: len(server.workers) == 2 and killed not in server.workers, "another one is there", 20)
    assert suspended in server.workers and request_status(server) == 200
    wait_until(lambda: any(f"server process {killed} was ended by SIGKILL" in line for line in server.log), "told")
    assert server.stop() == 0


def test_process_that_stands_still_for_longer_than_its_timeout_is_replaced(small_installation: Installation) -> None:
    server = small_installation.start("--workers", "2", TILTYARD_WORKER_TIMEOUT="10")
    wait_until(lambda: len(server.workers) == 2, "both processes are there")
    assert request_status(server) == 200
    suspended = server.workers[0]
    os.kill(suspended, signal.SIGSTOP)
    wait_until(lambda: len(server.workers) == 2 and suspended not in server.workers, "another one is there")
    message = f"server process {suspended} was killed after no heartbeat for 10 s: another one starts now"
    wait_until(lambda: any(message in line for line in server.log), "told")
    assert server.stop() == 0


def test_server_none_of_whose_processes_starts_ends_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(BROKEN_START)
    command = [sys.executable, "-m", "tiltyard", "serve", "--root", str(tmp_path / "root"), "--port", "0"]
    environ = {**os.environ, "PYTHONPATH": search_path(tmp_path)}
    done = subprocess.run(
        [*command, "--workers", "2"], capture_output=True, text=True, env=environ, timeout=120, check=False
    )
    assert done.returncode == 1
    *lines, last = done.stderr.splitlines()
    assert re.fullmatch(
        r"tiltyard: No server process could start: process \d+ ended with status 7\. The lines above say why\.", last
    )
    assert 2 <= len([line for line in lines if "ended with status 7: another one starts" in line]) <= 4
