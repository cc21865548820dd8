"""The column cache: queries that it serves, how columns are loaded into it, and queries that it does not serve."""

from __future__ import annotations

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance_namespace.errors import UnsupportedOperationError
from tests.tables.query.query_table import Table, rows

from tiltyard.model.branches import MAIN
from tiltyard.storage.caches import column_cache
from tiltyard.storage.caches.cached_rows import CachedRows
from tiltyard.storage.caches.column_cache import ColumnCache

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PLACE = ("here", MAIN)
ROOM = 64 << 20
NAMES = ("id", "text")


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """600 rows in three fragments."""
    uri = str(tmp_path / "t.lance")
    lance.write_dataset(rows(600), uri, max_rows_per_file=200)
    return uri


@pytest.fixture
def cache() -> ColumnCache:
    return ColumnCache(ROOM)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, list[str]]]:
    """Return the fragments and columns that were read, in order."""
    calls: list[tuple[int, list[str]]] = []
    read_columns = ColumnCache._read_columns

    def recording(self: Any, dataset: Any, fragment: Any, names: list[str], most: int) -> Any:
        calls.append((fragment.number, names))
        return read_columns(self, dataset, fragment, names, most)

    monkeypatch.setattr(ColumnCache, "_read_columns", recording)
    return calls


def wait_for(seconds: float, look: Callable[[], CachedRows | None]) -> CachedRows:
    """Poll until there is a result; return it. Fails after `seconds`."""
    until = time.monotonic() + seconds
    while (cached_rows := look()) is None:
        assert time.monotonic() < until, "nothing was read into memory"
        time.sleep(0.01)
    return cached_rows


def addresses(*places: tuple[int, int]) -> pa.Array:
    return pa.array([(fragment << 32) | offset for fragment, offset in places], pa.uint64())


def load_rows(cache: ColumnCache, dataset: lance.LanceDataset, names: tuple[str, ...] = NAMES) -> CachedRows:
    cache.load(PLACE, dataset, names)
    cached_rows = cache.rows(PLACE, dataset, names)
    assert cached_rows is not None
    return cached_rows


def test_rows_come_in_the_order_they_are_asked_for_from_any_fragment(cache: ColumnCache, uri: str) -> None:
    cached_rows = load_rows(cache, lance.dataset(uri))
    ids, texts = cached_rows.take(addresses((2, 5), (0, 7), (2, 5), (1, 199), (0, 0)))
    assert ids.to_pylist() == [405, 7, 405, 399, 0]
    whole = lance.dataset(uri).to_table(columns=["text"])["text"]
    assert texts.to_pylist() == [whole[row].as_py() for row in (405, 7, 405, 399, 0)]
    assert [column.to_pylist() for column in cached_rows.take(addresses())] == [[], []]


@pytest.mark.parametrize("place", [(0, 200), (3, 0)])
def test_an_address_of_no_row_is_an_error_and_no_other_row(
    place: tuple[int, int], cache: ColumnCache, uri: str
) -> None:
    with pytest.raises((pa.ArrowIndexError, KeyError)):
        load_rows(cache, lance.dataset(uri)).take(addresses(place))


def test_columns_come_in_once_queries_have_paid_for_them(
    cache: ColumnCache, uri: str, monkeypatch: pytest.MonkeyPatch, reads: list[Any]
) -> None:
    dataset = lance.dataset(uri)
    size = 600 * (8 + column_cache._GUESSED_WIDTH)
    monkeypatch.setattr(column_cache, "_CREDIT_PER_QUERY_BYTES", size // 3 + 1)
    assert [cache.rows(PLACE, dataset, NAMES) for _ in range(2)] == [None, None]
    assert not reads
    assert cache.rows(PLACE, dataset, NAMES) is None  # the third has paid, and does not wait
    assert wait_for(30, lambda: cache.rows(PLACE, dataset, NAMES)).take(addresses((1, 0)))[0].to_pylist() == [200]
    assert [number for number, _ in reads] == [0, 1, 2]


def test_a_new_version_reads_its_new_fragments_alone(cache: ColumnCache, uri: str, reads: list[Any]) -> None:
    load_rows(cache, lance.dataset(uri))
    reads.clear()
    dataset = lance.write_dataset(rows(10, start=600), uri, mode="append")
    cached_rows = wait_for(30, lambda: cache.rows(PLACE, dataset, NAMES))
    assert [number for number, _ in reads] == [3]
    assert cached_rows.take(addresses((3, 9), (0, 1)))[0].to_pylist() == [609, 1]


def test_queries_that_may_wait_read_a_few_new_rows_once(cache: ColumnCache, uri: str, reads: list[Any]) -> None:
    load_rows(cache, lance.dataset(uri))
    reads.clear()
    dataset = lance.write_dataset(rows(10, start=600), uri, mode="append")
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: cache.rows(PLACE, dataset, NAMES, may_wait=True), range(8)))
    assert [number for number, _ in reads] == [3]
    assert found[0] is not None
    assert all(cached_rows is found[0] for cached_rows in found)
    assert found[0].take(addresses((3, 9), (0, 1)))[0].to_pylist() == [609, 1]


def test_queries_that_may_wait_do_not_wait_for_many_rows(
    cache: ColumnCache, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_rows(cache, lance.dataset(uri))
    monkeypatch.setattr(column_cache, "_AT_ONCE_BYTES", 100)
    dataset = lance.write_dataset(rows(10, start=600), uri, mode="append")
    assert cache.rows(PLACE, dataset, NAMES, may_wait=True) is None
    wait_for(30, lambda: cache.rows(PLACE, dataset, NAMES, may_wait=True))


def test_deletes_leave_what_is_in_memory_valid(cache: ColumnCache, uri: str, reads: list[Any]) -> None:
    load_rows(cache, lance.dataset(uri))
    reads.clear()
    lance.dataset(uri).delete("id in (3, 250)")
    cached_rows = cache.rows(PLACE, lance.dataset(uri), NAMES)
    assert cached_rows is not None
    assert not reads
    assert cached_rows.take(addresses((0, 4), (1, 51)))[0].to_pylist() == [4, 251]


def test_fragments_with_deleted_rows_are_read_with_them(cache: ColumnCache, uri: str) -> None:
    lance.dataset(uri).delete("id < 150")
    assert load_rows(cache, lance.dataset(uri)).take(addresses((0, 160), (0, 199)))[0].to_pylist() == [160, 199]


def test_what_no_version_has_any_more_is_let_go_of(cache: ColumnCache, uri: str) -> None:
    load_rows(cache, lance.dataset(uri))
    before = cache.size
    small = lance.write_dataset(rows(10), uri, mode="overwrite")
    load_rows(cache, small)
    assert 0 < cache.size < before / 10


def test_an_earlier_version_is_kept_beside_the_latest(cache: ColumnCache, uri: str, reads: list[Any]) -> None:
    first = lance.dataset(uri)
    latest = lance.write_dataset(rows(10), uri, mode="overwrite")
    load_rows(cache, latest)
    earlier = wait_for(30, lambda: cache.rows(PLACE, first, NAMES, is_latest=False))
    assert earlier.take(addresses((2, 199)))[0].to_pylist() == [599]
    reads.clear()
    for dataset, is_latest in ((latest, True), (first, False)):
        assert cache.rows(PLACE, dataset, NAMES, is_latest=is_latest) is not None
    assert not reads


def test_columns_that_swap_names_are_not_mixed_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = str(tmp_path / "t.lance")
    lance.write_dataset(pa.table({"a": [1, 2], "b": [10, 20]}), uri)
    table = Table(uri, monkeypatch)
    request: dict[str, Any] = {"columns": {"column_names": ["a", "b"]}}
    assert table.query(**request).to_pylist() == [{"a": 1, "b": 10}, {"a": 2, "b": 20}]
    lance.dataset(uri).alter_columns({"path": "a", "name": "c"})
    lance.dataset(uri).alter_columns({"path": "b", "name": "a"})
    lance.dataset(uri).alter_columns({"path": "c", "name": "b"})
    assert table.query(**request).to_pylist() == [{"a": 10, "b": 1}, {"a": 20, "b": 2}]


def _change(uri: str, how: str) -> None:
    dataset = lance.dataset(uri)
    match how:
        case "update":
            dataset.update({"text": "'changed'"}, where="id % 3 = 0")
        case "add":
            dataset.add_columns({"twice": "id * 2"})
        case "add-null":
            dataset.add_columns(pa.field("empty", pa.string()))
        case "drop-and-add":
            dataset.add_columns({"twice": "id * 2"})
            dataset.drop_columns(["twice"])
            dataset.add_columns({"twice": "id * 3"})
        case "cast":
            dataset.alter_columns({"path": "id", "data_type": pa.int32()})
        case "merge":
            fresh = rows(20, seed=9, start=590)
            dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(fresh)
        case "compact":
            dataset.delete("id % 2 = 0")
            lance.dataset(uri).optimize.compact_files(target_rows_per_fragment=1000)
        case "restore":
            dataset.delete("id > 10")
            lance.dataset(uri, version=1).restore()
        case "overwrite":
            lance.write_dataset(rows(30, seed=8), uri, mode="overwrite")


HOW = ("update", "add", "add-null", "drop-and-add", "cast", "merge", "compact", "restore", "overwrite")


@pytest.mark.parametrize("stable", [False, True])
@pytest.mark.parametrize("how", HOW)
def test_memory_follows_every_change(how: str, stable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = str(tmp_path / "t.lance")
    lance.write_dataset(rows(60), uri, max_rows_per_file=25, enable_stable_row_ids=stable)
    table = Table(uri, monkeypatch)
    table.query(k=100)
    _change(uri, how)
    result = table.query(k=1000, with_row_id=True)  # which compares memory with storage
    assert result.num_rows == lance.dataset(uri).count_rows()
    table.query(k=5, vector={"single_vector": [0.5] * 8}, vector_column="vec", filter="id > 5")


PAIR = pa.struct([("x", pa.float64()), ("names", pa.list_(pa.string()))])
KINDS = pa.table(
    {
        "id": pa.array([1, 2, 3], pa.int64()),
        "small": pa.array([1, None, -3], pa.int8()),
        "big": pa.array([1, 2**63, None], pa.uint64()),
        "half": pa.array(np.array([0.5, 1, 2], np.float16)),
        "flag": pa.array([True, None, False]),
        "bytes": pa.array([b"", None, b"\0\xff"]),
        "large": pa.array(["", None, "ü" * 500], pa.large_string()),
        "fixed": pa.array([b"ab", None, b"cd"], pa.binary(2)),
        "money": pa.array([Decimal("1.25"), None, Decimal("-3.00")], pa.decimal128(10, 2)),
        "day": pa.array([datetime(2024, 2, 29, tzinfo=UTC).date(), None, None], pa.date32()),
        "at": pa.array([datetime(2024, 2, 29, 1, tzinfo=UTC), None, None], pa.timestamp("us", "UTC")),
        "lasts": pa.array([1, None, 3], pa.duration("ms")),
        "tags": pa.array([["a", None], None, []], pa.list_(pa.string())),
        "pair": pa.array([{"x": 1.0, "names": ["n"]}, None, {"x": None, "names": None}], PAIR),
        "kind": pa.array(["a", "b", "a"]).dictionary_encode(),
        "nothing": pa.nulls(3, pa.string()),
        "sure": pa.array([1, 2, 3]),
    }
)
"""Columns of all kinds, with nulls."""


@pytest.mark.parametrize("batches", [1, 2])
def test_all_kinds_of_columns_answer_the_same(batches: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = str(tmp_path / "t.lance")
    data = KINDS.replace_schema_metadata({"about": "everything"})
    for _ in range(batches):
        lance.write_dataset(data, uri, mode="append")
    table = Table(uri, monkeypatch)
    for name in data.schema.names:
        table.query(columns={"column_names": [name, "id"] if name != "id" else [name]})
    table.query(filter="id > 1", with_row_id=True)


@pytest.fixture
def takes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the number of rows that each access took from the cache."""
    taken_rows: list[int] = []
    take = CachedRows.take

    def noting(self: CachedRows, addresses: pa.UInt64Array) -> list[pa.Array]:
        taken_rows.append(len(addresses))
        return take(self, addresses)

    monkeypatch.setattr(CachedRows, "take", noting)
    return taken_rows


V = {"single_vector": [0.5] * 8}
NEAR = {"vector": V, "vector_column": "vec"}
SERVED: dict[str, dict[str, Any]] = {
    "some": {"k": 5},
    "filter": {"filter": "id % 7 = 0", "offset": 3},
    "near": {**NEAR, "k": 7, "columns": {"column_names": ["text", "_distance", "id"]}},
    "near-all": {**NEAR, "with_row_id": True},
    "near-filter": {**NEAR, "filter": "id < 30", "prefilter": False, "columns": {"column_names": ["id"]}},
    "several": {"vector": {"multi_vector": [[0.5] * 8, [0.1] * 8]}, "vector_column": "vec"},
    "old version": {"version": 1},
}
NOT_SERVED: dict[str, dict[str, Any]] = {
    "none": {"k": 0},
    "many": {"k": 1001},
    "ordered": {"order_by": [{"column_name": "id", "ascending": False}]},
    "expression": {"columns": {"column_aliases": {"double": "id * 2"}}},
    "position": {"columns": {"column_names": ["id", "_rowaddr"]}},
}


@pytest.mark.parametrize(
    ("case", "served"), [*((name, True) for name in SERVED), *((name, False) for name in NOT_SERVED)]
)
def test_searches_that_memory_serves(
    case: str, served: bool, uri: str, monkeypatch: pytest.MonkeyPatch, takes: list[int]
) -> None:
    lance.dataset(uri).delete("id = 300")
    result = Table(uri, monkeypatch).query(**(SERVED | NOT_SERVED)[case])
    assert sum(takes) == (result.num_rows if served else 0)
    assert result.num_rows or case == "none"


def test_blobs_and_extensions_are_left_to_lance(tmp_path: Path, cache: ColumnCache) -> None:
    blob = pa.field("blob", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    data = pa.table([pa.array([1]), pa.array([b"x"], pa.large_binary())], schema=pa.schema([("id", pa.int64()), blob]))
    dataset = lance.write_dataset(data, str(tmp_path / "t.lance"))
    assert cache.rows(PLACE, dataset, ("id", "blob")) is None
    with pytest.raises(UnsupportedOperationError, match="blob"):
        cache.load(PLACE, dataset, ("id", "blob"))
    cache.load(PLACE, dataset, None)
    assert cache.rows(PLACE, dataset, ("id",)) is not None


def test_what_has_no_room_is_not_read_again(uri: str, monkeypatch: pytest.MonkeyPatch, reads: list[Any]) -> None:
    monkeypatch.setattr(column_cache, "_GUESSED_WIDTH", 1)  # so that it is found out by reading
    cache, dataset = ColumnCache(8_000), lance.dataset(uri)
    assert cache.rows(PLACE, dataset, NAMES) is None
    until = time.monotonic() + 30
    while not cache._tables[PLACE].too_large:
        assert time.monotonic() < until
        time.sleep(0.01)
    reads_before = len(reads)
    assert [cache.rows(PLACE, dataset, NAMES) for _ in range(20)] == [None] * 20
    assert (len(reads), cache.size) == (reads_before, 0)
    with pytest.raises(UnsupportedOperationError, match="page_cache_bytes"):
        cache.load(PLACE, dataset, NAMES)


def test_the_table_that_was_asked_for_last_stays(uri: str) -> None:
    dataset = lance.dataset(uri)
    probe = ColumnCache(ROOM)
    probe.load(PLACE, dataset, NAMES)
    cache = ColumnCache(int(probe.size * 2.5))
    for name in ("a", "b"):
        cache.load((name, MAIN), dataset, NAMES)
    assert cache.rows(("a", MAIN), dataset, NAMES) is not None
    cache.load(("c", MAIN), dataset, NAMES)
    assert [name for name, _ in cache._tables if cache._tables[name, MAIN].size] == ["a", "c"]
    assert cache.size <= probe.size * 2.5


def test_a_dropped_table_is_forgotten(cache: ColumnCache, uri: str) -> None:
    load_rows(cache, lance.dataset(uri))
    cache.evict(PLACE[0])
    assert cache.size == 0


def test_no_room_at_all_reads_nothing(uri: str, reads: list[Any]) -> None:
    cache, dataset = ColumnCache(0), lance.dataset(uri)
    assert [cache.rows(PLACE, dataset, NAMES) for _ in range(5)] == [None] * 5
    assert not reads
    with pytest.raises(UnsupportedOperationError, match="page_cache_bytes"):
        cache.load(PLACE, dataset, None)


def test_a_table_of_many_fragments_is_left_to_lance(tmp_path: Path, cache: ColumnCache) -> None:
    table = pa.table({"id": range(column_cache.MAX_FRAGMENTS + 1)})
    dataset = lance.write_dataset(table, str(tmp_path / "t.lance"), max_rows_per_file=1)
    assert cache.rows(PLACE, dataset, ("id",)) is None
    with pytest.raises(UnsupportedOperationError, match="compact"):
        cache.load(PLACE, dataset, None)


def test_what_cannot_be_read_is_said_and_left_to_lance(
    cache: ColumnCache, uri: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> None:
        raise ValueError("a disk of paper")

    monkeypatch.setattr(ColumnCache, "_read_columns", broken)
    dataset = lance.dataset(uri)
    now = [100.0]
    monkeypatch.setattr(column_cache, "monotonic", lambda: now[0])
    with caplog.at_level(logging.WARNING):
        cache.rows(PLACE, dataset, NAMES)
        until = time.monotonic() + 30
        while "not kept in memory" not in caplog.text:
            assert time.monotonic() < until
            time.sleep(0.01)
    assert cache._tables[PLACE].retry_at
    monkeypatch.undo()
    monkeypatch.setattr(column_cache, "monotonic", lambda: now[0])
    assert [cache.rows(PLACE, dataset, NAMES) for _ in range(5)] == [None] * 5
    now[0] += column_cache._RETRY_SECONDS
    wait_for(30, lambda: cache.rows(PLACE, dataset, NAMES))


def test_a_closed_cache_reads_nothing(cache: ColumnCache, uri: str, reads: list[Any]) -> None:
    cache.close()
    assert [cache.rows(PLACE, lance.dataset(uri), NAMES) for _ in range(3)] == [None] * 3
    assert not reads
