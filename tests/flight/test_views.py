"""Views by stock clients of Flight SQL: read, joined, listed, and within the policies of their reader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.access.scenes import send
from tests.flight.test_adbc import connect
from tiltyard.model.spec import operations

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.flight.conftest import SqlServer

VIEWS = {
    "mine": "SELECT id, title, owner, budget FROM films",
    "rated": "SELECT title, stars FROM mine JOIN sales.ratings ON film = id",
    "listed": "SELECT table_name FROM information_schema.tables",
}


@pytest.fixture(scope="module")
def views(sql: SqlServer) -> Iterator[SqlServer]:
    db = sql.lancedb()
    for name, query in VIEWS.items():
        db.create_view(name, query)
    with sql.secured.http("administrator") as http:
        grant = {"object_kind": "table", "id": ["mine"], "grantee": "bob", "privileges": ["read"]}
        assert send(http, operations()["GrantPrivileges"], grant).status_code < 300
    yield sql
    for name in VIEWS:
        db.drop_view(name)


def by_lancedb(sql: SqlServer, query: str, name: str = "administrator") -> list[dict[str, Any]]:
    return list(sql.lancedb(name).execute_query(query).read_all().to_pylist())


def by_adbc(sql: SqlServer, query: str, name: str = "administrator") -> list[dict[str, Any]]:
    with connect(sql, name) as connection, connection.cursor() as cursor:
        cursor.execute(query)
        return list(cursor.fetch_arrow_table().to_pylist())


@pytest.mark.parametrize("run", [by_lancedb, by_adbc])
def test_views_are_read_as_tables_are(views: SqlServer, run: Any) -> None:
    assert run(views, "SELECT count(*) AS n FROM mine") == [{"n": 6}]
    joined = (
        "SELECT m.id, r.stars FROM mine m JOIN rated r ON m.title = r.title JOIN films f ON f.id = m.id ORDER BY 1, 2"
    )
    assert [tuple(row.values()) for row in run(views, joined)] == [(1, 4), (1, 5), (2, 3), (4, 5)]
    assert {"table_name": "mine"} in run(views, "SELECT * FROM listed")
    assert run(views, "SELECT owner, count(budget) AS n FROM mine GROUP BY owner", "bob") == [{"owner": "bob", "n": 0}]
    with pytest.raises(Exception, match="rated"):
        run(views, "SELECT * FROM rated", "bob")


def test_view_of_decimals_is_filtered_and_ordered(views: SqlServer) -> None:
    """The rows of a view come from another process, in messages that align nothing to 16 bytes."""
    query = "SELECT id, CAST(budget AS DECIMAL(12, 2)) AS budget, title FROM films"
    with views.secured.http("administrator") as http:
        assert http.post("/v1/view/exact/create", json={"query": query}).status_code == 200
        body = {"k": 10, "vector": {"single_vector": []}}
        for more in ({}, {"filter": "title = 'Dune'"}, {"order_by": [{"column_name": "id"}]}, {"filter": "id > 2"}):
            response = http.post("/v1/table/exact/query", json={**body, **more})
            assert response.status_code == 200, response.text
        assert http.post("/v1/table/exact/count_rows", json={"predicate": "title = 'Dune'"}).text == "1"
        http.post("/v1/view/exact/drop", json={})


def test_views_are_in_the_metadata_with_their_type(views: SqlServer) -> None:
    def listed(connection: Any, **filters: Any) -> dict[str, tuple[str, int]]:
        (catalog,) = connection.adbc_get_objects(depth="all", **filters).read_all().to_pylist()
        return {
            table["table_name"]: (table["table_type"], len(table["table_columns"] or ()))
            for schema in catalog["catalog_db_schemas"] or ()
            for table in schema["db_schema_tables"] or ()
        }

    with connect(views) as connection:
        found = listed(connection)
        assert (found["mine"], found["films"]) == (("VIEW", 4), ("BASE TABLE", 4))
        assert listed(connection, table_types_filter=["VIEW"]).keys() == VIEWS.keys()
        assert "mine" not in listed(connection, table_types_filter=["BASE TABLE"])
        assert connection.adbc_get_table_schema("rated").names == ["title", "stars"]
    with connect(views, "bob") as connection:
        assert listed(connection, table_types_filter=["VIEW"]) == {"mine": ("VIEW", 4)}
