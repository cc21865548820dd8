"""What `phalanx-version` announces to lancedb: each threshold of the client, with a call that proves it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lance
import pyarrow as pa
from lancedb.index import FTS
from lancedb.query import DocumentGranularity, MatchQuery

from tiltyard.api.lancedb.dialect import VERSION_HEADER

Fresh = Callable[[str], str]

ROWS = pa.table(
    {
        "id": pa.array(range(8), pa.int64()),
        "tags": [["red fox", "lazy dog"], ["red dog"]] * 4,
        "text": ["red dog", "blue fox"] * 4,
        "v": pa.FixedSizeListArray.from_arrays(pa.array([float(n // 2) for n in range(16)], pa.float32()), 2),
    }
)


def several_vectors(remote: Any, name: str) -> None:
    """One request has several vectors, and its rows say which of them found each."""
    found = remote.create_table(name, ROWS).search([[0.0, 0.0], [7.0, 7.0]]).limit(1).to_arrow()
    assert dict(zip(found["query_index"].to_pylist(), found["id"].to_pylist(), strict=True)) == {0: 0, 1: 7}


def structured_full_text(remote: Any, name: str) -> None:
    """A query of words has options: a client sends the words alone to a server that does not say so."""
    table = remote.create_table(name, ROWS)
    table.create_index_async("text", config=FTS()).wait()
    assert table.search(MatchQuery("dgo", "text", fuzziness=2)).limit(9).to_arrow().num_rows == 4
    assert table.search(MatchQuery("dgo", "text")).limit(9).to_arrow().num_rows == 0


def multipart_writes(remote: Any, name: str) -> None:
    """Parts that are written at once are one version: without it, the client writes one after the other."""
    table = remote.create_table(name, ROWS)
    assert table.add(pa.concat_tables([ROWS] * 3), write_parallelism=3).version == 2
    assert table.count_rows() == 32


def blobs(remote: Any, name: str) -> None:
    """Blobs are fetched by row ids: the client asks no other server for them."""
    schema = pa.schema([pa.field("id", pa.int64()), lance.blob_field("b")])
    rows = pa.table([pa.array([1]), lance.blob_array([b"bytes"])], schema=schema)
    table = remote.create_table(name, rows)
    [row_id] = table.search().select(["id"]).with_row_id(True).limit(1).to_arrow()["_rowid"].to_pylist()
    assert table.fetch_blobs("b", [row_id]).to_pylist() == [b"bytes"]


def full_text_by_elements(remote: Any, name: str) -> None:
    """The elements of lists are documents: the client refuses that to other servers."""
    table = remote.create_table(name, ROWS)
    elements = DocumentGranularity.LIST_ELEMENT
    table.create_index_async("tags", config=FTS(document_granularity=elements)).wait()
    query = MatchQuery("dog", "tags", document_granularity=elements)
    found = table.search(query).limit(9).to_arrow()
    places = {*zip((n % 2 for n in found["id"].to_pylist()), map(tuple, found["_doc_index"].to_pylist()), strict=True)}
    assert places == {(0, (1,)), (1, (0,))}


THRESHOLDS = {
    (0, 2, 0): several_vectors,
    (0, 3, 0): structured_full_text,
    (0, 4, 0): multipart_writes,
    (0, 5, 0): blobs,
    (0, 6, 0): full_text_by_elements,
}
"""All that lancedb 0.40 and 0.41 look for in the header."""


def test_announced_version_is_the_last_whose_call_works(raw: Any, remote: Any, fresh: Fresh) -> None:
    for prove in THRESHOLDS.values():
        prove(remote, fresh("announced"))
    announced = tuple(map(int, VERSION_HEADER[1].decode().split(".")))
    assert announced == max(THRESHOLDS)
    name = fresh("announced")
    remote.create_table(name, ROWS)
    for response in (
        raw.post(f"/v1/table/{name}/describe/"),
        raw.get("/v1/table/", headers={"x-lancedb-database": "tests"}),
        raw.post("/v1/table/nowhere/describe/"),
    ):
        assert response.headers["phalanx-version"] == VERSION_HEADER[1].decode(), "each answer says it"
    plain = raw.post(f"/v1/table/{name}/describe")
    assert "phalanx-version" not in plain.headers, "the specification has no such header"
