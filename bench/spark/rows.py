"""The rows of the table: each measures in rounds that alternate, medians count."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import median

from bench.resting import rest
from bench.results import Result, at_least, at_most
from bench.spark import data
from bench.spark.line_processes import Process

WARM_ROWS = 20_000
TIMES = 10
"""How many times more rows the second measurement of memory has."""


@dataclass
class Environment:
    """The shared environment of rows. `rows` is the number of rows of the source."""

    work: Path
    rows: int
    rounds: int
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

    def rate(self, seconds: float, rows: int | None = None) -> str:
        """Rows a second, in words."""
        return f"{(rows or self.rows) / seconds:,.0f} rows/s"


def ingest(environment: Environment) -> list[Result]:
    """Parquet → Lance."""
    ours, single = [], []
    target = environment.work / "single"
    for _ in range(environment.rounds):
        shutil.rmtree(target, ignore_errors=True)
        rest()
        single.append(environment.single.ask("write", source=environment.source, target=str(target)))
        rest()
        ours.append(environment.spark.ask("ingest", source=environment.source, name="ingested"))
    words = environment.rate(median(ours)), f"lance.write_dataset {environment.rate(median(single))}"
    return [at_least("ingest", "Parquet → Lance", words, median(single) / median(ours), 0.9)]


def frame(environment: Environment) -> list[Result]:
    """A DataFrame with vectors → Lance."""
    ours, handed = [], []
    for _ in range(environment.rounds):
        handed.append(environment.spark.ask("hand", source=environment.source))
        ours.append(environment.spark.ask("frame", source=environment.source, name="framed"))
    words = environment.rate(median(ours)), f"mapInArrow count {environment.rate(median(handed))}"
    return [at_least("frame", "DataFrame with vectors → Lance", words, median(handed) / median(ours), 0.6)]


def read(environment: Environment) -> list[Result]:
    """Sum of the ids of a whole table."""
    environment.spark.ask("ingest", source=environment.source, name="read")
    ours, bare = [], []
    for _ in range(environment.rounds):
        bare.append(environment.spark.ask("read_bare", name="read"))
        ours.append(environment.spark.ask("read", name="read"))
    words = environment.rate(median(ours)), f"the plainest Python data source {environment.rate(median(bare))}"
    return [at_least("read", 'sum(id) with columns="id"', words, median(bare) / median(ours), 1.0)]


def scaling(environment: Environment) -> list[Result]:
    """One slot against two."""
    single_slot, two = environment.session("local[1]"), environment.spark
    alone, both = [], []
    for _ in range(environment.rounds):
        rest()
        alone.append(single_slot.ask("ingest", source=environment.source, name="scaled"))
        rest()
        both.append(two.ask("ingest", source=environment.source, name="scaled"))
    words = f"local[2] {environment.rate(median(both))}", f"local[1] {environment.rate(median(alone))}"
    return [at_least("scaling", "Parquet → Lance, from one slot to two", words, median(alone) / median(both), None)]


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
