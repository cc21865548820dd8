"""Searches as table functions of Spark SQL, over a server."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from decimal import Decimal
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import tiltyard
from tests.services.server import ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.extended

NOON = datetime.datetime(2023, 11, 14, 12, tzinfo=datetime.UTC)


def films() -> pa.Table:
    """Return 20 films: the vector of each is [id, 0.5], every fifth has an old ship, the other columns are of types."""
    ids = range(20)
    columns = {
        "id": pa.array(ids, pa.uint32()),
        "title": [f"film {number} with an old ship" if number % 5 == 0 else f"film {number}" for number in ids],
        "vector": pa.array([[float(number), 0.5] for number in ids], pa.list_(pa.float32(), 2)),
        "words": pa.array([[("a", number)] for number in ids], pa.map_(pa.string(), pa.int32())),
        "size": pa.array([{"wide": number, "unit": None} for number in ids],
                         pa.struct([("wide", pa.int16()), ("unit", pa.string())])),
        "seen": pa.array([NOON] * 20, pa.timestamp("us", "UTC")),
        "price": pa.array([Decimal("1.50")] * 20, pa.decimal128(10, 2)),
        "still": pa.array([b"\x00\xff"] * 20, pa.binary()),
    }  # fmt: skip
    return pa.table(columns)


def test_searches_find_rows_in_sql(
    spark: SparkSession, shared_server: ServerProcess, fresh: Callable[[str], str]
) -> None:
    lake = tiltyard.connect(shared_server.url)
    table = lake.table(fresh("films"))
    table.ingest(films())
    table.create_index("title", "FTS")
    assert lake.register_search_functions(spark) is spark
    name = table.name

    def ids(sql: str) -> list[int]:
        return [row[0] for row in spark.sql(sql.replace("films", f"'{name}'")).collect()]

    [row] = spark.sql(f"SELECT * FROM vector_search('{name}', 'vector', array(5.1, 0.5), 1)").collect()
    assert row._distance == pytest.approx(0.01, abs=1e-5)
    assert row.asDict(recursive=True) == {
        "id": 5, "title": "film 5 with an old ship", "vector": [5.0, 0.5], "words": {"a": 5},
        "size": {"wide": 5, "unit": None}, "seen": row.seen, "price": Decimal("1.50"), "still": b"\x00\xff",
        "_distance": row._distance,
    }  # fmt: skip
    assert row.seen.astimezone(datetime.UTC) == NOON
    assert ids("SELECT id FROM vector_search(films, 'vector', array(5, 0.5), 2, filter => 'id > 7') ORDER BY 1") == [
        8,
        9,
    ]
    found = spark.sql(f"SELECT * FROM text_search('{name}', 'ship', 9, columns => array('id'))")
    assert found.columns == ["id", "_score"] and {row.id for row in found.collect()} == {0, 5, 10, 15}
    assert ids("SELECT id FROM hybrid_search(films, 'vector', array(11, 0.5), 'ship', 1)") == [10]
    joined = spark.sql(
        "SELECT q.id, f.id FROM (SELECT id, IF(id = 3, NULL, array(float(id), 0.5f)) AS vector FROM range(1, 4)) q, "
        f"LATERAL vector_search('{name}', 'vector', q.vector, 1) f ORDER BY 1"
    )
    assert [tuple(row) for row in joined.collect()] == [(1, 1), (2, 2)]

    table.delete("id = 5")
    assert ids("SELECT id FROM vector_search(films, 'vector', array(5, 0.5), 1, version => 2)") == [5]
    assert ids("SELECT id FROM vector_search(films, 'vector', array(5.1, 0.5), 1)") == [6]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("vector_search('nothing', 'vector', array(1, 2))", "nothing"),
        ("vector_search('{name}', 'title2', array(1, 2))", "no column of vectors 'title2'; it has vector."),
        ("vector_search('{name}', 'vector', array(1, 2), colums => array('id'))", "There is no argument 'colums'"),
        ("vector_search('{name}', 'vector', array(1, 2), columns => array('idd'))", "has no column 'idd'; it has id"),
        ("text_search('{name}', 'ship', filter => 'id > ' || rand())", "'filter' has to be a constant"),
        ("text_search(NULL, 'ship')", "'table' has to be a text"),
    ],
)
def test_wrong_call_is_an_error_of_the_statement(spark: SparkSession, small: str, call: str, message: str) -> None:
    from pyspark.errors import AnalysisException

    with pytest.raises(AnalysisException) as raised:
        spark.sql(f"SELECT * FROM {call.format(name=small)}")
    assert message in str(raised.value)


@pytest.fixture(scope="module")
def small(spark: SparkSession, shared_server: ServerProcess) -> str:
    """Return the name of a table on the server, whose searches are registered."""
    lake = tiltyard.connect(shared_server.url)
    lake.table("searched").ingest(films())
    lake.register_search_functions(spark)
    return "searched"
