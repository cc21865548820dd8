"""Point queries: what they recognize, and that their answers are DataFusion's, with its types."""

from __future__ import annotations

import decimal
from typing import TYPE_CHECKING, Any

import lance
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lance_namespace.errors import UnsupportedOperationError

from tests.sql.conftest import Queries
from tiltyard.model.ids import Id
from tiltyard.sql import point_queries
from tiltyard.sql.engine import run
from tiltyard.sql.point_queries import open_point_query, parse_point_query
from tiltyard.sql.statements.text_checks import write_parameters

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROWS = 300
INDEXED = {
    "id": pa.array([None, *range(ROWS - 1)], pa.int64()),
    "tiny": pa.array([None if n % 7 == 0 else n % 100 - 50 for n in range(ROWS)], pa.int8()),
    "count": pa.array([n % 200 for n in range(ROWS)], pa.uint8()),
    "Mixed": pa.array([n % 50 for n in range(ROWS)], pa.int32()),
    "title": pa.array([None if n % 9 == 0 else f"it's {n % 60}" for n in range(ROWS)], pa.string()),
    "long": pa.array([f"{n % 60}" for n in range(ROWS)], pa.large_string()),
    "same": pa.array([1] * ROWS, pa.int64()),
    "score": pa.array([n / 2 for n in range(ROWS)], pa.float64()),
}
OTHERS = {
    "top": pa.array(range(ROWS), pa.int16()),
    "true": pa.array(range(ROWS), pa.int64()),
    "user": pa.array(range(ROWS), pa.int64()),
    "day": pa.array(range(ROWS), pa.date32()),
    "vector": pa.array([[float(n), 0.0] for n in range(ROWS)], pa.list_(pa.float32(), 2)),
    "info": pa.array([{"a": n, "b": None} for n in range(ROWS)], pa.struct([("a", pa.int32()), ("b", pa.string())])),
    "kind": pa.array(["x", None, "y"] * (ROWS // 3), pa.string()).dictionary_encode(),
    "two words": pa.array(range(ROWS), pa.int64()),
}


@pytest.fixture(scope="module")
def points(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Queries]:
    queries = Queries(tmp_path_factory.mktemp("points") / "root")
    columns = INDEXED | OTHERS
    fields = [pa.field(name, column.type, name != "Mixed", {"note": name}) for name, column in columns.items()]
    schema = pa.schema(fields, {"of": "points"})
    dataset = queries.server.create("points", pa.table(list(columns.values()), schema), data_storage_version="2.1")
    for name in INDEXED:
        dataset.create_scalar_index(name, "BITMAP" if name == "count" else "BTREE")
    yield queries
    queries.services.close()


def answer(queries: Queries, query: str, parameters: Sequence[pa.Scalar] = (), reader: str | None = None) -> Any:
    """Return the rows of a point query as a table; None for a query that is left to DataFusion."""
    ctx = queries.context(reader)
    parsed = parse_point_query(query, Id(), Id(), write_parameters(parameters))
    opened = None if parsed is None else open_point_query(ctx, parsed)
    batches = None if opened is None else opened.read(ctx)
    return None if opened is None or batches is None else pa.Table.from_batches(batches, opened.schema)


def assert_answer_is_that_of_datafusion(queries: Queries, query: str, parameters: Sequence[pa.Scalar] = ()) -> bool:
    """Check a query's answer, if it has one; return whether it has."""
    table = answer(queries, query, parameters)
    if table is None:
        return False
    response = run(queries.context(), query, Id(), parameters)
    reference = pa.Table.from_batches(list(response.batches), response.schema)
    assert table.schema.equals(reference.schema, check_metadata=True), query
    rows, expected = (sorted(map(str, each.to_pylist())) for each in (table, reference))
    assert len(rows) == len(expected), query
    if " limit " not in query.lower():
        assert rows == expected, query
    return True


PLAIN = ["id", "tiny", "count", '"Mixed"', "title", "long", "score"]
NAMES = st.one_of(
    st.sampled_from(PLAIN),
    st.sampled_from(["ID", '"id"', "mixed", "same", "day", "vector", "info", "kind", '"two words"']),
    st.sampled_from(["top", '"top"', "true", '"true"', "user", "missing", "distinct", "_rowid", "null"]),
)
VALUES = st.one_of(
    st.integers(-60, ROWS + 5).map(str),
    st.sampled_from(["127", "-128", "128", "255", "256", "-1", "-0", "007", str(2**31), str(2**40), "1.0", "NULL"]),
    st.sampled_from(["'it''s 7'", "'7'", "''", "''''", "'no'", "'x\\y'", "id", "'2020-01-01'", "1 + 1", "(1)"]),
)


@settings(max_examples=80, deadline=None)
@given(
    columns=st.one_of(st.just(["*"]), st.lists(NAMES, min_size=1, max_size=3)),
    column=st.one_of(st.sampled_from(PLAIN), NAMES),
    value=VALUES,
    end=st.sampled_from(
        ["", "", "", ";", " LIMIT 0", " limit 2", " LIMIT 1000", " ORDER BY id", " AND tiny = 1", " -- x"]
    ),
    space=st.sampled_from([" ", "\n  "]),
)
def test_answers_are_those_of_datafusion(
    points: Queries, columns: list[str], column: str, value: str, end: str, space: str
) -> None:
    query = f"SELECT {', '.join(columns)}{space}FROM points WHERE {column} = {value}{end}"
    assert_answer_is_that_of_datafusion(points, query)


@pytest.mark.parametrize(
    ("query", "values"),
    [
        ("SELECT * FROM points WHERE id = 7", ()),
        ("select ID, \"Mixed\", \"top\" from PUBLIC.points where TITLE = 'it''s 7';", ()),
        ('SELECT id FROM points WHERE "Mixed" = 7', ()),
        ("SELECT id, tiny FROM points WHERE tiny = -50 LIMIT 2", ()),
        ("SELECT id FROM points WHERE count = 199", ()),
        ("SELECT info, vector, day, score FROM points WHERE long = '8'", ()),
        ("SELECT title FROM points WHERE id = ?", (pa.scalar(8),)),
        ("SELECT title FROM points WHERE id = $1", (pa.scalar(8, pa.int16()),)),
        ("SELECT id FROM points WHERE title = ?", (pa.scalar("it's 8"),)),
        ("SELECT id FROM points WHERE id = 1000000", ()),
    ],
)
def test_point_query_is_answered(points: Queries, query: str, values: Any) -> None:
    assert assert_answer_is_that_of_datafusion(points, query, values)


@pytest.mark.parametrize(
    ("query", "values"),
    [
        ("SELECT id + 1 FROM points WHERE id = 7", ()),
        ("SELECT id FROM points WHERE id = 7 OR true", ()),
        ("SELECT id FROM points WHERE tiny = 128", ()),
        ("SELECT id FROM points WHERE count = -1", ()),
        ("SELECT id FROM points WHERE id = '7'", ()),
        ("SELECT id FROM points WHERE title = 7", ()),
        ("SELECT id FROM points WHERE score = 7", ()),
        ("SELECT id FROM points WHERE top = 7", ()),
        ("SELECT id, id FROM points WHERE id = 7", ()),
        ("SELECT id FROM nowhere WHERE id = 7", ()),
        ("SELECT table_name FROM information_schema.tables WHERE table_name = 'points'", ()),
        ("SELECT id FROM points WHERE id = ?", ()),
        ("SELECT id FROM points WHERE id = 7", (pa.scalar(1),)),
        ("SELECT id FROM points WHERE id = ?", (pa.scalar(None, pa.int64()),)),
        ("SELECT id FROM points WHERE id = ?", (pa.scalar(7.0),)),
        ("SELECT id FROM points WHERE id = ?", (pa.scalar(True),)),
        ("SELECT id FROM points WHERE id = ?", (pa.scalar(decimal.Decimal(7)),)),
        ("SELECT id FROM points WHERE same = 1", ()),
        (f"SELECT id FROM points WHERE id = {' ' * point_queries.MAX_LENGTH}7", ()),
    ],
)
def test_other_query_is_left_to_datafusion(points: Queries, query: str, values: Any) -> None:
    assert answer(points, query, values) is None


def test_table_of_another_database_or_namespace_is_named_as_in_any_query() -> None:
    for query, table in (
        ("SELECT a FROM t WHERE a = 1", ("shop", "eu", "t")),
        ("SELECT a FROM public.t WHERE a = 1", ("shop", "t")),
        ('SELECT a FROM "sales$eu"."T" WHERE a = 1', ("shop", "sales", "eu", "T")),
    ):
        parsed = parse_point_query(query, Id(("eu",)), Id(("shop",)), b"")
        assert parsed is not None
        assert parsed.table == table


def test_reader_without_a_grant_or_within_policies_is_left_to_datafusion(points: Queries) -> None:
    query = "SELECT id FROM points WHERE id = 7"
    assert answer(points, query, reader="ann") is None
    points.grant("ann", "read", table=["points"])
    assert answer(points, query, reader="ann").to_pylist() == [{"id": 7}]
    points.restrict(["points"], "id > 7")
    assert answer(points, query, reader="ann") is None


def test_rows_that_are_many_large_or_not_indexed_are_left_to_datafusion(
    points: Queries, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = "SELECT id FROM points WHERE long = '8'"
    assert len(answer(points, query)) == ROWS // 60
    monkeypatch.setattr(point_queries, "MAX_ROWS", 4)
    assert answer(points, query) is None
    assert len(answer(points, f"{query} LIMIT 4")) == 4
    monkeypatch.undo()
    monkeypatch.setattr(point_queries, "MAX_BYTES", 8)
    assert answer(points, query) is None
    monkeypatch.undo()
    points.server.create("fresh", pa.table({"id": [1]})).create_scalar_index("id", "BTREE")
    assert len(answer(points, "SELECT id FROM fresh WHERE id = 1")) == 1
    points.server.open("fresh").insert(pa.table({"id": [2]}))
    assert answer(points, "SELECT id FROM fresh WHERE id = 1") is None


def test_columns_that_lance_stores_otherwise_are_left_to_datafusion(points: Queries) -> None:
    schema = pa.schema([("id", pa.int64()), lance.blob_field("film"), ("info", pa.json_())])
    info = pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a": 1}']))
    rows = pa.table([pa.array([1]), lance.blob_array([b"film"]), info], schema=schema)
    points.server.create("blobs", rows, data_storage_version="2.2").create_scalar_index("id", "BTREE")
    assert len(answer(points, "SELECT id FROM blobs WHERE id = 1")) == 1
    for columns in ("*", "film", "info"):
        assert answer(points, f"SELECT {columns} FROM blobs WHERE id = 1") is None
    assert points.rows("SELECT id, film IS NULL AS lost FROM blobs") == [{"id": 1, "lost": False}]
    with pytest.raises(UnsupportedOperationError, match="'film' holds blobs"):
        points.rows("SELECT * FROM blobs WHERE id > 0")
