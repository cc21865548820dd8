"""Small appends by stock pylance: writers that share a table and commit through a server."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from statistics import median
from threading import Lock, Thread

import lance
from lance.namespace import RestNamespace

from bench import data
from bench.commits import CLIENTS, TRACKING, new_name
from bench.environment import Environment
from bench.results import Result, at_least
from bench.servers import Server
from bench.wire import ARROW, call, call_json, of_table


@dataclass(slots=True)
class Appends:
    """The appends of one server's writers in all rounds, and the acknowledged rows that are missing."""

    server: Server
    rates: list[float] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    acknowledged: int = 0
    lost: int = 0
    cpu: list[float] = field(default_factory=list)
    _lock: Lock = field(default_factory=Lock)

    @property
    def rate(self) -> float:
        """Acknowledged appends a second."""
        return median(self.rates)

    def words(self) -> str:
        """The figures for the table."""
        text = f"{self.rate:,.0f}/s, {median(self.cpu) * 1e3:.3g} ms CPU of the server"
        if self.failures:
            text += ", failed: " + ", ".join(f"{times}x {name}" for name, times in self.failures.items())
        if self.lost:
            text += f"; of {self.acknowledged} acknowledged rows {self.lost} lost"
        return text

    def take(self, seconds: float) -> None:
        """One round on a new table. Raises RuntimeError if Tiltyard lost a row."""
        name = new_name("appends")
        call(self.server.address, "POST", of_table(name, "create"), data.one_row(0), ARROW)
        before, started_at = self.server.cpu_seconds(), time.perf_counter()
        done = self._write(name, started_at + seconds)
        self.rates.append(done / (time.perf_counter() - started_at))
        self.cpu.append((self.server.cpu_seconds() - before) / max(1, done))
        self.acknowledged += done
        stored_rows = call_json(self.server.address, of_table(name, "count_rows")) - 1
        self.lost += max(0, done - stored_rows)
        if self.lost and self.server.name == "Tiltyard":
            raise RuntimeError(self.words())

    def _write(self, name: str, until: float) -> int:
        done = [0] * CLIENTS
        writers = [Thread(target=self._append, args=(name, until, done, number)) for number in range(CLIENTS)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        return sum(done)

    def _append(self, name: str, until: float, done: list[int], number: int) -> None:
        """One writer, with a client of its own; Lance itself repeats a commit that came second."""
        address = self.server.address
        uri = f"http://{address.host}:{address.port}"
        namespace = RestNamespace(uri=uri)  # type: ignore[no-untyped-call]  # pylance types little of this class
        row = data.rows(1, number)
        while time.perf_counter() < until:
            try:
                lance.write_dataset(row, namespace_client=namespace, table_id=name.split("$"), mode="append")
            except Exception as error:  # noqa: BLE001  # whatever it is, it is counted and shown in the table
                with self._lock:
                    self.failures[type(error).__name__] += 1
            else:
                done[number] += 1


def appends(environment: Environment) -> list[Result]:
    """Rows appended by pylance, which writes them itself and has the server commit them."""
    ours, tracking, plain = (Appends(placed.server) for placed in environment.managing)
    for _ in range(environment.rounds):
        for side in (ours, tracking, plain):
            side.take(environment.seconds)
    what = f"append of 1 row by pylance, {CLIENTS} writers, one table"
    alone = f"RestAdapter, clients commit by themselves: {plain.words()}"
    return [
        at_least("appends", what, (ours.words(), f"{TRACKING}: {tracking.words()}"), ours.rate / tracking.rate, 3),
        at_least("appends", f"{what}; as it comes", (ours.words(), alone), ours.rate / plain.rate, None),
    ]
