"""Estimate what billions of rows on hundreds of executors would take, from constants that were measured here.

python -m bench.spark.estimate                                        puts the figures into docs/scale.md
python -m bench.spark.estimate --rows 1e9 --executors 50 --print      shows those of another plan
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.constants import Constant, constants_table, markdown_table, short, short_bytes, short_time
from bench.results import replaced
from tiltyard.column_refresh.refresh import CHECKPOINT_SECONDS
from tiltyard.pipeline.indexes.kmeans import MAX_COMPARED_CENTROIDS
from tiltyard.pipeline.indexes.segments import ROWS_PER_MERGE, ROWS_PER_SEGMENT
from tiltyard.pipeline.indexes.training import REFINEMENTS
from tiltyard.pipeline.sources.discovery import TASK_BYTES
from tiltyard.pipeline.sources.filesystem import READ_AHEAD_BYTES
from tiltyard.pipeline.upsert.partitioned_lookup import ROWS_PER_TASK, count_partitions, reason_for_all_keys
from tiltyard.pipeline.upsert.tasks import MAX_KEYS_IN_MEMORY
from tiltyard.upkeep.compaction import MAX_LEFT_SHARE, MAX_REMAPPED_ROWS

PAGE = Path(__file__).resolve().parents[2] / "docs/scale.md"
MARKS = {name: (f"<!-- {name} -->", f"<!-- end of {name} -->") for name in ("constants", "figures")}
DIMENSION, SUB_VECTORS = 128, 16
TRAINING = "262,144 rows, 1,024 partitions, in tasks"
KEY_BYTES, INDEX_ENTRY_BYTES = 8, 24
REQUESTS_OF_RANGE = 3
"""Requests by which some rows of a Lance file are read: its size, its footer, and a page."""
PART_BYTES, PARTS_OF_A_SIZE = 5 << 20, 100
"""Lance sends a file to an object store in parts of 5 MiB, and after each hundred in parts larger by as much."""


@dataclass(frozen=True, slots=True)
class Constants:
    """Of rows of (id int64, 128 × float32, text of 60 bytes); rates are those of one slot."""

    source: Constant = Constant(549.5, "bytes of a row in Parquet", "files of `bench.spark`, 2 million rows")
    row: Constant = Constant(530.4, "bytes of a row in Lance", "the same, as ingested")
    fragment: Constant = Constant(176, "bytes of a fragment in the manifest", "a manifest of 10,000 fragments")
    file: Constant = Constant(80, "… of each further file (a backfilled column, deleted rows)", "the same")
    listed: Constant = Constant(4_000, "bytes of a fragment in the driver's memory", "**assumed**")
    kept: Constant = Constant(700, "bytes of a task's checkpoint", "**assumed**; a fragment as JSON has 420")
    ingest: Constant = Constant(176_000, "rows/s, Parquet → Lance", "RESULTS.md, local[2]")
    backfill: Constant = Constant(2_150_000, "rows/s, a column that costs nothing", "RESULTS.md, local[2]")
    keys: Constant = Constant(10e6, "keys/s, hashed", "`find_positions`, int64")
    probes: Constant = Constant(13e6, "rows/s looked up in one table of keys", "the same")
    partitioned: Constant = Constant(2e6, "keys/s, of both sides, looked up by partitions", "`bench.spark.upserting`")
    ranges: Constant = Constant(0.0027, "s of a core to read a part of another task's file", "the same, by difference")
    training: Constant = Constant(790e6, "rows × √centroids × dimensions × 2 trained in a second of a core", TRAINING)
    coding: Constant = Constant(11, "s of a core to train 16 sub-vectors' codes on 65,536 rows", TRAINING)
    assigning: Constant = Constant(20e9, "multiplications and additions/s of finding a row's centroid", "**assumed**")
    copy: Constant = Constant(45e6, "bytes/s of index written by a merge", "**assumed**: half of an ingest's")
    moved: Constant = Constant(84, "bytes in the driver for a row that is moved under an index", "4 million, `commit`")
    remap: Constant = Constant(420_000, "rows/s of an index that a compaction's commit rewrites", "the same, a BTREE")
    added: Constant = Constant(3.4e6, "rows/s that one task adds to a BTREE", "4 million, `optimize_indices`")


@dataclass(frozen=True, slots=True)
class Plan:
    """A table, the cluster, and what share of it is upserted, is new to an index, or is compacted."""

    rows: float = 10e9
    executors: int = 200
    cores: int = 8
    share: float = 0.01
    embedding: float = 1_000
    """Rows/s that an embedding model does on a slot."""


@dataclass(frozen=True, slots=True)
class Figures:
    """The estimate of a job. `driver` and `manifest` are bytes, `requests` those to the object store."""

    job: str
    tasks: float
    read: float
    written: float
    requests: float
    commits: float
    manifest: float
    driver: float
    seconds: float


def parts(size: float) -> int:
    """Requests that send a file of so many bytes."""
    sent, count = 0.0, 0
    while sent < size:
        sent += PART_BYTES * (1 + count // PARTS_OF_A_SIZE)
        count += 1
    return count + 2  # begun and completed


def figures(plan: Plan, its: Constants) -> Iterator[Figures]:
    """All jobs, in the order of a table's life."""
    slots = plan.executors * plan.cores
    fragments = math.ceil(plan.rows * its.source.value / TASK_BYTES / slots) * slots
    size = plan.rows * its.row.value
    manifest = fragments * its.fragment.value
    listed = fragments * its.listed.value
    yield Figures(
        "ingest",
        fragments,
        plan.rows * its.source.value,
        size,
        plan.rows * its.source.value / READ_AHEAD_BYTES + fragments * parts(size / fragments),
        1,
        manifest,
        fragments * its.kept.value * 2 + listed,
        plan.rows / slots / its.ingest.value,
    )
    yield from (_upsert(plan, its, slots, fragments, manifest, listed, share) for share in (plan.share, 1.0))
    yield from _backfills(plan, its, slots, fragments, manifest, listed)
    yield from _indexes(plan, its, slots, manifest, listed)
    yield _optimize(plan, its, slots, fragments, manifest, listed)


def _optimize(plan: Plan, its: Constants, slots: int, fragments: int, manifest: float, listed: float) -> Figures:
    moved, size = plan.rows * plan.share, plan.rows * its.row.value
    tasks = fragments * plan.share
    if plan.rows > MAX_REMAPPED_ROWS and moved <= plan.rows * MAX_LEFT_SHARE:
        commits, entries, driver, seconds = 2, moved, 0.0, moved / its.added.value
    else:
        commits, entries, driver, seconds = 1, plan.rows, moved * its.moved.value, plan.rows / its.remap.value
    return Figures(
        f"optimize: {plan.share:.0%} of the rows compacted, a BTREE on them",
        tasks + commits - 1,
        moved * its.row.value + entries * INDEX_ENTRY_BYTES,
        moved * its.row.value + entries * INDEX_ENTRY_BYTES,
        tasks * (parts(size / fragments) + size / fragments / READ_AHEAD_BYTES),
        commits,
        manifest,
        listed + driver,
        moved / its.ingest.value / slots + seconds,
    )


def _upsert(
    plan: Plan, its: Constants, slots: int, fragments: int, manifest: float, listed: float, share: float
) -> Figures:
    keys = plan.rows * share
    tasks = max(slots, math.ceil(plan.rows / ROWS_PER_TASK))
    if reason_for_all_keys(int(keys), int(plan.rows), tasks):
        own = _look_up_all(plan, its, keys, tasks)
    else:
        own = _look_up_partitions(plan, its, keys, tasks, slots)
    return Figures(
        f"upsert of {share:.0%}, spread over all fragments",
        own.tasks + math.ceil(keys * its.source.value / TASK_BYTES),
        keys * its.source.value + plan.rows * KEY_BYTES + own.read,
        keys * (its.row.value + 2) + own.written,
        own.requests + plan.rows * KEY_BYTES / READ_AHEAD_BYTES + fragments,
        1,
        manifest + fragments * its.file.value,
        listed * 2 + own.driver,
        own.seconds / slots + keys / slots / its.ingest.value,
    )


@dataclass(frozen=True, slots=True)
class _LookUp:
    """What a look-up of keys adds to an upsert: `seconds` of all slots together, `driver` bytes."""

    tasks: float
    read: float
    written: float
    requests: float
    driver: float
    seconds: float


def _look_up_all(plan: Plan, its: Constants, keys: float, tasks: int) -> _LookUp:
    """Each task reads all keys, and so does each that checks them; three bytes for each key that is found."""
    rounds = math.ceil(keys / MAX_KEYS_IN_MEMORY)
    read = (tasks + rounds) * keys * KEY_BYTES
    seconds = (tasks + rounds) * keys / its.keys.value + rounds * plan.rows / its.probes.value
    return _LookUp(tasks + rounds, read, 0, read / READ_AHEAD_BYTES, keys * 3, seconds)


def _look_up_partitions(plan: Plan, its: Constants, keys: float, tasks: int, slots: int) -> _LookUp:
    """Keys of both sides are written, with an address or a position, and read by partition, pairs by fragments."""
    partitions = count_partitions(int(keys), int(plan.rows), slots)
    files = tasks + math.ceil(keys / ROWS_PER_TASK)
    ranges = partitions * (files + tasks)
    size = (plan.rows + keys) * (KEY_BYTES + 8) + keys * 16
    sent = files * parts(size / files) + partitions * parts(keys * 16 / partitions)
    seconds = (plan.rows + keys) / its.partitioned.value + ranges * its.ranges.value
    read = size + keys * KEY_BYTES
    return _LookUp(files + partitions + tasks, read, size, sent + ranges * REQUESTS_OF_RANGE, ranges * 8, seconds)


def _backfills(
    plan: Plan, its: Constants, slots: int, fragments: int, manifest: float, listed: float
) -> Iterator[Figures]:
    for what, rate, width in (("a number", its.backfill.value, 4), ("an embedding", plan.embedding, DIMENSION * 4)):
        seconds = plan.rows / slots / rate
        commits = max(1, math.ceil(seconds / CHECKPOINT_SECONDS))
        yield Figures(
            f"backfill of {what}",
            fragments,
            plan.rows * DIMENSION * 4,
            plan.rows * width,
            fragments
            * (plan.rows / fragments * DIMENSION * 4 / READ_AHEAD_BYTES + parts(plan.rows / fragments * width)),
            commits,
            manifest + fragments * its.file.value,
            listed * 2,
            seconds,
        )


def _indexes(plan: Plan, its: Constants, slots: int, manifest: float, listed: float) -> Iterator[Figures]:
    for what, centroids, rate in (
        ("as it comes", round(math.sqrt(plan.rows)), 256),
        ("num_partitions=16384, sample_rate=64", 16_384, 64),
    ):
        sample = centroids * rate
        coarse = 256 * centroids * DIMENSION * 2 / its.training.value  # √centroids clusters of 256 rows, in one task
        clustered = sample * math.sqrt(centroids) * DIMENSION * 2 / its.training.value
        clusters = clustered / min(slots, math.sqrt(centroids))
        compared = min(centroids, MAX_COMPARED_CENTROIDS)
        steps = REFINEMENTS * sample * compared * DIMENSION * 2 / its.assigning.value / min(slots, math.sqrt(centroids))
        train = coarse + clusters + steps + its.coding.value / min(slots, SUB_VECTORS)
        build = plan.rows * centroids * DIMENSION * 2 / its.assigning.value / slots
        segments = math.ceil(plan.rows / ROWS_PER_SEGMENT)
        merges = math.ceil(plan.rows / ROWS_PER_MERGE)
        merge = plan.rows * 24 / its.copy.value / min(slots, merges)
        yield Figures(
            f"IVF_PQ, {what}: training alone {short_time(train)}",
            1 + segments + merges,
            plan.rows * DIMENSION * 4 + sample * DIMENSION * 4,
            plan.rows * 24 * 2,
            plan.rows * (DIMENSION * 4 + 48) / READ_AHEAD_BYTES,
            1,
            manifest + merges * 2_000,
            listed,
            train + build + merge,
        )


def page(plan: Plan, its: Constants) -> dict[str, str]:
    """The two tables, by their marks."""
    slots = plan.executors * plan.cores
    heads = "job", "tasks", "read", "written", "requests", "commits", "manifest", "driver", "time"
    rows = []
    for job in figures(plan, its):
        counts = [short(job.tasks), short_bytes(job.read), short_bytes(job.written), short(job.requests)]
        sizes = [short_bytes(job.manifest), short_bytes(job.driver), short_time(job.seconds)]
        rows.append([job.job, *counts, f"{job.commits:,}", *sizes])
    title = f"{short(plan.rows)} rows, {plan.executors} executors of {plan.cores} cores: {slots:,} slots."
    return {"constants": constants_table(its), "figures": f"{title}\n\n{markdown_table(heads, rows)}"}


def main() -> None:
    """Write the page, or show another plan."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.spark.estimate",
        description="Compute what a large table would take, from constants that were measured.",
        epilog="example: python -m bench.spark.estimate --rows 1e9 --executors 50 --print",
    )
    parser.add_argument("--rows", type=float, default=Plan().rows, help="rows of the table [default: 1e10]")
    parser.add_argument("--executors", type=int, default=Plan().executors, help="[default: 200]")
    parser.add_argument("--cores", type=int, default=Plan().cores, help="slots of an executor [default: 8]")
    parser.add_argument("--print", action="store_true", help=f"show, and leave {PAGE.name} as it is")
    arguments = parser.parse_args()
    contents = page(Plan(arguments.rows, arguments.executors, arguments.cores), Constants())
    if arguments.print:
        print(contents["figures"])
        return
    text = PAGE.read_text()
    for name, content in contents.items():
        text = replaced(text, MARKS[name], content)
    PAGE.write_text(text)


if __name__ == "__main__":
    main()
