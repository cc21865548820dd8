"""A declared primary key through stock clients: who is refused, with which status, and that nobody retries for long."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import lance
import lance.fragment
import lancedb
import pyarrow as pa
import pytest
from lance_namespace.errors import InvalidTableStateError
from lancedb.remote.errors import LanceDBClientError

import tiltyard
from tests.conformance.conftest import Raw
from tests.services.lossy import wait_for
from tests.services.server import ServerProcess
from tests.services.wire import stream
from tiltyard.pipeline.catalog_client import table as table_of
from tiltyard.pipeline.runs import LocalRun
from tiltyard.pipeline.table_location import CatalogConnection
from tiltyard.pipeline.writing.commit import JobTable

Rows = Callable[..., pa.Table]
ARROW = {"content-type": "application/vnd.apache.arrow.stream"}


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "name": [f"n{number}" for number in ids]})


@pytest.fixture
def table(raw: Raw, remote: Any, fresh: Callable[[str], str]) -> str:
    """A table with the key `id`, and the rows 1 to 3."""
    name = fresh("keyed")
    remote.create_table(name, rows(1, 2, 3))
    response = raw.post(f"/tiltyard/v1/table/{name}/primary_key/set", {"columns": ["id"]})
    assert response.status_code == 200, response.text
    assert response.json()["columns"] == ["id"]
    (transaction,) = response.json()["transaction_ids"]
    wait_for(lambda: raw.post(f"/v1/transaction/{transaction}/describe").json()["status"] == "Succeeded", 60)
    return name


def ids(remote: Any, name: str) -> list[int]:
    return sorted(row["id"] for row in remote.open_table(name).search().limit(1000).to_list())


def test_insert_of_an_existing_key_is_409_with_the_key_and_a_null_400(raw: Raw, table: str) -> None:
    response = raw.http.post(f"/v1/table/{table}/insert", content=stream(rows(9, 2)), headers=ARROW)
    assert (response.status_code, response.json()["code"]) == (409, 19)
    assert "id = 2" in response.json()["error"]
    null = pa.table({"id": pa.array([None], pa.int64()), "name": ["x"]})
    response = raw.http.post(f"/v1/table/{table}/insert", content=stream(null), headers=ARROW)
    assert (response.status_code, response.json()["code"]) == (400, 20)
    described = raw.post(f"/v1/table/{table}/describe").json()
    assert described["properties"]["tiltyard.primary_key"] == '["id"]'


def test_lancedb_is_refused_once_and_merges(raw: Raw, remote: Any, table: str) -> None:
    opened = remote.open_table(table)
    with pytest.raises(LanceDBClientError, match="id = 3") as refused:
        opened.add(rows(3))
    assert refused.value.status_code == 400
    with pytest.raises(LanceDBClientError, match="id = 1"):
        opened.update(where="id = 2", values={"id": 1})
    opened.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(rows(3, 4))
    opened.delete("id = 1")
    opened.add(rows(1))
    assert ids(remote, table) == [1, 2, 3, 4]


def test_lancedb_async_is_refused_as_well(server: ServerProcess, remote: Any, table: str) -> None:
    async def add() -> None:
        db = await lancedb.connect_async("db://tests", api_key="none", host_override=server.url)
        opened = await db.open_table(table)
        await opened.add(rows(5))
        await opened.add(rows(5))

    with pytest.raises(Exception, match="id = 5"):
        asyncio.run(add())
    assert ids(remote, table) == [1, 2, 3, 5]


def test_clients_that_write_files_themselves_cannot_commit_a_duplicate(rest: Any, remote: Any, table: str) -> None:
    with pytest.raises(OSError, match="unknown"):  # pylance's word for every commit that a catalog refuses
        lance.write_dataset(rows(2), namespace_client=rest, table_id=[table], mode="append")
    lance.write_dataset(rows(6), namespace_client=rest, table_id=[table], mode="append")
    dataset = lance.dataset(namespace_client=rest, table_id=[table])
    with pytest.raises(OSError, match="unknown"):
        dataset.update({"id": "1"}, "id = 6")
    dataset = lance.dataset(namespace_client=rest, table_id=[table])
    dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(rows(6, 7))
    dataset.delete("id = 7")
    dataset.add_columns({"twice": "id * 2"})
    dataset.optimize.compact_files()
    assert ids(remote, table) == [1, 2, 3, 6]


def test_publication_with_a_duplicate_changes_no_table(
    rest: Any, remote: Any, table: str, fresh: Callable[[str], str]
) -> None:
    other = fresh("other")
    remote.create_table(other, rows(1))

    def publish(*new: int) -> None:
        with tiltyard.publish(rest) as tables:
            lance.write_dataset(rows(5), namespace_client=tables, table_id=[other], mode="append")
            for number in new:
                lance.write_dataset(rows(number), namespace_client=tables, table_id=[table], mode="append")

    with pytest.raises(Exception, match="id = 8 comes twice"):
        publish(8, 8)
    with pytest.raises(Exception, match="id = 2"):
        publish(2)
    assert ids(remote, other) == [1]
    publish(8, 9)
    assert ids(remote, table) == [1, 2, 3, 8, 9]
    assert ids(remote, other) == [1, 5]


def test_one_key_inserted_at_once_by_clients_of_every_kind_has_one_winner(
    raw: Raw, rest: Any, remote: Any, table: str
) -> None:
    def over_http(key: int) -> None:
        response = raw.http.post(f"/v1/table/{table}/insert", content=stream(rows(key)), headers=ARROW)
        assert response.status_code == 200

    def by_files(key: int) -> None:
        lance.write_dataset(rows(key), namespace_client=rest, table_id=[table], mode="append")

    def by_lancedb(key: int) -> None:
        remote.open_table(table).add(rows(key))

    for key in range(20, 23):
        won: list[Any] = []

        def run(write: Callable[[int], None], key: int = key, won: list[Any] = won) -> None:
            try:
                write(key)
            except Exception:  # noqa: BLE001  # each client has errors of its own
                return
            won.append(write)

        threads = [threading.Thread(target=run, args=(write,)) for write in (over_http, by_files, by_lancedb)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
    assert ids(remote, table) == [1, 2, 3, 20, 21, 22]


def test_commit_of_a_job_fails_with_the_key(server: ServerProcess, remote: Any, table: str) -> None:
    job_table = JobTable(table_of(CatalogConnection("rest", (("uri", server.url),)), table), None)

    def append(number: int) -> int:
        latest = job_table.latest()
        fragments = lance.fragment.write_fragments(rows(number), latest, mode="append")
        return job_table.commit(latest, lance.LanceOperation.Append(fragments), LocalRun())

    with pytest.raises(InvalidTableStateError, match="id = 2"):
        append(2)
    append(4)
    latest = job_table.latest()
    with pytest.raises(InvalidTableStateError, match="id = 1"):
        job_table.commit_change(latest, lambda: latest.update({"id": "1"}, "id = 4"))
    assert ids(remote, table) == [1, 2, 3, 4]


def test_property_declares_no_key(raw: Raw, fresh: Callable[[str], str]) -> None:
    name = fresh("declared")
    response = raw.post(f"/v1/table/{name}/declare", {"properties": {"tiltyard.primary_key": '["id"]'}})
    assert response.status_code == 400
