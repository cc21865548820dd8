"""What lancedb 0.41 sends and 0.40 does not, by plain HTTP: queries, blobs, lists, tables, functions."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import httpx
import lance
import numpy as np
import pyarrow as pa
import pytest

from tests.services.server import ServerProcess

pytestmark = pytest.mark.parametrize("server", ["embedded"], indirect=True)

STREAM = {"content-type": "application/vnd.apache.arrow.stream"}
DATABASE = {"x-lancedb-database": "tests"}
VECTOR_QUERY = {
    "prefilter": True,
    "k": 3,
    "version": None,
    "lower_bound": None,
    "upper_bound": None,
    "ef": None,
    "refine_factor": None,
}
"""What lancedb 0.41 sends with each vector query."""


def to_stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def rows_of(response: httpx.Response) -> pa.Table:
    assert response.status_code == 200, response.text
    return pa.ipc.open_file(response.content).read_all()


class Wire:
    """A database as lancedb 0.41 calls it."""

    def __init__(self, url: str) -> None:
        self.http = httpx.Client(base_url=url, timeout=60, headers=DATABASE)

    def post(self, path: str, body: Any = None, **options: Any) -> httpx.Response:
        return self.http.post(path, **({} if body is None else {"json": body}), **options)

    def create(self, name: str, table: pa.Table) -> None:
        response = self.http.post(f"/v1/table/{name}/create/", content=to_stream(table), headers=STREAM)
        assert response.status_code == 200, response.text

    def query(self, name: str, **fields: Any) -> httpx.Response:
        return self.post(f"/v1/table/{name}/query/", {"k": 10, "vector": []} | fields)


@pytest.fixture(scope="module")
def wire(server: ServerProcess) -> Any:
    client = Wire(server.url)
    yield client
    client.http.close()


@pytest.fixture(scope="module")
def vectors(wire: Wire) -> str:
    """A table of vectors with an index of several partitions."""
    values = np.random.default_rng(3).random((1_000, 8), dtype=np.float32)
    column = pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), 8)
    wire.create("wire_vectors", pa.table({"id": range(1_000), "vec": column}))
    body = {"column": "vec", "index_type": "IVF_FLAT", "metric_type": "l2", "num_partitions": 8}
    job = wire.post("/v1/table/wire_vectors/create_index/", body).json()["job_id"]
    give_up_at = time.monotonic() + 60
    while wire.post("/v1/jobs/describe", {"job_id": job}).json()["job_state"] != "DONE":
        assert time.monotonic() < give_up_at
        time.sleep(0.05)
    return "wire_vectors"


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"search_effort": 0},
        {"search_effort": 1.0, "nprobes": 1},
        {"search_effort": 0.75, "nprobes": 2, "minimum_nprobes": 1, "maximum_nprobes": 0},
        {"nprobes": 5},
        {"minimum_nprobes": 2},
        {"maximum_nprobes": 0},
        {"use_rte": False},
    ],
)
def test_query_with_probes_as_they_are_set_or_left_out_answers(
    wire: Wire, vectors: str, fields: dict[str, Any]
) -> None:
    body = VECTOR_QUERY | {"vector": [0.5] * 8} | fields
    response = wire.post(f"/v1/table/{vectors}/query/", body)
    assert rows_of(response).num_rows == 3
    assert response.headers["x-lancedb-version"] == str(
        wire.post(f"/v1/table/{vectors}/describe/", {}).json()["version"]
    )
    for plan in ("explain_plan", "analyze_plan"):
        asked = {"query": body, "verbose": False} if plan == "explain_plan" else body
        assert wire.post(f"/v1/table/{vectors}/{plan}/", asked).status_code == 200


def test_search_effort_decides_how_many_partitions_are_searched(wire: Wire, vectors: str) -> None:
    def plan(**fields: Any) -> str:
        # Lance computes the column, so that no index in memory answers.
        body = VECTOR_QUERY | {"vector": [0.5] * 8, "columns": {"next": "id + 1"}} | fields
        return str(wire.post(f"/v1/table/{vectors}/analyze_plan/", body).json())

    assert "partitions_searched=1," in plan(search_effort=0)
    assert "partitions_searched=8," in plan(search_effort=1, nprobes=1)
    assert "partitions_searched=2," in plan(search_effort=1, maximum_nprobes=2)


@pytest.mark.parametrize(
    ("fields", "status", "said"),
    [
        ({"search_effort": 1.5}, 400, "search_effort is a number from 0 to 1"),
        ({"search_effort": "much"}, 400, "search_effort"),
        ({"nprobes": 0}, 400, "nprobes is at least 1"),
        ({"use_rte": True}, 400, "no RTE specification"),
        ({"novelty": 1}, 501, "'novelty'"),
    ],
)
def test_query_with_a_field_that_cannot_hold_is_refused_by_its_name(
    wire: Wire, vectors: str, fields: dict[str, Any], status: int, said: str
) -> None:
    response = wire.post(f"/v1/table/{vectors}/query/", VECTOR_QUERY | {"vector": [0.5] * 8} | fields)
    assert (response.status_code, said in response.text) == (status, True), response.text


def test_columns_by_aliases_come_in_the_order_of_the_request(wire: Wire, vectors: str) -> None:
    found = rows_of(wire.query(vectors, columns={"z": "id", "a": "id + 1", "m": "id * 2"}, filter="id = 3"))
    assert found.to_pydict() == {"z": [3], "a": [4], "m": [6]}
    assert found.column_names == ["z", "a", "m"]


def test_query_answers_the_version_that_it_has_read(wire: Wire, fresh: Callable[[str], str]) -> None:
    name = fresh("wire")
    wire.create(name, pa.table({"id": [1]}))
    inserted = wire.post(f"/v1/table/{name}/insert/", content=to_stream(pa.table({"id": [2]})), headers=STREAM)
    assert inserted.status_code == 200
    seen = [wire.query(name, version=version).headers["x-lancedb-version"] for version in (None, 1)]
    assert seen == ["2", "1"]
    large = pa.table({"id": range(200_000)})
    wire.post(f"/v1/table/{name}/insert/", content=to_stream(large), headers=STREAM)
    assert wire.query(name, k=2**62).headers["x-lancedb-version"] == "3"  # streamed


def test_merge_with_use_rte_is_refused_only_if_true(wire: Wire, fresh: Callable[[str], str]) -> None:
    name = fresh("wire")
    wire.create(name, pa.table({"id": [1], "n": [1]}))

    def merge(**query: Any) -> httpx.Response:
        parameters = {"on": "id", "when_matched_update_all": True, "when_not_matched_insert_all": True} | query
        body = to_stream(pa.table({"id": [1, 2], "n": [5, 6]}))
        return wire.post(f"/v1/table/{name}/merge_insert/", content=body, headers=STREAM, params=parameters)

    for word in ("use_rte", "use_lsm"):
        assert merge(**{word: "true"}).status_code == 400
        assert merge(**{word: "false"}).status_code == 200
    assert rows_of(wire.query(name)).num_rows == 2


RANGED = pa.struct(
    [
        pa.field("data", pa.large_binary()),
        pa.field("uri", pa.utf8()),
        pa.field("position", pa.uint64()),
        pa.field("size", pa.uint64()),
    ]
)
"""A blob as lancedb 0.41 writes it."""
PLAIN = pa.struct(list(RANGED)[:2])
"""A blob as lancedb 0.40 writes it."""
BLOB = {b"ARROW:extension:name": b"lance.blob.v2"}


def blobs(kind: pa.StructType, ids: list[int], values: list[dict[str, Any] | None]) -> pa.Table:
    """Return rows with a blob each, as a client writes them."""
    names = [field.name for field in kind]
    rows = [None if value is None else {name: value.get(name) for name in names} for value in values]
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("b", kind, metadata=BLOB)])
    return pa.table([pa.array(ids, pa.int64()), pa.array(rows, kind)], schema=schema)


def write(wire: Wire, path: str, rows: pa.Table) -> httpx.Response:
    return wire.http.post(f"/v1/table/{path}", content=to_stream(rows), headers=STREAM)


MERGE = "merge_insert/?on=id&when_matched_update_all=true&when_not_matched_insert_all=true"


@pytest.mark.parametrize(("created", "written"), [(RANGED, RANGED), (RANGED, PLAIN), (PLAIN, RANGED), (PLAIN, PLAIN)])
def test_blobs_of_two_and_of_four_fields_are_written_to_tables_of_either(
    wire: Wire, fresh: Callable[[str], str], created: pa.StructType, written: pa.StructType
) -> None:
    name = fresh("wire")
    assert write(wire, f"{name}/create/", blobs(created, [1, 2], [{"data": b"one"}, None])).status_code == 200
    shown = wire.post(f"/v1/table/{name}/describe/", {}).json()["schema"]["fields"][1]["type"]["fields"]
    assert [field["name"] for field in shown] == [field.name for field in created]
    assert write(wire, f"{name}/insert/", blobs(written, [3], [{"data": b"three"}])).status_code == 200
    merged = write(wire, f"{name}/{MERGE}", blobs(written, [2, 4, 5], [{"data": b"two"}, {"data": b"x" * 9}, None]))
    assert merged.status_code == 200, merged.text
    found = rows_of(wire.query(name, columns=["id"], with_row_id=True)).sort_by("id")
    fetched = wire.post(f"/v1/table/{name}/fetch_blobs/", {"column": "b", "row_ids": found["_rowid"].to_pylist()})
    assert rows_of(fetched)["b"].to_pylist() == [b"one", b"two", b"three", b"x" * 9, None]


def test_ranges_of_blobs_that_may_not_be_read_or_have_no_place_are_refused(
    wire: Wire, fresh: Callable[[str], str]
) -> None:
    name, plain = fresh("wire"), fresh("wire")
    assert write(wire, f"{name}/create/", blobs(RANGED, [1], [{"data": b"one"}])).status_code == 200
    assert write(wire, f"{plain}/create/", blobs(PLAIN, [1], [{"data": b"one"}])).status_code == 200
    outside = [{"uri": "file:///etc/hostname", "position": 0, "size": 3}]
    for path in (f"{name}/insert/", f"{name}/{MERGE}", f"{name}_2/create/"):
        refused = write(wire, path, blobs(RANGED, [2], outside))
        assert (refused.status_code, refused.json()["code"]) == (400, 13), refused.text
    for path in (f"{plain}/insert/", f"{plain}/{MERGE}"):
        refused = write(wire, path, blobs(RANGED, [2], [{"data": b"two", "position": 0, "size": 1}]))
        assert refused.status_code == 400
    assert wire.post(f"/v1/table/{name}/count_rows/", {}).json() == 1
    assert wire.post(f"/v1/table/{plain}/count_rows/", {}).json() == 1


@pytest.fixture(scope="module")
def described(wire: Wire) -> dict[str, Any]:
    """A table of blobs: what lancedb 0.41 asks first for `fetch_blob_files`, and its location and commit."""
    values: list[dict[str, Any] | None] = [{"data": b"0123456789"}, None, {"data": b""}, {"data": bytes(100_000)}]
    assert write(wire, "wire_blobs/create/", blobs(RANGED, [1, 2, 3, 4], values)).status_code == 200
    ids = rows_of(wire.query("wire_blobs", columns=["id"], with_row_id=True))["_rowid"].to_pylist()
    condition = f"_rowid IN ({', '.join(map(str, sorted(ids)))})"
    answer = wire.query("wire_blobs", filter=condition, columns=["b"], with_row_id=True, use_rte=False, version=None)
    location = wire.post("/v1/table/wire_blobs/describe/", {}).json()["location"]
    stamp = lance.dataset(location).get_version()["timestamp"]
    micros = int(stamp.timestamp()) * 1_000_000 + stamp.microsecond
    return {"ids": ids, "answer": answer, "location": location, "micros": micros}


def test_descriptors_of_blobs_have_kind_and_size_and_name_the_version(described: dict[str, Any]) -> None:
    answer = described["answer"]
    found = rows_of(answer)
    kind = found.schema.field("b").type
    assert (kind.field("kind").type, kind.field("size").type) == (pa.uint8(), pa.uint64())
    sizes = {row["_rowid"]: row["b"] and row["b"]["size"] for row in found.to_pylist()}
    assert sizes == dict(zip(described["ids"], [10, None, 0, 100_000], strict=True))
    assert answer.headers["x-lancedb-version"] == "1"


def test_blob_is_read_by_closed_ranges_and_its_size_by_head(wire: Wire, described: dict[str, Any]) -> None:
    first, null, empty, large = (f"/v1/table/wire_blobs/blob/b/{row}/bytes" for row in described["ids"])
    part = wire.http.get(first, params={"version": 1}, headers={"range": "bytes=2-5"})
    assert (part.status_code, part.content, part.headers["content-range"]) == (206, b"2345", "bytes 2-5/10")
    for path, size in ((first, "10"), (large, "100000"), (empty, "0")):
        head = wire.http.head(path, params={"version": 1}, headers={"range": "bytes=0-0"})
        assert (head.status_code, head.headers["content-length"], head.content) == (200, size, b"")
    assert wire.http.head(null).status_code == 204
    assert wire.http.head("/v1/table/wire_blobs/blob/b/99999/bytes").status_code == 400


@pytest.mark.parametrize(
    ("change", "status", "said"),
    [
        ({}, 206, ""),
        ({"row_is_address": "true"}, 206, ""),
        ({"row_is_address": "true", "row": 2**40}, 400, "at the address"),
        ({"source_uri": "file:///etc"}, 403, "follows no other"),
        ({"source_commit_micros": 5}, 400, "is not of the time 5"),
        ({"row_is_address": "maybe"}, 400, "row_is_address"),
    ],
)
def test_blob_of_a_descriptor_is_read_from_its_own_table_and_commit_alone(
    wire: Wire, described: dict[str, Any], change: dict[str, Any], status: int, said: str
) -> None:
    source = {"source_uri": described["location"], "source_commit_micros": described["micros"]}
    query = {"version": 1, "row_is_address": "false"} | source | change
    row = query.pop("row", described["ids"][0])
    path = f"/v1/table/wire_blobs/blob/b/{row}/bytes"
    answer = wire.http.get(path, params=query, headers={"range": "bytes=0-3"})
    assert (answer.status_code, said in answer.text) == (status, True), answer.text
    if status == 206:
        assert answer.content == b"0123"


def test_computed_columns_keep_what_is_said_of_refreshes(wire: Wire, fresh: Callable[[str], str]) -> None:
    name = fresh("wire")
    wire.create(name, pa.table({"id": [1, 2]}))

    def add(column: dict[str, Any], **options: Any) -> httpx.Response:
        return wire.post(f"/v1/table/{name}/add_columns/", {"new_columns": [column], **options})

    computed = {"name": "a", "computed": "id + 1"}
    assert add(computed, auto_refresh_enabled=True).status_code == 200
    other = {"name": "b", "computed": "id + 2"}
    assert add(other, auto_refresh_enabled=False, auto_refresh_interval_seconds=300).status_code == 200
    fields = wire.post(f"/v1/table/{name}/describe/", {}).json()["schema"]["fields"]
    kept = {
        field["name"]: {key: text for key, text in field.get("metadata", {}).items() if "auto_refresh" in key}
        for field in fields
    }
    prefix = "computed_column.auto_refresh_"
    assert kept["a"] == {f"{prefix}enabled": "true"}
    assert kept["b"] == {f"{prefix}enabled": "false", f"{prefix}interval_seconds": "300"}
    for column, options in (
        ({"name": "c", "computed": "id"}, {"auto_refresh_interval_seconds": 0}),
        ({"name": "c", "expression": "id"}, {"auto_refresh_enabled": True}),
    ):
        refused = add(column, **options)
        assert (refused.status_code, "auto_refresh" in refused.text) == (400, True), refused.text
