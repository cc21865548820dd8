"""Searches of vectors in memory: right rows and distances at every version, filters, plans, and the memory budget."""

from __future__ import annotations

import re
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import msgspec
import numpy as np
import pyarrow as pa
import pytest
from tests.tables.query.query_table import vectors

from tiltyard.model.branches import MAIN
from tiltyard.model.spec import models
from tiltyard.runtime.system_memory import SystemMemory
from tiltyard.storage.datasets import Datasets
from tiltyard.storage.vector_cache import cache, index, searched_column
from tiltyard.tables.query.plan import plan_search
from tiltyard.tables.query.routes.index_in_memory import IndexInMemory
from tiltyard.tables.query.routes.route import Caches, Purpose, Query, Refused
from tiltyard.upkeep import compaction

DIMENSION = 16


def rows(rng: np.random.Generator, first: int, count: int) -> pa.Table:
    values = rng.normal(size=(count, DIMENSION)).astype(np.float32)
    return pa.table(
        {
            "id": range(first, first + count),
            "kind": [n % 10 for n in range(count)],
            "vec": vectors(values, pa.float32()),
        }
    )


class Searched:
    """A dataset, and its latest version searched in memory and by numpy."""

    def __init__(self, uri: str, table: pa.Table, metric: str = "l2", max_bytes: int = 64 << 20) -> None:
        self.uri = uri
        self.metric = metric
        self.dataset = lance.write_dataset(table, uri, max_rows_per_file=900)
        self.dataset.create_index("vec", "IVF_FLAT", metric=metric, num_partitions=2)
        self.datasets = Datasets(1 << 20, 1 << 20, vector_cache_bytes=max_bytes)

    def request(self, query: Any, **fields: Any) -> models.QueryTableRequest:
        request = {"vector": {"single_vector": query}, "k": 10, "with_row_id": True} | fields
        return msgspec.convert(request, models.QueryTableRequest)

    def search(self, query: Any, **fields: Any) -> pa.Table | None:
        """Return the rows that memory finds, None where Lance answers."""
        offer = IndexInMemory.ask(self.asked(query, Purpose.RUN, **fields))
        if isinstance(offer, Refused):
            return None
        (reader,) = offer.readers()
        return pa.Table.from_batches(reader, reader.schema)

    def explain(self, query: Any, **fields: Any) -> str:
        """Return how memory answers, or why it does not."""
        offer = IndexInMemory.ask(self.asked(query, Purpose.EXPLAIN, **fields))
        return offer.reason if isinstance(offer, Refused) else offer.describe()

    def asked(self, query: Any, purpose: Purpose, **fields: Any) -> Query:
        caches = Caches((self.uri, MAIN), self.datasets.column_cache, self.datasets.vector_cache, 1)
        search = plan_search(self.datasets.open_snapshot(self.uri), self.request(query, **fields))
        return Query(search, caches, purpose)

    def warm(self, query: Any) -> None:
        """Search until the index is built and up to date."""
        for _ in range(searched_column.SEARCHES):
            self.search(query)
        self.datasets.vector_cache.wait()
        self.search(query)
        self.datasets.vector_cache.wait()

    def check(self, query: Any, filter_: str | None = None, k: int = 10) -> float:
        """Check the rows of a search against the latest version; return the share of the nearest that it found."""
        found = self.search(query, filter=filter_, k=k)
        if found is None:  # too many rows are new to the index: it is built anew
            self.warm(query)
            found = self.search(query, filter=filter_, k=k)
        assert found is not None, self.explain(query, filter=filter_, k=k)
        version = lance.dataset(self.uri)
        columns = {"columns": ["id", "kind", "vec"], "with_row_id": True}
        table = version.to_table(**columns, **({"filter": filter_} if filter_ else {}))  # type: ignore[arg-type]
        valid = table.filter(table["vec"].is_valid())
        matrix = valid["vec"].combine_chunks().flatten().to_numpy().reshape(-1, DIMENSION)
        target = np.asarray(query, np.float32)
        if self.metric == "l2":
            distances = ((matrix - target) ** 2).sum(axis=1)
        else:
            distances = 1 - matrix @ target / np.linalg.norm(matrix, axis=1) / np.linalg.norm(target)
        by_row = dict(
            zip(valid["_rowid"].to_pylist(), zip(valid["id"].to_pylist(), distances, strict=True), strict=True)
        )
        assert found.num_rows == min(k, len(by_row))
        result = found["_distance"].to_pylist()
        assert result == sorted(result)
        assert len(set(found["_rowid"].to_pylist())) == found.num_rows
        for row in found.to_pylist():
            number, distance = by_row[row["_rowid"]]
            assert row["id"] == number
            assert row["_distance"] == pytest.approx(distance, rel=1e-4, abs=1e-5)
        nearest = set(np.array(list(by_row))[np.argsort(distances)[:k]].tolist())
        return len(nearest & set(found["_rowid"].to_pylist())) / len(nearest) if nearest else 1.0


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.fixture(autouse=True)
def _small_thresholds(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make partitions, and let rows move to them, for tables of a test's size."""
    monkeypatch.setattr(index, "_EXACT_ROWS", 100)
    monkeypatch.setattr(cache, "EXTEND_ROWS", 200)
    monkeypatch.setattr(searched_column, "SPARE_ROWS", 400)
    return


def compact_in_turn(dataset: lance.LanceDataset, step: int) -> None:
    """Compact as any client does, or by a commit that leaves the index as it is, as one that is large."""
    if step % 2:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(compaction, "MAX_REMAPPED_ROWS", 0)
            patch.setattr(compaction, "MAX_LEFT_SHARE", 1)
            compaction.compact(dataset, compaction.plan_whole_compaction(dataset, 1200), extends_indexes=True)
    else:
        dataset.optimize.compact_files(target_rows_per_fragment=1200)


def change(table: Searched, rng: np.random.Generator, step: int) -> None:
    """Change the table in a random way."""
    dataset = lance.dataset(table.uri)
    low = int(rng.integers(0, 2000))
    match rng.integers(0, 7):
        case 0 | 1:
            lance.write_dataset(rows(rng, 10_000 * (step + 1), int(rng.integers(1, 300))), table.uri, mode="append")
        case 2:
            dataset.delete(f"id >= {low} AND id < {low + 150}")
        case 3:
            dataset.update({"kind": "3"}, where=f"id >= {low} AND id < {low + 50}")
        case 4:
            source = rows(rng, low, 60)
            dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(source)
        case 5:
            compact_in_turn(dataset, step)
        case _:
            past = int(rng.integers(max(2, dataset.version - 4), dataset.version + 1))
            lance.dataset(table.uri, version=past).restore()


@pytest.mark.parametrize("metric", ["l2", "cosine"])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.extended) for seed in range(1, 4))])
def test_every_version_has_the_right_rows_and_distances(tmp_path: Path, seed: int, metric: str) -> None:
    rng = np.random.default_rng(seed)
    table = Searched(str(tmp_path / "t"), rows(rng, 0, 2000), metric)
    shares, answered = [], 0
    table.warm(rng.normal(size=DIMENSION).tolist())
    for step in range(25):
        change(table, rng, step)
        query = rng.normal(size=DIMENSION).tolist()
        for filter_ in (None, "kind = 3", "id < 40", "id > 1000000"):
            shares.append(table.check(query, filter_))
            answered += 1
    assert answered == 100
    assert np.mean(shares) >= 0.95
    table.datasets.vector_cache.close()


def test_rows_are_added_while_another_column_is_built(tmp_path: Path, rng: np.random.Generator) -> None:
    table = Searched(str(tmp_path / "t"), rows(rng, 0, 2000))
    vector_cache, query = table.datasets.vector_cache, rng.normal(size=DIMENSION).tolist()
    table.warm(query)
    released = threading.Event()
    vector_cache._builders.submit(released.wait)
    lance.write_dataset(rows(rng, 10_000, 250), table.uri, mode="append")
    assert table.check(query) >= 0.9
    vector_cache._extenders.submit(int).result()
    (entry,) = vector_cache._entries.values()
    latest = table.datasets.open_snapshot(table.uri)
    assert entry.index is not None
    assert entry.index.rows == 2250
    assert len(entry.versions[latest.dataset].others) == 0  # without another search
    assert table.check(query) >= 0.9
    released.set()


def test_recall_at_each_selectivity(tmp_path: Path, rng: np.random.Generator) -> None:
    table = Searched(str(tmp_path / "t"), rows(rng, 0, 6000))
    table.warm([0.0] * DIMENSION)
    for limit in (6, 60, 600, 3000, 6000):
        shares = [table.check(rng.normal(size=DIMENSION).tolist(), f"id < {limit}") for _ in range(20)]
        assert np.mean(shares) >= 0.95, limit


def test_responses_are_those_of_lance(tmp_path: Path, rng: np.random.Generator) -> None:
    table = Searched(str(tmp_path / "t"), rows(rng, 0, 2000))
    query = rng.normal(size=DIMENSION).tolist()
    table.warm(query)
    for fields in (
        {},
        {"columns": {"column_names": ["kind", "id"]}},
        {"columns": {"column_names": ["id"]}, "with_row_id": False, "offset": 3, "k": 4},
        {"columns": {"column_names": ["_distance"]}, "filter": "kind = 2"},
        {"nprobes": 20, "refine_factor": 2},
        {"offset": 5000},
    ):
        fields.setdefault("nprobes", 2)  # all partitions: Lance's response is exact
        found = table.search(query, **fields)
        search = plan_search(table.datasets.open_snapshot(table.uri), table.request(query, **fields))
        expected = next(iter(search.scanners())).to_table()
        assert found is not None
        assert found.schema.equals(expected.schema, check_metadata=True)
        assert found.drop(["_distance"]).equals(expected.drop(["_distance"]))
        assert np.allclose(found["_distance"], expected["_distance"], rtol=1e-4)


def test_null_vectors_are_never_found_and_rows_come_back_by_a_restore(tmp_path: Path, rng: np.random.Generator) -> None:
    content = rows(rng, 0, 500)
    values = pa.array(
        [None if n % 5 == 0 else v for n, v in enumerate(content["vec"].to_pylist())], content["vec"].type
    )
    table = Searched(str(tmp_path / "t"), content.set_column(2, "vec", values))
    before = lance.dataset(table.uri).version
    lance.dataset(table.uri).delete("id < 100")
    query = rng.normal(size=DIMENSION).tolist()
    table.warm(query)
    assert table.check(query, k=500) == 1.0
    lance.dataset(table.uri, version=before).restore()
    assert table.check(query, k=500) == 1.0


def test_the_plan_says_what_answers(tmp_path: Path, rng: np.random.Generator) -> None:
    table = Searched(str(tmp_path / "t"), rows(rng, 0, 600))
    query = rng.normal(size=DIMENSION).tolist()
    assert table.explain(query) == "Lance searches: too few searches yet"
    table.warm(query)
    plan = table.explain(query)
    since = r"since 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC"
    words = rf"the index in memory answers {since}, with 100\.0% of the rows in it, and reads \d+ of \d+ partitions and"
    assert re.match(words, plan), plan
    lance.write_dataset(rows(rng, 600, 150), table.uri, mode="append")
    assert "with 80.0% of the rows in it" in table.explain(query)
    for fields, reason in (
        ({"bypass_vector_index": True}, "bypasses indexes"),
        ({"distance_type": "cosine"}, "another distance type"),
        ({"filter": "id < 5", "prefilter": False}, "after the search"),
        ({"upper_bound": 3.0}, "distance_range"),
        ({"fast_search": True}, "fast_search"),
        ({"columns": {"column_aliases": {"x": "id + 1"}}}, "whole columns"),
    ):
        assert reason in table.explain(query, **fields)
        assert table.search(query, **fields) is None


def test_what_cannot_be_kept_is_left_to_lance(tmp_path: Path, rng: np.random.Generator) -> None:
    table = Searched(str(tmp_path / "t"), rows(rng, 0, 600), max_bytes=10_000)
    query = rng.normal(size=DIMENSION).tolist()
    table.warm(query)
    assert table.search(query) is None
    assert "vector_cache_bytes" in table.explain(query)
    assert table.datasets.vector_cache.size == 0


def test_vectors_that_are_not_finite_are_left_to_lance(tmp_path: Path, rng: np.random.Generator) -> None:
    content = rows(rng, 0, 300)
    table = Searched(str(tmp_path / "t"), content)
    values = content["vec"].to_pylist()
    values[7][3] = float("inf")
    infinite = pa.array(values, content["vec"].type)
    lance.write_dataset(content.set_column(2, "vec", infinite), table.uri, mode="append")
    query = rng.normal(size=DIMENSION).tolist()
    table.warm(query)
    assert table.search(query) is None
    assert "not finite" in table.explain(query)


def test_the_index_searched_least_recently_is_dropped(tmp_path: Path, rng: np.random.Generator) -> None:
    first = Searched(str(tmp_path / "a"), rows(rng, 0, 1000), max_bytes=400_000)
    second = Searched(str(tmp_path / "b"), rows(rng, 0, 1000))
    second.datasets = first.datasets
    query = rng.normal(size=DIMENSION).tolist()
    first.warm(query)
    assert first.search(query) is not None
    second.warm(query)
    assert second.search(query) is not None
    assert first.search(query) is None
    assert "took its memory" in first.explain(query)
    assert first.datasets.vector_cache.size <= 400_000
    first.datasets.evict(second.uri)
    assert first.datasets.vector_cache.size == 0


def three_warm(folder: Path, rng: np.random.Generator) -> list[Searched]:
    """Return three tables with an index in memory in one process, the one searched least recently first."""
    tables = [Searched(str(folder / name), rows(rng, 0, 1000)) for name in "abc"]
    for table in tables:
        table.datasets = tables[0].datasets
        table.warm([0.0] * DIMENSION)
    tables[0].search([0.0] * DIMENSION)
    return [tables[1], tables[2], tables[0]]


def test_indexes_are_dropped_while_memory_is_short_those_searched_least_recently_first(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    tables, query = three_warm(tmp_path, rng), [0.0] * DIMENSION
    vector_cache = tables[0].datasets.vector_cache
    each = vector_cache.size // 3
    indexes = [weakref.ref(entry.index) for entry in vector_cache._entries.values()]
    vector_cache._read_memory = lambda: SystemMemory(10 * each, each)
    assert vector_cache.drop_unneeded() == 0
    vector_cache._read_memory = lambda: SystemMemory(10 * each, 0)
    tables[0].explain(query)  # counts as no search
    assert vector_cache.drop_unneeded() == each
    assert [table.search(query) is None for table in tables] == [True, False, False]
    assert tables[0].explain(query) == "Lance searches: memory is short on this machine"
    assert [index() is None for index in indexes] == [True, False, False]
    vector_cache._read_memory = lambda: SystemMemory(20 * each, each // 2)
    assert vector_cache.drop_unneeded() == 2 * each
    assert vector_cache.size == 0


def test_no_build_starts_that_would_make_memory_short(tmp_path: Path, rng: np.random.Generator) -> None:
    table, query = Searched(str(tmp_path / "t"), rows(rng, 0, 1000)), [0.0] * DIMENSION
    vector_cache = table.datasets.vector_cache
    vector_cache._read_memory = lambda: SystemMemory(1 << 30, (1 << 30) // 10 + 1000)
    table.warm(query)
    assert table.explain(query) == "Lance searches: memory is short on this machine"
    (entry,) = vector_cache._entries.values()
    assert entry.building_bytes == 0
    vector_cache._read_memory = lambda: SystemMemory(1 << 30, 1 << 30)
    entry.retry_at = 0
    table.warm(query)
    assert table.search(query) is not None


def test_a_build_that_runs_counts_and_ends_while_memory_is_short(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, query = Searched(str(tmp_path / "t"), rows(rng, 0, 1000)), [0.0] * DIMENSION
    vector_cache = table.datasets.vector_cache
    began, released = threading.Event(), threading.Event()
    make_partitions = index.MemoryIndex.make_partitions

    def pause(self: index.MemoryIndex, check: Any) -> None:
        began.set()
        assert released.wait(30)
        make_partitions(self, check)

    monkeypatch.setattr(index.MemoryIndex, "make_partitions", pause)
    for _ in range(searched_column.SEARCHES):
        table.search(query)
    assert began.wait(30)
    assert vector_cache.size > 1000 * index.bytes_of_row(DIMENSION)
    vector_cache._read_memory = lambda: SystemMemory(1 << 30, 0)
    assert vector_cache.drop_unneeded() > 1000 * index.bytes_of_row(DIMENSION)
    assert vector_cache.size == 0
    released.set()
    vector_cache.wait()
    assert table.search(query) is None
    assert table.explain(query) == "Lance searches: memory is short on this machine"
    assert vector_cache.size == 0


def test_an_index_without_a_search_for_half_an_hour_is_dropped(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a process that was not asked to drop the table, too."""
    table, query = Searched(str(tmp_path / "t"), rows(rng, 0, 1000)), [0.0] * DIMENSION
    own, of_another_process = table.datasets, Datasets(1 << 20, 1 << 20, vector_cache_bytes=64 << 20)
    for table.datasets in (own, of_another_process):
        table.warm(query)
    own.evict(table.uri)
    assert own.vector_cache.size == 0
    later = cache.monotonic() + cache.UNUSED_SECONDS - 60
    monkeypatch.setattr(cache, "monotonic", lambda: later)
    assert of_another_process.vector_cache.drop_unneeded() == 0
    later += 120
    size = of_another_process.vector_cache.size
    assert size and of_another_process.vector_cache.drop_unneeded() == size
    assert table.explain(query) == "Lance searches: too few searches yet"


class PanicException(BaseException):  # named and derived as that of Rust's code
    """A panic of Lance or FAISS."""


@pytest.mark.parametrize("error", [PanicException, RuntimeError])
@pytest.mark.parametrize("is_added", [False, True])
def test_extension_that_is_cut_off_at_any_of_its_steps_leaves_answers_exact(
    tmp_path: Path,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
    error: type[BaseException],
    is_added: bool,
) -> None:
    """An error before or after each piece of new fragments is added: what is half in the index is in no answer."""
    add, left = index.MemoryIndex.add, -1

    def fail_at_last(self: index.MemoryIndex, addresses: Any, values: Any) -> None:
        nonlocal left
        left -= 1
        if is_added or left:
            add(self, addresses, values)
        if not left:
            raise error("cut off")

    monkeypatch.setattr(cache, "_RETRY_SECONDS", 0.0)
    monkeypatch.setattr(index, "_EXACT_ROWS", 10_000)
    monkeypatch.setattr(searched_column, "SPARE_ROWS", 2000)
    table = Searched(str(tmp_path / "t"), rows(rng, 0, 1000))
    query, steps = rng.normal(size=DIMENSION).tolist(), -(-250 // cache._EXTENSION_ROWS)
    table.warm(query)
    monkeypatch.setattr(index.MemoryIndex, "add", fail_at_last)
    for step in range(1, steps + 1):
        table.warm(query)
        for first in (0, 125):
            lance.write_dataset(rows(rng, 10_000 * step + first, 125), table.uri, mode="append")
        left = step
        assert table.check(query) == 1
        table.datasets.vector_cache.wait()
        assert left == 0, "no extension came so far"
        assert "could not be read" in table.explain(query)
        for filter_ in (None, f"id >= {10_000 * step}"):
            assert table.check(query, filter_) == 1
    table.datasets.vector_cache.close()


@pytest.mark.parametrize("metric", ["l2", "cosine"])
def test_codes_of_a_filter_that_repeats_answer_it_at_every_version(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, metric: str
) -> None:
    """Also once rows are deleted and added: each version has codes of its own rows, once it is searched often."""
    monkeypatch.setattr(index, "_FEW_ROWS", 50)
    table = Searched(str(tmp_path / "t"), rows(rng, 0, 3000), metric)
    query = rng.normal(size=DIMENSION).tolist()
    table.warm(query)
    vector_cache = table.datasets.vector_cache
    for step in range(3):
        for _ in range(2):
            shares = [table.check(rng.normal(size=DIMENSION).tolist(), "kind < 4") for _ in range(20)]
            vector_cache.wait()
            assert np.mean(shares) >= 0.95
        latest = table.datasets.open_snapshot(table.uri).dataset
        (entry,) = vector_cache._entries.values()
        assert entry.versions[latest].filters["kind < 4"].allowed.packed is not None
        dataset = lance.dataset(table.uri)
        dataset.delete(f"id % 50 = {step}")
        lance.write_dataset(rows(rng, 10_000 * (step + 1), 150), table.uri, mode="append")
    vector_cache.close()
