"""pylance in one process, with all the threads it wants: what Spark's jobs are measured against."""

from __future__ import annotations

import shutil
import time

import lance
import pyarrow.dataset as pads

from bench.spark.lines import answer


def write(source: str, target: str) -> float:
    """Seconds to write a scan of Parquet files as a table."""
    shutil.rmtree(target, ignore_errors=True)
    began = time.perf_counter()
    lance.write_dataset(pads.dataset(source).scanner().to_reader(), target)
    return time.perf_counter() - began


if __name__ == "__main__":
    answer({"write": write})
