"""Row filters and column masks in queries and counts, and attempts to bypass them."""

from __future__ import annotations

import io

import httpx
import pyarrow as pa
import pytest

from tests.access.policies.people import PEOPLE, call, good, ids, refused, rows
from tests.services.secured import Secured


def test_query_without_anything_gives_visible_rows_and_masked_columns(ann: httpx.Client) -> None:
    visible = rows(ann)
    assert [row["id"] for row in visible] == [1, 2]
    assert [row["ssn"] for row in visible] == ["***1", "***2"]
    assert [row["pay"] for row in visible] == [None, None]
    assert list(visible[0]) == ["id", "team", "name", "ssn", "pay", "note", "place", "seen"]
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
    response = call(ann, "QueryTable", k=10, columns={"column_names": ["pay", "ssn"]})
    assert pa.ipc.open_file(io.BytesIO(response.content)).schema.field("pay").type == pa.int64()


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


def test_columns_under_their_own_names_are_masked_as_named_ones_are(ann: httpx.Client) -> None:
    named = rows(ann, columns={"column_names": ["ssn", "id", "pay"]})
    assert rows(ann, columns={"column_aliases": {"ssn": "ssn", "id": "id", "pay": "pay"}}) == named
    assert [row["ssn"] for row in named] == ["***1", "***2"]
    for aliases in ({"face": "face", "id": "id"}, {"ssn": "SSN"}, {"ssn": "ssn", "id": "id + 1"}):
        refused(call(ann, "QueryTable", k=10, columns={"column_aliases": aliases}))


def test_order_by_a_masked_column_is_refused(ann: httpx.Client) -> None:
    for column in ("pay", "ssn", "PAY", "`pay`"):
        refused(call(ann, "QueryTable", k=9, order_by=[{"column_name": column}]))


def test_search_by_a_masked_vector_is_refused(ann: httpx.Client) -> None:
    for column in ({"vector_column": "face"}, {}):
        response = call(ann, "QueryTable", k=9, vector={"single_vector": [0.0, 0.0]}, **column)
        assert response.status_code in (400, 403), response.text
    refused(call(ann, "QueryTable", k=9, vector={"single_vector": [0.0, 0.0]}, vector_column="face"))


def test_minhash_search_on_a_masked_column_is_refused(ann: httpx.Client) -> None:
    for column in ("ssn", "SSN", "`ssn`", "face"):
        refused(call(ann, "QueryTable", k=9, minhash_query={"column": column, "text": "333"}))


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
