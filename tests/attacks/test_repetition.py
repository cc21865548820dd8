"""Requests that repeat something as often as a body has room for it, and clients that leave before the answer."""

from __future__ import annotations

import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx
import pyarrow as pa
import pytest

from tests.attacks.watchdog import attacked_server, cpu_seconds
from tests.services.wire import stream

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.services.server import ServerProcess

ARROW = {"content-type": "application/vnd.apache.arrow.stream"}
ROWS = 60_000
WIDTH = 64
VECTOR = [0.5] * WIDTH


@pytest.fixture(scope="module")
def http(victim: ServerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=victim.url, timeout=240) as client:
        fill(client)
        yield client


def fill(client: httpx.Client) -> None:
    """A table `t` with vectors, words and a full-text index."""
    vectors = pa.FixedSizeListArray.from_arrays(
        pa.array([row % 97 for row in range(ROWS * WIDTH)], pa.float32()), WIDTH
    )
    rows = pa.table({"id": range(ROWS), "v": vectors, "t": [f"word{row % 500} and more" for row in range(ROWS)]})
    assert client.post("/v1/table/t/create", content=stream(rows), headers=ARROW).status_code == 200
    response = client.post("/v1/table/t/create_index", json={"column": "t", "index_type": "FTS"})
    assert response.status_code == 200, response.text
    while client.post("/v1/table/t/index/t_idx/stats", json={}).json().get("num_indexed_rows") != ROWS:
        time.sleep(0.05)


def query(**fields: Any) -> dict[str, Any]:
    return {"vector": {"single_vector": []}, "k": 1, **fields}


def full_text(**fields: Any) -> dict[str, Any]:
    return query(full_text_query={"structured_query": {"query": fields}})


def clauses(number: int, **fields: Any) -> list[dict[str, Any]]:
    return [{"match": {"terms": f"word{at}", "column": "t", **fields}} for at in range(number)]


def test_query_that_repeats_a_part_too_often_is_refused_before_it_costs_anything(
    victim: ServerProcess, http: httpx.Client
) -> None:
    boolean: dict[str, Any] = {"must": [], "must_not": []}
    refused = {
        "vectors in 58 KB": query(vector={"multi_vector": [VECTOR[:1]] * 10_000}),
        "vectors in 15 MB": query(vector={"multi_vector": [[1]] * 2_000_000}),
        "columns": query(columns={"column_names": ["id"] * 200_000}),
        "expressions": query(columns={"column_aliases": {f"c{at}": "id + 1" for at in range(100_000)}}),
        "orders": query(order_by=[{"column_name": "id"}] * 10_000),
        "clauses": full_text(boolean={**boolean, "should": clauses(9_000)}),
        "clauses in clauses": full_text(
            boolean={**boolean, "should": [{"boolean": {**boolean, "should": clauses(1_000)}}] * 20}
        ),
        "matches": full_text(multi_match={"match_queries": [{"terms": "word1", "column": "t"}] * 9_000}),
        "terms": full_text(match={"terms": "word1 " * 100_000, "column": "t"}),
        "words of a string": query(full_text_query={"string_query": {"query": "word1 " * 100_000}}),
        "a phrase": full_text(phrase={"terms": "word1 " * 100_000, "column": "t"}),
        "expansions": full_text(match={"terms": "word", "column": "t", "fuzziness": 2, "max_expansions": 1 << 30}),
        "values": query(filter=f"id IN ({','.join(map(str, range(1_000_000)))})"),
        "context": query(context={f"key{at}": "" for at in range(100_000)}),
    }
    before = cpu_seconds(victim.process.pid)
    for case, body in refused.items():
        response = http.post("/v1/table/t/query", json=body)
        assert (response.status_code, response.json()["code"]) == (400, 13), (case, response.text)
    elsewhere = {
        "/v1/table/t/update": {"updates": [["id", "id"]] * 100_000},
        "/v1/table/t/count_rows": {"predicate": f"id IN ({','.join(map(str, range(1_000_000)))})"},
        "/v1/table/t/drop_columns": {"columns": ["id"] * 100_000},
        "/v1/namespace/n/create": {"properties": {f"key{at}": "" for at in range(100_000)}},
        "/v1/table/t/explain_plan": {"query": refused["vectors in 15 MB"]},
        "/v1/table/t/analyze_plan": {"query": refused["orders"]},
    }
    for path, body in elsewhere.items():
        response = http.post(path, json=body)
        assert (response.status_code, response.json()["code"]) == (400, 13), (path, response.text)
    assert cpu_seconds(victim.process.pid) - before < 20  # a few seconds to read 60 MB of JSON; a vector costs 1 ms


def test_query_with_modest_repetitions_is_answered(http: httpx.Client) -> None:
    boolean: dict[str, Any] = {"must": [], "must_not": [], "should": clauses(100)}
    several = {
        "vectors": query(vector={"multi_vector": [VECTOR] * 50}),
        "columns": query(columns={"column_aliases": {f"c{at}": "id + 1" for at in range(500)}}),
        "clauses": full_text(boolean=boolean),
        "fuzzy": full_text(match={"terms": "word1 word2", "column": "t", "fuzziness": 1}),
        "values": query(filter=f"id IN ({','.join(map(str, range(40_000)))})"),
    }
    for case, body in several.items():
        response = http.post("/v1/table/t/query", json=body)
        assert response.status_code == 200, (case, response.text)


@pytest.mark.extended
def test_queries_of_many_numbers_at_once_hold_those_of_a_few_of_them(tmp_path: Path) -> None:
    """A number takes 32 bytes for 2 that are sent, until its query has run."""
    width, number, at_once = 8_000, 250, 12
    vectors = pa.FixedSizeListArray.from_arrays(pa.array([0.5] * width, pa.float32()), width)
    body = json.dumps(query(vector={"multi_vector": [[1] * width] * number}), separators=(",", ":"))
    environ = {"TILTYARD_MAX_JSON_BYTES": str(4 << 20)}
    with attacked_server(tmp_path, environ=environ) as server, httpx.Client(base_url=server.url, timeout=240) as client:
        rows = stream(pa.table({"v": vectors}))
        assert client.post("/v1/table/t/create", content=rows, headers=ARROW).status_code == 200
        with ThreadPoolExecutor(at_once) as pool:
            responses = list(pool.map(lambda _: client.post("/v1/table/t/query", content=body), range(at_once)))
        assert {response.status_code for response in responses} == {200, 429}
        assert client.post("/v1/table/t/query", content=body).status_code == 200


def test_query_parameters_that_repeat_are_refused(http: httpx.Client) -> None:
    for parameters in ("&".join(f"p{at}=1" for at in range(5_000)), "&".join(["on=id"] * 10_000)):
        response = http.post(f"/v1/table/t/merge_insert?{parameters}", content=b"", headers=ARROW)
        assert 400 <= response.status_code < 500, response.text


@pytest.mark.extended
def test_query_whose_client_has_left_stops_between_its_parts(tmp_path: Path) -> None:
    with attacked_server(tmp_path, environ={"TILTYARD_MAX_VECTORS": "3000"}) as server:
        with httpx.Client(base_url=server.url, timeout=240) as client:
            fill(client)
        vectors = query(vector={"multi_vector": [VECTOR] * 3_000}, vector_column="v")
        body = json.dumps(vectors).encode()
        cpu_before = cpu_seconds(server.process.pid)
        for _ in range(10):  # more than threads: some of them wait for one
            leave(server.url, body)
        quiet_since(server)
        spent = cpu_seconds(server.process.pid) - cpu_before
        assert spent < 40, f"{spent} s were spent on queries of clients that had left"  # minutes, each of them


def leave(url: str, body: bytes) -> None:
    """Send a query, and close the connection once the server is at work on it."""
    address = urlsplit(url)
    with socket.create_connection((address.hostname or "", address.port or 0)) as connection:
        head = f"POST /v1/table/t/query HTTP/1.1\r\nhost: {address.netloc}\r\ncontent-type: application/json\r\n"
        connection.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        connection.settimeout(0.2)
        with pytest.raises(TimeoutError):
            connection.recv(1)


def quiet_since(server: ServerProcess) -> None:
    """Return once the server does next to nothing for a second."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        before = cpu_seconds(server.process.pid)
        time.sleep(1)
        if cpu_seconds(server.process.pid) - before < 0.1:
            return
    raise AssertionError("The server still works for clients that have left.")
