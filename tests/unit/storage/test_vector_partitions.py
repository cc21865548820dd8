"""Vectors in memory by partition: the effort is chosen by what it finds, for any dimension; distances are exact."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tiltyard.storage.vector_cache import codes
from tiltyard.storage.vector_cache import index as vector_index
from tiltyard.storage.vector_cache.allowed_rows import Allowed
from tiltyard.storage.vector_cache.index import RECALL, Effort, MemoryIndex

NEAREST = 10
Matrix = np.ndarray[Any, np.dtype[np.float32]]


def build(values: Matrix, metric: str = "l2", spare: int = 500) -> MemoryIndex:
    """Return an index of all rows, whose addresses are their places and a hundred more."""
    made = MemoryIndex(values.shape[1], metric, len(values) + spare)
    made.add(np.arange(len(values), dtype=np.uint64) + np.uint64(100), values)
    made.make_partitions(lambda: None)
    return made


def first_rows(index: MemoryIndex, count: int) -> Allowed:
    return Allowed.of(np.arange(index.capacity) < count, np.zeros(0, bool))


def every_row(index: MemoryIndex) -> Allowed:
    return first_rows(index, index.rows)


def recall(index: MemoryIndex, values: Matrix, queries: Matrix) -> float:
    """Return the share of the nearest rows that are found; distances of those that are found must be right."""
    shares = []
    for query in queries:
        distances = ((values - query) ** 2).sum(axis=1)
        [(addresses, found)] = index.search(query[np.newaxis], NEAREST, every_row(index), Effort())
        places = addresses.astype(int) - 100
        scale = 1 if index.metric == "l2" else 2
        assert np.allclose(found, distances[places] / scale, rtol=1e-4, atol=1e-5)
        assert list(found) == sorted(found)
        shares.append(len(set(np.argsort(distances)[:NEAREST]) & set(places)) / NEAREST)
    return float(np.mean(shares))


@pytest.mark.parametrize("dimension", [3, 17, 64, 130, 258])
def test_vectors_of_any_dimension(dimension: int) -> None:
    rng = np.random.default_rng(1)
    centers = rng.normal(size=(40, dimension))
    values = (centers[rng.integers(0, 40, 6000)] + 0.5 * rng.normal(size=(6000, dimension))).astype(np.float32)
    queries = (centers[rng.integers(0, 40, 50)] + 0.5 * rng.normal(size=(50, dimension))).astype(np.float32)
    index = build(values)
    assert index.recall >= RECALL
    assert recall(index, values, queries) >= 0.95
    assert "of 77 partitions" in index.describe()


def test_vectors_without_clusters_take_more_partitions() -> None:
    """Of evenly spread vectors a search has to read most of the partitions; the effort follows what it finds."""
    rng = np.random.default_rng(2)
    values = rng.normal(size=(8000, 96)).astype(np.float32)
    index = build(values)
    assert index._effort.probes > 40
    assert recall(index, values, rng.normal(size=(40, 96)).astype(np.float32)) >= 0.95


def test_cosine_is_half_of_the_squared_distance() -> None:
    values = np.random.default_rng(3).normal(size=(5000, 24)).astype(np.float32)
    values /= np.linalg.norm(values, axis=1, keepdims=True)
    assert recall(build(values, "cosine"), values, values[:30]) >= 0.95


def test_few_rows_are_compared_one_by_one() -> None:
    values = np.random.default_rng(4).normal(size=(vector_index._EXACT_ROWS, 8)).astype(np.float32)
    index = build(values)
    assert index.describe() == "compares all rows"
    assert recall(index, values, values[:20]) == 1.0


def test_rows_added_later_are_found() -> None:
    rng = np.random.default_rng(5)
    values = rng.normal(size=(6000, 32)).astype(np.float32)
    index = build(values[:5600])
    for start in range(5600, 6000, 50):
        index.add(np.arange(start + 100, start + 150, dtype=np.uint64), values[start : start + 50])
    assert recall(index, values, values[5600:6000:10]) >= 0.95
    assert index.search(values[5999:], 1, every_row(index), Effort())[0][0].tolist() == [6099]


def test_many_equal_vectors() -> None:
    """Fewer different vectors than partitions: no partition is learnt from nothing, and all rows can be found."""
    values = np.repeat(np.eye(4, 16, dtype=np.float32), 1500, axis=0)
    index = build(values)
    [(addresses, distances)] = index.search(values[:1], 1500, every_row(index), Effort())
    assert not distances.any()
    assert set(addresses.tolist()) == set(range(100, 1600))


def test_a_request_may_widen_a_search_and_never_narrows_it() -> None:
    rng = np.random.default_rng(6)
    values = rng.normal(size=(6000, 64)).astype(np.float32)
    index = build(values)
    query = values[9:10] + np.float32(0.01)
    [narrow] = index.search(query, NEAREST, every_row(index), Effort(probes=1, candidates=1))
    assert np.array_equal(narrow[0], index.search(query, NEAREST, every_row(index), Effort())[0][0])
    [wide] = index.search(query, NEAREST, every_row(index), Effort(probes=10_000, candidates=6000))
    assert set(wide[0].astype(int) - 100) == set(np.argsort(((values - query) ** 2).sum(axis=1))[:NEAREST])


def test_several_queries_find_what_each_finds_alone() -> None:
    """Also where one of them finds too few rows in the partitions that it reads, and where all rows are compared."""
    rng = np.random.default_rng(8)
    values = rng.normal(size=(9000, 48)).astype(np.float32)
    index = build(values)
    for rows, count in ((9000, NEAREST), (5000, 1200), (4000, NEAREST), (200, NEAREST)):
        allowed = first_rows(index, rows)
        together = index.search(values[:16], count, allowed, Effort())
        assert [len(addresses) for addresses, _ in together] == [count] * 16
        for place, (addresses, distances) in enumerate(together):
            [alone] = index.search(values[place : place + 1], count, allowed, Effort())
            assert np.array_equal(addresses, alone[0])
            assert np.allclose(distances, alone[1])


def test_work_ends_where_nobody_waits_for_it() -> None:
    class StoppedError(Exception):
        pass

    values = np.random.default_rng(7).normal(size=(6000, 16)).astype(np.float32)
    calls = []
    build_calls = MemoryIndex(16, "l2", 6000)
    build_calls.add(np.arange(6000, dtype=np.uint64), values)
    build_calls.make_partitions(lambda: calls.append(1))
    for last in (1, 5, len(calls)):
        index = MemoryIndex(16, "l2", 6000)
        index.add(np.arange(6000, dtype=np.uint64), values)
        left = iter(range(last - 1))

        def check(left: Any = left) -> None:
            if next(left, None) is None:
                raise StoppedError

        with pytest.raises(StoppedError):
            index.make_partitions(check)


def correlated(rows: int = 20_000, dimension: int = 64) -> tuple[Matrix, Matrix, dict[str, np.ndarray[Any, Any]]]:
    """Vectors and queries in clusters, and filters of them: by chance, by direction, and by cluster."""
    rng = np.random.default_rng(11)
    scale = ((1 + np.arange(dimension)) ** -0.5).astype(np.float32)
    centers = rng.normal(size=(300, dimension))
    clusters = rng.integers(0, 300, rows)
    values = ((centers[clusters] + 0.7 * rng.normal(size=(rows, dimension))) * scale).astype(np.float32)
    queries = ((centers[rng.integers(0, 300, 60)] + 0.7 * rng.normal(size=(60, dimension))) * scale).astype(np.float32)
    along = values[:, 0] + 0.5 * values[:, 1]
    return (
        values,
        queries,
        {
            "a tenth by chance": rng.random(rows) < 0.1,
            "the tenth farthest in one direction": along > np.quantile(along, 0.9),
            "the tenth farthest in the other": along < np.quantile(along, 0.1),
            "the half in one direction": along > np.quantile(along, 0.5),
            "a few clusters": clusters < 90,
            "all but a few clusters": clusters >= 60,
        },
    )


def filtered_recall(index: MemoryIndex, values: Matrix, queries: Matrix, allowed: Allowed, is_allowed: Any) -> float:
    """Return the share of the nearest allowed rows that are found; all rows that are found must be allowed."""
    places, shares = np.flatnonzero(is_allowed), []
    for query in queries:
        distances = ((values[places] - query) ** 2).sum(axis=1)
        [(addresses, found)] = index.search(query[np.newaxis], NEAREST, allowed, Effort())
        rows = addresses.astype(int) - 100
        assert is_allowed[rows].all()
        assert np.allclose(found, ((values[rows] - query) ** 2).sum(axis=1), rtol=1e-4, atol=1e-5)
        shares.append(len(set(places[np.argsort(distances)[:NEAREST]]) & set(rows)) / NEAREST)
    return float(np.mean(shares))


@pytest.mark.parametrize("compared_bytes", [1 << 18, 2 << 20])
def test_recall_does_not_depend_on_whether_a_filter_goes_with_the_vectors(
    monkeypatch: pytest.MonkeyPatch, compared_bytes: int
) -> None:
    """Both where all codes of the rows that a filter allows are compared, and where partitions are chosen."""
    monkeypatch.setattr(codes, "MIN_COMPARED_BYTES", compared_bytes)
    monkeypatch.setattr(codes, "MAX_WHOLE_BYTES", compared_bytes)
    monkeypatch.setattr(vector_index, "_EXACT_ROWS", 1500)
    values, queries, filters = correlated()
    index = build(values)
    for name, is_allowed in filters.items():
        mask = np.zeros(index.capacity, bool)
        mask[: len(values)] = is_allowed
        allowed = Allowed.of(mask, np.zeros(0, bool))
        filtered_recall(index, values, queries[:2], allowed, is_allowed)
        assert not index.should_pack(allowed)
        first = filtered_recall(index, values, queries, allowed, is_allowed)
        assert first >= 0.95, (name, first)
        if "all but" in name:
            assert not index.should_pack(allowed)
            continue
        assert index.should_pack(allowed)
        index.pack(allowed, lambda: None)
        packed = filtered_recall(index, values, queries, allowed, is_allowed)
        assert packed >= 0.97, (name, packed)


def test_partitions_named_by_a_request_are_the_least_that_a_filtered_search_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(codes, "MIN_COMPARED_BYTES", 1)
    values, queries, _ = correlated()
    index = build(values)
    assert index._reader is not None
    allowed = first_rows(index, 12_000)
    few, many = (index._reader.read(queries[:3], allowed, 1000, probes).numbers for probes in (0, 100))
    read = allowed.counts
    assert read is not None
    for numbers in few:
        chosen = numbers[numbers >= 0]
        assert read[chosen].sum() >= 1000 > read[chosen[:-1]].sum()
        distances = ((index._reader._centroids - queries[list(few.tolist()).index(numbers.tolist())]) ** 2).sum(axis=1)
        assert (np.diff(distances[chosen]) >= -1e-3).all()
    assert many.shape[1] == 100


def test_codes_of_filters_searched_least_recently_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    values, queries, filters = correlated()
    index = build(values)
    kept = []
    for name in ("a tenth by chance", "the half in one direction", "a few clusters"):
        mask = np.zeros(index.capacity, bool)
        mask[: len(values)] = filters[name]
        allowed = Allowed.of(mask, np.zeros(0, bool))
        index.search(queries[:1], NEAREST, allowed, Effort())
        index.pack(allowed, lambda: None)
        kept.append(allowed)
    assert all(allowed.packed is not None for allowed in kept)
    size = sum(allowed.packed.nbytes for allowed in kept[1:] if allowed.packed is not None)
    monkeypatch.setattr(vector_index, "_packed_bytes_of_row", lambda _: size / index.capacity)
    kept[0].forget_packed()
    index.search(queries[:1], NEAREST, kept[0], Effort())
    index.pack(kept[0], lambda: None)
    assert [allowed.packed is not None for allowed in kept] == [True, False, True]
    assert kept[1].searches == 0


def test_rows_added_later_are_found_by_filters() -> None:
    rng = np.random.default_rng(12)
    values = rng.normal(size=(9000, 33)).astype(np.float32)
    index = build(values[:8000], spare=1500)
    for start in range(8000, 9000, 50):
        index.add(np.arange(start + 100, start + 150, dtype=np.uint64), values[start : start + 50])
    is_allowed = np.arange(9000) >= 4000
    mask = np.zeros(index.capacity, bool)
    mask[:9000] = is_allowed
    allowed = Allowed.of(mask, np.zeros(0, bool))
    for is_packed in (False, True):
        if is_packed:
            index.pack(allowed, lambda: None)
        assert filtered_recall(index, values, values[8000:9000:20], allowed, is_allowed) >= 0.95
