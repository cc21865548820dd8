"""SQL by lancedb's stock client, sync and async."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from lancedb.exceptions import JobCancelledError

from tests.flight.conftest import ENDLESS

if TYPE_CHECKING:
    from tests.flight.conftest import SqlServer


def test_execute_query_joins_tables_of_namespaces(sql: SqlServer) -> None:
    query = """
        SELECT f.title, avg(r.stars) AS stars FROM films f JOIN sales.ratings r ON r.film = f.id
        GROUP BY f.title ORDER BY stars DESC, title
    """
    rows = sql.lancedb().execute_query(query).read_all().to_pylist()
    assert rows == [
        {"title": "Dune", "stars": 5.0},
        {"title": "Alien", "stars": 4.5},
        {"title": "Brazil", "stars": 3.0},
    ]


def test_execute_query_streams_many_batches(sql: SqlServer) -> None:
    table = sql.lancedb("ann").execute_query("SELECT n, text, text || text AS more FROM numbers").read_all()
    assert table.num_rows == 200_000
    assert max(table.column("n").to_pylist()) == 199_999


def test_default_namespace_is_that_of_the_connection(sql: SqlServer) -> None:
    inner = sql.lancedb()
    query = "SELECT count(*) AS n FROM ratings"
    rows = inner.execute_query(query, default_namespace_path=["sales"]).read_all().to_pylist()
    assert rows == [{"n": 4}]
    with pytest.raises(RuntimeError, match="not found"):
        inner.execute_query(query).read_all()


def test_names_are_of_the_database_of_the_connection(sql: SqlServer) -> None:
    root = sql.lancedb()
    root.create_namespace(["shop"])
    root.create_namespace(["shop", "eu"])
    shop = sql.lancedb(database="shop")
    shop.create_table("films", pa.table({"id": [1]}))
    shop.create_table("orders", pa.table({"id": [1, 2]}), namespace_path=["eu"])

    def count(table: str, **options: Any) -> Any:
        return shop.execute_query(f"SELECT count(*) AS n FROM {table}", **options).read_all()["n"].to_pylist()

    assert count("films") == count("public.films") == [1]
    assert count("eu.orders") == count("orders", default_namespace_path=["eu"]) == [2]
    for outside in ("numbers", "sales.ratings", "shop.films"):
        with pytest.raises(RuntimeError, match="not found"):
            count(outside)
    listed = shop.execute_query("SELECT table_schema, table_name FROM information_schema.tables ORDER BY 1")
    assert [tuple(row.values()) for row in listed.read_all().to_pylist()] == [("eu", "orders"), ("public", "films")]
    assert root.execute_query("SELECT count(*) AS n FROM shop.films").read_all()["n"].to_pylist() == [1]


async def _async_rows(sql: SqlServer, query: str) -> list[dict[str, object]]:
    db = await sql.lancedb_async("ann")
    reader = await db.execute_query(query)
    return [row for batch in await reader.read_all() for row in batch.to_pylist()]


def test_execute_query_of_the_async_client(sql: SqlServer) -> None:
    assert asyncio.run(_async_rows(sql, "SELECT max(n) AS n FROM numbers")) == [{"n": 199_999}]


def test_execute_query_async_is_described_until_it_has_finished(sql: SqlServer) -> None:
    db = sql.lancedb()
    query = db.execute_query_async("SELECT count(*) AS n FROM numbers")
    deadline = time.monotonic() + 30
    while (description := query.describe()).status == "running":
        assert time.monotonic() < deadline
    assert description.status == "finished"
    assert description.expires_at is not None
    assert db.describe_query(query.id).status == "finished"
    assert query.reader().read_all().to_pylist() == [{"n": 200_000}]
    with pytest.raises(ValueError, match=r".+"):
        db.describe_query(uuid.uuid4())


def test_cancelled_query_stops_and_frees_its_slot(sql: SqlServer) -> None:
    db = sql.lancedb()
    running = [db.execute_query_async(ENDLESS) for _ in range(6)]  # as many of one principal as run at once
    assert {query.describe().status for query in running} == {"running"}
    with pytest.raises(RuntimeError, match="already"):
        db.execute_query("SELECT 1").read_all()
    for query in running:
        query.cancel()
    assert {query.describe().status for query in running} == {"cancelled"}
    with pytest.raises(JobCancelledError):
        running[0].reader().read_all()
    deadline = time.monotonic() + 30
    while True:
        try:
            assert db.execute_query("SELECT 1 AS x").read_all().to_pylist() == [{"x": 1}]
        except RuntimeError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        else:
            break


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELEC 1", "invalid argument"),
        ("SELECT * FROM nothing", "not found"),
        ("SELECT nothing FROM films", "nothing"),
        ("DROP TABLE films", "only read"),
        ("COPY films TO '/tmp/x.csv'", "only read"),
        ("SELECT * FROM '/etc/passwd'", "not found"),
        ("SELECT id / 0 FROM films", "zero"),
        ("SELECT repeat('x', 1000000000)", "1000000000"),
    ],
)
def test_query_that_fails_says_why(sql: SqlServer, query: str, message: str) -> None:
    with pytest.raises(RuntimeError, match=f"(?i){message}"):
        sql.lancedb().execute_query(query).read_all()


def test_reader_gets_what_policies_leave(sql: SqlServer) -> None:
    rows = sql.lancedb("bob").execute_query("SELECT * FROM films ORDER BY id").read_all().to_pylist()
    assert [row["title"] for row in rows] == ["Brazil", "Dune", "Fargo"]
    assert {row["budget"] for row in rows} == {None}
    for query in ("SELECT * FROM numbers", "SELECT * FROM sales.ratings"):
        with pytest.raises(RuntimeError, match="not found"):
            sql.lancedb("bob").execute_query(query).read_all()
    with pytest.raises(RuntimeError, match="not found"):
        sql.lancedb("cy").execute_query("SELECT * FROM films").read_all()
    tables = "SELECT table_name FROM information_schema.tables"
    assert sql.lancedb("bob").execute_query(tables).read_all().to_pylist() == [{"table_name": "films"}]
