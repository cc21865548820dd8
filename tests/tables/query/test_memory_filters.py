"""Filters of searches in memory: by values in memory the rows of every version, within the budget, and as plans say."""

from __future__ import annotations

from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.tables.query.query_table import vectors
from tests.tables.query.test_memory_search import DIMENSION, Searched, compact_in_turn

from tiltyard.runtime.system_memory import SystemMemory
from tiltyard.storage.vector_cache import cache, searched_column
from tiltyard.tables.query.routes import index_in_memory
from tiltyard.tables.query.routes.index_in_memory import IndexInMemory
from tiltyard.tables.query.routes.route import Purpose, Refused

QUERY = [0.0] * DIMENSION
FILTERS = (
    "id >= 700 AND id < 900",
    "kind = 3",
    "NOT kind IN (1, 2)",
    "kind IS NULL OR size > 0.5",
    "NOT (size < 0.5 AND word = 'w7')",
    "word BETWEEN 'w2' AND 'w5' AND NOT flag",
    "extra > 4",
    "NOT added = 1",
)


def rows(rng: np.random.Generator, first: int, count: int) -> pa.Table:
    """Return rows with columns of several types, some of them with nulls; a third of the vectors are null, too."""
    values = vectors(rng.normal(size=(count, DIMENSION)).astype(np.float32), pa.float32())
    return pa.table(
        {
            "id": pa.array(range(first, first + count), pa.int64()),
            "kind": pa.array([int(n) if n < 5 else None for n in rng.integers(0, 7, count)], pa.int8()),
            "size": pa.array(np.where(rng.random(count) < 0.1, np.nan, rng.random(count)), pa.float64()),
            "word": pa.array([f"w{n}" if n < 9 else None for n in rng.integers(0, 10, count)], pa.string()),
            "flag": pa.array([bool(n) if n < 2 else None for n in rng.integers(0, 3, count)], pa.bool_()),
            "vec": pc.if_else(pa.array(rng.random(count) < 0.3), None, values),
        }
    )


def offered(table: Searched, filter_: str, purpose: Purpose = Purpose.RUN) -> IndexInMemory:
    """Return the search in memory, which is built first where it has to be."""
    offer = IndexInMemory.ask(table.asked(QUERY, purpose, filter=filter_))
    if isinstance(offer, Refused):
        table.warm(QUERY)
        offer = IndexInMemory.ask(table.asked(QUERY, purpose, filter=filter_))
    assert isinstance(offer, IndexInMemory), offer
    return offer


def warm(table: Searched, *filters: str) -> None:
    """Ask for filters until the values of their columns are in memory."""
    table.warm(QUERY)
    for filter_ in filters:
        for _ in range(searched_column.SEARCHES):
            table.search(QUERY, filter=filter_)
        table.datasets.vector_cache.wait()


def selected(offer: IndexInMemory) -> list[int]:
    """Return the addresses of the rows that an offer's filter allows, by values in memory."""
    assert not isinstance(offer.filtered, Refused), offer.filtered
    assert not offer.filtered.by_lance
    allowed, index = offer.filtered.allowed, offer.rows.index
    found = [*index.addresses[allowed.find_positions()], *offer.rows.others.addresses[allowed.others]]
    assert len(allowed.find_positions()) == allowed.rows
    return sorted(int(address) for address in found)


def check(table: Searched, filter_: str) -> bool:
    """Check the rows that a filter selects against Lance's; return whether they were found by values in memory."""
    dataset = lance.dataset(table.uri)
    names = dataset.schema.names
    if any(name in filter_ and name not in names for name in ("extra", "added", "size")):
        with pytest.raises(Exception, match=r"No field|not found|Schema"):
            table.search(QUERY, filter=filter_)
        return False
    offer = offered(table, filter_)
    if isinstance(offer.filtered, Refused) or offer.filtered.by_lance:
        return False
    expected = dataset.to_table(columns=[], with_row_id=True, filter=f"({filter_}) AND vec IS NOT NULL")
    assert selected(offer) == sorted(expected["_rowid"].to_pylist()), filter_
    return True


ROWS = rows(np.random.default_rng(0), 0, 2000)


def some_rows(dataset: lance.LanceDataset, rng: np.random.Generator, first: int, count: int) -> pa.Table:
    """Return rows with those columns of a version that have the type that they began with."""
    more = rows(rng, first, count)
    return more.select([field.name for field in dataset.schema if field in list(more.schema)])


def append(dataset: lance.LanceDataset, rng: np.random.Generator, step: int) -> None:
    more = some_rows(dataset, rng, 10_000 * (step + 1), int(rng.integers(1, 120)))
    lance.write_dataset(more, dataset.uri, mode="append")


def delete(dataset: lance.LanceDataset, rng: np.random.Generator, step: int) -> None:
    low = int(rng.integers(0, 2000))
    dataset.delete(f"id >= {low} AND id < {low + 150}")


def update(dataset: lance.LanceDataset, rng: np.random.Generator, step: int) -> None:
    low = int(rng.integers(0, 2000))
    dataset.update({"kind": "3"}, where=f"id >= {low} AND id < {low + 50}")


def merge(dataset: lance.LanceDataset, rng: np.random.Generator, step: int) -> None:
    source = some_rows(dataset, rng, int(rng.integers(0, 2000)), 60)
    if len(source.schema) == len(dataset.schema):
        dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(source)


def merge_column(dataset: lance.LanceDataset, rng: np.random.Generator, step: int) -> None:
    """Rewrite a column of some fragments in place, or their rows: as Lance chooses."""
    low, kind = int(rng.integers(0, 2000)), dataset.schema.field("kind").type
    source = pa.table({"id": pa.array(range(low, low + 40), pa.int64()), "kind": pa.array([1] * 40, kind)})
    dataset.merge_insert("id").when_matched_update_all().execute(source)


def compact(dataset: lance.LanceDataset, rng: np.random.Generator, step: int) -> None:
    compact_in_turn(dataset, step)


def restore(dataset: lance.LanceDataset, rng: np.random.Generator, step: int) -> None:
    past = int(rng.integers(max(2, dataset.version - 4), dataset.version + 1))
    lance.dataset(dataset.uri, version=past).restore()


def add_columns(dataset: lance.LanceDataset, rng: np.random.Generator, step: int) -> None:
    """One with values, and one whose values are all null, of which there are no files."""
    if "extra" not in dataset.schema.names:
        dataset.add_columns({"extra": "CAST(id % 11 AS DOUBLE)"})
    elif "added" not in dataset.schema.names:
        dataset.add_columns(pa.schema([pa.field("added", pa.int32())]))


def fill_column(dataset: lance.LanceDataset, rng: np.random.Generator, step: int) -> None:
    if "added" in dataset.schema.names:
        dataset.update({"added": "id % 3"}, where=f"id >= {int(rng.integers(0, 2000))}")


def drop_columns(dataset: lance.LanceDataset, rng: np.random.Generator, step: int) -> None:
    for name in ("extra", "added"):
        if name in dataset.schema.names and rng.random() < 0.5:
            lance.dataset(dataset.uri).drop_columns([name])


def swap_names(dataset: lance.LanceDataset, rng: np.random.Generator, step: int) -> None:
    if {"extra", "size"}.issubset(dataset.schema.names):
        for path, name in (("extra", "other"), ("size", "extra"), ("other", "size")):
            lance.dataset(dataset.uri).alter_columns({"path": path, "name": name})


def change_type(dataset: lance.LanceDataset, rng: np.random.Generator, step: int) -> None:
    dataset.alter_columns({"path": "kind", "data_type": pa.int16() if step % 2 else pa.int8()})


CHANGES = (
    *(append, append, delete, update, merge, merge_column, compact, restore),
    *(add_columns, add_columns, fill_column, drop_columns, swap_names, change_type),
)


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.extended) for seed in range(2, 12))])
def test_filters_in_memory_select_the_rows_of_every_version(tmp_path: Path, seed: int) -> None:
    """With deletions, updates of rows and of columns, several fragments, rows that are not in the index yet."""
    rng = np.random.default_rng(seed)
    table = Searched(str(tmp_path / "t"), ROWS)
    in_memory = total = 0
    for step in range(20):
        CHANGES[rng.integers(0, len(CHANGES))](lance.dataset(table.uri), rng, step)
        if step % 5 == 0:
            warm(table, *(filter_ for filter_ in FILTERS[:6] if "size" not in filter_))
        for filter_ in FILTERS:
            in_memory += check(table, filter_)
            total += 1
    assert in_memory > total / 4
    table.datasets.vector_cache.close()


def test_plans_say_whether_memory_or_lance_finds_the_rows_of_a_filter_and_why(tmp_path: Path) -> None:
    table = Searched(str(tmp_path / "t"), ROWS)
    table.warm(QUERY)
    assert "filter" not in table.explain(QUERY)
    for _ in range(9):
        why = (
            "Lance finds the rows of the filter, since the values of 'kind' are not in memory: too few filters named it"
        )
        assert why in table.explain(QUERY, filter="kind = 1")  # counts as no use
    table.search(QUERY, filter="kind = 1")
    assert "Lance has found the rows of the filter, since the values of 'kind'" in table.explain(
        QUERY, filter="kind = 1"
    )
    warm(table, "kind = 2")
    assert "the filter is evaluated in memory" in table.explain(QUERY, filter="kind = 1")
    assert "the values of 'word' are not in memory" in table.explain(QUERY, filter="kind = 1 AND word = 'w1'")
    for filter_ in ("kind % 2 = 1", "kind = 1.5", "kind = size", "word LIKE 'w%'", "vec IS NULL"):
        why = "Lance finds the rows of the filter, since it does not compare columns of scalars with constants of their"
        assert why in table.explain(QUERY, filter=filter_), filter_


def test_filters_of_one_minute_bring_the_values_of_all_their_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then Lance finds no rows any more: those of new fragments are read, not those of a filter."""
    table = Searched(str(tmp_path / "t"), ROWS)
    warm(table, "kind = 1 AND size < 0.5 OR word > 'w3'")
    (entry,) = table.datasets.vector_cache._entries.values()
    assert sorted(kept.column.name for kept in entry.columns.kept) == ["kind", "size", "word"]

    def fail(*_: object) -> None:
        raise AssertionError("Lance was asked for the rows of a filter.")

    monkeypatch.setattr(index_in_memory, "make_scanner", fail)
    for number in range(20):
        assert check(table, f"kind = {number % 5} AND NOT size < 0.{number} OR word = 'w{number}'")
    lance.write_dataset(rows(np.random.default_rng(1), 5000, 50), table.uri, mode="append")
    lance.dataset(table.uri).delete("id < 100")
    assert check(table, "kind = 1 AND size > 0.3 AND word < 'w7'")


def test_values_of_columns_stay_within_the_budget_and_give_way_to_vectors_and_to_later_columns(tmp_path: Path) -> None:
    table = Searched(str(tmp_path / "t"), ROWS)
    table.warm(QUERY)
    vector_cache = table.datasets.vector_cache
    (entry,) = vector_cache._entries.values()
    vectors_alone = entry.reserved
    warm(table, "id > 5")
    ids = entry.columns.size
    assert vector_cache.size == entry.index.size + sum(mask.nbytes for _, mask in entry.masks.values()) + ids  # type: ignore[union-attr]
    assert ids >= 2000 * 4
    vector_cache.max_bytes = vectors_alone + 95_000  # what it takes to read one column beside no other
    warm(table, "size > 0.5")
    assert "columns that filters named later took their memory" in table.explain(QUERY, filter="id > 6")
    assert "the filter is evaluated in memory" in table.explain(QUERY, filter="size > 0.5")
    assert vector_cache.size <= vector_cache.max_bytes
    vector_cache.max_bytes = vectors_alone
    entry.columns.forget_values()
    warm(table, "kind = 1")
    assert "there is no room for them beside the vectors (vector_cache_bytes)" in table.explain(
        QUERY, filter="kind = 1"
    )
    assert entry.columns.size == 0
    assert table.search(QUERY) is not None  # the vectors stay

    vector_cache.max_bytes = 64 << 20
    for kept in entry.columns.kept:
        kept.retry_at = 0
    warm(table, "kind = 1")
    assert entry.columns.size
    vector_cache.max_bytes = entry.size + vectors_alone - entry.columns.size // 2
    other = Searched(str(tmp_path / "o"), ROWS)
    other.datasets = table.datasets
    other.warm(QUERY)
    assert [kept.state for kept in entry.columns.kept if kept.state.startswith("vectors took their memory")]
    assert table.search(QUERY) is not None
    assert other.search(QUERY) is not None
    assert vector_cache.size <= vector_cache.max_bytes


def test_values_of_columns_go_before_vectors_while_memory_is_short(tmp_path: Path) -> None:
    table = Searched(str(tmp_path / "t"), ROWS)
    warm(table, "kind = 1", "word = 'w1'")
    vector_cache = table.datasets.vector_cache
    (entry,) = vector_cache._entries.values()
    size = entry.columns.size
    vector_cache._read_memory = lambda: SystemMemory(1000 * size, 99 * size + 1)
    assert vector_cache.drop_unneeded() == size
    assert entry.columns.size == 0
    assert table.search(QUERY) is not None
    why = "the values of 'kind' are not in memory: memory is short on this machine"
    assert why in table.explain(QUERY, filter="kind = 2")
    for kept in entry.columns.kept:
        kept.retry_at = 0
    warm(table, "kind = 2")
    assert entry.columns.size == 0
    assert table.search(QUERY) is not None
    vector_cache._read_memory = lambda: SystemMemory(1000 * size, 900 * size)
    for kept in entry.columns.kept:
        kept.retry_at = 0
    warm(table, "kind = 3")
    assert check(table, "kind = 4")


def test_values_of_columns_that_no_filter_named_for_half_an_hour_are_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Searched(str(tmp_path / "t"), ROWS)
    warm(table, "kind = 1")
    vector_cache = table.datasets.vector_cache
    (entry,) = vector_cache._entries.values()
    later = cache.monotonic() + cache.UNUSED_SECONDS + 60
    monkeypatch.setattr(cache, "monotonic", lambda: later)
    table.search(QUERY)
    size = entry.columns.size
    assert size and vector_cache.drop_unneeded() == size
    assert vector_cache.size


@pytest.mark.parametrize("error", [OSError("gone"), KeyboardInterrupt("as a panic of Rust's code, no Exception")])
def test_values_that_cannot_be_read_leave_filters_to_lance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise error

    table = Searched(str(tmp_path / "t"), ROWS)
    with monkeypatch.context() as patched:
        patched.setattr(cache, "read_page", fail)
        warm(table, "kind = 1")
        name = type(error).__name__
        assert f"they could not be read ({name})" in table.explain(QUERY, filter="kind = 2")
        assert table.check(QUERY, "kind = 2") > 0.9
    assert "Values of" in caplog.text
    (entry,) = table.datasets.vector_cache._entries.values()
    assert entry.columns.size == 0
    for kept in entry.columns.kept:
        kept.retry_at = 0
    warm(table, "kind = 2")
    assert check(table, "kind = 2")


def test_long_texts_are_read_only_as_far_as_they_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a whole fragment of them, to find out then."""
    read: list[int] = []
    reading_bytes = cache.reading_bytes
    monkeypatch.setattr(cache, "reading_bytes", lambda rows, size: read.append(size) or reading_bytes(rows, size))
    texts = pa.array([f"{number:05}" * 2000 for number in range(2000)])  # 20 MB
    table = Searched(str(tmp_path / "t"), ROWS.append_column("long", texts), max_bytes=4 << 20)
    warm(table, "long = 'x'")
    assert "there is no room for them" in table.explain(QUERY, filter="long = 'x'")
    assert 0 < max(read) < 10 << 20
    assert table.datasets.vector_cache.size <= 4 << 20
