"""Measure a stream of rows over Arrow Flight against pyarrow.flight's own server: `python -m bench.flight`.

One client of pyarrow.flight reads all rows of one dataset, 1 GB of them, from Tiltyard (`SELECT *`), and from a server
of pyarrow.flight (C++) in a process of its own: one that reads the same dataset by pylance, and one that has its rows
in memory. The servers take turns, and the client counts the bytes.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import lance
import pyarrow as pa
from pyarrow import flight

from bench import data, servers
from bench.servers import TREE
from tiltyard.flight.messages import pack

TABLE = "rows"
BYTES_OF_ROW = 4 * data.DIMENSION + 8 + 14
BATCH_ROWS = 4_096
"""Rows of a message of the other server: about 2 MiB, as ours has."""
READ, KEPT = b"read", b"kept"
"""The tickets of the other server: rows that it reads while it sends them, and rows in its memory."""


class RowServer(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow ships no types
    """A server of one dataset, as pyarrow.flight's documentation writes one."""

    def __init__(self, dataset: str) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self._dataset = lance.dataset(dataset)
        self._rows: pa.Table | None = None

    def do_get(self, context: Any, ticket: Any) -> Any:
        """Stream all rows."""
        if ticket.ticket == READ:
            return flight.RecordBatchStream(self._dataset.scanner(batch_size=BATCH_ROWS).to_reader())
        if self._rows is None:
            self._rows = self._dataset.to_table(batch_size=BATCH_ROWS)
        return flight.RecordBatchStream(self._rows)


def serve(dataset: str) -> None:
    """Serve a dataset until standard input ends; the first line of standard output is the port."""
    server = RowServer(dataset)
    print(server.port, flush=True)
    sys.stdin.read()
    server.shutdown()


def other_server(dataset: Path) -> tuple[int, Callable[[], None]]:
    """Start the other server; return its port, and what stops it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.flight", "--serve", str(dataset)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=TREE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    stdin = process.stdin

    def stop() -> None:
        stdin.close()
        process.wait(20)

    return int(process.stdout.readline()), stop


def ticket_reader(port: int, ticket: bytes) -> Callable[[], int]:
    """Return what reads a stream of the other server, and returns its bytes."""
    client = flight.FlightClient(f"grpc://127.0.0.1:{port}")
    return lambda: _drain(client.do_get(flight.Ticket(ticket)))


def query_reader(port: int, query: str) -> Callable[[], int]:
    """Return what runs a query of Tiltyard, and returns the bytes of its rows."""
    client = flight.FlightClient(f"grpc://127.0.0.1:{port}")

    def read() -> int:
        descriptor = flight.FlightDescriptor.for_command(pack("CommandStatementQuery", query=query))
        return _drain(client.do_get(client.get_flight_info(descriptor).endpoints[0].ticket))

    return read


def _drain(reader: Any) -> int:
    return sum(chunk.data.nbytes for chunk in reader)


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.flight", description="Measure streams over Arrow Flight.")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each side [default: 5]")
    parser.add_argument("--megabytes", type=int, default=1_000, help="size of the stream [default: 1,000]")
    parser.add_argument("--work", type=Path, help="folder that keeps the rows for the next run [default: none]")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tiltyard-flight-")))
        work: Path = (options.work or folder) / str(options.megabytes)
        work.mkdir(parents=True, exist_ok=True)
        dataset = data.large_table(work, options.megabytes * 1_000_000 // BYTES_OF_ROW)
        root = folder / "root"
        root.mkdir()
        server, sql_port = servers.with_sql(root, folder / "log", 1)
        stack.callback(server.stop)
        data.register(dataset, root, TABLE, server.address)
        port, stop = other_server(dataset)
        stack.callback(stop)
        sides = {
            "Tiltyard": query_reader(sql_port, f"SELECT * FROM {TABLE}"),
            "pyarrow.flight, reading the dataset": ticket_reader(port, READ),
            "pyarrow.flight, rows in memory": ticket_reader(port, KEPT),
        }
        rates: dict[str, list[float]] = {name: [] for name in sides}
        for turn in range(options.rounds + 1):
            for name, read in sides.items():
                started = time.perf_counter()
                size = read()
                if turn:  # the first one warms all
                    rates[name].append(size / 1e6 / (time.perf_counter() - started))
        print("| server | MB/s | Tiltyard's ratio | at least |\n|---|---|---|---|", flush=True)
        ours = median(rates["Tiltyard"])
        for name, figures in rates.items():
            print(f"| {name} | {median(figures):,.0f} | {ours / median(figures):.2f}x | 0.5x |", flush=True)


if __name__ == "__main__":
    main()
