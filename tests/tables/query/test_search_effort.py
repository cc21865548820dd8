"""Searches whose request leaves the effort open: what is chosen at each selectivity, and how much they find."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import lance
import msgspec
import numpy as np
import pyarrow as pa
import pytest
from lance_namespace.errors import InvalidInputError
from tests.tables.query.query_table import vectors

from tiltyard.model.spec import models
from tiltyard.storage.datasets import Datasets
from tiltyard.tables.query import search_effort
from tiltyard.tables.query.plan import plan_search
from tiltyard.tables.query.routes.route import Query, Refused
from tiltyard.tables.query.routes.scan import Scan
from tiltyard.tables.query.search_effort import choose_effort, flat_rows

if TYPE_CHECKING:
    from pathlib import Path

    from tiltyard.storage.caches.version_cache import CachedVersion
    from tiltyard.tables.query.search_effort import SearchEffort

ROWS = 20_000
DIMENSION = 32
CLIENT_DEFAULTS = {"nprobes": 20, "minimum_nprobes": 20, "maximum_nprobes": 20}


class IndexedTable:
    """Vectors in overlapping clusters with an index of many partitions, and what is nearest to some others."""

    def __init__(self, uri: str, index_type: str) -> None:
        rng = np.random.default_rng(5)
        scale = ((1 + np.arange(DIMENSION)) ** -0.5).astype(np.float32)
        centers = rng.normal(size=(200, DIMENSION))
        members = centers[rng.integers(0, 200, ROWS + 20)] + 0.7 * rng.normal(size=(ROWS + 20, DIMENSION))
        every = (members * scale).astype(np.float32)
        self.values, self.queries = every[:ROWS], every[ROWS:]
        self.ranks = rng.permutation(ROWS)
        table = pa.table({"id": range(ROWS), "rank": self.ranks, "vec": vectors(self.values, pa.float32())})
        dataset = lance.write_dataset(table, uri)
        options = {"num_sub_vectors": 8} if index_type == "IVF_PQ" else {}
        dataset.create_index("vec", index_type, num_partitions=100, **options)
        dataset.create_scalar_index("rank", "BTREE")
        self.snapshot: CachedVersion = Datasets(1 << 20, 1 << 20).open_snapshot(uri)

    def search(self, query: Any, **fields: Any) -> Any:
        request = {"vector": {"single_vector": query.tolist()}, "vector_column": "vec", "k": 10} | fields
        return plan_search(self.snapshot, msgspec.convert(request, models.QueryTableRequest))

    def effort(self, **fields: Any) -> SearchEffort | None:
        return choose_effort(self.search(self.queries[0], **fields))

    def recall(self, matching: int, **fields: Any) -> float:
        """Return the share of the ten nearest of the rows that match which searches find."""
        allowed = np.flatnonzero(self.ranks < matching)
        found = 0
        for query in self.queries:
            distances = ((self.values[allowed] - query) ** 2).sum(axis=1)
            nearest = set(allowed[np.argsort(distances)[:10]].tolist())
            search = self.search(query, filter=f"rank < {matching}", **fields)
            reader = next(Scan(Query(search, Refused("no caches"))).readers())
            found += len(nearest & {number for batch in reader for number in batch["id"].to_pylist()})
        return found / 10 / len(self.queries)


@pytest.fixture(scope="module", params=["IVF_PQ", "IVF_FLAT"])
def table(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> IndexedTable:
    return IndexedTable(str(tmp_path_factory.mktemp("effort") / "t.lance"), request.param)


@pytest.mark.parametrize("fields", [{}, CLIENT_DEFAULTS])
@pytest.mark.parametrize("matching", [20, 200, 2_000, 10_000, ROWS])
def test_search_that_leaves_the_effort_open_finds_the_nearest_at_each_selectivity(
    table: IndexedTable, matching: int, fields: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_effort, "MIN_FLAT_ROWS", 500)
    assert table.recall(matching, **fields) >= 0.95


def test_search_of_few_rows_compares_them_without_the_index(table: IndexedTable) -> None:
    effort = table.effort(filter="rank < 200")
    assert effort is not None
    assert effort.options == {"use_index": False}
    assert "the 200 rows of 20,000 that the filter leaves" in effort.line


def test_search_of_more_rows_probes_by_their_share(table: IndexedTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_effort, "MIN_FLAT_ROWS", 500)
    effort = table.effort(filter="rank < 10000", **CLIENT_DEFAULTS)
    assert effort is not None
    assert effort.options["nprobes"] == 80
    assert "nprobes 80" in effort.line
    nearest = effort.apply(table.search(table.queries[0], **CLIENT_DEFAULTS)).nearest[0]
    assert not {"minimum_nprobes", "maximum_nprobes"} & nearest.keys()


def test_search_whose_filter_applies_afterwards_is_one_without_a_filter(table: IndexedTable) -> None:
    effort = table.effort(filter="rank < 200", prefilter=False)
    assert effort == table.effort()
    assert effort is not None
    assert effort.options["nprobes"] == search_effort.PROBES


@pytest.mark.parametrize(
    "fields",
    [
        {"nprobes": 20},
        {"minimum_nprobes": 20},
        {"minimum_nprobes": 20, "maximum_nprobes": 30},
        {"refine_factor": 1},
        {"bypass_vector_index": True},
        {"fast_search": True},
        {"k": 1_001},
    ],
)
def test_search_that_says_its_effort_is_left_as_it_is(table: IndexedTable, fields: dict[str, Any]) -> None:
    assert table.effort(filter="rank < 200", **fields) is None


def test_rows_that_are_refined_are_bounded(table: IndexedTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_effort, "MIN_FLAT_ROWS", 500)
    for rows_to_find in (1, 10, 100, 1_000):
        effort = table.effort(filter="rank < 9000", k=rows_to_find)
        assert effort is not None
        assert effort.options.get("refine_factor", 1) * rows_to_find <= search_effort.MAX_CANDIDATES


def test_rows_to_compare_without_the_index_grow_with_the_table_within_bounds() -> None:
    assert flat_rows(300_000) == search_effort.MIN_FLAT_ROWS
    assert flat_rows(4_000_000) == 31_250
    assert flat_rows(1_000_000_000) == search_effort.MAX_FLAT_ROWS


def test_search_of_a_column_without_an_index_is_left_as_it_is(tmp_path: Path) -> None:
    table = pa.table({"vec": vectors(np.ones((5, 4), np.float32), pa.float32())})
    lance.write_dataset(table, str(tmp_path / "t.lance"))
    snapshot = Datasets(1 << 20, 1 << 20).open_snapshot(str(tmp_path / "t.lance"))
    request = msgspec.convert({"vector": {"single_vector": [1.0] * 4}, "k": 2}, models.QueryTableRequest)
    assert choose_effort(plan_search(snapshot, request)) is None


@pytest.mark.parametrize(
    ("rows", "share", "factor"),
    [(300_000, 1.0, 20), (1_000_000, 1.0, 67), (1_000_000, 0.03, 100), (10_000_000, 1.0, 200), (50, 1.0, 5)],
)
def test_more_rows_are_compared_by_their_vectors_where_more_have_equal_estimates(
    rows: int, share: float, factor: int
) -> None:
    assert search_effort._refine_factor(share, 10, rows) == factor


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"search_effort": 0.5}, {"minimum_nprobes": 40}),
        ({"search_effort": 0.5, "nprobes": 3}, {"minimum_nprobes": 40}),
        ({"search_effort": 0.5, "maximum_nprobes": 7}, {"minimum_nprobes": 7, "maximum_nprobes": 7}),
        ({"search_effort": 0.5, "minimum_nprobes": 60}, {"minimum_nprobes": 60}),
        ({"search_effort": 0.0}, {"search_effort": 0.0}),
        ({"search_effort": 0.0, "minimum_nprobes": 3}, {"search_effort": 0.0, "minimum_nprobes": 3}),
        ({"search_effort": 1.0, "nprobes": 3}, {"search_effort": 1.0, "minimum_nprobes": 40}),
        (
            {"search_effort": 1.0, "minimum_nprobes": 2, "maximum_nprobes": 9},
            {"search_effort": 1.0, "minimum_nprobes": 9, "maximum_nprobes": 9},
        ),
        ({"maximum_nprobes": 0}, {"minimum_nprobes": 40}),
    ],
)
def test_search_effort_of_a_request_overrides_its_nprobes_and_holds_within_its_bounds(
    table: IndexedTable, fields: dict[str, Any], expected: dict[str, Any]
) -> None:
    effort = table.effort(**fields)
    assert effort is not None
    assert {name: value for name, value in effort.options.items() if name != "refine_factor"} == expected


def test_more_search_effort_searches_more_partitions(table: IndexedTable) -> None:
    def searched(**fields: Any) -> int:
        query = Query(table.search(table.queries[0], **fields), Refused("no caches"))
        (scanner,) = Scan(query).scanners()
        return int(re.findall(r"partitions_searched=(\d+)", scanner.analyze_plan())[0])

    efforts = [searched(search_effort=effort) for effort in (0.0, 0.25, 0.5, 0.75, 1.0)]
    assert efforts == sorted(efforts)
    assert (efforts[0], efforts[2]) == (1, searched())
    assert efforts[4] > efforts[3] > efforts[2]
    assert searched(search_effort=1.0, maximum_nprobes=7) == 7
    assert searched(search_effort=0.0, minimum_nprobes=5) == 5


@pytest.mark.parametrize("effort", [-0.1, 1.1])
def test_search_effort_out_of_its_range_is_refused(table: IndexedTable, effort: float) -> None:
    with pytest.raises(InvalidInputError, match="search_effort is a number from 0 to 1"):
        table.search(table.queries[0], search_effort=effort)


def test_search_that_names_no_least_partitions_and_no_most_begins_at_its_nprobes(table: IndexedTable) -> None:
    nearest = table.search(table.queries[0], nprobes=5, maximum_nprobes=0).nearest[0]
    assert nearest["minimum_nprobes"] == 5
    assert not {"nprobes", "maximum_nprobes", "search_effort"} & nearest.keys()
