"""Incremental refreshes over random histories of a table: after each, a view is what its query says of all rows."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import lance
import pyarrow as pa
import pytest

from tests.spark.views import create_view, write
from tiltyard.pipeline.catalog_client import CatalogConnection, table
from tiltyard.pipeline.runs import LocalRun
from tiltyard.pipeline.views.job import refresh

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Fresh = Callable[[str], str]
Row = tuple[int, str | None, float | None]

SCHEMA = pa.schema([("id", pa.int64()), ("region", pa.string()), ("price", pa.float64()), ("unread", pa.int32())])
NAMES = {"north": "N", "south": "S"}
VIEWS = {
    "rows": (
        "SELECT price * 2 AS twice, id FROM {0} WHERE price > 3 OR price IS NULL",
        pa.schema([("twice", pa.float64()), ("id", pa.int64())]),
    ),
    "joined": (
        "SELECT f.id, d.name FROM {0} f LEFT JOIN {1} d ON f.region = d.region",
        pa.schema([("id", pa.int64()), ("name", pa.string())]),
    ),
    "grouped": (
        """
        SELECT region AS r, count(*) AS n, sum(price) AS total, avg(price) AS mean, min(price) AS least, max(id) AS last
        FROM {0} WHERE id % 5 > 0 GROUP BY region HAVING count(*) > 1
        """,
        pa.schema(
            [
                ("r", pa.string()), ("n", pa.int64()), ("total", pa.float64()), ("mean", pa.float64()),
                ("least", pa.float64()), ("last", pa.int64()),
            ]
        ),
    ),
}  # fmt: skip


def select_rows(rows: list[Row]) -> list[tuple[Any, ...]]:
    """Return what the view `rows` has of these rows."""
    return [(None if price is None else price * 2, number) for number, _, price in rows if price is None or price > 3]


def join_rows(rows: list[Row]) -> list[tuple[Any, ...]]:
    """Return what the view `joined` has of these rows."""
    return [(number, NAMES.get(region or "")) for number, region, _ in rows]


def group_rows(rows: list[Row]) -> list[tuple[Any, ...]]:
    """Return what the view `grouped` has of these rows."""
    groups: dict[str | None, list[Row]] = defaultdict(list)
    for row in rows:
        if row[0] % 5:
            groups[row[1]].append(row)
    results: list[tuple[Any, ...]] = []
    for region, members in groups.items():
        prices = [price for _, _, price in members if price is not None]
        facts = (sum(prices), sum(prices) / len(prices), min(prices)) if prices else (None, None, None)
        if len(members) > 1:
            results.append((region, len(members), *facts, max(number for number, _, _ in members)))
    return results


EXPECTED = {"rows": select_rows, "joined": join_rows, "grouped": group_rows}


class History:
    """A table that changes at random, and the rows that it has to have."""

    def __init__(self, catalog: CatalogConnection, name: str, seed: int) -> None:
        self.catalog, self.name, self.random = catalog, name, random.Random(seed)
        self.rows = [self.random_row(number) for number in range(40)]
        self.next = len(self.rows)
        write(catalog, name, self.arrow(self.rows))

    def random_row(self, number: int) -> Row:
        """Make a row, whose price any order of sums adds up to the same bits."""
        prices = [None, *(quarters / 4 for quarters in range(40))]
        return number, self.random.choice([None, "north", "south", "east", "west"]), self.random.choice(prices)

    def arrow(self, rows: list[Row]) -> pa.Table:
        return pa.Table.from_pylist(
            [{"id": number, "region": region, "price": price, "unread": 0} for number, region, price in rows], SCHEMA
        )

    def dataset(self) -> lance.LanceDataset:
        return table(self.catalog, self.name).dataset()

    def chosen(self) -> set[int]:
        """Choose the ids of a few rows that the table has."""
        ids = [number for number, _, _ in self.rows]
        return set(self.random.sample(ids, min(len(ids), self.random.randint(1, 6))))

    def condition(self, ids: set[int]) -> str:
        return f"id IN ({', '.join(map(str, ids))})"

    def append(self) -> None:
        rows = [self.random_row(self.next + offset) for offset in range(self.random.randint(1, 8))]
        self.next += len(rows)
        self.rows += rows
        write(self.catalog, self.name, self.arrow(rows), "append")

    def delete(self) -> None:
        ids = self.chosen()
        self.rows = [row for row in self.rows if row[0] not in ids]
        self.dataset().delete(self.condition(ids))

    def update(self) -> None:
        ids = self.chosen()
        self.rows = [(row[0], "north", 8.25) if row[0] in ids else row for row in self.rows]
        self.dataset().update({"region": "'north'", "price": "8.25"}, where=self.condition(ids))

    def update_unread(self) -> None:
        self.dataset().update({"unread": "unread + 1"}, where=self.condition(self.chosen()))

    def merge(self) -> None:
        new = [self.random_row(number) for number in {*self.chosen(), self.next}]
        self.next += 1
        ids = {row[0] for row in new}
        self.rows = [row for row in self.rows if row[0] not in ids] + new
        merge = self.dataset().merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
        merge.execute(self.arrow(new))

    def compact(self) -> None:
        self.dataset().optimize.compact_files()

    def overwrite(self) -> None:
        self.rows = [self.random_row(number) for number in range(30)]
        write(self.catalog, self.name, self.arrow(self.rows), "overwrite")


@pytest.mark.timeout(600)  # dozens of jobs, one after the other
@pytest.mark.parametrize(
    ("seed", "each"),
    [
        pytest.param(0, False, id="0, one after each change"),
        *(
            pytest.param(seed, True, id=f"{seed}, all after each change", marks=pytest.mark.extended)
            for seed in range(2)
        ),
    ],
)
def test_incremental_refreshes_over_a_random_history_equal_the_query_of_all_rows(
    spark: SparkSession, catalog: CatalogConnection, fresh: Fresh, seed: int, *, each: bool
) -> None:
    """After each change all views are refreshed, or one of them in turn, and all in the end."""
    source, others = fresh("films"), fresh("regions")
    history = History(catalog, source, seed)
    write(catalog, others, pa.table({"region": list(NAMES), "name": list(NAMES.values())}))
    views = {kind: fresh(kind) for kind in VIEWS}
    for kind, (query, schema) in VIEWS.items():
        create_view(catalog, views[kind], query.format(source, others), schema)
        assert refresh(LocalRun(), catalog, spark, views[kind])["mode"] == "full"
    steps = [
        history.append, history.delete, history.update, history.update_unread, history.merge, history.compact,
        history.overwrite,
    ]  # fmt: skip
    history.random.shuffle(steps)
    kinds = list(views)
    for number, (first, second) in enumerate(zip(steps, [*steps[1:], history.delete], strict=True), 1):
        history.random.choice([first, second])()
        first()
        refreshed = kinds if each or number == len(steps) else [kinds[number % len(kinds)]]
        for kind in refreshed:
            view = views[kind]
            figures = refresh(LocalRun(), catalog, spark, view)
            assert figures["mode"] in {"incremental", "unchanged"}, (kind, first.__name__, figures["reason"])
            rows = lance.dataset(table(catalog, view).location().uri).to_table().to_pydict().values()
            expected = EXPECTED[kind](history.rows)
            assert sorted(zip(*rows, strict=True), key=str) == sorted(expected, key=str), (kind, first.__name__)
