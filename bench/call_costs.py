"""Processor time of one call by stage: `python -m bench.call_costs [--rounds N] [--seconds S]`.

Each kind of call is sent to a server of one process, to the same server under `bench.stage_profile`, and, where it is
a look-up, to `bench.raw_lookup` on the same catalog: in turn, medians of the rounds. The stages are of the profiled
server; its total beside that of the plain one says what the profiler costs.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import cycle, repeat
from pathlib import Path
from statistics import median
from typing import Any

from bench import data
from bench.data import NAMESPACE, VECTORS
from bench.load import Lanes, Load
from bench.rounds import Side
from bench.servers import Server, tiltyard
from bench.stage_profile import FILE_VARIABLE, STAGES
from bench.wire import ARROW, call, of_table, post, request

TABLES = 1_000
PAGE = 100
INSERTED = f"{NAMESPACE}$inserted"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of call: its title, its requests, how many connections send them, and whether the raw server has it."""

    title: str
    requests: Callable[[], Lanes]
    connections: int = 32
    is_lookup: bool = False


def kinds() -> list[Kind]:
    """The calls that are measured."""
    page = request("GET", f"/v1/namespace/{NAMESPACE}/table/list?limit={PAGE}")
    nearest = [post(of_table(VECTORS, "query"), query) for query in data.nearest_queries(data.SCHEMA.names)]
    equal = [post(of_table(VECTORS, "query"), query) for query in data.equal_queries()]
    row = request("POST", of_table(INSERTED, "insert"), data.one_row(1), ARROW)
    return [
        Kind("DescribeTable", lambda: data.on_tables("describe", TABLES), is_lookup=True),
        Kind("ListTables, a page of 100", lambda: repeat(page), is_lookup=True),
        Kind("insert of 1 row", lambda: repeat(row)),
        Kind("query, k = 10, IVF_PQ", lambda: cycle(nearest), 8),
        Kind("query, id = n, BTREE", lambda: cycle(equal), 8),
    ]


class ProfiledServer:
    """A server under the profiler."""

    def __init__(self, root: Path, log: Path) -> None:
        self._file = root.with_suffix(".stages")
        flags = ["--root", str(root), "--port", "0", "--log-level", "warning", "--workers", "1"]
        command = ["bench.stage_profile", "tiltyard", "serve", *flags]
        self.server = Server("profiled", command, log, environ={FILE_VARIABLE: str(self._file)})

    def take(self, side: Side, requests: Lanes, load: Load) -> tuple[dict[str, float], Counter[str]]:
        """One round; return the seconds of each stage for a call, and the samples of each function."""
        self._file.unlink(missing_ok=True)
        os.kill(self.server.pid, signal.SIGUSR1)
        measured = side.take(lambda: requests, load)
        os.kill(self.server.pid, signal.SIGUSR2)
        while not self._file.exists():
            time.sleep(0.05)
        found: dict[str, Any] = json.loads(self._file.read_text())
        return {stage: found["seconds"].get(stage, 0.0) / measured.succeeded for stage in STAGES}, Counter(
            found["functions"]
        )


def prepare(server: Server, root: Path, work: Path) -> None:
    """Fill a catalog."""
    data.fill_catalog(server.address, TABLES, 8)
    data.register(data.indexed_table(work), root, VECTORS, server.address)
    call(server.address, "POST", of_table(INSERTED, "create"), data.one_row(0), ARROW)


def measure(kind: Kind, plain: Server, profiled: ProfiledServer, raw: Server, options: argparse.Namespace) -> list[str]:
    """Return the line of a kind, and the lines of its functions."""
    load = Load(kind.connections, options.seconds)
    ours, other, limit = Side(plain), Side(profiled.server), Side(raw)
    stages: list[dict[str, float]] = []
    functions: Counter[str] = Counter()
    for _ in range(options.rounds):
        ours.take(kind.requests, load)
        if kind.is_lookup:
            limit.take(kind.requests, load)
        found, of_functions = profiled.take(other, kind.requests(), load)
        stages.append(found)
        functions += of_functions
    for side in (ours, other, *([limit] if kind.is_lookup else [])):
        if side.failed:
            raise RuntimeError(f"{kind.title}, {side.server.name}: {side.words()}")
    total, seen = median(ours.cpu), median(other.cpu)
    cells = [f"{median(found[stage] for found in stages) * 1e6:.1f}" for stage in STAGES]
    raw_cells = [f"{median(limit.cpu) * 1e6:.1f}", f"{total / median(limit.cpu):.2f}x"] if kind.is_lookup else ["", ""]
    lines = ["| " + " | ".join([kind.title, *cells, f"{seen * 1e6:.1f}", f"{total * 1e6:.1f}", *raw_cells]) + " |"]
    if options.functions:
        whole = functions.total()
        lines += [f"    {count / whole:6.1%} {name}" for name, count in functions.most_common(options.functions)]
    return lines


def main() -> None:
    """Measure all kinds, and print a table in microseconds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each round")
    parser.add_argument("--only", default="", help="kinds whose title has this text")
    parser.add_argument("--functions", type=int, default=0, help="print so many functions of each kind")
    parser.add_argument("--work", type=Path, help="folder that keeps the indexed table for the next run")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tiltyard-costs-", dir=options.work)))
        work = options.work or folder
        roots = [folder / "plain", folder / "profiled"]
        for root in roots:
            root.mkdir()
        plain, profiled = tiltyard(roots[0], folder / "plain.log", 1), ProfiledServer(roots[1], folder / "profiled.log")
        stack.callback(plain.stop)
        stack.callback(profiled.server.stop)
        for server, root in zip((plain, profiled.server), roots, strict=True):
            prepare(server, root, work)
        raw = Server("raw", ["bench.raw_lookup", str(roots[0] / "catalog.db")], folder / "raw.log")
        stack.callback(raw.stop)
        print("| call | " + " | ".join(STAGES) + " | profiled | plain | raw look-up | plain to raw |")
        print("|---" * (len(STAGES) + 5) + "|")
        for kind in kinds():
            if options.only in kind.title:
                print("\n".join(measure(kind, plain, profiled, raw, options)), flush=True)


if __name__ == "__main__":
    main()
