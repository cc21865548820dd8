"""Processor time of a process and of all that it has started."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def tree_seconds(process: int) -> float:
    """Return the seconds, of user and system, of a process, its descendants, and those of them that have ended.

    Those of a process whose parent ended before it are lost: a difference of two calls is too small where Spark has
    ended its idle Python workers in between, as it does after a minute.
    """
    return sum(_ticks(number) for number in _descendants(process)) / TICKS


def _ticks(process: int) -> int:
    with suppress(FileNotFoundError, ProcessLookupError):
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15]))  # its own, and that of children it has waited for
    return 0


def _descendants(process: int) -> Iterator[int]:
    yield process
    with suppress(FileNotFoundError, ProcessLookupError):
        for thread in Path(f"/proc/{process}/task").iterdir():
            for child in (thread / "children").read_text().split():
                yield from _descendants(int(child))
