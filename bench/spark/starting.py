"""What starting costs: a job of few rows from the command line, against the start of a bare Spark session."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq

from bench.results import Result, at_most
from bench.servers import TREE
from bench.spark import data
from bench.spark.costs import Cost, alternate
from bench.spark.rows import Environment

FEW, LEAST = 1_000, 16
"""Rows of the two sources."""

_BARE = """
import os
from pyspark.sql import SparkSession
from bench.processor_time import tree_seconds
session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
print(tree_seconds(os.getpid()))
session.stop()
"""
"""Prints its processor time itself: its JVM outlives it, so that nobody waits for it."""


def starting(environment: Environment) -> list[Result]:
    """Ingest 1,000 and 16 rows, each by a command of its own."""
    ours, bare = alternate(
        environment.rounds,
        lambda number: _ingest(environment.work, FEW, number),
        lambda _: _start_bare(),
    )
    least, _ = alternate(
        environment.rounds,
        lambda number: _ingest(environment.work, LEAST, number),
        lambda number: _ingest(environment.work, FEW, number),
    )
    ingest = "tiltyard job ingest of {:,} rows, as a command"
    words = str(ours), f"the start of a bare Spark session {bare}"
    return [
        at_most("starting", ingest.format(FEW), words, ours.seconds / bare.seconds, (1.5, "x")),
        at_most("starting", ingest.format(LEAST), (str(least), "—"), least.seconds, (3.0, "s")),
    ]


def _ingest(work: Path, rows: int, number: int) -> Cost:
    """Measure the command, into a table that is overwritten."""
    file = next(data.parquet(work, rows).iterdir())
    assert pq.read_metadata(file).num_rows == rows
    catalog = ["--uri", str(work / "catalog-starting"), "--mode", "overwrite"]
    command = [sys.executable, "-m", "tiltyard", "job", "ingest", *catalog, str(file), f"started_{rows}_{number}"]
    return _run(command)[0]


def _run(command: list[str]) -> tuple[Cost, str]:
    """Measure a command from its start to its end; return what it printed, too. Raises CalledProcessError."""
    started_at, before = time.perf_counter(), os.times()
    process = subprocess.run(command, check=True, cwd=TREE, stdout=subprocess.PIPE, text=True)
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return Cost(time.perf_counter() - started_at, cpu), process.stdout


def _start_bare() -> Cost:
    """Measure the start of a session."""
    cost, printed = _run([sys.executable, "-c", _BARE])
    return Cost(cost.seconds, float(printed))
