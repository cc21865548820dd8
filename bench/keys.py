"""What a primary key costs an insert: `python -m bench.keys [--rows N] [--inserts N] [--rounds N]`.

Two tables of one server have the same rows and an index on `id`; one declares `id` as its key. Both get inserts of one
row, on one connection, in turns of a few dozen, so that all that slows the machine slows both. Medians are shown.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from itertools import count
from pathlib import Path
from statistics import median

import lance
import lance.namespace
import numpy as np
import pyarrow as pa

from bench import servers
from bench.servers import Server
from bench.wire import ARROW, call, call_json, of_table, stream

PLAIN, KEYED = "plain", "keyed"
_ROWS_PER_FILE = 1 << 20
_LONGEST_SECONDS = 600.0


def _create(server: Server, table: str, rows: int) -> None:
    """Create a table with shuffled ids, and an index on them."""
    client = lance.namespace.RestNamespace(uri=f"http://{server.address.host}:{server.address.port}")
    ids = np.random.default_rng(1).permutation(rows)
    data = pa.table({"id": ids, "value": ids * 2})
    lance.write_dataset(
        data, namespace_client=client, table_id=[table], mode="create", max_rows_per_file=_ROWS_PER_FILE
    )
    call_json(server.address, of_table(table, "create_scalar_index"), {"column": "id", "index_type": "BTREE"})
    until = time.monotonic() + _LONGEST_SECONDS
    while not _is_indexed(server, table):
        if time.monotonic() > until:
            raise SystemExit(f"The index of {table} was not built in {_LONGEST_SECONDS:.0f} s.")
        time.sleep(0.2)


def _is_indexed(server: Server, table: str) -> bool:
    indexes = call_json(server.address, of_table(table, "index/list"), {})["indexes"]
    return bool(indexes) and all(index.get("status") != "building" for index in indexes)


def _insert(server: Server, table: str, ids: range) -> float:
    """Insert one row, or several; return the seconds."""
    body = stream(pa.table({"id": pa.array(ids, pa.int64()), "value": pa.array(ids, pa.int64())}))
    started = time.perf_counter()
    call(server.address, "POST", of_table(table, "insert"), body, ARROW)
    return time.perf_counter() - started


def measure(server: Server, rows: int, inserts: int, rounds: int, size: int) -> tuple[float, float]:
    """Return the median seconds of an insert of `size` rows, without a key and with one."""
    seconds: dict[str, list[float]] = {PLAIN: [], KEYED: []}
    new = count(rows + size * 10_000_000)
    for turn in range(rounds + 1):
        for table in (PLAIN, KEYED) if turn % 2 else (KEYED, PLAIN):
            taken = []
            for _ in range(inserts):
                first = next(new) * size
                taken.append(_insert(server, table, range(first, first + size)))
            if turn:  # the first turn warms up
                seconds[table] += taken
    return median(seconds[PLAIN]), median(seconds[KEYED])


def main() -> None:
    """Run it, and print a row of the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--inserts", type=int, default=30, help="inserts of one turn")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="tiltyard-keys-"))
    server = servers.tiltyard(folder / "root", folder / "log", workers=1)
    try:
        for table in (PLAIN, KEYED):
            _create(server, table, options.rows)
        path = f"/tiltyard/v1/table/{KEYED}/primary_key/set"
        started = time.perf_counter()
        call_json(server.address, path, {"columns": ["id"]})
        print(f"declared over {options.rows:,} rows in {time.perf_counter() - started:.1f} s", flush=True)
        print("| insert of | without a key | with a key | ratio |\n|---|---|---|---|")
        for size in (1, 1000):
            plain, keyed = measure(server, options.rows, options.inserts, options.rounds, size)
            print(f"| {size:,} | {plain * 1000:.2f} ms | {keyed * 1000:.2f} ms | {keyed / plain:.2f} |", flush=True)
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
