"""Run jobs and the data source through Spark Connect, and print the results as JSON."""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from typing import TYPE_CHECKING

from tiltyard.pipeline.backfill.job import backfill
from tiltyard.pipeline.catalog_client import connection, table
from tiltyard.pipeline.ingest.job import ingest, upsert
from tiltyard.pipeline.runs import LocalRun, RunCanceledError
from tiltyard.pipeline.session import is_connect, spark_session, task_slots
from tiltyard.pipeline.spark_tasks import run_tasks
from tiltyard.pipeline.writing.options import WriteOptions
from tiltyard.pipeline.writing.row_sources import FrameRows
from tiltyard.pipeline.writing.write_job import write_source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def main() -> None:
    """Run all steps."""
    parser = argparse.ArgumentParser()
    for name in ("remote", "uri", "source", "changed"):
        parser.add_argument(name)
    options = parser.parse_args()
    spark, catalog = spark_session(remote=options.remote), connection(options.uri)
    figures = ingest(LocalRun(), catalog, spark, options.source, "films")
    backfill_options = {"udf": "tests.spark.functions:doubled", "inputs": ["id"], "type": "int64"}
    backfill(LocalRun(), catalog, spark, "films", "twice", **backfill_options)
    upsert(
        LocalRun(),
        catalog,
        spark,
        options.changed,
        "films",
        on=["id"],
        null=["twice"],
        udf="tests.spark.connect_client:same",
    )
    films = spark.read.format("tiltyard").options(uri=options.uri, table="films").load()
    frame = films.filter("id < 10")
    write_source(LocalRun(), FrameRows((), frame), table(catalog, "few"), WriteOptions())
    changed = frame.selectExpr("id + 5 as id", "upper(v) as v", "twice")
    changed.write.format("tiltyard").options(uri=options.uri, table="few", on="id").mode("append").save()
    result = {"connect": is_connect(spark), "slots": task_slots(spark), "rows": figures["rows"], "count": films.count()}
    result["canceled_after"] = canceled_after(spark)
    sys.stdout.write(json.dumps(result) + "\n")
    spark.stop()


def same(rows: object) -> object:
    """Return the rows: with a function, an upsert's source is read on Spark."""
    return rows


def canceled_after(spark: SparkSession) -> float:
    """Return for how many seconds tasks that would sleep for a minute go on after their run was canceled."""
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
