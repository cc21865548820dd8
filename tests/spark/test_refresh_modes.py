"""Refreshes of joins and groups: what makes them incremental, and the reasons why they are not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import lance
import pyarrow as pa
import pytest
from lance_namespace.errors import InvalidInputError

from tests.spark.views import contents, create_view, numbers, write
from tiltyard.pipeline.catalog_client import CatalogConnection, table
from tiltyard.pipeline.runs import LocalRun
from tiltyard.pipeline.views import job
from tiltyard.pipeline.views.job import refresh
from tiltyard.view_refresh import net_changes
from tiltyard.view_refresh.source_changes import FullRefreshRequiredError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Fresh = Callable[[str], str]
Refreshed = Callable[..., Mapping[str, Any]]


@pytest.fixture
def refreshed(spark: SparkSession, catalog: CatalogConnection) -> Refreshed:
    """Refreshes a view here; its figures, with those of its progress."""

    def run(name: str, **options: Any) -> Mapping[str, Any]:
        local = LocalRun()
        return {**refresh(local, catalog, spark, name, **options), "removed": local.figures.get("removed")}

    return run


def dataset(catalog: CatalogConnection, name: str) -> lance.LanceDataset:
    return table(catalog, name).dataset()


def test_refresh_of_a_join_reads_the_changed_table_alone_until_the_other_one_changes(
    catalog: CatalogConnection, fresh: Fresh, refreshed: Refreshed
) -> None:
    films, words, view = fresh("films"), fresh("words"), fresh("view")
    write(catalog, films, numbers(0, 10))
    write(catalog, words, numbers(5, 15))
    create_view(catalog, view, f"SELECT f.id, w.text FROM {films} f JOIN {words} w ON f.id = w.id")
    refreshed(view)
    write(catalog, films, numbers(10, 20), "append")
    added = refreshed(view)
    assert (added["mode"], added["rows"], added["reason"]) == ("incremental", 5, "rows were only added")
    dataset(catalog, films).delete("id < 6")
    deleted = refreshed(view)
    assert (deleted["mode"], deleted["rows"], deleted["removed"]) == ("incremental", 0, "1")
    assert deleted["reason"] == f"rows of {films} were changed or deleted: these alone are computed"
    dataset(catalog, films).delete("id = 6")
    large = refreshed(view, max_join_rows=9)
    assert (large["mode"], f"{words} has 10 rows, more than max_join_rows (9)" in large["reason"]) == ("full", True)
    for name in (films, words):
        write(catalog, name, numbers(30, 31), "append")
    both = refreshed(view)
    assert (both["mode"], f"{films} and {words} were both changed" in both["reason"]) == ("full", True)
    assert contents(catalog, view).equals(pa.concat_tables([numbers(7, 15), numbers(30, 31)]).combine_chunks())
    dataset(catalog, words).update({"text": "'word'"}, where="id = 30")
    other = refreshed(view)  # each row of that table is in rows of its own, too
    assert (other["mode"], other["rows"], other["removed"]) == ("incremental", 1, "1")


def test_refresh_of_groups_computes_those_of_changed_rows_again(
    catalog: CatalogConnection, fresh: Fresh, refreshed: Refreshed
) -> None:
    source, view = fresh("source"), fresh("view")
    rows = pa.table({"id": range(100), "text": [f"group {number % 10}" for number in range(100)]})
    write(catalog, source, rows)
    create_view(catalog, view, f"SELECT text, count(*) AS id FROM {source} GROUP BY text")
    assert refreshed(view)["rows"] == 10
    write(catalog, source, rows.take([3, 13]), "append")
    added = refreshed(view)
    assert (added["mode"], added["rows"], added["removed"]) == ("incremental", 1, "1")
    assert added["reason"] == f"rows of {source} were changed: groups of 1 values of text are computed again"
    dataset(catalog, source).delete("text = 'group 4' OR id = 5")
    deleted = refreshed(view)
    assert (deleted["mode"], deleted["rows"], deleted["removed"]) == ("incremental", 1, "2")
    expected = [10, 10, 10, 12, 9, 10, 10, 10, 10]
    assert contents(catalog, view, "text")["id"].to_pylist() == expected
    dataset(catalog, source).delete("id IN (6, 7)")
    many = refreshed(view, max_groups=1)
    assert (many["mode"], "have more than 1 values" in many["reason"]) == ("full", True)


def test_refresh_says_why_it_computes_all_rows(
    catalog: CatalogConnection, fresh: Fresh, refreshed: Refreshed, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, view = fresh("source"), fresh("view")
    write(catalog, source, numbers(0, 10))
    create_view(catalog, view, f"SELECT id, text FROM {source}")
    refreshed(view)

    def lacking(*_: Any) -> Any:
        raise FullRefreshRequiredError("the view lacks a row")

    dataset(catalog, source).delete("id = 1")
    with monkeypatch.context() as patch:
        patch.setattr(job, "find_equal_rows", lacking)
        lost = refreshed(view)
    assert (lost["mode"], lost["reason"]) == ("full", "the view lacks a row")
    with monkeypatch.context() as patch:
        patch.setattr(net_changes, "_FEW_ROWS", 0)
        write(catalog, source, numbers(20, 21), "overwrite")
        most = refreshed(view)
    assert (most["mode"], most["reason"]) == ("full", f"10 rows of {source} were changed, and it has 1")
    assert contents(catalog, view).equals(numbers(20, 21))
    with pytest.raises(InvalidInputError, match="max_join_rows and max_groups are 0 or more"):
        refreshed(view, max_groups=-1)
