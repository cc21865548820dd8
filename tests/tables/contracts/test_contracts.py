"""A contract holds against every operation that writes rows, and nothing else pays for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lance
import pyarrow as pa
import pytest
from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    TableSchemaValidationError,
    UnsupportedOperationError,
)
from msgspec import structs
from tests.tables.bodies import Streamed
from tests.tables.bodies import small as body
from tests.tables.rows.calls import begin_upload, complete_upload, insert, merge
from tests.tables.schema.test_select_views import View
from tests.tables.served import ask, models, run_concurrently

from tiltyard.catalog.grants import grant_privileges
from tiltyard.catalog.policies import set_table_policy
from tiltyard.contracts import row_checks
from tiltyard.contracts.checks import parse_check
from tiltyard.contracts.contract import PROPERTY
from tiltyard.model.principals import Principal
from tiltyard.tables.contracts import declaration, enforcement
from tiltyard.tables.contracts.declaration import (
    describe_table_contract,
    drop_table_contract,
    set_table_contract,
)
from tiltyard.tables.contracts.testing import test_table as run_test
from tiltyard.tables.keys.declaration import drop_table_primary_key, set_table_primary_key
from tiltyard.tables.rows.create import create_table
from tiltyard.tables.rows.update_delete import delete_from_table, update_table
from tiltyard.tables.schema.column_additions import alter_table_add_columns
from tiltyard.tables.schema.columns import alter_table_alter_columns, alter_table_drop_columns
from tiltyard.tables.versions.branches import create_table_branch
from tiltyard.tables.versions.versions import restore_table

if TYPE_CHECKING:
    from tests.tables.served import Server

CHECKS = ("expect(price >= 0)", "not_null(id)", "in_set(kind, a, b)", "matches(code, [A-Z]{2}\\d)")


def rows(*prices: float | None, kind: str = "a", code: str = "AB1", start: int = 100) -> pa.Table:
    ids = range(start, start + len(prices))
    return pa.table(
        {"id": pa.array(ids, pa.int64()), "price": pa.array(prices, pa.float64()), "kind": [kind] * len(prices),
         "code": [code] * len(prices)}
    )  # fmt: skip


def set_contract(server: Server, *checks: str, **fields: Any) -> models.SetTableContractResponse:
    request = ask(models.SetTableContractRequest, id="t", checks=list(checks or CHECKS), **fields)
    return set_table_contract(server.ctx, request)


def describe(server: Server) -> models.DescribeTableContractResponse:
    return describe_table_contract(server.ctx, ask(models.DescribeTableContractRequest, id="t"))


def run(server: Server, **fields: Any) -> models.TestTableResponse:
    return run_test(server.ctx, ask(models.TestTableRequest, id="t", **fields))


def update(server: Server, column: str, expression: str, predicate: str | None = None) -> Any:
    request = ask(models.UpdateTableRequest, id="t", updates=[[column, expression]], predicate=predicate)
    return update_table(server.ctx, request)


def prices(server: Server, branch: str | None = None) -> list[float]:
    dataset = server.open("t") if branch is None else server.open("t").checkout_version((branch, None))
    return sorted(dataset.to_table().column("price").to_pylist())


def parked(server: Server) -> list[dict[str, Any]]:
    files = sorted(Path(server.ctx.storage.root).rglob("_rejects/*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


@pytest.fixture
def table(server: Server) -> Server:
    """A server with the table `t`, of three rows."""
    server.declare("t", managed=True)
    insert(server, body(rows(1, 2, 3, start=1)))
    return server


def test_rows_that_fail_refuse_every_writer_with_the_check_and_their_values(table: Server) -> None:
    set_contract(table)
    before = table.open("t").version
    big = pa.concat_tables([rows(*range(3000)), rows(-7, start=9000)])

    def upload() -> None:
        name = begin_upload(table)
        insert(table, body(rows(5)), upload_id=name)
        insert(table, body(rows(-5)), upload_id=name)
        complete_upload(table, name)

    cases = [
        ("insert", lambda: insert(table, body(rows(1, -2))), "expect.price >= 0. fails for a row with price = -2.0"),
        ("null id", lambda: insert(table, body(rows(1).set_column(0, "id", pa.nulls(1, pa.int64())))), "not_null.id."),
        ("set", lambda: insert(table, body(rows(1, kind="c"))), "in_set.kind, a, b. fails for a row with kind = 'c'"),
        ("pattern", lambda: insert(table, body(rows(1, code="AB12"))), "code = 'AB12'"),
        ("stream", lambda: insert(table, Streamed(big)), "price = -7.0"),
        ("overwrite", lambda: insert(table, body(rows(-1)), mode="overwrite"), "price = -1.0"),
        ("overwrite, streamed", lambda: insert(table, Streamed(big), mode="overwrite"), "price = -7.0"),
        ("multipart", upload, "price = -5.0"),
        ("merge", lambda: merge(table, body(rows(-3, start=3)), when_matched_update_all=True), "price = -3.0"),
        (
            "merge of some columns",
            lambda: merge(table, body(rows(-3, start=3).select(["id", "price"])), when_matched_update_all=True),
            "price = -3.0",
        ),
        ("update", lambda: update(table, "price", "price - 2"), "price = -1.0"),
        ("update of a text", lambda: update(table, "code", "lower(code)", "id = 2"), "code = 'ab1'"),
        (
            "overwrite without the column",
            lambda: insert(table, body(rows(1).drop_columns(["price"])), mode="overwrite"),
            "reads the column 'price'",
        ),
    ]
    for name, call, sentence in cases:
        with pytest.raises((TableSchemaValidationError, InvalidInputError), match=sentence):
            call()
        assert table.open("t").version == before, name
    insert(table, body(rows(4, None)))  # a null is neither right nor wrong
    merge(table, body(rows(30, start=3)), when_matched_update_all=True, when_not_matched_insert_all=True)
    update(table, "price", "price + 1")
    delete_from_table(table.ctx, ask(models.DeleteFromTableRequest, id="t", predicate="price IS NULL"))
    assert prices(table) == [2, 3, 5, 31]
    assert not parked(table)


def test_rejected_rows_are_parked_and_counted_and_the_others_written(table: Server) -> None:
    set_contract(table, on_failure="reject")
    bad = pa.concat_tables([rows(5, -5), rows(6, kind="c", start=200)])
    response = insert(table, body(bad))
    assert (response.num_inserted_rows, response.num_rejected_rows) == (1, 2)
    assert [(line["reason"], line["row"]["id"]) for line in parked(table)] == [
        ("expect(price >= 0)", 101),
        ("in_set(kind, a, b)", 200),
    ]
    assert insert(table, body(rows(7))).num_rejected_rows == 0
    big = pa.concat_tables([rows(*range(10, 3010)), rows(*[-1] * 5, start=9000)])
    streamed = insert(table, Streamed(big))
    assert (streamed.num_inserted_rows, streamed.num_rejected_rows) == (3000, 5)
    merged = merge(table, body(rows(50, -50, start=1)), when_matched_update_all=True, when_not_matched_insert_all=True)
    assert (merged.num_updated_rows, merged.num_rejected_rows) == (1, 1)
    assert 50 in prices(table)
    assert 2 in prices(table)
    upload = begin_upload(table)
    assert insert(table, body(rows(8, -8)), upload_id=upload).num_rejected_rows == 1
    insert(table, body(rows(9, -9, -10)), upload_id=upload)
    completed = complete_upload(table, upload)
    assert (completed.num_inserted_rows, completed.num_rejected_rows) == (2, 3)
    before = len(parked(table))
    assert before == 2 + 5 + 1 + 3
    with pytest.raises(TableSchemaValidationError, match=r"price = -1.0"):  # which would delete the rows of others
        merge(table, body(rows(-1, start=1)), when_matched_update_all=True, when_not_matched_by_source_delete=True)
    with pytest.raises(TableSchemaValidationError, match=r"expect"):
        update(table, "price", "-1.0", "id = 1")
    overwritten = insert(table, body(rows(3, -3)), mode="overwrite")
    assert (overwritten.num_inserted_rows, overwritten.num_rejected_rows) == (1, 1)
    assert prices(table) == [3]
    assert len(parked(table)) == before + 1
    assert [commit.rejected for commit in describe(table).commits] == [1, 3, 1, 5, 2]


def test_warnings_are_counted_with_their_version(table: Server) -> None:
    set_contract(table, "warn: expect(price >= 0)", "not_null(id)", "warn: rows <= 5")
    assert insert(table, body(rows(-1, 1, -2))).num_inserted_rows == 3
    insert(table, body(rows(8)))
    update(table, "price", "-1.0", "id = 1")
    commits = describe(table).commits
    assert [commit.warned for commit in commits] == [
        {"expect(price >= 0)": 1, "rows <= 5": 1}, {"rows <= 5": 1}, {"expect(price >= 0)": 2, "rows <= 5": 1},
    ]  # fmt: skip
    assert commits[0].version == table.open("t").version
    assert not run(table).results[0].passed
    assert run(table).passed


def test_grouped_appends_fail_the_faulty_request_alone(table: Server) -> None:
    set_contract(table)
    values = [5, -1, 6, 7, -2, 8]
    calls = [lambda value=value: insert(table, body(rows(value))) for value in values]
    outcomes = run_concurrently(calls)
    assert sum(isinstance(outcome, TableSchemaValidationError) for outcome in outcomes) == 2
    assert prices(table) == [1, 2, 3, 5, 6, 7, 8]
    set_contract(table, on_failure="reject")
    calls = [lambda value=value: insert(table, body(rows(value, -value))) for value in range(20, 26)]
    assert [(out.num_inserted_rows, out.num_rejected_rows) for out in run_concurrently(calls)] == [(1, 1)] * 6
    assert sorted(line["row"]["price"] for line in parked(table)) == [-25, -24, -23, -22, -21, -20]


def test_declaration_checks_the_rows_of_all_branches(table: Server) -> None:
    create_table_branch(table.ctx, ask(models.CreateTableBranchRequest, id="t", name="exp"))
    insert(table, body(rows(-4)), branch="exp")
    with pytest.raises(TableSchemaValidationError, match=r"on the branch 'exp'.*price = -4.0"):
        set_contract(table)
    set_contract(table, "warn: expect(price >= 0)")
    delete_from_table(table.ctx, ask(models.DeleteFromTableRequest, id="t", branch="exp", predicate="price < 0"))
    set_contract(table)
    for branch in ("exp", None):
        with pytest.raises(TableSchemaValidationError, match=r"price = -4.0"):
            insert(table, body(rows(-4)), branch=branch)
        insert(table, body(rows(4)), branch=branch)
    create_table_branch(table.ctx, ask(models.CreateTableBranchRequest, id="t", name="later"))
    with pytest.raises(TableSchemaValidationError):
        insert(table, body(rows(-4)), branch="later")
    assert run(table, branch="exp").passed


def test_contract_that_cannot_hold_is_refused(table: Server) -> None:
    cases = {
        "price is fine": "is not a check",
        "expect(price >)": "cannot be computed",
        "expect(other >= 0)": "names no column",
        "expect(price + 1)": "no condition",
        "expect(price >= 0; DROP TABLE t)": "nothing may follow",
        "expect(price >= 0) OR (true)": "brackets",
        "expect(price >= 0 --)": "comment",
        "expect(read_csv(kind) > 0)": "read_csv",
        "between(price, a, b)": "between",
        "not_null(nothing)": "no column 'nothing'",
        "unique(id)": "primary key",
        "freshness(price, 2d)": "neither a date",
        "foreign_key(kind, kinds.id)": "the other table changes",
        "rejected <= 3": "about a run of a job",
        "distribution(price, 0.1)": "about a run of a job",
    }
    for text, sentence in cases.items():
        with pytest.raises(InvalidInputError, match=sentence):
            set_contract(table, text)
    with pytest.raises(InvalidInputError, match=r"whole table"):
        set_contract(table, "rows <= 9", on_failure="reject")
    with pytest.raises(InvalidInputError, match=r"no on_failure"):
        set_contract(table, on_failure="explode")
    with pytest.raises(InvalidInputError, match=r"twice"):
        set_contract(table, "not_null(id)", "warn: not_null(id)")
    with pytest.raises(InvalidInputError, match=r"1 to 100"):
        set_contract(table, *["not_null(id)"] * 101)
    with pytest.raises(TableSchemaValidationError, match=r"3 rows"):
        set_contract(table, "rows <= 2")
    assert describe(table).checks == []
    table.create("plain", rows(1))
    with pytest.raises(UnsupportedOperationError):
        set_table_contract(table.ctx, ask(models.SetTableContractRequest, id="plain", checks=["not_null(id)"]))


def test_number_of_rows_and_keys_hold(table: Server) -> None:
    set_table_primary_key(table.ctx, ask(models.SetTablePrimaryKeyRequest, id="t", columns=["id"]))
    set_contract(table, "unique(id)", "rows <= 4", "rows >= 2", "expect(price >= 0)")
    with pytest.raises(InvalidInputError, match=r"unique"):
        drop_table_primary_key(table.ctx, ask(models.DropTablePrimaryKeyRequest, id="t"))
    insert(table, body(rows(4)))
    with pytest.raises(TableSchemaValidationError, match=r"rows <= 4, and the table would have 5 rows"):
        insert(table, body(rows(5, start=5)))
    with pytest.raises(TableSchemaValidationError, match=r"rows >= 2"):
        delete_from_table(table.ctx, ask(models.DeleteFromTableRequest, id="t", predicate="true"))
    with pytest.raises(TableSchemaValidationError, match=r"expect"):  # a key and a contract in one commit
        insert(table, body(rows(-4, start=50)))
    drop_table_contract(table.ctx, ask(models.DropTableContractRequest, id="t"))
    drop_table_primary_key(table.ctx, ask(models.DropTablePrimaryKeyRequest, id="t"))
    insert(table, body(rows(-4)))


def test_tests_run_all_checks_and_are_kept_with_the_version(table: Server) -> None:
    table.declare("kinds", managed=True)
    insert(table, body(pa.table({"name": ["a", "b"]})), name="kinds")
    insert(table, body(rows(9, 9, kind="z", start=3)))
    set_contract(
        table, "not_null(id)", "test: unique(id)", "test: foreign_key(kind, kinds.name)", "test: expect(price < 9)",
        "warn: in_set(kind, a)",
    )  # fmt: skip
    tested = run(table)
    assert [(result.check, result.passed, result.found) for result in tested.results] == [
        ("not_null(id)", True, None),
        ("unique(id)", False, "1 keys come more than once, as in a row with id = 3"),
        ("foreign_key(kind, kinds.name)", False, "1 values are not in kinds.name, as in a row with kind = 'z'"),
        ("expect(price < 9)", False, "2 of 5 rows fail, the first is a row with price = 9.0"),
        ("in_set(kind, a)", False, "2 of 5 rows fail, the first is a row with kind = 'z'"),
    ]
    assert not tested.passed
    assert run(table, version=1).results[0].passed
    delete_from_table(table.ctx, ask(models.DeleteFromTableRequest, id="t", predicate="kind = 'z'"))
    assert run(table).passed
    kept = describe(table).tests
    assert [(test.passed, test.version) for test in kept] == [(True, 3), (True, 1), (False, 2)]


def test_a_foreign_key_to_what_is_not_there_fails_its_own_check_alone(table: Server) -> None:
    checks = ("foreign_key(kind, kinds.nothing)", "foreign_key(kind, gone.name)", "foreign_key(kind, gone.too.name)")
    table.declare("kinds", managed=True)
    insert(table, body(pa.table({"name": ["a"]})), name="kinds")
    texts = ["not_null(id)", *(f"test: {check}" for check in checks)]
    for check in checks:
        missing = r"column of 'kinds\.nothing'" if "kinds" in check else "table of 'gone"
        with pytest.raises(InvalidInputError, match=rf"there is no {missing}.*\(allow_missing_references\)"):
            set_contract(table, "not_null(id)", f"test: {check}")
    set_contract(table, *texts, allow_missing_references=True)
    assert [result.found for result in run(table).results] == [
        None,
        "there is no column 'kinds.nothing'",
        "there is no table of 'gone.name'",
        "there is no table of 'gone.too.name'",
    ]


def test_schema_changes_that_break_the_contract_are_refused(table: Server) -> None:
    set_contract(table, "expect(price >= 0)", "matches(code, .+)")

    def alter(**alteration: Any) -> None:
        request = ask(models.AlterTableAlterColumnsRequest, id="t", alterations=[alteration])
        alter_table_alter_columns(table.ctx, request)

    with pytest.raises(InvalidInputError, match=r"reads the column 'price' .expect.price >= 0.."):
        alter(path="price", rename="cost")
    with pytest.raises(InvalidInputError, match=r"reads the column 'code'"):
        alter_table_drop_columns(table.ctx, ask(models.AlterTableDropColumnsRequest, id="t", columns=["code"]))
    with pytest.raises(InvalidInputError, match=r"'price' is read by the contract of the table.*to cast it"):
        alter(path="price", data_type={"type": "float32"})
    alter(path="kind", rename="sort")
    drop_table_contract(table.ctx, ask(models.DropTableContractRequest, id="t"))
    alter(path="price", rename="cost")


def test_commits_without_checked_values_read_no_rows(table: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    set_contract(table)

    def refuse(*arguments: Any) -> Any:
        raise AssertionError("rows were read")

    monkeypatch.setattr(enforcement, "open_staged", refuse)
    insert(table, body(rows(4)))  # which were checked before they were written
    entries = [{"name": "double", "expression": "id * 2"}]
    alter_table_add_columns(table.ctx, ask(models.AlterTableAddColumnsRequest, id="t", new_columns=entries))
    alter_table_drop_columns(table.ctx, ask(models.AlterTableDropColumnsRequest, id="t", columns=["double"]))
    delete_from_table(table.ctx, ask(models.DeleteFromTableRequest, id="t", predicate="id = 1"))
    monkeypatch.undo()
    assert prices(table) == [2, 3, 4]


def test_restore_of_rows_that_fail_is_refused(table: Server) -> None:
    insert(table, body(rows(-1)))
    bad = table.open("t").version
    delete_from_table(table.ctx, ask(models.DeleteFromTableRequest, id="t", predicate="price < 0"))
    good = table.open("t").version
    set_contract(table)
    with pytest.raises(TableSchemaValidationError, match=r"price = -1.0"):
        restore_table(table.ctx, ask(models.RestoreTableRequest, id="t", version=bad))
    restore_table(table.ctx, ask(models.RestoreTableRequest, id="t", version=good))


def test_contract_that_comes_while_a_writer_commits_holds_for_it(
    table: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the check of a version and its record, another request declares a contract: the record is refused."""
    from tiltyard.tables.commits import recording

    declared = []

    make_durable = recording._make_durable

    def declare_now(*arguments: Any) -> None:
        make_durable(*arguments)
        if not declared:  # in a thread that is not Lance's, in which rows are not read
            declared.append(True)
            run_concurrently([lambda: set_contract(table)])

    monkeypatch.setattr(recording, "_make_durable", declare_now)
    with pytest.raises(TableSchemaValidationError, match=r"price = -5.0"):
        insert(table, body(rows(-5)))
    assert prices(table) == [1, 2, 3]
    # and a commit between the check of the rows and the declaration is checked by it
    drop_table_contract(table.ctx, ask(models.DropTableContractRequest, id="t"))
    monkeypatch.undo()
    inserted, check = [], declaration.check_branches

    def check_then_insert(*arguments: Any) -> Any:
        checked = check(*arguments)
        if not inserted:
            inserted.append(insert(table, body(rows(-6))))
        return checked

    monkeypatch.setattr(declaration, "check_branches", check_then_insert)
    with pytest.raises(TableSchemaValidationError, match=r"price = -6.0"):
        set_contract(table)


def test_contract_is_shown_and_survives_undo(table: Server) -> None:
    set_contract(table, "not_null(id)", on_failure="warn", clients="refuse")
    record = table.services.store.describe_table(("t",))
    assert json.loads(record.properties[PROPERTY]) == {
        "checks": ["not_null(id)"], "on_failure": "warn", "clients": "refuse",
    }  # fmt: skip
    with pytest.raises(InvalidInputError):
        update_table(table.ctx, ask(models.UpdateTableRequest, id="t", updates=[], properties={PROPERTY: "{}"}))
    table.services.store.remove_table(("t",), delete_folder=True, keep_ms=10_000)
    assert table.services.store.restore_table(("t",)).contract == record.contract


def test_clients_own_commits_are_checked_or_refused(table: Server) -> None:
    def commit(data: pa.Table) -> int:
        """Commit as a client of Lance does, through a namespace of its own."""
        from tiltyard.tables.commits.commit import create_table_version

        dataset, location = table.open("t"), table.services.store.describe_table(("t",)).location
        copy = Path(location).parent / "copy"
        import shutil

        shutil.copytree(location, copy)
        lance.write_dataset(data, str(copy), mode="append")
        version = dataset.version + 1
        name = f"{2**64 - 1 - version:020}.manifest"
        for file in (copy / "data").iterdir():
            if not (Path(location) / "data" / file.name).exists():
                shutil.copy(file, Path(location) / "data" / file.name)
        for file in (copy / "_transactions").iterdir():
            shutil.copy(file, Path(location) / "_transactions" / file.name)
        staged = Path(location) / "_versions" / f"{name}-staged"
        shutil.copy(copy / "_versions" / name, staged)
        shutil.rmtree(copy)
        request = ask(
            models.CreateTableVersionRequest, id="t", version=version, naming_scheme="V2",
            manifest_path=f"{location}/_versions/{staged.name}",
        )  # fmt: skip
        return create_table_version(table.ctx, request).version.version

    set_contract(table, on_failure="reject")
    with pytest.raises(TableSchemaValidationError, match=r"price = -9.0"):
        commit(rows(9, -9))
    commit(rows(9))
    set_contract(table, clients="refuse")
    with pytest.raises(TableSchemaValidationError, match=r"refuses commits of clients"):
        commit(rows(10))
    insert(table, body(rows(11)))
    set_contract(table, "warn: expect(price > 100)")
    commit(rows(12, 13))
    assert describe(table).commits[0].warned == {"expect(price > 100)": 2}
    assert prices(table) == [1, 2, 3, 9, 11, 12, 13]


def test_writers_without_a_contract_meet_a_changed_one_as_a_conflict(table: Server) -> None:
    record = table.services.store.describe_table(("t",))
    set_contract(table)
    with pytest.raises(ConcurrentModificationError, match=r"contract"):
        table.services.store.set_contract(record, None, {})


def test_view_is_checked_before_it_is_published_and_its_source_keeps_what_it_reads(tmp_path: Path) -> None:
    view = View(tmp_path, "SELECT id, name FROM t WHERE id < 50")
    view.refresh()
    request = ask(models.SetTableContractRequest, id="v", checks=["expect(name <> 'bad')", "rows >= 10"])
    set_table_contract(view.server.ctx, request)
    view.source.update({"name": "'bad'"}, where="id = 7")
    failed = view.run()
    assert failed.status == "Failed", failed.error
    assert "expect(name <> 'bad') fails for a row with name = 'bad'" in failed.error
    assert view.server.open("v").count_rows("name = 'bad'") == 0
    view.source.update({"name": "'good'"}, where="id = 7")
    view.refresh()
    assert view.server.open("v").count_rows("name = 'good'") == 1
    assert run_test(view.server.ctx, ask(models.TestTableRequest, id="v")).passed
    rename = ask(models.AlterTableAlterColumnsRequest, id="t", alterations=[{"path": "name", "rename": "title"}])
    with pytest.raises(InvalidInputError, match=r"'name' is read by the materialized view v: .* allow_breaking"):
        alter_table_alter_columns(view.server.ctx, rename)
    alter_table_alter_columns(view.server.ctx, structs.replace(rename, allow_breaking=True))
    view.server.services.close()


def test_refusal_tells_a_caller_under_a_policy_no_values(table: Server) -> None:
    set_contract(table)
    policy = ask(models.SetTablePolicyRequest, id="t", name="own", filter="id < 3")
    set_table_policy(table.ctx, policy)
    grant = {"object_kind": "table", "id": ["t"], "grantee": "ann", "privileges": ["read", "write"]}
    grant_privileges(table.ctx, ask(models.GrantPrivilegesRequest, **grant))
    ann = structs.replace(table.ctx, principal=Principal("ann"))
    request = ask(models.UpdateTableRequest, id="t", updates=[["price", "price - 100"]])
    with pytest.raises(TableSchemaValidationError, match=r"expect.price >= 0. fails for a row; nothing was") as refused:
        update_table(ann, request)
    assert "98" not in str(refused.value)


def test_dictionaries_are_checked_by_their_values(server: Server) -> None:
    def words(*values: str | None, start: int = 1) -> pa.Table:
        ids = pa.array(range(start, start + len(values)), pa.int64())
        return pa.table({"id": ids, "word": pa.array(values, pa.string()).dictionary_encode()})

    for number, version in enumerate(("2.1", "2.0")):
        create = ask(
            models.CreateTableRequest, id=f"d{number}", storage_options={"new_table_data_storage_version": version}
        )
        create_table(server.ctx, create, body(words("a", "b", None)))
        checks = ["in_set(word, a, b)", "expect(length(word) = 1)"]
        request = ask(models.SetTableContractRequest, id=f"d{number}", checks=checks)
        if version == "2.0":
            with pytest.raises(InvalidInputError, match="is a dictionary"):
                set_table_contract(server.ctx, request)
            set_table_primary_key(server.ctx, ask(models.SetTablePrimaryKeyRequest, id=f"d{number}", columns=["id"]))
            insert(server, body(words("c", start=9)), name=f"d{number}", mode="overwrite")
            continue
        set_table_contract(server.ctx, request)
        with pytest.raises(TableSchemaValidationError, match="word = 'c'"):
            insert(server, body(words("c")), name=f"d{number}")
        update = ask(models.UpdateTableRequest, id=f"d{number}", updates=[["word", "'bb'"]], predicate="id = 1")
        with pytest.raises(TableSchemaValidationError, match="word = 'bb'"):
            update_table(server.ctx, update)
        insert(server, body(words("a", None)), name=f"d{number}", mode="overwrite")


def test_long_values_of_dictionaries_are_made_plain_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, make_plain = [], row_checks._without_dictionaries

    def measured(rows: pa.Table) -> pa.Table:
        plain.append(make_plain(rows))
        return plain[-1]

    monkeypatch.setattr(row_checks, "_without_dictionaries", measured)
    values = pa.DictionaryArray.from_arrays(pa.array([0, 1, 0] * 500, pa.int32()), pa.array(["a" * 200_000, "b"]))
    (failing,) = row_checks.failing_rows([parse_check("matches(word, b)")], pa.table({"word": values, "other": values}))
    assert failing.to_pylist() == [True, False, True] * 500
    assert max(rows.nbytes for rows in plain) < 40 << 20  # of 200 MB
    assert sum(rows.num_rows for rows in plain) == 1500
