"""How far Spark is with what it runs as a whole."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from tiltyard.pipeline.runs import LocalRun
from tiltyard.pipeline.spark_tasks import run_partitions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Told(LocalRun):
    """A run that remembers what it was told of tasks, and lets the others go once one of them has ended."""

    def __init__(self, going: Path) -> None:
        super().__init__()
        self.going, self.seen = going, set[tuple[int, int]]()

    def progress(self, **figures: object) -> None:
        """Hear figures."""
        super().progress(**figures)
        self.seen.add((int(self.figures["tasks"]), int(self.figures["tasks_total"])))
        if int(self.figures["tasks"]):
            self.going.touch()


def _of_partition(going: Path, number: int, batches: Iterator[pa.RecordBatch]) -> int:
    rows = sum(batch.num_rows for batch in batches)
    while number and not going.exists():
        time.sleep(0.01)
    return rows


def test_run_partitions_tells_how_many_tasks_have_ended_while_others_run(spark: SparkSession, tmp_path: Path) -> None:
    run = Told(tmp_path / "going")
    frame = spark.range(0, 30, 1, 3)
    assert run_partitions(spark, run, frame, partial(_of_partition, run.going), reports_tasks=True) == [10, 10, 10]
    assert any(0 < done < total for done, total in run.seen)
    assert run.figures["tasks"] == run.figures["tasks_total"]
