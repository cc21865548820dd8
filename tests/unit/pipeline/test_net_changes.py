"""What a view's source lost and gained between two versions, from its change feed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from tiltyard.model.views.changes import FullRefreshRequiredError
from tiltyard.pipeline.table_location import CatalogConnection, TableLocation
from tiltyard.pipeline.views import net_changes
from tiltyard.pipeline.views.net_changes import find_net_changes
from tiltyard.pipeline.views.sources import SourceTable
from tiltyard.pipeline.views.tasks import ChangedRows

ROWS = pa.table({"id": pa.array(range(10), pa.int32()), "text": ["old"] * 10, "unread": [0] * 10})


@pytest.fixture
def source(tmp_path: Path) -> Callable[[], SourceTable]:
    """Return a function that opens a table of ten rows at its newest version."""
    uri = str(tmp_path / "films")
    lance.write_dataset(ROWS, uri, max_rows_per_file=5)
    location = TableLocation(uri, {}, CatalogConnection("dir", ()), ("films",))
    return lambda: SourceTable("films", location, lance.dataset(uri))


def read(tasks: tuple[ChangedRows, ...]) -> list[tuple[int, str]]:
    batches = [batch for task in tasks for batch in task.read(["text", "id"])]
    return sorted((row["id"], row["text"]) for batch in batches for row in batch.to_pylist())


def test_net_changes_are_rows_of_the_two_versions_alone(
    source: Callable[[], SourceTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(net_changes, "_ROWS_PER_TASK", 2)
    for text in ("between", "new"):
        source().dataset.update({"text": f"'{text}'"}, where="id IN (1, 7)")
        source().dataset.optimize.compact_files()
    source().dataset.update({"unread": "1"}, where="id = 2")
    source().dataset.delete("id = 3")
    lance.write_dataset(ROWS.slice(4, 1), source().location.uri, mode="append")  # a row that is there already
    changes = find_net_changes(source(), 1, ["id", "text"])
    assert read(changes.lost) == [(1, "old"), (3, "old"), (7, "old")]
    assert read(changes.gained) == [(1, "new"), (4, "old"), (7, "new")]
    assert len(changes.gained) > 1
    later = find_net_changes(source(), int(source().dataset.version), ["id"])
    assert (later.lost, later.gained) == ((), ())


def test_net_changes_of_a_column_that_had_another_type_meanwhile_are_not_known(
    source: Callable[[], SourceTable],
) -> None:
    source().dataset.alter_columns({"path": "id", "data_type": pa.int64()})
    source().dataset.update({"id": "5000000000"}, where="id = 1")
    source().dataset.delete("id > 10")
    source().dataset.alter_columns({"path": "id", "data_type": pa.int32()})
    with pytest.raises(
        FullRefreshRequiredError, match="the changes of films cannot be followed: Column 'id' was int64"
    ):
        find_net_changes(source(), 1, ["id", "text"])


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        ("MAX_CHANGED_ROWS", "20 rows of films were changed, and at most 1 changes are followed"),
        ("MAX_CHANGED_VERSIONS", "rows of films were changed, and only 1 versions are followed, not 2"),
        ("_FEW_ROWS", "20 rows of films were changed, and it has 10"),
    ],
)
def test_net_changes_are_bounded(
    source: Callable[[], SourceTable], monkeypatch: pytest.MonkeyPatch, limit: str, message: str
) -> None:
    source().dataset.update({"text": "'new'"}, where="id < 5")
    source().dataset.update({"text": "'new'"}, where="id >= 5")
    monkeypatch.setattr(net_changes, limit, 1)
    with pytest.raises(FullRefreshRequiredError, match=message):
        find_net_changes(source(), 1, ["id", "text"])
