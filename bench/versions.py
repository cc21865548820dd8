"""Compare versions of Tiltyard under the same load: `python -m bench.versions --against BEFORE/src`.

Each version serves a catalog of its own with the same content. They take turns, round by round (A, B, A, B, …), so that
whatever else the machine does meets them alike; the table shows medians, the ratio of each version's median to that of
the first, and the spread of the ratios of single rounds. Processor time of the server per request is what a busy
machine changes least.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count, cycle, repeat
from pathlib import Path
from statistics import median

from bench import data, servers
from bench.load import Lanes, Load
from bench.rounds import Side
from bench.servers import Server
from bench.wire import ARROW, call, of_table, post, request

HERE = Path(__file__).parents[1] / "src"
TABLES = 1_000
PREPARED_ROWS = 1_000

_numbers = count()


@dataclass(frozen=True, slots=True)
class Row:
    """A measured operation: how many connections ask, and a function from a server to the requests of one round."""

    name: str
    connections: int
    requests: Callable[[Server], Lanes]


def _inserts(server: Server) -> Iterator[bytes]:
    """Inserts of one row each into a new table."""
    table = data.in_namespace(f"inserts-{next(_numbers)}")
    bodies = [data.one_row(number) for number in range(PREPARED_ROWS)]
    call(server.address, "POST", of_table(table, "create"), bodies[0], ARROW)
    return cycle([request("POST", of_table(table, "insert"), body, ARROW) for body in bodies])


def _rows() -> list[Row]:
    describe = data.on_tables("describe", TABLES)
    listing = request("GET", f"/v1/namespace/{data.NAMESPACE}/table/list?limit=100")
    counting = post(of_table(data.VECTORS, "count_rows"))
    nearest = [post(of_table(data.VECTORS, "query"), query) for query in data.nearest_queries(data.SCHEMA.names)]
    equal = [post(of_table(data.VECTORS, "query"), query) for query in data.equal_queries()]
    return [
        Row("describe", 32, lambda _: describe),
        Row("list", 32, lambda _: repeat(listing)),
        Row("count", 32, lambda _: repeat(counting)),
        Row("nearest", 8, lambda _: cycle(nearest)),
        Row("equal", 8, lambda _: cycle(equal)),
        Row("insert", 32, _inserts),
    ]


def _start(stack: ExitStack, folder: Path, name: str, source: Path, workers: int) -> Server:
    root = folder / name
    root.mkdir()
    server = servers.tiltyard(root, folder / f"{name}.log", workers, source=source)
    stack.callback(server.stop)
    data.fill_catalog(server.address, TABLES, 8)
    data.register(data.indexed_table(folder), root, data.VECTORS, server.address)
    return server


def _line(row: Row, names: list[str], sides: list[Side]) -> Iterator[str]:
    for name, side in zip(names, sides, strict=True):
        ratios = [own.rate / first.rate for own, first in zip(side.rounds, sides[0].rounds, strict=True)]
        ratio = side.rate / sides[0].rate
        costs = median(side.cpu) / median(sides[0].cpu)
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        yield f"| {row.name} | {name} | {side.words()} | {ratio:.2f}x | {spread} | {costs:.2f}x |"


def main() -> None:
    """Measure all versions in turn and print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.versions", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", nargs="*", help="rows to run [default: all]")
    parser.add_argument("--against", type=Path, action="append", default=[], help="`src` of a version; may repeat")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    sources = [*(source.resolve() for source in arguments.against), HERE]
    names = [*(source.parent.name for source in sources[:-1]), "now"]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tiltyard-versions-")))
        running = [
            _start(stack, folder, f"{number}-{name}", source, arguments.workers)
            for number, (name, source) in enumerate(zip(names, sources, strict=True))
        ]
        print("| row | version | figures | rate | rounds' ratios | CPU |\n|---|---|---|---|---|---|", flush=True)
        for row in _rows():
            if arguments.rows and row.name not in arguments.rows:
                continue
            sides = [Side(server) for server in running]
            for _ in range(arguments.rounds):
                for side in sides:
                    requests = row.requests(side.server)
                    side.take(lambda requests=requests: requests, Load(row.connections, arguments.seconds))
            print("\n".join(_line(row, names, sides)), flush=True)


if __name__ == "__main__":
    main()
