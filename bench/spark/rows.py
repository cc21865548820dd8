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
from bench.spark.lines import Process

WARM_ROWS = 20_000
TIMES = 10
"""How many times more rows the second measurement of memory has."""


@dataclass
class Ground:
    """What rows share. `rows` is how many rows the source has."""

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


def ingest(ground: Ground) -> list[Result]:
    """Parquet → Lance."""
    ours, single = [], []
    target = ground.work / "single"
    for _ in range(ground.rounds):
        shutil.rmtree(target, ignore_errors=True)
        rest()
        single.append(ground.single.ask("write", source=ground.source, target=str(target)))
        rest()
        ours.append(ground.spark.ask("ingest", source=ground.source, name="ingested"))
    words = ground.rate(median(ours)), f"lance.write_dataset {ground.rate(median(single))}"
    return [at_least("ingest", "Parquet → Lance", words, median(single) / median(ours), 0.9)]


def frame(ground: Ground) -> list[Result]:
    """A DataFrame with vectors → Lance."""
    ours, handed = [], []
    for _ in range(ground.rounds):
        handed.append(ground.spark.ask("hand", source=ground.source))
        ours.append(ground.spark.ask("frame", source=ground.source, name="framed"))
    words = ground.rate(median(ours)), f"mapInArrow count {ground.rate(median(handed))}"
    return [at_least("frame", "DataFrame with vectors → Lance", words, median(handed) / median(ours), 0.6)]


def read(ground: Ground) -> list[Result]:
    """Sum of the ids of a whole table."""
    ground.spark.ask("ingest", source=ground.source, name="read")
    ours, bare = [], []
    for _ in range(ground.rounds):
        bare.append(ground.spark.ask("read_bare", name="read"))
        ours.append(ground.spark.ask("read", name="read"))
    words = ground.rate(median(ours)), f"the plainest Python data source {ground.rate(median(bare))}"
    return [at_least("read", 'sum(id) with columns="id"', words, median(bare) / median(ours), 1.0)]


def scaling(ground: Ground) -> list[Result]:
    """One slot against two."""
    one, two = ground.session("local[1]"), ground.spark
    alone, both = [], []
    for _ in range(ground.rounds):
        rest()
        alone.append(one.ask("ingest", source=ground.source, name="scaled"))
        rest()
        both.append(two.ask("ingest", source=ground.source, name="scaled"))
    words = f"local[2] {ground.rate(median(both))}", f"local[1] {ground.rate(median(alone))}"
    return [at_least("scaling", "Parquet → Lance, from one slot to two", words, median(alone) / median(both), None)]


def memory(ground: Ground) -> list[Result]:
    """The most memory that the driver has held during a job, for a source and for ten times as much."""
    found = []
    for source, rows in (
        (ground.source, ground.rows),
        (str(data.repeated(ground.work, ground.rows, TIMES)), ground.rows * TIMES),
    ):
        process = ground.session("local[2]")
        process.ask("ingest", source=source, name="grown")
        found.append((rows, process.memory))
        process.stop()
    words = [f"{rows:,} rows: {most:.0f} MiB" for rows, most in found]
    more = found[1][1] - found[0][1]
    return [at_most("memory", "Python driver at most, ten times the rows", (words[1], words[0]), more, (32, "MiB"))]
