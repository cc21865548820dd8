"""Read how much memory there is and how much is left: of the machine, or of the container of this process if less."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FREE_SHARE = 0.1
"""Share of all memory that has to be left: with less it is short, and what can be made anew is dropped."""
_MEMINFO = re.compile(r"^(MemTotal|MemAvailable):\s+(\d+) kB$", re.MULTILINE)
_FILES = (("memory.max", "memory.current", ""), ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"))
"""Of control groups of version 2 and 1: the limit, the usage, and how names in `memory.stat` begin that count groups
within a group."""


@dataclass(frozen=True, slots=True)
class SystemMemory:
    """All memory that a process can use, and how much of it is left, in bytes."""

    total: int
    available: int

    def missing(self, size: int = 0) -> int:
        """Return how many bytes have to be freed for enough to be left once `size` more are taken."""
        return max(0, int(FREE_SHARE * self.total) + size - self.available)


def read_system_memory(processes: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> SystemMemory | None:
    """Return the memory of this machine, or of the control group with the least; None where the system does not tell.

    Pages of files count as left: the kernel takes them back.
    """
    try:
        numbers = {name: int(size) << 10 for name, size in _MEMINFO.findall((processes / "meminfo").read_text())}
        total, available = numbers["MemTotal"], numbers["MemAvailable"]
    except (OSError, KeyError):
        return None
    for folder in _group_folders(processes, groups):
        for limit_name, usage_name, prefix in _FILES:
            try:
                limit = int((folder / limit_name).read_text())
                usage = int((folder / usage_name).read_text())
                stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
                files = int(stat[f"{prefix}active_file"]) + int(stat[f"{prefix}inactive_file"])
            except (OSError, ValueError, KeyError):  # of the other version, or without a limit
                continue
            total, available = min(total, limit), min(available, limit - usage + files)
    return SystemMemory(total, max(0, available))


def _group_folders(processes: Path, groups: Path) -> Iterator[Path]:
    """Yield the folders of this process's control groups, each before the one that it is in, whose limit holds, too."""
    try:
        lines = (processes / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        # In a container the path may be the host's, and its last folder that is there the container's own.
        root = groups / "memory" if controllers else groups
        folder = root / path.lstrip("/")
        yield from (each for each in (folder, *folder.parents) if each.is_relative_to(root))


def private_bytes(process: int | None) -> int:
    """Return the memory that a process has for itself; 0 where the system does not report it, or it has ended."""
    try:
        fields = Path(f"/proc/{process}/statm").read_text().split()
    except OSError:
        return 0
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")
