"""Requests that break the rules below the specification: HTTP, percent-encoding, JSON, Arrow."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec
import pyarrow as pa
import pytest

from tests.fuzz.conftest import ROWS
from tests.services.sockets import RawResponse, exchange
from tests.services.wire import Wire, check, check_error, stream
from tiltyard.bootstrap import register_operations
from tiltyard.model.operations import bound_operations
from tiltyard.model.spec import Operation, Shape, models

pytestmark = pytest.mark.extended

register_operations()
SERVED = {name: facts for name, (facts, served) in bound_operations().items() if served is not None}
ARROW_IN = [name for name, facts in SERVED.items() if facts.request_shape is Shape.ARROW]
JSON_IN = sorted(
    name for name, facts in SERVED.items() if facts.request is not None and facts.request_shape is Shape.OBJECT
)
WRONG = [None, True, -1, 1.5, 1 << 70, "", "\x00", "x" * 10_000, [], [None], [[]], {}, {"": None}]


def url_of(facts: Operation, identifier: str = "t") -> str:
    path = facts.path.replace("{id}", "n" if facts.object == "namespace" else identifier)
    return path.replace("{index_name}", "none").replace("{tag}", "v")


def refused(response: httpx.Response, *statuses: int) -> None:
    assert response.status_code in statuses, f"{response.request.method} {response.request.url}: {response.text}"
    check_error(response)


@pytest.fixture(autouse=True)
def _still_there(server: Any, furnished: Wire) -> Iterator[None]:
    """Check that the server still responds, and that the table is unchanged."""
    yield
    assert furnished.http.get("/health/live").status_code == 200
    assert furnished.table(["n", "t"], "count_rows").text == str(ROWS.num_rows)


# Paths, queries and methods.

BAD_SEGMENTS = ["%", "%z", "%zz", "%f", "%FF", "%C0%AF", "%ED%A0%80", "%00", "a%0D%0Ab", "%2E%2E", ".%2E", "x" * 300]


@pytest.mark.parametrize("segment", BAD_SEGMENTS)
@pytest.mark.parametrize("route", ["/v1/namespace/{}/exists", "/v1/table/{}/describe", "/v1/table/n%24{}/drop"])
def test_path_with_a_segment_that_is_no_name_is_refused(server: Any, route: str, segment: str) -> None:
    response = exchange(server.url, f"POST {route.format(segment)} HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")
    assert response.status in (400, 404), response
    response.check_error()


@pytest.mark.parametrize(
    "query",
    ["%", "=", "&&&", "limit", "limit=", "limit=1&limit=2", "unknown=1&unknown=2", "limit=%FF", "delimiter=", "a[]=1",
     "delimiter=%00", "page_token=%00", "&".join(f"k{n}=v" for n in range(2000)), "limit=" + "9" * 400],
)  # fmt: skip
@pytest.mark.parametrize("route", ["/v1/namespace/n/list", "/v1/table", "/v1/namespace/n/table/list"])
def test_query_string_of_any_kind_is_answered(server: Any, route: str, query: str) -> None:
    response = exchange(server.url, f"GET {route}?{query} HTTP/1.1\r\nHost: a\r\n\r\n")
    assert response.status in (200, 400), response
    if response.status != 200:
        response.check_error()


def test_unknown_query_parameters_are_left_alone(furnished: Wire) -> None:
    assert furnished.namespace(["n"], "exists", query={"surely_unknown": "1", "id": "other"}).status_code == 200


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "HEAD"])
@pytest.mark.parametrize("path", ["/v1/table/t/describe", "/v1/table", "/v1/namespace/n/list"])
def test_method_that_a_path_has_not_is_405(furnished: Wire, method: str, path: str) -> None:
    response = furnished.http.request(method, path)
    if method == "HEAD":
        assert response.status_code == 405 and not response.content
        assert response.headers["x-request-id"]
    else:
        refused(response, 405)
    assert response.headers["allow"] in ("GET", "POST")


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "OPTIONS"])
@pytest.mark.parametrize("path", ["/", "/v1", "/v1/", "/v2/table", "/v1/table/t", "/v1/table/t/x/y/z", "/health", "//"])
def test_unknown_path_is_refused_in_the_one_shape(furnished: Wire, method: str, path: str) -> None:
    response = furnished.http.request(method, path)
    assert response.status_code in (404, 405, 406), response.text
    assert (method == "HEAD") == (not response.content)
    if response.content:
        check_error(response)


# HTTP itself.


def post(path: str, headers: str, body: bytes = b"") -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: a\r\n{headers}\r\n".encode("latin-1") + body


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x00\x01\x02\x03\r\n\r\n",
        b"GET / SPDY/9\r\n\r\n",
        b"GET\r\n\r\n",
        b"BREW /v1/table HTTP/1.1\r\nHost: a\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # a TLS client hello
        post("/v1/table/t/describe", "Content-Length: -1\r\n"),
        post("/v1/table/t/describe", "Content-Length: many\r\n"),
        post("/v1/table/t/describe", "Content-Length: 2\r\nContent-Length: 3\r\n", b"{}}"),
        post("/v1/table/t/describe", "Content-Length: " + "9" * 30 + "\r\n", b"{}"),
        post("/v1/table/t/describe", "Transfer-Encoding: chunked\r\n", b"zz\r\n{}\r\n0\r\n\r\n"),
        post("/v1/table/t/describe", "Transfer-Encoding: chunked\r\n", b"FFFFFFFFFFFFFFFFFF\r\n{}"),
        post("/v1/table/t/describe", "Transfer-Encoding: gzip, nonsense\r\nContent-Length: 2\r\n", b"{}"),
        post("/v1/table/t/describe", "Bad Header\r\nContent-Length: 0\r\n"),
        post("/v1/table/t/describe", "Content-Length: 0\r\nX: " + "y" * 2_000_000 + "\r\n"),
        post("/v1/table/t/describe", "".join(f"X-{n}: y\r\n" for n in range(200_000)) + "Content-Length: 0\r\n"),
        b"POST /v1/table/" + b"t" * 2_000_000 + b"/describe HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
    ],
    ids=range(16),
)
def test_http_that_is_broken_never_gets_a_server_error(server: Any, request_bytes: bytes) -> None:
    response = exchange(server.url, request_bytes, close_after=True)
    assert response.status in (0, 400, 406, 413, 431), response
    if response.status:
        response.check_error()


def test_header_values_that_are_no_text_are_left_alone(server: Any) -> None:
    headers = "x-request-id: \xff\xfe\r\nx-lance-ctx-e: \xff\r\nx-api-key: \xff\r\nContent-Length: 0\r\n"
    response = exchange(server.url, post("/v1/namespace/n/exists", headers))
    assert response.status in (200, 400)
    assert response.headers["x-request-id"].isascii()


# JSON.


@pytest.mark.parametrize("name", JSON_IN)
def test_operation_given_json_of_the_wrong_kind_is_400(furnished: Wire, name: str) -> None:
    url = url_of(SERVED[name])
    for body in (b"{", b"[]", b"1", b'"x"', b"true", b"\xff", b"{}{}", b"nul", b"[" * 50_000, b'{"a":' * 50_000):
        refused(furnished.http.post(url, content=body), 400)


@pytest.mark.parametrize("name", JSON_IN)
def test_operation_given_null_for_every_field_is_answered(furnished: Wire, name: str) -> None:
    fields = msgspec.structs.fields(getattr(models, SERVED[name].request or ""))
    for identifier in ("t", "d", "none"):
        check(furnished.http.post(url_of(SERVED[name], identifier), json={field.encode_name: None for field in fields}))


@pytest.mark.parametrize("name", JSON_IN)
def test_operation_given_any_type_in_any_field_is_answered(furnished: Wire, name: str) -> None:
    url = url_of(SERVED[name])
    for field in msgspec.structs.fields(getattr(models, SERVED[name].request or "")):
        for value in WRONG:
            body = {**_required(getattr(models, SERVED[name].request or "")), field.encode_name: value}
            check(furnished.http.post(url, json=body))


def _required(model: Any) -> dict[str, Any]:
    """Something for each field that a model cannot do without."""
    samples = {"new_table_name": "t9", "location": "/nowhere", "column": "id", "index_type": "BTREE"}
    samples |= {"k": 1, "vector": {"single_vector": [1, 2]}, "predicate": "id < 0", "updates": [["id", "id"]]}
    samples |= {"version": 1, "tag": "v", "name": "b"}
    return {
        field.encode_name: samples.get(field.encode_name, [])
        for field in msgspec.structs.fields(model)
        if field.required
    }


@pytest.mark.parametrize(
    "action, body",
    [
        ("update", {"updates": [["id", "id"]] * 10_000}),
        ("drop_columns", {"columns": [f"c{n}" for n in range(10_000)]}),
        ("query", {"k": 1, "vector": {"single_vector": [0.5] * 10_000}}),
        ("query", {"k": 1, "vector": {"multi_vector": [[0.5, 0.5]] * 1000}}),
        ("query", {"k": 1, "vector": {"single_vector": []}, "filter": " AND ".join(["id > 0"] * 2000)}),
        ("query", {"k": 1, "vector": {"single_vector": []}, "filter": "(" * 2000 + "id > 0" + ")" * 2000}),
        ("query", {"k": 1 << 62, "vector": {"single_vector": [1.0, 1.0]}}),
        ("query", {"k": 1, "vector": {"single_vector": [1e300, -1e300]}}),
        ("query", {"k": 1, "offset": 1 << 62, "vector": {"single_vector": [1.0, 1.0]}}),
        ("delete", {"predicate": "id IN (" + ",".join(map(str, range(100, 10_100))) + ")"}),
        ("count_rows", {"predicate": "\x00"}),
        ("count_rows", {"predicate": "id = '" + "'" * 1001}),
        ("count_rows", {"predicate": "1; DROP TABLE t"}),
        ("count_rows", {"predicate": "sleep(100)"}),
        ("version/delete", {"ranges": [{"start_version": n, "end_version": n + 1} for n in range(5, 10_005)]}),
        ("alter_columns", {"alterations": [{"path": "nothing.at.all", "rename": "x"}]}),
        ("add_columns", {"new_columns": [{"name": f"c{n}", "expression": "id"} for n in range(1000)] * 2}),
    ],
)
def test_operation_given_very_much_is_answered(furnished: Wire, action: str, body: Any) -> None:
    check(furnished.http.post(f"/v1/table/t/{action}", json=body))


def test_names_by_the_thousand_are_refused_or_answered(furnished: Wire) -> None:
    deep = "$".join("a" * 2000)
    assert furnished.http.post(f"/v1/namespace/{deep}/exists", json={}).status_code in (400, 404, 414)
    check(furnished.http.post("/v1/table/t/describe", json={"id": ["a"] * 10_000}))
    properties = {f"k{n}": "v" * 100 for n in range(10_000)}
    check(furnished.http.post("/v1/namespace/many/create", json={"properties": properties, "mode": "exist_ok"}))


def test_json_with_escapes_of_half_characters_is_400(furnished: Wire) -> None:
    body = json.dumps({"properties": {"k": "\ud800"}}).encode()
    refused(furnished.http.post("/v1/namespace/half/create", content=body), 400)


# Arrow.


@pytest.mark.parametrize("name", ARROW_IN)
def test_arrow_cut_anywhere_is_400(furnished: Wire, name: str) -> None:
    whole = stream(ROWS)
    url = url_of(SERVED[name], "cut" if name == "CreateTable" else "t")
    for end in (*range(1, len(whole), 50), len(whole) - 1):
        refused(furnished.http.post(url, content=whole[:end], params={"on": "id"}), 400)
    assert furnished.table(["t"], "count_rows").text == "40"
    assert furnished.table(["cut"], "exists").status_code == 404


@pytest.mark.parametrize("name", ARROW_IN)
def test_arrow_with_a_byte_changed_anywhere_is_answered(furnished: Wire, name: str) -> None:
    whole = stream(ROWS)
    for at in range(0, len(whole), 50):
        body = whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :]
        url = url_of(SERVED[name], "changed")
        check(furnished.http.post(url, content=body, params={"on": "id", "mode": "overwrite"}))


ODD_TABLES = {
    "no columns": pa.table({}),
    "twice one name": pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]),
    "empty name": pa.table({"": [1]}),
    "dotted name": pa.table({"a.b": [1]}),
    "null type": pa.table({"a": pa.nulls(1)}),
    "union": pa.table({"a": pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])])}),
    "duration": pa.table({"a": pa.array([1], pa.duration("s"))}),
    "interval": pa.table({"a": pa.array([(1, 2, 3)], pa.month_day_nano_interval())}),
    "run ends": pa.table({"a": pa.RunEndEncodedArray.from_arrays(pa.array([1], pa.int32()), pa.array([1]))}),
    "views": pa.table({"a": pa.array(["x"], pa.string_view())}),
    "map": pa.table({"a": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64()))}),
    "dictionary": pa.table({"a": pa.array(["x"]).dictionary_encode()}),
    "decimals, anywhere": pa.table({"a": [1], "b" * 9: pa.array([1], pa.decimal128(20, 2))}),
    "decimal256": pa.table({"a": pa.array([1], pa.decimal256(50, 2))}),
    "reserved name": pa.table({"_rowid": pa.array([1], pa.uint64())}),
    "deep": pa.table({"a": pa.array([None], pa.list_(pa.struct([("b", pa.list_(pa.struct([("c", pa.int8())])))])))}),
    "size zero list": pa.table({"a": pa.array([[]], pa.list_(pa.float32(), 0))}),
}


@pytest.mark.parametrize("name", ARROW_IN)
@pytest.mark.parametrize("odd", ODD_TABLES)
def test_arrow_of_odd_types_is_taken_or_refused(furnished: Wire, name: str, odd: str) -> None:
    identifier = "odd" if name == "CreateTable" else "t"
    query = {"on": "id", "mode": "overwrite" if name == "CreateTable" else "append"}
    response = furnished.http.post(url_of(SERVED[name], identifier), content=stream(ODD_TABLES[odd]), params=query)
    check(response)
    if name == "CreateTable" and response.status_code == 200:
        assert furnished.table(["odd"], "count_rows").text == str(ODD_TABLES[odd].num_rows)
        assert furnished.table(["odd"], "describe", query={"load_detailed_metadata": "true"}).status_code == 200


def broken_offsets(rows: int) -> bytes:
    """Texts of which the second last claims to begin far outside its buffer."""
    texts = pa.array(["x" * 100] * rows)
    offsets = bytearray(texts.buffers()[1].to_pybytes())
    at = 4 * (rows - 1)
    offsets[at : at + 4] = (1 << 30).to_bytes(4, "little")
    array = pa.Array.from_buffers(pa.string(), rows, [None, pa.py_buffer(offsets), texts.buffers()[2]])
    return stream(pa.table({"text": array}))


@pytest.mark.parametrize("rows", [4, 40_000], ids=["in memory", "streamed"])
@pytest.mark.parametrize("name", ARROW_IN)
def test_arrow_whose_offsets_lead_nowhere_is_400(furnished: Wire, name: str, rows: int) -> None:
    identifier = "lost" if name == "CreateTable" else "t"
    url = url_of(SERVED[name], identifier)
    refused(furnished.http.post(url, content=broken_offsets(rows), params={"on": "text"}), 400)
    assert furnished.table(["lost"], "exists").status_code == 404


def test_answer_to_a_broken_request_is_whole(server: Any) -> None:
    """An error answers before the body is read; the connection says what becomes of it."""
    response: RawResponse = exchange(server.url, post("/v1/nowhere", "Content-Length: 10\r\n", b"0123456789"))
    assert response.status == 406 and urlsplit(server.url).port
    response.check_error()
