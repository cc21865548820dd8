"""Queries of a table on an object store through the server's disk: `python -m bench.disk_cache`.

First the round trips of the first query of a server that was just started, and of the next ones, by what it has on
disk: no cache, an empty one, and what an earlier process has left. The table is in a bucket of moto's S3 behind a proxy
that delays each request by 30 ms; round trips are the longest chain of requests, each begun after the one before had
ended, among those that ended before the response.

Then four servers of one process under load: a table on a local disk, the same one in the bucket, that copied to disk,
and that by ranges, with too little room for a copy. Lance's caches in memory are as small as they can be, and rows in
memory are off, so that each query reads pages: what is measured is where they come from. Sides take turns.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path

from tests.services.s3 import s3_server

from bench.load import Load
from bench.rounds import Side
from bench.s3_proxy import S3Proxy, sequential_round_trips
from bench.servers import Server, tiltyard
from bench.vector_subjects import TABLE, Vectors
from bench.wire import ARROW, call, call_json, of_table, post, stream

DELAY_SECONDS = 0.03
SHARE = 0.0005
SMALL_CACHES = {
    "TILTYARD_INDEX_CACHE_BYTES": "0",
    "TILTYARD_METADATA_CACHE_BYTES": str(16 << 20),
    "TILTYARD_PAGE_CACHE_BYTES": "0",
    "TILTYARD_UPKEEP": "false",
}


def fill(server: Server, vectors: Vectors) -> None:
    """Create the table with its indexes."""
    call(server.address, "POST", of_table(TABLE, "create"), stream(vectors.table(range(vectors.standing))), ARROW)
    partitions = int(vectors.standing**0.5)
    vector = {"column": "vec", "index_type": "IVF_PQ", "distance_type": "l2", "num_partitions": partitions}
    call_json(server.address, of_table(TABLE, "create_scalar_index"), {"column": "rank", "index_type": "BTREE"})
    call_json(server.address, of_table(TABLE, "create_index"), vector)
    nearest = {"vector": {"single_vector": vectors.queries[0].tolist()}, "vector_column": "vec", "k": 1}
    ranked = {"vector": {"single_vector": []}, "k": 1, "filter": "rank < 9"}
    for query, node in ((nearest, "ANNSubIndex"), (ranked, "ScalarIndexQuery")):
        while node not in call_json(server.address, of_table(TABLE, "explain_plan"), {"query": query}):
            time.sleep(0.5)


def requests(vectors: Vectors) -> dict[str, list[bytes]]:
    """Return requests by what they ask for."""
    nearest = [
        {"vector": {"single_vector": query.tolist()}, "vector_column": "vec", "k": 10, "nprobes": 20}
        for query in vectors.queries
    ]
    step = vectors.limit(SHARE)
    filters = [f"rank >= {first} AND rank < {first + step}" for first in range(0, 100 * step, step)]
    scans = [{"vector": {"single_vector": []}, "k": step, "filter": text} for text in filters]
    return {
        "nearest 10, IVF_PQ, all columns": [post(of_table(TABLE, "query"), body) for body in nearest],
        f"{step} rows by a filter, BTREE, all columns": [post(of_table(TABLE, "query"), body) for body in scans],
    }


def wait_for_copy(server: Server) -> float:
    """Wait until a server reads its copy; return the seconds. Raises RuntimeError after ten minutes."""
    began = time.monotonic()
    query = {"vector": {"single_vector": []}, "k": 1}
    while time.monotonic() < began + 600:
        if "read from the copy" in call_json(server.address, of_table(TABLE, "explain_plan"), {"query": query}):
            return time.monotonic() - began
        time.sleep(0.2)
    raise RuntimeError("The table was not copied.")


def settle(proxy: S3Proxy) -> None:
    """Wait until nothing is asked of the store for two seconds: until indexes are built."""
    proxy.drain()
    time.sleep(2)
    while proxy.drain():
        time.sleep(2)


def first_queries(root: str, folder: Path, proxy: S3Proxy, environ: Mapping[str, str], bodies: list[bytes]) -> str:
    """Start a server; return the round trips, requests and milliseconds of its first queries."""
    server = tiltyard(root, folder / "first.log", 1, environ=environ)  # type: ignore[arg-type]  # a URI does
    cells = []
    try:
        settle(proxy)
        for body in bodies:
            proxy.delay = DELAY_SECONDS
            began = time.perf_counter()
            call(server.address, "POST", of_table(TABLE, "query"), body)
            ended = time.perf_counter()
            requests = proxy.drain()
            proxy.delay = 0.0
            trips = sequential_round_trips([request for request in requests if request.ended_at <= ended])
            cells.append(f"{trips} · {len(requests)} · {1000 * (ended - began):.0f}")
            time.sleep(0.5)
    finally:
        proxy.delay = 0.0
        server.stop()
    return " | ".join(cells)


def warm(server: Server, prepared: list[bytes]) -> None:
    """Send each request three times: what is read again enters the cache."""
    Side(server).take(lambda: cycle(prepared), Load(8, 20.0))


def main() -> None:
    """Print a table of what was measured."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.disk_cache", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=100_000, help="[default: 100,000]")
    parser.add_argument("--dimension", type=int, default=128, help="[default: 128]")
    parser.add_argument("--callers", type=int, nargs="+", default=[1, 8], help="[default: 1 and 8]")
    parser.add_argument("--rounds", type=int, default=3, help="[default: 3]")
    parser.add_argument("--seconds", type=float, default=4.0, help="of a round [default: 4]")
    parser.add_argument("--first", action="store_true", help="count the round trips of first queries alone")
    arguments = parser.parse_args()
    vectors = Vectors.make(arguments.rows, arguments.dimension)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tiltyard-disk-cache-")))
        store = stack.enter_context(s3_server())
        proxy = stack.enter_context(S3Proxy(store.endpoint))
        bucket = store.new_bucket("bench")
        options = {"TILTYARD_STORAGE_OPTIONS": json.dumps({**store.options, "aws_endpoint": proxy.url})}
        remote = {**SMALL_CACHES, **options, "TILTYARD_DB": f"sqlite:///{folder / 'catalog.db'}"}
        copies = {"TILTYARD_DISK_CACHE_BYTES": str(8 << 30), "TILTYARD_DISK_CACHE_FOLDER": str(folder / "copies")}
        (folder / "local").mkdir()
        local = tiltyard(folder / "local", folder / "local.log", 1, environ=SMALL_CACHES)
        stack.callback(local.stop)
        far = tiltyard(f"{bucket}/tables", folder / "far.log", 1, environ=remote)
        stack.callback(far.stop)
        for server in (local, far):
            fill(server, vectors)
        settle(proxy)
        # too little for a copy, which may take half, and enough for all blocks
        size = sum(entry["Size"] for entry in store.client.list_objects_v2(Bucket="bench")["Contents"])
        ranges = {
            "TILTYARD_DISK_CACHE_BYTES": str(int(1.6 * size)),
            "TILTYARD_DISK_CACHE_FOLDER": str(folder / "ranges"),
        }
        bodies = [request.partition(b"\r\n\r\n")[2] for request in next(iter(requests(vectors).values()))[:3]]
        plain = {name: text for name, text in remote.items() if name not in SMALL_CACHES or "UPKEEP" in name}
        print("| nearest 10, IVF_PQ | first query | second | third |\n|---|---|---|---|")
        for what, further in {"no disk cache": {}, "empty disk cache": ranges, "of an earlier process": ranges}.items():
            print(
                f"| {what} | {first_queries(f'{bucket}/tables', folder, proxy, {**plain, **further}, bodies)} |",
                flush=True,
            )
        if arguments.first:
            return
        proxy.delay = DELAY_SECONDS
        copied = tiltyard(f"{bucket}/tables", folder / "copied.log", 1, environ={**remote, **copies})
        stack.callback(copied.stop)
        print(f"copied after {wait_for_copy(copied):.1f} s", flush=True)
        by_ranges = tiltyard(f"{bucket}/tables", folder / "ranges.log", 1, environ={**remote, **ranges})
        stack.callback(by_ranges.stop)
        names = ("local disk", "object store, copied to disk", "object store, by ranges", "object store")
        print("| query | callers | side | | to local disk |\n|---|---|---|---|---|")
        for what, prepared in requests(vectors).items():
            warm(by_ranges, prepared)
            for callers in arguments.callers:
                sides = [Side(server) for server in (local, copied, by_ranges, far)]
                for _ in range(arguments.rounds):
                    for side in sides:
                        side.take(lambda prepared=prepared: cycle(prepared), Load(callers, arguments.seconds))  # type: ignore[misc]
                for name, side in zip(names, sides, strict=True):
                    if side.failed:
                        raise RuntimeError(f"{what}, {name}: {side.words()}")
                    print(
                        f"| {what} | {callers} | {name} | {side.words()} | {side.rate / sides[0].rate:.2f}x |",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
