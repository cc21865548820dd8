"""Measure SQL over Arrow Flight against DataFusion in one process, over the same dataset: `python -m bench.sql`.

A table of 10 million rows with a BTREE is aggregated, and searched for single rows. Clients of the server take turns
with DataFusion embedded (`datafusion` over pylance's `FFILanceTableProvider`, the dataset opened once), which plans the
same texts. A point query by lancedb's client is a call that starts it and one that reads it; by pyarrow.flight it is
planned first, and then run.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import datafusion
import lance
import lancedb
import numpy as np
import pyarrow as pa
from pyarrow import flight

from bench import data, servers
from bench.load import Address
from tiltyard.flight.messages import pack

TABLE = "numbers"
AGGREGATE = f"SELECT kind, count(*) AS n, sum(value) AS total, max(id) AS last FROM {TABLE} GROUP BY kind ORDER BY kind"
FILTERED = f"SELECT count(*) AS n, avg(value) AS mean FROM {TABLE} WHERE kind < 100 AND value > 0.5"
BATCH = 1 << 20
KINDS = 1_000

Run = Callable[[str], pa.Table]


def table_of_numbers(folder: Path, rows: int) -> Path:
    """Write the table, with a BTREE on `id`, whose rows are in no order; made once per folder."""
    target = folder / f"numbers-{rows}"
    if not target.exists():
        making = folder / "numbers.making"
        dataset = lance.write_dataset(_batches(rows), str(making), _SCHEMA)
        dataset.create_scalar_index("id", "BTREE")
        making.rename(target)
    return target


_SCHEMA = pa.schema([("id", pa.int64()), ("kind", pa.int32()), ("value", pa.float64()), ("name", pa.string())])


def _batches(rows: int) -> Iterator[pa.RecordBatch]:
    source = np.random.default_rng(data.SEED)
    ids = source.permutation(rows)
    for first in range(0, rows, BATCH):
        part = ids[first : first + BATCH]
        kinds = source.integers(0, KINDS, len(part), dtype=np.int32)
        names = pa.array([f"row {number}" for number in part])
        yield pa.record_batch([pa.array(part), pa.array(kinds), pa.array(source.random(len(part))), names], _SCHEMA)


def embedded(dataset: Path) -> Run:
    """Return what runs a query by DataFusion in this process."""
    context: Any = datafusion.SessionContext()
    provider = lance.FFILanceTableProvider(lance.dataset(str(dataset)), with_row_id=False, with_row_addr=False)
    context.register_table(TABLE, provider)
    return lambda query: pa.Table.from_batches(context.sql(query).collect())


def by_lancedb(address: Address, port: int) -> Run:
    """Return what runs a query by lancedb's client."""
    http, sql = (f"{scheme}://{address.host}:{at}" for scheme, at in (("http", address.port), ("grpc", port)))
    db = lancedb.connect("db://bench", api_key="none", host_override=http, sql_host_override=sql)
    return lambda query: db.execute_query(query).read_all()


def by_flight(host: str, port: int) -> Run:
    """Return what runs a query by the client of pyarrow.flight."""
    client = flight.FlightClient(f"grpc://{host}:{port}")

    def run(query: str) -> pa.Table:
        descriptor = flight.FlightDescriptor.for_command(pack("CommandStatementQuery", query=query))
        info = client.get_flight_info(descriptor)
        return client.do_get(info.endpoints[0].ticket).read_all()

    return run


def seconds_of(run: Run, query: str) -> float:
    """Return how long a query takes, with its rows."""
    started = time.perf_counter()
    run(query)
    return time.perf_counter() - started


def compare(sides: dict[str, Run], queries: list[str], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each query of each side, in turns; the first turn warms all and does not count.

    Raises RuntimeError if the sides find different rows.
    """
    answers = {name: run(queries[0]) for name, run in sides.items()}
    reference = next(iter(answers.values()))
    for name, answer in answers.items():
        if not _is_alike(answer, reference):
            raise RuntimeError(f"{name} finds other rows: {answer.slice(0, 3)} instead of {reference.slice(0, 3)}")
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(rounds + 1):
        for name, run in sides.items():
            taken = [seconds_of(run, query) for query in queries]
            if turn:
                seconds[name] += taken
    return seconds


def _is_alike(first: pa.Table, second: pa.Table) -> bool:
    """Return whether rows are the same, where sums of floats depend on the order of their addition."""
    if first.num_rows != second.num_rows or first.column_names != second.column_names:
        return False
    for name in first.column_names:
        one, other = (table[name].to_pylist() for table in (first, second))
        if not (np.allclose(one, other) if pa.types.is_floating(first.schema.field(name).type) else one == other):
            return False
    return True


def show(what: str, seconds: dict[str, list[float]], target: str) -> None:
    """Print a line: medians and 99th percentiles in milliseconds, and the ratio to the last side, DataFusion."""
    *_, reference = seconds.values()
    for name, taken in seconds.items():
        p50, p99 = median(taken) * 1e3, float(np.percentile(taken, 99)) * 1e3
        ratio = median(reference) / median(taken)
        print(f"| {what} | {name} | {p50:,.2f} ms | {p99:,.2f} ms | {ratio:.2f}x | {target} |", flush=True)


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.sql", description="Measure SQL over Arrow Flight.")
    parser.add_argument("--rows", type=int, default=10_000_000, help="rows of the table [default: 10,000,000]")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each side [default: 7]")
    parser.add_argument("--points", type=int, default=100, help="point queries in a turn [default: 100]")
    parser.add_argument("--workers", type=int, default=1, help="server processes [default: 1]")
    parser.add_argument("--work", type=Path, help="folder that keeps the table for the next run [default: none]")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tiltyard-sql-")))
        work: Path = options.work or folder
        work.mkdir(parents=True, exist_ok=True)
        dataset = table_of_numbers(work, options.rows)
        root = folder / "root"
        root.mkdir()
        server, port = servers.with_sql(root, folder / "log", options.workers)
        stack.callback(server.stop)
        data.register(dataset, root, TABLE, server.address)
        sides = {
            "lancedb": by_lancedb(server.address, port),
            "pyarrow.flight": by_flight(server.address.host, port),
            "DataFusion embedded": embedded(dataset),
        }
        print("| query | client | p50 | p99 | of DataFusion embedded | goal |\n|---|---|---|---|---|---|", flush=True)
        show("aggregate, 1,000 groups", compare(sides, [AGGREGATE], options.rounds), "0.8x")
        show("aggregate of a filter", compare(sides, [FILTERED], options.rounds), "0.8x")
        source = random.Random(3)  # for ids, not for secrets
        points = [
            f"SELECT name, value FROM {TABLE} WHERE id = {source.randrange(options.rows)}"
            for _ in range(options.points)
        ]
        show("point by BTREE", compare(sides, points, options.rounds), "p50 ≤ 3 ms")


if __name__ == "__main__":
    main()
