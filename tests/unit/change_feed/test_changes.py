"""The parts of the change feed: deletion files, rows compared, columns that were renamed, and rows that a key finds."""

from __future__ import annotations

from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest

from tiltyard.change_feed.deletions import parse_bitmap, read_deletions
from tiltyard.change_feed.planning import plan_changes
from tiltyard.change_feed.reader import differing_rows, read_changes
from tiltyard.model.refusals import RefusedError


@pytest.mark.parametrize(
    "deleted", ["id = 3", "id % 7 = 1", "id % 2 = 0", "id >= 70000 and id < 200000", "id >= 0 and id < 250000"]
)
def test_read_deletions_finds_what_is_deleted(tmp_path: Path, deleted: str) -> None:
    rows = pa.table({"id": np.arange(250_001)})
    dataset = lance.write_dataset(rows, str(tmp_path / "table"), enable_stable_row_ids=True)
    dataset.delete(deleted)
    (fragment,) = dataset.get_fragments()
    remaining = dataset.to_table()["id"].to_numpy()
    offsets = read_deletions(dataset, fragment, None)
    assert np.array_equal(offsets, np.setdiff1d(np.arange(250_001), remaining))
    assert np.array_equal(read_deletions(dataset, fragment, "branch"), offsets)  # of one, addresses are scanned


def test_parse_bitmap_with_runs_and_without() -> None:
    runs = np.array([12347, 0x0001], "<u2").tobytes()[:2] + np.array([0], "<u2").tobytes()  # one container
    runs += bytes([1]) + np.array([0, 9], "<u2").tobytes()  # it is of runs: key 0, 10 values
    runs += np.array([2, 5, 3, 100, 5], "<u2").tobytes()  # two of them: 5 to 8, 100 to 105
    assert parse_bitmap(runs).tolist() == [5, 6, 7, 8, *range(100, 106)]
    empty = np.array([12346, 0], "<u4").tobytes()
    assert parse_bitmap(empty).tolist() == []
    with pytest.raises(ValueError, match="no Roaring bitmap"):
        parse_bitmap(b"ARROW1\0\0")


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [
        (pa.float64(), [1.0, float("nan"), None, 0.0], [1.0, float("nan"), 1.0, 2.0]),
        (pa.string(), ["a", "", None, "b"], ["a", "", "", "c"]),
        (pa.list_(pa.float32(), 2), [[1, 2], None, None, [1, None]], [[1, 2], None, [0, 0], [1, 2]]),
        (pa.list_(pa.string()), [[], ["a", None], None, ["a", "b"]], [[], ["a", None], [], ["a"]]),
        (pa.large_list(pa.int8()), [[1], [2, 3], [4], [5, 6]], [[1], [2, 3], [4, 4], [5, 7]]),
        (
            pa.struct([("a", pa.int64()), ("b", pa.list_(pa.int64()))]),
            [{"a": 1, "b": [1]}, None, {"a": None, "b": []}, {"a": 1, "b": [1]}],
            [{"a": 1, "b": [1]}, None, {"a": 0, "b": []}, {"a": 1, "b": [2]}],
        ),
        (pa.map_(pa.string(), pa.int64()), [[("a", 1)], [], [], [("a", 1)]], [[("a", 1)], [], None, [("a", 2)]]),
        (pa.decimal128(9, 2), [1, 2, None, 3], [1, 2, 0, 4]),
        (pa.dictionary(pa.int8(), pa.string()), ["a", None, "b", "a"], ["a", None, "a", "b"]),
    ],
)
def test_differing_rows_compares_values_of_any_type(
    kind: pa.DataType, before: list[object], after: list[object]
) -> None:
    arrays = [pa.array(values, kind) for values in (before, after)]
    assert differing_rows(*arrays).tolist() == [False, False, True, True]
    assert differing_rows(arrays[0].slice(1), arrays[1].slice(1)).tolist() == [False, True, True]


def feed(dataset: lance.LanceDataset, since: int, columns: list[str] | None = None) -> list[list[object]]:
    """Return the rows of a feed, without their times."""
    plan = plan_changes(dataset, since, columns=columns)
    rows = pa.Table.from_batches(read_changes(plan.groups, plan.schema, dataset.checkout_version), plan.schema)
    return [list(row.values()) for row in rows.drop_columns("_timestamp").to_pylist()]


def test_renamed_and_cast_columns_have_their_newest_names_and_types(tmp_path: Path) -> None:
    dataset = lance.write_dataset(pa.table({"id": [1, 2], "a": pa.array([5, 6], pa.int32())}), str(tmp_path / "table"))
    dataset.alter_columns({"path": "a", "name": "b"})
    dataset.update({"b": "b + 1"}, where="id = 1")
    first = [["insert", 1, 1, 5], ["insert", 1, 2, 6]]
    assert feed(dataset, 0)[:2] == first and feed(dataset, 1) == feed(dataset, 2)
    dataset.alter_columns({"path": "b", "data_type": pa.int64()})
    assert feed(dataset, 0)[:2] == first
    assert feed(dataset, int(dataset.version) - 1) == []
    plan = plan_changes(dataset, 0)
    assert plan.schema.field("b").type == pa.int64()
    dataset.drop_columns(["b"])
    dataset.add_columns({"b": "id * 2"})  # another column of that name
    assert feed(dataset, 4) == [
        [f"update_{when}", version, row, value]
        for version, values in ((5, {2: (6, None), 1: (6, None)}), (6, {2: (None, 4), 1: (None, 2)}))
        for row, pair in values.items()
        for when, value in zip(("before", "after"), pair, strict=True)
    ]


def test_columns_that_no_longer_hold_old_values_are_refused_by_name(tmp_path: Path) -> None:
    dataset = lance.write_dataset(pa.table({"id": [1], "a": ["x"]}), str(tmp_path / "table"))
    dataset = lance.write_dataset(pa.table({"id": [1], "a": [5]}), dataset, mode="overwrite")
    with pytest.raises(RefusedError, match="Column 'a' was string in version 1, and has a value that is no int64"):
        feed(dataset, 0)
    assert feed(dataset, 0, ["id"]) == [["insert", 1, 1], ["delete", 2, 1], ["insert", 2, 1]]
    with pytest.raises(RefusedError, match="name at least one column"):
        feed(dataset, 0, [])
    named = lance.write_dataset(pa.table({"id": [1], "_change": ["x"]}), str(tmp_path / "named"))
    with pytest.raises(RefusedError, match="a column named as one of the feed"):
        feed(named, 0)
    assert feed(named, 0, ["id"]) == [["insert", 1, 1]]


def test_versions_that_were_removed_are_named(tmp_path: Path) -> None:
    from lance_namespace.errors import TableVersionNotFoundError

    dataset = lance.write_dataset(pa.table({"id": [1]}), str(tmp_path / "table"))
    for number in range(2, 5):
        dataset = lance.write_dataset(pa.table({"id": [number]}), dataset, mode="append")
    dataset.cleanup_old_versions(retain_versions=2)
    assert feed(dataset, 3) == [["insert", 4, 4]]
    with pytest.raises(TableVersionNotFoundError, match="version 3 need version 2, which is removed: choose"):
        feed(dataset, 1)
