"""Queries without a catalog: the operations under test, on one dataset of real rows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import msgspec
import numpy as np
import pyarrow as pa

from tiltyard.context import Context, OpenTable
from tiltyard.model.branches import MAIN, Branch
from tiltyard.model.spec import models
from tiltyard.runtime.budgets import MemoryBudget
from tiltyard.runtime.machinery import Counts
from tiltyard.storage.datasets import Datasets
from tiltyard.tables.query import query

if TYPE_CHECKING:
    from collections.abc import Generator

    import pytest

    from tiltyard.context import Services

WORDS = (
    *("the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog"),
    *("while", "red", "bears", "sleep", "under", "cold", "stars"),
)


def context(datasets: Datasets) -> Context:
    """Return the context of a server that has nothing but open tables."""
    services = SimpleNamespace(
        storage=SimpleNamespace(datasets=datasets),
        query_memory=MemoryBudget(4 << 30),
        route_counts=Counts(),
        table_servers=None,
    )
    return Context(cast("Services", services))


def vectors(values: np.ndarray[Any, Any], kind: pa.DataType) -> pa.Array:
    """Return a column with one vector in each row."""
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1), kind), values.shape[1])


def rows(count: int, seed: int = 3, start: int = 0) -> pa.Table:
    """Return rows with text and vectors of every type."""
    rng = np.random.default_rng(seed)
    several = [rng.random((1 + row % 3, 3)).astype(np.float32).tolist() for row in range(count)]
    return pa.table(
        {
            "id": pa.array(range(start, start + count)),
            "grp": pa.array([None if row % 7 == 0 else row % 5 for row in range(count)], pa.int64()),
            "text": [" ".join(rng.choice(WORDS, 3 + row % 7)) for row in range(count)],
            "title": [" ".join(rng.choice(WORDS, 2 + row % 3)) for row in range(count)],
            "vec": vectors(rng.random((count, 8), dtype=np.float32), pa.float32()),
            "half": vectors(rng.random((count, 6)).astype(np.float16), pa.float16()),
            "double": vectors(rng.random((count, 5)), pa.float64()),
            "bits": vectors(rng.integers(0, 256, (count, 4)).astype(np.uint8), pa.uint8()),
            "small": vectors(rng.integers(-128, 128, (count, 2)).astype(np.int8), pa.int8()),
            "several": pa.array(several, pa.list_(pa.list_(pa.float32(), 3))),
        }
    )


class Table:
    """The query operations on one dataset; requests are given as in JSON.

    Each query runs twice, without and with the column cache: both responses have to be equal.
    """

    def __init__(self, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.uri = uri
        self.datasets = Datasets(64 << 20, 64 << 20)
        self.caching = Datasets(0, 0, column_cache_bytes=64 << 20)
        monkeypatch.setattr(query, "open_with_policies", self._open_with_policies)

    def _open_with_policies(
        self, ctx: Context, names: list[str] | None, branch: Branch = MAIN, version: int | None = None
    ) -> tuple[OpenTable, None]:
        """Open the table for a principal without policies."""
        record = cast("Any", SimpleNamespace(location=self.uri))
        return OpenTable(record, self.datasets.open_snapshot(self.uri, branch, version)), None

    def query(self, **request: Any) -> pa.Table:
        """Return the rows of QueryTable; `k` is 10 by default."""
        query_request = self._request(request)
        response = query.query_table(context(self.datasets), query_request)
        expected = pa.Table.from_batches(response.batches, response.schema)
        self._check_with_column_cache(query_request, expected)
        return expected

    def _check_with_column_cache(self, query_request: models.QueryTableRequest, expected: pa.Table) -> None:
        """Repeat the query with all columns in the column cache, and compare the responses."""
        branch = Branch.parse(query_request.branch)
        cache, key = self.caching.column_cache, (self.uri, branch)
        dataset = self.datasets.open_for_reading(self.uri, branch)
        if dataset.count_rows() == 0:
            return
        cache.load(key, dataset, None)
        response = query.query_table(context(self.caching), query_request)
        repeated = pa.Table.from_batches(response.batches, response.schema)
        assert repeated.schema.equals(expected.schema, check_metadata=True)
        if "_score" in repeated.schema.names:  # Lance has rows of the same score in any order
            assert repeated["_score"].equals(expected["_score"])
            assert sorted(map(repr, repeated.to_pylist())) == sorted(map(repr, expected.to_pylist()))
        else:
            assert repeated.equals(expected)

    def batches(self, **request: Any) -> Generator[pa.RecordBatch, None, None]:
        """Yield the batches of a response."""
        yield from query.query_table(context(self.datasets), self._request(request)).batches

    def ids(self, **request: Any) -> list[int]:
        """Return the column `id` of a response."""
        expected: list[int] = self.query(columns={"column_names": ["id"]}, **request)["id"].to_pylist()
        return expected

    def _request(self, request: dict[str, Any]) -> models.QueryTableRequest:
        return msgspec.convert({"vector": None, "k": 10} | request, models.QueryTableRequest)

    def count(self, **request: Any) -> int:
        """Return the response of CountTableRows."""
        return query.count_table_rows(context(self.datasets), msgspec.convert(request, models.CountTableRowsRequest))

    def explain(self, **request: Any) -> str:
        """Return the response of ExplainTableQueryPlan."""
        query_request = msgspec.convert(request, models.ExplainTableQueryPlanRequest)
        return query.explain_table_query_plan(context(self.datasets), query_request)

    def analyze(self, **request: Any) -> str:
        """Return the response of AnalyzeTableQueryPlan."""
        query_request = msgspec.convert(request, models.AnalyzeTableQueryPlanRequest)
        return query.analyze_table_query_plan(context(self.datasets), query_request)
