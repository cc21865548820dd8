"""Queries of lancedb's client by its remote protocol, sync and async: order, and full text with structure."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import lancedb
import pyarrow as pa
import pytest
from lancedb.index import FTS
from lancedb.query import (
    BooleanQuery,
    BoostQuery,
    ColumnOrdering,
    FullTextOperator,
    FullTextQuery,
    MatchQuery,
    MultiMatchQuery,
    Occur,
    PhraseQuery,
)

from tests.services.server import ServerProcess

pytestmark = pytest.mark.parametrize("server", ["embedded"], indirect=True)

ROWS = pa.table(
    {
        "id": pa.array(range(6), pa.int64()),
        "title": ["fox", "box", "foxes", "dog", "red fox", "cat"],
        "text": ["a quick fox", "a fox in a box", "a red dog", "quick quick dog", "nothing", "a box for a cat"],
        "rank": pa.array([3, 1, None, 2, 1, 5], pa.int64()),
    }
)
QUERIES: list[tuple[FullTextQuery, set[int]]] = [
    (MatchQuery("fux", "text", fuzziness=1), {0, 1}),
    (MatchQuery("fux", "text"), set()),
    (MatchQuery("fobs", "text", fuzziness=2, prefix_length=2, max_expansions=10), {0, 1, 5}),  # fox and for
    (MatchQuery("quick dog", "text", operator=FullTextOperator.AND), {3}),
    (MatchQuery("quick dog", "text"), {0, 2, 3}),
    (PhraseQuery("quick dog", "text"), {3}),
    (PhraseQuery("quick dog", "text", slop=0), {3}),
    (BoostQuery(MatchQuery("dog", "text"), MatchQuery("red", "text"), negative_boost=0.1), {2, 3}),
    (MultiMatchQuery("fox cat", ["title", "text"], boosts=[1.0, 5.0]), {0, 1, 4, 5}),
    (
        BooleanQuery([(Occur.MUST, MatchQuery("box", "text")), (Occur.MUST_NOT, MatchQuery("cat", "text"))]),
        {1},
    ),
]


@pytest.fixture
def table(remote: Any, fresh: Callable[[str], str]) -> Any:
    """A table with a full-text index on both its texts."""
    table = remote.create_table(fresh("texts"), ROWS)
    for column in ("title", "text"):
        config = FTS(with_position=True, stem=False, remove_stop_words=False)
        table.create_index_async(column, config=config).wait()
    return table


async def open_async(server: ServerProcess, name: str) -> Any:
    connection = await lancedb.connect_async("db://tests", api_key="none", host_override=server.url)
    return await connection.open_table(name)


def test_structured_full_text_finds_its_rows(server: ServerProcess, table: Any) -> None:
    async def found() -> Sequence[set[int]]:
        opened = await open_async(server, table.name)
        queries = [opened.query().nearest_to_text(query).limit(10) for query, _ in QUERIES]
        return [set((await query.to_arrow())["id"].to_pylist()) for query in queries]

    expected = [ids for _, ids in QUERIES]
    assert [set(table.search(query).limit(10).to_arrow()["id"].to_pylist()) for query, _ in QUERIES] == expected
    assert asyncio.run(found()) == expected


def test_boosts_decide_the_order(server: ServerProcess, table: Any) -> None:
    weak = BoostQuery(MatchQuery("dog", "text"), MatchQuery("quick", "text"), negative_boost=0.9)
    strong = MultiMatchQuery("fox cat", ["title", "text"], boosts=[100.0, 1.0])
    assert table.search(weak).limit(10).to_arrow()["id"].to_pylist() == [2, 3]
    first = table.search(strong).limit(10).to_arrow()
    assert set(first["id"].to_pylist()[:3]) == {0, 4, 5}
    assert first["_score"].to_pylist() == sorted(first["_score"].to_pylist(), reverse=True)


@pytest.mark.parametrize(
    ("ordering", "expected"),
    [
        ([ColumnOrdering(column_name="rank"), ColumnOrdering(column_name="id")], [1, 4, 3, 0, 5, 2]),
        (
            [
                ColumnOrdering(column_name="rank", ascending=False, nulls_first=True),
                ColumnOrdering(column_name="id", ascending=False),
            ],
            [2, 5, 0, 3, 4, 1],
        ),
    ],
)
def test_order_by_of_the_client(
    server: ServerProcess, table: Any, ordering: list[ColumnOrdering], expected: list[int]
) -> None:
    async def ordered() -> list[int]:
        opened = await open_async(server, table.name)
        rows = await opened.query().order_by(ordering).limit(4).offset(1).to_arrow()
        return list(rows["id"].to_pylist())

    assert table.search().order_by(ordering).limit(10).to_arrow()["id"].to_pylist() == expected
    assert asyncio.run(ordered()) == expected[1:5]
