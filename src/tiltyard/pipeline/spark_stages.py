"""How far Spark is with work that it runs as a whole: the tasks of its stages, counted as they end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tiltyard.pipeline.session import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def counted_tasks(spark: SparkSession, tag: str) -> tuple[int, int] | None:
    """How many tasks of the Spark jobs with this tag have ended, and how many are known so far.

    Spark learns of later stages as it goes, so both grow. None through Spark Connect, which tells no such thing.
    """
    if is_connect(spark):
        return None
    tracker = spark.sparkContext.statusTracker()
    known = spark.sparkContext._jsc.sc().statusTracker()  # PySpark's own finds jobs by their group alone
    done = total = 0
    for job in known.getJobIdsForTag(tag):
        info = tracker.getJobInfo(job)
        for stage in info.stageIds if info else ():
            if (one := tracker.getStageInfo(stage)) is not None:
                done, total = done + one.numCompletedTasks, total + one.numTasks
    return done, total
