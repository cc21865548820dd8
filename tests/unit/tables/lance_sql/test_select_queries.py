"""Queries of views that the server computes itself: what is read of them, and what is refused."""

from __future__ import annotations

import pytest
from lance_namespace.errors import InvalidInputError, UnsupportedOperationError

from tiltyard.model.ids import Id
from tiltyard.tables.lance_sql.select_queries import SelectQuery, VectorDedup, parse_select


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ('SELECT * FROM "src"', SelectQuery(Id(["src"]), None, None, None)),
        (
            'SELECT `a` AS "a", c+1 AS "b" FROM "src" WHERE x>1 LIMIT 3',
            SelectQuery(Id(["src"]), {"a": "`a`", "b": "c+1"}, "x>1", 3),
        ),
        (
            "select a.b, \"x y\", concat(a, ',from ') as y from hr.people limit 0",
            SelectQuery(Id(["hr", "people"]), {"b": "a.b", "x y": "`x y`", "y": "concat(a, ',from ')"}, None, 0),
        ),
        (
            "SELECT 'it''s, from' AS q FROM `hr$t` WHERE a = 'limit'",
            SelectQuery(Id(["hr", "t"]), {"q": "'it''s, from'"}, "a = 'limit'", None),
        ),
    ],
)
def test_parse_select_reads_columns_source_filter_and_limit(text: str, query: SelectQuery) -> None:
    assert parse_select(text) == query


@pytest.mark.parametrize("distance", ["4.0", "0", "-1.5", "1e-05", "1.5E3"])
def test_parse_select_reads_vector_dedup(distance: str) -> None:
    parsed = parse_select(f"SELECT * FROM vector_dedup('hr$it''s', 7, 'a v', {distance})")
    assert parsed == SelectQuery(Id(["hr", "it's"]), None, None, None, dedup=VectorDedup(7, "a v", float(distance)))


@pytest.mark.parametrize(
    "query",
    [
        "SELECT a FROM vector_dedup('src', 7, 'v', 4.0)",
        "SELECT * FROM vector_dedup('src', 7, 'v')",
        "SELECT * FROM vector_dedup('src', 0, 'v', 4.0)",
        "SELECT * FROM vector_dedup('src', 99999999999999999999, 'v', 4.0)",
        "SELECT * FROM vector_dedup('src', 7.5, 'v', 4.0)",
        "SELECT * FROM vector_dedup('src', 7, v, 4.0)",
        "SELECT * FROM vector_dedup('src', 7, 'v', 1e999)",
        "SELECT * FROM vector_dedup('src', 7, 'v', nan)",
        f"SELECT * FROM vector_dedup('src', {'0' * 19}1{'0' * 30}, 'v', 4.0)",
        f"SELECT * FROM vector_dedup('src', {'0' * 19}1{'0' * 5000}, 'v', 4.0)",
        "SELECT * FROM vector_dedup('src', 7, 'v', 4.0) WHERE a > 1",
        "SELECT * FROM vector_dedup('src', 7, 'v', 4.0) LIMIT 3",
        "SELECT * FROM vector_dedup",
    ],
)
def test_parse_select_of_another_vector_dedup_is_invalid(query: str) -> None:
    with pytest.raises(InvalidInputError, match="without near-duplicates"):
        parse_select(query)


def test_parse_select_takes_the_greatest_limit() -> None:
    assert parse_select("SELECT a FROM t LIMIT 9223372036854775807").limit == 2**63 - 1


def test_parse_select_finds_a_single_name_in_the_root() -> None:
    assert parse_select("SELECT * FROM t").source == ("t",)
    assert parse_select("SELECT * FROM a.t").source == ("a", "t")


@pytest.mark.parametrize(
    "text",
    [
        "SELECT * FROM vector_duplicate_pairs('src', 7, 'v', 4.0)",
        "SELECT count(*) AS n FROM t GROUP BY a",
        "SELECT a FROM t JOIN u",
        "SELECT a FROM t, u",
        "SELECT a FROM t AS u",
        "SELECT a FROM t ORDER BY a",
        "SELECT a FROM t WHERE b IN (SELECT 1)",
        "SELECT DISTINCT a FROM t",
        "SELECT a FROM t; DROP TABLE x",
        "SELECT a FROM t UNION SELECT a FROM u",
    ],
)
def test_parse_select_of_more_than_a_projection_is_unsupported(text: str) -> None:
    with pytest.raises(UnsupportedOperationError):
        parse_select(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "DELETE FROM t",
        "SELECT",
        "SELECT FROM t",
        "SELECT a FROM",
        "SELECT a FROM t WHERE",
        "SELECT a FROM t LIMIT",
        "SELECT a FROM t LIMIT 1 OFFSET 2",
        "SELECT a FROM t LIMIT -1",
        "SELECT a FROM t LIMIT 9223372036854775808",
        "SELECT a, a FROM t",
        "SELECT a+1 FROM t",
        "SELECT a) FROM t",
        "SELECT (a FROM t",
        "SELECT a FROM t -- x",
        "SELECT a /* x */ FROM t",
        "SELECT now() AS a FROM t",
        "SELECT current_date AS a FROM t",
        "SELECT a FROM t WHERE r > random()",
        "SELECT a FROM 'file.parquet'",
        "SELECT a FROM t WHERE " + "a + " * 200 + "a > 1",
        "SELECT a FROM t WHERE a = '" + "x" * 70_000 + "'",
    ],
)
def test_parse_select_of_invalid_queries_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError):
        parse_select(text)
