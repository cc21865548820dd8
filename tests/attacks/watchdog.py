"""Watch how much memory a server takes while it is attacked."""

from __future__ import annotations

import itertools
import os
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tests.services.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

SAMPLE_SECONDS = 0.02
EXACT_SAMPLES = 10
"""After so many samples it looks for new descendants, and counts pages that processes share by parts.

That takes much longer than a sample, and holds up what the process does with its memory meanwhile.
"""

measured: list[MemoryWatchdog] = []
"""Those that have watched since a test began: the table of attacks shows the highest peak of them."""


class MemoryWatchdog:
    """Sample the resident memory of a process and its descendants, in MiB; fail where it passes a bound.

    Java is left out: Spark's heap has a bound of its own. A process that ends between two samples counts until then.
    """

    def __init__(self, pid: int, bound_mib: float) -> None:
        """Watch from now on, once it is entered."""
        self.pid, self.bound_mib = pid, bound_mib
        self.first_mib = self.peak_mib = 0.0
        self._ended = threading.Event()
        self._sampler = threading.Thread(target=self._sample, name="memory-watchdog", daemon=True)

    def __enter__(self) -> Self:
        self.first_mib = self.peak_mib = resident_mib(self.pid)
        self._sampler.start()
        measured.append(self)
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        self._ended.set()
        self._sampler.join()
        self.look()
        if error is None:
            assert self.peak_mib <= self.bound_mib, (
                f"The server's memory rose from {self.first_mib:.0f} to {self.peak_mib:.0f} MiB; "
                f"{self.bound_mib:.0f} MiB are allowed."
            )

    def _sample(self) -> None:
        family: list[int] = []
        highest = 0
        for number in itertools.count():
            if self._ended.wait(SAMPLE_SECONDS):
                return
            is_exact = number % EXACT_SAMPLES == 0
            if is_exact:
                family = list(_family(self.pid))
            mapped = sum(map(_mapped_pages, family))
            if is_exact or mapped > highest:
                self._note(_resident_mib(family))
            highest = max(highest, mapped)

    def look(self) -> float:
        """Take a sample now, and return it."""
        now = resident_mib(self.pid)
        self._note(now)
        return now

    def _note(self, mib: float) -> None:
        self.peak_mib = max(self.peak_mib, mib)


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process and its descendants without Java, in MiB; 0 where it has ended."""
    return _resident_mib(_family(pid))


def cpu_seconds(pid: int) -> float:
    """Return the processor time of a process and its living descendants without Java, in seconds."""
    ticks = 0
    for process in _family(pid):
        try:
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _resident_mib(processes: Iterable[int]) -> float:
    return sum(map(_resident_kib, processes)) / 1024


def _family(pid: int) -> Iterator[int]:
    yield pid
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:  # it has ended
        return
    for thread in threads:
        try:
            children = (thread / "children").read_text().split()
        except OSError:
            continue
        for child in map(int, children):
            if not _is_java(child):
                yield from _family(child)


def _is_java(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/exe").readlink().name == "java"
    except OSError:
        return False


def _mapped_pages(pid: int) -> int:
    """Return how many pages of memory one process has, which is told at once; shared ones are counted in each."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:  # it has ended
        return 0


def _resident_kib(pid: int) -> int:
    """Return the memory of one process, what it shares with others by its part: a fork shares most of its parent's."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # it has ended
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


@contextmanager
def watched(server: ServerProcess, *, bound_mib: float) -> Iterator[MemoryWatchdog]:
    """Fail where the memory of a server passes a bound within the block."""
    with MemoryWatchdog(server.process.pid, bound_mib) as watchdog:
        yield watchdog


@contextmanager
def attacked_server(
    folder: Path,
    *flags: str,
    bound_mib: float = 600,
    environ: Mapping[str, str] | None = None,
    descriptors: int | None = None,
) -> Iterator[ServerProcess]:
    """Start a server of its own for one attack, under a watchdog; it has to stop in order afterwards."""
    server = ServerProcess(folder, *flags, environ=environ, descriptors=descriptors)
    try:
        with watched(server, bound_mib=bound_mib):
            yield server
        assert server.process.poll() is None, "The attack ended the server:\n" + "".join(server.log)
        assert server.stop() == 0
    finally:
        if server.process.poll() is None:
            server.kill()
