"""A process of writers and readers: reads its orders as JSON and a line to begin, and ends at the end of its input."""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from tests.faults.soak.clients import Batches, Generated, Lancedb, Pylance, outcome_of
from tests.faults.soak.journal import Attempt, Journal, Kind, Outcome, Read, now

WEIGHTS = {
    Kind.APPEND: 32,
    Kind.MERGE: 14,
    Kind.DELETE: 12,
    Kind.OVERWRITE: 4,
    Kind.RESTORE: 4,
    Kind.TAG: 6,
    Kind.BATCH: 28,
}
HOT = tuple(f"hot{i}" for i in range(6))
"""Keys that every table has: overwrites write them, deletes leave them, merges update them."""
_BACK = 5
_MAX_FAILURES = 4
_PAUSE_SECONDS = 0.06


@dataclass(frozen=True)
class Orders:
    """The orders of a process; `first` is the number of its first writer among those of all processes.

    `patience` is how many seconds a call may take after the end of the run."""

    urls: list[str]
    tables: list[str]
    folder: str
    seed: int
    first: int
    writers: int
    readers: int
    patience: float


class Writer:
    """A thread that writes through one client and records the outcomes."""

    def __init__(self, orders: Orders, number: int) -> None:
        self._tables = orders.tables
        self._chance = random.Random(f"{orders.seed} {number}")
        self._name = f"w{number:02}"
        self._journal = Journal(Path(orders.folder) / f"{self._name}.jsonl")
        kind = (Lancedb, Pylance, Generated)[number % 3]
        self._clients: list[Any] = [kind(url) for url in orders.urls]
        self._batches = [Batches(url) for url in orders.urls]
        self._latest = dict.fromkeys(orders.tables, 1)
        self._mine: dict[str, deque[str]] = {table: deque(maxlen=6) for table in orders.tables}
        self._count = 0

    def run(self, stop: threading.Event) -> None:
        """Write until the run ends."""
        failures = 0
        while not stop.is_set():
            outcome = self._try(self._next())
            failures = 0 if outcome is Outcome.ACKNOWLEDGED else min(failures + 1, _MAX_FAILURES)
            stop.wait(self._chance.expovariate(1 / (_PAUSE_SECONDS * (1 + failures))))
        self._journal.close()

    def _next(self) -> Attempt:
        """Choose the next attempt. The first tables are written most often, the last ones rarely."""
        self._count += 1
        name = f"{self._name}-{self._count}"
        (kind,) = self._chance.choices(list(WEIGHTS), list(WEIGHTS.values()))
        heat = [1 / (1 + i) for i in range(len(self._tables))]
        (table,) = self._chance.choices(self._tables, heat)
        keys = tuple(f"{name}.{i}" for i in range(self._chance.randint(1, 3)))
        target = 0
        match kind:
            case Kind.BATCH:
                number = self._chance.choices(range(2, len(self._tables) + 1), [8, 3, 1, 1][: len(self._tables) - 1])[0]
                start = self._chance.choice((0, len(self._tables) - number))  # the calm ones, every other time
                chosen = sorted(self._chance.sample(self._tables[start:], number))
                return Attempt(name, kind, {table: (f"{name}.{table}",) for table in chosen}, client="batch")
            case Kind.OVERWRITE:
                keys = (*HOT, *keys)
            case Kind.MERGE:
                keys = (*self._chance.sample(HOT, 2), *keys)
            case Kind.DELETE:
                keys = tuple(self._mine[table])[:3] or keys
            case Kind.RESTORE | Kind.TAG:
                target = max(1, self._latest[table] - self._chance.randrange(_BACK))
                keys = ()
            case _:
                pass
        return Attempt(name, kind, {table: keys}, target, self._clients[0].name)

    def _try(self, attempt: Attempt) -> Outcome:
        started = replace(attempt, start=now())
        self._journal.write(started)
        try:
            versions = self._do(attempt)
        except Exception as error:  # noqa: BLE001  # whatever a client raises is an answer to note
            outcome, text = outcome_of(error), f"{type(error).__name__}: {error}"[:600]
            ended = replace(started, end=now(), outcome=outcome, error=text)
        else:
            versions = {table: version for table, version in versions.items() if version}
            ended = replace(started, end=now(), outcome=Outcome.ACKNOWLEDGED, versions=versions)
            for table, version in versions.items():
                self._latest[table] = max(self._latest[table], version)
        if attempt.kind in {Kind.APPEND, Kind.MERGE} and ended.outcome is not Outcome.REFUSED:
            (table,) = attempt.tables
            self._mine[table].extend(key for key in attempt.keys[table] if key not in HOT)
        self._journal.write(ended)
        return ended.outcome

    def _do(self, attempt: Attempt) -> dict[str, int]:
        if attempt.kind is Kind.BATCH:
            batches = self._chance.choice(self._batches)
            return batches.commit({table: attempt.rows(table) for table in attempt.tables})
        client = self._chance.choice(self._clients)
        (table,) = attempt.tables
        match attempt.kind:
            case Kind.APPEND:
                version = client.append(table, attempt.rows(table))
            case Kind.OVERWRITE:
                version = client.overwrite(table, attempt.rows(table))
            case Kind.MERGE:
                version = client.merge(table, attempt.rows(table))
            case Kind.DELETE:
                version = client.delete(table, attempt.name, attempt.keys[table])
            case Kind.RESTORE:
                version = client.restore(table, attempt.target)
            case _:
                version = client.tag(table, attempt.name, attempt.target) or 0
        return {table: version}


class Reader:
    """A thread that reads table after table, through one client after another."""

    def __init__(self, orders: Orders, number: int) -> None:
        self._orders = orders
        self._chance = random.Random(f"{orders.seed} reader {number}")
        self._name = f"r{number:02}"
        self._journal = Journal(Path(orders.folder) / f"{self._name}.jsonl")
        kinds = (Pylance, Generated, Lancedb)
        self._clients: list[Any] = [kind(url) for kind in kinds for url in orders.urls]

    def run(self, stop: threading.Event) -> None:
        """Read until the run ends; failed reads are not recorded."""
        while not stop.is_set():
            table, client = self._chance.choice(self._orders.tables), self._chance.choice(self._clients)
            start = now()
            try:
                digest, version = client.read(table)
            except Exception as error:  # noqa: BLE001  # servers die: the next read may do better
                outcome_of(error)
                stop.wait(_PAUSE_SECONDS)
            else:
                self._journal.write(Read(f"{self._name} ({client.name})", table, start, now(), digest, version))
                stop.wait(self._chance.expovariate(2 / _PAUSE_SECONDS))
        self._journal.close()


def main() -> None:
    """Run threads until standard input ends."""
    orders = msgspec.json.decode(sys.stdin.readline(), type=Orders)
    stop = threading.Event()
    workers = [Writer(orders, orders.first + i) for i in range(orders.writers)]
    readers = [Reader(orders, orders.first + i) for i in range(orders.readers)]
    threads = [threading.Thread(target=worker.run, args=(stop,), daemon=True) for worker in (*workers, *readers)]
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()  # "go"
    for thread in threads:
        thread.start()
    sys.stdin.read()
    stop.set()
    deadline = time.monotonic() + orders.patience
    for thread in threads:
        thread.join(max(deadline - time.monotonic(), 0))
    sys.stdout.flush()
    os._exit(0)  # a call that hangs is an attempt without an end; nobody need wait for it


if __name__ == "__main__":
    main()
