"""lance-ray on two CPUs, as it is published: the other side of the rows against it."""

from __future__ import annotations

import os
import shutil
import time

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # before Ray is imported

import lance
import lance_ray
import pyarrow as pa
import ray

from bench.spark.data import SCHEMA, norm
from bench.spark.line_processes import answer

SLOTS = 2


def write(source: str, target: str) -> float:
    """Seconds to write Parquet files as a new table, in place of one that may be there."""
    shutil.rmtree(target, ignore_errors=True)
    started_at = time.perf_counter()
    lance_ray.write_lance(ray.data.read_parquet(source), target, schema=SCHEMA)
    return time.perf_counter() - started_at


def add_column(target: str, name: str) -> float:
    """Seconds to compute a column by a function over batches."""

    def norms(rows: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch([norm(rows)], [name])

    started_at = time.perf_counter()
    lance_ray.add_columns(target, transform=norms, read_columns=["vector"], concurrency=SLOTS)
    return time.perf_counter() - started_at


def rows(target: str) -> int:
    """Count the rows of a table."""
    return int(lance.dataset(target).count_rows())


if __name__ == "__main__":
    ray.init(num_cpus=SLOTS, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    answer({"write": write, "add_column": add_column, "rows": rows})
    ray.shutdown()
