"""Lineage by Spark's analyzed plan: the tables, files and columns that queries and DataFrames are made from."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import tiltyard
from tests.openlineage.validation import check_event
from tiltyard.model.columns.lineage import Derivation
from tiltyard.model.settings.openlineage import OpenLineageSettings
from tiltyard.pipeline.openlineage import emitter as events
from tiltyard.pipeline.spark_sql import plan_columns
from tiltyard.pipeline.spark_sql.plan_columns import SourceColumn, read_columns

VIEWS = {"films": "films", "shop$orders": "shop$orders"}
JOINED = """
    WITH o AS (SELECT film, price AS paid FROM `shop$orders`)
    SELECT f.genre, sum(o.paid) AS total FROM films f JOIN o ON f.id = o.film GROUP BY f.genre
"""
QUERIES = {
    "SELECT id, upper(title) AS title FROM films": {
        "id": ["films.id direct"], "title": ["films.title transformed"]
    },
    "SELECT * FROM films": {name: [f"films.{name} direct"] for name in ("id", "title", "genre")},
    JOINED: {"genre": ["films.genre direct"], "total": ["shop$orders.price aggregated"]},
    "SELECT 1 AS one, count(*) AS n FROM films": {"one": [], "n": []},
    "SELECT id FROM films UNION ALL SELECT film FROM `shop$orders`": {
        "id": ["films.id direct", "shop$orders.film direct"]
    },
    "SELECT id, word FROM films LATERAL VIEW explode(split(title, ' ')) AS word": {
        "id": ["films.id direct"], "word": ["films.title transformed"]
    },
    "SELECT genre, count(title) AS n FROM films GROUP BY CUBE(genre, id)": {
        "genre": ["films.genre direct"], "n": ["films.title aggregated"]
    },
    "SELECT (SELECT max(price) FROM `shop$orders`) + id AS top FROM films": {
        "top": ["films.id transformed", "shop$orders.price aggregated"]
    },
    "SELECT id IN (SELECT film FROM `shop$orders`) AS sold FROM films": {
        "sold": ["films.id transformed", "shop$orders.film transformed"]
    },
    "SELECT id, price FROM films JOIN (SELECT film AS id, price FROM `shop$orders`) USING (id)": {
        "id": ["films.id direct"], "price": ["shop$orders.price direct"]
    },
    "SELECT a.id, b.title AS other FROM films a JOIN films b ON a.id = b.id + 1 WHERE a.genre = 'x'": {
        "id": ["films.id direct"], "other": ["films.title direct"]
    },
    "SELECT id, rank() OVER (PARTITION BY genre ORDER BY title) AS place FROM films": {
        "id": ["films.id direct"], "place": ["films.genre aggregated", "films.title aggregated"]
    },
    "SELECT title, letters(title, genre) AS made FROM films": {
        "title": ["films.title direct"], "made": ["films.genre function", "films.title function"]
    },
    "SELECT id FROM films EXCEPT SELECT film FROM `shop$orders`": {"id": ["films.id direct"]},
    "SELECT * FROM (SELECT genre, title, id FROM films) PIVOT (max(id) FOR title IN ('a'))": {
        "genre": ["films.genre direct"], "a": ["films.id aggregated", "films.title aggregated"]
    },
}  # fmt: skip


def test_columns_of_a_query_are_traced_to_their_sources(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    session = spark.newSession()
    session.createDataFrame([], "id long, title string, genre string").createOrReplaceTempView("films")
    session.createDataFrame([], "film long, price double").createOrReplaceTempView("`shop$orders`")
    session.udf.register("letters", lambda title, genre: len(title + genre), "int")
    for query, expected in QUERIES.items():
        made = read_columns(session.sql(query), VIEWS)
        found = {name: sorted(f"{each.table}.{each.column} {each.how}" for each in made[name]) for name in made}
        assert found == expected, query
    mapped = session.table("films").mapInPandas(lambda batches: batches, "id long, word string")
    assert {each for made in read_columns(mapped, VIEWS).values() for each in made} == {
        SourceColumn("films", "*", Derivation.UNKNOWN)
    }  # what Spark runs as code says nothing of columns
    monkeypatch.setattr(plan_columns, "MAX_EXPRESSIONS", 3)
    with pytest.raises(plan_columns.PlanTooLargeError):
        read_columns(session.sql(JOINED), VIEWS)


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> tiltyard.Lake:
    """Return a lake with the table `films`, beside the file `prices.parquet`."""
    assert spark is not None  # the session of this process, which the lake uses
    lake = tiltyard.connect(tmp_path / "root")
    lake.table("films").ingest([{"id": 1, "title": "a"}, {"id": 2, "title": "b"}])
    pq.write_table(pa.table({"id": [1, 2], "price": [1.5, 2.5]}), tmp_path / "prices.parquet")
    return lake


def test_dataframe_has_the_tables_and_files_of_its_plan_as_sources(
    lake: tiltyard.Lake, spark: SparkSession, tmp_path: Path
) -> None:
    events.configure(OpenLineageSettings(str(tmp_path / "events.jsonl"), namespace="test"))
    prices = str(tmp_path / "prices.parquet")
    joined = lake.table("films").to_spark(version=1).join(spark.read.parquet(prices), "id")
    try:
        lake.table("priced").ingest(joined.selectExpr("id", "upper(title) AS title", "price"), rename={"price": "cost"})
    finally:
        events.configure(None)
    found = lake.table("priced").lineage(depth=1)
    assert {(edge.source.kind, edge.source.name, edge.source_version) for edge in found.edges} == {
        ("table", "films", 1), ("uri", prices, None)
    }  # fmt: skip
    assert lake.table("films").lineage("downstream").tables == ("priced",)
    assert lake.lineage(prices).tables == ("priced",)
    complete = json.loads((tmp_path / "events.jsonl").read_text().splitlines()[-1])
    check_event(complete)
    fields = complete["outputs"][0]["facets"]["columnLineage"]["fields"]
    assert {
        name: [(each["name"], each["field"], each["transformations"][0]["subtype"]) for each in field["inputFields"]]
        for name, field in fields.items()
    } == {
        "id": [("films", "id", "IDENTITY")],
        "title": [("films", "title", "TRANSFORMATION")],
        "cost": [(prices, "price", "IDENTITY")],
    }


def test_dataframe_of_other_rows_is_named_by_its_class(lake: tiltyard.Lake, spark: SparkSession) -> None:
    lake.table("films").upsert(spark.createDataFrame([(2, "c")], "id long, title string"), on="id")
    edges = lake.table("films").lineage().edges
    assert {edge.source.name for edge in edges} == {"memory:pyspark.DataFrame", "memory:builtins.list"}
