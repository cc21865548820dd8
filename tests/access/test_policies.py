"""Row filters and column masks: what stock clients see, and every way round that we could think of."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import Any

import httpx
import lance_namespace
import lancedb
import pyarrow as pa
import pytest

from tests.access.scenes import outcome, send
from tests.services.secured import Secured, secured_server
from tests.services.wire import stream
from tiltyard.spec import operations

TABLE = ["hr", "people"]
VECTOR = pa.list_(pa.float32(), 2)
PEOPLE = pa.table(
    {
        "id": pa.array([1, 2, 3, 4], pa.int64()),
        "team": ["red", "red", "blue", "blue"],
        "name": ["Ann", "Bob", "Cleo", "Dan"],
        "ssn": ["111-1", "222-2", "333-3", "444-4"],
        "pay": pa.array([10, 20, 30, 40], pa.int64()),
        "note": ["likes tea", "likes rum", "secret gin", "likes gin"],
        "place": pa.array([[0, 0], [1, 0], [0.1, 0], [9, 9]], VECTOR),
        "face": pa.array([[0, 0], [1, 1], [2, 2], [3, 3]], VECTOR),
        "seen": pa.array([1, 2, 3, 4], pa.timestamp("us")),
    }
)
RED = {"name": "own team", "filter": "team = 'red' OR in_group('chiefs')", "exempt_roles": ["auditors"]}
MASKS = {
    "name": "masks",
    "masks": [
        {"column": "ssn", "mask": "expression", "expression": "concat('***', right(ssn, 1))"},
        {"column": "pay", "mask": "null"},
        {"column": "face", "mask": "hide"},
    ],
    "exempt_roles": ["auditors"],
}


def call(http: httpx.Client, name: str, body: bytes | None = None, /, **fields: Any) -> httpx.Response:
    given = {"id": TABLE, "vector": None} if name == "QueryTable" else {"id": TABLE}
    return send(http, operations()[name], {**given, **fields}, body)


def rows(http: httpx.Client, **fields: Any) -> list[dict[str, Any]]:
    response = call(http, "QueryTable", **{"k": 100, **fields})
    assert response.status_code == 200, response.text
    return pa.ipc.open_file(io.BytesIO(response.content)).read_all().to_pylist()


def ids(http: httpx.Client, **fields: Any) -> list[int]:
    return [row["id"] for row in rows(http, columns={"column_names": ["id"]}, **fields)]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_server(tmp_path_factory.mktemp("policies"), names=("ann", "tess", "olga")) as running:
        with running.http("administrator") as admin:
            good(send(admin, operations()["CreateNamespace"], {"id": ["hr"]}))
            for role, member in (("auditors", "tess"), ("others", "ann")):
                good(send(admin, operations()["CreateRole"], {"role": role}))
                good(send(admin, operations()["AddRoleMember"], {"role": role, "member": member}))
            for who in ("ann", "tess", "olga"):
                granted = {"object_kind": "namespace", "id": ["hr"], "grantee": who, "privileges": ["all"]}
                good(send(admin, operations()["GrantPrivileges"], granted))
        yield running


def good(response: httpx.Response) -> Any:
    assert response.status_code == 200, response.text
    return response.json()


@pytest.fixture
def admin(secured: Secured) -> Iterator[httpx.Client]:
    """The table anew, with both policies."""
    with secured.http("administrator") as http:
        send(http, operations()["DropTable"], {"id": TABLE})
        good(call(http, "CreateTable", stream(PEOPLE)))
        for policy in (RED, MASKS):
            good(call(http, "SetTablePolicy", **policy))
        yield http


@pytest.fixture
def ann(secured: Secured, admin: httpx.Client) -> Iterator[httpx.Client]:
    """Somebody with all privileges, whom the policies bind."""
    with secured.http("ann") as http:
        yield http


def refused(response: httpx.Response, status: int = 403) -> str:
    """The text of a refusal; it quotes no value of a hidden row or masked column."""
    assert response.status_code == status, response.text
    text = str(response.json()["error"])
    assert not re.search(r"333|444|222-|111-|Cleo|Dan|secret", text), text
    return text


def test_query_without_anything_gives_visible_rows_and_masked_columns(ann: httpx.Client) -> None:
    found = rows(ann)
    assert [row["id"] for row in found] == [1, 2]
    assert [row["ssn"] for row in found] == ["***1", "***2"]
    assert [row["pay"] for row in found] == [None, None]
    assert list(found[0]) == ["id", "team", "name", "ssn", "pay", "note", "place", "seen"]
    assert rows(ann, columns={"column_names": ["pay", "id"]}) == [{"pay": None, "id": 1}, {"pay": None, "id": 2}]
    assert rows(ann, columns={"column_names": ["pay"]}, k=1) == [{"pay": None}]


def test_constant_mask_alone_is_shown(ann: httpx.Client, admin: httpx.Client) -> None:
    masks = [{"column": "note", "mask": "expression", "expression": "'***'"}]
    good(call(admin, "SetTablePolicy", name="new", masks=masks))
    assert rows(ann, columns={"column_names": ["note"]}) == [{"note": "***"}] * 2
    assert list(rows(ann, columns={"column_names": ["note"]}, with_row_id=True)[0]) == ["note", "_rowid"]
    near = {"vector": {"single_vector": [9.0, 9.0]}, "vector_column": "place", "k": 9}
    assert [list(row) for row in rows(ann, columns={"column_names": ["note"]}, **near)] == [["note", "_distance"]] * 2


def test_null_mask_keeps_the_type_of_its_column(ann: httpx.Client) -> None:
    answer = call(ann, "QueryTable", k=10, columns={"column_names": ["pay", "ssn"]})
    assert pa.ipc.open_file(io.BytesIO(answer.content)).schema.field("pay").type == pa.int64()


def test_administrators_and_exempt_roles_see_all(secured: Secured, admin: httpx.Client) -> None:
    with secured.http("tess") as tess:
        for http in (admin, tess):
            assert [row["ssn"] for row in rows(http)] == PEOPLE["ssn"].to_pylist()
            assert call(http, "GetTableStats").json()["num_rows"] == 4
            assert ids(http, filter="pay > 15") == [2, 3, 4]


def test_queries_by_filter_vector_order_and_offset_stay_within_the_filter(ann: httpx.Client) -> None:
    assert ids(ann, filter="id > 1") == [2]
    assert ids(ann, filter="name LIKE '%o%' or note = 'secret gin'") == [2]
    assert ids(ann, filter="(NOT id = 1 AND lower(name) IN ('bob', 'dan')) OR id BETWEEN 3 AND 4") == [2]
    assert ids(ann, filter="seen > timestamp '1970-01-01' and id > -5") == [1, 2]
    assert ids(ann, offset=1) == [2]
    assert ids(ann, order_by=[{"column_name": "name", "ascending": False}]) == [2, 1]
    for prefilter in (True, False):
        near = {"vector": {"single_vector": [0.1, 0.0]}, "vector_column": "place", "k": 2, "prefilter": prefilter}
        assert ids(ann, **near) == [1, 2]
        assert ids(ann, **near, filter="id > 1") == [2]


def test_row_ids_of_hidden_rows_give_nothing(ann: httpx.Client, admin: httpx.Client) -> None:
    every = [row["_rowid"] for row in rows(admin, with_row_id=True)]
    listed = ", ".join(map(str, every))
    assert ids(ann, filter=f"_rowid IN ({listed})") == [1, 2]
    assert [row["_rowid"] for row in rows(ann, with_row_id=True)] == every[:2]
    assert call(ann, "CountTableRows", predicate=f"_rowid IN ({listed})").text == "2"
    assert call(ann, "CountTableRows", predicate=f"_rowid = {every[3]}").text == "0"
    for column in ("_rowoffset", "_rowaddr"):
        refused(call(ann, "QueryTable", k=9, columns={"column_names": [column]}))
        refused(call(ann, "QueryTable", k=9, filter=f"{column} IN (0, 1, 2, 3)"))
        refused(call(ann, "CountTableRows", predicate=f"{column} IN (0, 1, 2, 3)"))


def test_counts_are_of_visible_rows(ann: httpx.Client, admin: httpx.Client) -> None:
    assert (call(ann, "CountTableRows").text, call(admin, "CountTableRows").text) == ("2", "4")
    assert call(ann, "CountTableRows", predicate="team = 'blue'").text == "0"
    refused(call(ann, "CountTableRows", predicate="pay > 15"))


@pytest.mark.parametrize(
    "text",
    [
        "id = 1) OR (true",
        "true) OR (id > 0",
        "id = 1 -- ",
        "id = 1 /* ",
        "id = 1) -- ",
        "id = 1; true",
        "name = 'a\\' OR true --'",
        'name = "x"',
        "id = 1 OR E'x' = 'x'",
        "id IN (SELECT id)",
        "$$x$$ = 'x'",
        "(id = 1",
        "nobody = 1",
        "",
    ],
)
def test_filter_that_could_leave_its_brackets_is_refused(ann: httpx.Client, text: str) -> None:
    refused(call(ann, "QueryTable", k=9, filter=text), 400)
    refused(call(ann, "CountTableRows", predicate=text), 400)
    refused(call(ann, "DeleteFromTable", predicate=text), 400)
    assert call(ann, "CountTableRows").text == "2"


@pytest.mark.parametrize(
    "text",
    [
        "CAST(name AS INT) = 1",
        "name::int = 1",
        "1 / (id - 3) > 0",
        "seen = note",
        "seen = lower(note)",
        "seen BETWEEN '1970-01-01' AND note",
        "seen IN (note)",
        "(seen) = ((note))",
        "lower(note) = 5",
        "lower(note) IN (1, 2)",
        "note = date '2020-01-01'",
        "to_timestamp(note) > seen",
        "(id = 1 AND id = 2) = note",
    ],
)
def test_filter_that_may_fail_on_a_hidden_row_is_refused_before_it_runs(ann: httpx.Client, text: str) -> None:
    refused(call(ann, "QueryTable", k=9, filter=text), 400)
    refused(call(ann, "UpdateTable", predicate=text, updates=[["note", "'x'"]]), 400)


@pytest.mark.parametrize(
    "text", ["pay > 5", "PAY > 5", "`pay` > 5", "id = 1 AND ssn LIKE '3%'", "Ssn = '1'", "face IS NULL"]
)
def test_filter_on_a_masked_column_is_refused(ann: httpx.Client, text: str) -> None:
    for name, fields in (
        ("QueryTable", {"k": 9, "filter": text}),
        ("CountTableRows", {"predicate": text}),
        ("DeleteFromTable", {"predicate": text}),
        ("UpdateTable", {"predicate": text, "updates": [["note", "'x'"]]}),
    ):
        assert "masked" in refused(call(ann, name, **fields))


@pytest.mark.parametrize(
    "text", ["ssn", "`ssn`", "SSN", "concat(ssn, '')", "pay + 0", "face", "struct(pay)", "people.pay"]
)
def test_alias_of_a_masked_column_is_refused(ann: httpx.Client, text: str) -> None:
    refused(call(ann, "QueryTable", k=9, columns={"column_aliases": {"x": text}}))


def test_alias_named_like_a_masked_column_is_what_its_expression_says(ann: httpx.Client) -> None:
    assert rows(ann, columns={"column_aliases": {"ssn": "name", "more": "id * 2"}}, k=1) == [{"ssn": "Ann", "more": 2}]


def test_hidden_column_by_name_is_refused(ann: httpx.Client) -> None:
    assert "hidden" in refused(call(ann, "QueryTable", k=9, columns={"column_names": ["id", "face"]}))
    for column in ("FACE", "`face`", "face.item"):
        refused(call(ann, "QueryTable", k=9, columns={"column_names": [column]}))


def test_order_by_a_masked_column_is_refused(ann: httpx.Client) -> None:
    for column in ("pay", "ssn", "PAY", "`pay`"):
        refused(call(ann, "QueryTable", k=9, order_by=[{"column_name": column}]))


def test_search_by_a_masked_vector_is_refused(ann: httpx.Client) -> None:
    for column in ({"vector_column": "face"}, {}):
        response = call(ann, "QueryTable", k=9, vector={"single_vector": [0.0, 0.0]}, **column)
        assert response.status_code in (400, 403), response.text
    refused(call(ann, "QueryTable", k=9, vector={"single_vector": [0.0, 0.0]}, vector_column="face"))


def test_full_text_search_is_refused_where_rows_are_hidden(ann: httpx.Client) -> None:
    refused(call(ann, "QueryTable", k=9, full_text_query={"string_query": {"query": "gin", "columns": ["note"]}}))


def test_full_text_search_on_a_masked_column_is_refused(ann: httpx.Client, admin: httpx.Client) -> None:
    good(call(admin, "DropTablePolicy", name="own team"))
    text = {"string_query": {"query": "333", "columns": ["ssn"]}}
    refused(call(ann, "QueryTable", k=9, full_text_query=text))
    nested = {
        "structured_query": {
            "query": {"boolean": {"should": [], "must_not": [], "must": [{"match": {"terms": "333", "column": "ssn"}}]}}
        }
    }
    refused(call(ann, "QueryTable", k=9, full_text_query=nested))


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("ExplainTableQueryPlan", {"query": {"k": 1, "vector": None}}),
        ("AnalyzeTableQueryPlan", {"k": 1, "vector": None}),
        ("GetTableStats", {}),
        ("ListTableIndices", {}),
        ("DescribeTableIndexStats", {"index_name": "by_id"}),
        ("ListTableVersions", {}),
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
        ("ListTablePolicies", {}),
        ("DropTablePolicy", {"name": "masks"}),
        ("SetTablePolicy", {"name": "masks", "filter": "true"}),
    ],
)
def test_whatever_tells_or_changes_more_is_refused(ann: httpx.Client, name: str, fields: dict[str, Any]) -> None:
    refused(call(ann, name, **fields))


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
    for where in ({"version": 1}, {"branch": "side"}):
        refused(call(ann, "QueryTable", k=9, **where))
        refused(call(ann, "CountTableRows", **where))
    refused(call(ann, "DeleteFromTable", predicate="true", branch="side"))
    refused(call(ann, "UpdateTable", updates=[["note", "'x'"]], branch="side"))


def test_clone_is_refused(ann: httpx.Client) -> None:
    source = good(call(ann, "DescribeTable"))["location"]
    refused(send(ann, operations()["CloneTable"], {"id": ["hr", "copy"], "source_location": source}))


def test_job_over_the_table_is_refused(ann: httpx.Client) -> None:
    refused(send(ann, operations()["SubmitJob"], {"name": "ingest", "table": TABLE}))


def test_files_of_the_table_are_refused(ann: httpx.Client) -> None:
    told = good(call(ann, "DescribeTable", load_detailed_metadata=True))
    assert told.get("stats") is None and "storage_options" not in told
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


def test_error_of_lance_is_kept_back(ann: httpx.Client) -> None:
    text = refused(call(ann, "QueryTable", k=9, columns={"column_aliases": {"x": "cast(name as int)"}}), 400)
    assert "kept back" in text


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
    good(call(admin, "AlterTableAlterColumns", alterations=[{"path": "ssn", "rename": "number"}]))
    for name, fields in (("QueryTable", {"k": 9}), ("CountTableRows", {}), ("DeleteFromTable", {"predicate": "true"})):
        assert "not there" in refused(call(ann, name, **fields))
    good(call(admin, "DropTablePolicy", name="masks"))
    good(call(admin, "AlterTableDropColumns", columns=["team"]))
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
    table = db.open_table("people", namespace_path=["hr"])
    assert table.count_rows() == 2
    found = table.search([0.1, 0.0], vector_column_name="place").limit(3).to_list()
    assert [row["id"] for row in found] == [1, 2] and "face" not in found[0]
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
        lambda: table.checkout(1) or table.count_rows(),
    ):
        with pytest.raises(Exception, match=r"(?i)polic|masked|403"):
            attempt()


def test_pylance_namespace_client_sees_the_narrowed_table(secured: Secured, admin: httpx.Client) -> None:
    client = lance_namespace.connect("rest", {"uri": secured.url, "header.x-api-key": secured.keys["ann"]})
    asked = lance_namespace.QueryTableRequest(id=TABLE, k=10, vector={}, columns={"column_names": ["id", "pay"]})
    answer: Any = client.query_table(asked)
    found = pa.ipc.open_file(io.BytesIO(getattr(answer, "data", answer))).read_all()
    assert found.to_pylist() == [{"id": 1, "pay": None}, {"id": 2, "pay": None}]
    counted: Any = client.count_table_rows(lance_namespace.CountTableRowsRequest(id=TABLE))
    assert getattr(counted, "count", counted) == 2
