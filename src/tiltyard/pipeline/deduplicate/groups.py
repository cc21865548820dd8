"""Find groups of duplicates with Spark: rows that share a hash are compared, and pairs that are alike connected.

    signatures → buckets of one hash each → pairs → those that are alike → components → the first row of each

Rows of equal values are one from the beginning, which their first row stands for: they make no pairs.

Components of few pairs are found in this process, of many by Spark, in rounds of stars. Each round links neighbours to
the smallest node that one of them knows: large-star and small-star (Kiveris and others, Connected Components in
MapReduce and Beyond, 2014), whose rounds grow with the logarithm of the longest path, not with its length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from lance_namespace.errors import InternalError
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812  # Spark's own custom

from tiltyard.change_feed.table_history import fragments_by_id
from tiltyard.pipeline.datasource.spark_types import batch_schema, spark_schema
from tiltyard.pipeline.deduplicate.tasks import (
    BUCKETS,
    CONTENTS,
    PAIRS,
    ComparedRows,
    ComparePairs,
    GroupOrder,
    ReadBuckets,
    ReadOrder,
    ReadRows,
    pair_bucket,
)
from tiltyard.pipeline.session import task_slots
from tiltyard.pipeline.spark_tasks import group_for_tasks, run_action, task_variables

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyspark.sql import Column, DataFrame, SparkSession

    from tiltyard.pipeline.runs import Run


SCANNED_ROWS = 1 << 20
"""About how many rows a task reads."""
ROWS_OF_BUCKETS = 1 << 21
"""About how many rows of buckets a task holds, 32 bytes each, three times over while it sorts them."""


@dataclass(frozen=True, slots=True)
class Groups:
    """The rows of groups, `row`, the `key` of the first row of their group, and `is_first`; pairs that were compared.

    `compared` is how many pairs were, `alike` how many of them are within the threshold.
    """

    rows: DataFrame
    compared: int = 0
    alike: int = 0


def find_groups(spark: SparkSession, run: Run, table: ComparedRows, order: GroupOrder) -> Groups:
    """Find the groups among the rows of a version that have a signature. Raises RunCanceledError."""
    dataset = table.open()
    rows = {number: fragment.num_rows for number, fragment in fragments_by_id(dataset).items()}
    parts = tuple(group_for_tasks(rows.items(), SCANNED_ROWS, task_slots(spark)))
    variables = task_variables(spark)
    count = len(parts)
    numbers = spark.range(0, count, 1, count)
    equal = (
        numbers.mapInArrow(ReadRows(table, parts, variables).__call__, CONTENTS)
        .groupBy("first", "second")
        .agg(F.min("row").alias("node"), F.count("*").alias("rows"))
        .where("rows > 1")
        .drop("rows")
    )
    found = _read_order(spark, table, parts, order)
    if not table.comparison.bands:
        return Groups(_first_rows(found.join(equal, ["first", "second"]).withColumn("component", F.col("node")), order))
    tasks = max(task_slots(spark), -(-sum(rows.values()) * table.comparison.bands // ROWS_OF_BUCKETS))
    buckets = numbers.mapInArrow(ReadBuckets(table, parts, variables).__call__, BUCKETS)
    pairs = buckets.repartition(tasks, "bucket").mapInArrow(pair_bucket, PAIRS)
    pairs = pairs.repartition(tasks, "low").distinct()
    run.progress(stage="pairs")
    pairs = run_action(spark, run, pairs.localCheckpoint, name="deduplicate: pairs")
    compared = run_action(spark, run, pairs.count, name="deduplicate: pairs")
    run.progress(stage="compare", compared=compared)
    alike = pairs.mapInArrow(ComparePairs(table, variables).__call__, PAIRS)
    alike = run_action(spark, run, alike.localCheckpoint, name="deduplicate: compare")
    alike_count = run_action(spark, run, alike.count, name="deduplicate: compare")
    run.progress(stage="connect", alike=alike_count)
    components = connect_pairs(spark, run, alike, alike_count)
    linked = (
        found.join(equal, ["first", "second"], "left")
        .withColumn("is_equal", F.col("node").isNotNull())
        .withColumn("node", F.coalesce("node", "row"))
        .join(components, "node", "left")
        .where("is_equal OR component IS NOT NULL")
        .withColumn("component", F.coalesce("component", "node"))
    )
    return Groups(_first_rows(linked, order), compared, alike_count)


def _read_order(
    spark: SparkSession, table: ComparedRows, parts: Sequence[tuple[int, ...]], order: GroupOrder
) -> DataFrame:
    """Return all rows with CONTENTS, `key`, and `by0`, `by1`, … of the order."""
    columns = (order.key, *(name for name, _ in order.by))
    names = ["key", *(f"by{number}" for number in range(len(order.by)))]
    fields = [
        pa.field(name, table.open().schema.field(column).type) for name, column in zip(names, columns, strict=True)
    ]
    contents = [pa.field(name, pa.int64()) for name in ("first", "second", "row")]
    schema = spark_schema(pa.schema([*fields, *contents]))
    read = ReadOrder(table, tuple(parts), task_variables(spark), columns, batch_schema(schema))
    return spark.range(0, len(parts), 1, len(parts)).mapInArrow(read.__call__, schema)


def _first_rows(rows: DataFrame, order: GroupOrder) -> DataFrame:
    """Return `row`, `key` and `is_first` of rows with a `component`."""
    columns: list[Column] = [
        F.col(f"by{number}").desc_nulls_last() if is_largest else F.col(f"by{number}").asc_nulls_last()
        for number, (_, is_largest) in enumerate(order.by)
    ]
    window = Window.partitionBy("component").orderBy(*columns, F.asc("key"))
    return rows.select(
        "row", F.first("key").over(window).alias("key"), (F.row_number().over(window) == 1).alias("is_first")
    )


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
