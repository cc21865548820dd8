"""A session has the functions that its statement needs, also those that only its syntax implies, and no others."""

from __future__ import annotations

import datafusion
import pyarrow as pa
import pytest

from tiltyard.sql.dialects.json_functions import JSON_FUNCTIONS
from tiltyard.sql.dialects.text_functions import TEXT_FUNCTIONS
from tiltyard.sql.dialects.translation import SPECIAL
from tiltyard.sql.dialects.words import REFUSED, RENAMED, TRANSLATIONS
from tiltyard.sql.sessions import SessionFunctions, function_names
from tiltyard.sql.statements.text_checks import parse_statement
from tiltyard.tables.lance_sql.allowed_functions import FUNCTIONS

ROWS = pa.table(
    {
        "x": [" a ", "b"],
        "n": [1, 2],
        "f": [1.5, 2.5],
        "d": pa.array([1, 2], pa.date32()),
        "l": [[1, 2], [3]],
        "s": [{"a": 1}, {"a": 2}],
    }
)
QUERIES = (
    "SELECT trim(BOTH ' ' FROM x) a, trim(LEADING ' ' FROM x) b, trim(TRAILING ' ' FROM x) c FROM t ORDER BY n",
    "SELECT substring(x FROM 1 FOR 2) a, position('a' IN x) b, overlay(x PLACING 'q' FROM 1 FOR 1) c FROM t ORDER BY n",
    "SELECT extract(YEAR FROM d) a, ceil(f) b, x || 'b' c, d + INTERVAL '1 day' e FROM t ORDER BY n",
    "SELECT [n, 2] a, l[1] b, l[1:2] c, l || [4] e, n = ANY(l) g, {'a': n} h, s['a'] i FROM t ORDER BY n",
    'SELECT (n, x) a, ROW(n, x) b, array_length(l) c, "lower"(x) e FROM t ORDER BY n',
    "SELECT DISTINCT ON (n) n, x FROM t ORDER BY n, x",
    "SELECT n, grouping(n) a, count(*) b, count(*) FILTER (WHERE n > 1) c FROM t GROUP BY ROLLUP(n) ORDER BY n",
    "SELECT count(DISTINCT n) a, avg(DISTINCT f) b, median(f) c, string_agg(x, ',' ORDER BY n) e FROM t",
    "SELECT sum(f) OVER (ORDER BY n ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) a FROM t ORDER BY n",
    "SELECT n FROM t QUALIFY row_number() OVER (ORDER BY n) = 1",
    "SELECT n FROM t FULL JOIN (SELECT n + 1 AS n FROM t) u USING (n) ORDER BY n",
    "SELECT n, (SELECT count(*) FROM t u WHERE u.n = t.n) a FROM t ORDER BY n",
    "SELECT n FROM t WHERE EXISTS (SELECT 1 FROM t u WHERE u.n = t.n AND u.x ~ '^ ')",
    "SELECT unnest(l) a FROM t ORDER BY a",
    "SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY f) a FROM t",
    "SELECT n FROM t WHERE x LIKE 'b%' OR starts_with(x, ' a') ORDER BY n",
)


@pytest.fixture(scope="module")
def session() -> tuple[datafusion.SessionContext, SessionFunctions]:
    context = datafusion.SessionContext()
    context.from_arrow(ROWS, name="t")
    return context, SessionFunctions(context)


def test_statements_run_with_the_functions_that_they_name(
    session: tuple[datafusion.SessionContext, SessionFunctions],
) -> None:
    context, functions = session
    complete = datafusion.SessionContext()
    complete.from_arrow(ROWS, name="t")
    for query in QUERIES:
        functions.select(parse_statement(query, 1_000).names)
        assert len(context.udfs()) < 40
        assert context.sql(query).to_pylist() == complete.sql(query).to_pylist(), query


def test_functions_come_with_no_names_that_were_not_reviewed(
    session: tuple[datafusion.SessionContext, SessionFunctions],
) -> None:
    """A statement's own names decide what it may make of a row: no function has another that is not looked for."""
    context, functions = session
    functions.select(FUNCTIONS)
    assert len(context.udfs()) > 200
    assert set(context.udfs()) <= FUNCTIONS
    functions.select(())
    assert "repeat" not in context.udfs()


def test_function_that_was_not_reviewed_is_unknown(
    session: tuple[datafusion.SessionContext, SessionFunctions],
) -> None:
    context, functions = session
    functions.select(parse_statement("SELECT version() v, input_file_name() f", 100).names)
    with pytest.raises(Exception, match=r"(?i)invalid function 'version'"):
        context.sql("SELECT version()")


def test_suggested_functions_are_those_of_sessions() -> None:
    context = datafusion.SessionContext()
    known = {*context.udfs(), *context.udafs(), *context.udwfs(), "cast", "extract", "try_cast"}  # three are syntax
    own = {function.name for function in (*JSON_FUNCTIONS, *TEXT_FUNCTIONS)}
    assert set(function_names()) <= known | own | TRANSLATIONS.keys() | RENAMED.keys() | SPECIAL
    assert {"count", "lower", "row_number", "json_extract", "strftime", "year", "list"} <= set(function_names())
    assert REFUSED.keys().isdisjoint(function_names())
