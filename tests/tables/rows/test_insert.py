"""InsertIntoTable: rows that fit the schema, rows that do not, and concurrent inserts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance_namespace import errors
from tests.tables.bodies import Streamed, rows, small
from tests.tables.rows.calls import data_files, insert
from tests.tables.served import Server, run_concurrently

from tiltyard.api.bodies.uploads import MemoryBody
from tiltyard.model.operations import ArrowBody
from tiltyard.model.spec import models
from tiltyard.storage import Storage, writing
from tiltyard.storage.locks import LockKind, TooBusyError
from tiltyard.tables.commits import commit_handler
from tiltyard.tables.commits.commit_handler import CommitNamespace
from tiltyard.tables.rows import append_queue


@pytest.mark.parametrize("body", [small, Streamed])
def test_insert_append_adds_rows_in_a_new_version(server: Server, body: Callable[[pa.Table], ArrowBody]) -> None:
    server.create("t", rows(3))
    response = insert(server, body(rows(2, 3)))
    assert (response.version, response.num_inserted_rows) == (2, 2)
    assert server.open("t").to_table().equals(rows(5))
    assert server.services.append_counts.read() == {"lance": 1}


@pytest.mark.parametrize("body", [small, Streamed])
def test_insert_overwrite_replaces_rows_and_schema(server: Server, body: Callable[[pa.Table], ArrowBody]) -> None:
    server.create("t", rows(3))
    other = pa.table({"other": ["x", "y"]})
    response = insert(server, body(other), mode="overwrite")
    assert (response.version, response.num_inserted_rows) == (2, 2)
    assert server.open("t").to_table().equals(other)


@pytest.mark.parametrize("body", [small, Streamed])
@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_insert_declared_table_gets_its_first_version(
    server: Server, mode: str, body: Callable[[pa.Table], ArrowBody]
) -> None:
    server.declare("t")
    response = insert(server, body(rows(2)), mode=mode)
    assert (response.version, response.num_inserted_rows) == (1, 2)
    assert not server.ctx.store.describe_table(("t",)).declared
    assert insert(server, body(rows(2)), mode="append").version == 2


@pytest.mark.parametrize("body", [small, Streamed])
@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_insert_branch_changes_the_branch_alone(
    server: Server, mode: str, body: Callable[[pa.Table], ArrowBody]
) -> None:
    server.create("t", rows(3)).create_branch("b")
    response = insert(server, body(rows(2, 3)), mode=mode, branch="b")
    assert response.version == 2
    branch = server.open("t").checkout_version(("b", None))
    assert branch.to_table().num_rows == (5 if mode == "append" else 2)
    assert server.open("t").version == 1
    with pytest.raises(errors.TableBranchNotFoundError):
        insert(server, body(rows(1)), mode=mode, branch="none")


@pytest.mark.parametrize("body", [small, Streamed])
def test_insert_no_rows_makes_no_version(server: Server, body: Callable[[pa.Table], ArrowBody]) -> None:
    server.create("t", rows(3))
    response = insert(server, body(rows(0)))
    assert (response.version, response.num_inserted_rows) == (1, 0)


def test_insert_no_bytes_is_invalid(server: Server) -> None:
    server.create("t", rows(3))
    with pytest.raises(errors.InvalidInputError, match="no columns"):
        insert(server, MemoryBody(b""))


@pytest.mark.parametrize("body", [small, Streamed])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.append_column("x", pa.array([1] * t.num_rows)), "Unknown columns: x. This table has: id, name, v"),
        (lambda t: t.set_column(0, "id", pa.array(["a"] * t.num_rows)), "'id' is int64 in the table, and string here"),
        (lambda t: t.set_column(0, "id", pa.array([0.5] * t.num_rows)), "'id' is int64"),
        (lambda t: t.set_column(2, "v", pa.array([[1.0]] * t.num_rows)), "'v' is fixed_size_list"),
        (lambda t: t.set_column(2, "v", pa.array([[1.0, 2.0, 3.0, 1e300]] * t.num_rows)), "1e+300 would become inf"),
        (lambda t: t.append_column("id", t["id"]), "'id' occurs twice"),
    ],
)
def test_insert_columns_that_do_not_fit_are_named(
    server: Server, body: Callable[[pa.Table], ArrowBody], change: Callable[[pa.Table], pa.Table], message: str
) -> None:
    server.create("t", rows(3))
    with pytest.raises(errors.TableSchemaValidationError, match=re.escape(message)):
        insert(server, body(change(rows(2))))
    assert server.open("t").version == 1
    assert len(data_files(server)) == 1


def test_insert_other_types_are_cast_as_lancedb_does(server: Server) -> None:
    server.create("t", rows(1))
    columns = pa.table(
        {
            "v": pa.array([[1.0, 2.0, 3.0, 4.0]], pa.list_(pa.float64())),
            "name": pa.array(["x"], pa.large_string()).dictionary_encode(),
            "id": pa.array([7], pa.uint8()),
        }
    )
    insert(server, small(columns))
    assert server.open("t").to_table().to_pylist()[1] == {"id": 7, "name": "x", "v": [1.0, 2.0, 3.0, 4.0]}


@pytest.mark.parametrize("body", [small, Streamed])
def test_insert_missing_columns_are_null(server: Server, body: Callable[[pa.Table], ArrowBody]) -> None:
    server.create("t", rows(1))
    insert(server, body(pa.table({"id": [7]})))
    assert server.open("t").to_table().to_pylist()[1] == {"id": 7, "name": None, "v": None}


@pytest.mark.parametrize("body", [small, Streamed])
@pytest.mark.parametrize("columns", [{"id": pa.array([None], pa.int64())}, {"other": pa.array([1])}])
def test_insert_null_in_a_required_column_is_refused(
    server: Server, body: Callable[[pa.Table], ArrowBody], columns: dict[str, pa.Array]
) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("other", pa.int64())])
    server.create("t", pa.table({"id": [1], "other": [1]}, schema))
    with pytest.raises(errors.TableSchemaValidationError, match=r"[`']id[`']"):
        insert(server, body(pa.table(columns)))


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_insert_broken_off_leaves_no_version_and_no_file(server: Server, mode: str) -> None:
    server.create("t", rows(3))
    with pytest.raises(errors.InvalidInputError, match="complete"):
        insert(server, Streamed(rows(5000), breaks_off=True), mode=mode)
    assert server.open("t").version == 1
    assert len(data_files(server)) == 1


def test_insert_many_at_once_are_gathered_and_all_kept(server: Server) -> None:
    server.create("t", rows(0))
    results = run_concurrently(
        [lambda key=key: insert(server, (small if key % 8 else Streamed)(rows(1, key))) for key in range(64)]
    )
    assert {type(result) for result in results} == {models.InsertIntoTableResponse}
    table = server.open("t")
    assert sorted(table.to_table()["id"].to_pylist()) == list(range(64))
    assert table.version < 60
    assert {result.version for result in results} == set(range(2, table.version + 1))


def test_insert_bad_batch_fails_its_own_caller_alone(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(storage: Storage, table: pa.Table, dataset: lance.LanceDataset, base: str) -> Any:
        if 13 in table["id"].to_pylist():
            raise ValueError("LanceError(Arrow): these bits are bad")
        return writing.write_rows(storage, table, dataset, base)

    monkeypatch.setattr(append_queue, "write_rows", write)
    server.create("t", rows(0))
    results = run_concurrently([lambda key=key: insert(server, small(rows(1, key))) for key in range(32)])
    assert Counter(type(result) for result in results) == {
        models.InsertIntoTableResponse: 31,
        errors.InvalidInputError: 1,
    }
    assert sorted(server.open("t").to_table()["id"].to_pylist()) == [key for key in range(32) if key != 13]
    assert len(data_files(server)) == len(server.open("t").get_fragments())


@pytest.mark.parametrize("body", [small, Streamed])
def test_insert_many_into_a_declared_table_loses_none(server: Server, body: Callable[[pa.Table], ArrowBody]) -> None:
    for number in range(5):
        name = f"t{number}"
        server.declare(name)
        results = run_concurrently(
            [lambda key=key, name=name: insert(server, body(rows(1, key)), name) for key in range(12)]
        )
        assert {type(result) for result in results} == {models.InsertIntoTableResponse}
        assert sorted(server.open(name).to_table()["id"].to_pylist()) == list(range(12))


def test_insert_into_declared_with_other_columns_at_once_keeps_what_was_answered(server: Server) -> None:
    server.declare("t")
    tables = [rows(1, 1), pa.table({"id": [2]}), rows(1, 3).select(["v", "id", "name"]), pa.table({"zz": [4]})]
    results = run_concurrently([lambda table=table: insert(server, small(table)) for table in tables])
    stored = server.open("t").to_table().num_rows
    assert stored == sum(isinstance(result, models.InsertIntoTableResponse) for result in results)
    assert stored >= 1
    allowed = (errors.TableSchemaValidationError, errors.ConcurrentModificationError, models.InsertIntoTableResponse)
    assert all(isinstance(result, allowed) for result in results)


def test_insert_beside_writers_by_location_keeps_all(server: Server) -> None:
    server.create("t", rows(0))
    location = server.open("t").uri

    def by_location(key: int) -> None:
        lance.write_dataset(rows(1, key), location, mode="append")

    work: list[Callable[[], Any]] = [lambda key=key: insert(server, small(rows(1, key))) for key in range(20)]
    results = run_concurrently([*work, *(lambda key=key: by_location(key) for key in range(100, 110))])
    assert not [result for result in results if isinstance(result, Exception)]
    assert sorted(server.open("t").to_table()["id"].to_pylist()) == [*range(20), *range(100, 110)]


def test_insert_streamed_into_a_table_overwritten_meanwhile_is_a_conflict(server: Server) -> None:
    server.create("t", rows(3))

    class Overtaken(Streamed):
        def _batches(self) -> Any:
            yield from super()._batches()
            lance.write_dataset(pa.table({"other": [1]}), server.open("t").uri, mode="overwrite")

    with pytest.raises(errors.ConcurrentModificationError):
        insert(server, Overtaken(rows(2)))
    assert len(data_files(server)) == 2
    assert server.open("t").to_table().to_pylist() == [{"other": 1}]


def _overwrite(location: str, table: pa.Table) -> None:
    lance.write_dataset(table, location, mode="overwrite")


@pytest.mark.parametrize("managed", [False, True])
@pytest.mark.parametrize(
    ("change", "expected_ids"),
    [
        (lambda at: lance.write_dataset(rows(1, 7), at, mode="append"), [0, 1, 7, 5]),
        (lambda at: _overwrite(at, rows(1, 7)), [7, 5]),
        (lambda at: _overwrite(at, rows(1, 7).select(["v", "name", "id"])), [7, 5]),
        (lambda at: lance.dataset(at).delete("id = 0"), [1, 5]),
        (lambda at: lance.dataset(at).add_columns({"more": "id + 1"}), [0, 1, 5]),
        (lambda at: lance.dataset(at).optimize.compact_files(), [0, 1, 5]),
        (lambda at: lance.dataset(at).drop_columns(["name"]), None),
        (lambda at: lance.dataset(at).alter_columns({"path": "name", "name": "title"}), [0, 1, 5]),
        (lambda at: lance.dataset(at).alter_columns({"path": "id", "data_type": pa.int32()}), [0, 1, 5]),
        (lambda at: _overwrite(at, pa.table({"other": [1]})), None),
    ],
)
def test_insert_into_a_table_changed_after_its_rows_were_written_comes_before_or_after(
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[str], Any],
    expected_ids: list[int] | None,
    managed: bool,
) -> None:
    """Rows are written before their commit gets the lock; `expected_ids` is None if they no longer fit the schema."""
    if managed:
        server.declare("t", managed=True)
        insert(server, small(rows(2)))
    else:
        server.create("t", rows(2))
    location = server.open("t").uri
    changes = iter([change])

    def write(storage: Storage, table: pa.Table, dataset: lance.LanceDataset, base: str) -> Any:
        written = writing.write_rows(storage, table, dataset, base)
        for apply_change in changes:
            apply_change(location)
        return written

    monkeypatch.setattr(append_queue, "write_rows", write)
    if expected_ids is None:
        with pytest.raises(errors.TableSchemaValidationError):
            insert(server, small(rows(1, 5)))
    else:
        response = insert(server, small(rows(1, 5)))
        assert response.version == server.open("t").version
        assert server.open("t").to_table()["id"].to_pylist() == expected_ids
    if managed:  # no version ever had rows that could not be read
        responses = [
            lance.dataset(location, version=version["version"]).to_table() for version in server.open("t").versions()
        ]
        assert not any(table["id"].null_count for table in responses if "id" in table.schema.names)
    used = {file.path for version in server.open("t").versions() for file in _files(location, version["version"])}
    assert {path.name for path in data_files(server)} == used


def _files(location: str, version: int) -> Iterable[Any]:
    return [
        file for fragment in lance.dataset(location, version=version).get_fragments() for file in fragment.data_files()
    ]


def test_insert_whose_turn_does_not_come_is_a_conflict_and_leaves_no_file(tmp_path: Path) -> None:
    server = Server(tmp_path, conflict_timeout=0.2)
    server.create("t", rows(1))
    key = f"{server.open('t').uri}#main"
    with server.ctx.storage.locks.hold(LockKind.COMMITS, key, 1):
        results = run_concurrently([lambda key=key: insert(server, small(rows(1, key))) for key in range(5)])
    assert {type(result) for result in results} == {TooBusyError}
    assert server.open("t").version == 1 and len(data_files(server)) == 1
    assert insert(server, small(rows(1, 1))).version == 2


def test_insert_overwrites_at_once_leave_one_whole(server: Server) -> None:
    server.create("t", rows(1))
    results = run_concurrently(
        [lambda key=key: insert(server, small(rows(key + 1)), mode="overwrite") for key in range(6)]
    )
    assert {type(result) for result in results} == {models.InsertIntoTableResponse}
    newest = max(results, key=lambda result: result.version)
    assert server.open("t").version == newest.version
    assert server.open("t").count_rows() == newest.num_inserted_rows


def test_insert_into_a_table_dropped_meanwhile_is_swept(server: Server) -> None:
    server.declare("t")
    location = server.ctx.store.describe_table(("t",)).location

    class Dropped(Streamed):
        def _batches(self) -> Any:
            yield from super()._batches()
            server.ctx.store.remove_table(("t",), delete_folder=True)
            server.ctx.store.complete_deletion(location)

    with pytest.raises(errors.TableNotFoundError):
        insert(server, Dropped(rows(2)))
    assert [folder.location for folder in server.ctx.store.claim_due_deletions(10, 1000)] == [location]


def drop(server: Server, name: str) -> None:
    server.services.store.remove_table((name,), delete_folder=True, keep_ms=0)


def test_insert_into_a_managed_table_dropped_before_the_commit_is_told_so(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.declare("t", managed=True)
    insert(server, small(rows(3)))
    written = data_files(server)
    create = CommitNamespace.create_table_version

    def late(self: CommitNamespace, request: Any) -> Any:
        drop(server, "t")
        return create(self, request)

    monkeypatch.setattr(CommitNamespace, "create_table_version", late)
    with pytest.raises(errors.TableNotFoundError, match="dropped"):
        insert(server, small(rows(2)))
    assert data_files(server) == written


def test_insert_into_a_managed_table_dropped_once_it_may_have_been_committed_is_not_known(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.declare("t", managed=True)
    insert(server, small(rows(3)))
    written = data_files(server)
    commit = commit_handler.commit_staged

    def torn(*args: Any, **options: Any) -> None:
        commit(*args, **options)
        drop(server, "t")
        raise errors.TableNotFoundError("It is gone by now.")

    monkeypatch.setattr(commit_handler, "commit_staged", torn)
    with pytest.raises(errors.ServiceUnavailableError, match="not known"):
        insert(server, small(rows(2)))
    assert len(data_files(server)) == len(written) + 1


def test_own_commit_that_asks_again_once_the_table_is_gone_is_no_sure_refusal(server: Server) -> None:
    server.declare("t", managed=True)
    insert(server, small(rows(3)))
    commit_route = server.ctx.commit_route(server.services.store.describe_table(("t",)), durable=True)
    assert commit_route is not None
    request = {"id": list(commit_route.table_id), "version": 2, "manifest_path": "_versions/2.manifest-x"}
    with pytest.raises(errors.InvalidInputError):
        commit_route.client.create_table_version(request)  # type: ignore[arg-type]  # as pylance hands it over
    drop(server, "t")
    with pytest.raises(errors.TableNotFoundError):
        commit_route.client.create_table_version(request)  # type: ignore[arg-type]  # as above
    assert commit_route.refusals == []


def test_insert_missing_table_or_mode_is_told(server: Server) -> None:
    with pytest.raises(errors.TableNotFoundError):
        insert(server, small(rows(1)))
    server.create("t", rows(1))
    with pytest.raises(errors.InvalidInputError, match="Append"):
        insert(server, small(rows(1)), mode="sideways")
