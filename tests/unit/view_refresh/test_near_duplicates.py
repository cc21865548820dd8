"""Near-duplicates of a version: which pairs, which rows stay, and what is refused."""

from __future__ import annotations

from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance_namespace.errors import InvalidInputError

from tiltyard.view_refresh import near_duplicates
from tiltyard.view_refresh.near_duplicates import find_duplicates, find_pairs, find_partitions, leave_out


def dataset(path: Path, values: np.ndarray, **index: object) -> lance.LanceDataset:
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])
    written = lance.write_dataset(pa.table({"v": vectors}), path / "t.lance", max_rows_per_file=100)
    if index:
        written.create_index("v", **index)
    return lance.dataset(path / "t.lance")


@pytest.mark.parametrize("partitions", [1, 4])
def test_find_duplicates_leaves_what_comparing_all_rows_of_a_partition_does(tmp_path: Path, partitions: int) -> None:
    values = np.random.default_rng(1).random((300, 2), dtype=np.float32)
    data = dataset(tmp_path, values, index_type="IVF_FLAT", num_partitions=partitions)
    pairs = pa.Table.from_batches(find_pairs(data, "v", 0.001, lambda: None))
    assert pairs.num_rows > 100
    neighbours: dict[int, set[int]] = {}
    for first, second in zip(pairs["row_id_a"].to_pylist(), pairs["row_id_b"].to_pylist(), strict=True):
        neighbours.setdefault(first, set()).add(second)
        neighbours.setdefault(second, set()).add(first)
    removed: set[int] = set()
    ids = data.to_table(columns=[], with_row_id=True)["_rowid"].to_pylist()
    for row in ids:
        if row not in removed:
            removed |= {other for other in neighbours.get(row, ()) if other > row}
    found = find_duplicates(data, "v", 0.001, lambda: None)
    assert found.tolist() == sorted(removed)
    left = [leave_out(batch, found).num_rows for batch in data.to_batches(with_row_id=True)]
    assert sum(left) == 300 - len(removed)


def test_find_duplicates_without_pairs_leaves_all_rows(tmp_path: Path) -> None:
    values = np.arange(40, dtype=np.float32).reshape(20, 2)
    data = dataset(tmp_path, values, index_type="IVF_FLAT", num_partitions=1)
    found = find_duplicates(data, "v", 0.1, lambda: None)
    assert found.tolist() == [] and leave_out(next(iter(data.to_batches(with_row_id=True))), found).num_rows == 20


def test_find_partitions_of_what_cannot_be_compared_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.zeros((300, 2), dtype=np.float32)
    data = dataset(tmp_path, values)
    with pytest.raises(InvalidInputError, match="'nope' is none"):
        find_partitions(data, "nope")
    with pytest.raises(InvalidInputError, match="which has 0"):
        find_partitions(data, "v")
    data.create_index("v", "IVF_FLAT", num_partitions=1)
    assert len(find_partitions(data, "v")) == 1
    monkeypatch.setattr(near_duplicates, "MAX_PAIRS", 10)
    with pytest.raises(InvalidInputError, match="More than 10 pairs"):
        find_duplicates(data, "v", 0.0, lambda: None)
    monkeypatch.setattr(near_duplicates, "MAX_PARTITION_NUMBERS", 10_000)
    with pytest.raises(InvalidInputError, match="more partitions"):
        find_partitions(data, "v")
    data.insert(data.to_table(limit=1))
    with pytest.raises(InvalidInputError, match="lacks 1 rows"):
        find_partitions(data, "v")


def test_find_pairs_stops_where_its_check_raises(tmp_path: Path) -> None:
    data = dataset(tmp_path, np.zeros((300, 2), dtype=np.float32), index_type="IVF_FLAT", num_partitions=1)

    def check() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        list(find_pairs(data, "v", 0.0, check))
