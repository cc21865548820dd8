"""pylance in one process, with all its threads: the baseline of Spark's jobs."""

from __future__ import annotations

import shutil
import time
from typing import Any

import lance
import pyarrow as pa
import pyarrow.dataset as pads

from bench.spark.data import norm
from bench.spark.line_processes import answer


def write(source: str, target: str) -> float:
    """Seconds to write a scan of Parquet files as a new table, in place of one that may be there."""
    shutil.rmtree(target, ignore_errors=True)
    started_at = time.perf_counter()
    lance.write_dataset(pads.dataset(source).scanner().to_reader(), target)
    return time.perf_counter() - started_at


def merge(source: str, target: str) -> float:
    """Seconds to merge rows into a table by `id`."""
    rows = pads.dataset(source).scanner().to_reader()
    builder = lance.dataset(target).merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    started_at = time.perf_counter()
    builder.execute(rows)
    return time.perf_counter() - started_at


def add_column(target: str, name: str) -> float:
    """Seconds to compute a column by a function over batches."""

    @lance.batch_udf(output_schema=pa.schema([(name, pa.float32())]))
    def norms(rows: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch([norm(rows)], [name])

    dataset = lance.dataset(target)
    started_at = time.perf_counter()
    dataset.add_columns(norms, read_columns=["vector"])
    return time.perf_counter() - started_at


def index(target: str, column: str, kind: str, options: dict[str, Any]) -> float:
    """Seconds to open a table and build an index."""
    started_at = time.perf_counter()
    dataset = lance.dataset(target)
    if kind.startswith("IVF"):
        dataset.create_index(column, kind, name=f"{column}_idx", replace=True, **options)
    else:
        dataset.create_scalar_index(column, kind, name=f"{column}_idx", replace=True)
    return time.perf_counter() - started_at


if __name__ == "__main__":
    answer({"write": write, "merge": merge, "add_column": add_column})
