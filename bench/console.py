"""What pages of the console take: `python -m bench.console`, on a catalog of 100,000 tables and a table of rows.

Each page is asked for again and again by one client; medians and the best are shown, with the server's processor time
for a page, which a busy machine changes little, and the bytes on the wire.
"""

from __future__ import annotations

import argparse
import http.client
import statistics
import tempfile
import time
from pathlib import Path

import pyarrow as pa

from bench.data import rows
from bench.load import Address
from bench.servers import Server
from tiltyard import Namespace
from tiltyard.bootstrap import open_services
from tiltyard.config import load_settings
from tiltyard.model.ids import Id

TABLES = 100_000
AT_ONCE = 1_000
ROWS = 10_000
PAGES = (
    "",
    "namespace/wide",
    "tree/wide",
    "find?q=table_099",
    "find?q=no+such+name",
    "table/rows",
    "rows/rows",
    "rows/rows?filter=id+%3E+5000&order=-id",
    "search/rows?mode=like&row=3",
    "map-points/rows",
    "access",
    "server",
)


def fill(root: Path, tables: int) -> None:
    """Make a namespace with so many declared tables, and a table with rows in the root."""
    services = open_services(load_settings({"root": str(root)}))
    services.store.create_namespace(Id(("wide",)), {})
    for first in range(0, tables, AT_ONCE):
        names = [f"table_{number:06}" for number in range(first, min(first + AT_ONCE, tables))]
        services.store.transact(
            lambda catalog, names=names: [
                catalog.insert_table(Id(("wide", name)), f"{name}.lance", {}, managed=False, declared=True)
                for name in names
            ]
        )
    services.close()
    sink = pa.BufferOutputStream()
    batch = rows(ROWS)
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    with Namespace(root=str(root), jobs=0) as namespace:
        namespace.create_table({"id": ["rows"]}, sink.getvalue().to_pybytes())


def measure(address: Address, server: Server, page: str, times: int) -> str:
    """Ask for a page so often; return a line of the table."""
    connection = http.client.HTTPConnection(address.host, address.port, timeout=60)
    seconds: list[float] = []
    size = 0
    for number in range(times + 2):
        if number == 2:  # the first ones open files, and fill caches
            seconds, cpu = [], server.cpu_seconds()
        started_at = time.perf_counter()
        connection.request("GET", f"/console/{page}")
        response = connection.getresponse()
        size = len(response.read())
        seconds.append(time.perf_counter() - started_at)
        if response.status != 200:
            raise RuntimeError(f"/console/{page} answered {response.status}.")
    cpu = (server.cpu_seconds() - cpu) / times
    figures = f"{statistics.median(seconds) * 1e3:.0f} ms | {min(seconds) * 1e3:.0f} ms | {cpu * 1e3:.0f} ms"
    return f"| `/console/{page}` | {figures} | {size / 1024:.0f} KiB |"


def main() -> None:
    """Fill a catalog, start a server on it, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.console", description="Measure pages of the console.")
    parser.add_argument("--tables", type=int, default=TABLES, help=f"tables of the catalog [default: {TABLES}]")
    parser.add_argument("--times", type=int, default=20, help="requests for each page [default: 20]")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tiltyard-console-") as folder:
        root = Path(folder) / "root"
        fill(root, arguments.tables)
        command = ["tiltyard", "serve", "--root", str(root), "--port", "0", "--sql-port", "off"]
        server = Server("tiltyard", command, Path(folder) / "log")
        try:
            print("| page | median | best | processor time | bytes |\n|---|---|---|---|---|")
            for page in PAGES:
                print(measure(server.address, server, page, arguments.times), flush=True)
        finally:
            server.stop()


if __name__ == "__main__":
    main()
