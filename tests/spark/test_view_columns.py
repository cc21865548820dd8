"""Columns that are added to a view that Spark refreshes: refreshes go on, and compute those of SQL."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lance_namespace import AlterTableAddColumnsRequest, AlterTableDropColumnsRequest

from tests.spark.views import contents, create_view, numbers, write
from tiltyard.pipeline.backfill.job import backfill
from tiltyard.pipeline.catalog_client import CatalogConnection, table
from tiltyard.pipeline.runs import LocalRun
from tiltyard.pipeline.views.job import refresh

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Fresh = Callable[[str], str]
SQL_COLUMNS = [{"name": "twice", "computed": "id * 2"}, {"name": "label", "computed": "concat(text, '!')"}]


def add_columns(catalog: CatalogConnection, name: str, columns: list[dict[str, Any]]) -> None:
    request = AlterTableAddColumnsRequest.from_dict({"id": [name], "new_columns": columns})
    catalog.client().alter_table_add_columns(request)


def test_refreshes_by_spark_compute_added_columns_of_sql_until_they_are_dropped(
    spark: SparkSession, catalog: CatalogConnection, fresh: Fresh
) -> None:
    source, view = fresh("source"), fresh("view")
    write(catalog, source, numbers(0, 10))
    create_view(catalog, view, f"SELECT id, text FROM {source}")
    refresh(LocalRun(), catalog, spark, view)
    add_columns(catalog, view, [{"name": "plain", "expression": "id"}])
    add_columns(catalog, view, SQL_COLUMNS)
    write(catalog, source, numbers(10, 12), "append")
    table(catalog, source).dataset().delete("id = 0")
    added = refresh(LocalRun(), catalog, spark, view)
    assert (added["mode"], added["rows"]) == ("incremental", 2)
    new = contents(catalog, view).slice(9)
    assert new.select(["twice", "label", "plain"]).to_pylist() == [
        {"twice": 20, "label": "row 10!", "plain": None}, {"twice": 22, "label": "row 11!", "plain": None},
    ]  # fmt: skip
    backfill(LocalRun(), catalog, spark, view, "twice")
    assert refresh(LocalRun(), catalog, spark, view)["mode"] == "unchanged"
    assert contents(catalog, view)["twice"].to_pylist() == [2 * number for number in range(1, 12)]
    catalog.client().alter_table_drop_columns(AlterTableDropColumnsRequest(id=[view], columns=["plain", "label"]))
    full = refresh(LocalRun(), catalog, spark, view, full=True)
    assert (full["mode"], full["rows"]) == ("full", 11)
    assert contents(catalog, view).column_names == ["id", "text", "twice"]
