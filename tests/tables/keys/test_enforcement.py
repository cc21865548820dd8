"""A declared key holds against every operation that writes rows, and nothing else pays for it."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import lance
import pyarrow as pa
import pytest
from lance_namespace.errors import (
    InvalidInputError,
    LanceNamespaceError,
    TableColumnNotFoundError,
    TableSchemaValidationError,
    UnsupportedOperationError,
)
from tests.tables.bodies import small as body
from tests.tables.rows.calls import begin_upload, complete_upload, insert, merge
from tests.tables.served import ask, models, run_concurrently

from tiltyard.model.columns.primary_keys import PROPERTY
from tiltyard.storage.manifests import manifest_rows
from tiltyard.tables.keys import enforcement
from tiltyard.tables.keys.declaration import drop_table_primary_key, set_table_primary_key
from tiltyard.tables.keys.errors import DuplicateKeyError
from tiltyard.tables.rows.update_delete import delete_from_table, update_table
from tiltyard.tables.schema.column_additions import alter_table_add_columns
from tiltyard.tables.schema.columns import alter_table_alter_columns, alter_table_drop_columns
from tiltyard.tables.versions.branches import create_table_branch
from tiltyard.tables.versions.versions import restore_table

if TYPE_CHECKING:
    from tests.tables.served import Server


def rows(*ids: int | None) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "name": [f"n{number}" for number in ids]})


def declare_key(server: Server, *columns: str, name: str = "t") -> models.SetTablePrimaryKeyResponse:
    return set_table_primary_key(server.ctx, ask(models.SetTablePrimaryKeyRequest, id=name, columns=list(columns)))


@pytest.fixture
def table(server: Server) -> Server:
    """A server with the table `t`: ids 1 to 3, which are its key, with an index."""
    server.declare("t", managed=True)
    insert(server, body(rows(1, 2, 3)))
    declare_key(server, "id")
    assert set(server.run_jobs()) == {"Succeeded"}
    return server


def ids(server: Server) -> list[int]:
    return sorted(server.open("t").to_table().column("id").to_pylist())


def test_insert_of_an_existing_key_is_refused_with_the_key(table: Server) -> None:
    with pytest.raises(DuplicateKeyError, match="id = 2 exists in this table already"):
        insert(table, body(rows(7, 2)))
    insert(table, body(rows(7)))
    with pytest.raises(DuplicateKeyError, match="id = 7"):  # of a fragment that no index covers
        insert(table, body(rows(7)))
    assert ids(table) == [1, 2, 3, 7]


def test_insert_of_one_key_twice_or_of_null_is_refused(table: Server) -> None:
    with pytest.raises(DuplicateKeyError, match="id = 8 comes twice"):
        insert(table, body(rows(8, 9, 8)))
    with pytest.raises(TableSchemaValidationError, match="no value in 'id'"):
        insert(table, body(rows(8, None)))
    assert ids(table) == [1, 2, 3]


def test_deleted_key_can_be_inserted_again(table: Server) -> None:
    delete_from_table(table.ctx, ask(models.DeleteFromTableRequest, id="t", predicate="id = 2"))
    insert(table, body(rows(2)))
    delete_from_table(table.ctx, ask(models.DeleteFromTableRequest, id="t", predicate="id = 2"))
    insert(table, body(rows(2)))
    assert ids(table) == [1, 2, 3]


def test_concurrent_inserts_of_one_key_have_one_winner(table: Server) -> None:
    for key in range(10, 20):
        outcomes = run_concurrently([lambda key=key: insert(table, body(rows(key)))] * 4)
        assert sum(isinstance(outcome, DuplicateKeyError) for outcome in outcomes) == 3
    assert ids(table) == [1, 2, 3, *range(10, 20)]


def test_grouped_append_fails_the_faulty_request_alone(table: Server) -> None:
    outcomes = run_concurrently([lambda key=key: insert(table, body(rows(key))) for key in (2, 30, 31, 32, 33)])
    assert [type(outcome) for outcome in outcomes if isinstance(outcome, Exception)] == [DuplicateKeyError]
    assert ids(table) == [1, 2, 3, 30, 31, 32, 33]


def test_update_of_the_key_column_is_checked(table: Server) -> None:
    def update(expression: str, predicate: str | None = None) -> Any:
        updates = [["id", expression]]
        return update_table(table.ctx, ask(models.UpdateTableRequest, id="t", updates=updates, predicate=predicate))

    with pytest.raises(DuplicateKeyError, match="id = 3"):
        update("3", "id = 1")
    with pytest.raises(DuplicateKeyError):
        update("5")
    update("id + 1")  # all keys move at once
    update("10", "id = 2")
    assert ids(table) == [3, 4, 10]


def test_merge_updates_and_inserts_and_is_checked(table: Server) -> None:
    merge(table, body(rows(2, 5)), when_matched_update_all=True, when_not_matched_insert_all=True)
    renamed = pa.table({"id": pa.array([1], pa.int64()), "name": ["other"]})
    with pytest.raises(DuplicateKeyError, match="id = 1"):
        merge(table, body(renamed), on=["name"], when_not_matched_insert_all=True)
    assert ids(table) == [1, 2, 3, 5]


def test_multipart_write_is_checked_when_it_is_completed(table: Server) -> None:
    upload = begin_upload(table)
    insert(table, body(rows(20)), upload_id=upload)
    insert(table, body(rows(3)), upload_id=upload)
    with pytest.raises(DuplicateKeyError, match="id = 3"):
        complete_upload(table, upload)
    upload = begin_upload(table)
    insert(table, body(rows(20)), upload_id=upload)
    insert(table, body(rows(21)), upload_id=upload)
    complete_upload(table, upload)
    assert ids(table) == [1, 2, 3, 20, 21]


def test_overwrite_is_checked_in_itself(table: Server) -> None:
    with pytest.raises(DuplicateKeyError, match="id = 1 comes twice"):
        insert(table, body(rows(1, 1)), mode="overwrite")
    insert(table, body(rows(3, 4)), mode="overwrite")
    with pytest.raises(InvalidInputError, match="The column 'id'"):
        insert(table, body(pa.table({"name": ["x"]})), mode="overwrite")
    with pytest.raises(InvalidInputError, match="The column 'id'"):
        insert(table, body(pa.table({"id": [1.5]})), mode="overwrite")
    assert ids(table) == [3, 4]


def test_restore_brings_back_what_was_checked_and_nothing_else(table: Server) -> None:
    first = table.open("t").version
    delete_from_table(table.ctx, ask(models.DeleteFromTableRequest, id="t", predicate="id = 2"))
    insert(table, body(rows(2, 4)))
    restore_table(table.ctx, ask(models.RestoreTableRequest, id="t", version=first))
    assert ids(table) == [1, 2, 3]
    with pytest.raises(DuplicateKeyError):
        insert(table, body(rows(2)))


def test_restore_of_a_version_before_the_key_is_checked(server: Server) -> None:
    server.declare("t", managed=True)
    insert(server, body(rows(1, 1)))
    with pytest.raises(DuplicateKeyError, match="id = 1 comes twice"):
        declare_key(server, "id")
    insert(server, body(rows(1)), mode="overwrite")
    declare_key(server, "id")
    with pytest.raises(DuplicateKeyError, match="id = 1 comes twice"):
        restore_table(server.ctx, ask(models.RestoreTableRequest, id="t", version=1))
    assert ids(server) == [1]


def test_columns_of_the_key_cannot_be_renamed_or_dropped(table: Server) -> None:
    alteration = {"path": "id", "rename": "number"}
    with pytest.raises(InvalidInputError, match="part of this table's primary key"):
        alter_table_alter_columns(
            table.ctx, ask(models.AlterTableAlterColumnsRequest, id="t", alterations=[alteration])
        )
    with pytest.raises(InvalidInputError, match="part of this table's primary key"):
        alter_table_drop_columns(table.ctx, ask(models.AlterTableDropColumnsRequest, id="t", columns=["id"]))
    drop_table_primary_key(table.ctx, ask(models.DropTablePrimaryKeyRequest, id="t"))
    alter_table_drop_columns(table.ctx, ask(models.AlterTableDropColumnsRequest, id="t", columns=["id"]))


def test_commits_without_new_keys_read_no_rows(table: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    insert(table, body(rows(4)))
    update = [["name", "'x'"]]

    def refuse(*arguments: Any) -> Any:
        raise AssertionError("rows were read")

    monkeypatch.setattr(enforcement, "open_staged", refuse)
    delete_from_table(table.ctx, ask(models.DeleteFromTableRequest, id="t", predicate="id = 4"))
    entries = [{"name": "double", "expression": "id * 2"}]
    alter_table_add_columns(table.ctx, ask(models.AlterTableAddColumnsRequest, id="t", new_columns=entries))
    alter_table_drop_columns(table.ctx, ask(models.AlterTableDropColumnsRequest, id="t", columns=["double"]))
    insert(table, body(rows(5)))
    insert(table, body(rows(6)))
    monkeypatch.undo()
    update_table(table.ctx, ask(models.UpdateTableRequest, id="t", updates=update))
    assert ids(table) == [1, 2, 3, 5, 6]


def test_compaction_brings_no_keys(table: Server) -> None:
    insert(table, body(rows(4)))
    delete_from_table(table.ctx, ask(models.DeleteFromTableRequest, id="t", predicate="id = 1"))
    record = table.services.store.describe_table(("t",))
    dataset = lance.dataset(record.location)
    before = _manifest(table, dataset.version)
    dataset.optimize.compact_files()
    after = _manifest(table, dataset.version)
    columns = frozenset({manifest_rows.column_numbers(after)["id"]})
    change = manifest_rows.compare_rows(before, after, columns, consecutive=True)
    assert not change.brought
    assert manifest_rows.compare_rows(before, after, columns, consecutive=False).brought


def _manifest(server: Server, version: int) -> bytes:
    record = server.services.store.describe_table(("t",))
    path = f"{record.location}/_versions/{2**64 - 1 - version:020}.manifest"
    return server.ctx.storage.manifests.read(record.location, path).content


def test_commit_that_bypassed_the_server_is_found_by_the_next(table: Server) -> None:
    location = table.services.store.describe_table(("t",)).location
    lance.write_dataset(rows(3, 50), location, mode="append")
    with pytest.raises(DuplicateKeyError, match="id = 3"):
        insert(table, body(rows(60)))
    delete_from_table(table.ctx, ask(models.DeleteFromTableRequest, id="t", predicate="id = 3"))
    insert(table, body(rows(60)))
    assert ids(table) == [1, 2, 50, 60]


def test_key_holds_on_each_branch(table: Server) -> None:
    create_table_branch(table.ctx, ask(models.CreateTableBranchRequest, id="t", name="exp"))
    insert(table, body(rows(4)), branch="exp")
    insert(table, body(rows(4)))
    for branch in ("exp", None):
        with pytest.raises(DuplicateKeyError, match="id = 4"):
            insert(table, body(rows(4)), branch=branch)
        with pytest.raises(DuplicateKeyError, match="id = 2"):
            insert(table, body(rows(2)), branch=branch)


def test_declaration_is_shown_and_survives_undo(table: Server) -> None:
    record = table.services.store.describe_table(("t",))
    assert json.loads(record.properties[PROPERTY]) == ["id"]
    table.services.store.remove_table(("t",), delete_folder=True, keep_ms=10_000)
    restored = table.services.store.restore_table(("t",))
    assert restored.primary_key == record.primary_key
    with pytest.raises(DuplicateKeyError):
        insert(table, body(rows(1)))
    insert(table, body(rows(9)))


def test_declaration_takes_the_columns_of_lances_schema(server: Server) -> None:
    metadata = {"lance-schema:unenforced-primary-key": "true"}
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False, metadata=metadata), ("name", pa.string())])
    server.declare("t", managed=True)
    insert(server, body(rows(1).cast(schema)))
    response = set_table_primary_key(server.ctx, ask(models.SetTablePrimaryKeyRequest, id="t"))
    assert response.columns == ["id"]
    with pytest.raises(DuplicateKeyError):
        insert(server, body(rows(1)))


def test_declaration_with_bad_columns_is_refused(server: Server) -> None:
    server.declare("t", managed=True)
    insert(server, body(pa.table({"id": [1], "x": [1.5], "l": [[1]], "n": pa.array([None], pa.int32())})))
    for columns, error in (
        ([], InvalidInputError),
        (["id", "id"], InvalidInputError),
        (["x"], InvalidInputError),
        (["l"], InvalidInputError),
        (["y"], TableColumnNotFoundError),
        (["n"], TableSchemaValidationError),
    ):
        with pytest.raises(error):
            declare_key(server, *columns)
    server.create("plain", rows(1))
    with pytest.raises(UnsupportedOperationError):
        declare_key(server, "id", name="plain")


DAY = datetime.date(2024, 2, 29)
TYPES = {
    "int8": (pa.int8(), [-128, 127, 0]),
    "int64": (pa.int64(), [-(2**63), 2**63 - 1, 0]),
    "uint64": (pa.uint64(), [2**64 - 1, 0, 5]),
    "string": (pa.string(), ["", "it's; --", "\\n\n"]),
    "large_string": (pa.large_string(), ["a", "ä", "𝄞"]),
    "binary": (pa.binary(), [b"", b"\x00'", b"\xff"]),
    "fixed": (pa.binary(2), [b"ab", b"\x00\xff", b"''"]),
    "date32": (pa.date32(), [DAY, datetime.date(1, 1, 1), datetime.date(9999, 12, 31)]),
    "timestamp": (pa.timestamp("us"), [0, -(2**52), 2**52 + 1]),
    "zoned": (pa.timestamp("ns", "Europe/Berlin"), [0, -(2**62), 2**62 + 1]),
    "decimal": (pa.decimal128(20, 10), [Decimal("0E-10"), Decimal("-1.5"), Decimal("9999999999.5")]),
    "bool": (pa.bool_(), [True, False]),
}


@pytest.mark.parametrize("kind", [*TYPES])
def test_key_of_each_type_is_found_by_its_index_and_without(server: Server, kind: str) -> None:
    type_, values = TYPES[kind]
    data = pa.table({"key": pa.array(values, type_), "v": [1] * len(values)})
    server.declare("t", managed=True)
    insert(server, body(data.slice(1)))
    declare_key(server, "key")
    with pytest.raises(DuplicateKeyError):
        insert(server, body(data.slice(1, 1)))
    server.run_jobs()
    insert(server, body(data.slice(0, 1)))
    for position in range(data.num_rows):
        with pytest.raises(DuplicateKeyError):
            insert(server, body(data.slice(position, 1)))
    assert server.open("t").count_rows() == data.num_rows


@pytest.mark.parametrize("is_indexed", [True, False])
def test_key_of_several_columns_is_compared_as_a_whole(server: Server, is_indexed: bool) -> None:
    def pairs(*values: tuple[int, str]) -> pa.Table:
        return pa.table({"a": [a for a, _ in values], "b": [b for _, b in values], "v": [0] * len(values)})

    server.declare("t", managed=True)
    insert(server, body(pairs((1, "x"), (1, "y"), (2, "x"))))
    declare_key(server, "a", "b")
    if is_indexed:
        server.run_jobs()
    insert(server, body(pairs((2, "y"))))
    insert(server, body(pairs((3, "x"), (3, "y"))))
    for pair in ((1, "y"), (2, "y"), (3, "x")):
        with pytest.raises(DuplicateKeyError, match=rf"a = {pair[0]}, b = '{pair[1]}'"):
            insert(server, body(pairs((9, "z"), pair)))
    with pytest.raises(DuplicateKeyError, match="comes twice"):
        insert(server, body(pairs((9, "z"), (9, "z"))))
    assert server.open("t").count_rows() == 6


def test_more_keys_than_are_held_at_a_time_are_checked_against_each_other(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enforcement, "MAX_KEYS", 100)
    server.declare("t", managed=True)
    many = pa.table({"id": pa.array(range(10_000), pa.int64())})
    twice = pa.concat_tables([many, many.slice(17, 1)])
    insert(server, body(twice))
    with pytest.raises(DuplicateKeyError, match="id = 17 "):
        declare_key(server, "id")
    insert(server, body(many), mode="overwrite")
    declare_key(server, "id")
    with pytest.raises(DuplicateKeyError, match="id = 17 "):
        insert(server, body(twice), mode="overwrite")


def test_declaration_waits_for_no_commit_and_misses_none(table: Server) -> None:
    """Commits and declarations at the same time: a key that is declared has no duplicate."""
    drop_table_primary_key(table.ctx, ask(models.DropTablePrimaryKeyRequest, id="t"))

    def declare() -> Any:
        try:
            return declare_key(table, "id")
        except LanceNamespaceError as error:
            return error

    outcomes = run_concurrently([*[lambda: insert(table, body(rows(100)))] * 6, declare])
    declared = [outcome for outcome in outcomes if isinstance(outcome, models.SetTablePrimaryKeyResponse)]
    count = table.open("t").count_rows("id = 100")
    assert count == 1 if declared else count > 1
