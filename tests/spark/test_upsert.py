"""Upsert and delete: the rows of the table in the end, beside concurrent writers."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lance_namespace.errors import InvalidInputError

from tests.spark.killed_driver import partition_keys
from tiltyard.pipeline.catalog_client import CatalogConnection, Table, table
from tiltyard.pipeline.delete.job import delete
from tiltyard.pipeline.ingest.job import upsert
from tiltyard.pipeline.runs import LocalRun, RunCanceledError
from tiltyard.pipeline.sources.filesystem import local_path
from tiltyard.pipeline.table_location import TableLocation
from tiltyard.pipeline.upsert import plan as upserting
from tiltyard.pipeline.upsert.plan import UpsertPlan
from tiltyard.pipeline.upsert.tasks import KeptColumns, MatchedFragment, MatchFragments
from tiltyard.pipeline.writing import row_sources
from tiltyard.pipeline.writing.commit import JobTable
from tiltyard.pipeline.writing.write_job import PIECES_PREFIX

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Fresh = Callable[[str], str]


def rows(ids: range | list[int], value: str) -> pa.Table:
    """Rows of (id, half, v); the key may be `id`, or `id` and `half`."""
    keys = list(ids)
    return pa.table({"id": keys, "half": ["ab"[i % 2] for i in keys], "v": [value] * len(keys)})


def create_table(catalog: CatalogConnection, name: str, ids: range) -> Table:
    """A table of several fragments."""
    target = table(catalog, name)
    lance.write_dataset(rows(ids, "old"), namespace_client=target.client, table_id=target.id, max_rows_per_file=300)
    return target


def contents(target: Table) -> dict[int, str]:
    """All rows; fails if an id is there twice."""
    columns = target.dataset().to_table().to_pydict()
    assert len(set(columns["id"])) == len(columns["id"])
    return dict(zip(columns["id"], columns["v"], strict=True))


def column_of(target: Table, name: str) -> dict[int, Any]:
    """Return a column by id."""
    columns = target.dataset().to_table(columns=["id", name]).to_pydict()
    return dict(zip(columns["id"], columns[name], strict=True))


def counts(figures: Mapping[str, object]) -> dict[str, object]:
    """Return the figures of an upsert but the size of what it wrote."""
    return {name: value for name, value in figures.items() if name not in ("fragments", "bytes")}


@pytest.fixture
def name(fresh: Fresh) -> str:
    return fresh("upserted")


@pytest.fixture(params=["threads", "tasks", "partitions in threads", "partitions in tasks"])
def everywhere(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small work runs in the driver, and few keys are read by each task; here, it runs in Spark's tasks as well."""
    if request.param.endswith("tasks"):
        monkeypatch.setattr(row_sources, "MAX_DRIVER_BYTES", 0)
        monkeypatch.setattr(upserting, "MAX_DRIVER_ROWS", 0)
    if request.param.startswith("partitions"):
        for module, name, value in partition_keys():
            monkeypatch.setattr(module, name, value)


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("on", [["id"], ["id", "half"]])
def test_upsert_old_and_new_keys_replaces_and_adds_in_one_commit(
    spark: SparkSession, catalog: CatalogConnection, name: str, tmp_path: Path, on: list[str]
) -> None:
    target = create_table(catalog, name, range(1000))
    pq.write_table(rows(range(900, 1100), "new"), tmp_path / "changed.parquet", row_group_size=50)
    figures = upsert(LocalRun(), catalog, spark, str(tmp_path), name, on=on)
    assert counts(figures) == {
        "version": 2, "rows": 200, "updated": 100, "inserted": 100, "replaced": 100, "rejected": 0
    }  # fmt: skip
    expected = dict.fromkeys(range(900), "old") | dict.fromkeys(range(900, 1100), "new")
    assert contents(target) == expected
    assert lance.dataset(target.location().uri).to_table().num_rows == 1100


@pytest.mark.usefixtures("everywhere")
def test_upsert_of_some_columns_keeps_the_others_also_of_rows_that_change_meanwhile(
    spark: SparkSession, catalog: CatalogConnection, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = create_table(catalog, name, range(1000))
    some = rows(range(900, 1100), "new").select(["v", "id"])
    pq.write_table(some, tmp_path / "some.parquet", row_group_size=50)
    pq.write_table(some.slice(0, 100), tmp_path / "known.parquet")
    complete = UpsertPlan._complete_rows

    def changed_meanwhile(plan: UpsertPlan, kept: KeptColumns) -> list[Any]:
        if int(plan.dataset.version) == 1:
            target.dataset().update({"half": "'other'"}, where="id = 950")
        return complete(plan, kept)

    monkeypatch.setattr(UpsertPlan, "_complete_rows", changed_meanwhile)
    figures = upsert(LocalRun(), catalog, spark, str(tmp_path / "some.parquet"), name, on=["id"])
    assert counts(figures) == {
        "version": 3, "rows": 200, "updated": 100, "inserted": 100, "replaced": 100, "rejected": 0
    }  # fmt: skip
    halves: dict[int, Any] = {number: "ab"[number % 2] if number < 1000 else None for number in range(1100)}
    halves[950] = "other"
    assert column_of(target, "half") == halves
    assert contents(target) == {number: "new" if number >= 900 else "old" for number in range(1100)}

    target.dataset().delete("id >= 1000")
    with pytest.raises(InvalidInputError, match="100 keys of the source are not in the table"):
        upsert(LocalRun(), catalog, spark, str(tmp_path / "some.parquet"), name, on=["id"], must_exist=True)
    halves = {number: halves[number] for number in range(1000)}
    assert column_of(target, "half") == halves
    figures = upsert(LocalRun(), catalog, spark, str(tmp_path / "known.parquet"), name, on=["id"], must_exist=True)
    assert (figures["updated"], column_of(target, "half")) == (100, halves)
    upsert(LocalRun(), catalog, spark, str(tmp_path / "known.parquet"), name, on=["id"], null=["half"])
    assert column_of(target, "half") == {number: halves[number] if number < 900 else None for number in range(1000)}
    with pytest.raises(InvalidInputError, match="not_null\\(half\\) is of half, which the source lacks"):
        upsert(LocalRun(), catalog, spark, str(tmp_path / "known.parquet"), name, on=["id"], checks=["not_null(half)"])
    versions = [target.dataset(number) for number in range(1, int(target.dataset().version) + 1)]
    named = {file.path for version in versions for part in version.get_fragments() for file in part.metadata.files}
    assert {file.name for file in Path(local_path(target.location().uri)).glob("data/*.lance")} == named


@pytest.mark.parametrize("fails", [False, True])
def test_upsert_files_become_durable_while_keys_are_looked_up_and_before_the_commit(
    spark: SparkSession,
    catalog: CatalogConnection,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fails: bool,
) -> None:
    target, steps, matched = create_table(catalog, name, range(1000)), [], threading.Event()
    look_up, sync, commit = MatchFragments.__call__, TableLocation.make_durable, JobTable.commit

    def match(task: MatchFragments) -> list[MatchedFragment]:
        found = look_up(task)
        matched.set()
        return found

    def sync_late(location: TableLocation, files: Iterable[str]) -> None:
        assert matched.wait(20), "nobody looks the keys up while files are synced"
        if fails:
            raise OSError(errno.EIO, "the disk is broken")
        sync(location, files)
        steps.append("durable")

    def commit_last(*arguments: Any, **fields: Any) -> int:
        steps.append("commit")
        return commit(*arguments, **fields)

    monkeypatch.setattr(MatchFragments, "__call__", match)
    monkeypatch.setattr(TableLocation, "make_durable", sync_late)
    monkeypatch.setattr(JobTable, "commit", commit_last)
    pq.write_table(rows(range(900, 1100), "new"), tmp_path / "changed.parquet", row_group_size=50)
    run = LocalRun()
    if fails:
        with pytest.raises(OSError, match="broken"):
            upsert(run, catalog, spark, str(tmp_path), name, on=["id"])
        assert steps == [] and contents(target) == dict.fromkeys(range(1000), "old")
        assert not any(key.startswith(PIECES_PREFIX) for key in run.checkpoints())
        return
    upsert(run, catalog, spark, str(tmp_path), name, on=["id"])
    assert steps[-1] == "commit" and set(steps[:-1]) == {"durable"}
    assert contents(target) == dict.fromkeys(range(900), "old") | dict.fromkeys(range(900, 1100), "new")


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("on", [["id"], ["id", "half"]])
def test_upsert_of_keys_that_the_table_has_more_than_once_counts_each_key_once(
    spark: SparkSession, catalog: CatalogConnection, name: str, tmp_path: Path, on: list[str]
) -> None:
    target = create_table(catalog, name, range(400))
    lance.write_dataset(rows(range(100), "twin"), namespace_client=target.client, table_id=target.id, mode="append")
    twice = [*range(50), *range(50)]
    lance.write_dataset(rows(twice, "twin"), namespace_client=target.client, table_id=target.id, mode="append")
    pq.write_table(rows(range(25, 425), "new"), tmp_path / "changed.parquet", row_group_size=50)
    figures = upsert(LocalRun(), catalog, spark, str(tmp_path), name, on=on)
    replaced = 375 + 75 + 2 * 25  # of the table, of the first twins, of the second
    assert counts(figures) == {
        "version": 4, "rows": 400, "updated": 375, "inserted": 25, "replaced": replaced, "rejected": 0
    }  # fmt: skip
    assert target.dataset().count_rows() == 400 + 100 + 100 - replaced + 400


def test_upsert_of_a_relative_path_means_the_drivers_folder(
    spark: SparkSession, catalog: CatalogConnection, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_sources, "MAX_DRIVER_BYTES", 0)  # tasks have another working directory
    target = create_table(catalog, name, range(10))
    pq.write_table(rows(range(5, 15), "new"), tmp_path / "changed.parquet")
    monkeypatch.chdir(tmp_path)
    upsert(LocalRun(), catalog, spark, "changed.parquet", name, on=["id"])
    assert contents(target) == dict.fromkeys(range(5), "old") | dict.fromkeys(range(5, 15), "new")


def test_upsert_all_rows_of_a_fragment_removes_it(
    spark: SparkSession, catalog: CatalogConnection, name: str, tmp_path: Path
) -> None:
    target = create_table(catalog, name, range(600))
    pq.write_table(rows(range(600), "new"), tmp_path / "all.parquet")
    upsert(LocalRun(), catalog, spark, str(tmp_path / "all.parquet"), name, on=["id"])
    assert contents(target) == dict.fromkeys(range(600), "new")
    assert len(target.dataset().get_fragments()) == 1


class StoppingRun(LocalRun):
    """A run that is canceled as soon as keys are looked up."""

    def progress(self, **figures: object) -> None:
        if figures.get("stage") == "match":
            self.canceled.set()
        super().progress(**figures)


def test_upsert_stopped_while_keys_are_looked_up_goes_on_with_its_files(
    spark: SparkSession, catalog: CatalogConnection, name: str, tmp_path: Path
) -> None:
    target = create_table(catalog, name, range(10))
    pq.write_table(rows(range(5, 15), "new"), tmp_path / "new.parquet")
    stopped = StoppingRun()
    with pytest.raises(RunCanceledError):
        upsert(stopped, catalog, spark, str(tmp_path / "new.parquet"), name, on=["id"])
    data = Path(target.location().uri) / "data"
    files_left = set(data.iterdir())
    assert len(files_left) == 2
    upsert(
        LocalRun(stopped.id, _checkpoints=dict(stopped.checkpoints())),
        catalog,
        spark,
        str(tmp_path / "new.parquet"),
        name,
        on=["id"],
    )
    assert contents(target) == dict.fromkeys(range(5), "old") | dict.fromkeys(range(5, 15), "new")
    assert set(data.iterdir()) == files_left


@contextmanager
def beside(work: Callable[[int], Any]) -> Iterator[None]:
    """Another writer, again and again while the block runs."""
    ended = threading.Event()

    def go_on() -> None:
        number = 0
        while not ended.wait(0.02):
            work(number)
            number += 1

    with ThreadPoolExecutor(1) as pool:
        going = pool.submit(go_on)
        try:
            yield
        finally:
            ended.set()
            going.result()


def test_upsert_several_of_the_same_new_keys_at_once_inserts_each_once(
    spark: SparkSession, catalog: CatalogConnection, name: str, tmp_path: Path
) -> None:
    target = create_table(catalog, name, range(100))
    for number in range(4):
        pq.write_table(rows(range(90, 150), f"of {number}"), tmp_path / f"{number}.parquet")

    def one(number: int) -> int:
        source = str(tmp_path / f"{number}.parquet")
        return int(str(upsert(LocalRun(), catalog, spark, source, name, on=["id"])["inserted"]))

    def append(number: int) -> None:
        target.dataset().insert(rows([10_000 + number], "appended"))

    with beside(append), ThreadPoolExecutor(4) as pool:
        inserted = sorted(pool.map(one, range(4)))
    assert inserted == [0, 0, 0, 50]
    stored = contents(target)
    assert {key: stored[key] for key in range(90)} == dict.fromkeys(range(90), "old")
    assert len({stored[key] for key in range(90, 150)}) == 1
    assert all(value == "appended" for key, value in stored.items() if key >= 10_000)


@pytest.mark.parametrize("writer", ["append", "delete", "update", "merge", "compact"])
def test_upsert_overtaken_by_another_writer_keeps_both(
    spark: SparkSession,
    catalog: CatalogConnection,
    name: str,
    tmp_path: Path,
    writer: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = create_table(catalog, name, range(1000))
    pq.write_table(rows(range(900, 1100), "new"), tmp_path / "new.parquet")
    expected = dict.fromkeys(range(900), "old") | dict.fromkeys(range(900, 1100), "new")
    writers: dict[str, Callable[[lance.LanceDataset], Any]] = {
        "append": lambda dataset: dataset.insert(rows([1050, 5000], "theirs")),
        "delete": lambda dataset: dataset.delete("id = 950 or id = 3"),
        "update": lambda dataset: dataset.update({"v": "'theirs'"}, where="id = 950 or id = 3"),
        "merge": lambda dataset: (
            dataset.merge_insert("id")
            .when_matched_update_all()
            .when_not_matched_insert_all()
            .execute(rows([3, 950, 1050, 5000], "theirs"))
        ),
        "compact": lambda dataset: dataset.optimize.compact_files(),
    }
    changes = {
        "append": {5000: "theirs"},
        "delete": {3: None},
        "update": {3: "theirs"},
        "merge": {3: "theirs", 5000: "theirs"},
        "compact": {},
    }
    writes = iter([writers[writer]])
    commit = JobTable.commit

    def late(*arguments: Any, **options: Any) -> int:
        for write in writes:
            write(target.dataset())
        return commit(*arguments, **options)

    monkeypatch.setattr(JobTable, "commit", late)
    upsert(LocalRun(), catalog, spark, str(tmp_path / "new.parquet"), name, on=["id"])
    dataset = contents(target)
    expected_values = {key: value for key, value in (expected | changes[writer]).items() if value is not None}
    assert dataset == expected_values


def test_delete_by_a_condition_goes_in_one_commit(spark: SparkSession, catalog: CatalogConnection, name: str) -> None:
    target = create_table(catalog, name, range(1000))
    figures = delete(LocalRun(), catalog, spark, name, where="id >= 250 and id < 650")
    assert figures == {"version": 2, "rows": 400}
    assert contents(target) == dict.fromkeys([*range(250), *range(650, 1000)], "old")
    assert delete(LocalRun(), catalog, spark, name, where="id = 300") == {"version": 2, "rows": 0}
    with pytest.raises(InvalidInputError, match="not a condition"):
        delete(LocalRun(), catalog, spark, name, where="nothing = 1")


def test_delete_beside_writers_leaves_none_that_was_there(
    spark: SparkSession, catalog: CatalogConnection, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = create_table(catalog, name, range(1000))
    writes = iter(
        [lambda dataset: dataset.insert(rows([2000, 1], "theirs")), lambda dataset: dataset.delete("id = 700")]
    )
    commit = JobTable.commit

    def late(*arguments: Any, **options: Any) -> int:
        for write in writes:
            write(target.dataset())
        return commit(*arguments, **options)

    monkeypatch.setattr(JobTable, "commit", late)
    assert delete(LocalRun(), catalog, spark, name, where="id < 500")["rows"] == 501
    assert contents(target) == dict.fromkeys([*range(500, 700), *range(701, 1000)], "old") | {2000: "theirs"}
