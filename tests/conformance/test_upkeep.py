"""A server maintains tables by itself: what clients write is found at once, and soon in the indexes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import lance
import lance.namespace as rust
import lancedb
import numpy as np
import pyarrow as pa
import pytest
from lancedb.index import FTS, BTree, IvfFlat
from lancedb.query import MatchQuery

from tests.services.server import ServerProcess

pytestmark = pytest.mark.extended
"""Upkeep begins some seconds after the first commit; what it does is tested in tests/tables/upkeep."""

SECONDS = 60
BOUND = 10
"""Of three queries, on a busy machine; the rows are there when the first begins."""
INDEXES = ("id_idx", "text_idx", "vector_idx")


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    running = ServerProcess(tmp_path_factory.mktemp("root"), environ={"TILTYARD_UPKEEP": "true"})
    yield running
    running.stop()


def rows(count: int, start: int = 0) -> pa.Table:
    vectors = np.array([[n % 97, n % 13, n % 7, 1] for n in range(start, start + count)], dtype=np.float32)
    return pa.table(
        {
            "id": pa.array(range(start, start + count), pa.int64()),
            "text": [f"word{number} common" for number in range(start, start + count)],
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), 4),
        }
    )


LATE = rows(1, 10**6).set_column(2, "vector", pa.FixedSizeListArray.from_arrays(pa.array([500.0] * 4, pa.float32()), 4))


def wait_until(condition: Callable[[], bool]) -> float:
    """Wait until a condition holds; return the seconds that took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < SECONDS
        time.sleep(0.2)
    return time.monotonic() - began


def index(table: Any) -> None:
    table.create_index("id", config=BTree())
    table.create_index("text", config=FTS())
    table.create_index("vector", config=IvfFlat(num_partitions=2))
    table.wait_for_index(INDEXES)


def test_rows_are_found_at_once_and_indexed_soon(kept: ServerProcess) -> None:
    connection = lancedb.connect("db://tests", api_key="none", host_override=kept.url)
    table = connection.create_table("films", rows(3000))
    index(table)
    began = time.monotonic()
    table.add(LATE)
    assert table.search([500.0] * 4).limit(1).to_arrow()["id"].to_pylist() == [10**6]
    assert table.search(MatchQuery("word1000000", "text")).limit(1).to_arrow()["id"].to_pylist() == [10**6]
    assert table.search().where("id = 1000000").to_arrow().num_rows == 1
    assert time.monotonic() - began < BOUND
    fast = table.search([500.0] * 4).fast_search().limit(1).to_arrow()["id"].to_pylist()
    assert fast != [10**6], "by design: only what is indexed"
    for number in range(20):
        table.add(rows(100, 3000 + number * 100))
    wait_until(lambda: all(table.index_stats(name).num_unindexed_rows == 0 for name in INDEXES))
    assert table.search([500.0] * 4).fast_search().limit(1).to_arrow()["id"].to_pylist() == [10**6]
    wait_until(lambda: table.stats()["fragment_stats"]["num_fragments"] <= 3)
    assert table.count_rows() == 5001
    wait_until(lambda: "upkeep" not in {job.job_type for job in connection.list_jobs()})
    listed = httpx.post(f"{kept.url}/v1/jobs/list", json={"job_type": "upkeep"}).json()["jobs"]
    assert {job["state"] for job in listed} == {"DONE"}
    assert connection.open_job(listed[0]["job_id"]).spec["table"] == "films"
    table.optimize()
    table.delete("id < 2000")
    wait_until(lambda: all(table.index_stats(name).num_unindexed_rows == 0 for name in INDEXES))
    assert table.count_rows() == 3001


def test_the_async_client_sees_the_same(kept: ServerProcess) -> None:
    async def run() -> tuple[list[int], int]:
        connection = await lancedb.connect_async("db://tests", api_key="none", host_override=kept.url)
        table = await connection.create_table("songs", rows(3000))
        await table.create_index("id", config=BTree())
        await table.add(rows(1500, 3000))
        found = await table.query().where("id = 4499").to_arrow()
        began = time.monotonic()
        while True:
            stats = await table.index_stats("id_idx")
            if stats is not None and stats.num_indexed_rows == 4500:
                return found["id"].to_pylist(), stats.num_unindexed_rows
            assert time.monotonic() - began < SECONDS
            await asyncio.sleep(0.2)

    assert asyncio.run(run()) == ([4499], 0)


def test_commits_of_managed_clients_are_seen(kept: ServerProcess) -> None:
    """Rows that pylance writes itself, and commits through CreateTableVersion."""
    first: Any = {"namespace_client": rust.RestNamespace(uri=kept.url), "table_id": ["managed"]}
    dataset = lance.write_dataset(rows(3000), mode="create", **first)
    dataset.create_scalar_index("id", "BTREE", name="ids")
    for number in range(20):
        lance.write_dataset(rows(100, 3000 + number * 100), mode="append", **first)

    def is_maintained() -> bool:
        opened = lance.dataset(**first)
        [described] = opened.describe_indices()
        return described.num_rows_indexed == 5000 and len(opened.get_fragments()) == 2

    wait_until(is_maintained)
