"""Rows against other ways to have tables by Spark and Ray: the connectors lance-spark and lance-ray, and Delta Lake.

Each side has two slots, the same Parquet files, and a folder of its own as catalog. After each step both have to hold
as many rows, or the run ends.
"""

from __future__ import annotations

import shutil
from importlib.metadata import version

from bench.resting import rest
from bench.results import Result, at_least
from bench.spark import data
from bench.spark.costs import Cost, alternate, size
from bench.spark.data import DIMENSION, NARROW
from bench.spark.line_processes import Process
from bench.spark.peers import DELTA, LANCE_SPARK
from bench.spark.rows import WARM_ROWS, Environment

GOAL = 1.2
SHARES = (0.01, 0.1)
"""Of its rows, what share is upserted into Delta Lake's table."""

_MERGE = (
    "MERGE INTO {table} t USING parquet.`{source}` s ON t.id = s.id "
    "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
)


def lance_spark(environment: Environment) -> list[Result]:
    """Ingest, read, upsert, delete and index one table on each side, step by step."""
    spark, peer = environment.spark, _start_lance_spark(environment)
    source, changes = environment.source, str(data.changes(environment.work, environment.rows))
    name, table, rows = "peer", "lake.default.peer", environment.rows
    few = str(data.parquet(environment.work, WARM_ROWS))
    spark.ask("delete", name="warm_ingest", condition="id = 1")
    _drop_and_ingest(peer, "lake.default.warm", few)
    peer.ask("time", statements=[_read("lake.default.warm", 0, 100), "DELETE FROM lake.default.warm WHERE id = 1"])
    peer.ask("time", statements=[_MERGE.format(table="lake.default.warm", source=few)])
    results = []

    def compare(row: str, what: str, costs: tuple[Cost, Cost]) -> None:
        ours, theirs = costs
        ratio = theirs.seconds / ours.seconds
        words = str(ours), f"{LANCE_SPARK.name} {theirs}"
        results.append(at_least("lance-spark", f"{row}: {what}", words, ratio, GOAL))
        counts = spark.ask("rows", name=name), peer.ask("rows", statement=f"SELECT count(*) FROM {table}")[0][0]
        _check_equal(row, *counts)

    def ingest_ours(_: int) -> Cost:
        rest()
        return Cost.of(spark, "ingest", source=source, name=name)

    compare(
        "ingest",
        environment.source_size,
        alternate(environment.rounds, ingest_ours, lambda _: _drop_and_ingest(peer, table, source)),
    )
    first, last = rows // 2, rows // 2 + rows // 10
    spark.ask("read_filtered", name=name, condition=_between(first, last))  # Spark ends workers that had to wait
    peer.ask("time", statements=[_read(table, first, last)])
    compare(
        "read",
        f"two columns of the {last - first:,} rows of a filter",
        alternate(
            environment.rounds,
            lambda _: Cost.of(spark, "read_filtered", name=name, condition=_between(first, last)),
            lambda _: Cost.of(peer, "time", statements=[_read(table, first, last)]),
        ),
    )
    compare(
        "upsert",
        f"{rows // 20:,} rows, {size(changes)}, against MERGE INTO",
        alternate(
            environment.rounds,
            lambda _: Cost.of(spark, "upsert", source=changes, name=name),
            lambda _: Cost.of(peer, "time", statements=[_MERGE.format(table=table, source=changes)]),
        ),
    )
    share = rows // 20
    compare(
        "delete",
        f"{share:,} rows by a condition",
        alternate(
            environment.rounds,
            lambda number: Cost.of(
                spark, "delete", name=name, condition=_between(number * share, (number + 1) * share)
            ),
            lambda number: Cost.of(
                peer,
                "time",
                statements=[f"DELETE FROM {table} WHERE {_between(number * share, (number + 1) * share)}"],
            ),
        ),
    )
    compare(
        "index",
        "BTREE of the ids",
        alternate(
            environment.rounds,
            lambda _: Cost.of(spark, "index", name=name, column="id", kind="BTREE", options={}),
            lambda _: Cost.of(peer, "time", statements=[f"ALTER TABLE {table} CREATE INDEX by_id USING btree (id)"]),
        ),
    )
    peer.stop()
    return results


def lance_ray(environment: Environment) -> list[Result]:
    """Ingest, and a computed column."""
    spark, peer = environment.spark, Process("bench.spark.ray_session")
    source, target, name = environment.source, str(environment.work / "lance-ray"), "peer_ray"
    few = str(data.parquet(environment.work, WARM_ROWS))
    peer.ask("write", source=few, target=target)
    peer.ask("add_column", target=target, name="norm")
    spark.ask("backfill", name="warm_ingest", column="warm")
    known_as = f"lance-ray {version('lance-ray')} on Ray {version('ray')}"

    def ingest_ours(_: int) -> Cost:
        rest()
        return Cost.of(spark, "ingest", source=source, name=name)

    def ingest_theirs(_: int) -> Cost:
        rest()
        return Cost.of(peer, "write", source=source, target=target)

    ingests = alternate(environment.rounds, ingest_ours, ingest_theirs)
    columns = alternate(
        environment.rounds,
        lambda number: Cost.of(spark, "backfill", name=name, column=f"norm{number}"),
        lambda number: Cost.of(peer, "add_column", target=target, name=f"norm{number}"),
    )
    _check_equal("lance-ray", spark.ask("rows", name=name), peer.ask("rows", target=target))
    peer.stop()
    return [
        at_least("lance-ray", what, (str(ours), f"{known_as} {theirs}"), theirs.seconds / ours.seconds, GOAL)
        for what, (ours, theirs) in (
            (f"ingest: {environment.source_size}", ingests),
            ("backfill: a computed column", columns),
        )
    ]


def delta(environment: Environment) -> list[Result]:
    """Upserts of shares of a large table of (id, score, text); Delta Lake marks deleted rows, as Lance does."""
    spark, rows = environment.spark, environment.merge_rows
    extension = "io.delta.sql.DeltaSparkSessionExtension"
    session_catalog = {"spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog"}
    peer = DELTA.start({"spark.sql.extensions": extension, **session_catalog})
    source, target = str(data.parquet(environment.work, rows, NARROW)), environment.work / "delta"
    shutil.rmtree(target, ignore_errors=True)
    table, name = f"delta.`{target}`", "peer_delta"
    properties = "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    peer.ask("time", statements=[f"CREATE TABLE {table} USING delta {properties} AS SELECT * FROM parquet.`{source}`"])
    spark.ask("ingest", source=source, name=name)
    results = []
    for share in SHARES:
        changes = str(data.changes(environment.work, rows, NARROW, share))

        def ours(_: int, changes: str = changes) -> Cost:
            rest()
            return Cost.of(spark, "upsert", source=changes, name=name)

        def theirs(_: int, changes: str = changes) -> Cost:
            rest()
            return Cost.of(peer, "time", statements=[_MERGE.format(table=table, source=changes)])

        job, merge = alternate(environment.rounds, ours, theirs)
        counts = spark.ask("rows", name=name), peer.ask("rows", statement=f"SELECT count(*) FROM {table}")[0][0]
        _check_equal("delta", *counts)
        what = f"upsert of {share:.0%} of {rows:,} rows, {size(changes)}, against MERGE INTO"
        results.append(at_least("delta", what, (str(job), f"{DELTA.name} {merge}"), merge.seconds / job.seconds, None))
    peer.stop()
    return results


def _start_lance_spark(environment: Environment) -> Process:
    root = environment.work / "lance-spark"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    catalog = "spark.sql.catalog.lake"
    settings = {
        "spark.sql.extensions": "org.lance.spark.extensions.LanceSparkSessionExtensions",
        catalog: "org.lance.spark.LanceNamespaceSparkCatalog",
        f"{catalog}.impl": "dir",
        f"{catalog}.root": str(root),
    }
    return LANCE_SPARK.start(settings)


def _drop_and_ingest(peer: Process, table: str, source: str) -> Cost:
    """Measure lance-spark's ingest of Parquet files as a new table."""
    peer.ask("time", statements=[f"DROP TABLE IF EXISTS {table} PURGE"])
    rest()
    create = (
        f"CREATE TABLE {table} (id BIGINT, vector ARRAY<FLOAT>, text STRING) USING lance "
        f"TBLPROPERTIES ('vector.arrow.fixed-size-list.size' = '{DIMENSION}')"
    )
    insert = f"INSERT INTO {table} SELECT id, vector, text FROM parquet.`{source}`"
    return Cost.of(peer, "time", statements=[create, insert])


def _between(first: int, last: int) -> str:
    return f"id >= {first} AND id < {last}"


def _read(table: str, first: int, last: int) -> str:
    return f"SELECT sum(id), sum(length(text)) FROM {table} WHERE {_between(first, last)}"


def _check_equal(step: str, ours: int, theirs: int) -> None:
    """Raise RuntimeError unless both sides have as many rows."""
    if ours != theirs:
        raise RuntimeError(f"After {step}, Tiltyard has {ours} rows and the other side {theirs}.")
