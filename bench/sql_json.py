"""Measure functions on JSON in SQL against DuckDB in one process, over the same texts: `python -m bench.sql_json`.

A table of a million documents of some 110 bytes is read by a server, through lancedb's client, and by DuckDB, from a
table of its own in memory, with as many threads as the machine has. They take turns; each query returns one number, and
both the same one.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import duckdb
import lance
import pyarrow as pa

from bench import data, servers
from bench.sql import Run, by_lancedb, seconds_of

TABLE = "documents"
BATCH = 1 << 16
QUERIES = {
    "`doc ->> 'name'`": f"SELECT count(doc ->> 'name') AS n FROM {TABLE}",
    "`doc ->> 'name' = …`": f"SELECT count(*) AS n FROM {TABLE} WHERE doc ->> 'name' = 'name 7'",
    "`json_extract(…, '$.nested.y.z')`": f"SELECT count(json_extract(doc, '$.nested.y.z')) AS n FROM {TABLE}",
    "`json_array_length(…, '$.tags')`": f"SELECT sum(json_array_length(doc, '$.tags')) AS n FROM {TABLE}",
    "`json_valid(doc)`": f"SELECT count(*) AS n FROM {TABLE} WHERE json_valid(doc)",
    "`json_contains(doc, …)`": f"SELECT count(*) AS n FROM {TABLE} WHERE json_contains(doc, '\"deep\"')",
}
_SCHEMA = pa.schema([("id", pa.int64()), ("doc", pa.string())])


def _batches(rows: int) -> Iterator[pa.RecordBatch]:
    for first in range(0, rows, BATCH):
        ids = range(first, min(first + BATCH, rows))
        yield pa.record_batch([pa.array(ids, pa.int64()), pa.array(map(_document, ids), pa.string())], _SCHEMA)


def _document(number: int) -> str:
    return json.dumps(
        {
            "id": number,
            "name": f"name {number % 1000}",
            "tags": ["a", "b", str(number % 7)],
            "nested": {"x": number % 100, "y": {"z": "deep"}},
            "score": number / 7,
        }
    )


def by_duckdb(rows: int) -> Run:
    """Return what runs a query in DuckDB, over a table of its own."""
    database = duckdb.connect()
    source = pa.Table.from_batches(_batches(rows), _SCHEMA)
    database.register("source", source)
    database.execute(f"CREATE TABLE {TABLE} AS SELECT * FROM source")
    database.unregister("source")
    return lambda query: database.sql(query).to_arrow_table()


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.sql_json", description="Measure JSON in SQL.")
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the table [default: 1,000,000]")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each side [default: 5]")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tiltyard-sql-")))
        dataset, root = folder / TABLE, folder / "root"
        root.mkdir()
        lance.write_dataset(_batches(options.rows), str(dataset), _SCHEMA)
        server, port = servers.with_sql(root, folder / "log", 1)
        stack.callback(server.stop)
        data.register(dataset, root, TABLE, server.address)
        here, there = by_lancedb(server.address, port), by_duckdb(options.rows)
        print("| function | here | DuckDB | here takes |\n|---|---|---|---|", flush=True)
        for name, query in QUERIES.items():
            found, expected = (int(run(query)["n"][0].as_py()) for run in (here, there))
            if found != expected:
                raise RuntimeError(f"{query} is {found} here, and {expected} in DuckDB")
            turns = [(seconds_of(here, query), seconds_of(there, query)) for _ in range(options.rounds)]
            ours, theirs = (median(side) for side in zip(*turns, strict=True))
            print(f"| {name} | {ours:,.2f} s | {theirs:,.2f} s | {ours / theirs:.1f} times |", flush=True)


if __name__ == "__main__":
    main()
