"""What a view's source lost and gained between two versions, from its change feed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from tiltyard.view_refresh import net_changes
from tiltyard.view_refresh.net_changes import NetChanges, find_net_changes
from tiltyard.view_refresh.net_rows import NetRows
from tiltyard.view_refresh.source_changes import FullRefreshRequiredError

ROWS = pa.table({"id": pa.array(range(10), pa.int32()), "text": ["old"] * 10, "unread": [0] * 10})


@pytest.fixture
def source(tmp_path: Path) -> Callable[[], lance.LanceDataset]:
    """Return a function that opens a table of ten rows at its newest version."""
    uri = str(tmp_path / "films")
    lance.write_dataset(ROWS, uri, max_rows_per_file=5)
    return lambda: lance.dataset(uri)


def find(dataset: lance.LanceDataset, since: int = 1, *columns: str) -> NetChanges:
    return find_net_changes("films", dataset, since, columns or ["id", "text"])


def read(dataset: lance.LanceDataset, parts: tuple[NetRows, ...]) -> list[tuple[int, str]]:
    batches = [batch for rows in parts for batch in rows.read(dataset.checkout_version, ["text", "id"])]
    assert sum(map(len, parts)) == sum(batch.num_rows for batch in batches)
    return sorted((row["id"], row["text"]) for batch in batches for row in batch.to_pylist())


def test_net_changes_are_rows_of_the_two_versions_alone(
    source: Callable[[], lance.LanceDataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(net_changes, "_ROWS_PER_PART", 2)
    for text in ("between", "new"):
        source().update({"text": f"'{text}'"}, where="id IN (1, 7)")
        source().optimize.compact_files()
    source().update({"unread": "1"}, where="id = 2")
    source().delete("id = 3")
    lance.write_dataset(ROWS.slice(4, 1), source().uri, mode="append")  # a row that is there already
    changes = find(source())
    assert read(source(), changes.lost) == [(1, "old"), (3, "old"), (7, "old")]
    assert read(source(), changes.gained) == [(1, "new"), (4, "old"), (7, "new")]
    assert len(changes.gained) > 1
    later = find(source(), int(source().version), "id")
    assert (later.lost, later.gained) == ((), ())


def test_net_changes_of_a_column_that_had_another_type_meanwhile_are_not_known(
    source: Callable[[], lance.LanceDataset],
) -> None:
    source().alter_columns({"path": "id", "data_type": pa.int64()})
    source().update({"id": "5000000000"}, where="id = 1")
    source().delete("id > 10")
    source().alter_columns({"path": "id", "data_type": pa.int32()})
    with pytest.raises(
        FullRefreshRequiredError, match="the changes of films cannot be followed: Column 'id' was int64"
    ):
        find(source())


def test_net_changes_are_bounded(source: Callable[[], lance.LanceDataset], monkeypatch: pytest.MonkeyPatch) -> None:
    source().update({"text": "'new'"}, where="id < 5")
    source().update({"text": "'new'"}, where="id >= 5")
    columns = ["id", "text"]
    with pytest.raises(
        FullRefreshRequiredError, match="20 rows of films were changed, and at most 1 changes are followed"
    ):
        find_net_changes("films", source(), 1, columns, max_rows=1)
    for limit, message in {
        "MAX_CHANGED_VERSIONS": "rows of films were changed, and only 1 versions are followed, not 2",
        "_FEW_ROWS": "20 rows of films were changed, and it has 10",
    }.items():
        with monkeypatch.context() as patch:
            patch.setattr(net_changes, limit, 1)
            with pytest.raises(FullRefreshRequiredError, match=message):
                find_net_changes("films", source(), 1, columns)
