"""Filters of all kinds over columns of all types: each is answered or refused, and none ends a query's process."""

from __future__ import annotations

import datetime
import decimal
import itertools
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.access.scenes import send
from tests.flight.test_adbc import connect
from tiltyard.model.spec import operations

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.flight.conftest import SqlServer

NUMBERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64")
DAY = datetime.date(1970, 1, 2)
COLUMNS: dict[str, tuple[pa.Array, str]] = {
    **{name: (pa.array([1, 2, None], getattr(pa, name)()), "1") for name in NUMBERS},
    "flag": (pa.array([True, False, None]), "true"),
    "price": (pa.array([decimal.Decimal(1), None, None], pa.decimal128(10, 2)), "1"),
    "long_price": (pa.array([decimal.Decimal(1), None, None], pa.decimal256(50, 2)), "1"),
    "title": (pa.array(["a", "b", None]), "'a'"),
    "long_title": (pa.array(["a", "b", None], pa.large_string()), "'a'"),
    "raw": (pa.array([b"a", b"b", None]), "X'61'"),
    "long_raw": (pa.array([b"a", b"b", None], pa.large_binary()), "X'61'"),
    "pair": (pa.array([b"aa", b"bb", None], pa.binary(2)), "X'6161'"),
    "day": (pa.array([DAY, None, None]), "DATE '1970-01-02'"),
    "long_day": (pa.array([DAY, None, None], pa.date64()), "DATE '1970-01-02'"),
    "clock": (pa.array([1, 2, None], pa.time32("s")), "TIME '00:00:01'"),
    "long_clock": (pa.array([1, 2, None], pa.time64("us")), "TIME '00:00:01'"),
    "at": (pa.array([0, 2, None], pa.timestamp("us")), "TIMESTAMP '1970-01-01'"),
    "zoned": (pa.array([0, 2, None], pa.timestamp("us", "UTC")), "TIMESTAMP '1970-01-01'"),
    "took": (pa.array([1, 2, None], pa.duration("us")), "(TIMESTAMP '1970-01-02' - TIMESTAMP '1970-01-01')"),
    "items": (pa.array([[1, 2], [3], None]), "[1, 2]"),
    "tags": (pa.array([["x"], ["y"], None]), "['x']"),
    "long_items": (pa.array([[1], [2], None], pa.large_list(pa.int32())), "[1]"),
    "vector": (pa.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], pa.list_(pa.float32(), 2)), "[1.0, 2.0]"),
    "point": (pa.array([{"a": 1, "b": "x"}, {"a": 2, "b": "y"}, None]), "{'a': 1, 'b': 'x'}"),
    "points": (pa.array([[{"a": 1}], [], None]), "[{'a': 1}]"),
    "word": (pa.array(["a", "b", None]).dictionary_encode(), "'a'"),
}
FORMS = """
{c} = {v}; {c} <> {v}; {c} < {v}; {c} >= {v}; {c} IS DISTINCT FROM {v}; {c} IS NULL; NOT ({c} = {v}); {c} IN ({v}, {v})
{c} NOT IN ({v}, NULL); {c} BETWEEN {v} AND {v}; coalesce({c}, {v}) = {v}; CASE WHEN {c} = {v} THEN true ELSE false END
CASE {c} WHEN {v} THEN 1 END = 1; nullif({c}, {v}) IS NULL; ({c}, int64) = ({v}, 1)
({c}, int64) IN (({v}, 1), ({v}, 2))
struct({c}) IS NOT NULL; [{c}] = [{v}]; {c} = ANY([{v}]); array_has([{c}], {v}); CAST({c} AS VARCHAR) = '1'
TRY_CAST({c} AS INT) = 1; arrow_typeof({c}) = 'x'; {{'k': {c}}} = {{'k': {v}}}; row({c}, 1) = row({v}, 1)
map(['k'], [{c}]) IS NOT NULL; greatest({c}, {v}) = {v}; {c} IS TRUE; {c} IS UNKNOWN; -{c} = {v}; {c} + 1 > 0
{c}::VARCHAR LIKE 'a%'; arrow_cast({c}, 'Utf8View') = 'a'; arrow_cast({c}, 'Decimal256(40, 2)') = 1; {c} = {c} AND flag
"""
OTHERS = """
title LIKE 'a%'; title NOT LIKE '%a'; title ILIKE 'A%'; title SIMILAR TO 'a.*'; title ~ 'a'; title !~* 'a'
title ~~ 'a%'
title LIKE 'a!%' ESCAPE '!'; title || 'x' = 'ax'; items[1] = 1; items[1:2] = [1, 2]; point.a = 1; point['a'] = 1
points[1]['a'] = 1; items @> [1]; [1] <@ items; array_length(items) = 2; items || [3] = [1, 2, 3]; MAP {'a': 1}['a'] = 1
array_transform(items, x -> x + 1) = [2, 3]; int64 & 1 = 1; int64 | 1 = 1; int64 ^ 1 = 1; int64 << 1 = 2; int64 >> 1 = 0
int64 % 2 = 1; int64 / 0 = 1; int64 DIV 2 = 0; at + INTERVAL '1' DAY > at; at - at = INTERVAL '0' DAY; day + 1 > day
day + INTERVAL '1 month' > day; EXTRACT(YEAR FROM at) = 1970; date_trunc('day', at) = at; date_part('year', day) = 1970
at AT TIME ZONE 'UTC' IS NOT NULL; to_char(at, '%Y') = '1970'; at > now() - INTERVAL '1' DAY; day < current_date
long_clock < current_time; random() < 2; substring(title FROM 1 FOR 1) = 'a'; trim(BOTH ' ' FROM title) = 'a'
position('a' IN title) = 1; overlay(title PLACING 'x' FROM 1) = 'x'; starts_with(title, 'a'); regexp_like(title, 'a')
int64 IN (SELECT int64 FROM kinds); EXISTS (SELECT 1 FROM kinds u WHERE u.int64 = kinds.int64); NULL; int64; flag
int64 = (SELECT max(int64) FROM kinds); int64 = (SELECT max(u.int64) FROM kinds u WHERE u.title = kinds.title)
array_distance(vector, [1.0, 2.0]) < 1; cosine_distance(vector, [1.0, 2.0]) < 1; vector[1] = 1.0
make_date(1970, 1, 1) = day
encode(raw, 'hex') = '61'; md5(title) = 'x'; sha256(title) = X'61'; uuid() = title; chr(97) = title
(int64, title) < (2, 'b')
arrow_cast(int64, 'Float16') = 1; arrow_cast(items, 'FixedSizeList(2, Int64)') = [1, 2]; unnest(items) = 1; 1 = 1
INTERVAL '1' DAY = INTERVAL '1' DAY; named_struct('a', int64) = named_struct('a', 1)
(int64, (title, flag)) = (1, ('a', true))
to_timestamp(int64) = at; nvl(int64, 1) = 1; log(2, int64) = 0; round(float64, 1) = 1
concat_ws('-', title, title) = 'a-a'
string_to_array(title, ',') = ['a']; flatten([items]) = [1, 2]; title COLLATE "C" = 'a'; 1 BETWEEN int64 AND 2
_rowid = 1
count(*) > 1; row_number() OVER () = 1; took > INTERVAL '1' SECOND; zoned AT TIME ZONE 'Europe/Berlin' > at; int64 = '1'
uint64 = -1; int8 = 300; struct(items, vector) = struct(items, vector); point IN ({'a': 1, 'b': 'x'}); title = 1
json_get(title, 'a') = 'a'; union_tag(title) = 'a'; int64 > ALL (SELECT 0); date_bin(INTERVAL '1' HOUR, at) = at
"""
SHORT = ("int64", "title", "vector", "point")
"""Columns that the forms are tried over in turn; `make test-all` tries each over all columns."""


def _split(text: str) -> list[str]:
    return [part.strip() for line in text.strip().splitlines() for part in line.split("; ")]


@pytest.fixture(scope="module")
def kinds(sql: SqlServer) -> Iterator[SqlServer]:
    db = sql.lancedb()
    db.create_table("kinds", pa.table({name: values for name, (values, _) in COLUMNS.items()}))
    yield sql
    db.drop_table("kinds")


def _outcomes(sql: SqlServer, conditions: list[str]) -> dict[str, Any]:
    """Return how many rows each condition finds, or its error."""
    found: dict[str, Any] = {}
    with connect(sql) as connection, connection.cursor() as cursor:
        for condition in conditions:
            try:
                cursor.execute(f"SELECT count(*) AS n FROM kinds WHERE {condition}")
                found[condition] = cursor.fetch_arrow_table()["n"][0].as_py()
            except Exception as error:  # noqa: BLE001  # it is judged by its text
                found[condition] = str(error)
    return found


def _check(found: dict[str, Any]) -> None:
    failed = {
        condition: outcome
        for condition, outcome in found.items()
        if isinstance(outcome, str) and ("has ended" in outcome or "Internal" in outcome)
    }
    assert not failed


def test_filters_of_all_kinds_end_no_process(kinds: SqlServer) -> None:
    expected = {
        "(title, int64) = ('a', 1)": 1,
        "(int64, int64) IN ((1, 1), (1, 2))": 1,
        "(int64, (title, flag)) = (1, ('a', true))": 1,
        "{'k': title} = {'k': 'a'}": 1,
        "items @> [1]": 1,
        "[1] <@ items": 1,
        "points[1]['a'] = 1": 1,
        "vector IN ([1.0, 2.0], [1.0, 2.0])": 1,
        "flag": 1,
    }
    conditions = [
        form.format(c=name, v=COLUMNS[name][1])
        for name, form in zip(itertools.cycle(SHORT), _split(FORMS), strict=False)
    ]
    found = _outcomes(kinds, [*dict.fromkeys([*conditions, *_split(OTHERS), *expected])])
    _check(found)
    assert {condition: found[condition] for condition in expected} == expected


@pytest.mark.extended
def test_filters_over_columns_of_all_types_end_no_process(kinds: SqlServer) -> None:
    _check(
        _outcomes(
            kinds, [form.format(c=name, v=value) for name, (_, value) in COLUMNS.items() for form in _split(FORMS)]
        )
    )


def test_filter_by_a_tuple_answers_by_http_and_in_views(kinds: SqlServer) -> None:
    db = kinds.lancedb()
    db.create_view("paired", "SELECT int64 AS id, title FROM kinds WHERE (int64, title) = (1, 'a')")
    try:
        with kinds.secured.http("administrator") as http:
            counted = send(http, operations()["CountTableRows"], {"id": ["paired"]})
            assert (counted.status_code, counted.json()) == (200, 1)
        assert db.open_table("paired").search().where("id < 3").to_list() == [{"id": 1, "title": "a"}]
        joined = "SELECT p.id FROM paired p JOIN kinds k ON (k.int64, k.title) = (p.id, p.title)"
        assert db.execute_query(joined).read_all().to_pylist() == [{"id": 1}]
    finally:
        db.drop_view("paired")


def test_overflow_of_whole_numbers_is_an_error_of_the_port(kinds: SqlServer) -> None:
    with pytest.raises(Exception, match="9223372036854775808 is out of the range of Int64"):
        kinds.lancedb().execute_query("SELECT int64 + 9223372036854775807 FROM kinds").read_all()
