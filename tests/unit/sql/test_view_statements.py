"""Statements on materialized views: what is one, and what each says."""

from __future__ import annotations

import pytest
from lance_namespace.errors import InvalidInputError

from tests.services.cases import check_each
from tiltyard.model.ids import Id
from tiltyard.sql.statements.view_statements import ViewAction, ViewStatement, parse_view_statement

SALES = Id(("shop", "sales"))
OWN, OTHER = Id((*SALES, "v")), Id(("shop", "eu", "fr", "v"))


def parse(text: str) -> ViewStatement | None:
    return parse_view_statement(text, Id(("sales",)), Id(("shop",)), 1_000)


def test_statement_is_read_as_its_form_says() -> None:
    create = ViewStatement(ViewAction.CREATE, OWN, "SELECT * FROM src")
    cases = {
        'CREATE MATERIALIZED VIEW "v" AS SELECT * FROM src': create,
        "create materialized view V as\nSELECT * FROM src ; ": create,
        "/* ours */ CREATE MATERIALIZED VIEW v -- all of it\n AS SELECT * FROM src": create,
        'CREATE MATERIALIZED VIEW "eu$fr".v AS SELECT a AS "as" FROM src': ViewStatement(
            ViewAction.CREATE, OTHER, 'SELECT a AS "as" FROM src'
        ),
        "CREATE MATERIALIZED VIEW public.v WITH (auto_refresh_enabled = FALSE) AS SELECT a FROM b": ViewStatement(
            ViewAction.CREATE, Id(("shop", "v")), "SELECT a FROM b"
        ),
        "CREATE MATERIALIZED VIEW v WITH (auto_refresh_interval_seconds = 0.5) AS SELECT a FROM b": ViewStatement(
            ViewAction.CREATE, OWN, "SELECT a FROM b", auto_refresh=True, interval_seconds=0.5
        ),
        "CREATE MATERIALIZED VIEW v WITH (auto_refresh_enabled = false, auto_refresh_interval_seconds = 300)"
        " AS SELECT a FROM b": ViewStatement(ViewAction.CREATE, OWN, "SELECT a FROM b", interval_seconds=300.0),
        "REFRESH MATERIALIZED VIEW v": ViewStatement(ViewAction.REFRESH, OWN),
        'REFRESH MATERIALIZED VIEW "eu$fr"."v" WITH (full = true)': ViewStatement(ViewAction.REFRESH, OTHER, full=True),
        "DESCRIBE MATERIALIZED VIEW `v`;": ViewStatement(ViewAction.DESCRIBE, OWN),
        "DROP MATERIALIZED VIEW v": ViewStatement(ViewAction.DROP, OWN),
        "SHOW MATERIALIZED VIEWS": ViewStatement(ViewAction.SHOW, SALES),
        "SHOW MATERIALIZED VIEWS WHERE name > 'b''c;--' LIMIT 101": ViewStatement(
            ViewAction.SHOW, SALES, after="b'c;--", limit=101
        ),
    }

    def check(text: str) -> None:
        assert parse(text) == cases[text]

    check_each(cases, check)


def test_other_statements_are_queries() -> None:
    def check(text: str) -> None:
        assert parse(text) is None

    check_each(
        (
            "SELECT materialized FROM view",
            "SELECT id FROM t WHERE kind = 'materialized' AND id = $1",
            "SELECT id AS materialized FROM t WHERE id = ?",
            "SELECT id FROM t WHERE id = $1 -- the materialized view",
            "EXPLAIN SELECT materialized FROM t WHERE id = $1",
            "SELECT 1 AS materialized, view FROM t",
            "WITH a AS MATERIALIZED (SELECT 1) SELECT * FROM a",
            "DESCRIBE materialized",
            "EXPLAIN DROP MATERIALIZED VIEW v",
            "CREATE VIEW v AS SELECT 'MATERIALIZED VIEW'",
            "SELECT 'DROP MATERIALIZED VIEW v'",
            "-- DROP MATERIALIZED VIEW v\nSELECT 1",
            "x" * 1_001 + " materialized view",
        ),
        check,
    )


def test_statement_with_other_words_says_its_form() -> None:
    cases = {
        "CREATE OR REPLACE MATERIALIZED VIEW v AS SELECT a FROM b": "has 'OR' where .*: CREATE MATERIALIZED VIEW name",
        "CREATE MATERIALIZED VIEW v": "ends where",
        "CREATE MATERIALIZED VIEW v AS ;": "ends|has ';'",
        "CREATE MATERIALIZED VIEW v WITH () AS SELECT a FROM b": "has '\\)'",
        "CREATE MATERIALIZED VIEW v WITH (full = true) AS SELECT a FROM b": "has 'full'",
        "CREATE MATERIALIZED VIEW v WITH (auto_refresh_enabled = 1) AS SELECT a FROM b": "true or false, not '1'",
        "CREATE MATERIALIZED VIEW v WITH (auto_refresh_interval_seconds = -1) AS SELECT a FROM b": "above 0, not '-'",
        "CREATE MATERIALIZED VIEW v WITH (auto_refresh_interval_seconds = 1e9) AS SELECT a FROM b": "not '1e9'",
        "CREATE MATERIALIZED VIEW v WITH (auto_refresh_interval_seconds = 0.0) AS SELECT a FROM b": "above 0",
        "REFRESH MATERIALIZED VIEW v WITH (full = true, full = true)": "has 'full'",
        "REFRESH MATERIALIZED VIEW a.b.c": "schema.name",
        "REFRESH MATERIALIZED VIEW ''": "has \"''\"",
        'DROP MATERIALIZED VIEW "a""b"': "has '\"b\"'",
        "DROP MATERIALIZED VIEW v; DROP TABLE films": "has 'DROP'",
        "DROP MATERIALIZED VIEW ?": "no parameters",
        "SHOW MATERIALIZED VIEWS LIMIT 9999999999999999999": "whole number",
        "SHOW MATERIALIZED VIEWS WHERE name > 'a' OR 1 = 1": "has 'OR'",
        "SHOW MATERIALIZED VIEWS WHERE name >= 'a'": "has '>='",
        "TRUNCATE MATERIALIZED VIEW v": "is one of: CREATE",
    }

    def check(text: str) -> None:
        with pytest.raises(InvalidInputError, match=cases[text]):
            parse(text)

    check_each(cases, check)
