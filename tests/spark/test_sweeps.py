"""Jobs on Spark, killed at a sample of their writes: see `tests.faults.sweep.spark_jobs`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.faults.sweep.spark import SharedSpark
from tests.faults.sweep.spark_jobs import SPARK_JOBS
from tests.faults.sweep.sweep import Servers, of_commit, sweep

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ALWAYS = "spark-backfill"
OFTEN = of_commit(SPARK_JOBS.keys() - {ALWAYS}, 4)
"""Those of `make test-all`, which would take minutes for all."""


@pytest.mark.parametrize("name", [ALWAYS, *(pytest.param(name, marks=pytest.mark.extended) for name in OFTEN)])
def test_job_on_spark_killed_at_some_of_its_writes_keeps_its_promise(
    spark: SparkSession, name: str, tmp_path: Path
) -> None:
    """Drivers at a write in the middle, as renewals of a lease are some more or fewer; workers at their first one."""
    middle = not SPARK_JOBS[name].in_tasks
    done = sweep(name, tmp_path, Servers(), lambda writes: [middle * len(writes) // 2], SharedSpark(spark))
    assert done.kills and "the end" not in done.kills
    assert not done.complaints, "\n".join(done.complaints)
