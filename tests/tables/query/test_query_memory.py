"""What queries hold in memory, by their plans, and when that is given back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import msgspec
import numpy as np
import pyarrow as pa
import pytest
from lance_namespace.errors import InvalidInputError, ThrottlingError
from tests.tables.query.query_table import context, vectors

from tiltyard.model.spec import models
from tiltyard.storage.caches.version_cache import CachedVersion
from tiltyard.storage.datasets import Datasets
from tiltyard.tables.query import plan
from tiltyard.tables.query.plan import plan_search
from tiltyard.tables.query.response_sizes import STREAM_BYTES
from tiltyard.tables.query.routes.route import Query, Refused
from tiltyard.tables.query.routes.scan import Scan

ROWS, DIMENSION = 3000, 8
VECTOR: dict[str, Any] = {"vector": {"single_vector": [0.5] * DIMENSION}}
FOUND, COMPARED = 136, 136 + 2 * 4 * DIMENSION
"""Bytes of a row that an index finds, and of one whose vector is compared."""


@pytest.fixture
def dataset(tmp_path: Path) -> lance.LanceDataset:
    rows = np.random.default_rng(3).random((ROWS, DIMENSION), dtype=np.float32)
    table = pa.table({"id": range(ROWS), "vec": vectors(rows, pa.float32())})
    return lance.write_dataset(table, str(tmp_path / "t"))


def held(dataset: lance.LanceDataset, **request: Any) -> int:
    """Return what a query is estimated to hold."""
    return plan_search(CachedVersion(dataset), convert(request)).memory_bytes


def convert(request: dict[str, Any]) -> models.QueryTableRequest:
    return msgspec.convert({"vector": None, "k": 10} | request, models.QueryTableRequest)


def test_search_by_vector_holds_the_rows_that_it_compares(dataset: lance.LanceDataset) -> None:
    assert held(dataset, **VECTOR, k=1000) == 0
    assert held(dataset, **VECTOR, k=2000) == 2000 * COMPARED
    assert held(dataset, **VECTOR, k=2**62) == ROWS * COMPARED
    dataset.create_index("vec", "IVF_FLAT", num_partitions=4)
    assert held(dataset, **VECTOR, k=2000) == 2000 * FOUND
    assert held(dataset, **VECTOR, k=2000, bypass_vector_index=True) == 2000 * COMPARED
    assert held(dataset, **VECTOR, k=100, refine_factor=20) == 2000 * COMPARED
    assert held(dataset, **VECTOR, k=100, refine_factor=10) == 0


def test_search_for_more_rows_than_memory_holds_is_refused(
    dataset: lance.LanceDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "ORDER_BYTES", 2000 * COMPARED)
    assert held(dataset, **VECTOR, k=2000) == 2000 * COMPARED
    with pytest.raises(InvalidInputError, match="2001 nearest rows"):
        held(dataset, **VECTOR, k=2001)


def test_large_response_holds_a_window_and_a_small_one_nothing(dataset: lance.LanceDataset) -> None:
    assert held(dataset) == held(dataset, filter="id > 7") == 0
    assert held(dataset, k=2**62) == ROWS << 10
    assert held(dataset, k=2**62, order_by=[{"column_name": "id"}]) > ROWS * 4 * DIMENSION
    assert ROWS << 10 < STREAM_BYTES


def test_response_gives_its_memory_back_when_it_is_read_closed_or_dropped(
    dataset: lance.LanceDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx = context(Datasets(64 << 20, 64 << 20))
    budget = ctx.services.query_memory
    request = convert({"k": 2**62})
    search = plan_search(CachedVersion(dataset), request)

    def respond() -> Any:
        return Scan(Query(search, Refused("no caches"))).answer(ctx).batches

    read = respond()
    assert budget.used == search.memory_bytes
    assert sum(batch.num_rows for batch in read) == ROWS
    assert budget.used == 0
    closed = respond()
    next(closed)
    closed.close()
    assert budget.used == 0
    dropped = respond()
    assert budget.used == search.memory_bytes
    del dropped
    assert budget.used == 0
    monkeypatch.setattr(budget, "_total", search.memory_bytes)
    first = respond()
    with pytest.raises(ThrottlingError):
        respond()
    first.close()
    del first
    assert sum(batch.num_rows for batch in respond()) == ROWS
