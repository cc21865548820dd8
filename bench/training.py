"""Measure a training run's reads over `db://` beside local ones, and of training sets: `python -m bench.training`.

An epoch makes a shuffled permutation of a table by lancedb, and reads all rows of it in batches: one batch after the
other (`Permutation.iter`), or by `StreamingDataset`, which reads some at once. One side is a server of one process, the
other is lancedb on the same files, which are in the page cache; the sides take turns. Before, two epochs of the table
and two of a table of ten times its rows are read over `db://`, for the memory of client and server.

With `--loader` an epoch of a training set's loader is read instead, of rows of 1 KB from a server's files, in order and
shuffled, beside Lance's own sequential scan of the same version and lancedb's shuffled permutation of the same files.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import lancedb
import numpy as np
import pyarrow as pa
from lancedb.permutation import Permutation, permutation_builder

import tiltyard
from bench import servers
from bench.wire import call_json, of_table

DIMENSION = 128
WIDE_BYTES = 1008
"""Of a row of 1 KB, besides two numbers."""
SPLITS = 4
STAND_IN = Path(__file__).parents[1] / "tests/conformance/stand_in"
"""Where torch is imported from for StreamingDataset, of which it uses the base class alone here."""
Epoch = Callable[[Any, int, int], Iterator[list[int]]]
"""Reads a table in batches of some rows by a seed; yields the ids of each."""


def batches(rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a table: an id, a text, and a vector of random numbers."""
    source, step = np.random.default_rng(7), 10_000
    for first in range(0, rows, step):
        ids = np.arange(first, min(first + step, rows))
        values = source.random((len(ids), DIMENSION), dtype=np.float32)
        vector = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), DIMENSION)
        yield pa.record_batch({"id": pa.array(ids), "label": [f"label {number % 10}" for number in ids], "vec": vector})


def by_permutation(table: Any, seed: int, size: int) -> Iterator[list[int]]:
    """Read an epoch, one batch after the other."""
    permutation = Permutation.from_tables(table, permutation_builder(table).shuffle(seed=seed).execute())
    for batch in permutation.with_format("arrow").iter(size, skip_last_batch=False):
        yield batch["id"].to_pylist()


def by_streaming(table: Any, seed: int, size: int) -> Iterator[list[int]]:
    """Read an epoch by StreamingDataset, in this process."""
    from lancedb.streaming import StreamingDataset  # noqa: PLC0415  # it imports torch, which STAND_IN is for

    dataset: Any = StreamingDataset(
        table,
        num_splits=SPLITS,
        shuffle_seed=seed,
        read_batch_size=size,
        transform=lambda batch: batch["id"].to_pylist(),
    )
    numbers = iter(dataset)
    while some := list(islice(numbers, size)):
        yield some


def read(epoch: Epoch, table: Any, rows: int, seed: int, size: int) -> None:
    """Read an epoch. Raises RuntimeError if it does not have each row once."""
    seen, count = np.zeros(rows, np.bool_), 0
    for batch in epoch(table, seed, size):
        seen[batch] = True
        count += len(batch)
    if count != rows or not seen.all():
        raise RuntimeError(f"{count} rows were read, {seen.sum()} different ones, of {rows}")


@dataclass(slots=True)
class Side:
    """A table, and what was measured of reading it: rows a second, and seconds of all processors for a row."""

    table: Any
    cpu_seconds: Callable[[], float]
    rates: list[float] = field(default_factory=list)
    costs: list[float] = field(default_factory=list)

    def take(self, epoch: Epoch, rows: int, seed: int, size: int) -> None:
        """Read an epoch."""
        began, before = time.perf_counter(), self.cpu_seconds()
        read(epoch, self.table, rows, seed, size)
        self.rates.append(rows / (time.perf_counter() - began))
        self.costs.append((self.cpu_seconds() - before) / rows)

    @property
    def rate(self) -> float:
        return median(self.rates[1:])  # the first turn warms all

    @property
    def cost(self) -> float:
        return median(self.costs[1:])

    def words(self) -> str:
        """The figures for the table."""
        return f"{self.rate:,.0f} rows/s, {self.cost * 1e6:.0f} µs CPU a row"


def own_memory(key: str) -> int:
    """Return this process's resident bytes (`VmRSS`), or their peak (`VmHWM`)."""
    found = re.search(rf"^{key}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def memory(server: servers.Server, table: Any, rows: int, size: int) -> tuple[int, int]:
    """Read an epoch; return by how much the memory of client and server went up."""
    before = own_memory("VmRSS"), server.memory()
    server.reset_peak()
    Path(f"/proc/{os.getpid()}/clear_refs").write_text(servers.RESET_PEAK)
    read(by_permutation, table, rows, 1, size)
    return own_memory("VmHWM") - before[0], server.peak_memory() - before[1]


def wide_batches(rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a table of 1 KB each: an id, a user of ten rows, and bytes that no encoding makes smaller."""
    source, step = np.random.default_rng(7), 10_000
    for first in range(0, rows, step):
        ids = np.arange(first, min(first + step, rows))
        payload = source.integers(0, 256, (len(ids), WIDE_BYTES), dtype=np.uint8)
        columns = {"id": pa.array(ids), "user": pa.array(ids // 10)}
        yield pa.record_batch({**columns, "payload": pa.array([row.tobytes() for row in payload], pa.binary())})


def compare_loader(server: servers.Server, url: str, folder: Path, rows: int, rounds: int, size: int) -> None:
    """Print the rows a second of a training set's loader, beside those of Lance and lancedb; they take turns."""
    lake = tiltyard.connect(url)
    lake.table("wide").ingest(pa.RecordBatchReader.from_batches(next(wide_batches(1)).schema, wide_batches(rows)))
    location = call_json(server.address, of_table("wide", "describe"))["location"]
    (folder / "local").mkdir(exist_ok=True)
    (folder / "local/wide.lance").symlink_to(location)
    permuted = lancedb.connect(folder / "local").open_table("wide")
    whole = lake.training_set("whole", "wide", by="user", splits={"train": 1.0})
    part = lake.training_set("part", "wide", by="user", splits={"train": 0.9, "val": 0.1})
    dataset = whole.source.dataset()
    loaders = {
        "loader, in order": whole.loader(batch_size=size, format="arrow"),
        "loader, shuffled": whole.loader(batch_size=size, format="arrow", shuffle=1),
        "loader, shuffled, arrays of numpy": whole.loader(batch_size=size, shuffle=1),
        "loader, shuffled, 0.9 of the rows": part.loader(batch_size=size, format="arrow", shuffle=1),
    }
    readers: dict[str, Callable[[], int]] = {
        "lance: to_batches()": lambda: sum(batch.num_rows for batch in dataset.to_batches()),
        **{name: partial(_count, loader) for name, loader in loaders.items()},
        "lancedb: Permutation.iter, shuffled": lambda: sum(map(len, by_permutation(permuted, 1, size))),
    }
    rates: dict[str, list[float]] = {name: [] for name in readers}
    costs: dict[str, list[float]] = {name: [] for name in readers}
    for _ in range(rounds + 1):
        for name, read_all in readers.items():
            began, before = time.perf_counter(), time.process_time()
            count = read_all()
            rates[name].append(count / (time.perf_counter() - began))
            costs[name].append((time.process_time() - before) / count)
    (base, *_) = (median(some[1:]) for some in rates.values())
    print("| reader of rows of 1 KB | rows/s | µs CPU a row | of lance's scan |\n|---|---|---|---|")
    for name, some in rates.items():
        rate = median(some[1:])  # the first turn warms all
        print(f"| {name} | {rate:,.0f} | {median(costs[name][1:]) * 1e6:.2f} | {rate / base:.2f}x |", flush=True)


def _count(loader: tiltyard.lake.Loader) -> int:
    """Read an epoch; return how many rows it had."""
    return sum(len(batch["id"]) for batch in loader)


def main() -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(prog="python -m bench.training", description="Measure reads of training runs.")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each side [default: 5]")
    parser.add_argument("--rows", type=int, default=100_000, help="[default: 100,000]")
    parser.add_argument("--batches", type=int, nargs="+", default=[64, 256, 1024], help="[default: 64, 256 and 1,024]")
    parser.add_argument("--loader", action="store_true", help="measure training sets instead")
    options = parser.parse_args()
    sys.path.insert(0, str(STAND_IN))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tiltyard-training-")))
        server = servers.tiltyard(folder / "root", folder / "log", 1)
        stack.callback(server.stop)
        url = f"http://{server.address.host}:{server.address.port}"
        if options.loader:
            compare_loader(server, url, folder, options.rows, options.rounds, options.batches[-1])
            return
        remote = lancedb.connect("db://bench", api_key="none", host_override=url)
        counts = {"samples": options.rows, "many": 10 * options.rows}
        for name, count in counts.items():
            schema = next(batches(1)).schema
            remote.create_table(name, pa.RecordBatchReader.from_batches(schema, batches(count)))
        print("| rows | epoch | memory of the client up by | of the server |\n|---|---|---|---|", flush=True)
        for name, count in counts.items():
            for number in ("first", "second"):
                grown = memory(server, remote.open_table(name), count, options.batches[-1])
                print(f"| {count:,} | {number} | {' | '.join(f'{each / 1e6:.0f} MB' for each in grown)} |", flush=True)
        location = call_json(server.address, of_table("samples", "describe"))["location"]
        (folder / "local").mkdir()
        (folder / "local/samples.lance").symlink_to(location)
        local = lancedb.connect(folder / "local").open_table("samples")
        tables = remote.open_table("samples"), local
        sides = (lambda: time.process_time() + server.cpu_seconds()), time.process_time

        def compare(what: str, epoch: Epoch, size: int) -> None:
            ours, theirs = (Side(table, cpu_seconds) for table, cpu_seconds in zip(tables, sides, strict=True))
            for number in range(options.rounds + 1):
                for side in (ours, theirs):
                    side.take(epoch, options.rows, number, size)
            ratios = f"{ours.rate / theirs.rate:.2f}x | {ours.cost / theirs.cost:.2f}x"
            print(f"| {what} | {size} | {ours.words()} | {theirs.words()} | {ratios} |", flush=True)

        print("\n| epoch | batch | db:// | local | ratio | ratio of CPU |\n|---|---|---|---|---|---|", flush=True)
        for size in options.batches:
            compare("Permutation.iter", by_permutation, size)
            compare("StreamingDataset", by_streaming, size)
        version = local.version
        remote.open_table("samples").delete("id = 0")
        for table in tables:
            table.checkout(version)
        compare("Permutation.iter, not the latest version", by_permutation, options.batches[-1])


if __name__ == "__main__":
    main()
