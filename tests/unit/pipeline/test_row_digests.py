"""Digests of rows of any type, and the rows of a view that are found by them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

from tiltyard.model.views.changes import FullRefreshRequiredError
from tiltyard.pipeline.changes.row_digests import row_digests
from tiltyard.pipeline.views.removal import find_equal_rows, find_group_rows, remove_rows

NAN = float("nan")


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int64(), [1, 2, None]),
        (pa.string(), ["1", "None", None, ""]),
        (pa.binary(), [b"1", b"", None]),
        (pa.bool_(), [True, False, None]),
        (pa.float64(), [0.0, -0.0, NAN, None, 1.5]),
        (pa.float16(), [np.float16(0), np.float16(1), None]),
        (pa.decimal128(5, 2), [Decimal("1.10"), Decimal("1.11"), None]),
        (pa.timestamp("ns", "UTC"), [datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC), None]),
        (pa.date32(), [1, 2, None]),
        (pa.time64("us"), [1, 2, None]),
        (pa.list_(pa.float32(), 2), [[1, 2], [2, 1], [-0.0, 0], [0, 0], [0, None], None]),
        (pa.list_(pa.string()), [["ab"], ["a", "b"], [], [None], None]),
        (pa.large_list(pa.list_(pa.date32())), [[[1], [2]], [[1, 2]], [[], [1, 2]], None]),
        (pa.struct([("a", pa.int8()), ("b", pa.list_(pa.bool_(), 1))]), [(1, [True]), (1, None), (None, [True]), None]),
        (pa.map_(pa.string(), pa.int32()), [[("a", 1)], [("a", 2)], [], None]),
        (pa.dictionary(pa.int8(), pa.string()), ["a", "b", None]),
    ],
)
def test_digests_are_the_same_for_the_same_values_alone(kind: pa.DataType, values: list[Any]) -> None:
    values = [dict(zip("ab", value, strict=True)) if isinstance(value, tuple) else value for value in values]
    array = pa.array([*values, *reversed(values)], kind)
    digests = row_digests([array.slice(1)])  # with an offset, as parts of batches have it
    whole = row_digests([array])
    assert digests == whole[1:]
    assert whole == whole[::-1]
    assert len(set(whole)) == len(values)


def batches(rows: pa.Table) -> Iterator[pa.RecordBatch]:
    yield from rows.to_batches(max_chunksize=2)


@pytest.mark.parametrize("with_ids", [True, False])
def test_rows_are_found_as_often_as_they_are_given_and_each_once(tmp_path: Path, with_ids: bool) -> None:
    columns = {
        "id": pa.array([*range(6), 0, 0]),
        "x": pa.array([[number % 2] * 3 for number in range(8)], pa.list_(pa.float32(), 3)),
    }
    rows = pa.table(columns if with_ids else {"x": columns["x"]})
    view = lance.write_dataset(rows, tmp_path / "view", max_rows_per_file=3)
    view.delete("_rowid = 1")
    view = lance.dataset(tmp_path / "view")
    removed = rows.take([0, 4, 6])
    removal = remove_rows(view, find_equal_rows(view, batches(removed)))
    assert removal.rows == len(removed)
    operation = lance.LanceOperation.Update(
        removed_fragment_ids=list(removal.emptied),
        updated_fragments=list(removal.remaining),
        new_fragments=[],
        fields_modified=[],
    )
    left = lance.LanceDataset.commit(view, operation, read_version=view.version).to_table()
    expected = rows.take([2, 3, 5, 7]) if with_ids else rows.take([3, 5, 7, 2])
    assert sorted(left.to_pylist(), key=str) == sorted(expected.to_pylist(), key=str)
    with pytest.raises(FullRefreshRequiredError, match=f"the view lacks {4 if with_ids else 1} rows"):
        find_equal_rows(view, batches(rows.take([1] * 4)))


def test_rows_of_groups_are_found_by_values_and_nulls(tmp_path: Path) -> None:
    rows = pa.table({"a": ["x", None, "y", "x"], "b": pa.array([1, 1, 1, 2], pa.date32())})
    view = lance.write_dataset(rows, tmp_path / "view")
    values = {"a": pa.array(["x", None]), "b": pa.array([1], pa.date32())}
    assert find_group_rows(view, values).tolist() == [0, 1]
    assert find_group_rows(view, {"a": pa.array([None], pa.string())}).tolist() == [1]
