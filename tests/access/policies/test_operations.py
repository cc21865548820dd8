"""Operations on a table by callers whom its policies bind, through stock clients as well."""

from __future__ import annotations

import io
from typing import Any

import httpx
import lance_namespace
import lancedb
import pyarrow as pa
import pytest
from lancedb.permutation import permutation_builder

from tests.access.policies.people import PEOPLE, TABLE, call, good, ids, refused, rows
from tests.access.scenes import outcome, send
from tests.services.secured import Secured
from tests.services.wire import stream
from tiltyard.model.spec import operations


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("ExplainTableQueryPlan", {"query": {"k": 1, "vector": None}}),
        ("AnalyzeTableQueryPlan", {"k": 1, "vector": None}),
        ("GetTableStats", {}),
        ("ListTableIndices", {}),
        ("DescribeTableIndexStats", {"index_name": "by_id"}),
        ("ListTableVersions", {}),
        ("DescribeLineage", {}),
        ("RecordTableLineage", {"version": 1}),
        ("DescribeTableVersion", {"version": 1}),
        ("ListTableTags", {}),
        ("GetTableTagVersion", {"tag": "t"}),
        ("CreateTableTag", {"tag": "t", "version": 1}),
        ("ListTableBranches", {}),
        ("CreateTableBranch", {"name": "b"}),
        ("RestoreTable", {"version": 1}),
        ("CreateTableVersion", {"version": 2, "manifest_path": "_versions/none"}),
        ("BatchDeleteTableVersions", {"ranges": [{"start_version": 1, "end_version": 1}]}),
        ("CreateMultipartWrite", {}),
        ("AlterTableAlterColumns", {"alterations": [{"path": "ssn", "rename": "open"}]}),
        ("AlterTableAddColumns", {"new_columns": [{"name": "open", "expression": "ssn"}]}),
        ("AlterTableDropColumns", {"columns": ["team"]}),
        ("CreateTableIndex", {"column": "id", "index_type": "BTREE"}),
        ("RenameTable", {"new_table_name": "people2"}),
        ("RepairTable", {"dry_run": True}),
        ("CollectTableGarbage", {}),
        ("EraseFromTable", {"predicate": "true"}),
        ("ListTablePolicies", {}),
        ("DropTablePolicy", {"name": "masks"}),
        ("SetTablePolicy", {"name": "masks", "filter": "true"}),
        ("SetTablePrimaryKey", {"columns": ["id"]}),
        ("DropTablePrimaryKey", {}),
        ("SetTableContract", {"checks": ["not_null(id)"]}),
        ("DescribeTableContract", {}),
        ("TestTable", {}),
    ],
)
def test_whatever_tells_or_changes_more_is_refused(ann: httpx.Client, name: str, fields: dict[str, Any]) -> None:
    refused(call(ann, name, **fields))


def test_snapshots_are_refused_and_seen_by_none_whom_policies_bind(admin: httpx.Client, ann: httpx.Client) -> None:
    def snapshot(http: httpx.Client, operation: str, **fields: Any) -> httpx.Response:
        return send(http, operations()[f"{operation}Snapshot"], {"name": "release", **fields})

    refused(snapshot(ann, "Create", tables=[TABLE]))
    good(snapshot(admin, "Create", tables=[TABLE]))
    refused(snapshot(ann, "Describe"), 404)
    refused(snapshot(ann, "Drop"), 404)
    assert good(send(ann, operations()["ListSnapshots"], {}))["snapshots"] == []
    assert good(snapshot(admin, "Describe"))["snapshot"]["tables"] == [{"id": TABLE, "version": 1}]
    good(snapshot(admin, "Drop"))


def test_writes_of_rows_beside_update_and_delete_are_refused(ann: httpx.Client) -> None:
    body = stream(PEOPLE.slice(0, 1))
    refused(call(ann, "InsertIntoTable", body))
    refused(call(ann, "InsertIntoTable", body, mode="overwrite"))
    refused(call(ann, "MergeInsertIntoTable", body, on="id", when_matched_update_all=True))
    refused(call(ann, "CreateTable", body, mode="overwrite"))
    assert call(ann, "CountTableRows").text == "2"


def test_batches_are_refused(ann: httpx.Client) -> None:
    version = {"id": TABLE, "version": 2, "manifest_path": "_versions/none"}
    for name, fields in (
        ("BatchCreateTableVersions", {"entries": [version]}),
        ("BatchCommitTables", {"operations": [{"create_table_version": version}]}),
        ("BatchCommitTables", {"operations": [{"delete_table_versions": {"id": TABLE, "ranges": []}}]}),
    ):
        refused(send(ann, operations()[name], fields))


def test_older_versions_tags_and_branches_are_refused(ann: httpx.Client, admin: httpx.Client) -> None:
    good(call(admin, "CreateTableBranch", name="side"))
    good(call(admin, "UpdateTable", predicate="id = 4", updates=[["team", "'blue'"]]))
    latest = call(ann, "DescribeTable", load_detailed_metadata=True).json()["version"]
    assert ids(ann, version=latest) == [1, 2]
    for version in ({"version": 1}, {"branch": "side"}):
        refused(call(ann, "QueryTable", k=9, **version))
        refused(call(ann, "QueryTable", k=9, filter="_rowid IN (0, 1)", **version))
        refused(call(ann, "CountTableRows", **version))
    refused(call(ann, "DeleteFromTable", predicate="true", branch="side"))
    refused(call(ann, "UpdateTable", updates=[["note", "'x'"]], branch="side"))


def test_clone_is_refused(ann: httpx.Client) -> None:
    source = good(call(ann, "DescribeTable"))["location"]
    refused(send(ann, operations()["CloneTable"], {"id": ["hr", "copy"], "source_location": source}))


def test_job_over_the_table_is_refused(ann: httpx.Client) -> None:
    refused(send(ann, operations()["SubmitJob"], {"name": "ingest", "table": TABLE}))


def test_files_of_the_table_are_refused(ann: httpx.Client) -> None:
    description = good(call(ann, "DescribeTable", load_detailed_metadata=True))
    assert description.get("stats") is None and "storage_options" not in description
    refused(call(ann, "DescribeTable", vend_credentials=True))


def test_update_and_delete_change_visible_rows_alone(ann: httpx.Client, admin: httpx.Client) -> None:
    assert good(call(ann, "UpdateTable", updates=[["note", "'mine'"]]))["updated_rows"] == 2
    assert good(call(ann, "UpdateTable", predicate="id > 0", updates=[["note", "name"]]))["updated_rows"] == 2
    assert [row["note"] for row in rows(admin, order_by=[{"column_name": "id"}])] == [
        "Ann",
        "Bob",
        "secret gin",
        "likes gin",
    ]
    assert good(call(ann, "DeleteFromTable", predicate="id IN (2, 3, 4)"))["num_deleted_rows"] == 1
    assert sorted(ids(admin)) == [1, 3, 4]


def test_update_from_or_of_a_masked_column_is_refused(ann: httpx.Client) -> None:
    for update in (["note", "ssn"], ["note", "concat(`ssn`, '')"], ["pay", "1"], ["PAY", "1"], ["team", "'blue'"]):
        refused(call(ann, "UpdateTable", updates=[update]))


def test_update_of_a_column_that_a_mask_looks_at_is_refused(ann: httpx.Client, admin: httpx.Client) -> None:
    mask = {"column": "ssn", "mask": "expression", "expression": "coalesce(nullif(note, 'open'), ssn)"}
    good(call(admin, "SetTablePolicy", name="masks", masks=[mask]))
    assert "decides who sees what" in refused(call(ann, "UpdateTable", updates=[["note", "'open'"]]))
    refused(call(ann, "UpdateTable", updates=[["NOTE", "'open'"]]), 400)
    assert {row["ssn"] for row in rows(ann)} == {"likes tea", "likes rum"}
    assert good(call(ann, "UpdateTable", updates=[["name", "'Eve'"]]))["updated_rows"] == 2


def test_policy_that_would_fill_the_memory_is_refused(admin: httpx.Client) -> None:
    for mask in ("repeat('*', 1000000000)", "repeat(ssn, length(ssn))"):
        masks = [{"column": "ssn", "mask": "expression", "expression": mask}]
        refused(call(admin, "SetTablePolicy", name="masks", masks=masks), 400)
    stars = [{"column": "ssn", "mask": "expression", "expression": "repeat('*', length(ssn) - 1)"}]
    good(call(admin, "SetTablePolicy", name="stars", masks=stars))
    refused(call(admin, "SetTablePolicy", name="own team", filter="length(repeat(team, 2000000000)) > 5"), 400)


def test_error_of_lance_is_kept_back(ann: httpx.Client) -> None:
    text = refused(call(ann, "QueryTable", k=9, columns={"column_aliases": {"x": "cast(name as int)"}}), 400)
    assert "withheld" in text


def test_groups_and_principal_are_put_in_as_constants(secured: Secured, admin: httpx.Client) -> None:
    good(call(admin, "DropTablePolicy", name="own team"))
    good(call(admin, "SetTablePolicy", name="own", filter="lower(name) = principal() AND NOT in_group('x'' OR true')"))
    with secured.http("ann") as ann, secured.http("olga") as olga:
        assert (ids(ann), ids(olga)) == ([1], [])


def test_several_filters_bind_together_and_the_stricter_mask_counts(ann: httpx.Client, admin: httpx.Client) -> None:
    masks = [{"column": "ssn", "mask": "hide"}, {"column": "face", "mask": "null"}]
    good(call(admin, "SetTablePolicy", name="more", filter="id <> 1", masks=masks))
    assert [list(row) for row in rows(ann)] == [["id", "team", "name", "pay", "note", "place", "seen"]]
    assert call(ann, "CountTableRows").text == "1"


def test_policy_whose_column_is_gone_shows_nothing(ann: httpx.Client, admin: httpx.Client) -> None:
    good(call(admin, "AlterTableAlterColumns", alterations=[{"path": "ssn", "rename": "number"}], allow_breaking=True))
    for name, fields in (("QueryTable", {"k": 9}), ("CountTableRows", {}), ("DeleteFromTable", {"predicate": "true"})):
        assert "does not have" in refused(call(ann, name, **fields))
    good(call(admin, "DropTablePolicy", name="masks"))
    good(call(admin, "AlterTableDropColumns", columns=["team"], allow_breaking=True))
    for name, fields in (("QueryTable", {"k": 9}), ("CountTableRows", {}), ("DeleteFromTable", {"predicate": "true"})):
        response = call(ann, name, **fields)
        assert response.status_code in (400, 404), response.text
        assert "team" not in response.text


def test_policies_come_back_with_a_dropped_table_and_a_new_one_has_none(ann: httpx.Client, admin: httpx.Client) -> None:
    good(call(ann, "DropTable"))
    if (back := call(ann, "UndropTable")).status_code == 200:
        assert call(ann, "CountTableRows").text == "2"
        good(call(ann, "DropTable"))
    else:
        assert outcome(back) == "404.4"
    good(call(ann, "CreateTable", stream(PEOPLE)))
    assert call(ann, "CountTableRows").text == "4"
    assert good(call(admin, "ListTablePolicies"))["policies"] == []


def test_set_policy_that_cannot_be_is_refused(admin: httpx.Client) -> None:
    for fields in (
        {},
        {"filter": "team ="},
        {"filter": "team = 'a') OR (true"},
        {"filter": "principal = 'ann'"},
        {"filter": "in_group(team)"},
        {"masks": [{"column": "none", "mask": "hide"}]},
        {"masks": [{"column": "ssn", "mask": "blur"}]},
        {"masks": [{"column": "ssn", "mask": "expression"}]},
        {"masks": [{"column": "ssn", "mask": "hide", "expression": "'x'"}]},
        {"masks": [{"column": "ssn", "mask": "expression", "expression": "nothing(ssn)"}]},
        {"masks": [{"column": "ssn", "mask": "hide"}, {"column": "ssn", "mask": "null"}]},
        {"filter": "true", "exempt_roles": ["nobody"]},
    ):
        assert call(admin, "SetTablePolicy", name="new", **fields).status_code in (400, 404), fields
    assert [policy["name"] for policy in good(call(admin, "ListTablePolicies"))["policies"]] == ["masks", "own team"]
    assert call(admin, "DropTablePolicy", name="new").status_code == 400


def test_lancedb_client_sees_the_narrowed_table(secured: Secured, admin: httpx.Client) -> None:
    db = lancedb.connect("db://hr", api_key=secured.keys["ann"], host_override=secured.url)
    table = db.open_table("people")  # the database is the namespace of that name
    assert table.count_rows() == 2
    result = table.search([0.1, 0.0], vector_column_name="place").limit(3).to_list()
    assert [row["id"] for row in result] == [1, 2] and "face" not in result[0]
    assert table.search().where("id > 1").select(["id", "ssn", "pay"]).to_list() == [
        {"id": 2, "ssn": "***2", "pay": None}
    ]
    assert table.update(where="id > 0", values={"note": "by lancedb"}).rows_updated == 2
    for attempt in (
        lambda: table.search().where("ssn = '333-3'").to_list(),
        lambda: table.search().select({"x": "ssn"}).to_list(),
        lambda: table.merge_insert("id").when_matched_update_all().execute(PEOPLE.slice(2, 1)),
        lambda: table.add(PEOPLE.slice(2, 1)),
        lambda: table.search().limit(2).explain_plan(),
        permutation_builder(table).execute,
        lambda: table.checkout(1) or table.count_rows(),
    ):
        with pytest.raises(Exception, match=r"(?i)polic|masked|403"):
            attempt()


def test_pylance_namespace_client_sees_the_narrowed_table(secured: Secured, admin: httpx.Client) -> None:
    client = lance_namespace.connect("rest", {"uri": secured.url, "header.x-api-key": secured.keys["ann"]})
    request = lance_namespace.QueryTableRequest(id=TABLE, k=10, vector={}, columns={"column_names": ["id", "pay"]})
    response: Any = client.query_table(request)
    table = pa.ipc.open_file(io.BytesIO(getattr(response, "data", response))).read_all()
    assert table.to_pylist() == [{"id": 1, "pay": None}, {"id": 2, "pay": None}]
    counted: Any = client.count_table_rows(lance_namespace.CountTableRowsRequest(id=TABLE))
    assert getattr(counted, "count", counted) == 2
