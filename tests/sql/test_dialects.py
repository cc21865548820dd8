"""Words of DuckDB and PostgreSQL answer here what docs/sql-dialects.md says, beside the two themselves."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import psycopg
import pyarrow as pa
import pytest
from lance_namespace.errors import InvalidInputError, LanceNamespaceError, UnsupportedOperationError

from tests.services.postgres import postgres_server
from tests.sql.conftest import Queries
from tests.sql.dialect_table import (
    DOCS,
    NONE,
    SAME,
    Row,
    answer_here,
    answer_there,
    connect_duckdb,
    read_rows,
    to_text,
)
from tiltyard.model.ids import Id
from tiltyard.sql.dialects.text_functions import TEXT_FUNCTIONS
from tiltyard.sql.dialects.words import REFUSED, RENAMED, TRANSLATIONS
from tiltyard.tables.lance_sql.allowed_functions import FUNCTIONS

if TYPE_CHECKING:
    from collections.abc import Iterator

ROWS = list(read_rows(DOCS.read_text("utf-8")))
VARYING = ("USING SAMPLE",)
"""Parts of examples whose answer is another one each time."""


@pytest.fixture(scope="module")
def queries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Queries]:
    made = Queries(Path(tmp_path_factory.mktemp("dialects")) / "root")
    yield made
    made.services.close()


def test_page_is_what_is_answered_here_and_in_duckdb(queries: Queries) -> None:
    in_duckdb = connect_duckdb()
    wrong = []
    for row in ROWS:
        here, there = answer_here(queries, row.statement), answer_there(in_duckdb, row.statement)
        if here != row.here or not is_as_said(row, row.duckdb, there):
            wrong.append((row.example, here, row.here, there, row.duckdb))
    assert len(ROWS) > 200
    assert not wrong, f"run `python -m tests.sql.dialect_table` and read what has changed: {wrong[:5]}"


@pytest.mark.extended
def test_page_is_what_postgresql_answers() -> None:
    with postgres_server() as server:
        url = server.new_database().replace("postgresql+psycopg", "postgresql")
        with psycopg.connect(url, autocommit=True) as database:
            database.execute("SET TIME ZONE 'UTC'")
            for row in ROWS:
                if row.postgresql != NONE:  # what one release has not, another one may have
                    there = answer_there(database.execute, row.statement)
                    assert is_as_said(row, row.postgresql, there), (row.example, there)


def is_as_said(row: Row, cell: str, answer: str) -> bool:
    return any(part in row.example for part in VARYING) or answer == (row.here if cell == SAME else cell)


def test_each_word_of_the_registry_is_refused_or_translated_to_what_is_known(queries: Queries) -> None:
    """A translation calls reviewed functions alone, has each argument once, and is no word that is refused."""
    own = {*FUNCTIONS, *RENAMED.values(), *(function.name for function in TEXT_FUNCTIONS)}
    aggregates = {"approx_distinct", "approx_percentile_cont", "count", "bool_and", "var_samp", "unnest", "cast"}
    for name, templates in TRANSLATIONS.items():
        assert name not in REFUSED
        assert name not in RENAMED
        for count, template in templates.items():
            assert template.count("{}") == count, name
            called = set(re.findall(r"(\w+)\(", re.sub("'[^']*'", "", template).lower()))
            assert {each for each in called if not each.startswith("json")} <= own | aggregates, name
    for name in REFUSED:
        with pytest.raises(UnsupportedOperationError, match=rf"The function {name} is not served: write \S"):
            queries.run(f"SELECT {name}(1)")


NAMES_THAT_ARE_NO_CALLS = (
    "SELECT year FROM (VALUES (2)) AS t(year)",
    "SELECT x FROM (VALUES (2)) AS year(x)",
    "SELECT x FROM (VALUES (2)) mode(x)",
    "WITH len(x) AS (SELECT 2), typeof(x) AS (SELECT x FROM len) SELECT x FROM typeof",
    'SELECT "mode" FROM (VALUES (2)) AS t("mode")',
    "SELECT length(', mode(x)') - 7 AS x",
    "SELECT 2 AS list",
    "SELECT CASE WHEN 3 -1 > 1 THEN 2 END",
)


@pytest.mark.parametrize("statement", NAMES_THAT_ARE_NO_CALLS)
def test_names_that_are_words_of_a_dialect_stay_names(queries: Queries, statement: str) -> None:
    assert to_text([tuple(row.values()) for row in queries.rows(statement)]) == "2"


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("SELECT ltrim(5, '')", "is a text, not Int64"),
        ("SELECT sqrt([1])", "cast|coerce"),
        ("SELECT date_diff('fortnight', now(), now())", "has no unit 'fortnight'"),
        ("SELECT date_diff('day', 1, 2)", "date_trunc does not take values of these types"),
        ("SELECT strftime(now(), '%Q')", "part '%Q'"),
        ("SELECT strftime(now(), title) FROM films", "has to be a text in the query"),
        ("SELECT to_char(now(), 'Q')", "part 'Q'"),
        ("SELECT strptime('12', '%H')", "no minutes"),
        ("SELECT regexp_extract('a', '(')", "is malformed"),
        ("SELECT regexp_extract('a', 'a', 3)", "no group 3"),
        ("SELECT regexp_extract('a', '(?P<x>a)', 1)", "named by their numbers"),
        ("SELECT arg_max(id, id + 1) FROM films", "takes a column"),
        ("SELECT string_split(title, '') FROM films", "malformed"),
        ("SELECT time_bucket(title, now()) FROM films", "takes an interval"),
        ("SELECT struct_pack(1)", "names its values"),
        ("PIVOT films ON owner", "PIVOT is not served"),
        ("SELECT count_if(id", "Expected"),
        ("SELECT year(", "Expected"),
        ("SELECT year)", "Expected"),
        ("SELECT list_value(1", "Expected"),
        ("SELECT '{\"a\":1}' ->", "brackets"),
        ("SELECT -> 'a'", "brackets"),
        ("SELECT ?| ARRAY['a']", "brackets"),
    ],
)
def test_what_cannot_be_translated_is_refused(queries: Queries, statement: str, message: str) -> None:
    with pytest.raises((InvalidInputError, UnsupportedOperationError), match=message):
        queries.run(statement)


QUERIES_OF_FROM = (
    "FROM (VALUES (2)) t(x)",
    "FROM (VALUES (2)) t(x) SELECT x",
    "WITH a AS (SELECT 1 AS x), b(x) AS (SELECT x + 1 FROM a) FROM b",
    "SELECT x FROM (VALUES (2)) t(x) WHERE x IN (FROM (VALUES (2)) u(x)) AND (x IS DISTINCT FROM 3)",
    "SELECT coalesce((FROM (VALUES (2)) t(x)), 1)",
    "SELECT 1 + x FROM (FROM (VALUES (1)) t(x)) WHERE extract(year FROM DATE '2024-01-01') = 2024",
    "FROM (VALUES (2)) t(x) EXCEPT FROM (VALUES (3)) t(x)",
)


@pytest.mark.parametrize("statement", QUERIES_OF_FROM)
def test_query_may_begin_with_from(queries: Queries, statement: str) -> None:
    assert to_text([tuple(row.values()) for row in queries.rows(statement)]) == "2"


def test_errors_are_where_the_text_has_them(queries: Queries) -> None:
    """The console marks that place, of a text whose words were translated, too."""
    for statement, place in (
        ("SELECT year(now()), '{}' -> 'a' FRM x", "Line: 1, Column: 37"),
        ("SELECT count_if(id > 1),\n  if(true, 1, 2) AS y FRM x", "Line: 2, Column: 23"),
        ("SELECT id FRM x", "Line: 1, Column: 15"),
    ):
        with pytest.raises(InvalidInputError, match=place):
            queries.run(statement)


ATTACKS = (
    "SELECT mod((INSERT INTO films VALUES (1)), 2)",
    "SELECT if((SELECT count(*) FROM films WHERE version() = 'x') > 0, 1, 2)",
    "SELECT list_value((SELECT * FROM 'files.csv'))",
    "SELECT year((SELECT input_file_name()))",
    "SELECT '{}' -> (SELECT version())",
    "FROM (FROM secrets)",
    "FROM generate_series(1, 3)",
    "SELECT count_if((SELECT true FROM secrets))",
    "SELECT if(true, repeat('x', 100000), 'y')",
    "SELECT list_value(repeat('x', 100), repeat(repeat('x', 100), 100))",
    "SELECT string_split(repeat('x', 5000), 'y')",
    "SELECT '" + "[" * 401 + "]" * 401 + "' -> 0",
    "SELECT 1; FROM films",
)


@pytest.mark.parametrize("statement", ATTACKS)
def test_new_syntax_lets_nothing_past_the_checks(queries: Queries, statement: str) -> None:
    with pytest.raises(LanceNamespaceError):
        queries.run(statement, "nobody")


def test_translation_takes_time_in_proportion(queries: Queries) -> None:
    nested = "year(" * 40 + "now()" + ")" * 40
    with pytest.raises(LanceNamespaceError):
        queries.run(f"SELECT {nested}")
    chain = "'{}'" + " -> 'a'" * 2_000
    with pytest.raises(LanceNamespaceError):
        queries.run(f"SELECT {chain}")
    brackets = "SELECT " + "(FROM " * 3_000
    with pytest.raises(LanceNamespaceError):
        queries.run(brackets)


def test_differences_and_patterns_are_those_of_duckdb_at_random(queries: Queries) -> None:
    source = random.Random(5)
    moments = [source.randrange(-(10**15), 2 * 10**15) for _ in range(300)]
    texts = ["".join(source.choice("ab1-é ") for _ in range(source.randrange(8))) for _ in range(300)]
    rows = pa.table(
        {
            "a": pa.array(moments, pa.timestamp("us")),
            "b": pa.array([None, *moments[:-1]], pa.timestamp("us")),
            "t": [None, *texts[1:]],
        }
    )
    queries.add_table(Id(("moments",)), rows)
    database = duckdb.connect()
    database.execute("SET TimeZone = 'UTC'")
    database.register("moments", rows)
    units = ("year", "quarter", "month", "day", "hour", "minute", "second", "millisecond", "microsecond")
    parts = ("year", "month", "day", "hour", "minute", "second", "quarter", "week", "dayofweek", "isodow", "dayofyear")
    for pattern in ("", "x*", "^", "$", "a|", r"\b", r"a|\B", "(?:)", "^a", r"\ba"):
        with pytest.raises(InvalidInputError, match="matches a place, or nothing"):
            queries.run(f"SELECT regexp_split_to_array(t, '{pattern}') FROM moments")
    with pytest.raises(InvalidInputError, match="malformed"):
        queries.run(f"SELECT regexp_extract(t, '{'[' * 50_000}') FROM moments")
    patterns = ("[a-b]+", "(a)(1)?", "\\\\d", "^$", "[^(]b", "(?:a|b)1", "[\\^b]")
    expressions = [
        *(f"date_diff('{unit}', a, b)" for unit in units),
        *(f"{part}(a)" for part in parts),
        "strftime(a, '%Y-%m-%d %H:%M:%S.%f %j %a %b %-d %p %I')",
        "epoch_ms(a)",
        "epoch_us(a)",
        "dayname(a)",
        "monthname(a)",
        "last_day(a)",
        "time_bucket(INTERVAL '3 hours', a)",
        "time_bucket(INTERVAL '2 months', a)",
        *(f"{name}(t, '{pattern}')" for pattern in patterns for name in ("regexp_extract", "regexp_full_match")),
        *(f"regexp_split_to_array(t, '{pattern}')" for pattern in patterns if pattern != "^$"),
        "regexp_extract(t, '(a)(1)?', 2)",
        "string_split(t, 'a')",
    ]
    wrong = []
    for expression in expressions:
        statement = f"SELECT {expression.replace(chr(92) * 2, chr(92))} AS x FROM moments"
        try:
            found = [to_text([tuple(row.values())]) for row in queries.rows(statement)]
        except LanceNamespaceError as error:
            wrong.append((statement, str(error)))
            continue
        expected = [to_text([row]) for row in database.execute(statement).fetchall()]
        if found != expected:
            wrong.append((statement, next(x for x in zip(moments, found, expected, strict=True) if x[1] != x[2])))
    assert not wrong, wrong[:4]
