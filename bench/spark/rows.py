"""The rows of the table: each measures in rounds that alternate, medians count."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from bench.resting import rest
from bench.results import Result, at_least, at_most
from bench.spark import data
from bench.spark.costs import Cost, alternate, size
from bench.spark.line_processes import Process

WARM_ROWS = 20_000
TIMES = 10
"""How many times more rows the second measurement of memory has."""


@dataclass
class Environment:
    """The shared environment of rows. `rows` is the number of rows of the source, `merge_rows` that of
    the table which Delta Lake is measured on."""

    work: Path
    rows: int
    rounds: int
    merge_rows: int
    stack: ExitStack = field(default_factory=ExitStack)

    @cached_property
    def source(self) -> str:
        """Parquet files."""
        return str(data.parquet(self.work, self.rows))

    @cached_property
    def spark(self) -> Process:
        """A warm session with two slots."""
        return self.session("local[2]")

    @cached_property
    def single(self) -> Process:
        """pylance in one process."""
        process = Process("bench.spark.single")
        self.stack.callback(process.stop)
        return process

    def session(self, master: str) -> Process:
        """A new session, warmed by a small job of each kind."""
        folder = self.work / f"catalog-{master.strip('[]').replace('[', '-')}"
        shutil.rmtree(folder, ignore_errors=True)
        process = Process("bench.spark.session", master, str(folder))
        self.stack.callback(process.stop)
        few = str(data.parquet(self.work, WARM_ROWS))
        for kind in ("ingest", "frame"):
            process.ask(kind, source=few, name=f"warm_{kind}")
        process.ask("read", name="warm_ingest")
        process.ask("read_bare", name="warm_ingest")
        return process

    @property
    def source_size(self) -> str:
        """The source's rows and bytes, in words."""
        return f"{self.rows:,} rows, {size(self.source)}"


def ingest(environment: Environment) -> list[Result]:
    """Parquet → Lance."""
    target = environment.work / "single"

    def single(_: int) -> Cost:
        shutil.rmtree(target, ignore_errors=True)
        rest()
        return Cost.of(environment.single, "write", source=environment.source, target=str(target))

    def ours(_: int) -> Cost:
        rest()
        return Cost.of(environment.spark, "ingest", source=environment.source, name="ingested")

    job, alone = alternate(environment.rounds, ours, single)
    words = job.rate(environment.rows), f"lance.write_dataset {alone.rate(environment.rows)}"
    what = f"Parquet → Lance, {environment.source_size}"
    return [at_least("ingest", what, words, alone.seconds / job.seconds, 0.9)]


def frame(environment: Environment) -> list[Result]:
    """A DataFrame with vectors → Lance."""
    spark, source = environment.spark, environment.source
    job, handed = alternate(
        environment.rounds,
        lambda _: Cost.of(spark, "frame", source=source, name="framed"),
        lambda _: Cost.of(spark, "hand", source=source),
    )
    words = job.rate(environment.rows), f"mapInArrow count {handed.rate(environment.rows)}"
    what = f"DataFrame with vectors → Lance, {environment.source_size}"
    return [at_least("frame", what, words, handed.seconds / job.seconds, 0.9)]


def read(environment: Environment) -> list[Result]:
    """Sum of the ids of a whole table."""
    spark = environment.spark
    spark.ask("ingest", source=environment.source, name="read")
    job, bare = alternate(
        environment.rounds,
        lambda _: Cost.of(spark, "read", name="read"),
        lambda _: Cost.of(spark, "read_bare", name="read"),
    )
    words = job.rate(environment.rows), f"the plainest Python data source {bare.rate(environment.rows)}"
    return [at_least("read", 'sum(id) with columns="id"', words, bare.seconds / job.seconds, 1.0)]


def scaling(environment: Environment) -> list[Result]:
    """One slot against two."""
    single_slot = environment.session("local[1]")

    def measured(process: Process) -> Cost:
        rest()
        return Cost.of(process, "ingest", source=environment.source, name="scaled")

    both, alone = alternate(environment.rounds, lambda _: measured(environment.spark), lambda _: measured(single_slot))
    words = f"local[2] {both.rate(environment.rows)}", f"local[1] {alone.rate(environment.rows)}"
    return [at_least("scaling", "Parquet → Lance, from one slot to two", words, alone.seconds / both.seconds, None)]


def memory(environment: Environment) -> list[Result]:
    """The most memory that the driver has held during a job, for a source and for ten times as much."""
    peaks = []
    for source, rows in (
        (environment.source, environment.rows),
        (str(data.repeated(environment.work, environment.rows, TIMES)), environment.rows * TIMES),
    ):
        process = environment.session("local[2]")
        process.ask("ingest", source=source, name="grown")
        peaks.append((rows, process.memory))
        process.stop()
    words = [f"{rows:,} rows: {most:.0f} MiB" for rows, most in peaks]
    more = peaks[1][1] - peaks[0][1]
    return [at_most("memory", "Python driver at most, ten times the rows", (words[1], words[0]), more, (32, "MiB"))]
