"""Blobs through the stock lancedb client, sync and async, and by plain HTTP."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import lance
import lancedb
import pyarrow as pa
import pytest
from lancedb.remote.errors import HttpError

Fresh = Callable[[str], str]

LARGE = os.urandom(5_000_000)
VALUES = [b"inline", None, b"", b"packed" * 40_000, LARGE]
"""Of each way in which Lance stores a blob: in the data file, null, empty, in a shared file, in a file of its own."""
INNER = pa.struct([pa.field("n", pa.int32()), lance.blob_field("image")])
SCHEMA = pa.schema([pa.field("id", pa.int64()), lance.blob_field("b"), pa.field("s", INNER)])


def rows(values: list[bytes | None], start: int = 0) -> pa.Table:
    """Rows with a blob each in a column, and in a field of a struct."""
    count = len(values)
    nested = pa.StructArray.from_arrays([pa.array(range(count), pa.int32()), lance.blob_array(values)], fields=INNER)
    return pa.table([pa.array(range(start, start + count)), lance.blob_array(values), nested], schema=SCHEMA)


def row_ids(table: Any, where: str = "true") -> list[int]:
    """Return the row ids in the order of the column `id`."""
    found = table.search().select(["id"]).where(where).with_row_id(True).limit(10_000).to_arrow().sort_by("id")
    ids: list[int] = found["_rowid"].to_pylist()
    return ids


@pytest.fixture(scope="module")
def table(server: Any) -> Any:
    """A table with one row for each of VALUES."""
    return lancedb.connect("db://tests", api_key="none", host_override=server.url).create_table("blobs", rows(VALUES))


@pytest.fixture(scope="module")
def ids(table: Any) -> list[int]:
    return row_ids(table)


@pytest.mark.parametrize("column", ["b", "s.image"])
def test_blobs_are_fetched_in_the_order_of_the_row_ids(table: Any, ids: list[int], column: str) -> None:
    assert column in table.blob_columns()
    assert table.fetch_blobs(column, ids).to_pylist() == VALUES
    order = [4, 0, 0, 1, 3]
    assert table.fetch_blobs(column, [ids[at] for at in order]).to_pylist() == [VALUES[at] for at in order]


@pytest.mark.parametrize("column", ["b", "s.image"])
def test_blob_files_are_read_whole_in_ranges_and_after_seeking(table: Any, ids: list[int], column: str) -> None:
    files = table.fetch_blob_files(column, ids)
    assert [file and file.size() for file in files] == [value if value is None else len(value) for value in VALUES]
    assert [file and file.read() for file in files] == VALUES
    large = files[4]
    assert large.read_range(1_000_000, 2_000_000) == LARGE[1_000_000:3_000_000]
    large.seek(4_999_990)
    assert large.read() == LARGE[-10:]
    large.seek(5)
    assert (large.read(7), large.read(9)) == (LARGE[5:12], LARGE[12:21])


async def _fetch(url: str, ids: list[int]) -> tuple[list[str], list[Any], list[Any]]:
    connection = await lancedb.connect_async("db://tests", api_key="none", host_override=url)
    table = await connection.open_table("blobs")
    blobs = (await table.fetch_blobs("b", ids)).to_pylist()
    files = await table.fetch_blob_files("b", ids)
    return await table.blob_columns(), blobs, [file and file.read() for file in files]


def test_async_client_reads_the_same(server: Any, table: Any, ids: list[int]) -> None:
    assert asyncio.run(_fetch(server.url, ids)) == (["b", "s.image"], VALUES, VALUES)


def test_hits_of_a_query_fetch_their_blobs(table: Any) -> None:
    hits = table.search().select(["id", "b"]).where("id = 3").limit(1).to_arrow()
    assert table.fetch_blobs("b", hits).to_pylist() == [VALUES[3]]


def test_what_is_no_blob_or_not_there_is_said(table: Any, ids: list[int]) -> None:
    for column, rows_, message in (
        ("id", ids, "holds no blobs"),
        ("nope", ids, "No column 'nope'"),
        ("b", [2**40], "No row of this table has the id"),
        ("s", ids, "holds no blobs"),
        ("s..image", ids, "no path of a field"),
    ):
        with pytest.raises(HttpError, match=message) as refused:
            table.fetch_blobs(column, rows_)
        assert refused.value.status_code == 400
    with pytest.raises(HttpError, match="No row of this table has the id"):
        table.fetch_blob_files("b", [2**40])
    with pytest.raises(NotImplementedError):
        table.fetch_blob_ranges("b", [(ids[0], 0, 1)])


def test_fetch_of_no_or_too_many_rows(raw: Any, table: Any) -> None:
    empty = raw.post("/v1/table/blobs/fetch_blobs", {"column": "b", "row_ids": []})
    assert pa.ipc.open_file(empty.content).read_all().num_rows == 0
    many = raw.post("/v1/table/blobs/fetch_blobs", {"column": "b", "row_ids": [0] * 10_001})
    assert (many.status_code, many.json()["code"]) == (400, 13)
    assert raw.post("/v1/table/blobs/fetch_blobs", {"column": "b", "row_ids": [-1]}).status_code == 400


def get(raw: Any, column: str, row_id: Any, byte_range: str | None = None, **query: Any) -> Any:
    headers = {} if byte_range is None else {"range": byte_range}
    return raw.get(f"/v1/table/blobs/blob/{quote(column, safe='')}/{row_id}/bytes", headers=headers, params=query)


def test_bytes_by_plain_http(raw: Any, table: Any, ids: list[int]) -> None:
    whole = get(raw, "b", ids[4])
    assert (whole.status_code, whole.content) == (200, LARGE)
    assert whole.headers["content-type"] == "application/octet-stream"
    assert (whole.headers["accept-ranges"], whole.headers["x-lancedb-version"]) == ("bytes", "1")
    for byte_range, first, last in (("bytes=0-0", 0, 0), ("bytes=10-19", 10, 19), ("bytes=-7", 4_999_993, 4_999_999)):
        part = get(raw, "s.image", ids[4], byte_range)
        assert (part.status_code, part.content) == (206, LARGE[first : last + 1])
        assert part.headers["content-range"] == f"bytes {first}-{last}/5000000"
    tail = get(raw, "`s`.`image`", ids[4], "bytes=1000000-")
    assert (tail.status_code, tail.content) == (206, LARGE[1_000_000:])


def test_null_empty_and_unsatisfiable_ranges_by_plain_http(raw: Any, table: Any, ids: list[int]) -> None:
    null = get(raw, "b", ids[1], "bytes=0-0")
    assert (null.status_code, null.content, null.headers["x-lancedb-version"]) == (204, b"", "1")
    assert get(raw, "b", ids[2]).content == b""
    for row_id, byte_range, size in ((ids[2], "bytes=0-0", 0), (ids[0], "bytes=6-", 6), (ids[0], "bytes=0-1,3-4", 6)):
        refused = get(raw, "b", row_id, byte_range)
        assert (refused.status_code, refused.json()["code"]) == (416, 13)
        assert refused.headers["content-range"] == f"bytes */{size}"
        assert refused.headers["x-lancedb-version"] == "1"
    assert get(raw, "b", ids[0], "bytes=x").content == b"inline"
    for row_id in ("null", "-1", "x", str(2**64)):
        assert get(raw, "b", row_id).status_code == 400


def test_blobs_of_versions_and_branches(remote: Any, fresh: Fresh) -> None:
    table = remote.create_table(fresh("t"), rows([b"old"]))
    before = row_ids(table)
    branch = table.branches.create("side")
    branch.add(rows([b"of the branch"], start=1))
    table.add(rows([b"of main"], start=1))
    assert branch.fetch_blobs("b", row_ids(branch)).to_pylist() == [b"old", b"of the branch"]
    assert [file.read() for file in branch.fetch_blob_files("b", row_ids(branch))] == [b"old", b"of the branch"]
    assert table.fetch_blobs("b", row_ids(table)).to_pylist() == [b"old", b"of main"]
    table.delete("id = 0")
    with pytest.raises(HttpError, match="No row of this table"):
        table.fetch_blobs("b", before)
    table.checkout(1)
    assert table.fetch_blobs("b", before).to_pylist() == [b"old"]
    assert [file.read() for file in table.fetch_blob_files("b", before)] == [b"old"]


def test_handle_reads_the_version_that_it_was_opened_at(remote: Any, fresh: Fresh) -> None:
    table = remote.create_table(fresh("t"), rows([LARGE]))
    (file,) = table.fetch_blob_files("b", row_ids(table))
    assert file.read(10) == LARGE[:10]
    table.delete("true")
    assert file.read_range(100, 10) == LARGE[100:110]


def test_blobs_are_stored_apart_however_they_come(server: Any, remote: Any, fresh: Fresh) -> None:
    table = remote.create_table(fresh("t"), schema=SCHEMA)
    table.add(rows([LARGE, b"2"]))
    table.add([{"id": 2, "b": b"bytes", "s": {"n": 1, "image": b"inner"}}])
    merge = table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    merge.execute(rows([b"merged" * 100_000, None], start=2))
    table.update(where="id = 3", values={"id": 30})
    assert table.fetch_blobs("b", row_ids(table)).to_pylist() == [LARGE, b"2", b"merged" * 100_000, None]
    assert table.fetch_blobs("s.image", row_ids(table)).to_pylist() == [LARGE, b"2", b"merged" * 100_000, None]
    if isinstance(server.root, Path):
        location = Path(table.uri.removeprefix("file://"))
        assert [path.stat().st_size for path in location.rglob("*.blob")].count(5_000_000) >= 2


def test_plain_bytes_become_blobs_of_a_column_that_holds_blobs(raw: Any, remote: Any, fresh: Fresh) -> None:
    table = remote.create_table(fresh("t"), schema=SCHEMA)
    for kind in (pa.binary(), pa.large_binary()):
        body = pa.BufferOutputStream()
        nested = pa.array([{"image": b"inner"}, None], pa.struct([pa.field("image", kind)]))
        values = pa.table({"id": [1, 2], "b": pa.array([LARGE, None], kind), "s": nested})
        with pa.ipc.new_stream(body, values.schema) as writer:
            writer.write_table(values)
        media = {"content-type": "application/vnd.apache.arrow.stream"}
        response = raw.http.post(f"/v1/table/{table.name}/insert", content=body.getvalue().to_pybytes(), headers=media)
        assert response.status_code == 200, response.text
    assert table.fetch_blobs("b", row_ids(table)).to_pylist() == [LARGE, LARGE, None, None]
    assert table.fetch_blobs("s.image", row_ids(table)).to_pylist() == [b"inner", b"inner", None, None]


def test_overwrite_gives_a_table_blobs_and_external_uris_are_refused(remote: Any, fresh: Fresh) -> None:
    table = remote.create_table(fresh("t"), pa.table({"id": [1]}))
    table.add(rows([b"x"]), mode="overwrite")
    assert table.fetch_blobs("b", row_ids(table)).to_pylist() == [b"x"]
    elsewhere = pa.table(
        [pa.array([1]), lance.blob_array(["file:///etc/hostname"])],
        schema=pa.schema([SCHEMA.field(0), SCHEMA.field(1)]),
    )
    with pytest.raises(HttpError, match="outside registered external bases"):
        table.add(elsewhere)


def test_ranges_of_one_blob_are_read_at_once(raw: Any, table: Any, ids: list[int]) -> None:
    def read(at: int) -> bool:
        part = get(raw, "b", ids[4], f"bytes={at}-{at + 99_999}")
        return bool(part.content == LARGE[at : at + 100_000])

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(0, 4_900_000, 50_000)))


def test_blobs_too_large_for_memory_are_streamed_among_others(remote: Any, fresh: Fresh) -> None:
    large = bytes(range(251)) * (((64 << 20) + 3) // 251 + 1)
    blobs = [b"small", large, None, bytes(9 << 20), b""]
    schema = pa.schema([SCHEMA.field(0), SCHEMA.field(1)])
    value = pa.table([pa.array(range(5)), lance.blob_array(blobs)], schema=schema)
    table = remote.create_table(fresh("t"), value)
    for order in ([1], [4, 1, 0, 2, 1, 3]):
        fetched = table.fetch_blobs("b", [row_ids(table)[at] for at in order])
        assert fetched.to_pylist() == [blobs[at] for at in order]
    (file,) = table.fetch_blob_files("b", [row_ids(table)[1]])
    assert file.read_range(1 << 20, 100) == large[1 << 20 : (1 << 20) + 100]
