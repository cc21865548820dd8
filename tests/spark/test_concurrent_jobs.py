"""All at once on one table: upsert, backfill, compaction, index, and writers that know nothing of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lance_namespace.errors import ConcurrentModificationError

from tests.spark import functions
from tiltyard.pipeline.backfill.job import backfill
from tiltyard.pipeline.catalog_client import Table
from tiltyard.pipeline.catalog_client import table as table_of
from tiltyard.pipeline.indexes.job import index
from tiltyard.pipeline.ingest.job import upsert
from tiltyard.pipeline.optimize.job import optimize
from tiltyard.pipeline.runs import LocalRun

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tiltyard.pipeline.table_location import CatalogConnection

pytestmark = pytest.mark.extended

OLD, UPSERTED, DELETED, APPENDED = range(2000), range(1900, 2100), range(300, 340), 10_000


def rows(ids: range | list[int], value: str) -> pa.Table:
    """Rows of (id, x, v); x is ten times the id, and the computed column twice that."""
    numbers = list(ids)
    return pa.table({"id": numbers, "x": [10 * number for number in numbers], "v": [value] * len(numbers)})


@pytest.fixture
def target(catalog: CatalogConnection, fresh: Callable[[str], str]) -> Table:
    """A table of eight fragments with a column that is computed later."""
    target = table_of(catalog, fresh("together"))
    lance.write_dataset(rows(OLD, "old"), namespace_client=target.client, table_id=target.id, max_rows_per_file=250)
    target.dataset().add_columns(pa.field("y", pa.int64()))
    return target


def test_jobs_and_writers_at_once_leave_each_row_once_with_its_values(
    spark: SparkSession, catalog: CatalogConnection, target: Table, tmp_path: Path
) -> None:
    name, ended = str(target), threading.Event()
    pq.write_table(rows(UPSERTED, "new"), tmp_path / "changed.parquet")

    def append() -> int:
        number = 0
        while not ended.wait(0.1):
            target.dataset().insert(rows([APPENDED + number], "appended"))
            number += 1
        return number

    def remove() -> None:
        for first in DELETED[::10]:
            target.dataset().delete(f"id >= {first} and id < {first + 10}")

    def fill() -> Any:
        return backfill(LocalRun(), catalog, spark, name, "y", udf=f"{functions.__name__}:doubled", inputs=["x"])

    def maintain() -> None:
        times = 0
        while times < 2:
            with suppress(ConcurrentModificationError):  # "run the job again": others commit quicker than it joins
                optimize(LocalRun(), catalog, spark, name)
                times += 1

    with ThreadPoolExecutor() as pool:
        writers = [pool.submit(append)]
        jobs = [
            pool.submit(upsert, LocalRun(), catalog, spark, str(tmp_path), name, on=["id"], null=["y"]),
            pool.submit(fill),
            pool.submit(index, LocalRun(), catalog, spark, name, "id", "BTREE"),
            pool.submit(maintain),
            pool.submit(remove),
        ]
        try:
            upserted, filled, *_ = [job.result() for job in jobs]
        finally:
            ended.set()
        appended = range(APPENDED, APPENDED + writers[0].result())
    assert (upserted["rows"], upserted["inserted"]) == (len(UPSERTED), 100)
    assert filled["rows"] >= len(OLD) - len(DELETED)
    fill()  # what came in meanwhile
    values = dict.fromkeys(OLD, "old") | dict.fromkeys(UPSERTED, "new") | dict.fromkeys(appended, "appended")
    expected = [
        {"id": number, "x": 10 * number, "v": value, "y": 20 * number}
        for number, value in values.items()
        if number not in DELETED
    ]
    dataset = lance.dataset(target.location().uri)
    dataset.validate()
    assert dataset.to_table().sort_by("id").to_pylist() == expected
    for number in (5, 310, 1950, 2050, APPENDED):  # through the index, what it has not yet beside it
        expected_rows = [row for row in expected if row["id"] == number]
        assert dataset.to_table(filter=f"id = {number}").to_pylist() == expected_rows
