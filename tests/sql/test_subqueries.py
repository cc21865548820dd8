"""Subqueries in comparisons: an answer, or a sentence that says how to write it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from lance_namespace.errors import InvalidInputError, UnsupportedOperationError

if TYPE_CHECKING:
    from tests.sql.conftest import Queries

FILMS_RATED = "SELECT film FROM sales.ratings"


@pytest.mark.parametrize(
    ("condition", "ids"),
    [
        (f"id = ANY ({FILMS_RATED})", [1, 2, 4]),
        (f"id = some({FILMS_RATED}) AND id < 4", [1, 2]),
        (f"NOT id = ANY({FILMS_RATED})", [3, 5, 6]),
        (f"id <> ALL({FILMS_RATED})", [3, 5, 6]),
        (f"id != all (WITH r AS ({FILMS_RATED}) SELECT film FROM r)", [3, 5, 6]),
        ("id = ANY([1, 2])", [1, 2]),
        ("title = '= ANY (SELECT 1)' OR id = 5", [5]),
        ("title LIKE 'Al\\_en' ESCAPE '\\' OR title LIKE 'F%' ESCAPE '\\'", [6]),
    ],
)
def test_membership_of_a_subquery_is_answered(queries: Queries, condition: str, ids: list[int]) -> None:
    assert [row["id"] for row in queries.rows(f"SELECT id FROM films WHERE {condition} ORDER BY id")] == ids


def test_membership_as_a_condition_is_answered_in_brackets_case_and_subqueries(queries: Queries) -> None:
    is_rated = f"id IN ({FILMS_RATED})"
    for condition in (
        f"((({is_rated})) AND (id > 0))",
        f"CASE WHEN ({is_rated}) THEN 1 ELSE 0 END = 1",
        f"(id = 9 OR ({is_rated}))",
        f"id = (SELECT max(f.id) FROM films f WHERE f.{is_rated}) OR id IN (SELECT f.id FROM films f WHERE f.id < 3)",
    ):
        assert [row["id"] for row in queries.rows(f"SELECT id FROM films WHERE {condition} ORDER BY id")] == [1, 2, 4]


@pytest.mark.parametrize("lock", ["FOR UPDATE", "for share", "FOR UPDATE OF films NOWAIT"])
def test_query_that_would_lock_rows_is_refused(queries: Queries, lock: str) -> None:
    with pytest.raises(UnsupportedOperationError, match="locks no rows"):
        queries.rows(f"SELECT id FROM films {lock}")
    query = 'SELECT substring(title FROM 1 FOR 2) AS "for update" FROM films WHERE id = 1'
    assert queries.rows(query) == [{"for update": "Al"}]


@pytest.mark.parametrize("comparison", ["> ALL", ">= ALL", "= ALL", "< ANY", "<> ANY", "!= SOME", "<= some"])
def test_other_comparison_with_a_subquery_is_refused_with_another_way(queries: Queries, comparison: str) -> None:
    with pytest.raises(UnsupportedOperationError, match="max"):
        queries.rows(f"SELECT id FROM films WHERE id {comparison} ({FILMS_RATED})")


@pytest.mark.parametrize(
    "condition",
    [
        f"id NOT IN ({FILMS_RATED}) OR id = 1",
        f"NOT (id = 1 AND id IN ({FILMS_RATED}))",
        f"CASE WHEN id NOT IN ({FILMS_RATED}) THEN true ELSE false END",
        f"(id IN ({FILMS_RATED})) IS NULL",
        f"(id = 9 OR id IN ({FILMS_RATED})) = false",
        f"id NOT IN ({FILMS_RATED} WHERE stars = id)",
        f"id IN ({FILMS_RATED}) IS NULL",
        f"((id IN ({FILMS_RATED}))) IS NULL",
        f"((id IN ({FILMS_RATED})) AND id > 1) IS NULL",
        f"false = (id IN ({FILMS_RATED}))",
        f"coalesce(id IN ({FILMS_RATED}), true)",
        f"CASE WHEN id > 1 THEN id IN ({FILMS_RATED}) END IS NULL",
        f"CASE id IN ({FILMS_RATED}) WHEN false THEN true END",
    ],
)
def test_negated_membership_that_may_be_null_is_refused(queries: Queries, condition: str) -> None:
    """DataFusion answers these as if no subquery had a null."""
    with pytest.raises(UnsupportedOperationError, match="NOT EXISTS"):
        queries.rows(f"SELECT id FROM films WHERE {condition}")


def test_negated_membership_of_its_own_is_answered(queries: Queries) -> None:
    query = f"""SELECT id FROM films WHERE id NOT IN ({FILMS_RATED}) AND (id IN ({FILMS_RATED}) OR title IS NOT NULL)
                AND NOT EXISTS (SELECT 1 FROM sales.ratings r WHERE r.film = films.id) AND title NOT LIKE 'F%'"""
    with pytest.raises(UnsupportedOperationError):
        queries.rows(query)
    alone = query.replace(f"(id IN ({FILMS_RATED}) OR title IS NOT NULL)", "title IS NOT NULL")
    assert [row["id"] for row in queries.rows(f"{alone} ORDER BY id")] == [3, 5]


def test_lateral_subquery_is_answered_or_refused_with_another_way(queries: Queries) -> None:
    inner = "SELECT stars FROM sales.ratings r WHERE r.film = f.id"
    rows = queries.rows(f"SELECT f.id, x.stars FROM films f, LATERAL ({inner}) x ORDER BY 1, 2")
    assert [(row["id"], row["stars"]) for row in rows] == [(1, 4), (1, 5), (2, 3), (4, 5)]
    for query in (
        f"SELECT f.id FROM films f CROSS JOIN LATERAL ({inner} ORDER BY stars LIMIT 1) x",
        f"SELECT f.id, ({inner} ORDER BY stars LIMIT 1) AS s FROM films f",
        f"SELECT f.id IN ({FILMS_RATED}) AS s FROM films f",
    ):
        with pytest.raises(UnsupportedOperationError, match="as a join"):
            queries.rows(query)


def test_quote_after_a_backslash_is_refused_elsewhere(queries: Queries) -> None:
    for condition in ("title = '\\'", "title LIKE 'a\\' ESCAPE '\\'", "title = E'a\\'b'"):
        with pytest.raises(InvalidInputError, match="double the quote"):
            queries.rows(f"SELECT id FROM films WHERE {condition}")


@pytest.mark.parametrize("condition", ["[id, 2] @> [1]", "[1]<@[id]", "array_has_all([id], [1]) AND title <> '@>'"])
def test_operator_whose_function_is_not_named_is_answered(queries: Queries, condition: str) -> None:
    assert queries.rows(f"SELECT id FROM films WHERE {condition}") == [{"id": 1}]
