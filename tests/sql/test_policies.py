"""Queries read what their reader may: grants of each table, row filters and masks beneath the query."""

from __future__ import annotations

from typing import TYPE_CHECKING

import lance
import pyarrow as pa
import pytest
from lance_namespace.errors import (
    InvalidInputError,
    LanceNamespaceError,
    NamespaceNotFoundError,
    PermissionDeniedError,
    TableNotFoundError,
    UnsupportedOperationError,
)

from tests.services.cases import check_each
from tests.sql.conftest import FILMS
from tiltyard.catalog.classifications import set_classification
from tiltyard.catalog.policies import set_classification_policy, set_table_policy
from tiltyard.catalog.views import create_view
from tiltyard.model.ids import Id
from tiltyard.model.spec import models
from tiltyard.sql import reading
from tiltyard.tables.query.query import query_table

if TYPE_CHECKING:
    from tests.sql.conftest import Queries
    from tiltyard.context import Context
    from tiltyard.model.operations import ArrowAnswer


@pytest.fixture
def ann(queries: Queries) -> str:
    """A reader of `films` alone, whose policy shows the rows of ann, a masked budget and no vector."""
    queries.grant("ann", "read", table=("films",))
    queries.restrict(("films",), "owner = principal()", budget="round(budget / 100)", vector="hide", owner="null")
    return "ann"


def test_table_without_a_grant_does_not_exist(queries: Queries, ann: str) -> None:
    for query in ("SELECT * FROM sales.ratings", "SELECT * FROM films JOIN sales.ratings ON film = id"):
        with pytest.raises(NamespaceNotFoundError):
            queries.rows(query, ann)
    queries.grant("ann", "use", table=("sales", "ratings"))
    with pytest.raises(PermissionDeniedError):
        queries.rows("SELECT 1 WHERE EXISTS (SELECT * FROM sales.ratings)", ann)
    with pytest.raises(TableNotFoundError):
        queries.rows("SELECT * FROM films", "nobody")


def test_row_filter_and_masks_apply_beneath_the_query(queries: Queries, ann: str) -> None:
    assert queries.rows("SELECT * FROM films ORDER BY id", ann) == [
        {"id": 1, "title": "Alien", "owner": None, "budget": 0.0},
        {"id": 3, "title": "Casablanca", "owner": None, "budget": 0.0},
        {"id": 5, "title": "Eraserhead", "owner": None, "budget": 0.0},
    ]
    assert queries.rows("SELECT count(*) AS n, sum(budget) AS b FROM films", ann) == [{"n": 3, "b": 0.0}]
    assert queries.rows("SELECT count(*) AS n FROM films a JOIN films b USING (id)", ann) == [{"n": 3}]
    assert queries.rows("SELECT count(*) AS n FROM films WHERE owner = 'bob' OR budget > 11.5", ann) == [{"n": 0}]
    assert queries.run("SELECT owner FROM films", ann).schema.field("owner").type == "string"


@pytest.mark.parametrize(
    ("row_filter", "mask", "titles"),
    [
        ("substr(title, 1, 1) = 'A'", "upper(title)", ["ALIEN"]),
        ("ceil(budget) = 1", "substring(title, 2, 3)", ["asa", "ras"]),
        ("Substr(trim(title), 1, 2) IN ('Du')", "concat(substr(title, 1, 1), '***')", ["D***"]),
    ],
)
def test_policy_by_functions_that_are_syntax_to_lance_applies(
    queries: Queries, row_filter: str, mask: str, titles: list[str]
) -> None:
    queries.grant("ann", "read", table=("films",))
    masks = [models.ColumnMask(column="title", mask="expression", expression=mask)]
    request = models.SetTablePolicyRequest(id=["films"], name="by_text", filter=row_filter, masks=masks)
    set_table_policy(queries.context(), request)
    assert [row["title"] for row in queries.rows("SELECT title FROM films ORDER BY id", "ann")] == titles
    read = models.QueryTableRequest(id=["films"], vector=None, k=10)
    answer = query_table(queries.context("ann"), read)
    assert sorted(title for batch in answer.batches for title in batch["title"].to_pylist()) == sorted(titles)


def test_filter_of_the_query_sees_no_hidden_row(queries: Queries, ann: str) -> None:
    """An error on a hidden row would disclose it: `Brazil` has the id 2."""
    assert queries.rows("SELECT id FROM films WHERE 10 / (id - 2) > 100", ann) == []
    assert queries.rows("SELECT sum(10 / (id - 2)) AS s FROM films", ann) == [{"s": -10 + 10 + 3}]
    with pytest.raises(InvalidInputError, match=r"'(Alien|Casablanca|Eraserhead)'"):
        queries.rows("SELECT id FROM films WHERE CAST(title AS int) = 1 AND title = 'Brazil'", ann)


def test_hidden_columns_do_not_exist(queries: Queries, ann: str) -> None:
    with pytest.raises(InvalidInputError, match="vector"):
        queries.rows("SELECT vector FROM films", ann)
    with pytest.raises(LanceNamespaceError):
        queries.rows("SELECT * FROM vector_search('films', [0, 0], 2)", ann)


def test_search_within_policies(queries: Queries) -> None:
    queries.grant("bea", "read", table=("films",))
    queries.restrict(("films",), "budget < 20", owner="null")
    found = queries.rows("SELECT title, owner FROM vector_search('films', [3, 0], 2) ORDER BY _distance, title", "bea")
    assert found == [{"title": "Casablanca", "owner": None}, {"title": "Eraserhead", "owner": None}]
    with pytest.raises(PermissionDeniedError):
        queries.rows("SELECT * FROM fts('films', 'dune')", "bea")


def test_minhash_search_compares_visible_rows_alone(queries: Queries) -> None:
    plot = "an old ship leaves its harbour before the long winter storms come over the grey sea"
    texts = [plot, plot + " again", plot + " again and again", "something else that has no words in common"]
    queries.add_table(Id(("plots",)), pa.table({"id": range(4), "plot": texts, "owner": ["bob", "bob", "ann", "ann"]}))
    location = queries.services.store.describe_table(("plots",)).location
    lance.dataset(location).create_scalar_index("plot", "MINHASHLSH")
    search = f"SELECT id, _distance FROM minhash_search('plots', '{plot}', 'plot', 2) ORDER BY _distance"
    found = queries.rows(search)
    assert [row["id"] for row in found] == [0, 1] and found[0]["_distance"] == 0 < found[1]["_distance"]
    filtered = queries.rows(f"SELECT id FROM minhash_search('plots', '{plot}', 'plot', 2, 'id > 0')")
    assert {row["id"] for row in filtered} == {1, 2}
    queries.grant("bea", "read", table=("plots",))
    queries.restrict(("plots",), "owner = 'ann'")
    assert [row["id"] for row in queries.rows(search, "bea")] == [2]
    queries.grant("cora", "read", table=("plots",))
    queries.restrict(("plots",), None, plot="null")
    with pytest.raises(PermissionDeniedError, match="masked"):
        queries.rows(search, "cora")


def test_plan_of_a_restricted_query_is_not_shown(queries: Queries, ann: str) -> None:
    for query in (
        "EXPLAIN SELECT * FROM films",
        "EXPLAIN ANALYZE SELECT * FROM films",
        "EXPLAIN VERBOSE SELECT 1 FROM films",
    ):
        with pytest.raises(UnsupportedOperationError):
            queries.rows(query, ann)
    assert [row["column_name"] for row in queries.rows("DESCRIBE films", ann)] == ["id", "title", "owner", "budget"]


def test_older_versions_and_branches_are_refused_within_policies(queries: Queries, ann: str) -> None:
    films = queries.server.open("films")
    films.tags.create("first", 1)
    films.tags.create("latest", films.version)
    films.create_branch("draft")
    for source in ("table_version('films', 1)", "table_tag('films', 'first')", "table_branch('films', 'draft')"):
        with pytest.raises(PermissionDeniedError):
            queries.rows(f"SELECT * FROM {source}", ann)
    visible = queries.rows("SELECT * FROM films ORDER BY id", ann)
    for source in (f"table_version('films', {films.version})", "table_tag('films', 'latest')"):
        assert queries.rows(f"SELECT * FROM {source} ORDER BY id", ann) == visible
    lance.write_dataset(FILMS.slice(0, 1), films.uri, mode="append")
    for source in (f"table_version('films', {films.version})", "table_tag('films', 'latest')"):
        with pytest.raises(PermissionDeniedError, match="latest version"):
            queries.rows(f"SELECT * FROM {source}", ann)


def test_query_within_policies_reads_the_version_that_it_opened(
    queries: Queries, ann: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    films = queries.server.open("films")

    def read_after_a_commit(ctx: Context, request: models.QueryTableRequest) -> ArrowAnswer:
        lance.write_dataset(FILMS.slice(0, 1), films.uri, mode="append")
        return query_table(ctx, request)

    monkeypatch.setattr(reading, "query_table", read_after_a_commit)
    assert queries.rows("SELECT count(*) AS n FROM films a JOIN films b USING (id)", ann) == [{"n": 3}]
    latest = queries.server.open("films").version
    assert latest > films.version
    rows = queries.rows(f"SELECT count(*) AS n FROM table_version('films', {latest})", ann)
    assert rows == [{"n": latest - films.version + 3}]


def test_mask_that_fails_discloses_no_value(queries: Queries) -> None:
    queries.grant("cy", "read", table=("films",))
    queries.restrict(("films",), None, title="CAST(CAST(title AS int) AS string)")
    with pytest.raises(LanceNamespaceError) as raised:
        queries.rows("SELECT title FROM films", "cy")
    assert "Alien" not in str(raised.value)


def test_information_schema_lists_what_the_reader_sees(queries: Queries, ann: str) -> None:
    tables = "SELECT table_schema, table_name FROM information_schema.tables ORDER BY 1, 2"
    assert queries.rows(tables) == [
        {"table_schema": "public", "table_name": "films"},
        {"table_schema": "sales", "table_name": "ratings"},
    ]
    assert queries.rows(tables, ann) == [{"table_schema": "public", "table_name": "films"}]
    assert queries.rows(tables, "nobody") == []
    columns = "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = 'films'"
    assert [row["column_name"] for row in queries.rows(columns, ann)] == ["id", "title", "owner", "budget"]
    assert len(queries.rows(columns)) == 5
    queries.grant("dan", "use", table=("films",))
    assert queries.rows(columns, "dan") == []
    assert queries.rows("SELECT schema_name FROM information_schema.schemata", ann) == [{"schema_name": "public"}]


def test_classified_columns_are_masked_beneath_views_joins_and_searches(queries: Queries) -> None:
    admin = queries.context()
    create_view(admin, models.CreateViewRequest(id=["owners"], query="SELECT id, owner AS who FROM films"))
    for table in ("films", "owners"):
        queries.grant("ann", "read", table=(table,))
    plain = queries.rows("SELECT who FROM owners WHERE id = 2", "ann")
    assert plain == [{"who": "bob"}]
    classified = models.SetClassificationRequest(
        object_kind="column", id=["films"], column="owner", key="pii", value="name"
    )
    set_classification(admin, classified)
    policy = models.SetClassificationPolicyRequest(
        name="names", key="pii", mask="expression", expression="concat('*', right(value(), 1))"
    )
    set_classification_policy(admin, policy)
    check_each(
        {
            "SELECT owner AS who FROM films WHERE id = 2": "*b",
            "SELECT who FROM owners WHERE id = 2": "*b",
            "SELECT b.owner AS who FROM owners a JOIN films b ON a.who = b.owner AND a.id = b.id WHERE a.id = 2": "*b",
            "SELECT upper(max(who)) AS who FROM owners": "*N",
            "SELECT string_agg(DISTINCT who, ',' ORDER BY who) AS who FROM owners": "*b,*n",
        }.items(),
        lambda case: _check_equal(queries.rows(case[0], "ann"), [{"who": case[1]}]),
    )
    assert queries.rows("SELECT count(*) AS n FROM owners WHERE who = 'bob'", "ann") == [{"n": 0}]
    assert queries.rows("SELECT who FROM owners WHERE id = 2") == [{"who": "bob"}]


def _check_equal(found: object, expected: object) -> None:
    assert found == expected
