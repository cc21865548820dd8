"""A mounted catalog by each stock client: create, insert, search, index, versions, pages, drop."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import lance
import lance_namespace
import lance_namespace_urllib3_client as generated
import lancedb
import pyarrow as pa
import pytest
from lancedb.index import BTree

from tests.mounts.backends import Backend, new_name
from tests.services.server import ServerProcess
from tests.services.wire import Wire, stream
from tiltyard.model.ids import Id
from tiltyard.mounts import MountedCatalog

ROWS = 300


def vectors(first: int, rows: int) -> pa.Table:
    """Rows with an id, a text and a vector of two numbers, that begins with the id."""
    ids = range(first, first + rows)
    vector = pa.array([[float(id_), 0.0] for id_ in ids], pa.list_(pa.float32(), 2))
    return pa.table({"id": pa.array(ids, pa.int64()), "text": [f"row {id_}" for id_ in ids], "vector": vector})


def nearest(table: Any, number: float) -> int:
    """Return the id of the row whose vector is next to a number."""
    return int(table.search([number, 0.0]).limit(1).to_list()[0]["id"])


def check_use(table: Any, reopen: Any) -> None:
    """Insert, search, index and go back in time."""
    table.add(vectors(ROWS, 20))
    assert table.count_rows() == ROWS + 20
    assert nearest(table, ROWS + 7.2) == ROWS + 7
    table.create_index("id", config=BTree())
    table.wait_for_index(["id_idx"], timedelta(seconds=60))
    assert [index.index_type for index in table.list_indices()] == ["BTree"]
    assert table.search().where("id = 5").to_list()[0]["text"] == "row 5"
    table.delete("id >= 10")
    assert reopen().count_rows() == 10
    versions = [each["version"] for each in table.list_versions()]
    assert versions == sorted(versions)
    assert len(versions) >= 4


def test_lancedb_remote_creates_searches_indexes_and_drops(
    server: ServerProcess, home: Id, catalog: MountedCatalog
) -> None:
    connection = lancedb.connect("db://any", api_key="none", host_override=server.url)
    name, place = new_name("films"), list(home)
    table = connection.create_table(name, vectors(0, ROWS), namespace_path=place)
    check_use(table, lambda: connection.open_table(name, namespace_path=place))
    assert catalog.list_tables(Id(home[1:])).names == (name,)
    connection.drop_table(name, namespace_path=place)
    assert catalog.list_tables(Id(home[1:])).names == ()


def test_lancedb_over_a_namespace_creates_searches_indexes_and_drops(
    server: ServerProcess, home: Id, catalog: MountedCatalog, backend: Backend
) -> None:
    storage = dict(backend.storage_options)
    connection = lancedb.connect_namespace("rest", {"uri": server.url}, storage_options=storage or None)
    name, place = new_name("films"), list(home)
    table = connection.create_table(name, vectors(0, ROWS), namespace_path=place)
    check_use(table, lambda: connection.open_table(name, namespace_path=place))
    assert list(connection.list_tables(namespace_path=place).tables) == [name]
    connection.drop_table(name, namespace_path=place)
    assert catalog.list_tables(Id(home[1:])).names == ()


def test_pylance_writes_and_reads_through_the_namespace(
    server: ServerProcess, home: Id, backend: Backend, wire: Wire
) -> None:
    namespace = lance_namespace.connect("rest", {"uri": server.url})
    table, storage = [*home, new_name("t")], dict(backend.storage_options) or None
    first: dict[str, Any] = {"namespace_client": namespace, "table_id": table, "storage_options": storage}
    lance.write_dataset(vectors(0, 10), mode="create", **first)
    lance.write_dataset(vectors(10, 5), mode="append", **first)
    assert lance.dataset(**first).count_rows() == 15
    assert wire.call("table", table, "count_rows").json() == 15


def test_generated_client_lists_in_pages_and_describes(server: ServerProcess, home: Id, wire: Wire) -> None:
    client = generated.ApiClient(generated.Configuration(host=server.url))
    names = sorted(new_name("t") for _ in range(5))
    for name in names:
        assert wire.call("table", [*home, name], "create", stream(vectors(0, 1))).status_code == 200
    tables, namespace = generated.NamespaceApi(client), "$".join(home)
    seen: list[str] = []
    token = None
    for _ in range(5):
        page = tables.list_tables(namespace, page_token=token, limit=2)
        assert len(page.tables) <= 2
        seen += page.tables
        token = page.page_token
        if not token:
            break
    assert sorted(seen) == names
    described = generated.TableApi(client).describe_table(
        "$".join([*home, names[0]]), generated.DescribeTableRequest(load_detailed_metadata=True)
    )
    assert described.version == 1
    with pytest.raises(generated.exceptions.NotFoundException) as missing:
        generated.TableApi(client).describe_table("$".join([*home, "missing"]), generated.DescribeTableRequest())
    assert '"code":4' in missing.value.body
    assert wire.call("namespace", home, "exists").status_code == 200
    if len(home) > 1:
        assert wire.call("namespace", [*home[:-1], "missing"], "exists").json()["code"] == 1
        assert wire.call("namespace", home, "drop").json()["code"] == 3
