"""Connected components of a graph of pairs: few in this process, many by Spark, in rounds of stars.

Each round links neighbours to the smallest node that one of them knows: large-star and small-star (Kiveris and others,
Connected Components in MapReduce and Beyond, 2014), whose rounds grow with the logarithm of the longest path, not with
its length.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from lance_namespace.errors import InternalError
from pyspark.sql import functions as F  # noqa: N812  # Spark's own custom

from tiltyard.pipeline.spark_tasks import run_action

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyspark.sql import DataFrame, SparkSession

    from tiltyard.pipeline.runs import Run

MAX_DRIVER_PAIRS = 1_000_000
"""Up to so many pairs are connected in this process: each takes 16 bytes, and Spark's rounds longer."""
MAX_ROUNDS = 50
"""Rounds after which Spark gives up: a path through all rows that a table can have needs fewer."""

COMPONENTS = "node bigint, component bigint"


def connect_pairs(spark: SparkSession, run: Run, pairs: DataFrame, count: int) -> DataFrame:
    """Return COMPONENTS: each node of `count` pairs `low, high`, low < high, with the smallest node that it leads to.

    Raises RunCanceledError, InternalError if MAX_ROUNDS are not enough.
    """
    if count <= MAX_DRIVER_PAIRS:
        table = run_action(spark, run, pairs.toArrow, name="deduplicate: connect")
        nodes, components = connect_arrays(*(table[name].to_numpy() for name in ("low", "high")))
        columns = pa.table({"node": pa.array(nodes, pa.int64()), "component": pa.array(components, pa.int64())})
        return spark.createDataFrame(columns, COMPONENTS)
    return _connect_in_rounds(spark, run, pairs)


def connect_arrays(low: NDArray[np.int64], high: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the nodes of pairs, and the smallest node that each leads to."""
    nodes, places = np.unique(np.concatenate([low, high]), return_inverse=True)
    left, right = places[: len(low)], places[len(low) :]
    parents = np.arange(len(nodes))
    while not (parents[left] == parents[right]).all():
        roots, others = parents[left], parents[right]
        smaller = np.minimum(roots, others)
        np.minimum.at(parents, roots, smaller)
        np.minimum.at(parents, others, smaller)
        while not ((higher := parents[parents]) == parents).all():
            parents = higher
    return nodes, nodes[parents]


def _connect_in_rounds(spark: SparkSession, run: Run, pairs: DataFrame) -> DataFrame:
    edges = pairs.select(F.col("high").alias("node"), F.col("low").alias("component"))
    before = None
    for number in range(1, MAX_ROUNDS + 1):
        stars = _small_star(_large_star(edges))
        edges = run_action(spark, run, lambda stars=stars: stars.localCheckpoint(), name=f"deduplicate: round {number}")  # type: ignore[misc]
        summary = edges.agg(F.count("*"), F.sum(F.xxhash64("node", "component").cast("decimal(38)")))
        after = run_action(spark, run, summary.head, name=f"deduplicate: round {number}")
        run.progress(round=number)
        if after == before:
            firsts = edges.select("component").distinct().withColumn("node", F.col("component"))
            connected: DataFrame = edges.unionByName(firsts).select("node", "component")
            return connected
        before = after
    raise InternalError(f"The duplicates were not connected in {MAX_ROUNDS} rounds.")


def _large_star(edges: DataFrame) -> DataFrame:
    """Link the larger neighbours of each node to the smallest of its neighbours and itself."""
    both = edges.unionByName(edges.select(F.col("component").alias("node"), F.col("node").alias("component")))
    smallest = both.groupBy("node").agg(F.least(F.min("component"), F.col("node")).alias("smallest"))
    linked = both.join(smallest, "node").where("component > node AND component != smallest")
    return linked.select(F.col("component").alias("node"), F.col("smallest").alias("component")).distinct()


def _small_star(edges: DataFrame) -> DataFrame:
    """Link each node and its smaller neighbours to the smallest of them. Edges go from larger to smaller."""
    smallest = edges.groupBy("node").agg(F.min("component").alias("smallest"))
    others = edges.join(smallest, "node").where("component != smallest")
    linked = others.select(F.col("component").alias("node"), F.col("smallest").alias("component"))
    return linked.unionByName(smallest.withColumnRenamed("smallest", "component")).distinct()
