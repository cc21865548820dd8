"""Managed versioning: pylance and lancedb write the files, and the server commits."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import lance
import lance.namespace as rust
import pyarrow as pa
import pytest

from tests.conformance.conftest import Raw
from tests.conformance.test_catalog import code
from tiltyard_conformance.cases import World

Fresh = Callable[[str], str]
ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "text": ["a", "b", "c"]})


@pytest.fixture
def table_id(rest: rust.RestNamespace, fresh: Fresh) -> list[str]:
    """Create a table with pylance through the server's namespace."""
    table_id = [fresh("m")]
    lance.write_dataset(ROWS, namespace_client=rest, table_id=table_id)
    return table_id


def open_table(rest: Any, table_id: list[str], **options: Any) -> lance.LanceDataset:
    return lance.dataset(namespace_client=rest, table_id=table_id, **options)


def open_location(server: Any, rest: Any, table_id: list[str]) -> lance.LanceDataset:
    """Open the same table without the server."""
    location = rest.describe_table(rust.DescribeTableRequest(id=table_id)).location
    return lance.dataset(location, storage_options=server.options)


def test_describe_says_that_tables_are_managed(raw: Raw, table_id: list[str]) -> None:
    assert raw.post(f"/v1/table/{table_id[0]}/describe").json()["managed_versioning"] is True


def test_create_and_append_are_committed_and_readable_without_the_server(rest: Any, server: Any, table_id: Any) -> None:
    lance.write_dataset(ROWS, namespace_client=rest, table_id=table_id, mode="append")
    assert open_table(rest, table_id).count_rows() == 6
    assert open_location(server, rest, table_id).count_rows() == 6
    assert [entry["version"] for entry in open_location(server, rest, table_id).versions()] == [1, 2]


def test_overwrite_delete_update_and_merge_are_versions(rest: Any, server: Any, table_id: Any) -> None:
    lance.write_dataset(ROWS.slice(1), namespace_client=rest, table_id=table_id, mode="overwrite")
    dataset = open_table(rest, table_id)
    dataset.delete("id = 2")
    dataset.update({"text": "'z'"}, where="id = 3")
    dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(ROWS)
    assert open_table(rest, table_id).version == 5 == open_location(server, rest, table_id).version
    assert sorted(open_table(rest, table_id).to_table()["id"].to_pylist()) == [1, 2, 3]


def test_columns_and_indices_by_the_client(rest: Any, table_id: Any) -> None:
    dataset = open_table(rest, table_id)
    dataset.add_columns({"twice": "id * 2"})
    dataset.create_scalar_index("id", "BTREE")
    reopened = open_table(rest, table_id)
    assert reopened.schema.names == ["id", "text", "twice"]
    assert [index.name for index in reopened.describe_indices()] == ["id_idx"]


def test_time_travel_and_tags_by_the_client(rest: Any, table_id: Any) -> None:
    open_table(rest, table_id).delete("id = 1")
    assert open_table(rest, table_id, version=1).count_rows() == 3
    dataset = open_table(rest, table_id)
    dataset.tags.create("first", 1)
    assert dataset.checkout_version("first").count_rows() == 3


def test_branch_by_the_client_keeps_its_own_versions(rest: Any, raw: Raw, table_id: Any) -> None:
    branch = open_table(rest, table_id).create_branch("try")
    branch.delete("id = 1")
    assert open_table(rest, table_id).count_rows() == 3
    assert raw.post(f"/v1/table/{table_id[0]}/count_rows", {"branch": "try"}).text == "2"
    versions = raw.post(f"/v1/table/{table_id[0]}/version/list?branch=try&descending=true&limit=1").json()["versions"]
    assert versions[0]["version"] == 2


@pytest.mark.parametrize("by", ["client", "server"])
def test_name_of_a_deleted_branch_can_be_given_again(rest: Any, raw: Raw, table_id: Any, by: str) -> None:
    path = f"/v1/table/{table_id[0]}"
    for rows in (1, 2, 3):
        if by == "client":
            branch = open_table(rest, table_id).create_branch("try")
        else:
            assert raw.post(f"{path}/branches/create", {"name": "try"}).status_code == 200
            branch = open_table(rest, table_id).checkout_version(("try", None))
        branch.insert(ROWS.slice(0, rows), mode="append")
        assert raw.post(f"{path}/count_rows", {"branch": "try"}).text == str(3 + rows)
        versions = raw.post(f"{path}/version/list?branch=try").json()["versions"]
        assert [entry["version"] for entry in versions] == [1, 2]
        if by == "client":
            open_table(rest, table_id).branches.delete("try")
        else:
            assert raw.post(f"{path}/branches/delete", {"name": "try"}).status_code == 200
        assert code(raw.post(f"{path}/version/list?branch=try")) == (404, 22)
        if by == "client":
            time.sleep(1)  # on an object store a branch is known by the second that it was made in
    assert raw.post(f"/tiltyard/v1/table/{table_id[0]}/repair", {}).json()["findings"] == []


def test_server_and_clients_extend_one_line_of_versions(rest: Any, remote: Any, table_id: Any) -> None:
    server_table = remote.open_table(table_id[0])
    server_table.add(ROWS)
    lance.write_dataset(ROWS, namespace_client=rest, table_id=table_id, mode="append")
    server_table.delete("id = 1")
    assert open_table(rest, table_id).count_rows() == 6 == server_table.count_rows()
    assert open_table(rest, table_id).version == 4


def test_concurrent_writers_rebase_and_lose_nothing(rest: Any, remote: Any, server: Any, table_id: Any) -> None:
    def write(number: int) -> None:
        rows = pa.table({"id": pa.array([100 + number], pa.int64()), "text": [f"w{number}"]})
        if number % 2:
            remote.open_table(table_id[0]).add(rows)
        else:
            client = rust.RestNamespace(uri=server.url)
            append_until_committed(rows, client)

    def append_until_committed(rows: pa.Table, client: Any) -> None:
        """Lance's client gives up after 30 s of lost races, which a busy machine has: then nothing was committed."""
        while True:
            try:
                lance.write_dataset(rows, namespace_client=client, table_id=table_id, mode="append")
            except OSError as error:
                if "Too many concurrent writers" not in str(error):
                    raise
            else:
                return

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(24)))
    ids = sorted(open_table(rest, table_id).to_table()["id"].to_pylist())
    assert ids == [1, 2, 3, *range(100, 124)]
    assert open_location(server, rest, table_id).count_rows() == 27


def test_create_version_twice_is_one_commit_and_another_manifest_a_conflict(raw: Raw, server: Any) -> None:
    world = World(raw, server.options)
    table = world.table()
    first, second = world.staged(table), world.staged(table)
    assert raw.post(f"/v1/table/{table[0]}/version/create", first).status_code == 200
    assert raw.post(f"/v1/table/{table[0]}/version/create", first).status_code == 200
    assert code(raw.post(f"/v1/table/{table[0]}/version/create", second)) == (409, 14)
    assert world.count(table) == 2


def test_create_version_refuses_what_is_no_next_manifest_of_the_table(raw: Raw, server: Any) -> None:
    world = World(raw, server.options)
    table, other_table = world.table(), world.table()
    foreign = world.staged(other_table)
    path = f"/v1/table/{table[0]}/version/create"
    assert code(raw.post(path, foreign)) == (400, 13)
    good = world.staged(table)
    for change in (
        {"version": good["version"] + 1},
        {"version": 0},
        {"manifest_path": good["manifest_path"] + "x"},
        {"manifest_path": "../../etc/passwd"},
        {"manifest_path": good["manifest_path"].replace("_versions", "data")},
        {"naming_scheme": "V9"},
    ):
        assert code(raw.post(path, good | change)) == (400, 13), change
    assert raw.post(path, good).status_code == 200


def test_create_version_gives_back_what_was_said_of_it(raw: Raw, server: Any) -> None:
    world = World(raw, server.options)
    table = world.table()
    entry = {**world.staged(table), "metadata": {"job": "nightly"}}
    assert raw.post(f"/v1/table/{table[0]}/version/create", entry).status_code == 200
    described = raw.post(f"/v1/table/{table[0]}/version/describe", {"version": entry["version"]}).json()["version"]
    assert described["metadata"]["job"] == "nightly" and described["manifest_size"] == entry["manifest_size"]
    assert described["manifest_path"].endswith(f"{2**64 - 1 - entry['version']}.manifest")


@pytest.mark.parametrize("level", ["table", "namespace"])
def test_managed_versioning_is_off_where_a_property_says_so(raw: Raw, namespace: str, level: str) -> None:
    off = {"properties": {"tiltyard.managed_versioning": "false"}}
    raw.post(f"/v1/namespace/{namespace}$inner/create", off if level == "namespace" else {})
    name = f"{namespace}$inner$t"
    declared = raw.post(f"/v1/table/{name}/declare", off if level == "table" else {}).json()
    assert declared["managed_versioning"] is False
    assert raw.post(f"/v1/table/{name}/describe").json()["managed_versioning"] is False
    invalid = {"properties": {"tiltyard.managed_versioning": "perhaps"}}
    assert code(raw.post(f"/v1/table/{namespace}$inner$u/declare", invalid)) == (400, 13)


def test_registered_tables_are_unmanaged_unless_asked(raw: Raw, server: Any) -> None:
    world = World(raw, server.options)
    for properties, managed in (({}, False), ({"tiltyard.managed_versioning": "true"}, True)):
        table = world.table()
        location = world.describe(table)["location"]
        world.post(f"/v1/table/{table[0]}/deregister")
        second_id = [world.name("again")]
        world.post(f"/v1/table/{second_id[0]}/register", {"location": location, "properties": properties})
        assert world.describe(second_id)["managed_versioning"] is managed
        assert raw.post(f"/v1/table/{second_id[0]}/delete", {"predicate": "id = 1"}).json()["version"] == 2


def test_commit_round_the_server_is_found(rest: Any, server: Any, raw: Raw, table_id: Any) -> None:
    """A client that writes by the table's location bypasses the server."""
    open_location(server, rest, table_id).delete("id = 1")
    assert open_table(rest, table_id).count_rows() == 2
    lance.write_dataset(ROWS, namespace_client=rest, table_id=table_id, mode="append")
    assert raw.post(f"/v1/table/{table_id[0]}/count_rows").text == "5"
