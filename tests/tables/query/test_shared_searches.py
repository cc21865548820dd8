"""Vector searches that wait for a processor are answered together, each with the rows that it finds alone."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from tests.tables.query.query_table import rows

from tiltyard.storage.caches.version_cache import CachedVersion
from tiltyard.tables.query.plan import Search
from tiltyard.tables.query.routes import shared_search
from tiltyard.tables.query.routes.shared_search import MAX_BATCH, SharedSearches, can_share

if TYPE_CHECKING:
    from pathlib import Path

    from tiltyard.tables.query.routes.shared_search import _Queue

SECONDS = 60.0
make_scanner = shared_search.make_scanner


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> CachedVersion:
    """Return rows with an IVF_PQ on `vec`, some of them deleted, and some that are not in the index."""
    uri = str(tmp_path_factory.mktemp("shared") / "t.lance")
    lance.write_dataset(rows(2000), uri).create_index("vec", "IVF_PQ", num_partitions=8, num_sub_vectors=4)
    lance.write_dataset(rows(50, seed=4, start=2000), uri, mode="append")
    lance.dataset(uri).delete("id % 5 = 0")
    return CachedVersion(lance.dataset(uri))


def search(snapshot: CachedVersion, seed: int, **nearest: Any) -> Search:
    vector = pa.array(np.random.default_rng(seed).random(8, np.float32))
    columns = ["_distance", "_rowid"]
    options = {"prefilter": True, "columns": columns, "disable_scoring_autoprojection": True}
    return Search(snapshot, options, ({"column": "vec", "q": vector, "k": 7} | nearest,), False, frozenset(), 7)


class Gate:
    """Scanners: the first waits until so many searches wait for it; `made` are the numbers of their vectors."""

    def __init__(self, searches: SharedSearches, waiting: int) -> None:
        self._searches = searches
        self._waiting = waiting
        self.made: list[int] = []
        self.fails = False

    def make(self, dataset: lance.LanceDataset, options: Any, nearest: Any) -> Any:
        self.made.append(len(nearest["q"]))
        if len(self.made) == 1:
            until = threading.Event()
            for _ in range(int(SECONDS * 100)):
                if self._count() >= self._waiting or until.wait(0.01):
                    break
        if len(nearest["q"]) > 1 and self.fails:
            raise OSError("no batch today")
        return make_scanner(dataset, options, nearest)

    def _count(self) -> int:
        queues: list[_Queue] = list(self._searches._queues.values())
        return sum(len(queue.waiting) for queue in queues)


def alone(one: Search) -> pa.Table:
    return make_scanner(one.dataset, one.options, one.nearest[0]).to_table()


def run_all(searches: list[Search], gate: Gate, shared: SharedSearches, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run searches at once; see that each finds what it finds alone, and that nothing is left behind."""
    expected = [alone(one) for one in searches]
    with monkeypatch.context() as patch, ThreadPoolExecutor(len(searches)) as threads:
        patch.setattr(shared_search, "make_scanner", gate.make)
        found = [future.result(SECONDS) for future in [threads.submit(shared.find, one, 1) for one in searches]]
    assert [table.combine_chunks() for table in found] == [table.combine_chunks() for table in expected]
    assert not shared._queues


@pytest.mark.parametrize(
    "nearest",
    [
        {"nprobes": 3},
        {},
        {"nprobes": 8, "refine_factor": 20},
        {"minimum_nprobes": 2, "maximum_nprobes": 5, "metric": None},
        {"metric": "cosine"},
        {"use_index": False},
        {"metric": "l2", "k": 900},
    ],
    ids=str,
)
def test_searches_that_wait_are_one_batch_and_find_what_they_find_alone(
    nearest: dict[str, Any], snapshot: CachedVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = SharedSearches()
    gate = Gate(shared, 4)
    run_all([search(snapshot, seed % 4, **nearest) for seed in range(5)], gate, shared, monkeypatch)
    assert gate.made == [1, 4]


def test_more_searches_than_a_batch_has_are_several(snapshot: CachedVersion, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = SharedSearches()
    gate = Gate(shared, MAX_BATCH + 3)
    run_all([search(snapshot, seed) for seed in range(MAX_BATCH + 4)], gate, shared, monkeypatch)
    assert gate.made == [1, MAX_BATCH, 3]


def test_searches_with_other_options_are_no_batch(snapshot: CachedVersion, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = SharedSearches()
    gate = Gate(shared, 0)
    run_all([search(snapshot, 1, nprobes=number + 1) for number in range(4)], gate, shared, monkeypatch)
    assert gate.made == [1] * 4


def test_searches_of_a_batch_that_fails_run_alone(snapshot: CachedVersion, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = SharedSearches()
    gate = Gate(shared, 3)
    gate.fails = True
    run_all([search(snapshot, seed) for seed in range(4)], gate, shared, monkeypatch)
    assert sorted(gate.made) == [1, 1, 1, 1, 3]


def test_search_that_fails_alone_raises_and_leaves_its_place(
    snapshot: CachedVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = SharedSearches()
    with pytest.raises((ValueError, OSError, RuntimeError), match="nowhere"):
        shared.find(search(snapshot, 1, column="nowhere"), 1)
    assert not shared._queues
    gate = Gate(shared, 0)
    run_all([search(snapshot, 2)], gate, shared, monkeypatch)


def test_as_many_run_at_once_as_there_are_processors(snapshot: CachedVersion, monkeypatch: pytest.MonkeyPatch) -> None:
    shared, both = SharedSearches(), threading.Barrier(2)

    def make(dataset: lance.LanceDataset, options: Any, nearest: Any) -> Any:
        both.wait(SECONDS)
        return make_scanner(dataset, options, nearest)

    monkeypatch.setattr(shared_search, "make_scanner", make)
    with ThreadPoolExecutor(2) as threads:
        futures = [threads.submit(shared.find, search(snapshot, seed), 2) for seed in range(2)]
        assert [future.result(SECONDS).num_rows for future in futures] == [7, 7]


def test_other_searches_are_not_shared(snapshot: CachedVersion, tmp_path: Path) -> None:
    plain = search(snapshot, 1)
    assert can_share(plain)
    assert not can_share(replace(plain, nearest=()))
    assert not can_share(replace(plain, nearest=plain.nearest * 2))
    assert not can_share(replace(plain, memory_bytes=1))
    for option in ({"filter": "id > 5"}, {"offset": 1}, {"columns": None}, {"columns": {"a": "id"}}):
        assert not can_share(replace(plain, options=plain.options | option))
    for option in ({"distance_range": (0, 1)}, {"ef": 50}, {"approx_mode": "fast"}, {"q": pa.array([1], pa.int8())}):
        assert not can_share(replace(plain, nearest=(plain.nearest[0] | option,)))
    numbered = lance.write_dataset(rows(10).append_column("query_index", [list(range(10))]), str(tmp_path / "t.lance"))
    assert not can_share(replace(plain, snapshot=CachedVersion(numbered)))
