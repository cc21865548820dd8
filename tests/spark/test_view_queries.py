"""Analysis of a view's query: whether it only reads, whether it works row by row, which columns it reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from lance_namespace.errors import InvalidInputError

from tiltyard.pipeline.datasource.dataframes import read_frame
from tiltyard.pipeline.session import isolate_session
from tiltyard.pipeline.table_location import CatalogConnection, TableLocation
from tiltyard.pipeline.views.query_analysis import analyze_query, check_reads_only, needed_columns, query_shape
from tiltyard.pipeline.writing.fragments import FragmentRows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string()), ("vector", pa.list_(pa.float32(), 2))])
NOWHERE = FragmentRows(TableLocation("/nowhere", {}, CatalogConnection("rest", ()), ("films",)), 0)


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    """A session with two tables that are never read."""
    isolated = isolate_session(spark)
    for name in ("films", "shop$orders"):
        read_frame(isolated, SCHEMA, [NOWHERE]).createOrReplaceTempView(f"`{name}`")
    return isolated


@pytest.mark.parametrize(
    "query",
    [
        "SELECT id, upper(text) FROM films WHERE id > 3 AND text LIKE 'a%'",
        "WITH a AS (SELECT * FROM films) SELECT a.id, size(vector) FROM a",
        "SELECT id, explode(split(text, ' ')) FROM films",
        "SELECT id, w FROM `shop$orders` LATERAL VIEW explode(split(text, ' ')) t AS w",
        "SELECT id FROM films UNION ALL SELECT o.id FROM `shop$orders` AS o",
        "SELECT transform(vector, x -> x + 1), CASE WHEN id > 1 THEN 'a' ELSE text END FROM films",
        "FROM films |> WHERE id > 1 |> SELECT id",
        "SELECT CAST(text AS DATE) > DATE '2026-01-01' FROM films",
    ],
)
def test_query_of_rows_one_by_one_is_told_so(session: SparkSession, query: str) -> None:
    check_reads_only(session, query, ["films", "shop$orders"])
    assert query_shape(analyze_query(session, query), query).why_all_rows == ""


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("SELECT id % 3, count(*) FROM films GROUP BY 1", "Aggregate"),
        ("SELECT sum(id) FROM films", "Aggregate"),
        ("SELECT DISTINCT id FROM films", "Distinct"),
        ("SELECT id FROM films UNION SELECT id FROM films", "Distinct"),
        ("SELECT id FROM films EXCEPT SELECT id FROM films", "Except"),
        ("SELECT a.id FROM films a JOIN films b ON a.id = b.id", "Join"),
        ("SELECT id FROM films ORDER BY id LIMIT 5", "Limit"),
        ("SELECT id FROM films TABLESAMPLE (10 PERCENT)", "Sample"),
        ("SELECT id, row_number() OVER (ORDER BY id) FROM films", "Window"),
        ("SELECT id FROM films WHERE id > (SELECT avg(id) FROM films)", "subquery"),
        ("SELECT id FROM films f WHERE EXISTS (SELECT 1 FROM films g WHERE g.id = f.id + 1)", "subquery"),
        ("SELECT id FROM films WHERE id NOT IN (SELECT id FROM `shop$orders`)", "subquery"),
        ("SELECT id FROM films UNION ALL SELECT -1L", "OneRowRelation"),
        ("SELECT id FROM films UNION ALL SELECT * FROM VALUES (-1L)", "LocalRelation"),
        ("SELECT id FROM films WHERE current_date() > DATE '2026-01-01'", "CurrentDate"),
        ("SELECT id FROM films WHERE unix_timestamp() > 0", "CurrentTimestamp"),
        ("SELECT id, rand() FROM films", "Rand"),
        ("SELECT id, uuid() FROM films", "Uuid"),
        ("SELECT monotonically_increasing_id() FROM films", "MonotonicallyIncreasingID"),
        ("SELECT id FROM films WHERE DATE 'today' > DATE '2026-01-01'", "'today'"),
    ],
)
def test_query_that_needs_all_rows_says_what_needs_them(session: SparkSession, query: str, why: str) -> None:
    check_reads_only(session, query, ["films", "shop$orders"])
    assert why in query_shape(analyze_query(session, query), query).why_all_rows


@pytest.mark.parametrize(
    ("query", "linear"),
    [
        ("SELECT id FROM films", {"films"}),
        ("SELECT a.id FROM films a JOIN `shop$orders` b USING (id) WHERE b.text > 'a'", {"films", "shop$orders"}),
        ("SELECT a.id FROM films a, `shop$orders` b", {"films", "shop$orders"}),
        ("SELECT a.id, b.text FROM films a LEFT JOIN `shop$orders` b USING (id)", {"films"}),
        ("SELECT b.id, a.text FROM films a RIGHT JOIN `shop$orders` b USING (id)", {"shop$orders"}),
        ("SELECT id FROM films LEFT SEMI JOIN `shop$orders` USING (id)", {"films"}),
        ("SELECT id FROM films LEFT ANTI JOIN `shop$orders` USING (id)", {"films"}),
        ("SELECT a.id FROM films a JOIN (SELECT DISTINCT id FROM `shop$orders`) b USING (id)", {"films"}),
        (
            """
            WITH a AS (SELECT id, text AS t FROM films)
            SELECT a.id FROM a JOIN `shop$orders` b USING (id) UNION ALL SELECT size(vector) FROM films
            """,
            {"films"},
        ),
        ("SELECT id FROM films a FULL JOIN `shop$orders` b USING (id)", set()),
        ("SELECT a.id FROM films a JOIN films b USING (id)", set()),
        ("WITH a AS (SELECT id FROM films) SELECT a.id FROM a JOIN a b USING (id)", set()),
        (
            "SELECT a.id FROM films a JOIN `shop$orders` b USING (id) UNION ALL SELECT id FROM `shop$orders`",
            {"shop$orders"},
        ),
        ("SELECT a.id FROM films a JOIN (SELECT id, sum(id) FROM `shop$orders` GROUP BY id) b USING (id)", set()),
        ("SELECT a.id, rand() FROM films a JOIN `shop$orders` b USING (id)", set()),
        ("SELECT a.id FROM films a JOIN (SELECT id FROM `shop$orders` LIMIT 3) b USING (id)", set()),
        ("SELECT id FROM films ORDER BY id", set()),
    ],
)
def test_query_is_linear_in_tables_whose_rows_are_in_rows_of_their_own(
    session: SparkSession, query: str, linear: set[str]
) -> None:
    assert query_shape(analyze_query(session, query), query).linear == linear


@pytest.mark.parametrize(
    ("query", "keys"),
    [
        ("SELECT text AS t, count(*) FROM films GROUP BY text HAVING max(id) > 3", {"films": {"text": "t"}}),
        (
            "SELECT id % 3 AS m, t, avg(id) FROM (SELECT id, text AS t FROM films) GROUP BY ALL",
            {"films": {"text": "t"}},
        ),
        ("SELECT DISTINCT id, upper(text) FROM films WHERE id > 3", {"films": {"id": "id"}}),
        (
            """
            WITH n AS (SELECT id, count(*) AS n FROM films GROUP BY id)
            SELECT b.text, n.id AS film, n FROM n JOIN `shop$orders` b USING (id)
            """,
            {"films": {"id": "film"}},
        ),
        (
            "SELECT a.id, b.text, count(*) FROM films a JOIN `shop$orders` b USING (id) GROUP BY a.id, b.text",
            {"films": {"id": "id"}, "shop$orders": {"text": "text"}},
        ),
        (
            "SELECT b.id, count(a.id) FROM films a RIGHT JOIN `shop$orders` b USING (id) GROUP BY b.id",
            {"shop$orders": {"id": "id"}},
        ),
        ("SELECT id % 3, count(*) FROM films GROUP BY 1", {"films": {}}),
        ("SELECT count(*) FROM films GROUP BY text", {"films": {}}),
        ("SELECT count(*) FROM films", {"films": {}}),
        (
            "SELECT id, count(*) FROM (SELECT id FROM films UNION ALL SELECT size(vector) FROM films) GROUP BY id",
            {"films": {}},
        ),
        ("SELECT text, count(*) FROM films GROUP BY CUBE (text)", {}),
        ("SELECT n, count(*) FROM (SELECT text, count(*) AS n FROM films GROUP BY text) GROUP BY n", {}),
        ("SELECT id, first(text) FROM films GROUP BY id", {"films": {"id": "id"}}),
        ("SELECT id, count(*) FROM films WHERE rand() < 1 GROUP BY id", {}),
        ("SELECT id, sum(id) OVER (PARTITION BY text) FROM films", {}),
    ],
)
def test_query_groups_by_columns_of_a_table_that_it_returns(
    session: SparkSession, query: str, keys: dict[str, dict[str, str]]
) -> None:
    assert query_shape(analyze_query(session, query), query).keys == keys


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT * FROM parquet.`/etc/passwd`", "reads parquet"),
        ("SELECT * FROM spark_catalog.default.films", "reads spark_catalog"),
        ("SELECT * FROM others", "reads others"),
        ("WITH a AS (SELECT * FROM others) SELECT * FROM a", "reads others"),
        ("SELECT id FROM films WHERE id IN (SELECT id FROM others)", "reads others"),
        ("SELECT (SELECT max(id) FROM others)", "reads others"),
        ("SELECT java_method('java.lang.System', 'getenv', 'HOME')", "may not call java_method"),
        ("SELECT id FROM films LIMIT REFLECT('java.lang.Math', 'abs', 3)", "may not call"),
        ("SELECT IDENTIFIER('reflect')('java.lang.System', 'getenv', 'HOME')", "may not call|IDENTIFIER"),
        ("SELECT * FROM IDENTIFIER('others')", "reads others|PlanWithUnresolvedIdentifier"),
        ("SELECT TRANSFORM(id, text) USING 'cat' AS (id, text) FROM films", "ScriptTransformation"),
        ("SELECT * FROM range(3)", "UnresolvedTableValuedFunction"),
        ("INSERT INTO films SELECT * FROM films", "InsertIntoStatement"),
        ("CREATE TABLE x AS SELECT * FROM films", "CreateTableAsSelect"),
        ("SET a = b", "SetCommand"),
        ("ADD JAR 'x.jar'", "AddJar"),
        ("SELECT ((", "cannot read"),
        ("SELECT '${env:HOME}'", r"has no '\$\{"),
        ("SELECT id AS `${system:user.name}` FROM films", r"has no '\$\{"),
        ("SELECT from_xml(text, 'a INT', map('rowValidationXSDPath', 'http://127.0.0.1/x')) FROM films", "XML"),
        ("SELECT schema_of_xml('<!DOCTYPE a SYSTEM \"file:///etc/passwd\"><a/>')", "XML"),
        ("SELECT xpath_string(text, 'a') FROM films", "XML"),
        ("SELECT current_user() FROM films", "of the worker"),
        ("SELECT input_file_name() FROM films", "of the worker"),
        ("SELECT from_json(text, 'a INT', map('mode', 'FAILFAST')) FROM films", "without options"),
        ("SELECT to_json(struct(id), map('pretty', 'true')) FROM films", "without options"),
        ("""SELECT from_json(text, '{"type":"udt","class":"a.B"}') FROM films""", "as a literal"),
        ("SELECT from_json(text, text) FROM films", "as a literal"),
        ("SELECT * FROM films VERSION AS OF 1", "RelationTimeTravel"),
        ("SELECT * FROM films TIMESTAMP AS OF '2026-01-01'", "RelationTimeTravel"),
        ("SELECT * FROM films WITH (path = '/etc/passwd')", "without options"),
        ("SELECT * FROM STREAM films", "NamedStreamingRelation"),
        ("SELECT /*+ REPARTITION(1000000000) */ id FROM films", "no hint"),
        ("EXECUTE IMMEDIATE 'SELECT 1'", "takes this for"),
        ("DECLARE VARIABLE a INT", "takes this for"),
        ("BEGIN SELECT 1; END", "takes this for"),
        ("SELECT :name", "NamedParameter"),
        ("SELECT ? FROM films", "PosParameter"),
        ("CREATE TEMPORARY FUNCTION a AS 'a.B'", "takes this for"),
        ("CREATE FUNCTION a() RETURNS INT RETURN 1", "takes this for"),
        ("WITH RECURSIVE a(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM a) SELECT n FROM a", "WITH RECURSIVE"),
    ],
)
def test_query_that_does_more_than_read_its_tables_is_refused(session: SparkSession, query: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        check_reads_only(session, query, ["films"])


GROWING = "WITH a0 AS (SELECT id FROM films)" + "".join(
    f", a{n} AS (SELECT id FROM a{n - 1} UNION ALL SELECT id FROM a{n - 1})" for n in range(1, 8)
)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT size(sequence(1, 2000000000))", "length is not bounded"),
        ("SELECT size(sequence(1, id)) FROM films", "length is not bounded"),
        ("SELECT sequence(1, least(id, 10)) FROM films", "length is not bounded"),  # backwards, if id is negative
        ("SELECT sequence(DATE '0001-01-01', DATE '9999-01-01', INTERVAL '1' SECOND)", "length is not bounded"),
        ("SELECT sequence(d, least(d, d + 2000000000), INTERVAL '1' DAY) FROM (SELECT DATE '2026-01-01' d)", "bounded"),
        ("SELECT repeat(text, 2000000000) FROM films", "repeat whose size"),
        ("SELECT repeat(text, id) FROM films", "repeat whose size"),
        ("SELECT array_repeat(id, 2000000000) FROM films", "array_repeat whose size"),
        ("SELECT space(2000000000)", "space whose size"),
        ("SELECT lpad(text, 2000000000, 'x') FROM films", "lpad whose size"),
        ("SELECT rpad(text, 2000000000) FROM films", "rpad whose size"),
        ("SELECT array_insert(vector, 2000000000, 1.0f) FROM films", "array_insert whose size"),
        ("SELECT stack(2000000000, id) FROM films", "stack whose size"),
        ("SELECT id FROM films LATERAL VIEW stack(2000000000, id) t AS x", "stack whose size"),
        ("SELECT round(1.5d, 2000000000)", "Argument 2 of round"),
        ("SELECT format_string('%2000000000d', 1)", "format as a literal"),
        ("SELECT format_number(1, 2000000000)", "digits"),
        ("SELECT approx_count_distinct(id, 0.00001) FROM films", "deviation"),
        ("SELECT window(ts, '1000 days', '1 second') FROM (SELECT now() AS ts)", "windows"),
        ("SELECT count(*) FROM films GROUP BY CUBE(id, text, 1, 2, 3, 4, 5, 6, 7, 8, 9)", "CUBE takes"),
        ("SELECT repeat(repeat(text, 10000), 10000) FROM films", "values of one row"),
        ("SELECT repeat(a, 10000) FROM (SELECT repeat(text, 10000) AS a FROM films)", "values of one row"),
        ("WITH a AS (SELECT space(10000) AS s) SELECT repeat(s, 10000) FROM a", "values of one row"),
        ("SELECT transform(sequence(1, 10000), x -> sequence(1, 10000))", "values of one row"),
        (f"SELECT repeat('{'x' * 30_000}', 100000) FROM films", "values of one row"),
        (f"SELECT array_repeat(upper(concat('{'x' * 20_000}', text)), 100) FROM films", "values of one row"),
        (f"SELECT length(a) FROM VALUES {', '.join(['(space(100000))'] * 11)} AS t(a)", "values of one row"),
        ("SELECT * FROM VALUES (transform(array(1), x -> x))", "no lambdas"),
        (f"{GROWING} SELECT id FROM a7", "more than 64 times"),
        (f"SELECT id IN ({', '.join(['1'] * 10_001)}) FROM films", "expressions"),
    ],
)
def test_query_that_makes_too_much_is_refused_before_anything_is_evaluated(
    session: SparkSession, query: str, message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        check_reads_only(session, query, ["films"])


@pytest.mark.parametrize(
    "query",
    [
        "SELECT sequence(1, 1000), sequence(DATE '2026-01-01', DATE '2026-12-31') FROM films",
        "SELECT sequence(id, least(id + 5, id * 2), 1), sequence(1, least(id, 1000), 1) FROM films",
        "SELECT sequence(d, least(d, d + 30), INTERVAL '1' DAY) FROM (SELECT DATE '2026-01-01' AS d)",
        "SELECT repeat(text, least(id, 10)), lpad(text, 20, '0'), round(id, 2), format_string('%05d', id) FROM films",
        "SELECT window(ts, '1 hour', '5 minutes') FROM (SELECT now() AS ts) GROUP BY 1",
        "SELECT from_json(text, 'a INT, b ARRAY<STRING>'), to_json(struct(id)) FROM films",
        "SELECT from_json(text, schema_of_json('{\"a\": 1}')) FROM films",
        "SELECT count(*) FROM films GROUP BY CUBE(id, text)",
        "SELECT '$' || '{' || text FROM films",
        f"SELECT repeat('ab', 1000), repeat('{'-' * 100}', 100) FROM films",
        f"SELECT length(a) FROM VALUES {', '.join(['(space(10), 1)'] * 100)} AS t(a, b)",
    ],
)
def test_query_whose_sizes_are_known_passes(session: SparkSession, query: str) -> None:
    check_reads_only(session, query, ["films"])
    analyze_query(session, query)


@pytest.mark.parametrize("keyword", ["CURRENT_USER", "USER", "SESSION_USER", "CURRENT_CATALOG", "CURRENT_DATABASE"])
def test_word_that_is_a_function_only_to_the_analyser_is_refused(session: SparkSession, keyword: str) -> None:
    query = f"SELECT {keyword} AS a FROM films"
    check_reads_only(session, query, ["films"])  # a column, as far as it is known then
    with pytest.raises(InvalidInputError, match=r"may not use Current|UNRESOLVED_COLUMN"):
        analyze_query(session, query)


@pytest.mark.parametrize("query", ["SELECT nothing FROM films", "SELECT id, text AS id FROM films"])
def test_query_that_cannot_be_planned_is_invalid_input(session: SparkSession, query: str) -> None:
    with pytest.raises(InvalidInputError, match=r"nothing|one name"):
        analyze_query(session, query)


@pytest.mark.parametrize(
    ("query", "needed"),
    [
        ("SELECT id FROM (SELECT * FROM films)", {"id"}),
        ("SELECT id FROM films WHERE text > 'a'", {"id", "text"}),
        ("SELECT a.id FROM films a JOIN films b ON a.id = size(b.vector)", {"id", "vector"}),
        ("SELECT count(*) FROM films", set()),
        ("SELECT id FROM films WHERE id > (SELECT max(length(text)) FROM `shop$orders`)", {"id", "text"}),
        ("SELECT * FROM films", {"id", "text", "vector"}),
    ],
)
def test_query_needs_the_columns_that_it_uses(session: SparkSession, query: str, needed: set[str]) -> None:
    assert needed_columns(analyze_query(session, query)) == needed
