"""The rows of a view that a refresh removes: equal ones to given rows, and those of groups."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from tiltyard.view_refresh.removal import find_equal_rows, find_group_rows, remove_rows
from tiltyard.view_refresh.source_changes import FullRefreshRequiredError


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
    removal = remove_rows(view, find_equal_rows(view, batches(removed), rows.schema.names))
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
        find_equal_rows(view, batches(rows.take([1] * 4)), rows.schema.names)


def test_rows_of_groups_are_found_by_values_and_nulls(tmp_path: Path) -> None:
    rows = pa.table({"a": ["x", None, "y", "x"], "b": pa.array([1, 1, 1, 2], pa.date32())})
    view = lance.write_dataset(rows, tmp_path / "view")
    values = {"a": pa.array(["x", None]), "b": pa.array([1], pa.date32())}
    assert find_group_rows(view, values).tolist() == [0, 1]
    assert find_group_rows(view, {"a": pa.array([None], pa.string())}).tolist() == [1]
