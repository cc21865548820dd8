"""A view's query as Spark understands it: what only reads, what works row by row, and what it needs of its tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from lance_namespace.errors import InvalidInputError

from tiltyard.pipeline.fragments import Rows
from tiltyard.pipeline.places import Connection, Place
from tiltyard.pipeline.showing import shown
from tiltyard.pipeline.views.making import own_session
from tiltyard.pipeline.views.queries import check_reads_only, needed_columns, planned, why_not_by_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string()), ("vector", pa.list_(pa.float32(), 2))])
NOWHERE = Rows(Place("/nowhere", {}, Connection("rest", ()), ("films",)), 0)


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    """A session with two tables that are never read."""
    own = own_session(spark)
    for name in ("films", "shop$orders"):
        shown(own, SCHEMA, [NOWHERE]).createOrReplaceTempView(f"`{name}`")
    return own


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
    assert why_not_by_rows(planned(session, query), query) == ""


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
    assert why in why_not_by_rows(planned(session, query), query)


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
    ],
)
def test_query_that_does_more_than_read_its_tables_is_refused(session: SparkSession, query: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        check_reads_only(session, query, ["films"])


@pytest.mark.parametrize("query", ["SELECT nothing FROM films", "SELECT id, text AS id FROM films"])
def test_query_that_cannot_be_planned_is_invalid_input(session: SparkSession, query: str) -> None:
    with pytest.raises(InvalidInputError, match=r"nothing|one name"):
        planned(session, query)


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
    assert needed_columns(planned(session, query)) == needed
