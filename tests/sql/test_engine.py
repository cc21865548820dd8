"""Queries over the tables of the catalog: names, joins, searches, versions, and what is refused."""

from __future__ import annotations

import gc
import threading
import time
from typing import TYPE_CHECKING, Any

import lance
import pyarrow as pa
import pytest
from lance_namespace.errors import (
    InvalidInputError,
    LanceNamespaceError,
    NamespaceNotFoundError,
    PermissionDeniedError,
    TableNotFoundError,
    TableVersionNotFoundError,
    ThrottlingError,
    UnsupportedOperationError,
)
from msgspec import structs

from tiltyard.model.ids import Id
from tiltyard.sql.engine import infer_schema, plan_query, run

if TYPE_CHECKING:
    from tests.sql.conftest import Queries


def fail(queries: Queries, query: str) -> str:
    """What a query fails by; its frames, which hold what has run, are gone."""
    try:
        queries.rows(query)
    except InvalidInputError as error:
        return str(error)
    pytest.fail("The query did not fail.")


def wait_until_idle(queries: Queries) -> None:
    """Wait until nothing of any query runs any more."""
    deadline = time.monotonic() + 30
    while queries.services.sql_sessions.running:
        assert time.monotonic() < deadline
        gc.collect()
        time.sleep(0.01)


def test_query_joins_tables_of_several_namespaces(queries: Queries) -> None:
    query = """
        SELECT f.title, avg(r.stars) AS stars FROM films f JOIN sales.ratings r ON r.film = f.id
        GROUP BY f.title ORDER BY stars DESC, title
    """
    assert queries.rows(query) == [
        {"title": "Dune", "stars": 5.0},
        {"title": "Alien", "stars": 4.5},
        {"title": "Brazil", "stars": 3.0},
    ]


@pytest.mark.parametrize(
    ("query", "namespace"),
    [
        ("SELECT count(*) AS n FROM ratings", ("sales",)),
        ("SELECT count(*) AS n FROM sales.ratings", ()),
        ('SELECT count(*) AS n FROM "sales".ratings', ("sales",)),
        ("SELECT count(*) AS n FROM public.films LIMIT 4", ("sales",)),
        ("SELECT count(*) AS n FROM tiltyard.public.films", ()),
    ],
)
def test_query_names_resolve_from_the_default_namespace(queries: Queries, query: str, namespace: Any) -> None:
    assert queries.rows(query, namespace=namespace)[0]["n"] in (4, 6)


def test_query_of_a_nested_namespace_joins_its_names(queries: Queries) -> None:
    queries.services.store.create_namespace(("sales", "eu"), {})
    queries.server.services.store.create_namespace(("sales", "us"), {})
    location = queries.services.storage.new_location(Id(("sales", "eu", "t")))
    lance.write_dataset(pa.table({"x": [1]}), location)
    queries.services.store.insert_table(("sales", "eu", "t"), location, {})
    assert queries.rows('SELECT x FROM "sales$eu".t') == [{"x": 1}]


def test_infer_schema_runs_nothing(queries: Queries) -> None:
    schema = infer_schema(queries.context(), "SELECT id, upper(title) AS t, budget * 2 AS b FROM films", Id())
    assert schema.names == ["id", "t", "b"]
    assert schema.field("b").type == pa.float64()
    assert queries.services.sql_sessions.running == 0


def test_query_with_parameters_of_either_form(queries: Queries) -> None:
    scalars = [pa.scalar(2), pa.scalar("Fargo")]
    for query in (
        "SELECT id FROM films WHERE id < ? OR title = ? ORDER BY id -- a ?",
        "SELECT id FROM films WHERE id < $1 OR title = $2 ORDER BY id /* $9 */",
        "SELECT id FROM films WHERE id < $1 OR title = $2 AND title <> 'for $9' ORDER BY id",
    ):
        assert [row["id"] for row in queries.rows(query, parameters=scalars)] == [1, 6]
    with pytest.raises(InvalidInputError, match="2 parameters"):
        queries.rows("SELECT id FROM films WHERE id < ? OR title = ?")


def test_query_is_planned_with_the_index_of_its_filter(queries: Queries) -> None:
    queries.server.open("films").create_scalar_index("id", "BTREE")
    plan = queries.rows("EXPLAIN SELECT title FROM films WHERE id = 3")
    assert "ScalarIndexExec" in str(plan)
    assert queries.rows("SELECT title FROM films WHERE id = 3") == [{"title": "Casablanca"}]


def test_query_of_a_version_a_tag_and_a_branch(queries: Queries) -> None:
    films = queries.server.open("films")
    first = films.version
    films.tags.create("release", first)
    films.create_branch("draft")
    films.delete("id > 2")
    latest = "SELECT count(*) AS n FROM films"
    assert queries.rows(latest) == [{"n": 2}]
    for source in (
        f"table_version('films', {first})",
        "table_tag('films', 'release')",
        "table_branch('films', 'draft')",
    ):
        assert queries.rows(f"SELECT count(*) AS n FROM {source}") == [{"n": 6}]
    both = f"SELECT count(*) AS n FROM table_version('public.films', {first}) o LEFT ANTI JOIN films f ON f.id = o.id"
    assert queries.rows(both) == [{"n": 4}]
    with pytest.raises(TableVersionNotFoundError):
        queries.rows("SELECT * FROM table_version('films', 99)")


@pytest.mark.parametrize("version", [-1, -2, 2**63])
def test_version_that_none_can_be_is_refused(queries: Queries, version: int) -> None:
    for function in ("table_version('films', {})", "table_branch('films', 'main', {})"):
        with pytest.raises(InvalidInputError, match="a version from 1 on"):
            queries.rows(f"SELECT * FROM {function.format(version)}")
    with pytest.raises(InvalidInputError, match="a version from 1 on"):
        queries.rows(f"SELECT * FROM vector_duplicate_pairs('films', {version}, 'vector', 0.1)")


def test_vector_search_is_a_table_with_distances(queries: Queries) -> None:
    found = queries.rows("SELECT title, _distance FROM vector_search('films', [3.2, 0], 2) ORDER BY _distance")
    assert [row["title"] for row in found] == ["Dune", "Eraserhead"]
    joined = """
        SELECT s.title, r.stars FROM vector_search('films', [0, 0], 3, 'vector', 'budget > 1') s
        JOIN sales.ratings r ON r.film = s.id ORDER BY r.stars
    """
    assert [row["stars"] for row in queries.rows(joined)] == [3, 4, 5, 5]
    assert queries.rows("SELECT count(*) AS n FROM vector_search('films', [0, 0], 3)") == [{"n": 3}]


def test_fts_is_a_table_with_scores(queries: Queries) -> None:
    found = queries.rows("SELECT title, _score FROM fts('films', 'dune')")
    assert [row["title"] for row in found] == ["Dune"]
    assert found[0]["_score"] > 0


def test_vector_duplicate_pairs_are_a_table(queries: Queries) -> None:
    vectors = pa.array([[0.0, 0.0], [0.1, 0.0], [5.0, 0.0], [5.0, 0.0]], pa.list_(pa.float32(), 2))
    queries.add_table(Id(("images",)), pa.table({"id": range(4), "v": vectors}))
    location = queries.services.store.describe_table(("images",)).location
    fail(queries, "SELECT * FROM vector_duplicate_pairs('images', NULL, 'v', 0.1)")
    lance.dataset(location).create_index("v", "IVF_FLAT", num_partitions=1)
    pairs = "vector_duplicate_pairs('images', NULL, 'v', 0.1)"
    found = queries.rows(f"SELECT row_id_a AS a, row_id_b AS b, distance FROM {pairs} ORDER BY a")
    assert [(row["a"], row["b"]) for row in found] == [(0, 1), (2, 3)]
    assert found[1]["distance"] == 0
    assert queries.rows("SELECT count(*) AS n FROM vector_duplicate_pairs('images', 2, 'v', 0.001)") == [{"n": 1}]
    for version in (9, 2**62):
        with pytest.raises(TableVersionNotFoundError):
            queries.rows(f"SELECT * FROM vector_duplicate_pairs('images', {version}, 'v', 0.1)")
    for arguments in ("-1, 'v', 0.1", "0, 'v', 0.1", f"{2**64 - 1}, 'v', 0.1", "2, 'v', 1e400"):
        fail(queries, f"SELECT * FROM vector_duplicate_pairs('images', {arguments})")
    queries.grant("bea", "read", table=("images",))
    queries.restrict(("images",), "id < 2")
    with pytest.raises(PermissionDeniedError):
        queries.rows(f"SELECT * FROM {pairs}", "bea")


@pytest.mark.parametrize(
    "call",
    [
        "vector_duplicate_pairs('films', NULL, 'vector')",
        "vector_duplicate_pairs('films', NULL, 'vector', 'x')",
        "vector_duplicate_pairs('films', NULL, 'nope', 0.1)",
        "vector_search('films')",
        "vector_search('films', 'x')",
        "vector_search('films', [0, 0], 0)",
        "vector_search('films', [0, 0], 1000000)",
        "vector_search('films', [0, 0], 2.5)",
        "vector_search('films', [0, 0], 2, 'vector', 'repeat(title, 1000000000) = title')",
        "vector_search('', [0, 0])",
        "vector_search(NULL, [0, 0])",
        "fts('films', 3)",
        "fts('films', title)",
        "minhash_search('films', 'an old ship')",
        "minhash_search('films', 'an old ship', 'title')",
        "table_version('films', 'x')",
        "table_branch('films')",
    ],
)
def test_table_function_with_bad_arguments_is_refused(queries: Queries, call: str) -> None:
    fail(queries, f"SELECT * FROM {call}")
    wait_until_idle(queries)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELEC 1", "Expected: an SQL statement, found: SELEC at Line: 1, Column: 1."),
        ("SELECT * FROM", "Expected: identifier, found: EOF."),
        ("SELECT 'a", "Unterminated string literal at Line: 1, Column: 8."),
        ('SELECT * FROM (SELECT 1) a "b"', 'Expected: end of statement, found: "b" at Line: 1, Column: 28.'),
        ("SELECT CAST('x' AS INT)", "Cannot cast string 'x' to value of Int32 type."),
    ],
)
def test_mistake_in_a_query_is_told_without_the_names_of_its_layers(queries: Queries, query: str, message: str) -> None:
    with pytest.raises(InvalidInputError) as refusal:
        queries.run(query)
    assert str(refusal.value) == message


def test_the_greatest_of_values_that_have_no_order_is_refused(queries: Queries) -> None:
    queries.add_table(Id(("lists",)), pa.table({"tags": [[{"x": 1}], [{"x": 2}]]}))
    for query in "SELECT max(tags) FROM lists", "SELECT min(tags) OVER () FROM lists":
        with pytest.raises(UnsupportedOperationError, match="min and max do not take lists of structs"):
            queries.run(query)


def test_query_of_a_missing_table_says_so(queries: Queries) -> None:
    with pytest.raises(TableNotFoundError):
        queries.rows("SELECT * FROM nothing")
    with pytest.raises(NamespaceNotFoundError):
        queries.rows("SELECT * FROM nowhere.nothing")
    with pytest.raises(InvalidInputError, match="no table"):
        queries.rows("SELECT * FROM elsewhere.public.films")
    with pytest.raises(InvalidInputError, match="id"):
        queries.rows("SELECT idd FROM films")


READ_ONLY = (
    "CREATE TABLE x AS SELECT 1",
    "CREATE VIEW x AS SELECT 1",
    "CREATE EXTERNAL TABLE x STORED AS CSV LOCATION '/etc/passwd'",
    "CREATE SCHEMA x",
    "CREATE FUNCTION f() RETURNS int RETURN 1",
    "INSERT INTO films VALUES (1)",
    "INSERT INTO films SELECT * FROM films",
    "UPDATE films SET id = 1",
    "DELETE FROM films",
    "DROP TABLE films",
    "TRUNCATE TABLE films",
    "ALTER TABLE films ADD COLUMN x int",
    "COPY films TO '/tmp/x.csv'",
    "COPY (SELECT 1) TO 's3://bucket/x.parquet'",
    "SET datafusion.execution.batch_size = 1",
    "SET datafusion.runtime.memory_limit = '1G'",
    "RESET datafusion.execution.batch_size",
    "SHOW ALL",
    "BEGIN",
    "COMMIT",
    "PREPARE p AS SELECT 1",
    "EXECUTE p",
    "SELECT 1; SELECT 2",
    "SELECT 1; DROP TABLE films",
    "EXPLAIN INSERT INTO films SELECT * FROM films",
    "EXPLAIN ANALYZE COPY films TO '/tmp/x.csv'",
)


@pytest.mark.parametrize("statement", READ_ONLY)
def test_statement_that_does_more_than_read_is_refused(queries: Queries, statement: str) -> None:
    with pytest.raises((UnsupportedOperationError, InvalidInputError)):
        queries.rows(statement)
    assert queries.rows("SELECT count(*) AS n FROM films") == [{"n": 6}]


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM 'file:///etc/passwd'",
        'SELECT * FROM "s3://bucket/x.parquet"',
        "SELECT * FROM 'https://127.0.0.1/x.csv'",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM read_parquet('/etc/passwd')",
        "SELECT * FROM parquet_metadata('/etc/passwd')",
        "SELECT * FROM generate_series(1, 1000000000000)",
        "SELECT * FROM range(1, 1000000000000)",
        "SELECT version()",
        "SELECT arrow_metadata(id) FROM films",
        "SELECT @@version",
        "SELECT * FROM information_schema.df_settings",
        "WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n) SELECT * FROM n",
    ],
)
def test_files_urls_and_other_functions_are_refused(queries: Queries, query: str) -> None:
    with pytest.raises(LanceNamespaceError) as raised:
        queries.rows(query)
    assert raised.value.code != 18, raised.value  # no internal error
    assert "root:" not in str(raised.value)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT repeat('x', 1000000000)",
        "SELECT array_repeat(1, 1000000000)",
        "SELECT range(1, 1000000000)",
        "SELECT repeat(x, 100) FROM (SELECT repeat(title, 100) AS x FROM films)",
        'SELECT "repeat"(title, 100000) FROM films',
        "SELECT /* */repeat/* */(title, 100000) FROM films",
        "SELECT arrow_cast(NULL, 'FixedSizeList(1000000000, Int64)')",
        "WITH "
        + ", ".join(f"c{i} AS (SELECT x || x AS x FROM {f'c{i - 1}' if i else 'f'})" for i in range(20))
        + " SELECT x FROM c19",
        "WITH c0 AS (SELECT 1 AS x), "
        + ", ".join(f"c{i} AS (SELECT * FROM c{i - 1} UNION ALL SELECT * FROM c{i - 1})" for i in range(1, 30))
        + " SELECT count(*) FROM c29",
        "SELECT " + " + ".join(["id"] * 2000) + " FROM films",
        "SELECT count(*) FROM films WHERE " + " AND ".join(f"id <> {i}" for i in range(5000)),
        "SELECT " + "(" * 1000 + "1" + ")" * 1000,
        " UNION ALL ".join(["SELECT 1"] * 1000),
        "SELECT '" + "x" * 100_001 + "'",
        "SELECT $x$ a $x$",
        "SELECT 'a\\' || id FROM films",
        "SELECT /* /* */ */ 1",
        "SELECT /* 1",
        "",
        " ; ",
        "\0",
        "SELECT $100000",
    ],
    ids=lambda query: query[:30],
)
def test_statement_that_is_too_large_is_refused_before_it_is_planned(queries: Queries, query: str) -> None:
    with pytest.raises(InvalidInputError):
        queries.rows(query)


def test_query_within_the_limits_of_depth_runs_in_a_thread(queries: Queries) -> None:
    results: list[Any] = []
    query = "SELECT count(*) AS n FROM films WHERE " + " AND ".join(f"id <> {i * 10}" for i in range(200))
    deep = "SELECT " + "+".join(["id"] * 90) + " AS n FROM films WHERE id = 1"
    thread = threading.Thread(target=lambda: results.extend((queries.rows(query), queries.rows(deep))))
    thread.start()
    thread.join()
    assert results == [[{"n": 6}], [{"n": 90}]]


def test_query_that_needs_more_memory_than_it_may_have_is_refused(queries: Queries) -> None:
    settings = structs_replace(queries, sql_memory_bytes=1 << 20, sql_spill_bytes=1 << 20)
    query = "SELECT array_agg(a.title || b.title) AS x FROM films a, films b, films c, films d, films e, films f"
    assert "memory" in fail(settings, query)
    wait_until_idle(settings)


def test_query_that_spills_needs_no_more_memory(queries: Queries) -> None:
    settings = structs_replace(queries, sql_memory_bytes=32 << 20)
    crossed = "films a, films b, films c, films d, films e, films f, films g"
    query = f"SELECT a.id FROM {crossed} ORDER BY g.title || b.title || c.title || d.title, a.id"
    assert settings.run(query).num_rows == 6**7


def structs_replace(queries: Queries, **settings: Any) -> Queries:
    """Return the same catalog with other settings of its queries."""
    from dataclasses import replace

    from tiltyard.sql.sessions import SqlSessions

    changed = replace(queries.services.settings, **settings)
    other = object.__new__(type(queries))
    other.server = queries.server
    other.services = replace(queries.services, settings=changed, sql_sessions=SqlSessions(changed))
    return other


def test_result_with_more_rows_than_allowed_is_refused(queries: Queries) -> None:
    limited = structs_replace(queries, sql_max_rows=5)
    assert limited.run("SELECT * FROM films LIMIT 5").num_rows == 5
    with pytest.raises(InvalidInputError, match="5 rows"):
        limited.run("SELECT * FROM films")


def test_queries_at_once_are_limited_and_free_their_session(queries: Queries) -> None:
    limited = structs_replace(queries, sql_queries=1)
    answer = run(limited.context(), "SELECT * FROM films")
    with pytest.raises(ThrottlingError):
        limited.rows("SELECT 1")
    assert sum(batch.num_rows for batch in answer.batches) == 6
    planned = plan_query(limited.context(), "SELECT * FROM films")
    planned.close()
    planned.close()
    assert limited.rows("SELECT 1 AS x") == [{"x": 1}]


def test_query_is_stopped_by_its_deadline(queries: Queries) -> None:
    def check() -> None:
        raise InvalidInputError("late")

    ctx = structs.replace(queries.context(), check_deadline=check)
    with pytest.raises(InvalidInputError, match="late"):
        list(run(ctx, "SELECT * FROM films").batches)
