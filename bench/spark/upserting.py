"""Measure the work of looking an upsert's keys up, as tasks grow in number: `python -m bench.spark.upserting`.

Each task reading all keys is one way, partitions of keys the other. What counts is the processor time of all tasks
together, one after the other in this process: on a cluster it is divided by the slots. Both find the same rows.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa

from bench.constants import markdown_table
from tiltyard.change_feed.table_history import fragments_by_id
from tiltyard.pipeline.runs import LocalRun
from tiltyard.pipeline.spark_tasks import call_task, group_neighbors, run_tasks
from tiltyard.pipeline.table_location import CatalogConnection, TableLocation
from tiltyard.pipeline.upsert.partitioned_lookup import Layout, PartitionedLookup, count_partitions
from tiltyard.pipeline.upsert.tasks import MAX_KEYS_IN_MEMORY, CheckKeys, MatchFragments, SourceKeys
from tiltyard.pipeline.writing.fragments import FragmentTarget, parse_fragments, write_batches

FRAGMENTS = 64
TASKS = 1, 4, 16, 64
BATCH_ROWS = 1 << 16


@dataclass(frozen=True, slots=True)
class Subject:
    """A table, and a source that is written beside it: half of its keys are in the table."""

    location: TableLocation
    dataset: lance.LanceDataset
    written: list[lance.FragmentMetadata]

    @property
    def keys(self) -> SourceKeys:
        """The keys of the source."""
        return SourceKeys.of(self.location, ["id"], self.written)


def batches(ids: np.ndarray) -> Iterator[pa.RecordBatch]:
    """Yield rows of these ids, in an order of chance."""
    for first in range(0, len(ids), BATCH_ROWS):
        yield pa.record_batch([pa.array(ids[first : first + BATCH_ROWS])], ["id"])


def prepare(folder: Path, rows: int, keys: int) -> Subject:
    """Write a table of so many rows, and a source of so many keys."""
    uri, random = str(folder / "t.lance"), np.random.default_rng(1)
    schema = pa.schema([("id", pa.int64())])
    ids = random.permutation(rows) * 1_000_003  # spread: whole numbers that lie close together are a case of their own
    lance.write_dataset(
        pa.RecordBatchReader.from_batches(schema, batches(ids)), uri, max_rows_per_file=-(-rows // FRAGMENTS)
    )
    location = TableLocation(uri, {}, CatalogConnection("none", ()), ("t",))
    new = random.permutation(np.arange(rows - keys // 2, rows - keys // 2 + keys)) * 1_000_003
    dataset = lance.dataset(uri)
    target = FragmentTarget(location, schema, fresh=False, storage_version=dataset.data_storage_version)
    return Subject(location, dataset, parse_fragments(write_batches(target, batches(new), dataset)))


def look_up_all(subject: Subject, tasks: int) -> int:
    """Return how many rows were found by tasks that each read all keys."""
    sizes = {number: int(part.num_rows) for number, part in fragments_by_id(subject.dataset).items()}
    keys, version = subject.keys, int(subject.dataset.version)
    buckets = -(-keys.rows // MAX_KEYS_IN_MEMORY)
    payloads = [
        *(MatchFragments(keys, version, group) for group in group_neighbors(sizes.items(), tasks)),
        *(CheckKeys(keys, bucket, buckets) for bucket in range(buckets)),
    ]
    return sum(fragment.rows for found in (call_task(payload) for payload in payloads) for fragment in found)


def look_up_partitions(subject: Subject, tasks: int) -> int:
    """Return how many rows were found by partitions."""
    keys, rows = subject.keys, subject.dataset.count_rows()
    partitions = count_partitions(keys.rows, rows, tasks)
    layout = Layout("_indices/bench", int(subject.dataset.version), partitions, tasks, -(-rows // tasks), 0, "")
    lookup = PartitionedLookup(LocalRun(), None, keys, subject.written, layout)
    found = lookup.search(subject.dataset, list(fragments_by_id(subject.dataset)))
    lookup.delete()
    return sum(fragment.rows for fragment in found)


def main() -> int:
    """Measure both; print a table."""
    parser = argparse.ArgumentParser(prog="python -m bench.spark.upserting", description=__doc__)
    parser.add_argument("--rows", type=int, default=8_000_000, help="rows of the table [default: 8000000]")
    parser.add_argument("--keys", type=int, default=5_000_000, help="keys of the source [default: 5000000]")
    arguments = parser.parse_args()
    table = []
    with tempfile.TemporaryDirectory(prefix="tiltyard-bench-") as folder:
        subject = prepare(Path(folder), arguments.rows, arguments.keys)
        run_tasks(None, LocalRun(), call_task, [lambda: look_up_partitions(subject, 1)])  # imports, and the page cache
        for tasks in TASKS:
            seconds, found = [], set()
            for way in (look_up_all, look_up_partitions):
                began = time.process_time()
                found.add(way(subject, tasks))
                seconds.append(time.process_time() - began)
            assert found == {arguments.keys // 2}
            all_keys, parts = seconds
            table.append([str(tasks), f"{all_keys:.1f} s", f"{parts:.1f} s", f"{all_keys / parts:.2f}x"])
    print(f"{arguments.keys:,} keys into {arguments.rows:,} rows, processor time of all tasks:\n")
    print(markdown_table(["tasks", "each reads all keys", "keys by partition", "ratio"], table))
    return 0


if __name__ == "__main__":
    sys.exit(main())
