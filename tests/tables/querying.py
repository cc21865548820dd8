"""Queries without a catalog: the functions under test, on one dataset of real rows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import msgspec
import numpy as np
import pyarrow as pa

from tiltyard.context import Context, OpenTable
from tiltyard.model.ids import MAIN_BRANCH
from tiltyard.model.spec import models
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
    """What operations need of a server that has nothing but open tables."""
    return Context(cast("Services", SimpleNamespace(storage=SimpleNamespace(datasets=datasets))))


def vectors(values: np.ndarray[Any, Any], kind: pa.DataType) -> pa.Array:
    """One vector a row."""
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1), kind), values.shape[1])


def rows(count: int, seed: int = 3, start: int = 0) -> pa.Table:
    """Rows with text and vectors of every kind."""
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
    """The operations on one dataset; `request` is given as JSON has it.

    Each query runs twice, without rows in memory and with them: both answers have to be the same.
    """

    def __init__(self, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.uri = uri
        self.datasets = Datasets(64 << 20, 64 << 20)
        self.caching = Datasets(0, 0, column_cache_bytes=64 << 20)
        monkeypatch.setattr(query, "open_for_reading", self._open)
        monkeypatch.setattr(query, "open_within", self._open_within)

    def _open(
        self, ctx: Context, names: list[str] | None, *, branch: str | None = None, version: int | None = None
    ) -> OpenTable:
        record = cast("Any", SimpleNamespace(location=self.uri))
        return OpenTable(record, self.datasets.open_for_reading(self.uri, {}, branch, version))

    def _open_within(
        self, ctx: Context, names: list[str] | None, branch: str | None = None, version: int | None = None
    ) -> tuple[OpenTable, None]:
        """No policies bind whoever asks."""
        return self._open(ctx, names, branch=branch, version=version), None

    def query(self, **request: Any) -> pa.Table:
        """What QueryTable answers; `k` is 10 unless given."""
        asked = self._request(request)
        answer = query.query_table(context(self.datasets), asked)
        found = pa.Table.from_batches(answer.batches, answer.schema)
        self._check_from_memory(asked, found)
        return found

    def _check_from_memory(self, asked: models.QueryTableRequest, found: pa.Table) -> None:
        """The same query once all columns that can be kept are in memory."""
        pages, place = self.caching.column_cache, (self.uri, asked.branch or MAIN_BRANCH)
        dataset = self.datasets.open_for_reading(self.uri, {}, asked.branch)
        if dataset.count_rows() == 0:
            return
        pages.load(place, dataset, None)
        answer = query.query_table(context(self.caching), asked)
        again = pa.Table.from_batches(answer.batches, answer.schema)
        assert again.schema.equals(found.schema, check_metadata=True)
        if "_score" in again.schema.names:  # Lance has rows of the same score in any order
            assert again["_score"].equals(found["_score"])
            assert sorted(map(repr, again.to_pylist())) == sorted(map(repr, found.to_pylist()))
        else:
            assert again.equals(found)

    def batches(self, **request: Any) -> Generator[pa.RecordBatch, None, None]:
        """The batches of an answer, as they come."""
        yield from query.query_table(context(self.datasets), self._request(request)).batches

    def ids(self, **request: Any) -> list[int]:
        """The column `id` of an answer."""
        found: list[int] = self.query(columns={"column_names": ["id"]}, **request)["id"].to_pylist()
        return found

    def _request(self, request: dict[str, Any]) -> models.QueryTableRequest:
        return msgspec.convert({"vector": None, "k": 10} | request, models.QueryTableRequest)

    def count(self, **request: Any) -> int:
        """What CountTableRows answers."""
        return query.count_table_rows(context(self.datasets), msgspec.convert(request, models.CountTableRowsRequest))

    def explain(self, **request: Any) -> str:
        """What ExplainTableQueryPlan answers."""
        asked = msgspec.convert(request, models.ExplainTableQueryPlanRequest)
        return query.explain_table_query_plan(context(self.datasets), asked)

    def analyze(self, **request: Any) -> str:
        """What AnalyzeTableQueryPlan answers."""
        asked = msgspec.convert(request, models.AnalyzeTableQueryPlanRequest)
        return query.analyze_table_query_plan(context(self.datasets), asked)
