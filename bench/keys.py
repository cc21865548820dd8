"""What a primary key costs an insert: `python -m bench.keys [--rows N] [--rounds N]`.

Two tables of one server have the same rows, shuffled ids with room between them, and an index; one declares `id` as its
key. Both get inserts, on one connection, in short turns one after the other, so that all that slows the machine slows
both. The new ids come next, as those of a counter, or lie among the others. Upkeep is off: what the index lacks grows
from turn to turn. Shown are medians of a request's duration and the processor time of the server for one.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from statistics import median

import lance
import numpy as np
import pyarrow as pa

from bench import servers
from bench.load import Load, drive
from bench.servers import Server
from bench.upkeep import register
from bench.wire import ARROW, call_json, of_table, request, stream

PLAIN, KEYED = "plain", "keyed"
BULK, BULK_ROWS = 100_000, 1_000_000
_ROWS_PER_FILE = 1 << 20
_STEP = 16
"""Ids of the rows before are multiples of this: new ones find room among them."""
_LIMIT = 1.5
"""What an insert of one row may take, in times of one without a key."""


@dataclass(slots=True)
class Figures:
    """Seconds and processor seconds of a request, turn by turn."""

    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{median(self.seconds) * 1e3:.2f} ms, {median(self.cpu) * 1e3:.2f} ms CPU"


class Ids:
    """New ids, each given once: those that come next, or some among those of a table, shuffled."""

    def __init__(self, rows: int) -> None:
        self._next = _STEP * rows
        self._among = self._shuffled(rows)

    @staticmethod
    def _shuffled(rows: int) -> Iterator[int]:
        for offset in range(1, _STEP):
            yield from map(int, np.random.default_rng(offset).permutation(rows) * _STEP + offset)

    def take(self, count: int, *, among: bool) -> list[int]:
        if among:
            return list(islice(self._among, count))
        self._next += count
        return list(range(self._next - count, self._next))


def write_table(folder: Path, rows: int) -> Path:
    """Write a table with an index, for both sides; return its path."""
    path = Path(tempfile.mkdtemp(dir=folder)) / "source.lance"
    ids = np.random.default_rng(1).permutation(rows) * _STEP
    dataset = lance.write_dataset(pa.table({"id": ids, "value": ids}), str(path), max_rows_per_file=_ROWS_PER_FILE)
    dataset.create_scalar_index("id", "BTREE", name="id_idx")
    return path


def insert_requests(table: str, size: int, count: int, ids: Ids, *, among: bool) -> Iterator[bytes]:
    """Return prepared inserts of `size` new rows each."""
    bodies = []
    for _ in range(count):
        column = pa.array(ids.take(size, among=among), pa.int64())
        bodies.append(stream(pa.table({"id": column, "value": column})))
    return iter([request("POST", of_table(table, "insert"), body, ARROW) for body in bodies])


def measure(server: Server, tables: dict[str, str], ids: dict[str, Ids], case: Case, rounds: int) -> dict[str, Figures]:
    """Measure inserts into both tables in turns; the first turn warms up."""
    figures = {side: Figures() for side in tables}
    for turn in range(rounds + 1):
        for side in (PLAIN, KEYED) if turn % 2 else (KEYED, PLAIN):
            requests = insert_requests(tables[side], case.size, case.inserts, ids[side], among=case.among)
            before = server.cpu_seconds()
            measured = drive(server.address, requests, Load(1, count=case.inserts))
            if measured.failed:
                raise SystemExit(f"Inserts into the table {side} failed: {dict(measured.failures)}.")
            if turn:
                figures[side].seconds.append(measured.p50)
                figures[side].cpu.append((server.cpu_seconds() - before) / case.inserts)
    return figures


@dataclass(frozen=True, slots=True)
class Case:
    """Inserts of one kind: rows of each, how many in a turn, and whether their ids lie among those of the table."""

    size: int
    inserts: int
    among: bool

    def __str__(self) -> str:
        rows = f"{self.size:,} row{'s' * (self.size > 1)}"
        return f"{rows}, {'among the others' if self.among else 'the next ones'}"


def compare(server: Server, folder: Path, rows: int, cases: list[Case], rounds: int) -> None:
    """Print what inserts into tables of so many rows take without a key and with one."""
    source = write_table(folder, rows)
    tables = {side: register(server, folder / "root", source) for side in (PLAIN, KEYED)}
    server.reset_peak()
    before, started = server.memory(), time.perf_counter()
    call_json(server.address, f"/tiltyard/v1/table/{tables[KEYED]}/primary_key/set", {"columns": ["id"]})
    seconds, more = time.perf_counter() - started, (server.peak_memory() - before) / 1e6
    print(f"| {rows:,} | declaring the key | — | {seconds:.1f} s, memory up by {more:,.0f} MB | — | — |", flush=True)
    ids = {side: Ids(rows) for side in tables}
    for case in cases:
        figures = measure(server, tables, ids, case, rounds)
        plain, keyed = figures[PLAIN], figures[KEYED]
        ratio, cpu = (median(b) / median(a) for a, b in ((plain.seconds, keyed.seconds), (plain.cpu, keyed.cpu)))
        mark = f" (≤ {_LIMIT:g}: {'yes' if ratio <= _LIMIT else '**no**'})" if case.size == 1 else ""
        print(f"| {rows:,} | {case} | {plain} | {keyed} | {ratio:.2f}x{mark} | {cpu:.2f}x |", flush=True)


def main() -> None:
    """Run it, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.keys", description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="tiltyard-keys-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        (folder / "root").mkdir()
        settings = folder / "settings.toml"
        settings.write_text("upkeep = false\n")
        server = servers.tiltyard(folder / "root", folder / "log", 1, further=["--config", str(settings)])
        stack.callback(server.stop)
        print("| rows before | insert of | without a key | with a key | time | CPU |\n|---|---|---|---|---|---|")
        few = [Case(1, 30, among) for among in (False, True)] + [Case(1000, 10, among) for among in (False, True)]
        compare(server, folder, options.rows, few, options.rounds)
        bulk = [Case(BULK, 3, among) for among in (False, True)]
        compare(server, folder, min(BULK_ROWS, options.rows), bulk, max(2, options.rounds // 2))


if __name__ == "__main__":
    main()
