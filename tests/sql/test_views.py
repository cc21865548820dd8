"""Views in queries: expanded into one plan, each table within it read as the reader may."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from lance_namespace.errors import (
    InvalidInputError,
    LanceNamespaceError,
    PermissionDeniedError,
    TableNotFoundError,
    UnsupportedOperationError,
)

from tiltyard.catalog.tables import drop_table, rename_table
from tiltyard.catalog.views import create_view
from tiltyard.model.spec import models
from tiltyard.sql.engine import plan_query
from tiltyard.sql.planning import MAX_VIEW_DEPTH
from tiltyard.tables.query.query import count_table_rows, query_table

if TYPE_CHECKING:
    from tests.sql.conftest import Queries


def define(queries: Queries, name: str, query: str) -> None:
    create_view(queries.context(), models.CreateViewRequest(id=[name], query=query))


def query_view(queries: Queries, name: str, reader: str | None = None, **fields: Any) -> list[dict[str, Any]]:
    """The rows that QueryTable returns of a view."""
    request = models.QueryTableRequest(id=[name], vector=fields.pop("vector", None), k=fields.pop("k", 100), **fields)
    answer = query_table(queries.context(reader), request)
    return [row for batch in answer.batches for row in batch.to_pylist()]


@pytest.fixture
def ann(queries: Queries) -> str:
    """A reader of all, whose policy on `films` shows the rows of ann, no owner, and no vector."""
    queries.grant("ann", "read", namespace=("sales",))
    queries.grant("ann", "read", namespace=())
    queries.restrict(("films",), "owner = principal()", owner="null", vector="hide")
    return "ann"


def test_query_over_views_joined_with_tables_is_one_plan(queries: Queries) -> None:
    define(queries, "old", "SELECT id, title, upper(owner) AS who FROM films WHERE id <= 4")
    define(queries, "rated", "SELECT who, stars FROM old JOIN sales.ratings ON film = id")
    assert queries.rows("SELECT count(*) AS n FROM old") == [{"n": 4}]
    found = queries.rows("SELECT who, sum(stars) AS s FROM rated GROUP BY who ORDER BY who")
    assert found == [{"who": "ANN", "s": 9}, {"who": "BOB", "s": 8}]
    query = """SELECT f.title FROM films f JOIN old o USING (id) WHERE o.who IN (SELECT who FROM rated WHERE stars = 3)
               UNION SELECT title FROM old WHERE id = (SELECT max(id) FROM old) ORDER BY 1"""
    assert [row["title"] for row in queries.rows(query)] == ["Brazil", "Dune"]
    assert query_view(queries, "rated", k=1, offset=3) == [{"who": "BOB", "stars": 5}]


def test_views_over_searches_and_versions_are_read(queries: Queries) -> None:
    films = queries.server.open("films")
    films.tags.create("first", 1)
    films.create_branch("draft")
    define(queries, "near", "SELECT title, _distance FROM vector_search('films', [3, 0], 2)")
    define(queries, "words", "SELECT id, title FROM fts('films', 'dune')")
    for name, source in (
        ("at_version", "table_version('films', 1)"),
        ("at_tag", "table_tag('films', 'first')"),
        ("at_branch", "table_branch('films', 'draft')"),
        ("catalog", "information_schema.tables"),
    ):
        define(queries, name, f"SELECT count(*) AS n FROM {source}")
        assert queries.rows(f"SELECT n > 0 AS found FROM {name}") == [{"found": True}]
    assert queries.rows("SELECT title FROM near ORDER BY _distance LIMIT 1") == [{"title": "Dune"}]
    assert queries.rows("SELECT n.title FROM near n JOIN words w ON n.title = w.title") == [{"title": "Dune"}]
    for source in ("vector_search('near', [1, 0])", "table_version('near', 1)", "table_tag('near', 'x')"):
        with pytest.raises(UnsupportedOperationError, match="near is a view"):
            queries.rows(f"SELECT * FROM {source}")


def test_view_of_a_view_is_read_to_a_depth(queries: Queries) -> None:
    define(queries, "v1", "SELECT id FROM films")
    for number in range(2, MAX_VIEW_DEPTH + 1):
        define(queries, f"v{number}", f"SELECT id + 1 AS id FROM v{number - 1}")
    assert queries.rows(f"SELECT min(id) AS m FROM v{MAX_VIEW_DEPTH}") == [{"m": MAX_VIEW_DEPTH}]
    assert count_table_rows(queries.context(), models.CountTableRowsRequest(id=[f"v{MAX_VIEW_DEPTH}"])) == 6
    with pytest.raises(InvalidInputError, match="8 deep"):
        define(queries, "v9", "SELECT id FROM v8")
    assert queries.rows("SELECT count(*) AS n FROM v8 WHERE id IN (SELECT id FROM v8)") == [{"n": 6}]


def test_views_that_read_each_other_are_refused(queries: Queries) -> None:
    define(queries, "a", "SELECT id FROM films")
    define(queries, "b", "SELECT id FROM a")
    ctx = queries.context()
    drop_table(ctx, models.DropTableRequest(id=["a"]))
    rename_table(ctx, models.RenameTableRequest(id=["b"], new_table_name="a"))
    for read in (lambda: queries.rows("SELECT * FROM a"), lambda: query_view(queries, "a")):
        with pytest.raises(InvalidInputError, match="not themselves"):
            read()


def test_views_together_are_no_larger_than_a_statement(queries: Queries) -> None:
    define(
        queries, "wide", "SELECT a.id FROM films a " + " ".join(f"JOIN films b{n} ON b{n}.id = a.id" for n in range(9))
    )
    define(queries, "wider", " UNION ALL ".join(["SELECT id FROM wide"] * 15))
    with pytest.raises(InvalidInputError, match="too many SELECTs"):
        queries.rows("SELECT a.id FROM wider a JOIN wider b ON a.id = b.id JOIN wider c ON a.id = c.id")
    define(queries, "long", "SELECT repeat(title, 1000) AS t FROM films")
    with pytest.raises(InvalidInputError, match="times as large"):
        queries.rows("SELECT repeat(t, 1000) AS u FROM long")
    define(queries, "many", "SELECT id FROM films WHERE " + " OR ".join(f"id = {n}" for n in range(400)))
    with pytest.raises(InvalidInputError, match="AND and OR"):
        queries.rows("SELECT id FROM many WHERE " + " OR ".join(f"id = {n}" for n in range(400)))


def test_view_has_the_policies_of_its_tables_beneath_it(queries: Queries, ann: str) -> None:
    define(queries, "everything", "SELECT * FROM films")
    define(queries, "titled", "SELECT title, owner FROM everything WHERE id < 5")
    define(queries, "bare", "SELECT vector FROM films")
    rows = [{"title": "Alien", "owner": None}, {"title": "Casablanca", "owner": None}]
    assert queries.rows("SELECT * FROM titled ORDER BY title", ann) == rows
    assert query_view(queries, "titled", ann) == rows
    assert query_view(queries, "titled", ann, filter="title = 'Alien'") == rows[:1]
    assert query_view(queries, "titled", ann, filter="owner = 'bob'") == []
    assert queries.rows("SELECT count(*) AS n, count(owner) AS o FROM everything", ann) == [{"n": 3, "o": 0}]
    assert count_table_rows(queries.context(ann), models.CountTableRowsRequest(id=["everything"])) == 3
    names = ["id", "title", "owner", "budget"]
    assert queries.run("SELECT * FROM everything", ann).schema.names == names
    assert list(query_view(queries, "everything", ann)[0]) == names
    for read in (
        lambda: queries.rows("SELECT * FROM bare", ann),
        lambda: queries.rows("SELECT vector FROM everything", ann),
        lambda: query_view(queries, "bare", ann),
        lambda: query_view(queries, "everything", ann, columns=models.QueryTableColumns(column_names=["vector"])),
    ):
        with pytest.raises(InvalidInputError, match="vector"):
            read()
    for query in ("EXPLAIN SELECT * FROM titled", "EXPLAIN ANALYZE SELECT count(*) FROM titled"):
        with pytest.raises(UnsupportedOperationError, match="Policies"):
            queries.rows(query, ann)
    assert queries.rows("SELECT title FROM titled WHERE 10 / (length(title) - 6) > 100", ann) == []  # Brazil has 6


def test_view_is_read_with_the_rights_of_its_reader(queries: Queries) -> None:
    define(queries, "rated", "SELECT title, stars FROM films JOIN sales.ratings ON film = id")
    queries.grant("bea", "read", table=("rated",))
    with pytest.raises(LanceNamespaceError, match="In the view rated"):
        queries.rows("SELECT * FROM rated", "bea")
    queries.grant("bea", "read", table=("films",))
    with pytest.raises(LanceNamespaceError, match="In the view rated"):
        query_view(queries, "rated", "bea")
    queries.grant("bea", "use", namespace=("sales",))
    with pytest.raises(PermissionDeniedError, match="In the view rated"):
        queries.rows("SELECT * FROM rated", "bea")
    queries.grant("bea", "read", table=("sales", "ratings"))
    assert queries.rows("SELECT count(*) AS n FROM rated", "bea") == [{"n": 4}]
    define(queries, "outer_view", "SELECT title FROM rated")
    queries.grant("bea", "read", table=("outer_view",))
    assert len(queries.rows("SELECT * FROM outer_view", "bea")) == 4


def test_view_follows_the_names_of_its_tables(queries: Queries) -> None:
    define(queries, "v", "SELECT * FROM films")
    define(queries, "w", "SELECT id FROM v")
    films = queries.server.open("films")
    films.add_columns({"more": "id * 2"})
    assert "more" not in queries.run("SELECT * FROM v").schema.names
    films.drop_columns(["budget"])
    assert queries.run("SELECT * FROM v").schema.names == ["id", "title", "owner", "vector"]
    ctx = queries.context()
    rename_table(ctx, models.RenameTableRequest(id=["films"], new_table_name="movies"))
    for query in ("SELECT * FROM v", "SELECT * FROM w"):
        with pytest.raises(TableNotFoundError, match="films"):
            queries.rows(query)
    with pytest.raises(TableNotFoundError, match="films"):
        query_view(queries, "w")
    define(queries, "films", "SELECT id, 'x' AS other FROM movies")
    assert queries.rows("SELECT * FROM w ORDER BY id LIMIT 1") == [{"id": 1}]
    assert queries.run("SELECT * FROM v").schema.names == ["id"]


def test_view_that_is_no_query_is_refused(queries: Queries) -> None:
    for query in ("EXPLAIN SELECT 1", "DESCRIBE films", "SELECT $1 AS a"):
        with pytest.raises((InvalidInputError, UnsupportedOperationError)):
            define(queries, "v", query)


def test_views_are_in_the_information_schema(queries: Queries, ann: str) -> None:
    define(queries, "v", "SELECT id, vector AS place, owner FROM films")
    define(queries, "e", "SELECT * FROM films")
    queries.server.declare("later")
    tables = "SELECT table_name, table_type FROM information_schema.tables WHERE table_schema = 'public' ORDER BY 1"
    listed = [("e", "VIEW"), ("films", "BASE TABLE"), ("v", "VIEW")]
    assert [(row["table_name"], row["table_type"]) for row in queries.rows(tables)] == listed
    assert [(row["table_name"], row["table_type"]) for row in queries.rows(tables, ann)] == listed
    assert queries.rows(tables, "nobody") == []
    columns = "SELECT column_name FROM information_schema.columns WHERE table_name = '{}' ORDER BY ordinal_position"
    assert [row["column_name"] for row in queries.rows(columns.format("v"))] == ["id", "place", "owner"]
    assert queries.rows(columns.format("v"), ann) == []  # it reads a column that is hidden
    assert [row["column_name"] for row in queries.rows(columns.format("e"), ann)] == ["id", "title", "owner", "budget"]


def test_tables_of_views_are_named_for_the_audit(queries: Queries) -> None:
    define(queries, "v", "SELECT id FROM films")
    define(queries, "w", "SELECT id FROM v")
    named: list[Any] = []
    plan_query(queries.context(), "SELECT * FROM w", named=named).close()
    assert sorted(map(str, named)) == ["films", "v", "w"]


@pytest.mark.parametrize("name", ['a"b', "`a", "a#b"])
def test_views_whose_names_have_quotes_count_at_each_use(queries: Queries, name: str) -> None:
    """Or a few views of many uses each would be a plan without a bound."""
    define(queries, name, "SELECT 1 AS x" + " UNION ALL SELECT 1" * 100)
    quoted = '"' + name.replace('"', '""') + '"'
    assert queries.rows(f"SELECT count(*) AS n FROM {quoted}") == [{"n": 101}]
    with pytest.raises(InvalidInputError, match="500 at most"):
        queries.rows(f"SELECT x FROM {quoted}" + f" UNION ALL SELECT x FROM {quoted}" * 9)


def test_name_that_is_one_to_the_engine_alone_is_refused_without_quotes(queries: Queries) -> None:
    define(queries, "a#b", "SELECT 1 AS x")
    with pytest.raises(InvalidInputError, match="in double quotes"):
        queries.rows("SELECT x FROM a#b")
