"""As-of joins: each left row with the last right row of its keys, against a model in Python and real tables."""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from lance_namespace.errors import InvalidInputError, TableColumnNotFoundError

import tiltyard
from tests.services.cases import check_each
from tests.services.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

EVENTS = "user string, moment bigint, event int"
VALUES = "user string, known bigint, value int, note string"
SKEWED = ["hot"] * 12 + ["a", "b", "c", None]
"""Keys of which most rows have one."""
Row = tuple[Any, ...]


@pytest.fixture(scope="module")
def lake(spark: SparkSession, shared_server: ServerProcess) -> tiltyard.Lake:
    return tiltyard.connect(shared_server.url)


def model(events: list[Row], values: list[Row], how: dict[str, Any]) -> list[Row]:
    """Return what a join is to return, from the definition: by looking through each key's rows in order."""
    by_key: dict[str, list[Row]] = {}
    for row in values:
        if row[0] is not None and row[1] is not None:
            by_key.setdefault(row[0], []).append(row)
    for rows in by_key.values():
        rows.sort(key=lambda row: (row[1], row[2], row[3]))
    is_forward, allows_exact = how.get("direction") == "forward", how.get("allow_exact", True)
    joined = []
    for user, moment, event in events:
        rows = by_key.get(user, []) if moment is not None else []
        times = [row[1] for row in rows]
        if not is_forward:
            place = (bisect_right if allows_exact else bisect_left)(times, moment or 0) - 1
        else:
            place = (bisect_left if allows_exact else bisect_right)(times, moment or 0)
            place = bisect_right(times, times[place]) - 1 if place < len(rows) else -1
        found = rows[place] if place >= 0 else None
        if found is not None and abs(found[1] - moment) > how.get("tolerance", 10**9):
            found = None
        joined.append((user, moment, event, *((None,) * 3 if found is None else found[1:])))
    return joined


def some_rows(seed: int) -> tuple[list[Row], list[Row]]:
    """Return events and values: few keys, most rows of one, times that repeat, and nulls."""
    chance = random.Random(seed)

    def time() -> int | None:
        return None if chance.random() < 0.03 else chance.randrange(150)

    events = [(chance.choice(SKEWED), time(), number) for number in range(300)]
    values = [(chance.choice(SKEWED), time(), chance.randrange(9), f"n{chance.randrange(9)}") for _ in range(200)]
    return events, values


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"allow_exact": False},
        {"direction": "forward"},
        {"direction": "forward", "allow_exact": False},
        {"tolerance": 4},
        {"tolerance": 0, "direction": "forward"},
    ],
    ids=str,
)
def test_join_is_what_the_definition_says(how: dict[str, Any], lake: tiltyard.Lake, spark: SparkSession) -> None:
    events, values = some_rows(len(str(how)))
    frames = spark.createDataFrame(events, EVENTS), spark.createDataFrame(values, VALUES)
    joined = lake.as_of_join(*frames, on="user", left_time="moment", right_time="known", **how)
    assert joined.columns == ["user", "moment", "event", "known", "value", "note"]
    assert sorted(map(tuple, joined.collect()), key=lambda row: row[2]) == model(events, values, how)


def test_sides_without_rows_or_matches_keep_the_left_rows(lake: tiltyard.Lake, spark: SparkSession) -> None:
    events, values = some_rows(1)
    full, none = spark.createDataFrame(events, EVENTS), spark.createDataFrame([], VALUES)
    joined = lake.as_of_join(full, none, on="user", left_time="moment", right_time="known").collect()
    assert sorted(row.event for row in joined) == list(range(300)) and {row.value for row in joined} == {None}
    empty, some = spark.createDataFrame([], EVENTS), spark.createDataFrame(values, VALUES)
    assert lake.as_of_join(empty, some, on="user", left_time="moment", right_time="known").count() == 0


def test_times_and_keys_of_other_types(lake: tiltyard.Lake, spark: SparkSession) -> None:
    day, noon = date(2026, 1, 5), datetime(2026, 1, 5, 12, tzinfo=UTC)
    clock = datetime(2026, 3, 29, 3)  # noqa: DTZ001  # a clock's time, without a zone
    cases: list[tuple[str, Any, Any, Any, Any]] = [
        ("date", day, day - timedelta(2), timedelta(2), timedelta(1)),
        ("timestamp", noon, noon - timedelta(seconds=90), timedelta(seconds=90), timedelta(seconds=89.999999)),
        ("timestamp_ntz", clock, clock - timedelta(hours=1), timedelta(hours=1), timedelta(minutes=59)),
        ("double", 2.5, 1.0, 1.5, 1.25),
        ("decimal(6,2)", Decimal("2.50"), Decimal("1.00"), 1.5, 1.25),
    ]

    def check(case: tuple[str, Any, Any, Any, Any]) -> None:
        kind, later, earlier, enough, too_little = case
        left = spark.createDataFrame([((1, b"k"), later)], f"`the key` struct<a: int, b: binary>, `t.1` {kind}")
        right = spark.createDataFrame(
            [((1, b"k"), earlier, {"m": 1})], f"`the key` struct<a: int, b: binary>, `t.1` {kind}, m map<string, int>"
        )
        for tolerance, found in ((enough, {"m": 1}), (too_little, None)):
            joined = lake.as_of_join(
                left, right, on=["the key"], left_time="t.1", right_time="t.1", tolerance=tolerance, suffix=" then"
            )
            assert joined.columns == ["the key", "t.1", "t.1 then", "m"]
            assert [row["m"] for row in joined.collect()] == [found], (kind, tolerance)

    check_each(cases, check)


def test_tables_are_joined_as_of_a_version_and_the_result_is_ingested(
    lake: tiltyard.Lake, fresh: Callable[[str], str]
) -> None:
    names = [fresh(name) for name in ("orders", "prices", "priced")]
    orders, prices, priced = (lake.table(name) for name in names)
    moments = [datetime(2026, 1, 1, hour, tzinfo=UTC) for hour in range(4)]
    stamps = pa.timestamp("us", "UTC")
    orders.ingest(pa.table({"item": ["a", "a", "b"], "at": pa.array([moments[1], moments[3], moments[3]], stamps)}))
    prices.ingest(
        pa.table({"item": ["a", "a"], "since": pa.array([moments[0], moments[2]], stamps), "price": [10, 12]})
    )
    seen = prices.dataset().version
    prices.ingest(pa.table({"item": ["b"], "since": pa.array(moments[:1], stamps), "price": [99]}), mode="append")
    joined = lake.as_of_join(orders, prices.at(seen), on="item", left_time="at", right_time="since")
    priced.ingest(joined)
    rows = priced.to_arrow().sort_by([("item", "ascending"), ("at", "ascending")])
    assert rows["price"].to_pylist() == [10, 12, None]


BAD: list[tuple[type[Exception], str, dict[str, Any]]] = [
    (TableColumnNotFoundError, "left side has no column nobody", {"on": "nobody"}),
    (TableColumnNotFoundError, "right side has no column when", {"right_time": "when"}),
    (InvalidInputError, "user is string: times are", {"left_time": "user"}),
    (InvalidInputError, "cast one", {"on": ["user", "kind"]}),
    (InvalidInputError, "give a number", {"tolerance": timedelta(1)}),
    (InvalidInputError, "give a number", {"tolerance": True}),
    (InvalidInputError, "below 0", {"tolerance": -1}),
    (InvalidInputError, "below 0", {"tolerance": float("nan")}),
    (InvalidInputError, "direction is", {"direction": "nearest"}),
    (InvalidInputError, "give a suffix", {"on": []}),
]


def test_what_cannot_be_joined_is_told_why(lake: tiltyard.Lake, spark: SparkSession) -> None:
    left: DataFrame = spark.createDataFrame([("a", 1, 1)], "user string, moment bigint, kind int")
    right = spark.createDataFrame([("a", 1, "x")], "user string, known bigint, kind string")

    def check(case: tuple[type[Exception], str, dict[str, Any]]) -> None:
        error, message, fields = case
        with pytest.raises(error, match=message):
            lake.as_of_join(left, right, **{"on": "user", "left_time": "moment", "right_time": "known"} | fields)

    check_each(BAD, check)
