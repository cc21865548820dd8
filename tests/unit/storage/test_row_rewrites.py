"""Deletes and updates that are written without being committed, beside those of Lance."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance_namespace.errors import ServiceUnavailableError

from tiltyard.config import Settings
from tiltyard.storage import Storage, row_rewrites
from tiltyard.storage.row_rewrites import delete_rows, update_rows
from tiltyard.storage.writing import discard_transaction

ROWS = 12
TABLE = pa.table(
    {
        "id": pa.array(range(ROWS), pa.int64()),
        "small": pa.array([number % 3 for number in range(ROWS)], pa.int8()),
        "half": pa.array([number / 2 for number in range(ROWS)], pa.float32()),
        "text": [None if number % 4 == 0 else f"n{number}" for number in range(ROWS)],
        "day": pa.array([datetime.date(2026, 1, 1 + number) for number in range(ROWS)]),
        "is Odd": [number % 2 == 1 for number in range(ROWS)],
        "point": [{"x": number, "tags": ["a", str(number)]} for number in range(ROWS)],
        "v": pa.FixedSizeListArray.from_arrays(pa.array(range(2 * ROWS), pa.float32()), 2),
    }
).cast(
    pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("small", pa.int8()),
            pa.field("half", pa.float32()),
            pa.field("text", pa.string(), metadata={"note": "kept"}),
            pa.field("day", pa.date32()),
            pa.field("is Odd", pa.bool_()),
            pa.field("point", pa.struct([("x", pa.int64()), ("tags", pa.list_(pa.string()))])),
            pa.field("v", pa.list_(pa.float32(), 2)),
        ]
    )
)
META = ["_row_created_at_version", "_row_last_updated_at_version"]


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(Settings(root=str(tmp_path)))


def create(folder: Path, name: str, *, stable: bool = False, table: pa.Table = TABLE) -> lance.LanceDataset:
    """Return a table of three fragments, one of which has a deleted row."""
    dataset = lance.write_dataset(table, folder / name, max_rows_per_file=5, enable_stable_row_ids=stable)
    dataset.delete("id = 1")
    return dataset


def update(storage: Storage, dataset: lance.LanceDataset, updates: dict[str, str], where: str | None) -> Any:
    return update_rows(storage, str(dataset.uri).removeprefix("file://"), dataset, updates, where)


def contents(dataset: lance.LanceDataset, *, stable: bool) -> pa.Table:
    columns = [*dataset.schema.names, *(META if stable else [])]
    return dataset.to_table(columns=columns, with_row_id=True, with_row_address=True)


@pytest.mark.parametrize("stable", [False, True])
@pytest.mark.parametrize(
    ("updates", "where"),
    [
        ({"text": "'x'"}, "id > 3"),
        ({"text": "concat(text, '!')", "half": "half + 1"}, None),
        ({"small": "id * 2"}, "id < 60"),
        ({"half": "3", "id": "id + small"}, "text IS NULL"),
        ({"is Odd": "id > 5", "day": "CAST('2027-01-01' AS DATE)"}, "`is Odd`"),
        ({"v": "v", "point": "point"}, "point.x = 7"),
        ({"text": "NULL"}, "id = 2"),
        ({"text": "'x'"}, "id = 100"),
        ({"text": "'x'"}, "id >= 5 AND id < 10"),
    ],
)
def test_update_rows_is_as_lance_updates(
    storage: Storage, tmp_path: Path, updates: dict[str, str], where: str | None, stable: bool
) -> None:
    ours, theirs = (create(tmp_path, name, stable=stable) for name in ("ours", "theirs"))
    written = update(storage, ours, updates, where)
    assert written is not None
    transaction, count = written
    assert count == theirs.update(updates, where)["num_rows_updated"]
    committed = lance.LanceDataset.commit(ours, transaction)
    assert contents(committed, stable=stable) == contents(theirs, stable=stable)
    assert committed.schema.equals(theirs.schema, check_metadata=True)
    mine, expected = committed.read_transaction(3).operation, theirs.read_transaction(3).operation
    for name in ("removed_fragment_ids", "fields_modified", "update_mode"):
        assert getattr(mine, name) == getattr(expected, name)
    preserved = [sorted(operation.fields_for_preserving_frag_bitmap) for operation in (mine, expected)]
    assert preserved[0] == preserved[1]
    committed.validate()


@pytest.mark.parametrize("stable", [False, True])
@pytest.mark.parametrize("where", ["id > 3", "id = 100", "id >= 5 AND id < 10", "true", "false", "text IS NULL"])
def test_delete_rows_is_as_lance_deletes(storage: Storage, tmp_path: Path, where: str, stable: bool) -> None:
    ours, theirs = (create(tmp_path, name, stable=stable) for name in ("ours", "theirs"))
    written = delete_rows(ours, where)
    assert written is not None
    transaction, count = written
    assert count == theirs.delete(where)["num_deleted_rows"]
    committed = lance.LanceDataset.commit(ours, transaction)
    assert contents(committed, stable=stable) == contents(theirs, stable=stable)
    mine, expected = committed.read_transaction(3).operation, theirs.read_transaction(3).operation
    assert sorted(mine.deleted_fragment_ids) == sorted(expected.deleted_fragment_ids)
    assert mine.predicate == expected.predicate
    committed.validate()


@pytest.mark.parametrize(
    ("updates", "where"),
    [
        ({"nothing": "1"}, None),
        ({"text": "nothing"}, None),
        ({"id": "NULL"}, "id = 2"),
        ({"small": "id * 1000"}, None),
        ({"small": "CAST(text AS BIGINT)"}, None),
        ({"v": "[1.0, 2.0]"}, None),
        ({"text": "'x'"}, "nothing = 1"),
        ({"point.x": "1"}, None),
    ],
)
def test_update_rows_leaves_to_lance_what_it_does_not_do(
    storage: Storage, tmp_path: Path, updates: dict[str, str], where: str | None
) -> None:
    dataset = create(tmp_path, "t")
    files = {path for path in (tmp_path / "t").rglob("*") if path.is_file()}
    assert update(storage, dataset, updates, where) is None
    assert {path for path in (tmp_path / "t").rglob("*") if path.is_file()} == files
    assert delete_rows(dataset, "nothing = 1") is None


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["a", "b"]).dictionary_encode(),
        pa.array(["{}", "[]"], pa.json_()),
        pa.array([b"a", b"b"], pa.large_binary()),
    ],
)
def test_update_rows_leaves_columns_that_are_stored_in_another_form(
    storage: Storage, tmp_path: Path, column: pa.Array
) -> None:
    metadata = {"lance-encoding:blob": "true"} if pa.types.is_large_binary(column.type) else None
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("special", column.type, metadata=metadata)])
    dataset = lance.write_dataset(pa.table([pa.array([1, 2], pa.int64()), column], schema=schema), tmp_path / "t")
    assert update(storage, dataset, {"id": "id + 1"}, "id = 1") is None


def test_changes_of_many_rows_are_left_to_lance(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = create(tmp_path, "t")
    monkeypatch.setattr(row_rewrites, "MAX_ROWS", 3)
    assert update(storage, dataset, {"text": "'x'"}, "id < 5") is None
    assert delete_rows(dataset, "id < 5") is None
    assert update(storage, dataset, {"text": "'x'"}, "id < 4") is not None
    assert delete_rows(dataset, "id < 4") is not None


def test_changes_raise_that_storage_does_not_respond(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = create(tmp_path, "t")

    def fail(*_: Any, **__: Any) -> None:
        raise ServiceUnavailableError("The storage does not respond.")

    monkeypatch.setattr(lance.LanceDataset, "scanner", fail)
    with pytest.raises(ServiceUnavailableError):
        update(storage, dataset, {"text": "'x'"}, None)
    with pytest.raises(ServiceUnavailableError):
        delete_rows(dataset, "true")


def test_discarded_changes_leave_the_files_of_the_version_before(storage: Storage, tmp_path: Path) -> None:
    dataset = create(tmp_path, "t")
    files = {path for path in (tmp_path / "t").rglob("*") if path.is_file()}
    merged, _ = dataset.merge_insert("id").when_matched_update_all().execute_uncommitted(TABLE.slice(2, 5))
    for written in (merged, update(storage, dataset, {"text": "'x'"}, "id > 3")[0], delete_rows(dataset, "id > 3")):
        transaction = written[0] if isinstance(written, tuple) else written
        assert transaction is not None
        discard_transaction(storage, str(tmp_path / "t"), transaction, dataset)
    assert {path for path in (tmp_path / "t").rglob("*") if path.is_file()} == files
    dataset.validate()
