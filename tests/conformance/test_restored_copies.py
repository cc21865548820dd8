"""A table's folder restored from a copy: the next commit continues from there, without a repair."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import lance
import obstore
import pyarrow as pa
import pytest
from lance_namespace import DescribeTableRequest

import tiltyard
from tests.conformance.conftest import Raw
from tests.services.server import ServerProcess
from tests.services.wire import stream
from tiltyard_conformance.cases import World, paths

ARROW = {"content-type": "application/vnd.apache.arrow.stream"}
MORE = pa.table({"id": pa.array([50, 51], pa.int64())})
NOTED_SECONDS = 1.0
"""After that the catalog has marked the versions as final."""


class Restored:
    """A table of 10 rows whose second and third versions were lost by a restore of its folder."""

    def __init__(self, raw: Raw, rest: Any, server: ServerProcess, name: str) -> None:
        self.raw, self.client, self.name, self.server = raw, rest, name, server
        assert self.post("create", stream(pa.table({"id": range(10)}))).status_code == 200
        self.location = str(rest.describe_table(DescribeTableRequest(id=[name])).location)
        files = World(None, server.options).files(self.location)
        copy = {path: bytes(obstore.get(files, path).bytes()) for path in paths(files)}
        for _ in range(2):
            assert self.post("insert", stream(MORE)).status_code == 200
        time.sleep(NOTED_SECONDS)
        obstore.delete(files, [path for path in paths(files) if path not in copy])
        for path, content in copy.items():
            obstore.put(files, path, content)

    def post(self, action: str, body: Any = None, **query: Any) -> Any:
        content = {"content": body, "headers": ARROW} if isinstance(body, bytes) else {"json": body or {}}
        return self.raw.http.post(f"/v1/table/{self.name}/{action}", params=query, **content)


@pytest.fixture
def restored(raw: Raw, rest: Any, server: ServerProcess, fresh: Callable[[str], str]) -> Restored:
    return Restored(raw, rest, server, fresh("restored"))


def by_the_server(table: Restored) -> int:
    assert table.post("insert", stream(MORE)).json()["version"] == 2
    return 12


def by_a_merge_of_the_server(table: Restored) -> int:
    response = table.post("merge_insert", stream(MORE), on="id", when_not_matched_insert_all="true")
    assert response.json()["version"] == 2
    return 12


def by_a_deletion(table: Restored) -> int:
    assert table.post("delete", {"predicate": "id < 4"}).json() == {"version": 2, "num_deleted_rows": 4}
    return 6


def by_an_overwrite(table: Restored) -> int:
    assert table.post("create", stream(MORE), mode="overwrite").status_code == 200
    return 2


def by_pylance(table: Restored) -> int:
    lance.write_dataset(MORE, namespace_client=table.client, table_id=[table.name], mode="append")
    return 12


def by_a_publication(table: Restored) -> int:
    with tiltyard.publish(table.client) as block:
        for _ in range(2):
            lance.write_dataset(MORE, namespace_client=block, table_id=[table.name], mode="append")
    return 14


WRITES = [by_the_server, by_a_merge_of_the_server, by_a_deletion, by_an_overwrite, by_pylance, by_a_publication]


@pytest.mark.parametrize("write", WRITES)
def test_write_after_a_restore_by_copy_is_the_next_version_of_what_was_restored(
    restored: Restored, write: Callable[[Restored], int]
) -> None:
    rows = write(restored)
    assert restored.post("count_rows").json() == rows
    plain = lance.dataset(restored.location, storage_options=restored.server.options)
    assert plain.count_rows() == rows
    versions = [entry["version"] for entry in restored.post("version/list").json()["versions"]]
    assert versions == [entry["version"] for entry in plain.versions()] == list(range(1, plain.version + 1))
    assert restored.post("version/describe", {"version": plain.version + 1}).status_code == 404


def test_rows_of_a_restored_copy_are_read_within_five_seconds(restored: Restored) -> None:
    """On an object store the catalog's word is confirmed that often, and on a disk at each request."""
    until = time.monotonic() + (6 if restored.server.options else 0)
    while restored.post("count_rows").json() != 10 and time.monotonic() < until:
        time.sleep(0.1)
    assert restored.post("count_rows").json() == 10
