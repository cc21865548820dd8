"""Materialized views by lancedb's remote client: created from a query alone, refreshed by the server's own worker."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import lancedb
import pyarrow as pa
import pytest
from lancedb.exceptions import JobFailedError
from lancedb.index import BTree, IvfFlat
from lancedb.remote.errors import HttpError

from tests.services.server import ServerProcess

pytestmark = pytest.mark.parametrize("server", ["embedded"], indirect=True)

LONG = datetime.timedelta(minutes=2)


def rows(start: int, count: int) -> pa.Table:
    ids = range(start, start + count)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "text": [f"text {number}" for number in ids],
            "vector": pa.array([[float(number), 1.0] for number in ids], pa.list_(pa.float32(), 2)),
        }
    )


@pytest.fixture
def source(remote: Any, fresh: Callable[[str], str]) -> Any:
    return remote.create_table(fresh("source"), rows(0, 10))


def ids(table: Any) -> list[int]:
    return sorted(row["id"] for row in table.search().limit(1000).to_list())


def test_a_view_is_created_filled_opened_and_read(remote: Any, source: Any, fresh: Callable[[str], str]) -> None:
    name = fresh("view")
    select = ["id", ("twice", "id * 2"), "vector"]
    view = remote.create_materialized_view(name, source.name, select=select, where="id >= 4", limit=5)
    assert view.table.schema.names == ["id", "twice", "vector"]
    assert view.table.schema.field("twice").type == pa.int64()
    assert ids(view.table) == [4, 5, 6, 7, 8]
    definition = remote.open_materialized_view(name).definition
    assert definition.query == f"SELECT id, id * 2 AS twice, vector FROM {source.name} WHERE id >= 4 LIMIT 5"
    assert name in remote.list_materialized_views()
    nearest = view.table.search([4.2, 1.0]).limit(1).to_list()
    assert [(row["id"], row["twice"]) for row in nearest] == [(4, 8)]
    remote.drop_materialized_view(name)
    assert name not in remote.list_materialized_views()
    with pytest.raises(ValueError, match="not found"):
        remote.open_materialized_view(name)


def test_refresh_computes_rows_that_were_added_updated_or_deleted(
    remote: Any, source: Any, fresh: Callable[[str], str]
) -> None:
    view = remote.create_materialized_view(fresh("view"), source.name, where="id % 2 = 0", with_no_data=True)
    assert view.table.count_rows() == 0
    outcomes = [view.refresh()]
    outcomes.append(view.refresh())
    source.add(rows(10, 10))
    outcomes.append(view.refresh())
    source.delete("id = 4")
    outcomes.append(view.refresh())
    source.update(where="id IN (5, 6)", values={"text": "changed"})
    source.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(rows(19, 2))
    outcomes.append(view.refresh())
    outcomes.append(view.refresh(full=True))
    modes = ["rebuild", "no_op", "incremental", "incremental", "incremental", "rebuild"]
    assert [outcome.mode for outcome in outcomes] == modes
    assert [outcome.rows_written for outcome in outcomes] == [5, 0, 5, 0, 2, 10]
    assert outcomes[-1].version == view.table.version
    assert outcomes[-1].source_version == source.version
    assert ids(view.table) == [0, 2, 6, 8, 10, 12, 14, 16, 18, 20]
    assert view.table.search().where("id = 6").to_list()[0]["text"] == "changed"


def test_refresh_of_new_rows_that_the_filter_drops_reads_them_once(
    remote: Any, source: Any, fresh: Callable[[str], str]
) -> None:
    view = remote.create_materialized_view(fresh("view"), source.name, where="id < 3")
    source.add(rows(10, 3))
    assert [view.refresh().mode, view.refresh().mode] == ["incremental", "no_op"]
    assert ids(view.table) == [0, 1, 2]


def test_refresh_reads_a_version(remote: Any, source: Any, fresh: Callable[[str], str]) -> None:
    view = remote.create_materialized_view(fresh("view"), source.name)
    before = source.version
    source.add(rows(10, 3))
    view.refresh()
    outcome = view.refresh(source_version=before)
    assert (outcome.mode, outcome.source_version, view.table.count_rows()) == ("rebuild", before, 10)
    with pytest.raises(JobFailedError):
        view.refresh(source_version=99)


def test_refreshes_at_once_add_no_row_twice(remote: Any, source: Any, fresh: Callable[[str], str]) -> None:
    view = remote.create_materialized_view(fresh("view"), source.name)
    source.add(rows(10, 90))
    jobs = [view.refresh_async() for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda job: job.wait(timeout=LONG), jobs))
    assert ids(view.table) == list(range(100))


def test_the_async_client_waits_for_jobs(server: ServerProcess, source: Any, fresh: Callable[[str], str]) -> None:
    name = fresh("view")

    async def run() -> tuple[int, str, str]:
        connection = await lancedb.connect_async("db://tests", api_key="none", host_override=server.url)
        job = await connection.create_materialized_view_async(name, source.name, select=["id"])
        await job.wait(timeout=LONG)
        view = await connection.open_materialized_view(name)
        refreshed = await (await view.refresh_async()).wait(timeout=LONG)
        count = await view.table.count_rows()
        dropped = await connection.drop_materialized_view_async(name)
        await dropped.wait(timeout=LONG)
        return count, refreshed.mode, (await connection.open_job(job.id)).job_type

    assert asyncio.run(run()) == (10, "no_op", "refresh_view")


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ({"select": [("n", "count(*)")]}, 400),
        ({"select": ["missing"]}, 400),
        ({"select": [("a", "id"), ("a", "id + 1")]}, 400),
        ({"where": "id = "}, 400),
        ({"where": "id > 1 GROUP BY id"}, 501),
        ({"where": "id IN (SELECT 1)"}, 501),
        ({"select": [("r", "random()")]}, 400),
        ({"where": "id > 1 -- all"}, 400),
    ],
)
def test_queries_that_are_no_projection_are_refused(
    remote: Any, source: Any, fresh: Callable[[str], str], options: Any, status: int
) -> None:
    name = fresh("view")
    with pytest.raises(HttpError) as refused:
        remote.create_materialized_view(name, source.name, **options)
    assert refused.value.status_code == status
    assert name not in remote.list_tables(limit=1000).tables


def test_a_view_leaves_near_duplicates_out(remote: Any, fresh: Callable[[str], str]) -> None:
    """Of a chain of neighbours every other one stays; the snapshot stays the one that was read."""
    vectors = [[0.0, 0.0], [0.1, 0.0], [0.2, 0.0], [9.0, 0.0], [9.0, 0.0], [7.0, 0.0]]
    columns = {"id": range(6), "vector": pa.array(vectors, pa.list_(pa.float32(), 2))}
    source = remote.create_table(fresh("source"), pa.table(columns))
    source.create_index("vector", config=IvfFlat(num_partitions=1), wait_timeout=LONG)
    view = remote.create_materialized_view(
        fresh("view"), lancedb.vector_dedup(source.name, column="vector", distance_threshold=0.02)
    )
    assert ids(view.table) == [0, 2, 3, 5]
    assert "vector_dedup" in view.definition.query
    source.add(pa.table({"id": [6], "vector": pa.array([[5.0, 5.0]], pa.list_(pa.float32(), 2))}))
    assert view.refresh().mode == "no_op" and ids(view.table) == [0, 2, 3, 5]
    assert view.refresh(full=True).mode == "rebuild" and ids(view.table) == [0, 2, 3, 5]
    with pytest.raises(JobFailedError, match="always"):
        view.refresh(source_version=source.version)
    with pytest.raises(HttpError, match="lacks 1 rows"):
        remote.create_materialized_view(
            fresh("view"), lancedb.vector_dedup(source.name, column="vector", distance_threshold=0.02)
        )


def test_missing_sources_and_taken_names_are_refused(remote: Any, source: Any, fresh: Callable[[str], str]) -> None:
    with pytest.raises(HttpError, match="not found"):
        remote.create_materialized_view(fresh("view"), "missing")
    with pytest.raises(HttpError, match="exists"):
        remote.create_materialized_view(source.name, source.name)
    with pytest.raises(HttpError, match="by the vector index of 'vector', which has 0"):
        remote.create_materialized_view(
            fresh("view"), lancedb.vector_dedup(source.name, column="vector", distance_threshold=4)
        )
    with pytest.raises(ValueError, match="not found"):
        remote.open_materialized_view(source.name)
    with pytest.raises(HttpError, match="no materialized view"):
        remote.drop_materialized_view(source.name)


# Plain views


def test_a_plain_view_reads_its_tables_as_they_are(remote: Any, source: Any, fresh: Callable[[str], str]) -> None:
    name = fresh("plain")
    query = f"SELECT id, id * 2 AS twice, vector FROM {source.name} WHERE id < 5"
    created = remote.create_view(name, query)
    assert (created.name, created.query, created.schema.names) == (name, query, ["id", "twice", "vector"])
    assert remote.describe_view(name) == created
    assert name in remote.list_views()
    view = remote.open_table(name)
    assert view.schema.names == ["id", "twice", "vector"]
    assert view.count_rows() == 5
    source.delete("id = 1")
    assert (view.count_rows(), view.count_rows("id > 2")) == (4, 2)
    assert ids(view) == [0, 2, 3, 4]
    found = view.search().where("twice >= 4").select(["id"]).limit(2).offset(1).to_list()
    assert found == [{"id": 3}, {"id": 4}]
    assert view.search().select({"more": "twice + 1"}).limit(1).to_list() == [{"more": 1}]
    assert [row["id"] for row in view.search([3.1, 1.0]).limit(2).to_list()] == [3, 4]
    assert view.search().select(["id"]).limit(2).offset(1).to_list() == [{"id": 2}, {"id": 3}]
    remote.drop_view(name)
    assert name not in remote.list_views()
    assert source.count_rows() == 9


def test_a_plain_view_aggregates_and_joins(remote: Any, source: Any, fresh: Callable[[str], str]) -> None:
    name = fresh("plain")
    query = (
        f"SELECT a.id % 2 AS odd, count(*) AS n, sum(b.id) AS total FROM {source.name} a "
        f"JOIN {source.name} b ON a.id = b.id GROUP BY a.id % 2"
    )
    remote.create_view(name, query)
    rows = remote.open_table(name).search().where("n > 0").to_list()
    assert sorted((row["odd"], row["n"], row["total"]) for row in rows) == [(0, 5, 20), (1, 5, 25)]


def test_what_a_plain_view_has_not_is_refused(remote: Any, raw: Any, source: Any, fresh: Callable[[str], str]) -> None:
    name = fresh("plain")
    remote.create_view(name, f"SELECT id, text FROM {source.name}")
    view = remote.open_table(name)
    for change in (
        lambda: view.add(pa.table({"id": [1], "text": ["x"]})),
        lambda: view.delete("id = 1"),
        lambda: view.update(where="id = 1", values={"text": "x"}),
        lambda: view.add_columns({"c": "id"}),
        lambda: view.create_index("id", config=BTree()),
        lambda: view.search("text", query_type="fts").limit(1).to_list(),
        lambda: remote.create_table(name, rows(0, 1), mode="overwrite"),
    ):
        with pytest.raises((HttpError, ValueError)) as refused:
            change()
        assert getattr(refused.value, "status_code", 400) in (400, 501), refused.value
    assert view.count_rows() == 10
    assert "location" not in raw.post(f"/v1/table/{name}/describe").json()
    for call in (remote.create_view, remote.create_table):
        with pytest.raises((HttpError, ValueError), match="exists"):
            call(name, "SELECT 1 AS a" if call == remote.create_view else rows(0, 1))
    for call in (remote.describe_view, remote.drop_view):
        with pytest.raises(HttpError, match="no view"):
            call(source.name)


@pytest.mark.parametrize(
    "query",
    [
        "",
        "DROP TABLE x",
        "SELECT * FROM missing_table",
        "SELECT 1 AS a, 2 AS a",
        "SELECT * FROM 'file.parquet'",
        "SELECT",
        "SELECT $1 AS a",
        "SELECT 1 AS a; SELECT 2 AS b",
    ],
)
def test_queries_of_plain_views_that_cannot_be_are_refused(
    remote: Any, fresh: Callable[[str], str], query: str
) -> None:
    name = fresh("plain")
    with pytest.raises(HttpError) as refused:
        remote.create_view(name, query)
    assert refused.value.status_code in (400, 404, 501)
    assert name not in remote.list_views()
