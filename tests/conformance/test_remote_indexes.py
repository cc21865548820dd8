"""Every kind of index that pylance builds, each built once through a stock client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import lancedb
import numpy as np
import pyarrow as pa
import pytest
from lance_namespace_urllib3_client import CreateTableIndexRequest
from lance_namespace_urllib3_client.api import TableApi
from lancedb.index import (
    FTS,
    Bitmap,
    BTree,
    DocumentGranularity,
    Fm,
    HnswFlat,
    HnswPq,
    HnswSq,
    IvfFlat,
    IvfPq,
    IvfRq,
    IvfSq,
    LabelList,
)
from lancedb.query import FullTextOperator, MatchQuery, PhraseQuery

from tests.conformance.conftest import Raw
from tests.services.lossy import wait_for
from tests.services.server import ServerProcess
from tiltyard.model.columns.index_types import IndexType

pytestmark = pytest.mark.parametrize("server", ["embedded"], indirect=True)

COUNT = 300
BY_LANCEDB: dict[str, tuple[str, Any]] = {
    "BTREE": ("id", BTree()),
    "BITMAP": ("kind", Bitmap()),
    "LABEL_LIST": ("labels", LabelList()),
    "FM": ("code", Fm()),
    "FTS": ("text", FTS()),
    "IVF_FLAT": ("v0", IvfFlat(num_partitions=2)),
    "IVF_SQ": ("v1", IvfSq(num_partitions=2)),
    "IVF_PQ": ("v2", IvfPq(num_partitions=2, num_sub_vectors=4)),
    "IVF_RQ": ("v3", IvfRq(num_partitions=2)),
    "IVF_HNSW_SQ": ("v4", HnswSq(num_partitions=2)),
    "IVF_HNSW_FLAT": ("v5", HnswFlat(num_partitions=2)),
}
"""The column and the configuration of each kind that lancedb's client can ask for."""
BY_SPECIFICATION: dict[str, tuple[str, dict[str, Any]]] = {
    "NGRAM": ("word", {}),
    "ZONEMAP": ("number", {}),
    "BLOOMFILTER": ("other", {}),
    "MINHASHLSH": ("page", {}),
    "RTREE": ("place", {}),
    "IVF_HNSW_PQ": ("v6", {"distance_type": "l2"}),
}
"""Those for which it has no class, or which it refuses itself: by the generated client."""
TAGS = pa.table({"id": [1, 2, 3], "tags": [["red fox", "blue dog"], ["red dog"], ["fox", "red"]]})
BOTH_WORDS = MatchQuery("red fox", "tags", operator=FullTextOperator.AND)


def rows() -> pa.Table:
    chance = np.random.default_rng(7)
    words = [f"word{number % 17} common" for number in range(COUNT)]
    vectors = chance.random((COUNT, 64), dtype=np.float32)
    columns: dict[str, Any] = {
        "id": pa.array(range(COUNT), pa.int64()),
        "kind": [f"k{number % 3}" for number in range(COUNT)],
        "labels": [[f"l{number % 5}"] for number in range(COUNT)],
        **dict.fromkeys(("code", "text", "word", "page"), words),
        "number": pa.array(range(COUNT), pa.int64()),
        "other": pa.array(range(COUNT), pa.int64()),
    }
    columns |= {
        f"v{number}": pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), 64)
        for number in range(sum("IVF" in kind for kind in (*BY_LANCEDB, *BY_SPECIFICATION)))
    }
    table = pa.table(columns)
    point = pa.field("place", pa.struct([("x", pa.float64()), ("y", pa.float64())]), metadata=GEOMETRY)
    return table.append_column(point, pa.array([{"x": float(number), "y": 1.0} for number in range(COUNT)], point.type))


GEOMETRY = {"ARROW:extension:name": "geoarrow.point", "ARROW:extension:metadata": "{}"}


@pytest.mark.extended
def test_every_kind_of_index_is_built_through_a_client(
    server: ServerProcess, raw: Raw, remote: Any, generated: Any, fresh: Callable[[str], str]
) -> None:
    """Half of lancedb's by its synchronous client, half by the asynchronous one."""
    assert {*BY_LANCEDB, *BY_SPECIFICATION} == {kind.value for kind in IndexType}
    name = fresh("indexed")
    table = remote.create_table(name, rows())
    kinds = list(BY_LANCEDB.items())
    for _, (column, config) in kinds[::2]:
        table.create_index(column, config=config)

    async def create_others() -> None:
        connection = await lancedb.connect_async("db://tests", api_key="none", host_override=server.url)
        opened = await connection.open_table(name)
        for _, (column, config) in kinds[1::2]:
            await opened.create_index(column, config=config)

    asyncio.run(create_others())
    for kind, (column, parameters) in BY_SPECIFICATION.items():
        TableApi(generated).create_table_index(
            name, CreateTableIndexRequest(column=column, index_type=kind, **parameters)
        )

    def listed() -> dict[str, dict[str, Any]]:
        indexes = raw.post(f"/v1/table/{name}/index/list").json()["indexes"]
        return {index["columns"][0]: index for index in indexes}

    wait_for(lambda: all(index["status"] != "building" for index in listed().values()), 120)
    built = {column: (index["index_type"], index["status"]) for column, index in listed().items()}
    assert built == {column: (kind, "done") for kind, (column, _) in (*BY_LANCEDB.items(), *BY_SPECIFICATION.items())}
    seen = {index.columns[0]: index.index_type for index in table.list_indices()}
    assert seen.keys() == built.keys()
    assert seen["page"] == "Unknown", "lancedb reads no list with a kind that it does not know"
    assert table.index_stats("page_idx").num_indexed_rows == COUNT
    query = rows()["v0"][5].as_py()
    for number in range(7):
        found = table.search(query, vector_column_name=f"v{number}").limit(3).select(["id"]).to_arrow()
        assert 5 in found["id"].to_pylist(), number
    assert table.search().where("id = 7 AND kind = 'k1' AND number = 7 AND other = 7").to_arrow().num_rows == 1
    assert table.count_rows("array_has_any(labels, ['l2']) AND contains(word, 'word2') AND contains(code, 'd2')") == 4


def test_kind_that_the_client_refuses_itself_is_never_sent(remote: Any, fresh: Callable[[str], str]) -> None:
    table = remote.create_table(fresh("refused"), rows().select(["id", "v0"]))
    with pytest.raises(NotImplementedError, match="Index type not supported"):
        table.create_index("v0", config=HnswPq())


def test_elements_of_lists_are_documents_of_a_full_text_index(
    server: ServerProcess, raw: Raw, remote: Any, fresh: Callable[[str], str]
) -> None:
    """Words of one query have to be in one element, and rows say in which."""
    name = fresh("tags")
    table = remote.create_table(name, TAGS)
    plain = {"stem": False, "remove_stop_words": False, "with_position": True}
    elements = FTS(document_granularity=DocumentGranularity.LIST_ELEMENT, **plain)
    table.create_index_async("tags", config=elements, name="elements").wait()

    def found(query: Any) -> list[tuple[int, list[int]]]:
        result = table.search(query).limit(10).to_arrow()
        return sorted(zip(result["id"].to_pylist(), result["_doc_index"].to_pylist(), strict=True))

    assert found(BOTH_WORDS) == [(1, [0])]
    [listed] = raw.post(f"/v1/table/{name}/index/list").json()["indexes"]
    assert '"document_granularity": "list_element"' in listed["index_details"]
    table.create_index_async("tags", config=FTS(**plain), name="rows").wait()
    with pytest.raises(Exception, match="specify document_granularity"):
        table.search(BOTH_WORDS).to_arrow()
    by_rows = replace(BOTH_WORDS, document_granularity=DocumentGranularity.ROW)
    assert {*table.search(by_rows).to_arrow()["id"].to_pylist()} == {1, 3}
    phrase = PhraseQuery("red dog", "tags", document_granularity=DocumentGranularity.LIST_ELEMENT)
    assert found(phrase) == [(2, [0])]

    async def by_async() -> list[int]:
        connection = await lancedb.connect_async("db://tests", api_key="none", host_override=server.url)
        opened = await connection.open_table(name)
        query = replace(BOTH_WORDS, document_granularity=DocumentGranularity.LIST_ELEMENT)
        return list((await opened.query().nearest_to_text(query).to_arrow())["id"].to_pylist())

    assert asyncio.run(by_async()) == [1]
