"""Vectors in memory, as a server comes, through lancedb's client."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import httpx
import lancedb
import numpy as np
import pyarrow as pa
import pytest
from lancedb.index import IvfFlat

from tests.limits.test_metrics import samples
from tests.services.lossy import wait_for
from tests.services.server import ServerProcess
from tiltyard.storage.vector_cache.searched_column import SEARCHES

if TYPE_CHECKING:
    from pathlib import Path

COUNT, DIMENSION = 600, 8
PLACES = np.random.default_rng(3).normal(size=(COUNT, DIMENSION)).astype(np.float32)


def rows(first: int) -> pa.Table:
    values = pa.FixedSizeListArray.from_arrays(pa.array(PLACES.reshape(-1)), DIMENSION)
    return pa.table({"id": range(first, first + COUNT), "vec": values})


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.extended)])
def test_searches_are_answered_from_memory_by_default(tmp_path: Path, workers: int) -> None:
    server = ServerProcess(tmp_path, *(("--workers", "2") if workers == 2 else ()))
    try:
        database = lancedb.connect("db://main", api_key="unused", host_override=server.url)

        def make(first: int) -> None:
            table = database.create_table("t", rows(first))
            table.create_index("vec", config=IvfFlat(distance_type="l2", num_partitions=1))
            wait_for(lambda: bool(table.list_indices()))

        def search(first: int) -> None:
            found = database.open_table("t").search(PLACES[7].tolist()).limit(3).to_list()
            assert found[0]["id"] == first + 7

        def explain() -> str:
            return database.open_table("t").search(PLACES[7].tolist()).explain_plan()

        def answered() -> float:
            counts = samples(httpx.get(f"{server.url}/metrics", timeout=60).text)
            return counts.get(("tiltyard_queries_total", "index_in_memory"), 0)

        make(0)
        for _ in range(SEARCHES):
            search(0)
        deadline = time.monotonic() + 60
        while not answered():  # each process builds its own
            search(0)
            assert time.monotonic() < deadline, explain()
            time.sleep(0.05)  # its thread has a low priority
        since = "Route: index_in_memory: the index in memory answers since 20"
        assert any(since in explain() for _ in range(20 * workers))
        database.drop_table("t")
        make(1000)
        for _ in range(10 * workers):  # also by a process that was not asked to drop the table
            search(1000)
    finally:
        assert server.stop() == 0
