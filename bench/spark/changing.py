"""Rows of the table for jobs that change tables: ours on one copy, pylance on another, in rounds that alternate."""

from __future__ import annotations

from statistics import median
from typing import Any

from bench.resting import rest
from bench.results import Result, at_least
from bench.spark import data
from bench.spark.rows import Ground

PARTITIONS = 256
SUB_VECTORS = 16


def _copies(ground: Ground, name: str) -> str:
    """The same rows as a table of the catalog and, for pylance, as one by itself; where that is."""
    target = str(ground.work / f"single-{name}")
    ground.single.ask("write", source=ground.source, target=target)
    ground.spark.ask("ingest", source=ground.source, name=name)
    rest()  # else the first rounds share the disk with what was written here
    return target


def upsert(ground: Ground) -> list[Result]:
    """A twentieth of the rows, by key."""
    target, changes = _copies(ground, "upserted"), str(data.changes(ground.work, ground.rows))
    ours, single = [], []
    for _ in range(ground.rounds):
        rest()
        single.append(ground.single.ask("merge", source=changes, target=target))
        rest()
        ours.append(ground.spark.ask("upsert", source=changes, name="upserted"))
    words = f"{median(ours):.2f} s", f"merge_insert {median(single):.2f} s"
    what = f"upsert of {ground.rows // 20:,} rows by key"
    return [at_least("upsert", what, words, median(single) / median(ours), 0.7)]


def backfill(ground: Ground) -> list[Result]:
    """The norm of each vector."""
    target = _copies(ground, "filled")
    ground.spark.ask("backfill", name="warm_ingest", column="norm")
    ours, single = [], []
    for number in range(ground.rounds):
        single.append(ground.single.ask("add_column", target=target, name=f"norm{number}"))
        ours.append(ground.spark.ask("backfill", name="filled", column=f"norm{number}"))
    words = ground.rate(median(ours)), f"add_columns(batch_udf) {ground.rate(median(single))}"
    return [at_least("backfill", "a computed column", words, median(single) / median(ours), 1.0)]


def btree(ground: Ground) -> list[Result]:
    """An index of the ids: a fifth of a second, give or take a third, so that it takes many rounds."""
    return _index(ground, "btree", "id", "BTREE", {}, {}, times=7)


def ivf_pq(ground: Ground) -> list[Result]:
    """An index of the vectors."""
    given = {"num_partitions": PARTITIONS, "num_sub_vectors": SUB_VECTORS}
    return _index(ground, "ivf_pq", "vector", "IVF_PQ", {key: str(value) for key, value in given.items()}, given)


def _index(
    ground: Ground,
    row: str,
    column: str,
    kind: str,
    ours_given: dict[str, str],
    given: dict[str, Any],
    times: int = 1,
) -> list[Result]:
    """Both sides in one process: another, that has just written all rows, need not ask the system for memory again.

    Who is first takes turns: the second finds memory that the first has left.
    """
    target = _copies(ground, row)
    ours, single = [], []

    def pylance() -> None:
        single.append(ground.spark.ask("index_alone", target=target, column=column, kind=kind, options=given))

    def job() -> None:
        ours.append(ground.spark.ask("index", name=row, column=column, kind=kind, options=ours_given))

    for number in range(ground.rounds * times):
        for turn in (pylance, job) if number % 2 else (job, pylance):
            turn()
    words = f"{median(ours):.2f} s", f"pylance {median(single):.2f} s"
    return [at_least(row, f"{kind} build", words, median(single) / median(ours), 0.9)]
