"""Batch sizes of scans, by the decoded size of their rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import lance
import pyarrow as pa
import pytest
from lance_namespace.errors import InvalidInputError

from tiltyard.runtime.cache import lasting_facts
from tiltyard.storage.caches.version_cache import CachedVersion
from tiltyard.tables.query.batch_sizes import (
    BATCH_BYTES,
    MAX_ROWS,
    MIN_ROWS,
    batch_options,
    check_change_memory,
    estimate_ordering,
    window_sizes,
)

if TYPE_CHECKING:
    from pathlib import Path

FILTER = {"filter": "upper(a) = lower(a)"}


def rows_at_once(table: CachedVersion, read: Any, expressions: dict[str, str]) -> int:
    return batch_options(table, read, expressions).get("batch_size", MAX_ROWS)


def test_batch_options_of_narrow_rows_say_nothing(tmp_path: Path) -> None:
    names = pa.array([f"name {number}" for number in range(20_000)])
    vectors = pa.FixedSizeListArray.from_arrays(pa.array([0.0] * 20_000 * 8, pa.float32()), 8)
    table = CachedVersion(
        lance.write_dataset(pa.table({"id": range(20_000), "name": names, "v": vectors}), tmp_path / "t")
    )
    for read in (None, (), ["id", "name"], ["v"]):
        for expressions in ({}, {"filter": "id < 10"}, {"filter": "name LIKE '%7'"}, {"filter": "upper(name) = 'X'"}):
            assert batch_options(table, read, expressions) == {}, (read, expressions)
    column = pa.array([f"word {number % 5000} of a dictionary" for number in range(100_000)])
    tags = pa.array([[f"tag {number % 7}", "other"] for number in range(100_000)])
    table = CachedVersion(
        lance.write_dataset(pa.table({"word": column, "tags": tags, "none": pa.nulls(100_000)}), tmp_path / "w")
    )
    for expressions in ({}, {"filter": "upper(word) = 'X'"}, {"filter": "array_has(tags, 'x') AND none IS NULL"}):
        assert batch_options(table, None, expressions) == {}, expressions


def test_batch_options_count_what_dictionaries_views_and_pages_unfold_to(tmp_path: Path) -> None:
    texts = ["a" * 100_000, "b" * 100_000]
    folded = pa.DictionaryArray.from_arrays(pa.array([row % 2 for row in range(2000)], pa.int8()), pa.array(texts))
    columns = {
        "dictionary": folded,
        "inside": pa.StructArray.from_arrays([folded], names=["a"]),
        "plain": pa.array([texts[row % 2] for row in range(1000)]),
        "same": pa.array(texts[:1] * 1000),
        "compressed": pa.array([f"{row}{texts[0]}" for row in range(1000)]),
        "skewed": pa.array([f"x{row}" for row in range(10_000)] * 2 + texts[:1] * 1000),
        "list": pa.array([[texts[0]] * 3] * 300),
        "wide": pa.FixedSizeListArray.from_arrays(pa.array([0.0] * 300 * 25_000, pa.float32()), 25_000),
    }
    for name, column in columns.items():
        table = CachedVersion(lance.write_dataset(pa.table({"a": column}), tmp_path / name))
        rows = rows_at_once(table, (), {"filter": "a IS NULL AND length(a) = 3"})
        assert MIN_ROWS <= rows <= BATCH_BYTES // 100_000, name
        assert rows_at_once(table, None, {}) <= 2 * BATCH_BYTES // 100_000, name


def test_batch_options_look_at_the_widest_of_all_data_files(tmp_path: Path) -> None:
    lance.write_dataset(pa.table({"id": range(9000), "a": ["x"] * 9000}), tmp_path / "t")
    wide = pa.table({"id": range(400), "a": [chr(97 + row % 26) * 100_000 for row in range(400)]})
    table = CachedVersion(lance.write_dataset(wide, tmp_path / "t", mode="append"))
    assert rows_at_once(table, (), FILTER) <= 128
    assert rows_at_once(table, ["id"], {"filter": "id = 3"}) == MAX_ROWS


def test_batch_options_of_what_no_batch_can_hold_are_refused(tmp_path: Path) -> None:
    huge = pa.DictionaryArray.from_arrays(pa.array([0] * 10, pa.int8()), pa.array(["a" * (16 << 20)]))
    table = CachedVersion(lance.write_dataset(pa.table({"a": huge}), tmp_path / "t"))
    with pytest.raises(InvalidInputError, match="would make"):
        batch_options(table, (), {"filter": "concat(a, a) = concat(a, a)"})
    assert rows_at_once(table, None, {}) == MIN_ROWS


def test_check_change_and_order_refuse_what_is_held_at_once(tmp_path: Path) -> None:
    folded = pa.DictionaryArray.from_arrays(pa.array([0] * 9000, pa.int8()), pa.array(["a" * 200_000]))
    table = CachedVersion(lance.write_dataset(pa.table({"id": range(9000), "a": folded}), tmp_path / "t"))
    check_change_memory(table, {"predicate": "id < 100"})
    with pytest.raises(InvalidInputError, match="computed at once"):
        check_change_memory(table, {"predicate": "upper(a) = 'x'"})
    unique = pa.array([f"{row}" + "a" * 40_000 for row in range(2000)])  # each of them compressed by itself
    plain = CachedVersion(lance.write_dataset(pa.table({"id": range(2000), "a": unique}), tmp_path / "plain"))
    check_change_memory(plain, {"predicate": "a LIKE '%b%'"})
    with pytest.raises(InvalidInputError, match="computed at once"):
        check_change_memory(plain, {"predicate": "upper(a) = lower(a) OR concat(a, a) = 'x'"})
    estimate_ordering(table, ["id"], {}, 9000)
    estimate_ordering(table, None, {}, 1000)
    with pytest.raises(InvalidInputError, match="To order 9000 rows"):
        estimate_ordering(table, None, {}, 9000)


def test_window_sizes_are_those_of_the_heaviest_rows_after_one_another() -> None:
    page = 16e6
    narrow = window_sizes([1_000_000] * 3, [page] * 3)
    assert narrow[0] == pytest.approx(page * MAX_ROWS / 1_000_000)
    hidden = window_sizes([1_000_000, *[64] * 8, 1_000_000], [page] * 10)
    assert hidden[0] == pytest.approx(8 * page, rel=0.02)
    assert hidden[MAX_ROWS.bit_length() - (64).bit_length()] == pytest.approx(page, rel=0.02)  # 64 rows
    few = window_sizes([10], [100.0])
    assert set(few) == {100.0}
    assert set(window_sizes([], [])) == {0.0}


def test_sizes_of_data_files_are_kept_by_plain_texts(tmp_path: Path) -> None:
    """The path that pylance returns has a class of its own, of 2.8 KB, which would be kept with it."""
    rows = pa.table({"text": ["a" * number for number in range(100)]})
    batch_options(CachedVersion(lance.write_dataset(rows, tmp_path / "t")), ["text"], {})
    paths = [key[1] for key in lasting_facts._entries if key[0] == "batches"]
    assert paths
    assert {type(path) for path in paths} == {str}
