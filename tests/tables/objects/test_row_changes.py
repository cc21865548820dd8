"""Merges, updates and deletes of tables on an object store, whose manifests are made here: as if by Lance."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from bench.s3_proxy import S3Proxy
from lance_namespace import errors
from tests.tables.bodies import rows, small
from tests.tables.objects.calls import count_served, create, insert, names_of_versions, requests_of

from tiltyard.context import Context
from tiltyard.model.spec import models
from tiltyard.storage import locks, row_rewrites, writing
from tiltyard.storage.manifests.manifest_store import ManifestStore
from tiltyard.tables.keys.declaration import set_table_primary_key
from tiltyard.tables.rows import merge as merge_module
from tiltyard.tables.rows import row_changes, update_delete
from tiltyard.tables.rows.merge import merge_insert_into_table
from tiltyard.tables.rows.update_delete import delete_from_table, update_table

META = ["_row_created_at_version", "_row_last_updated_at_version"]


def merge(ctx: Context, table: pa.Table, **fields: Any) -> models.MergeInsertIntoTableResponse:
    given = {"on": ["id"], "when_matched_update_all": True, "when_not_matched_insert_all": True} | fields
    return merge_insert_into_table(ctx, models.MergeInsertIntoTableRequest(id=["t"], **given), small(table))


def update(ctx: Context, predicate: str | None, **updates: str) -> models.UpdateTableResponse:
    pairs = [[name, expression] for name, expression in updates.items()]
    return update_table(ctx, models.UpdateTableRequest(id=["t"], predicate=predicate, updates=pairs))


def delete(ctx: Context, predicate: str) -> models.DeleteFromTableResponse:
    return delete_from_table(ctx, models.DeleteFromTableRequest(id=["t"], predicate=predicate))


CHANGES: dict[str, tuple[Callable[[Context], object], list[int]]] = {
    "merge": (lambda ctx: merge(ctx, rows(2, 2)), [0, 1, 2, 3, 10]),
    "update": (lambda ctx: update(ctx, "id = 2", id="id + 10"), [0, 1, 10, 12]),
    "delete": (lambda ctx: delete(ctx, "id < 2"), [2, 10]),
}
"""Changes of a table with the ids 0, 1, 2 and 10, and the ids that it has then."""


@pytest.fixture(params=CHANGES)
def change(request: pytest.FixtureRequest) -> tuple[Callable[[Context], object], list[int]]:
    return CHANGES[request.param]


def open_directly(ctx: Context, location: str) -> lance.LanceDataset:
    return lance.dataset(location, storage_options=ctx.storage.options(location))


def ids(ctx: Context, location: str) -> list[int]:
    found = open_directly(ctx, location).to_table(columns=["id"])["id"].to_pylist()
    assert len(found) == count_served(ctx)
    return sorted(found)


def unused_files(ctx: Context, location: str) -> set[str]:
    """Return data and deletion files that are in no version."""
    files = ctx.storage.files(location)
    there = {
        f"{folder}/{name}" for folder in ("data", "_deletions") for name in files.list_names(f"{location}/{folder}")
    }
    dataset = open_directly(ctx, location)
    for number in dataset.versions():
        for fragment in dataset.checkout_version(number["version"]).get_fragments():
            there -= {f"data/{file.path}" for file in fragment.data_files()}
            if deletions := fragment.metadata.deletion_file:
                there.discard(deletions.path(fragment.fragment_id))
    return there


def test_objects_changes_of_rows_make_their_manifests_here(counted: Context, proxy: S3Proxy) -> None:
    location = create(counted)
    insert(counted, 10)
    count_served(counted)
    once = ["LIST versions", "GET manifest", "PUT transaction", "PUT staged manifest", "PUT manifest", "HEAD manifest"]
    for run, written in (
        (lambda: update(counted, "id = 1", name="'x'"), ["PUT data", "PUT deletions"]),
        (lambda: delete(counted, "id = 2"), ["PUT deletions"]),
        (lambda: merge(counted, rows(2, 10)), ["PUT data"]),
    ):
        requests = requests_of(counted, proxy, run)
        reads = {"GET data", "GET deletions"}
        assert {kind: number for kind, number in requests.items() if kind not in reads} == dict.fromkeys(
            [*once, *written], 1
        )
    assert ids(counted, location) == [0, 1, 10, 11]
    assert not unused_files(counted, location)


def test_objects_change_commits_where_the_locks_of_all_names_share_a_file(
    counted: Context, change: tuple[Callable[[Context], object], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change holds its table's lock and takes that of commits: one table of a thousand had both in one file."""
    monkeypatch.setattr(locks, "_LOCK_FILES", 1)
    location = create(counted)
    insert(counted, 10)
    run, expected = change
    run(counted)
    assert ids(counted, location) == expected


@pytest.mark.parametrize("stable", [False, True])
def test_objects_changes_of_rows_are_as_lance_makes_them(
    counted: Context, proxy: S3Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stable: bool
) -> None:
    """Rows, their ids and the versions that they come from, the fragments that indexes cover, and the responses."""
    location = create(counted, storage_options={"new_table_enable_stable_row_ids": str(stable).lower()})
    open_directly(counted, location).create_scalar_index("id", "BTREE")
    open_directly(counted, location).create_scalar_index("name", "BTREE")
    local = lance.write_dataset(rows(3), str(tmp_path / "local"), enable_stable_row_ids=stable)
    local.create_scalar_index("id", "BTREE")
    local.create_scalar_index("name", "BTREE")
    insert(counted, 10)
    local.insert(rows(1, 10))
    for module in (merge_module, update_delete):  # what is left to Lance is no test of this
        monkeypatch.setattr(module, "change_rows", surely(module.change_rows))

    def compare(ours: object, theirs: object) -> None:
        assert ours == theirs
        dataset = open_directly(counted, location)
        assert dataset.version == local.version
        columns = ["id", "name", "v", *(META if stable else [])]
        tables = [at.to_table(columns=columns, with_row_id=stable).sort_by("id") for at in (dataset, local)]
        assert tables[0] == tables[1]
        covered = [{index.name: index.num_rows_indexed for index in at.describe_indices()} for at in (dataset, local)]
        assert covered[0] == covered[1]
        for predicate in ("id = 10", "name = 'x'", "id >= 0"):
            assert dataset.count_rows(predicate) == local.count_rows(predicate)

    def merged(table: pa.Table, **fields: Any) -> tuple[int | None, int | None, int | None]:
        response = merge(counted, table, **fields)
        return response.num_inserted_rows, response.num_updated_rows, response.num_deleted_rows

    def merged_locally(builder: Any, table: pa.Table) -> tuple[int, int, int]:
        stats = builder.execute(table)
        return stats["num_inserted_rows"], stats["num_updated_rows"], stats["num_deleted_rows"]

    def upsert() -> Any:
        return local.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()

    # One new row each: several are written in any order.
    for table in (rows(2, 2), rows(1, 20), rows(1, 21), rows(1, 21).select(["id", "name"]), rows(5)):
        compare(merged(table), merged_locally(upsert(), table))
    compare(
        update(counted, "id = 1", name="'x'").updated_rows, local.update({"name": "'x'"}, "id = 1")["num_rows_updated"]
    )
    compare(
        update(counted, "id > 3 and id < 21", id="id * 100", name="'x'").updated_rows,
        local.update({"id": "id * 100", "name": "'x'"}, "id > 3 and id < 21")["num_rows_updated"],
    )
    compare(update(counted, None, v="v").updated_rows, local.update({"v": "v"})["num_rows_updated"])
    compare(
        update(counted, "id = 77", name="'x'").updated_rows,
        local.update({"name": "'x'"}, "id = 77")["num_rows_updated"],
    )
    for predicate in ("id = 0", "name = 'x' and id < 1000", "id = 77", "true"):
        compare(delete(counted, predicate).num_deleted_rows, local.delete(predicate)["num_deleted_rows"])
    insert(counted, 1)
    local.insert(rows(1, 1))
    keep = {"when_matched_update_all": False, "when_not_matched_by_source_delete": True}
    builder = local.merge_insert("id").when_not_matched_insert_all().when_not_matched_by_source_delete()
    compare(merged(rows(2, 5), **keep), merged_locally(builder, rows(2, 5)))


def surely(change_rows: Callable[..., Any]) -> Callable[..., Any]:
    def run(*arguments: Any) -> Any:
        changed = change_rows(*arguments)
        assert changed is not None
        return changed

    return run


def test_objects_change_that_another_server_overtakes_is_made_again_on_top(
    counted: Context,
    other_machine: Context,
    monkeypatch: pytest.MonkeyPatch,
    change: tuple[Callable[[Context], object], list[int]],
) -> None:
    location = create(counted)
    insert(counted, 10)
    make = writing.make_next_manifest

    def overtake(*arguments: Any) -> Any:
        monkeypatch.setattr(writing, "make_next_manifest", make)
        assert insert(other_machine, 50) == 3
        return make(*arguments)

    monkeypatch.setattr(writing, "make_next_manifest", overtake)
    response: Any = change[0](counted)
    assert response.version == 4
    assert ids(counted, location) == sorted([*change[1], 50])
    assert not unused_files(counted, location)
    other_machine.services.commit_log.flush()
    counted.services.commit_log.flush()
    assert all(name.endswith(".manifest") for name in names_of_versions(counted, location))


def test_objects_change_is_rebased_on_inserts_that_came_meanwhile(
    counted: Context, monkeypatch: pytest.MonkeyPatch, change: tuple[Callable[[Context], object], list[int]]
) -> None:
    location = create(counted)
    insert(counted, 10)
    write = row_changes._write

    def overtaken(*arguments: Any) -> Any:
        written = write(*arguments)
        assert [insert(counted, number) for number in (50, 51)] == [3, 4]
        return written

    monkeypatch.setattr(row_changes, "_write", overtaken)
    for module in (merge_module, update_delete):
        monkeypatch.setattr(module, "change_rows", surely(module.change_rows))
    response: Any = change[0](counted)
    assert response.version == 5
    assert ids(counted, location) == sorted([*change[1], 50, 51])
    assert insert(counted, 52) == 6
    assert not unused_files(counted, location)


@pytest.mark.parametrize("first", CHANGES)
def test_objects_change_that_conflicts_with_another_servers_is_made_again(
    counted: Context, other_machine: Context, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """Of the same fragment: Lance could join some of them, by numbers of rows that pylance does not give."""
    location = create(counted)
    insert(counted, 10)
    write = row_changes._write

    def overtaken(*arguments: Any) -> Any:
        written = write(*arguments)
        monkeypatch.setattr(row_changes, "_write", write)
        CHANGES[first][0](other_machine)
        return written

    monkeypatch.setattr(row_changes, "_write", overtaken)
    response = update(counted, "id <= 2", name="'x'")
    assert response.version == 4 and response.updated_rows == {"merge": 3, "update": 2, "delete": 1}[first]
    assert ids(counted, location) == CHANGES[first][1]
    named = open_directly(counted, location).to_table(filter="name = 'x'")["id"].to_pylist()
    assert sorted(named) == [number for number in CHANGES[first][1] if number <= 2]
    assert not unused_files(counted, location)


@pytest.mark.parametrize("declared", [True, False])
def test_objects_merge_that_is_overtaken_by_its_key_updates_the_row(
    counted: Context, monkeypatch: pytest.MonkeyPatch, declared: bool
) -> None:
    """By a declaration of the catalog; in Lance's schema alone nothing keeps an append from bringing the key."""
    location = create(counted)
    if declared:
        set_table_primary_key(counted, models.SetTablePrimaryKeyRequest(id=["t"], columns=["id"]))
    insert(counted, 10)
    write = row_changes._write

    def overtaken(*arguments: Any) -> Any:
        written = write(*arguments)
        monkeypatch.setattr(row_changes, "_write", write)
        insert(counted, 11)
        return written

    monkeypatch.setattr(row_changes, "_write", overtaken)
    response = merge(counted, rows(2, 10))
    found = ids(counted, location)
    if declared:
        assert (response.num_inserted_rows, response.num_updated_rows) == (0, 2) and found == [0, 1, 2, 10, 11]
    else:
        assert (response.num_inserted_rows, response.num_updated_rows) == (1, 1) and found == [0, 1, 2, 10, 11, 11]
    assert not unused_files(counted, location)


def test_objects_change_goes_on_from_the_version_that_a_restored_folder_has(
    counted: Context, change: tuple[Callable[[Context], object], list[int]]
) -> None:
    location = create(counted)
    assert insert(counted, 10) == 2
    counted.storage.datasets.openings.wait()
    before = {file.path for file in counted.storage.files(location).walk(location)}
    assert insert(counted, 11) == 3
    counted.services.commit_log.flush()
    counted.storage.datasets.openings.wait()
    added = [file.path for file in counted.storage.files(location).walk(location) if file.path not in before]
    counted.storage.files(location).delete([f"{location}/{path}" for path in added])
    response: Any = change[0](counted)
    assert response.version == 3
    assert ids(counted, location) == change[1]


@pytest.mark.parametrize(
    ("change_ten", "left"),
    [
        (lambda ctx: merge(ctx, rows(1, 10)), [0, 1, 2, 10]),
        (lambda ctx: update(ctx, "id = 10", id="12"), [0, 1, 2, 12]),
        (lambda ctx: delete(ctx, "id = 10"), [0, 1, 2]),
    ],
)
def test_objects_change_meets_a_restored_folder_with_another_version_of_the_same_number(
    counted: Context, change_ten: Callable[[Context], Any], left: list[int]
) -> None:
    location = create(counted)
    counted.storage.datasets.openings.wait()
    assert insert(counted, 50) == 2
    counted.services.commit_log.flush()
    counted.storage.datasets.openings.wait()
    counted.storage.files(location).delete([f"{location}/_versions/{2**64 - 1 - 2}.manifest"])
    lance.write_dataset(rows(1, 10), location, mode="append", storage_options=counted.storage.options(location))
    assert change_ten(counted).version == 3
    assert sorted(open_directly(counted, location).to_table(columns=["id"])["id"].to_pylist()) == left


def test_objects_change_waits_until_the_version_before_is_open(
    counted: Context, may_open: threading.Event, change: tuple[Callable[[Context], object], list[int]]
) -> None:
    location = create(counted)
    delete(counted, "false")
    may_open.clear()
    assert insert(counted, 10) == 3
    responses: list[Any] = []
    writer = threading.Thread(target=lambda: responses.append(change[0](counted)))
    writer.start()
    writer.join(0.2)
    assert not responses
    may_open.set()
    writer.join(30)
    assert [response.version for response in responses] == [4]
    assert ids(counted, location) == change[1]


@pytest.mark.parametrize("reason", ["large manifest", "many fragments", "other server", "many rows"])
def test_objects_change_that_is_left_to_lance_is_made(
    counted: Context,
    monkeypatch: pytest.MonkeyPatch,
    change: tuple[Callable[[Context], object], list[int]],
    reason: str,
) -> None:
    location = create(counted)
    insert(counted, 10)
    if reason == "large manifest":
        monkeypatch.setattr(ManifestStore, "read_latest", lambda *_: None)
    elif reason == "many fragments":
        monkeypatch.setattr(row_changes, "MAX_FRAGMENTS", 1)
    elif reason == "other server":  # it has just recorded a version, and not marked it as final
        monkeypatch.setattr(counted.services.commit_log, "has", lambda *_: False)
    else:
        monkeypatch.setattr(row_rewrites, "MAX_ROWS", 0)
    response: Any = change[0](counted)
    assert response.version == 3
    assert ids(counted, location) == change[1]
    assert not unused_files(counted, location)


def test_objects_change_that_breaks_the_key_leaves_nothing(counted: Context) -> None:
    location = create(counted)
    insert(counted, 10)
    set_table_primary_key(counted, models.SetTablePrimaryKeyRequest(id=["t"], columns=["id"]))
    with pytest.raises(errors.LanceNamespaceError, match="10 exists in this table already"):
        update(counted, "id = 1", id="10")
    assert ids(counted, location) == [0, 1, 2, 10]
    assert not unused_files(counted, location)
    assert merge(counted, rows(2, 10)).num_inserted_rows == 1
    assert update(counted, "id = 11", id="12").updated_rows == 1
    assert ids(counted, location) == [0, 1, 2, 10, 12]
