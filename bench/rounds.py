"""Rounds: the servers take turns under the same load, so that what else the machine does hits them alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from statistics import median

from bench.load import Lanes, Load, Measured, drive
from bench.servers import Server

Requests = Callable[[], Lanes]
"""Makes the requests of one round. Both servers get the same."""


@dataclass(slots=True)
class Side:
    """The measurements of one server in all rounds."""

    server: Server
    rounds: list[Measured] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def take(self, requests: Requests, load: Load) -> Measured:
        """One round more."""
        before = self.server.cpu_seconds()
        measured = drive(self.server.address, requests(), load)
        self.rounds.append(measured)
        self.cpu.append((self.server.cpu_seconds() - before) / max(1, measured.succeeded))
        return measured

    @property
    def rate(self) -> float:
        """Successes a second."""
        return median(measured.rate for measured in self.rounds)

    @property
    def p99(self) -> float:
        """Seconds that one request in a hundred takes longer than."""
        return median(measured.p99 for measured in self.rounds)

    @property
    def failed(self) -> int:
        """Failures in all rounds."""
        return sum(measured.failed for measured in self.rounds)

    def words(self) -> str:
        """The figures for the table."""
        p50, cpu = median(measured.p50 for measured in self.rounds), median(self.cpu)
        text = f"{self.rate:,.0f}/s, p50 {_time(p50)}, p99 {_time(self.p99)}, {_time(cpu)} CPU"
        if self.failed:
            kinds = sum((measured.failures for measured in self.rounds), Counter[int]())
            text += ", failed: " + ", ".join(f"{count}x {status or 'no answer'}" for status, count in kinds.items())
        if (busy := max(measured.busy for measured in self.rounds)) > 0.9:
            text += f", load generator {busy:.0%} busy"
        return text


def _time(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e3)):
        if seconds * scale >= 1:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e6:.0f} µs"


def alternate(servers: Iterable[Server], requests: Requests, load: Load, rounds: int) -> list[Side]:
    """Drive all servers in turn, several times."""
    sides = [Side(server) for server in servers]
    for _ in range(rounds):
        for side in sides:
            side.take(requests, load)
    return sides
