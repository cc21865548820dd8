"""Arithmetic of whole numbers in SQL: exact, or an error; and its types, names and plans as without overflows."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from lance_namespace.errors import InvalidInputError, UnsupportedOperationError

from tests.sql.conftest import Queries
from tiltyard.catalog.views import create_view
from tiltyard.model.ids import Id
from tiltyard.model.spec import models
from tiltyard.sql.engine import infer_schema

if TYPE_CHECKING:
    from collections.abc import Iterator

HIGH, LOW = (1 << 63) - 1, -(1 << 63)
FRAME = "RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"
TYPES = {
    "i8": (pa.int8(), -128, 127),
    "i16": (pa.int16(), -(1 << 15), (1 << 15) - 1),
    "i32": (pa.int32(), -(1 << 31), (1 << 31) - 1),
    "i64": (pa.int64(), LOW, HIGH),
    "u8": (pa.uint8(), 0, 255),
    "u16": (pa.uint16(), 0, (1 << 16) - 1),
    "u32": (pa.uint32(), 0, (1 << 32) - 1),
    "u64": (pa.uint64(), 0, (1 << 64) - 1),
}
NUMBERS = pa.table(
    {
        "id": [1, 2, 3, 4],
        **{name: pa.array([least, most, 2, None], kind) for name, (kind, least, most) in TYPES.items()},
        "f": pa.array([0.5, 1.5, -2.0, None], pa.float32()),
        "price": pa.array([1, 2, 3, None], pa.decimal128(12, 2)),
        "day": pa.array([1, 20_000, 3, None], pa.date32()),
        "at": pa.array([1, 2_000_000, 3, None], pa.timestamp("us")),
        "name": ["a", "b", "a", None],
        "vector": pa.array([[1.0, 2.0]] * 4, pa.list_(pa.float32(), 2)),
        "tags": [[1, 2], [3], [], None],
        "part": [{"n": 1}, {"n": HIGH}, {"n": 3}, None],
    }
)


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Queries]:
    queries = Queries(tmp_path_factory.mktemp("numbers"))
    queries.add_table(Id(("numbers",)), NUMBERS)
    yield queries
    queries.services.store.close()


OVERFLOWS = (
    "SELECT i64 + 1 FROM numbers",
    "SELECT i64 - 3 FROM numbers",
    "SELECT i64 * i64 FROM numbers",
    "SELECT u64 + u64 FROM numbers",
    "SELECT u64 * u64 FROM numbers",
    "SELECT u32 - u32 - u32 FROM numbers",
    "SELECT i32 * i32 FROM numbers",
    "SELECT i8 + i8 FROM numbers",
    "SELECT u16 * u16 FROM numbers",
    "SELECT -i64 FROM numbers",
    "SELECT -(-9223372036854775807 - 1)",
    "SELECT -u8 - u8 FROM numbers",
    "SELECT abs(i64) FROM numbers",
    "SELECT CAST(i64 AS INT) FROM numbers",
    "SELECT i64::SMALLINT FROM numbers",
    "SELECT sum(i64) FROM numbers WHERE id = 2 OR id = 3",
    "SELECT sum(u64) FROM numbers",
    "SELECT sum(DISTINCT i64) FROM numbers WHERE id IN (2, 3)",
    "SELECT sum(i64) FILTER (WHERE id > 1) FROM numbers",
    "SELECT sum(i64) OVER (ORDER BY id DESC) FROM numbers",
    "SELECT sum(i64) OVER (ORDER BY id ROWS BETWEEN CURRENT ROW AND 1 FOLLOWING) FROM numbers WHERE id > 1",
    "SELECT 9223372036854775807 + 1",
    "SELECT 4611686018427387904 * 2",
    "SELECT name FROM numbers GROUP BY name HAVING sum(i64) + max(i64) = max(id) + sum(i64)",
    "SELECT id FROM numbers ORDER BY i64 + 1",
    "SELECT id FROM numbers WHERE i64 + i64 > id",
    "SELECT id FROM numbers WHERE i64 * 2 IN (SELECT 1)",
    "SELECT a.id FROM numbers a JOIN numbers b ON a.i64 + b.i64 = b.i64 + a.id",
    "SELECT CASE WHEN f > 0 THEN i64 + 1 ELSE 2 END FROM numbers",
    "WITH big AS (SELECT i64 + id AS n FROM numbers) SELECT count(n + 1) FROM big WHERE n > 0",
    "SELECT (SELECT max(i64) + 1 FROM numbers)",
    "SELECT coalesce(i64 + 1, 0) FROM numbers",
    "SELECT part['n'] + 1 FROM numbers",
    "SELECT tags[1] + 9223372036854775807 FROM numbers",
    "SELECT id FROM numbers WHERE EXISTS (SELECT 1 FROM numbers b WHERE b.i64 + numbers.id > b.id)",
    "VALUES (9223372036854775807 + 1)",
    "SELECT day - day + i64 + 1 FROM numbers",
    "SELECT f + i64 * 2 FROM numbers",
    "SELECT x + 1 FROM (SELECT i64 AS x FROM numbers) y WHERE EXISTS (SELECT x + 1 FROM (SELECT f AS x FROM numbers))",
    "SELECT x + 1 FROM (SELECT f AS x FROM numbers) WHERE x IN (SELECT x + 1 FROM (SELECT i64 AS x FROM numbers))",
    "SELECT f AS i64 FROM numbers WHERE i64 + 1 <> id ORDER BY i64 + 1",
    "SELECT i64 + 1 UNION ALL SELECT 2".replace("i64", "9223372036854775807"),
)


@pytest.mark.parametrize("query", OVERFLOWS)
def test_query_whose_whole_numbers_overflow_is_an_error(numbers: Queries, query: str) -> None:
    with pytest.raises(InvalidInputError, match=r"out of the range|verflow"):
        numbers.run(query)


EXACT = (
    ("SELECT i64 + 1 - 1 AS n FROM numbers WHERE id < 3 ORDER BY id", [LOW, HIGH]),
    ("SELECT (i64 - 1) + 1 AS n FROM numbers WHERE id < 3 ORDER BY id", [LOW, HIGH]),
    ("SELECT i64 * i64 / i64 AS n FROM numbers WHERE id = 3", [2]),
    ("SELECT sum(i64) - 1 AS n FROM numbers", [0]),
    ("SELECT id AS n FROM numbers WHERE i64 + i64 > 0 ORDER BY id", [2, 3]),
    ("SELECT -i64 + 1 AS n FROM numbers WHERE id IN (2, 3) ORDER BY id", [LOW + 2, -1]),
    ("SELECT - -i32 - -1 AS n FROM numbers WHERE id = 3", [3]),
    ("SELECT f + i8 AS n FROM numbers WHERE id = 3", [0.0]),
    ("SELECT price * 2 AS n FROM numbers WHERE id = 3", [6]),
    ("SELECT day - DATE '1970-01-01' AS n FROM numbers WHERE id = 2", [20_000]),
    ("SELECT day - (day - 3) + 1 AS n FROM numbers WHERE id = 2", [4]),
    ("SELECT count(*) AS n FROM numbers WHERE at + INTERVAL '1' DAY > TIMESTAMP '1970-01-02'", [3]),
    ("SELECT i64 + NULL AS n FROM numbers WHERE id < 3", [None, None]),
    ("SELECT id + i64 AS n FROM numbers WHERE id = 4", [None]),
    ("SELECT sum(i64) AS n FROM numbers WHERE id = 4", [None]),
    ("SELECT count(*) * 2 - 1 AS n FROM numbers", [7]),
    ("SELECT sum(i64 * 0) + sum(i8) AS n FROM numbers", [1]),
    ("SELECT 2 * (3 + 4) * -1 AS n", [-14]),
    ("SELECT 7 - 2 - 1 AS n", [4]),
    ("SELECT 2 + 3 * 4 - 10 / 5 % 3 AS n", [12]),
    ("SELECT x + 1 AS n FROM (SELECT id * 10 AS x FROM numbers) WHERE x + 1 > 25 ORDER BY x - 1", [31, 41]),
    ("SELECT n.id * 2 AS n FROM numbers n WHERE n.id + 1 BETWEEN 1 + 1 AND 5 - 2 ORDER BY 1", [2, 4]),
    ("SELECT sum(id) OVER (ORDER BY id) AS n FROM numbers ORDER BY id", [1, 3, 6, 10]),
    ("SELECT max(lead) AS n FROM (SELECT lead(id) OVER (ORDER BY id) - id AS lead FROM numbers)", [1]),
    ("SELECT length(name || 'a + b') + 1 AS n FROM numbers WHERE id = 1", [7]),
    ("SELECT f AS id, f AS n FROM numbers WHERE id + 1 < 4 ORDER BY id + 1", [0.5, 1.5]),
    ("SELECT numbers.id + 1 AS n FROM numbers GROUP BY id + 1 HAVING numbers.id + 1 > 3 ORDER BY id + 1", [4, 5]),
    ("SELECT id - 1 AS \"n\" FROM numbers WHERE name = 'a' AND id * 1 < 2 + 1", [0]),
)


@pytest.mark.parametrize(("query", "expected"), EXACT)
def test_query_whose_whole_numbers_are_in_range_answers_exactly(
    numbers: Queries, query: str, expected: list[Any]
) -> None:
    assert numbers.run(query)["n"].to_pylist() == expected


def test_query_with_arithmetic_keeps_names_and_types(numbers: Queries) -> None:
    answer = numbers.run(
        "SELECT i8 + i8, i16 - i8, id * 2, sum(i32), sum(u8) OVER (ORDER BY id * 2), f + id, id / 2, -id"
        " FROM numbers WHERE id = 3 GROUP BY i8, i16, id, f, u8"
    )
    assert [(field.name, str(field.type)) for field in answer.schema] == [
        ("numbers.i8 + numbers.i8", "int8"),
        ("numbers.i16 - numbers.i8", "int16"),
        ("numbers.id * Int64(2)", "int64"),
        ("sum(numbers.i32)", "int64"),
        (
            f"sum(numbers.u8) ORDER BY [numbers.id * Int64(2) ASC NULLS LAST] {FRAME}",
            "uint64",
        ),
        ("numbers.f + numbers.id", "float"),
        ("numbers.id / Int64(2)", "int64"),
        ("(- numbers.id)", "int64"),
    ]


MIXED = (
    ("SELECT sum(CASE WHEN id > 1 THEN 0 ELSE f END) AS n FROM numbers", [0.5]),
    ("SELECT CASE WHEN id > 1 THEN i8 ELSE f END + 1 AS n FROM numbers WHERE id IN (1, 3) ORDER BY id", [1.5, 3.0]),
    ("SELECT avg(CASE WHEN id > 1 THEN 0 ELSE f END + 1) AS n FROM numbers", [1.125]),
    ("SELECT z + 1 AS n FROM (SELECT 1 AS z UNION ALL SELECT 0.5) ORDER BY 1", [1.5, 2.0]),
    ("SELECT id AS n FROM numbers WHERE CASE WHEN id > 1 THEN 1 ELSE f END * 1 < 0.9", [1]),
    ("SELECT CASE WHEN id > 1 THEN i32 ELSE id END - id * id AS n FROM numbers WHERE id = 3", [-7]),
    ("SELECT id AS n FROM numbers WHERE id = 1 UNION ALL SELECT f FROM numbers WHERE id = 1 ORDER BY 1", [0.5, 1.0]),
    ("SELECT i32 AS n FROM numbers WHERE id = 3 UNION SELECT i64 FROM numbers WHERE id = 2 ORDER BY 1", [2, HIGH]),
)


@pytest.mark.parametrize(("query", "expected"), MIXED)
def test_values_of_several_types_are_computed_and_returned_in_the_one_that_they_have_in_common(
    numbers: Queries, query: str, expected: list[Any]
) -> None:
    answer = numbers.run(query)
    assert answer["n"].to_pylist() == expected
    assert infer_schema(numbers.context(), query) == answer.schema


def test_view_of_values_of_several_types_is_computed_with(numbers: Queries) -> None:
    query = "SELECT id, CASE WHEN id > 1 THEN 0 ELSE f END AS part FROM numbers"
    create_view(numbers.context(), models.CreateViewRequest(id=["parts"], query=query))
    assert numbers.run("SELECT sum(part) + sum(part) AS n FROM parts")["n"].to_pylist() == [1.0]
    assert numbers.run("SELECT part FROM parts WHERE id = 1")["part"].to_pylist() == [0.5]
    create_view(numbers.context(), models.CreateViewRequest(id=["twice"], query="SELECT part * 2 AS n FROM parts"))
    assert numbers.run("SELECT n * 3 AS n FROM twice WHERE n > 0")["n"].to_pylist() == [3.0]


def test_order_by_several_columns_that_are_not_returned_is_planned_each_time(numbers: Queries) -> None:
    """DataFusion adds them to the projection below in any order."""
    for _ in range(20):
        query = "SELECT id AS n FROM numbers WHERE id < 4 ORDER BY i16 * 0 - i8 * 0 + i32 * 0 - u8 * 0 + id"
        assert numbers.run(query)["n"].to_pylist() == [1, 2, 3]


def test_query_with_parameters_in_arithmetic_has_their_types(numbers: Queries) -> None:
    query = "SELECT id + $1 AS n FROM numbers WHERE id * $2 = 4 AND id - ? > 0".replace("?", "$2")
    assert numbers.run(query, parameters=[pa.scalar(0.5), pa.scalar(1)])["n"].to_pylist() == [4.5]
    assert numbers.run(query, parameters=[pa.scalar(5), pa.scalar(1)])["n"].to_pylist() == [9]
    with pytest.raises(InvalidInputError, match="out of the range"):
        numbers.run(query, parameters=[pa.scalar(HIGH), pa.scalar(1)])


def test_query_with_arithmetic_that_is_only_planned_has_the_same_schema(numbers: Queries) -> None:
    query = "SELECT id + 1, sum(i8) FROM numbers GROUP BY id + 1"
    assert infer_schema(numbers.context(), query) == numbers.run(query).schema


def test_filter_with_arithmetic_is_still_read_by_the_scan(numbers: Queries) -> None:
    plan = "\n".join(numbers.run("EXPLAIN SELECT name FROM numbers WHERE id = 2 AND i8 + 1 > 3")["plan"].to_pylist())
    assert "FilterExec" not in plan
    assert numbers.run("SELECT name FROM numbers WHERE id = 2 AND i8 + 1 > 3")["name"].to_pylist() == ["b"]


def test_nesting_of_arithmetic_is_as_deep_as_that_of_others(numbers: Queries) -> None:
    nested = "abs(" * 20 + "id + 1" + ") * 1" * 20
    assert numbers.run(f"SELECT {nested} AS n FROM numbers WHERE id = 1")["n"].to_pylist() == [2]
    chain = " + ".join(["id * 2"] * 45)
    assert numbers.run(f"SELECT {chain} AS n FROM numbers WHERE id = 1")["n"].to_pylist() == [90]


def test_nesting_beyond_what_is_planned_is_an_error(numbers: Queries) -> None:
    for depth in (20, 45, 140, 160, 3_000):
        try:
            answer = numbers.run(f"SELECT {'(' * depth}id + 1{')' * depth} AS n FROM numbers WHERE id = 1")
        except (InvalidInputError, UnsupportedOperationError):
            assert depth > 100
        else:
            assert answer["n"].to_pylist() == [2]


def test_many_different_sums_are_typed_in_time_or_refused(numbers: Queries) -> None:
    columns = ", ".join(f"i32 + {n} AS c{n}" for n in range(400))
    assert numbers.run(f"SELECT {columns} FROM numbers WHERE id = 3")["c399"].to_pylist() == [401]
    columns = ", ".join(f"abs({'i32 + ' * (n % 10 + 1)}{'id + ' * (n // 10 + 1)}1) AS c{n}" for n in range(110))
    with pytest.raises(UnsupportedOperationError, match="100 different"):
        numbers.run(f"SELECT {columns} FROM numbers WHERE id = 3")


def _expression(random_: random.Random, depth: int) -> tuple[str, Any]:
    """Return an expression of the columns i64, i32, id, and a function of a row that computes it exactly."""
    if depth == 0 or random_.random() < 0.2:
        if random_.random() < 0.3:
            number = random_.choice([0, 1, 2, 3, HIGH, 1 << 32, 1 << 62])
            return str(number), lambda row: number
        name = random_.choice(["i64", "i32", "id", "numbers.id"])
        return name, lambda row: row[name.removeprefix("numbers.")]
    kind = random_.random()
    left, compute_left = _expression(random_, depth - 1)
    if kind < 0.12 and not left.isdigit():
        return f"(- {left if ' ' not in left else f'({left})'})", lambda row: _negative(compute_left(row))
    if kind < 0.24:
        return f"coalesce({left}, 7)", lambda row: 7 if (value := compute_left(row)) is None else value
    right, compute_right = _expression(random_, depth - 1)
    operator = random_.choice("+-*")

    def compute(row: dict[str, Any]) -> Any:
        a, b = compute_left(row), compute_right(row)
        if a is None or b is None:
            return None
        return a + b if operator == "+" else a - b if operator == "-" else a * b

    return f"({left} {operator} {right})", compute


def _negative(value: Any) -> Any:
    return None if value is None else -value


def test_random_arithmetic_is_exact_or_an_error(numbers: Queries) -> None:
    random_ = random.Random(44)
    rows = NUMBERS.select(["id", "i64", "i32"]).to_pylist()
    failures = answers = 0
    for _ in range(150):
        text, compute = _expression(random_, random_.randint(1, 4))
        expected = [compute(row) for row in rows]
        try:
            found = numbers.run(f"SELECT {text} AS n FROM numbers ORDER BY id")["n"].to_pylist()
        except InvalidInputError:
            failures += 1
            continue
        answers += 1
        assert found == expected, text
    assert min(failures, answers) > 20, "the expressions are of both kinds"


def test_operators_are_found_whatever_stands_beside_them(numbers: Queries) -> None:
    """Each form is planned in which an operation may stand; none of them is taken for another."""
    operations = ("id + 1", "id - 1 * 2", "(id + 1) * 2", "-id - -1")
    forms = (
        "SELECT {0} FROM numbers",
        "SELECT {0} AS a, {1} b, * FROM numbers",
        "SELECT DISTINCT {0} FROM numbers WHERE {1} IS NOT NULL AND NOT {1} = 3",
        "SELECT count(*), {0} FROM numbers GROUP BY {0} ORDER BY {0} DESC NULLS LAST LIMIT 1 + 1 OFFSET 1 - 1",
        "SELECT sum({0}), avg({1}) FROM numbers GROUP BY GROUPING SETS (({1}), ())",
        "SELECT CASE {0} WHEN {1} THEN {0} ELSE {1} END + {0} FROM numbers",
        "SELECT id FROM numbers WHERE {0} IN ({1}, 2) OR {0} BETWEEN {1} AND {1} OR name LIKE 'a' || 'b'",
        "SELECT a.id FROM numbers a JOIN numbers b USING (id) WHERE a.id > 1",
        "SELECT CAST({0} AS DECIMAL(10, 2)), ({1})::DOUBLE, EXTRACT(YEAR FROM day - 1) - 1 FROM numbers",
        "SELECT row_number() OVER (PARTITION BY {0} ORDER BY {1} ROWS 1 PRECEDING) FROM numbers",
        "SELECT substring(name FROM {0} FOR 2 - 1), [{0}, {1}], named_struct('a', {0}), tags[{0}] FROM numbers",
        "SELECT x.id FROM (SELECT {0} AS id FROM numbers) x, (VALUES ({2})) y(n) WHERE x.id - n > 0",
        "WITH q (n) AS (SELECT {0} FROM numbers) SELECT n + 1 FROM q UNION SELECT {1} FROM numbers",
        "SELECT id FROM numbers WHERE id & 1 + 1 = 2 AND id << 1 + 1 > 3 AND name || 'x' = 'ax'",
        "SELECT sum(id) FILTER (WHERE {0} > 1) OVER w FROM numbers WINDOW w AS (ORDER BY {1})",
        "SELECT first_value(id ORDER BY {0}) FROM numbers HAVING sum({1}) > 0 - 100",
        "SELECT id FROM numbers QUALIFY row_number() OVER (ORDER BY {0}) = 1 + 0",
        "EXPLAIN SELECT {0} FROM numbers",
    )
    for form, (first, second) in itertools.product(forms, itertools.permutations(operations, 2)):
        numbers.run(form.format(first, second, "3 - 1"))
