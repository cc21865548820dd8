"""Databases of lancedb's clients: db://NAME is the namespace NAME in the root."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lancedb
import pyarrow as pa
import pytest
from lancedb.exceptions import JobNotFoundError
from lancedb.index import BTree
from lancedb.remote.errors import HttpError

from tests.services.secured import secured_server
from tests.services.server import ServerProcess

Fresh = Callable[[str], str]
ROWS = pa.table({"id": pa.array(range(4), pa.int64()), "x": pa.array([0.5, 1.5, 2.5, 3.5])})


def connect(server: ServerProcess, database: str, key: str = "none") -> Any:
    return lancedb.connect(f"db://{database}", api_key=key, host_override=server.url)


@pytest.fixture
def name(raw: Any, fresh: Fresh) -> Iterator[str]:
    """A new database."""
    name = fresh("base")
    assert raw.post(f"/v1/namespace/{name}/create").status_code == 200
    yield name
    raw.post(f"/v1/namespace/{name}/drop", {"behavior": "Cascade"})


def test_catalog_creates_lists_opens_and_drops_databases(server: ServerProcess, fresh: Fresh) -> None:
    catalog = lancedb.connect_catalog(server.url, api_key="none")
    name, slashed = fresh("base"), f"{fresh('team')}/base"
    database = catalog.create_database(name)
    with pytest.raises(ValueError, match="already exists"):
        catalog.create_database(name)
    catalog.create_database(name, exist_ok=True)
    catalog.create_database(slashed).create_table("t", ROWS)
    assert {name, slashed} <= set(catalog.list_databases(limit=1000).databases)
    database.create_table("t", ROWS.slice(0, 1))
    assert catalog.connect_database(name).open_table("t").count_rows() == 1
    assert catalog.connect_database(slashed).open_table("t").count_rows() == 4
    with pytest.raises(HttpError) as refused:
        catalog.drop_database(name)
    assert refused.value.status_code == 409
    database.drop_table("t")
    catalog.drop_database(name)
    with pytest.raises(ValueError, match="not found"):
        catalog.connect_database(name)
    with pytest.raises(ValueError, match="not found"):
        catalog.drop_database(name)
    catalog.drop_database(name, ignore_missing=True)


def test_two_databases_have_tables_and_namespaces_of_their_own(
    server: ServerProcess, raw: Any, name: str, fresh: Fresh
) -> None:
    one, two, other = connect(server, name), fresh("two"), fresh("nowhere")
    raw.post(f"/v1/namespace/{two}/create")
    table_name = fresh("t")
    one.create_table(table_name, ROWS)
    connect(server, two).create_table(table_name, ROWS.slice(0, 2))
    connect(server, other).create_table(table_name, ROWS.slice(0, 3))
    assert one.open_table(table_name).count_rows() == 4
    assert connect(server, two).open_table(table_name).count_rows() == 2
    assert raw.post(f"/v1/table/{table_name}/count_rows").text == "3"
    assert raw.post(f"/v1/table/{name}$%s/count_rows" % table_name).text == "4"
    assert one.list_tables().tables == [table_name]
    one.create_namespace(["inner"])
    assert one.list_namespaces().namespaces == ["inner"]
    assert raw.get(f"/v1/namespace/{name}/list").json()["namespaces"] == ["inner"]


def test_every_operation_of_a_table_is_one_within_the_database(server: ServerProcess, name: str, raw: Any) -> None:
    database = connect(server, name)
    database.create_namespace(["inner"])
    table = database.create_table("t", ROWS, namespace_path=["inner"])
    table.add(ROWS)
    table.update(where="id = 1", values={"x": 9.0})
    table.merge_insert("id").when_not_matched_insert_all().execute(pa.table({"id": [7], "x": [7.0]}))
    table.add_columns({"d": "x * 2"})
    table.tags.create("first", 1)
    table.branches.create("dev")
    table.create_index("id", config=BTree(), wait_timeout=datetime.timedelta(seconds=60))
    assert (table.count_rows(), "dev" in table.branches.list()) == (9, True)
    database.create_namespace(["other"])
    database.rename_table("t", "moved", cur_namespace_path=["inner"], new_namespace_path=["other"])
    assert database.list_tables(namespace_path=["other"]).tables == ["moved"]
    described = raw.post(f"/v1/table/{name}$other$moved/describe").json()
    assert described["namespace"] == [name, "other"]
    header = {"x-lancedb-database": name}
    for path in ("/v1/table/other$moved/describe/", "/v1/table/other$moved/describe?delimiter=%24"):
        assert raw.post(path, headers=header).json()["namespace"] == ["other"]
    copy = database.clone_table("copy", database.open_table("moved", namespace_path=["other"]).uri)
    assert copy.count_rows() == 9 and database.list_tables().tables == ["copy"]
    dropped = raw.post("/v1/table/copy/drop/", headers=header).json()
    assert dropped["id"] == ["copy"]
    database.drop_table("moved", namespace_path=["other"])
    assert raw.post(f"/v1/table/{name}$other$moved/exists").status_code == 404


def test_connection_as_a_namespace_client_is_within_the_database_too(server: ServerProcess, name: str) -> None:
    from lance_namespace import DescribeTableRequest, ListTablesRequest

    database = connect(server, name)
    database.create_table("t", ROWS)
    client = database.namespace_client()
    assert client.list_tables(ListTablesRequest(id=[])).tables == ["t"]
    assert client.describe_table(DescribeTableRequest(id=["t"])).location


def test_ids_in_the_bodies_of_batches_are_relative(raw: Any, name: str) -> None:
    header = {"x-lancedb-database": name}
    batch = {"operations": [{"declare_table": {"id": ["declared"]}}]}
    assert raw.post("/v1/table/batch-commit?delimiter=%24", batch, headers=header).status_code == 200
    assert raw.post(f"/v1/table/{name}$declared/exists").status_code == 200
    listed = raw.get("/v1/table?delimiter=%24", headers=header).json()["tables"]
    assert listed == ["declared"]


def test_no_table_is_the_database_itself(raw: Any, name: str) -> None:
    header, rows = {"x-lancedb-database": name}, {"content-type": "application/vnd.apache.arrow.stream"}
    for path in ("/v1/table/$/create?delimiter=%24", "/v1/table/$/create/"):
        refused = raw.http.post(path, content=b"", headers=header | rows)
        assert (refused.status_code, refused.json()["code"]) == (400, 13), refused.text
    batch = {"operations": [{"declare_table": {"id": []}}]}
    assert raw.post("/v1/table/batch-commit?delimiter=%24", batch, headers=header).status_code == 400
    assert raw.post(f"/v1/table/{name}/exists").status_code == 404
    assert raw.get("/v1/namespace/$/table/list?delimiter=%24", headers=header).json()["tables"] == []


def test_prefix_names_a_namespace_within_the_database(server: ServerProcess, raw: Any, name: str) -> None:
    raw.post(f"/v1/namespace/{name}$eu/create")
    connect(server, f"{name}/eu").create_table("t", ROWS)
    assert raw.post(f"/v1/table/{name}$eu$t/count_rows").text == "4"
    assert connect(server, name).list_tables().tables == []
    with pytest.raises(Exception, match="not found"):
        connect(server, f"{name}/us").create_table("t", ROWS)


def test_asynchronous_client_pages_within_the_database(server: ServerProcess, name: str) -> None:
    async def run() -> list[str]:
        database = await lancedb.connect_async(f"db://{name}", api_key="none", host_override=server.url)
        for number in range(3):
            await database.create_table(f"t{number}", ROWS)
        first = await database.list_tables(limit=2)
        return [*first.tables, *(await database.list_tables(page_token=first.page_token)).tables]

    assert asyncio.run(run()) == ["t0", "t1", "t2"]


@pytest.mark.parametrize("rule", ["strict", "ignored"])
def test_setting_forbids_the_root_or_ignores_the_name(tmp_path: Path, rule: str) -> None:
    server = ServerProcess(tmp_path, environ={"TILTYARD_DATABASES": rule})
    try:
        catalog = lancedb.connect_catalog(server.url, api_key="none")
        catalog.create_database("main")
        connect(server, "main").create_table("t", ROWS)
        if rule == "ignored":
            assert connect(server, "nowhere").open_table("t").count_rows() == 4
            catalog.drop_database("main")
            return
        with pytest.raises(Exception, match="not found"):
            connect(server, "nowhere").create_table("t", ROWS)
        assert connect(server, "main").open_table("t").count_rows() == 4
        with pytest.raises(HttpError, match="not empty"):
            catalog.drop_database("main")
    finally:
        server.stop()


def test_names_in_queries_of_views_are_of_the_views_database(
    server: ServerProcess, raw: Any, name: str, fresh: Fresh
) -> None:
    inside, root, source = connect(server, name), connect(server, fresh("nowhere")), fresh("t")
    inside.create_table(source, ROWS)
    root.create_table(source, ROWS.slice(0, 1))  # of the same name, in the root
    view = inside.create_materialized_view("few", source, where="id > 1")
    assert view.table.count_rows() == 2
    inside.open_table(source).add(pa.table({"id": pa.array([9, 0], pa.int64()), "x": [9.5, 0.5]}))
    view.refresh()
    assert sorted(row["id"] for row in inside.open_table("few").search().limit(10).to_list()) == [2, 3, 9]
    for path, headers, shown in (
        (f"{name}$few", {}, f"{name}${source}"),
        ("few", {"x-lancedb-database": name}, source),
    ):
        described = raw.post(f"/v1/materialized_view/{path}/describe", headers=headers).json()
        assert described["source_table"] == shown

    inside.create_view("named", f"SELECT id FROM {source} WHERE id > 0")
    assert inside.open_table("named").count_rows() == 4
    assert raw.post(f"/v1/table/{name}$named/count_rows").text == "4"
    inside.create_namespace(["inner"])
    inside.create_table("t", ROWS.slice(0, 3), namespace_path=["inner"])
    inside.create_materialized_view("deep", "inner$t")
    assert inside.open_table("deep").count_rows() == 3
    with pytest.raises(Exception, match="not found"):
        root.create_materialized_view(fresh("view"), "inner$t")


def test_database_that_a_caller_cannot_see_does_not_exist_for_it(tmp_path: Path) -> None:
    with secured_server(tmp_path) as secured:
        root, hidden = connect(secured, "x", secured.keys["administrator"]), "hidden"
        root.create_namespace([hidden])
        admin = connect(secured, hidden, secured.keys["administrator"])
        admin.create_table("t", ROWS)
        root.create_table("t", ROWS.slice(0, 1))
        with secured.http("administrator") as http:
            for kind, path, grantee in (("table", ["t"], "ann"), ("namespace", [hidden], "bob")):
                grant = {"object_kind": kind, "id": path, "grantee": grantee, "privileges": ["read"]}
                assert http.post("/tiltyard/v1/grant/add", json=grant).status_code == 200
        assert connect(secured, hidden, secured.keys["ann"]).open_table("t").count_rows() == 1
        assert connect(secured, hidden, secured.keys["bob"]).open_table("t").count_rows() == 4
        with pytest.raises(Exception, match="not found"):
            connect(secured, "nowhere", secured.keys["bob"]).open_table("t")


def test_jobs_of_a_database_are_its_own(server: ServerProcess, raw: Any, name: str, fresh: Fresh) -> None:
    other = fresh("other")
    raw.post(f"/v1/namespace/{other}/create")
    inside, outside = connect(server, name), connect(server, other)
    table = inside.create_table("t", ROWS)
    built = table.create_index_async("id", config=BTree())
    built.wait(timeout=datetime.timedelta(minutes=2))
    inside.create_namespace(["inner"])
    inside.create_table("gone", ROWS, namespace_path=["inner"])
    dropped = inside.drop_table_async("gone", namespace_path=["inner"])
    outside.create_table("t", ROWS)
    elsewhere = outside.drop_table_async("t")

    assert {job.job_id: job.table for job in inside.list_jobs()} == {built.id: "t", dropped.id: "inner$gone"}
    assert [job.job_id for job in outside.list_jobs()] == [elsewhere.id]
    assert [job.job_id for job in connect(server, f"{name}/inner").list_jobs()] == [dropped.id]
    assert {built.id, dropped.id, elsewhere.id} <= {job.job_id for job in connect(server, fresh("nowhere")).list_jobs()}


def test_job_of_another_database_does_not_exist(server: ServerProcess, raw: Any, name: str, fresh: Fresh) -> None:
    other = fresh("other")
    raw.post(f"/v1/namespace/{other}/create")
    arguments = {"table": "t", "destination": "/tmp/none"}
    job = raw.post("/tiltyard/v1/job/submit", {"name": "export", "table": [name, "t"], "arguments": arguments})
    job_id = job.json()["job"]["id"]
    outside, inside = connect(server, other), connect(server, name)
    with pytest.raises(JobNotFoundError):
        outside.open_job(job_id)
    assert outside.cancel_job(job_id) is False
    for call in (outside.pause_job, outside.resume_job):
        with pytest.raises(HttpError) as refused:
            call(job_id)
        assert refused.value.status_code == 404
    events = raw.post("/v1/jobs/query_events", {"job_id": job_id}, headers={"x-lancedb-database": other})
    assert events.status_code == 404
    assert inside.open_job(job_id).state == "QUEUED"
    assert inside.pause_job(job_id) == "pausing"
    assert (inside.resume_job(job_id), inside.cancel_job(job_id)) == ("resumed", True)
