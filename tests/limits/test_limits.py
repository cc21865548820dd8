"""Limits of a running server, as clients see them."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import httpx
import lancedb
import pyarrow as pa
import pytest

from tests.access.scenes import send
from tests.audit.conftest import eventually
from tests.services.secured import secured_server
from tests.services.server import ServerProcess
from tests.services.wire import check_error, stream
from tiltyard.model.spec import operations

if TYPE_CHECKING:
    from pathlib import Path

ROWS = pa.table({"id": range(60_000), "text": ["x" * 1000] * 60_000})
ALL = {"vector": None, "k": 60_000}
QUEUE = 40
"""Queries of a principal: several times the threads of two processors."""


@contextmanager
def limited(root: Path, **settings: Any) -> Iterator[httpx.Client]:
    """A server with these settings, that has the table `t`."""
    environ = {f"TILTYARD_{name.upper()}": str(value) for name, value in settings.items()}
    server = ServerProcess(root, environ=environ)
    try:
        with httpx.Client(base_url=server.url, timeout=60) as client:
            yield client
    finally:
        server.stop()


def fill(client: httpx.Client, rows: int = 60_000) -> None:
    response = client.post("/v1/table/t/create", content=stream(ROWS.slice(0, rows), most_rows=2000))
    assert response.status_code == 200, response.text


def refusal(response: httpx.Response) -> tuple[int, int]:
    return response.status_code, check_error(response)


def test_rate_limit_answers_429_and_a_client_that_waits_as_told_goes_on(tmp_path: Path) -> None:
    with limited(tmp_path, rate_limit=5, rate_burst=1) as client:
        responses = [client.get("/v1/namespace/%24/list") for _ in range(10)]
        refused = [response for response in responses if response.status_code != 200]
        assert 200 in {response.status_code for response in responses} and refused
        assert refusal(refused[0]) == (429, 21)
        assert refused[0].headers["retry-after"] == "1"
        assert client.get("/health/live").status_code == 200
        # lancedb waits and tries again by itself.
        db = lancedb.connect("db://x", api_key="none", host_override=str(client.base_url).rstrip("/"))
        for _ in range(8):
            assert list(db.table_names()) == []


@pytest.mark.extended
def test_rate_limit_holds_for_all_processes_together(tmp_path: Path) -> None:
    server = ServerProcess(
        tmp_path, "--workers", "3", environ={"TILTYARD_RATE_LIMIT": "0.01", "TILTYARD_RATE_BURST": "600"}
    )
    try:
        # Each connection finds one of the processes.
        responses = [httpx.get(f"{server.url}/v1/namespace/%24/list", timeout=60) for _ in range(24)]
    finally:
        server.stop()
    assert [response.status_code for response in responses] == [200] * 6 + [429] * 18


def test_query_out_of_time_is_504_and_its_place_is_kept_until_it_ends(tmp_path: Path) -> None:
    with limited(tmp_path, query_timeout=0.005, max_queries_total=1) as client:
        fill(client)
        slow = {"vector": None, "k": 10, "filter": "regexp_like(text, 'x.*y.*z$')"}
        assert refusal(client.post("/v1/table/t/query", json=slow)) == (504, 17)

        def ended() -> bool:
            response = client.post("/v1/table/t/count_rows", json={"predicate": "id < 10"})
            if response.status_code == 429:
                assert refusal(response) == (429, 21)
                return False
            return True

        eventually(ended)
        assert client.post("/v1/table/t/describe", json={}).status_code == 200


def test_queue_of_a_principal_does_not_delay_the_query_of_another(tmp_path: Path) -> None:
    slow = {"vector": None, "k": 10, "filter": "regexp_like(text, 'x.*y.*z$')"}
    with secured_server(tmp_path) as secured, ThreadPoolExecutor(QUEUE) as threads:
        with secured.http("administrator") as administrator:
            fill(administrator, 20_000)
            for name in ("ann", "bob"):
                fields = {"object_kind": "table", "id": ["t"], "grantee": name, "privileges": ["read"]}
                assert send(administrator, operations()["GrantPrivileges"], fields).status_code == 200
        with secured.http("ann") as ann, secured.http("bob") as bob:
            for http in (ann, bob):  # once its process has read the grants
                eventually(lambda http=http: http.post("/v1/table/t/count_rows", json={}).status_code == 200)
            queries = [threads.submit(ann.post, "/v1/table/t/query", json=slow) for _ in range(QUEUE)]
            eventually(lambda: any(query.done() for query in queries))
            assert bob.post("/v1/table/t/count_rows", json={"predicate": "id < 10"}).text == "10"
            assert sum(not query.done() for query in queries) > QUEUE // 2
            assert {query.result().status_code for query in queries} == {200}


def test_answer_out_of_time_breaks_off(tmp_path: Path) -> None:
    with limited(tmp_path, query_timeout=3.0, max_queries_total=10) as client:
        fill(client)

        def queries_running() -> float:
            text = client.get("/metrics").text
            return float(next(line for line in text.splitlines() if '"queries running"' in line).split()[-1])

        def read_late() -> int:
            """Take nothing of the answer for as long as the query may run, then all."""
            with client.stream("POST", "/v1/table/t/query", json=ALL) as response:
                assert response.status_code == 200
                assert queries_running() == 1
                eventually(lambda: queries_running() == 0)
                return sum(len(part) for part in response.iter_raw())

        with pytest.raises(httpx.RemoteProtocolError):
            read_late()


def test_answer_that_is_too_large_is_400(tmp_path: Path) -> None:
    with limited(tmp_path, max_result_bytes=2 << 20) as client:
        fill(client)
        response = client.post("/v1/table/t/query", json=ALL)
        assert refusal(response) == (400, 13)
        assert "more than 2097152 bytes" in response.json()["error"]
        assert client.post("/v1/table/t/query", json={**ALL, "k": 500}).status_code == 200
        page = client.post("/v1/table/t/query", json={"vector": None, "k": 1900, "offset": 30_000})
        assert pa.ipc.open_file(page.content).read_all().num_rows == 1900


def test_answer_that_is_too_large_and_has_begun_breaks_off(tmp_path: Path) -> None:
    with limited(tmp_path, max_result_bytes=40 << 20) as client:
        fill(client)
        with pytest.raises(httpx.RemoteProtocolError):
            client.post("/v1/table/t/query", json=ALL)
        assert client.post("/v1/table/t/query", json={**ALL, "k": 10_000}).status_code == 200


def test_page_size_depth_and_entries_have_their_limits(tmp_path: Path) -> None:
    with limited(tmp_path, max_page_size=2, max_json_depth=8, max_operations=2, max_json_bytes=4096) as client:
        for number in range(3):
            assert client.post(f"/v1/namespace/n{number}/create", json={}).status_code == 200
        page = client.get("/v1/namespace/%24/list", params={"limit": 1000}).json()
        assert (page["namespaces"], bool(page["page_token"])) == (["n0", "n1"], True)
        deep: Any = {}
        for _ in range(9):
            deep = {"a": deep}
        assert refusal(client.post("/v1/table/t/query", json=deep)) == (400, 13)
        entry = {"declare_table": {"id": ["t"]}}
        batch = client.post("/v1/table/batch-commit", json={"operations": [entry] * 3})
        assert refusal(batch) == (400, 13)
        assert refusal(client.post("/v1/table/t/query", content=json.dumps({"filter": "x" * 5000}))) == (413, 13)


def test_queries_beyond_the_memory_for_queries_are_429_until_others_have_ended(tmp_path: Path) -> None:
    with limited(tmp_path, query_memory_bytes=128 << 20) as client, ExitStack() as stack:
        fill(client)
        window = 4
        unread = [
            stack.enter_context(client.stream("POST", "/v1/table/t/query", json={**ALL, "offset": number}))
            for number in range(window)
        ]
        assert [response.status_code for response in unread] == [200] * window
        refused = client.post("/v1/table/t/query", json=ALL)
        assert refusal(refused) == (429, 21) and refused.headers["retry-after"] == "1"
        ordered = {**ALL, "order_by": [{"column_name": "id"}]}
        assert refusal(client.post("/v1/table/t/query", json=ordered)) == (429, 21)
        assert client.post("/v1/table/t/query", json={"vector": None, "k": 10}).status_code == 200
        assert load(client, "bytes of queries running") == 128 << 20
        for response in unread:
            response.close()
        eventually(lambda: load(client, "bytes of queries running") == 0)
        assert client.post("/v1/table/t/query", json=ordered).status_code == 200
        eventually(lambda: load(client, "bytes of queries running") == 0)


def load(client: httpx.Client, what: str) -> float:
    """Return a number of the process that answers."""
    lines = client.get("/metrics").text.splitlines()
    return float(next(line for line in lines if f'what="{what}"' in line).rpartition(" ")[2])


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"a":' * 100_000])
def test_body_nested_without_end_is_400(tmp_path: Path, body: bytes) -> None:
    with limited(tmp_path) as client:
        assert refusal(client.post("/v1/table/t/query", content=body)) == (400, 13)


@pytest.mark.parametrize("random_bytes", [0, 2 << 20])  # in memory when it is read, and read as it comes
def test_body_that_unpacks_to_much_more_than_it_is_is_400(tmp_path: Path, random_bytes: int) -> None:
    rows = pa.record_batch({"noise": [os.urandom(random_bytes)], "zeros": [bytes(300 << 20)]})
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(rows)
    assert len(sink.getvalue()) < random_bytes + (100 << 10)
    with limited(tmp_path) as client:
        response = client.post("/v1/table/t/create", content=sink.getvalue())
        assert refusal(response) == (400, 13) and "less compression" in response.text
        packed = io.BytesIO()
        with pa.ipc.new_stream(packed, ROWS.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
            writer.write_table(ROWS.slice(0, 20_000))
        assert client.post("/v1/table/t/create", content=packed.getvalue()).status_code == 200


def test_sql_that_would_fill_the_memory_is_400_and_the_server_goes_on(tmp_path: Path) -> None:
    with limited(tmp_path) as client:
        fill(client, 10)
        text = "array_repeat(1, 100000000000)"
        query = {"columns": {"column_aliases": {"x": text}}, **ALL}
        assert refusal(client.post("/v1/table/t/query", json=query)) == (400, 13)
        added = {"new_columns": [{"name": "n", "expression": "id" + " + 1" * 20_000}]}
        assert refusal(client.post("/v1/table/t/add_columns", json=added)) == (400, 13)
        assert client.post("/v1/table/t/count_rows", json={}).json() == 10
