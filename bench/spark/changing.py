"""Rows of the table for jobs that change tables: ours on one copy, pylance on another, in rounds that alternate."""

from __future__ import annotations

from typing import Any

from bench.resting import rest
from bench.results import Result, at_least
from bench.spark import data
from bench.spark.costs import Cost, alternate
from bench.spark.rows import Environment

PARTITIONS = 256
SUB_VECTORS = 16


def _copies(environment: Environment, name: str) -> str:
    """The same rows as a table of the catalog and, for pylance, as one by itself; where that is."""
    target = str(environment.work / f"single-{name}")
    environment.single.ask("write", source=environment.source, target=target)
    environment.spark.ask("ingest", source=environment.source, name=name)
    rest()  # else the first rounds share the disk with what was written here
    return target


def upsert(environment: Environment) -> list[Result]:
    """A twentieth of the rows, by key."""
    target, changes = _copies(environment, "upserted"), str(data.changes(environment.work, environment.rows))

    def single(_: int) -> Cost:
        rest()
        return Cost.of(environment.single, "merge", source=changes, target=target)

    def ours(_: int) -> Cost:
        rest()
        return Cost.of(environment.spark, "upsert", source=changes, name="upserted")

    job, alone = alternate(environment.rounds, ours, single)
    what = f"upsert of {environment.rows // 20:,} rows by key into {environment.rows:,}"
    return [at_least("upsert", what, (str(job), f"merge_insert {alone}"), alone.seconds / job.seconds, 1.2)]


def backfill(environment: Environment) -> list[Result]:
    """The norm of each vector."""
    target = _copies(environment, "filled")
    environment.spark.ask("backfill", name="warm_ingest", column="norm")
    job, alone = alternate(
        environment.rounds,
        lambda number: Cost.of(environment.spark, "backfill", name="filled", column=f"norm{number}"),
        lambda number: Cost.of(environment.single, "add_column", target=target, name=f"norm{number}"),
    )
    words = job.rate(environment.rows), f"add_columns(batch_udf) {alone.rate(environment.rows)}"
    return [at_least("backfill", "a computed column", words, alone.seconds / job.seconds, 1.0)]


def btree(environment: Environment) -> list[Result]:
    """An index of the ids: a fifth of a second, give or take a third, so that it takes many rounds."""
    return _index(environment, "btree", "id", "BTREE", {}, {}, times=7)


def ivf_pq(environment: Environment) -> list[Result]:
    """An index of the vectors."""
    parameters = {"num_partitions": PARTITIONS, "num_sub_vectors": SUB_VECTORS}
    return _index(
        environment, "ivf_pq", "vector", "IVF_PQ", {key: str(value) for key, value in parameters.items()}, parameters
    )


def _index(
    environment: Environment,
    row: str,
    column: str,
    kind: str,
    ours_given: dict[str, str],
    parameters: dict[str, Any],
    times: int = 1,
) -> list[Result]:
    """Both sides in one process: another, that has just written all rows, need not ask the system for memory again.

    Who is first takes turns: the second finds memory that the first has left.
    """
    target = _copies(environment, row)
    spark = environment.spark
    job, alone = alternate(
        environment.rounds * times,
        lambda _: Cost.of(spark, "index", name=row, column=column, kind=kind, options=ours_given),
        lambda _: Cost.of(spark, "index_alone", target=target, column=column, kind=kind, options=parameters),
    )
    return [at_least(row, f"{kind} build", (str(job), f"pylance {alone}"), alone.seconds / job.seconds, 0.9)]
