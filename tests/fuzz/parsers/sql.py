"""SQL of callers: filters, queries of views, statements, conditions of policies, paths of JSON."""

from __future__ import annotations

import contextlib
import json
import re
from typing import Any

import duckdb
import sqlglot
from lance_namespace.errors import (
    InvalidInputError,
    PermissionDeniedError,
    UnsupportedOperationError,
)
from sqlglot import exp

from tests.fuzz.parsers.target import split_input, target, text_of
from tiltyard.access.predicates import check_filter, check_visible_expression
from tiltyard.contracts.checks import parse_check
from tiltyard.model.ids import Id
from tiltyard.model.refusals import RefusedError
from tiltyard.model.views.definitions import parse_sources, plain_view_sources
from tiltyard.sql.dialects import json_documents
from tiltyard.sql.dialects.functions import FunctionError
from tiltyard.sql.dialects.translation import restore_places, translate
from tiltyard.sql.statements.text_checks import parse_statement
from tiltyard.sql.statements.view_statements import parse_view_statement
from tiltyard.tables.lance_sql.expressions import check_condition, check_expression
from tiltyard.tables.lance_sql.select_queries import parse_select
from tiltyard.tables.query.integer_filters import parse_integer_filter

WORDS = (
    "SELECT FROM WHERE AND OR NOT IN LIKE BETWEEN IS NULL LIMIT AS ( ) , ; ' \" ` -- /* */ = <> <= >= || :: -> ->> #>"
    " @> ? ?| ?& 1 id text t a.b 'x' ''' CASE WHEN THEN END CAST( repeat( array_repeat( range( \\' true false $1"
)
MAX_LENGTH = 10_000
MAX_GROWTH_OF_TEXT = 20
"""How many times longer a translated statement may be, and a hundred characters."""
KEYWORDS = ["and", "or", "not", "in", "is", "null", "between", "like", "ilike", "true", "false", "date", "timestamp"]
KINDS = {"id": "number", "text": "text", "at": "time", "flag": "boolean", "hidden": "text", "vector": ""}


def _parsed(text: str, dialect: str | None = None) -> Any:
    """Return the tree of SQL by another parser; None for what that does not read."""
    try:
        return sqlglot.parse_one(text, read=dialect)
    except (sqlglot.errors.SqlglotError, RecursionError, ValueError):
        return None


@target(InvalidInputError, words=WORDS, also="tables.lance_sql.amplification tables.lance_sql.allowed_functions")
def sql_filter(data: bytes) -> None:
    """A condition that is accepted remains one operand wherever it is put into brackets."""
    text = text_of(data)
    check_expression(text, "filter")
    check_condition(text, "filter")
    if _parsed(f"SELECT {text}") is not None and (tree := _parsed(f"SELECT ({text}) AND (zzz)")) is not None:
        first = tree.expressions[0]
        first = first.this if isinstance(first, exp.Alias) else first
        assert isinstance(first, exp.And) and isinstance(first.right, exp.Paren), repr(tree)


@target(words=f"{WORDS} id= _rowid -1 9223372036854775807")
def sql_integer_filter(data: bytes) -> None:
    """The integers of a filter are those that DuckDB selects by it."""
    text = text_of(data)
    parsed = parse_integer_filter(text)
    if parsed is None:
        return
    integers = parsed.integers
    bounds = integers if isinstance(integers, tuple) else (integers.first, integers.last)
    near = {bound + step for bound in bounds[:5] if bound is not None for step in (-1, 0, 1)}
    candidates = sorted(each for each in near if -(1 << 63) <= each < 1 << 63)
    if isinstance(integers, tuple):
        expected = [each for each in candidates if each in integers]
    else:
        first, last = integers.first, integers.last
        expected = [each for each in candidates if (first is None or each >= first) and (last is None or each <= last)]
    values = ", ".join(f"({each}::BIGINT)" for each in candidates)
    with contextlib.suppress(duckdb.ParserException, duckdb.BinderException, duckdb.ConversionException):
        rows = duckdb.execute(f'SELECT x FROM (VALUES {values}) AS v(x), (SELECT x AS "{parsed.column}") WHERE {text}')
        assert sorted(row[0] for row in rows.fetchall()) == expected, (text, expected)


@target(
    InvalidInputError,
    UnsupportedOperationError,
    words=f"{WORDS} vector_dedup( table_branch( $",
    also="tables.lance_sql.lexer tables.lance_sql.expressions model.ids",
)
def sql_view_select(data: bytes) -> None:
    """The table and the limit of a view's query are those that another parser reads."""
    text = text_of(data)
    query = parse_select(text)
    tree = _parsed(text.replace("`", '"'))
    if isinstance(tree, exp.Select) and "`" not in text and query.dedup is None:
        limit = tree.args.get("limit")
        if limit is not None and isinstance(limit.expression, exp.Literal):
            assert query.limit == int(limit.expression.this), (query, repr(tree))
        tables = [table for table in tree.find_all(exp.Table) if isinstance(table.this, exp.Identifier)]
        if len(tables) == 1 and not tables[0].db and query.branch.is_main:
            assert str(query.source) == tables[0].name, (query, repr(tree))


@target(InvalidInputError, words=f"{WORDS} JOIN UNION WITH LATERAL VERSION OF `a$b` GROUP BY")
def sql_view_sources(data: bytes) -> None:
    """The tables of a query of Spark SQL are named, and so are those of a plain view."""
    text = text_of(data)
    plain_view_sources(text)
    assert all(parse_sources(text))


@target(
    InvalidInputError,
    UnsupportedOperationError,
    words=f"{WORDS} FROM GROUP BY strftime( struct_pack( arg_max( := json_extract( time_bucket( INTERVAL",
    also=(
        "sql.dialects.statement_tokens sql.dialects.formats tables.lance_sql.amplification tables.lance_sql.expressions"
    ),
)
def sql_statement(data: bytes) -> None:
    """A translated statement grows in proportion alone, and places in it lead to places of its source."""
    text = text_of(data)
    translated = translate(text)
    assert len(translated) <= MAX_GROWTH_OF_TEXT * (len(text) + 100), len(translated)
    for column in {1, len(translated) // 2, len(translated)}:
        restored = restore_places(text, f"Error at Line: 1, Column: {column}")
        assert restored.startswith("Error at Line: "), restored
    statement = parse_statement(text, MAX_LENGTH)
    assert statement.placeholders >= max(statement.numbers, default=0)


@target(
    InvalidInputError,
    words=(
        "CREATE REFRESH DROP SHOW MATERIALIZED VIEW VIEWS WITH ( full = true ) AS SELECT name > 'a' LIMIT "
        "5 auto_refresh_enabled auto_refresh_interval_seconds"
    ),
    also="tables.lance_sql.lexer sql.statements",
)
def sql_view_statement(data: bytes) -> None:
    """A statement on a view is one of its forms, or refused."""
    parsed = parse_view_statement(text_of(data), Id(), Id(("db",)), MAX_LENGTH)
    assert parsed is None or (parsed.operation and isinstance(parsed.fields, dict))


@target(InvalidInputError, PermissionDeniedError, words=f"{WORDS} hidden at flag lower( starts_with( date '2020-01-01'")
def sql_policy_filter(data: bytes) -> None:
    """A filter that may stand beside a policy's is one operand there, and names no column but those it may."""
    text = text_of(data)
    check_visible_expression(text, "filter", KINDS, frozenset({"hidden"}))
    check_filter(text, "filter", KINDS, frozenset({"hidden"}))
    tree = _parsed(f"SELECT (zzz) AND ({text})", "mysql")
    if tree is not None:
        whole = tree.expressions[0]
        assert isinstance(whole, exp.And) and isinstance(whole.left, exp.Paren), repr(tree)
        names = {column.name.lower() for column in whole.find_all(exp.Column)} - {"zzz"}
        assert "hidden" not in names and names <= {*KINDS, *KEYWORDS}, names


@target(FunctionError, words='$ . [ ] { } " : , null true [0] [-1] $.a /a/0 "a" ~1 ~0 \\u00e9')
def json_path(data: bytes) -> None:
    """The value at a path of a JSON text is the one that Python's own reader finds."""
    path, document = map(text_of, split_input(data, 2))
    steps = json_documents.parse_path(path)
    json_documents.check_depths([document])
    found = json_documents.find(document, steps)
    texts = json_documents.texts_at([document], steps)
    try:
        expected = json.loads(document, parse_constant=_no_constant)
        for step in steps:
            is_there = isinstance(expected, dict if isinstance(step, str) else list)
            if not is_there or (isinstance(step, str) and step not in expected):
                assert found is None, (document, steps)
                return
            if isinstance(step, int) and not -len(expected) <= step < len(expected):
                assert found is None, (document, steps)
                return
            expected = expected[step]
    except (ValueError, RecursionError):
        return
    assert found is not None, (document, steps)
    if not re.search(r"[eE.]|\d{16}", document):
        assert json.loads(json_documents.to_json(found)) == expected, (document, steps)
        if isinstance(expected, str):
            assert texts == [expected], (document, steps)


def _no_constant(text: str) -> Any:
    raise ValueError(text)


@target(
    RefusedError,
    words=(
        "rows >= rejected <= not_null( between( unique( foreign_key( matches( in_set( freshness( "
        "distribution( expect( warn: , ) 1 a"
    ),
)
def quality_check(data: bytes) -> None:
    """A check has a kind, and the columns that it names are texts."""
    check = parse_check(text_of(data))
    assert check.kind and all(isinstance(name, str) for name in check.columns)
