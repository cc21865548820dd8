"""What a worker needs to refresh a view after one row in a hundred was updated: `python -m bench.select_views`.

A view of the kind `select` of a table with a vector, refreshed by the server without Spark. In each round an update
changes rows that no round has changed, then the view is refreshed, incrementally and (`full`) from all rows. Times are
medians of the rounds, without the first one: of the clock, and of the processor, of all processes of the server.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
from tests.services.wire import Wire, stream

from bench.servers import Server

BATCH_ROWS = 50_000
QUERY = "SELECT id, upper(title) AS title, price, vector FROM films WHERE price > 10"
POLL_SECONDS = 0.02


def make_rows(start: int, count: int, dimensions: int) -> pa.Table:
    """Return rows with ids from `start` on."""
    ids = np.arange(start, start + count)
    vectors = np.random.default_rng(start).random(count * dimensions, np.float32)
    return pa.table(
        {
            "id": ids,
            "price": (ids % 1000) / 4,
            "title": np.char.add("a film of the number ", ids.astype("U")),
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors), dimensions),
        }
    )


def refresh(wire: Wire, server: Server, *, full: bool) -> tuple[float, float]:
    """Refresh the view; return the seconds of the clock and of the processor. Raises RuntimeError for another mode."""
    began, used = time.perf_counter(), server.cpu_seconds()
    job = wire.call("materialized_view", ["view"], "refresh", {"full": full}).json()["job_id"]
    record: dict[str, Any] = {"status": "Queued"}
    while record["status"] in ("Queued", "Running"):
        time.sleep(POLL_SECONDS)
        record = wire.good(wire.call("transaction", [job], "describe"))
    figures = record.get("properties") or {}
    if record["status"] != "Succeeded" or (figures["mode"] == "full") != full:
        raise RuntimeError(f"The refresh was another one: {record}")
    return time.perf_counter() - began, server.cpu_seconds() - used


def main() -> None:
    """Print a table of what was measured."""
    parser = argparse.ArgumentParser(prog="python -m bench.select_views", description=__doc__)
    parser.add_argument("--rows", type=int, default=500_000, help="rows of the table [default: 500,000]")
    parser.add_argument("--dimensions", type=int, default=256, help="of the vector [default: 256]")
    parser.add_argument("--rounds", type=int, default=5, help="rounds that count [default: 5]")
    arguments = parser.parse_args()
    taken: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    with tempfile.TemporaryDirectory() as folder:
        command = ["tiltyard", "serve", "--root", f"{folder}/root", "--port", "0"]
        server = Server("tiltyard", command, Path(folder) / "log", environ={"TILTYARD_UPKEEP": "false"})
        try:
            wire = Wire(f"http://{server.address.host}:{server.address.port}", timeout=600)
            action = "create"
            for start in range(0, arguments.rows, BATCH_ROWS):
                count = min(BATCH_ROWS, arguments.rows - start)
                wire.good(wire.table(["films"], action, stream(make_rows(start, count, arguments.dimensions))))
                action = "insert"
            fields = {"kind": "select", "source_query": QUERY, "output_schema": ""}
            wire.call("materialized_view", ["view"], "create", fields)
            refresh(wire, server, full=True)
            changed = arguments.rows // 100
            for number in range(1 + arguments.rounds):
                rows = f"id >= {number * changed} AND id < {(number + 1) * changed}"
                wire.good(wire.table(["films"], "update", {"predicate": rows, "updates": [["price", "99.5"]]}))
                for full in (False, True):
                    taken[full].append(refresh(wire, server, full=full))
        finally:
            server.stop()
    clocks, processors = ([median(row[at] for row in taken[full][1:]) for full in (False, True)] for at in (0, 1))
    print(f"{'':12}{'incremental':>12}{'full':>10}{'ratio':>8}")
    for name, (incremental, full_time) in {"clock": clocks, "processor": processors}.items():
        print(f"{name:12}{incremental:>10.2f} s{full_time:>8.2f} s{full_time / incremental:>7.1f}x")


if __name__ == "__main__":
    main()
