"""What a client of Spark Connect does: jobs, and the data source both ways. Prints what it found, as JSON."""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from typing import TYPE_CHECKING

from tiltyard.pipeline.backfill.job import backfill
from tiltyard.pipeline.catalog_client import connection, table
from tiltyard.pipeline.datasource.dataframes import write_frame
from tiltyard.pipeline.ingest.job import ingest
from tiltyard.pipeline.runs import LocalRun, RunCanceledError
from tiltyard.pipeline.session import is_connect, spark_session, task_slots
from tiltyard.pipeline.spark_tasks import run_tasks
from tiltyard.pipeline.upsert.job import upsert
from tiltyard.pipeline.writing.options import WriteOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def main() -> None:
    """Go through all of it."""
    parser = argparse.ArgumentParser()
    for name in ("remote", "uri", "source", "changed"):
        parser.add_argument(name)
    given = parser.parse_args()
    spark, where = spark_session(remote=given.remote), connection(given.uri)
    figures = ingest(LocalRun(), where, spark, given.source, "films")
    asked = {"udf": "tests.spark.functions:doubled", "inputs": ["id"], "type": "int64"}
    backfill(LocalRun(), where, spark, "films", "twice", **asked)
    upsert(
        LocalRun(), where, spark, given.changed, "films", on=["id"], null=["twice"], udf="tests.spark.connected:same"
    )
    films = spark.read.format("tiltyard").options(uri=given.uri, table="films").load()
    frame = films.filter("id < 10")
    write_frame(LocalRun(), frame, table(where, "few"), WriteOptions())
    again = frame.selectExpr("id + 5 as id", "upper(v) as v", "twice")
    again.write.format("tiltyard").options(uri=given.uri, table="few", on="id").mode("append").save()
    told = {"connect": is_connect(spark), "slots": task_slots(spark), "rows": figures["rows"], "count": films.count()}
    told["canceled_after"] = canceled_after(spark)
    sys.stdout.write(json.dumps(told) + "\n")
    spark.stop()


def same(rows: object) -> object:
    """The rows: with a function, an upsert's source is read on Spark."""
    return rows


def canceled_after(spark: SparkSession) -> float:
    """How many seconds tasks that would sleep for a minute go on after their run was canceled."""
    run, canceled = LocalRun(), [0.0]

    def cancel() -> None:
        canceled[0] = time.monotonic()
        run.canceled.set()

    timer = threading.Timer(2, cancel)
    timer.start()
    try:
        run_tasks(spark, run, time.sleep, [60, 60])
    except RunCanceledError:
        return time.monotonic() - canceled[0]
    finally:
        timer.cancel()
    raise RuntimeError("It was not canceled.")


if __name__ == "__main__":
    main()
