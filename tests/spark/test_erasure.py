"""An erasure takes rows out of views that Spark computes: by their own columns, or the view is computed anew."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import tiltyard
from tests.services.server import ServerProcess
from tests.tables.erasure.test_erasure import VALUE, files_with, people
from tiltyard.functions import chunk_words

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tiltyard.lake.catalog import Lake

CONF = {"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "512m"}
ENVIRON = {"TILTYARD_UDFS": "true", "TILTYARD_GC_SAFETY_DAYS": "0", "TILTYARD_SPARK": "local[1]"}
VIEWS = {
    "renamed": "SELECT user AS person, mail AS address FROM people WHERE user > 3",
    "joined": "SELECT o.id, p.user AS customer, p.mail FROM orders o LEFT JOIN people p ON o.of = p.user",
    "pairs": "SELECT a.user, b.mail FROM people a JOIN people b ON a.user = b.user + 1",
    "cities": "SELECT city, max(mail) AS last, count(*) AS n FROM people GROUP BY city",
}


@pytest.fixture
def server(tmp_path: Path, environ: dict[str, str]) -> Iterator[ServerProcess]:
    running = ServerProcess(tmp_path / "root", environ={**environ, **ENVIRON, "TILTYARD_SPARK_CONF": json.dumps(CONF)})
    yield running
    running.stop()


def make_views(lake: Lake) -> None:
    lake.table("people").ingest(people(0, 20))
    lake.table("orders").ingest(pa.table({"id": range(40), "of": [number % 25 for number in range(40)]}))
    for name, query in VIEWS.items():
        lake.create_view(name, query).refresh()
    chunks = "SELECT user AS person, about FROM people"
    lake.create_view(
        "chunks", chunks, chunk=chunk_words(size=2), indexes=[{"column": "chunk", "type": "FTS"}]
    ).refresh()
    lake.create_view("deeper", "SELECT upper(last) AS last FROM cities").refresh()


def test_views_lose_the_rows_by_their_own_columns_or_are_computed_anew(
    server: ServerProcess, spark: SparkSession
) -> None:
    lake = tiltyard.connect(server.url)
    make_views(lake)
    before = {name: lake.table(name).count() for name in (*VIEWS, "chunks", "deeper")}
    report = lake.erasure(lake.table("people").erase("user = 7", values_of="mail,about").id).report()
    assert report is not None and report["unresolved"] == []
    kinds = {each["name"]: (each["kind"], each["rows"]) for each in report["tables"]}
    assert kinds == {
        "people": ("table", 1),
        "renamed": ("derived", 1),
        "joined": ("derived", 2),  # orders 7 and 32
        "chunks": ("derived", 2),
        "pairs": ("view", 0),
        "cities": ("view", 0),
        "deeper": ("view", 0),
    }
    left = {name: before[name] - lake.table(name).count() for name in before}
    assert left == {"renamed": 1, "joined": 2, "chunks": 2, "pairs": 2, "cities": 0, "deeper": 0}
    assert files_with(Path(server.root), VALUE.encode(), VALUE.upper().encode()) == []
    assert lake.table("cities").to_arrow()["n"].to_pylist() == [19]
