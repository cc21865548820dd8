"""Measure ranges of blobs over HTTP against reading the files directly: `python -m bench.blobs`.

One client reads ranges of some large blobs, each by one thread or several at once: over HTTP from a server, or by
pylance from the same files, through handles (`take_blobs`) that are kept, or opened for each range. All read the same
ranges in the same order, from files that are in the page cache, and take turns. HTTP's side is a plain socket, without
a client library.
"""

from __future__ import annotations

import argparse
import http.client
import random
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from itertools import cycle, islice
from pathlib import Path
from statistics import median

import lance
import pyarrow as pa

from bench import servers
from bench.load import Address
from bench.wire import ARROW, call, call_json, of_table, stream

TABLE = "films"
Range = tuple[int, int]
"""The row of a blob, and where the range begins."""


def fill(address: Address, blobs: int, size: int) -> str:
    """Create a table of blobs; return its location."""
    schema = pa.schema([pa.field("id", pa.int64()), lance.blob_field("film")])
    call(address, "POST", of_table(TABLE, "create"), stream(schema.empty_table()), ARROW)
    location = str(call_json(address, of_table(TABLE, "describe"))["location"])
    source = random.Random(5)  # for content, not for secrets
    for number in range(blobs):
        rows = pa.table([pa.array([number]), lance.blob_array([source.randbytes(size)])], schema=schema)
        lance.write_dataset(rows, location, mode="append")
    return location


def row_ids(location: str) -> list[int]:
    """Return the row ids of all blobs."""
    ids: list[int] = lance.dataset(location).to_table(columns=["id"], with_row_id=True)["_rowid"].to_pylist()
    return ids


def over_http(address: Address, ids: list[int], length: int) -> Callable[[list[Range]], int]:
    """Return what reads ranges over a connection of its own, and returns how many bytes came."""

    def read(ranges: list[Range]) -> int:
        buffer, received = memoryview(bytearray(length)), 0
        with closing(http.client.HTTPConnection(address.host, address.port)) as connection:
            for row, start in ranges:
                headers = {"Range": f"bytes={start}-{start + length - 1}"}
                connection.request("GET", f"/v1/table/{TABLE}/blob/film/{ids[row]}/bytes", headers=headers)
                response = connection.getresponse()
                if response.status != http.HTTPStatus.PARTIAL_CONTENT:
                    raise RuntimeError(f"{response.status}: {response.read()[:200]!r}")
                at = 0
                while count := response.readinto(buffer[at:]):
                    at += count
                received += at
        return received

    return read


def directly(location: str, ids: list[int], length: int, *, reopening: bool) -> Callable[[list[Range]], int]:
    """Return what reads ranges by pylance, through handles that are kept, or with a new one for each range."""
    dataset = lance.dataset(location)
    files = dataset.take_blobs("film", ids=ids)

    def read(ranges: list[Range]) -> int:
        received = 0
        for row, start in ranges:
            file = dataset.take_blobs("film", ids=[ids[row]])[0] if reopening else files[row]
            assert file is not None
            received += len(file.read_range(start, length))
        return received

    return read


def rate(read: Callable[[list[Range]], int], ranges: list[Range], threads: int, length: int) -> float:
    """Return ranges a second, read by some threads."""
    parts = [ranges[number::threads] for number in range(threads)]
    started = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        received = sum(pool.map(read, parts))
    seconds = time.perf_counter() - started
    if received != len(ranges) * length:
        raise RuntimeError(f"{received} bytes came instead of {len(ranges) * length}")
    return len(ranges) / seconds


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.blobs", description="Measure ranges of blobs.")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each side [default: 7]")
    parser.add_argument("--blobs", type=int, default=8)
    parser.add_argument("--megabytes", type=int, default=64, help="size of each blob [default: 64]")
    parser.add_argument("--ranges", type=int, default=400, help="ranges in one turn [default: 400]")
    parser.add_argument("--workers", type=int, default=2, help="server processes [default: 2]")
    options = parser.parse_args()
    size = options.megabytes << 20
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tiltyard-blobs-")))
        server = servers.tiltyard(folder / "root", folder / "log", options.workers)
        stack.callback(server.stop)
        location = fill(server.address, options.blobs, size)
        ids = row_ids(location)
        print(
            "| range | threads | HTTP | pylance, handles kept | pylance, opened for each | ratio | ratio |", flush=True
        )
        print("|---|---|---|---|---|---|---|", flush=True)
        for length, threads in ((1 << 20, 1), (1 << 20, 4), (64 << 10, 4), (8 << 20, 1)):
            source = random.Random(7)  # for offsets
            ranges = [
                (row, source.randrange(size - length)) for row in islice(cycle(range(options.blobs)), options.ranges)
            ]
            sides = (
                over_http(server.address, ids, length),
                directly(location, ids, length, reopening=False),
                directly(location, ids, length, reopening=True),
            )
            rates: list[list[float]] = [[], [], []]
            for _ in range(options.rounds + 1):
                for side, figures in zip(sides, rates, strict=True):
                    figures.append(rate(side, ranges, threads, length))
            ours, *theirs = (median(figures[1:]) for figures in rates)  # the first turn warms all
            words = [f"{each:,.0f}/s, {each * length / 1e6:,.0f} MB/s" for each in (ours, *theirs)]
            ratios = [f"{ours / each:.2f}x" for each in theirs]
            print(f"| {length >> 10} KiB | {threads} | {' | '.join([*words, *ratios])} |", flush=True)


if __name__ == "__main__":
    main()
