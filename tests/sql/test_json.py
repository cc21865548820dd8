"""Functions and operators on JSON: beside DuckDB and PostgreSQL at random, over texts and over Lance's type JSON."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pyarrow as pa
import pytest
from lance_namespace.errors import InvalidInputError, LanceNamespaceError

from tests.services.postgres import postgres_server
from tests.sql.conftest import Queries
from tiltyard.catalog.views import create_view
from tiltyard.model.ids import Id
from tiltyard.model.spec import models
from tiltyard.sql.dialects.json_documents import MAX_DEPTH, MAX_STEPS, is_json

KEYS = ("a", "b", "a b", "é", "0", 'q"')
ROWS = 200


def random_value(source: random.Random, depth: int = 0) -> Any:
    """A JSON value whose numbers are written alike by all engines."""
    kind = source.randrange(9 if depth < 3 else 6)
    if kind >= 7:
        return {source.choice(KEYS): random_value(source, depth + 1) for _ in range(source.randrange(4))}
    if kind == 6:
        return [random_value(source, depth + 1) for _ in range(source.randrange(4))]
    return (None, True, False, source.randrange(-5, 100), source.choice(("", "x", 'a "q" \\ \n', "é")), 1.5)[kind]


def documents() -> list[str | None]:
    source = random.Random(11)
    written = [json.dumps(random_value(source), indent=source.choice((None, 1))) for _ in range(ROWS - 1)]
    return [*written, None]


DOCUMENTS = documents()


@pytest.fixture(scope="module")
def queries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Queries]:
    made = Queries(Path(tmp_path_factory.mktemp("json")) / "root")
    ids = pa.array(range(ROWS), pa.int64())
    made.add_table(Id(("texts",)), pa.table({"id": ids, "doc": DOCUMENTS}))
    made.add_table(Id(("typed",)), pa.table({"id": ids, "doc": pa.array(DOCUMENTS, pa.json_())}))
    made.grant("reader", "read", namespace=())
    yield made
    made.services.close()


SHARED = (
    *(f"doc ->> '{key}'" for key in ("a", "a b", "é", "0")),
    *(f"doc -> '{key}'" for key in ("a", "b")),
    "doc -> 0",
    "doc ->> -1",
    "doc -> 'a' -> 'b' ->> 0",
    "(doc -> 'a') ->> 'b'",
)
OF_DUCKDB = (
    "json_extract(doc, '$.a.b[0]')",
    "json_extract(doc, '$.\"a b\"')",
    "json_extract(doc, '$[#-1].a')",
    "json_extract(doc, '/a/b')",
    "json_extract(doc, '$')",
    "json_extract(doc, 1)",
    "json_extract_string(doc, '$.b')",
    "json_extract_string(doc, '$[0]')",
    "json_exists(doc, '$.a')",
    "json_array_length(doc)",
    "json_array_length(doc, '$.a')",
    "json_keys(doc)",
    "json_keys(doc, '$.a')",
    "json_type(doc)",
    "json_type(doc, '$.a')",
    "json_valid(doc)",
    "json(doc)",
    *(f"json_contains(doc, '{wanted}')" for wanted in ("1", '"x"', "[]", "{}", '{"a":null}', "[true]", "1.5")),
)
OF_POSTGRESQL = (
    "doc #> '{a,b}'",
    "doc #>> '{a,0}'",
    "jsonb_typeof(doc)",
    *(f"doc @> '{wanted}'" for wanted in ("1", '"x"', "[]", "{}", '{"a":null}', "[true]", '{"a":{}}', '{"b":[]}')),
    "doc ? 'a'",
    "doc ? 'x'",
    "doc ?| ARRAY['a', 'b']",
    "doc ?& ARRAY['a', 'b']",
)


def meaning(value: Any) -> Any:
    """What a cell says: JSON texts are the same with other spaces and another order of keys."""
    if isinstance(value, str):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return [meaning(each) for each in value] if isinstance(value, list) else value


def answers(queries: Queries, expression: str, table: str) -> list[Any]:
    rows = queries.rows(f"SELECT {expression} AS x FROM {table} ORDER BY id")
    return [meaning(row["x"]) for row in rows]


@pytest.mark.parametrize("table", ["texts", "typed"])
def test_answers_are_those_of_duckdb(queries: Queries, table: str) -> None:
    database = duckdb.connect()
    database.execute("CREATE TABLE texts (id BIGINT, doc JSON)")
    database.executemany("INSERT INTO texts VALUES (?, ?)", list(enumerate(DOCUMENTS)))
    wrong = []
    for expression in (*SHARED, *OF_DUCKDB):
        expected = database.execute(f"SELECT {expression} FROM texts ORDER BY id").fetchall()
        found = answers(queries, expression, table)
        if table == "typed" and expression.startswith("json_keys"):  # Lance sorts them
            found, expected = (
                [each and sorted(each, key=str) for each in found],
                [(e and sorted(e, key=str),) for (e,) in expected],
            )
        differing = list(zip(DOCUMENTS, found, (meaning(e) for (e,) in expected), strict=True))
        wrong += [(expression, *each) for each in differing if each[1] != each[2]][:1]
    assert not wrong, wrong[:3]


@pytest.mark.extended
def test_answers_are_those_of_postgresql(queries: Queries) -> None:
    with postgres_server() as server:
        url = server.new_database().replace("postgresql+psycopg", "postgresql")
        with psycopg.connect(url, autocommit=True) as database, database.cursor() as cursor:
            cursor.execute("CREATE TABLE texts (id BIGINT, doc JSONB, plain JSON)")
            cursor.executemany("INSERT INTO texts VALUES (%s, %s, %s)", [(n, d, d) for n, d in enumerate(DOCUMENTS)])
            for expression in (*SHARED, *OF_POSTGRESQL):
                # a position in a number or a text is null in JSON, and the value itself in JSONB
                theirs = expression.replace("doc", "plain") if expression in SHARED else expression
                cursor.execute(f"SELECT ({theirs})::text FROM texts ORDER BY id")
                expected = [meaning(value) for (value,) in cursor.fetchall()]
                assert answers(queries, expression, "texts") == expected, expression


def test_words_of_lances_filters_mean_the_same(queries: Queries) -> None:
    """Where both have a word: a filter of QueryTable, on Lance's type, and a WHERE find the same rows."""
    dataset = queries.server.open("typed")
    for condition in (
        "json_extract(doc, '$.a') = '1'",
        "json_extract(doc, '$.a.b') IS NOT NULL",
        "json_exists(doc, '$.a')",
        "json_array_length(doc, '$.a') = 2",
        "json_array_contains(doc, '$.a', 'x')",
    ):
        found = dataset.to_table(columns=["id"], filter=condition)["id"].to_pylist()
        assert [row["id"] for row in queries.rows(f"SELECT id FROM typed WHERE {condition} ORDER BY id")] == found


BROKEN = ('{"a": 1', "", "x", "{'a': 1}", '{"a": 01}', "[1, 2", '{"a": 1} 2', '"\x01"', "NaN")


@pytest.mark.parametrize("text", BROKEN)
def test_text_that_is_no_json_is_an_error_unless_it_is_asked_for(queries: Queries, text: str) -> None:
    document = f"'{text.replace(chr(39), chr(39) * 2)}'"
    for expression in (
        "{} -> 'a'",
        "{} -> 0",
        "json_extract({}, '$')",
        "json_keys({})",
        "{} @> '1'",
        "json_typeof({})",
    ):
        with pytest.raises(InvalidInputError, match=r"no JSON .*json_valid.*TRY_CAST"):
            queries.run(f"SELECT {expression.format(document)}")
    query = f"SELECT json_valid(t) AS v, TRY_CAST(t AS JSON) AS c, CASE WHEN json_valid(t) THEN t -> 'a' END AS a FROM (SELECT {document} AS t)"  # noqa: E501
    assert queries.rows(query) == [{"v": False, "c": None, "a": None}]


def test_json_is_bounded(queries: Queries) -> None:
    for document, message in (
        ("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), "deeper than"),
        ('{"a":' * (MAX_DEPTH + 1) + "1" + "}" * (MAX_DEPTH + 1), "deeper than"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            queries.run(f"SELECT '{document}' -> 'b'")
        assert queries.rows(f"SELECT json_valid('{document}') AS v") == [{"v": False}]
    with pytest.raises(InvalidInputError, match=f"{MAX_STEPS} at most"):
        queries.run(f"SELECT json_extract('{{}}', '${'.a' * (MAX_STEPS + 1)}')")
    for unending in ("[" * MAX_DEPTH + '["' + '\\"' * 200_000, '{"a' + "[" * 200_000):
        started = time.monotonic()
        assert not is_json(unending)
        assert time.monotonic() - started < 5
    many = ",".join(str(number) for number in range(2_000))
    with pytest.raises(InvalidInputError, match="compare less of it"):
        queries.run(f"SELECT '[{many}]' @> '[{many}]'")
    for path in ("$.", "$a", "$[x]", "$[", "$.a[*]", "$..a", "$[99999999999999999999]"):
        with pytest.raises(InvalidInputError, match=r"The path .* (is malformed|has a wildcard)"):
            queries.run(f"SELECT json_extract('{{}}', '{path}')")


def test_operands_are_those_of_postgresql_or_want_brackets(queries: Queries) -> None:
    one = """'{"a": {"b": 2}, "l": [1, 2], "n": 3}'"""
    for expression, expected in (
        (f"{one} -> 'a' -> 'b' = '2'", True),
        (f"NOT {one} -> 'n' = '2'", True),
        (f"{one} ->> 'n' || 'x'", "3x"),
        (f"({one} ->> 'n')::INT + 1", 4),
        (f"({one} ->> 'n')::INT - 1 > 1 AND {one} -> 'x' IS NULL", True),
        (f"({one} -> 'l') -> (0 + 1)::TEXT", None),
        (f"CASE WHEN {one} ->> 'n' IN ('3') THEN 1 END", 1),
        (f"count(*) FILTER (WHERE {one} ->> 'n' = '3')", 1),
        (f"sum(({one} ->> 'n')::BIGINT)", 3),
        (f"CAST({one} AS JSON) -> 'l' ->> -1", "2"),
        (f"{one}::json::text ->> 'n'", "3"),
        (f"json_extract_path({one}, 'a', 'b')", "2"),
    ):
        assert queries.rows(f"SELECT {expression} AS x")[0]["x"] == expected, expression
    for expression in (
        f"1 + {one} -> 'n'",
        f"{one} -> 'n' + 1",
        f"'x' || {one} ->> 'n'",
        f"CASE WHEN true THEN {one} END -> 'n'",
    ):
        with pytest.raises(InvalidInputError, match="brackets"):
            queries.run(f"SELECT {expression}")
    with pytest.raises(InvalidInputError, match=r"is a text, not Int64"):
        queries.run("SELECT doc -> id FROM texts")


def test_parameters_are_documents_keys_and_conditions(queries: Queries) -> None:
    values = [pa.scalar('{"a": {"b": 1}}'), pa.scalar("a"), pa.scalar("b")]
    assert queries.rows("SELECT ? -> ? ->> ? AS x", parameters=values) == [{"x": "1"}]
    assert queries.rows("SELECT $1 -> $2 ->> $3 AS x", parameters=values) == [{"x": "1"}]
    assert queries.rows("SELECT $1 ? $2 AS x, $1 ?? $3 AS y", parameters=values) == [{"x": True, "y": False}]
    found = queries.rows("SELECT count(*) AS n FROM texts WHERE doc ? 'a' AND id > ?", parameters=[pa.scalar(-1)])
    assert found == queries.rows("SELECT count(*) AS n FROM texts WHERE json_exists(doc, '$.a')")
    with pytest.raises(InvalidInputError, match="is a text, not Int64"):
        queries.run("SELECT doc -> ? FROM texts", parameters=[pa.scalar(1)])


def test_policies_lie_beneath(queries: Queries) -> None:
    """A hidden row's text is not read, so that it makes no error; a masked document is what the mask leaves."""
    rows = pa.table({"id": [1, 2], "owner": ["ann", "bob"], "doc": ['{"a": "open"}', "broken"]})
    queries.add_table(Id(("owned",)), rows)
    queries.restrict(("owned",), "owner = 'ann'")
    query = "SELECT doc ->> 'a' AS x FROM owned WHERE doc ? 'a'"
    assert queries.rows(query, "reader") == [{"x": "open"}]
    with pytest.raises(InvalidInputError, match="no JSON"):
        queries.run(query)
    queries.restrict(("owned",), None, doc="null")
    assert queries.rows("SELECT doc ->> 'a' AS x FROM owned", "reader") == [{"x": None}] * 2
    queries.restrict(("typed",), "id < 9", doc="null")
    assert queries.rows("SELECT count(doc -> 'a') AS n, count(*) AS r FROM typed", "reader") == [{"n": 0, "r": 9}]
    queries.restrict(("typed",), "id < 9")
    mine, all_ = (
        queries.rows("SELECT id, doc -> 'a' AS x FROM typed WHERE id < 9 ORDER BY id", who) for who in ("reader", None)
    )
    assert mine == all_


def test_views_are_made_of_them(queries: Queries) -> None:
    query = "SELECT id, doc ->> 'a' AS a, count_if(id > 5) OVER () AS n FROM typed WHERE doc ? 'a'"
    create_view(queries.context(), models.CreateViewRequest(id=["having_a"], query=query))
    expected = queries.rows(query)
    assert expected
    assert queries.rows("FROM having_a") == expected
    assert queries.rows("SELECT id FROM having_a WHERE a ->> 'b' IS NULL AND json_valid(a) = false") is not None


def test_columns_of_json_are_texts_of_json(queries: Queries) -> None:
    table = queries.run("SELECT doc, id FROM typed WHERE id < 3 ORDER BY id")
    assert table.schema.field("doc").type == pa.json_()
    assert [value and json.loads(value) for value in table["doc"].to_pylist()] == [
        json.loads(d or "") for d in DOCUMENTS[:3]
    ]
    plan = queries.rows("EXPLAIN SELECT doc FROM typed WHERE id > 1 AND doc ? 'a'")[1]["plan"]
    assert "filter_expr=(id > 1)" in plan
    with pytest.raises(LanceNamespaceError):
        queries.run("SELECT doc FROM typed WHERE doc > 5")
