"""The figures of a server over its last hours: what /metrics counts, noted at intervals, in a ring in memory.

Every process has the figures of all processes of its server, of the counts that they share.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from tiltyard.api.metrics import is_alive
from tiltyard.api.request_log import SECONDS, UNROUTED

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from tiltyard.api.request_log import ProcessCounts, RequestCounts, Tally

INTERVAL_SECONDS = 30.0
SAMPLES = 480
"""Samples that are held: those of four hours."""
WAITING = " waiting for a thread"
"""How the names of those loads end that are queues of requests."""
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

log = logging.getLogger("tiltyard.api")


@dataclass(frozen=True, slots=True)
class Sample:
    """The figures of one interval, which ended at `at` (s since 1970).

    Requests and errors (statuses of 500 and more) a second, and the seconds until the first byte within which half and
    99 % of the requests were answered (None without requests), are of the interval; the others of its end. `memory` is
    that of all processes, in bytes, None where the system does not tell.
    """

    at: float
    requests: float
    errors: float
    p50: float | None
    p99: float | None
    running: int
    waiting: float
    memory: int | None
    processes: int


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts since the start, of all processes: requests, errors, and how many were within each of SECONDS."""

    at: float
    requests: int
    errors: int
    within: Sequence[int]

    @classmethod
    def of(cls, processes: Iterable[ProcessCounts], now: float) -> Totals:
        """Add up the counts of processes; without requests that no operation served, as those of pages and probes."""
        tallies = [tally for process in processes for tally in process.tallies if tally.operation != UNROUTED]
        within = [0] * (len(SECONDS) + 1)
        for tally in tallies:
            within = [a + b for a, b in zip(within, tally.first_within, strict=True)]
        errors = sum(tally.requests for tally in tallies if tally.status >= 500)
        return cls(now, sum(tally.requests for tally in tallies), errors, within)


@dataclass(frozen=True, slots=True)
class OperationFigures:
    """The requests and errors of one operation, and the seconds within which half and 99 % were answered."""

    name: str
    requests: int
    errors: int
    p50: float | None
    p99: float | None


class MetricsHistory:
    """The ring of one process. `start` and `stop` belong to its event loop, all else may be called in any thread."""

    def __init__(self, counts: RequestCounts, pool: Executor, clock: Callable[[], float] = time.time) -> None:
        self._counts = counts
        self._pool = pool
        self._clock = clock
        self._samples: deque[Sample] = deque(maxlen=SAMPLES)
        self._before: Totals | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def samples(self) -> Sequence[Sample]:
        """The samples, the oldest first."""
        return tuple(self._samples)

    def start(self) -> None:
        """Note the figures now, and after each interval."""
        self._note()

    def stop(self) -> None:
        """Note nothing more."""
        if self._timer is not None:
            self._timer.cancel()

    def _note(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(INTERVAL_SECONDS, self._note)
        self._counts.share()
        noting = loop.run_in_executor(self._pool, self.add, self._counts.encoded())
        noting.add_done_callback(_log_failure)

    def add(self, counts: bytes) -> None:
        """Add the sample of the interval that ends now; the first call begins the first one."""
        processes = self._counts.read_processes(counts)
        totals = Totals.of(processes, self._clock())
        if self._before is not None:
            self._samples.append(make_sample(self._before, totals, processes))
        self._before = totals

    def current(self, counts: bytes) -> Sample:
        """Return the figures since the last sample, which stays the last one."""
        processes = self._counts.read_processes(counts)
        totals = Totals.of(processes, self._clock())
        return make_sample(self._before or totals, totals, processes)


def make_sample(before: Totals, after: Totals, processes: Sequence[ProcessCounts]) -> Sample:
    """Return the figures of the time between two totals. Counts of a process that is gone count as none."""
    seconds = max(after.at - before.at, 1e-3)
    within = [max(0, new - old) for old, new in zip(before.within, after.within, strict=True)]
    alive = [process for process in processes if is_alive(process.pid)]
    memories = [memory for process in alive if (memory := read_memory(process.pid)) is not None]
    return Sample(
        at=after.at,
        requests=max(0, after.requests - before.requests) / seconds,
        errors=max(0, after.errors - before.errors) / seconds,
        p50=quantile(within, 0.5),
        p99=quantile(within, 0.99),
        running=sum(process.running for process in alive),
        waiting=sum(load for process in alive for name, load in process.loads.items() if name.endswith(WAITING)),
        memory=sum(memories) if memories else None,
        processes=len(alive),
    )


def quantile(within: Sequence[int], share: float) -> float | None:
    """Return the time below which a share (above 0) of requests is; None without requests.

    `within` has how many took longer than the bound of SECONDS before, and up to that of their own.
    """
    sums = list(accumulate(within))
    if not sums[-1]:
        return None
    rank = share * sums[-1]
    index = bisect_left(sums, rank)
    if index == len(SECONDS):
        return SECONDS[-1]
    low, high = (SECONDS[index - 1] if index else 0.0), SECONDS[index]
    before = sums[index] - within[index]
    return low + (high - low) * (rank - before) / within[index]


def read_memory(pid: int) -> int | None:
    """Return the bytes of memory that a process of this machine holds; None where the system does not tell."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return None


def operation_figures(processes: Iterable[ProcessCounts]) -> list[OperationFigures]:
    """Return the figures of each operation since the start, that with the most requests first."""
    tallies: dict[str, list[Tally]] = {}
    for tally in (tally for process in processes for tally in process.tallies if tally.operation != UNROUTED):
        tallies.setdefault(tally.operation, []).append(tally)
    figures = [_operation_figures(name, of_one) for name, of_one in tallies.items()]
    return sorted(figures, key=lambda each: -each.requests)


def _operation_figures(name: str, tallies: Sequence[Tally]) -> OperationFigures:
    within = [sum(numbers) for numbers in zip(*(tally.first_within for tally in tallies), strict=True)]
    return OperationFigures(
        name,
        sum(tally.requests for tally in tallies),
        sum(tally.requests for tally in tallies if tally.status >= 500),
        quantile(within, 0.5),
        quantile(within, 0.99),
    )


def _log_failure(noting: asyncio.Future[None]) -> None:
    if not noting.cancelled() and (error := noting.exception()) is not None:
        log.warning("cannot note the figures of this server: %s", error)
