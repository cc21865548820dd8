"""What a running server takes, as a row of figures: of its processes, its catalog, its caches, its folders."""

from __future__ import annotations

import csv
import os
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

MIB = 1 << 20
BYTE_CACHES = ("lasting facts", "rows in memory", "vectors in memory", "recent keys")
"""The caches that are bounded in bytes of memory, by their names in /metrics."""
LANCE = "Lance's pages"
"""What Lance caches by itself: index pages and metadata."""
PROCESS_FIGURES = {
    f"bytes of {LANCE} in memory": (f"cache.{LANCE} MiB", MIB),
    "bytes of memory that the allocator has given out": ("server.given out MiB", MIB),
    "blocks of Python's memory": ("server.thousand blocks of Python", 1000),
}
"""What is read of a process's own figures: the name here, and the unit."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The figures at a time, in seconds since the start of the run."""

    seconds: float
    figures: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a server is: its process, its catalog in SQLite, its root, and the folder of its temporary files."""

    process: int
    catalog: Path
    root: Path
    temporary: Path


def take_sample(place: Place, metrics: httpx.Client, start: float) -> Sample:
    """Read all figures; sizes are MiB."""
    figures = {
        **read_processes(place.process),
        **read_catalog(place.catalog),
        **read_metrics(metrics.get("/metrics").raise_for_status().text),
        "disk.root MiB": sum(map(_size, _files(place.root))) / MIB,
        **read_temporary(place.temporary),
    }
    kept = sum(figures.get(f"cache.{name} MiB", 0.0) for name in (*BYTE_CACHES, LANCE))
    figures["server.beyond caches MiB"] = figures["server.anonymous MiB"] - kept
    figures["server.given out beyond caches MiB"] = figures.get("server.given out MiB", 0.0) - kept
    return Sample(time.monotonic() - start, figures)


def read_processes(server: int) -> dict[str, float]:
    """Read memory, descriptors and threads of a process and of all below it, those of Java for themselves.

    `anonymous` is memory that is of no file: programs that others run from the same files change the rest.
    """
    figures: Counter[str] = Counter()
    for process in (server, *_descendants(server)):
        folder = Path(f"/proc/{process}")
        with suppress(OSError):  # it has ended just now
            is_java = (folder / "comm").read_text().startswith("java")
            role = "server" if process == server else "java" if is_java else "children"
            rollup = dict(
                line.split(":", 1) for line in (folder / "smaps_rollup").read_text().splitlines()[1:] if ":" in line
            )
            read = {
                "processes": 1,
                "rss MiB": int(rollup["Rss"].split()[0]) / 1024,
                "pss MiB": int(rollup["Pss"].split()[0]) / 1024,
                "anonymous MiB": int(rollup["Anonymous"].split()[0]) / 1024,
                "descriptors": sum(1 for _ in (folder / "fd").iterdir()),
                "threads": sum(1 for _ in (folder / "task").iterdir()),
            }
            figures.update({f"{role}.{name}": number for name, number in read.items()})
    return dict(figures)


def _descendants(process: int) -> Iterator[int]:
    with suppress(OSError):
        for task in Path(f"/proc/{process}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield int(child)
                yield from _descendants(int(child))


def read_catalog(catalog: Path) -> dict[str, float]:
    """Read the sizes of the database and of its log, and the rows of each table."""
    log = catalog.with_name(f"{catalog.name}-wal")
    figures = {"catalog.MiB": catalog.stat().st_size / MIB, "catalog.log MiB": log.stat().st_size / MIB}
    with closing(sqlite3.connect(f"file:{catalog}?mode=ro", uri=True, timeout=60)) as connection:
        page = connection.execute("PRAGMA page_size").fetchone()[0]
        figures["catalog.free MiB"] = connection.execute("PRAGMA freelist_count").fetchone()[0] * page / MIB
        names = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
        for (name,) in connection.execute(names).fetchall():
            figures[f"rows.{name}"] = connection.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0]
    return figures


def read_metrics(text: str) -> dict[str, float]:
    """Read what a process says of its memory, sizes and bounds of caches, what waits, how many requests there were."""
    figures: Counter[str] = Counter()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels, value = sample.labels, sample.value
            if sample.name == "tiltyard_requests_total":
                figures["requests"] += value
            elif sample.name.startswith("tiltyard_process_") and labels["what"] in PROCESS_FIGURES:
                figure, unit = PROCESS_FIGURES[labels["what"]]
                figures[figure] += value / unit
            elif sample.name == "tiltyard_machinery":
                figures.update(_read_machinery(labels, value))
    return dict(figures)


def _read_machinery(labels: Mapping[str, str], value: float) -> dict[str, float]:
    name, figure = labels["name"], labels["figure"]
    if figure == "waiting":
        return {f"waiting.{name}": value}
    if labels["kind"] != "cache" or figure not in ("size", "bound"):
        return {}
    kind = "bound" if figure == "bound" else "cache"
    return {f"{kind}.{name} MiB": value / MIB} if name in BYTE_CACHES else {f"{kind}.{name}": value}


def read_temporary(folder: Path) -> dict[str, float]:
    """Count the files below a folder for temporary ones; those that are locked, of which a table has some, apart."""
    locks = sum(1 for file in _files(folder) if "/tiltyard-locks-" in file.path)
    return {"disk.lock files": locks, "disk.temporary files": sum(1 for _ in _files(folder)) - locks}


def _files(folder: Path) -> Iterator[os.DirEntry[str]]:
    with suppress(OSError):
        for entry in os.scandir(folder):
            if entry.is_dir(follow_symlinks=False):
                yield from _files(Path(entry.path))
            else:
                yield entry


def _size(file: os.DirEntry[str]) -> int:
    with suppress(OSError):  # it was removed just now
        return file.stat().st_size
    return 0


def write_samples(samples: Sequence[Sample], path: Path) -> None:
    """Write all samples as CSV, a column for each figure that one of them has."""
    names = sorted({name for sample in samples for name in sample.figures})
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["seconds", *names])
        for sample in samples:
            writer.writerow([round(sample.seconds, 1), *(_short(sample.figures.get(name, "")) for name in names)])


def _short(number: float | str) -> float | str:
    return round(number, 3) if isinstance(number, float) else number
