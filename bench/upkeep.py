"""What upkeep takes from queries, and how soon indexes have new rows: `python -m bench.upkeep`.

Two servers, one with upkeep and one without, take turns. In each turn 100,000 rows are inserted, in ten requests, into
a table of 100,000 with IVF_PQ and BTREE, while vector queries run on two connections: on another table, which shows
what upkeep takes, or on the same one. The time from the end of the last insert until both indexes have 99% of the rows
is that of a client that polls their statistics once a second.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import count, cycle
from pathlib import Path
from statistics import median
from typing import Self

import pyarrow as pa

from bench import data, servers
from bench.load import Load, Measured, drive
from bench.servers import Server
from bench.wire import ARROW, call, call_json, of_table, post, stream

INDEXES = ("vector_idx", "id_idx")
COVERED = 0.99
INSERTS = 10
CONNECTIONS = 2

_numbers = count()


class Turn:
    """One turn: rows are inserted into a new table in the background, and its indexes are watched."""

    def __init__(self, server: Server, table: str, bodies: Sequence[bytes], watch: bool) -> None:
        self._server, self._table, self._bodies, self._watch = server, table, bodies, watch
        self.seconds: float | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        for body in self._bodies:
            call(self._server.address, "POST", of_table(self._table, "insert"), body, ARROW)
        ended = time.perf_counter()
        while self._watch and self.seconds is None and not self._stop.wait(1.0):
            if self.coverage() >= COVERED:
                self.seconds = time.perf_counter() - ended

    def coverage(self) -> float:
        """The least share of the rows that an index has."""
        shares = []
        for index in INDEXES:
            figures = call_json(self._server.address, of_table(self._table, f"index/{index}/stats"))
            indexed = figures["num_indexed_rows"]
            shares.append(indexed / (indexed + figures["num_unindexed_rows"]))
        return min(shares)


def register(server: Server, root: Path, source: Path) -> str:
    """Give a server a managed table whose files are those of `source`; return its id."""
    name = f"t{next(_numbers)}"
    shutil.copytree(source, root / f"{name}.lance", copy_function=lambda old, new: Path(new).hardlink_to(old))
    fields = {"location": str(root / f"{name}.lance"), "properties": {"tiltyard.managed_versioning": "true"}}
    call_json(server.address, of_table(name, "register"), fields)
    return name


def start(stack: ExitStack, folder: Path, name: str, upkeep: bool) -> tuple[Server, Path]:
    root = folder / name
    root.mkdir()
    settings = folder / f"{name}.toml"
    settings.write_text(f"upkeep = {json.dumps(upkeep)}\n")
    server = servers.tiltyard(root, folder / f"{name}.log", 1, further=["--config", str(settings)])
    stack.callback(server.stop)
    return server, root


def figures(measured: Sequence[Measured]) -> tuple[str, float]:
    """The words for a row, and its p99."""
    p50, p99 = (median(getattr(each, name) for each in measured) for name in ("p50", "p99"))
    failed = sum(each.failed for each in measured)
    words = f"{median(each.rate for each in measured):,.0f}/s, p50 {p50 * 1e3:.1f} ms, p99 {p99 * 1e3:.1f} ms"
    return words + (f", failed: {failed}" if failed else ""), p99


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.upkeep", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--rows", type=int, default=100_000)
    arguments = parser.parse_args()
    share = arguments.rows // INSERTS
    bodies = [stream(pa.Table.from_batches([data.rows(share, 10**6 + share * turn)])) for turn in range(INSERTS)]
    queries = data.nearest_queries(["id", "name"])
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tiltyard-upkeep-")))
        source = data.indexed_table(folder)
        sides = {name: start(stack, folder, name, upkeep=name == "on") for name in ("off", "on")}
        others = {name: register(server, root, source) for name, (server, root) in sides.items()}
        results: dict[tuple[str, str], list[Measured]] = {}
        seconds: list[float | None] = []
        load = Load(CONNECTIONS, arguments.seconds)

        def measure(place: str, name: str, table: str) -> None:
            requests = cycle([post(of_table(table, "query"), query) for query in queries])
            results.setdefault((place, name), []).append(drive(sides[name][0].address, requests, load))

        for _ in range(arguments.rounds):
            for name, (server, root) in sides.items():
                measure("nothing is written", name, others[name])
                for place in ("another table", "the same table"):
                    table = register(server, root, source)
                    with Turn(server, table, bodies, watch=name == "on") as turn:
                        measure(place, name, others[name] if place == "another table" else table)
                    if name == "on":
                        seconds.append(turn.seconds)
        print("| queries on | without upkeep | with upkeep | p99 |\n|---|---|---|---|")
        for place in ("nothing is written", "another table", "the same table"):
            (off, before), (on, now) = (figures(results[place, name]) for name in sides)
            print(f"| {place} | {off} | {on} | {now / before:.2f}x |")
        covered = ["never" if each is None else f"{each:.1f} s" for each in seconds]
        print(f"\n99% of the rows in both indexes after the last of {arguments.rows:,} new rows: {', '.join(covered)}.")


if __name__ == "__main__":
    main()
