"""What small batches cost a reader: `python -m bench.streams`, and `--batches 10000` for a table of a day.

A stream takes as many files to a table as there are batches, one commit each, and one ingest the same rows to another
table. Reads of both take turns: all rows, and one column by a filter. The medians of processor time and of time on the
clock are shown with their quotients; the target is 1.3. Also shown: what a batch costs from the first tenth of the
batches to the last, so that a cost that grows with the table's history would be seen.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import lance
import pyarrow as pa

import tiltyard
from tiltyard.pipeline.catalog_client import connection, table
from tiltyard.pipeline.runs import LocalRun
from tiltyard.pipeline.streams.batches import StreamBatch, with_sequence
from tiltyard.pipeline.streams.target import StreamOptions, StreamTable

TARGET = 1.3


@dataclass(frozen=True, slots=True)
class Cost:
    """Processor time and time on the clock, in seconds."""

    cpu: float
    clock: float


def measure(work: Callable[[], object]) -> Cost:
    """Run `work` once."""
    cpu, clock = time.process_time(), time.perf_counter()
    work()
    return Cost(time.process_time() - cpu, time.perf_counter() - clock)


def batch_of(number: int, rows: int) -> StreamBatch:
    """Return a batch of a source that is one partition."""
    first = number * rows
    ids = pa.array(range(first, first + rows))
    titles = pa.array([f"film {id_.as_py()} of the stream" for id_ in ids])
    values = pa.array([float(id_.as_py()) for id_ in ids])
    batch = pa.RecordBatch.from_arrays([ids, titles, values], names=["id", "title", "value"])
    return StreamBatch([with_sequence(batch, pa.array(range(rows)))], {"0": number + 1}, str)


def write_stream(root: str, batches: int, rows: int) -> list[Cost]:
    """Commit batches one by one, as the job does; return what each cost."""
    target = StreamTable(LocalRun(), table(connection(root), "streamed"), StreamOptions("bench"))
    target.open()
    costs = []
    for number in range(batches):
        batch = batch_of(number, rows)
        costs.append(measure(lambda: target.apply(batch)))  # noqa: B023  # called at once
    target.record_position(target.position, ends=True)
    return costs


def main() -> int:
    """Write both tables, read them in turn, print the medians; status 0 if the target was met."""
    parser = argparse.ArgumentParser(prog="python -m bench.streams", description=__doc__)
    parser.add_argument("--batches", type=int, default=1_000, help="commits of the stream [default: 1000]")
    parser.add_argument("--rows", type=int, default=100, help="rows of a batch [default: 100]")
    parser.add_argument("--rounds", type=int, default=9, help="reads of each table; medians count [default: 9]")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tiltyard-streams-") as root:
        costs = write_stream(root, arguments.batches, arguments.rows)
        lake = tiltyard.connect(root)
        streamed = lake.table("streamed")
        lake.table("ingested").ingest(streamed.to_arrow())
        tables = {name: lake.table(name).dataset() for name in ("streamed", "ingested")}
        assert tables["streamed"].count_rows() == arguments.batches * arguments.rows
        middle = arguments.batches * arguments.rows // 2
        reads: dict[str, Callable[[lance.LanceDataset], object]] = {
            "all rows": lambda dataset: dataset.to_table(),
            "a filter": lambda dataset: dataset.to_table(columns=["title"], filter=f"id = {middle}"),
        }
        fragments = {name: len(dataset.get_fragments()) for name, dataset in tables.items()}
        print(f"{arguments.batches} batches of {arguments.rows} rows; fragments: {json.dumps(fragments)}")
        print("| read | streamed, CPU ms | ingested, CPU ms | quotient | on the clock |\n|---|---|---|---|---|")
        is_met = True
        for name, read in reads.items():
            rounds = [[measure(lambda: read(each)) for each in tables.values()] for _ in range(arguments.rounds)]  # noqa: B023  # the same
            (cpu, clock), (other_cpu, other_clock) = (
                (median(cost.cpu for cost in side), median(cost.clock for cost in side))
                for side in zip(*rounds, strict=True)
            )
            is_met &= clock / other_clock <= TARGET
            print(
                f"| {name} | {cpu * 1000:.2f} | {other_cpu * 1000:.2f} | {cpu / other_cpu:.2f} "
                f"| {clock / other_clock:.2f} |"
            )
        tenth = max(1, arguments.batches // 10)
        first, last = (sum(cost.cpu for cost in part) / len(part) for part in (costs[:tenth], costs[-tenth:]))
        print(f"a batch: {first * 1000:.1f} ms CPU in the first tenth, {last * 1000:.1f} ms in the last")
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
