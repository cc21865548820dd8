"""The cost of a start: `python -m bench.starting`, and `--against ANOTHER/src` for that of another version.

A server is started on an empty root again and again, `--workers` 1 and 2, until each of its processes has answered;
with Python's compiled files, and without any (`cold`: a container's first start). The versions take turns, and medians
are shown: processor time of all processes, which a busy machine changes little, and time on the clock.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from bench.servers import TICKS

HERE = Path(__file__).parents[1] / "src"
MAX_SECONDS = 180.0


@dataclass(frozen=True, slots=True)
class Started:
    """One start."""

    cpu: float
    clock: float
    memory_mb: float


def start(source: Path, workers: int, *, cold: bool) -> Started:
    """Start a server of these sources, and stop it once all its processes serve."""
    with tempfile.TemporaryDirectory(prefix="tiltyard-starting-") as folder:
        environment = {**os.environ, "PYTHONPATH": str(source)}
        if cold:
            environment |= {"PYTHONPYCACHEPREFIX": f"{folder}/compiled", "PYTHONDONTWRITEBYTECODE": ""}
        flags = ["--root", f"{folder}/root", "--port", "0", "--workers", str(workers)]
        log = Path(folder) / "log"
        started_at = time.monotonic()
        with log.open("wb") as sink:
            command = [sys.executable, "-m", "tiltyard", "serve", *flags]
            process = subprocess.Popen(command, stderr=sink, stdout=sink, env=environment, cwd=folder)
        try:
            _wait(process, log, workers)
            started = Started(_cpu(process.pid), time.monotonic() - started_at, _memory(process.pid))
        finally:
            process.terminate()
            process.wait()
        return started


def _wait(process: subprocess.Popen[bytes], log: Path, workers: int) -> None:
    """Return when all processes serve: it has said where, answers, and each of them listens."""
    until = time.monotonic() + MAX_SECONDS
    while time.monotonic() < until and process.poll() is None:
        match = re.search(r"on (http://\S+)", log.read_text(errors="replace"))
        if match and _serving(process.pid) >= (workers if workers > 1 else 0):
            with urllib.request.urlopen(f"{match[1]}/health/live", timeout=MAX_SECONDS) as response:
                response.read()
            return
        time.sleep(0.02)
    raise RuntimeError(f"no start:\n{log.read_text(errors='replace')}")


def _serving(parent: int) -> int:
    """Return how many child processes wait for events, as they do once their event loop runs."""
    loops = 0
    for child in _children(parent):
        try:
            loops += any("eventpoll" in str(file.readlink()) for file in Path(f"/proc/{child}/fd").iterdir())
        except FileNotFoundError:  # a file that was closed, or a process that ended, meanwhile
            continue
    return loops


def _children(parent: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def _cpu(parent: int) -> float:
    stats = (Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split() for one in (parent, *_children(parent)))
    return sum(int(fields[11]) + int(fields[12]) for fields in stats) / TICKS


def _memory(parent: int) -> float:
    """Megabytes resident in the largest process."""
    texts = [Path(f"/proc/{one}/status").read_text() for one in (parent, *_children(parent))]
    return max(int(re.findall(r"^VmRSS:\s+(\d+) kB$", text, re.MULTILINE)[0]) for text in texts) / 1024


def main() -> None:
    """Start all versions in turn, and print the medians."""
    parser = argparse.ArgumentParser(prog="python -m bench.starting", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--against", type=Path, help="the folder `src` of another version")
    arguments = parser.parse_args()
    sources = [source for source in (arguments.against, HERE) if source is not None]
    print("| start | version | CPU s | clock s | memory MB |\n|---|---|---|---|---|")
    for workers, cold in ((1, False), (2, False), (1, True), (2, True)):
        rounds = [[start(source, workers, cold=cold) for source in sources] for _ in range(arguments.rounds)]
        for name, starts in zip(("before", "now")[-len(sources) :], zip(*rounds, strict=True), strict=True):
            cpu, clock, memory = (
                statistics.median(getattr(start_figures, key) for start_figures in starts)
                for key in ("cpu", "clock", "memory_mb")
            )
            what = f"{workers} process{'es' if workers > 1 else ''}, {'cold' if cold else 'warm'}"
            print(f"| {what} | {name} | {cpu:.2f} | {clock:.2f} | {memory:.0f} |", flush=True)


if __name__ == "__main__":
    main()
