"""The measured processes: started, watched (memory, processor time), stopped."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.load import Address

TREE = Path(__file__).parents[1]
START_SECONDS = 60.0
STOP_SECONDS = 20.0
TICKS = os.sysconf("SC_CLK_TCK")
RESET_PEAK = "5"
"""What, written to /proc/PID/clear_refs, sets the peak of resident memory to what is resident now."""


class Server:
    """A server in a process of its own; what it says on standard error goes to a file."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        source: Path | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """Start `python -m command`; `source` is the folder `src` of another version to import from."""
        self.name = name
        self._log = log
        environment = {**os.environ, **({"PYTHONPATH": str(source)} if source else {}), **(environ or {})}
        with log.open("wb") as sink:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *command], stderr=sink, stdout=sink, cwd=TREE, env=environment
            )
        self.address = self._wait()

    def _wait(self) -> Address:
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until and self._process.poll() is None:
            if match := re.search(r"on https?://(\S+):(\d+)", self._log.read_text(errors="replace")):
                return Address(match[1], int(match[2]))
            time.sleep(0.05)
        self.stop()
        raise RuntimeError(f"{self.name} did not start:\n{self._log.read_text(errors='replace')}")

    @property
    def pid(self) -> int:
        """The number of its first process."""
        return self._process.pid

    def stop(self) -> None:
        """Ask it to end, and see that it does."""
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def kill(self) -> None:
        """End all its processes at once, as a machine that loses its power."""
        for process in self._processes():
            os.kill(process, signal.SIGKILL)

    def cpu_seconds(self) -> float:
        """Processor time that all its processes have used."""
        stats = (Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split() for process in self._processes())
        return sum(int(fields[11]) + int(fields[12]) for fields in stats) / TICKS

    def read_bytes(self) -> int:
        """Bytes that all its processes have read from files and sockets, also what the system had in memory."""
        files = (Path(f"/proc/{process}/io").read_text() for process in self._processes())
        return sum(int(text.split()[1]) for text in files)  # rchar

    def memory(self) -> int:
        """Bytes resident now in its largest process."""
        return self._most("VmRSS")

    def total_memory(self) -> int:
        """Bytes resident now in all its processes."""
        return sum(self._each("VmRSS"))

    def peak_memory(self) -> int:
        """Most bytes resident in one process since `reset_peak`."""
        return self._most("VmHWM")

    def reset_peak(self) -> None:
        """Start to look for the peak afresh."""
        for process in self._processes():
            Path(f"/proc/{process}/clear_refs").write_text(RESET_PEAK)

    def _processes(self) -> list[int]:
        first = self._process.pid
        children = Path(f"/proc/{first}/task/{first}/children").read_text().split()
        return [first, *map(int, children)]

    def _most(self, key: str) -> int:
        return max(self._each(key))

    def _each(self, key: str) -> list[int]:
        texts = [Path(f"/proc/{process}/status").read_text() for process in self._processes()]
        matches = [re.search(rf"^{key}:\s+(\d+) kB$", text, re.MULTILINE) for text in texts]
        return [int(match[1]) * 1024 for match in matches if match]


def tiltyard(
    root: Path,
    log: Path,
    workers: int,
    database: str | None = None,
    *,
    further: Sequence[str] = (),
    source: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> Server:
    """Start Tiltyard as a stranger does, on SQLite in its root unless a database is named; `further` flags last.

    `environ` has settings as variables.
    """
    flags = ["--root", str(root), "--port", "0", "--log-level", "warning", "--workers", str(workers)]
    flags += ["--db", database] if database else []
    return Server("Tiltyard", ["tiltyard", "serve", *flags, *further], log, source, environ)


def with_sql(root: Path, log: Path, workers: int) -> tuple[Server, int]:
    """Start Tiltyard, and wait until it serves SQL; return it with the port of that. Raises OSError if it does not."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    server = tiltyard(root, log, workers, further=("--sql-port", str(port)))
    until = time.monotonic() + START_SECONDS
    while True:
        try:
            socket.create_connection((server.address.host, port)).close()
        except OSError:
            if time.monotonic() > until:
                server.stop()
                raise
            time.sleep(0.05)
        else:
            return server, port


def peer(
    root: Path | str,
    log: Path,
    *,
    session: bool = False,
    tracking: bool = False,
    options: Mapping[str, str] | None = None,
) -> Server:
    """RestAdapter as it comes, with one session for all requests, or with managed versions."""
    flags = ["--session"] * session + ["--tracking"] * tracking
    flags += ["--options", json.dumps(dict(options))] if options else []
    return Server("RestAdapter", ["bench.peer", "--root", str(root), *flags], log)
