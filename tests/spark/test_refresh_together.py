"""Concurrent refreshes: beside appends, several at once, replaced drivers, other writers of the view."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import lance
import pytest

from tests.spark.views import contents, create_view, numbers, write
from tiltyard.pipeline.catalog_client import CatalogConnection, table
from tiltyard.pipeline.runs import LocalRun, RunCanceledError
from tiltyard.pipeline.views import planning
from tiltyard.pipeline.views.job import refresh

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.extended

Fresh = Callable[[str], str]


class Watched(LocalRun):
    """A run in which something happens as soon as the first part was made."""

    def __init__(self, happens: Callable[[], None]) -> None:
        super().__init__()
        self.happens, self.parts = happens, 0

    def save_checkpoint(self, key: str, value: str) -> None:
        """Keep, and then let it happen, once."""
        super().save_checkpoint(key, value)
        if key.startswith("part-"):
            self.parts += 1
            if self.parts == 1:
                self.happens()


@pytest.fixture
def view(catalog: CatalogConnection, fresh: Fresh, monkeypatch: pytest.MonkeyPatch) -> str:
    """A view of a table of three fragments, each of which is a part."""
    monkeypatch.setattr(planning, "ROWS_PER_PART", 10)
    source, name = fresh("source"), fresh("view")
    for first in (0, 10, 20):
        write(catalog, source, numbers(first, first + 10), "append" if first else "create")
    create_view(catalog, name, f"SELECT id, text FROM {source}")
    return name


def source_of(catalog: CatalogConnection, view: str) -> str:
    return dataset(catalog, view).schema.metadata[b"tiltyard.view.query"].decode().split()[-1]


def dataset(catalog: CatalogConnection, name: str) -> lance.LanceDataset:
    return table(catalog, name).dataset()


def test_refresh_while_others_append_has_each_row_once_in_the_end(
    spark: SparkSession, catalog: CatalogConnection, view: str
) -> None:
    source, done = source_of(catalog, view), threading.Event()
    appended = 30

    def append() -> None:
        nonlocal appended
        while not done.is_set() and appended < 300:
            write(catalog, source, numbers(appended, appended + 10), "append")
            appended += 10

    with ThreadPoolExecutor(1) as pool:
        writer = pool.submit(append)
        modes = [refresh(LocalRun(), catalog, spark, view)["mode"] for _ in range(4)]
        done.set()
        writer.result()
    last = refresh(LocalRun(), catalog, spark, view)
    assert modes[0] == "full"
    assert {*modes[1:], last["mode"]} <= {"incremental", "unchanged"}
    assert contents(catalog, view).equals(numbers(0, appended))


def test_refreshes_at_once_make_one_commit_for_each_change(
    spark: SparkSession, catalog: CatalogConnection, view: str
) -> None:
    for change in range(2):
        with ThreadPoolExecutor(3) as pool:
            figures = list(pool.map(lambda _: refresh(LocalRun(), catalog, spark, view), range(3)))
        assert sorted(figure["mode"] != "unchanged" for figure in figures) == [False, False, True]
        assert dataset(catalog, view).version == 2 + change
        assert contents(catalog, view).equals(numbers(0, 30 + change * 5))
        write(catalog, source_of(catalog, view), numbers(30, 35), "append")


def test_refresh_that_is_resumed_makes_only_what_is_left_of_the_versions_it_began_with(
    spark: SparkSession, catalog: CatalogConnection, view: str
) -> None:
    def die() -> None:
        raise RunCanceledError(run.id)

    run = Watched(die)
    with pytest.raises(RunCanceledError):
        refresh(run, catalog, spark, view)
    assert contents(catalog, view).num_rows == 0
    write(catalog, source_of(catalog, view), numbers(30, 40), "append")
    figures = refresh(run, catalog, spark, view)
    assert (run.parts, figures["rows"], figures["version"]) == (3, 30, 2)
    assert contents(catalog, view).equals(numbers(0, 30))
    resumed = refresh(run, catalog, spark, view)  # as if the driver had died before it could tell
    assert (run.parts, resumed["version"], dataset(catalog, view).version) == (3, 2, 2)


def test_refresh_of_changed_rows_that_is_resumed_removes_and_adds_each_once(
    spark: SparkSession, catalog: CatalogConnection, view: str
) -> None:
    def die() -> None:
        raise RunCanceledError(run.id)

    refresh(LocalRun(), catalog, spark, view)
    source = dataset(catalog, source_of(catalog, view))
    source.update({"text": "'new'"}, where="id < 5")
    run = Watched(die)
    with pytest.raises(RunCanceledError):
        refresh(run, catalog, spark, view)
    dataset(catalog, source_of(catalog, view)).delete("id = 29")  # after the version that the run began with
    dataset(catalog, view).optimize.compact_files()  # rows are found where they are when it commits
    figures = refresh(run, catalog, spark, view)
    assert (run.parts, figures["mode"], figures["rows"], run.figures["removed"]) == (2, "incremental", 5, "5")
    texts = ["new" if number < 5 else f"row {number}" for number in range(30)]
    assert contents(catalog, view)["text"].to_pylist() == texts


def test_refresh_whose_view_others_write_meanwhile_begins_again(
    spark: SparkSession, catalog: CatalogConnection, view: str
) -> None:
    run = Watched(lambda: write(catalog, view, numbers(1000, 1001), "append"))
    figures = refresh(run, catalog, spark, view)
    assert ("another writer changed the view" in figures["reason"], run.parts, figures["version"]) == (True, 6, 3)
    assert contents(catalog, view).equals(numbers(0, 30))


def test_refresh_while_the_view_is_indexed_and_compacted_goes_on(
    spark: SparkSession, catalog: CatalogConnection, view: str
) -> None:
    refresh(LocalRun(), catalog, spark, view)
    write(catalog, source_of(catalog, view), numbers(30, 40), "append")

    def maintain() -> None:
        dataset(catalog, view).optimize.compact_files()
        dataset(catalog, view).create_scalar_index("id", "BTREE")

    run = Watched(maintain)
    assert (refresh(run, catalog, spark, view)["mode"], run.parts) == ("incremental", 1)
    assert contents(catalog, view).equals(numbers(0, 40))


def test_refresh_that_is_canceled_commits_nothing(spark: SparkSession, catalog: CatalogConnection, view: str) -> None:
    run = Watched(lambda: None)
    run.happens = run.canceled.set
    with pytest.raises(RunCanceledError):
        refresh(run, catalog, spark, view)
    assert dataset(catalog, view).version == 1
