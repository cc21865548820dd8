"""Upserts of many keys, which are partitioned: the same rows and figures as where each task reads all keys."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lance_namespace.errors import InvalidInputError

from tests.services.server import ServerProcess
from tests.spark.killed_driver import partition_keys
from tests.spark.test_killed_drivers import killed, resumed
from tiltyard.pipeline.catalog_client import CatalogConnection, Table, table
from tiltyard.pipeline.ingest.job import upsert
from tiltyard.pipeline.runs import LocalRun, RunCanceledError
from tiltyard.pipeline.sources.filesystem import local_path
from tiltyard.pipeline.upsert import partitioned_lookup
from tiltyard.pipeline.upsert import plan as upserting
from tiltyard.pipeline.upsert.partitioned_lookup import reason_for_all_keys
from tiltyard.pipeline.writing.commit import JobTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.extended

Fresh = Callable[[str], str]
COUNTS = "rows", "updated", "inserted", "replaced"

KEYS: Mapping[str, tuple[pa.DataType, Callable[[int], Any]]] = {
    "int64": (pa.int64(), lambda number: number * 10**13),
    "uint64": (pa.uint64(), lambda number: 2**64 - 1 - number),
    "double": (pa.float64(), lambda number: number / 7),
    "text": (pa.string(), "key {}".format),
    "binary": (pa.binary(), lambda number: number.to_bytes(3)),
    "date": (pa.date32(), lambda number: datetime.date(1950, 1, 1) + datetime.timedelta(number)),
    "time": (pa.timestamp("us", "UTC"), lambda number: number * 1_000_003),
    "decimal": (pa.decimal128(12, 2), lambda number: Decimal(number) / 4),
    "row": (pa.int64(), lambda number: number),
}


@pytest.fixture
def partitioned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys are partitioned."""
    for module, name, value in partition_keys():
        monkeypatch.setattr(module, name, value)


def create_table(catalog: CatalogConnection, name: str, rows: pa.Table) -> Table:
    target = table(catalog, name)
    lance.write_dataset(rows, namespace_client=target.client, table_id=target.id, max_rows_per_file=100)
    return target


def folders(target: Table) -> list[Path]:
    """Where key files are."""
    return list(Path(local_path(target.location().uri)).glob("_indices/*"))


def key_rows(key: str, numbers: list[int | None], value: str) -> pa.Table:
    kind, make = KEYS[key]
    keys = pa.array([None if number is None else make(number) for number in numbers], kind)
    return pa.table({key: keys, "part": ["ab"[(number or 0) % 2] for number in numbers], "v": [value] * len(numbers)})


def upserted(
    catalog: CatalogConnection, spark: SparkSession, name: str, source: Path, on: list[str], old: pa.Table
) -> tuple[dict[str, Any], list[Any], LocalRun]:
    """Upsert into a new table; return the counts, the rows, and the run."""
    target, run = create_table(catalog, name, old), LocalRun()
    figures = upsert(run, catalog, spark, str(source), name, on=on)
    rows = sorted(map(repr, target.dataset().to_table().to_pylist()))
    assert not folders(target)
    return {count: figures[count] for count in COUNTS}, rows, run


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("is_composite", [False, True])
def test_partitioned_upsert_does_with_keys_of_every_type_what_one_of_all_keys_does(
    spark: SparkSession,
    catalog: CatalogConnection,
    fresh: Fresh,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    key: str,
    is_composite: bool,
) -> None:
    old = key_rows(key, [*range(300), None, *range(50, 80), None], "old")
    source = tmp_path / "new.parquet"
    pq.write_table(key_rows(key, [*range(250, 350), *range(60, 65)], "new"), source, row_group_size=20)
    on = [key, "part"] if is_composite else [key]
    expected, rows, run = upserted(catalog, spark, fresh("all"), source, on, old)
    assert run.figures["lookup"].startswith("all keys in each task: a task holds them")
    assert expected == {"rows": 105, "updated": 55, "inserted": 50, "replaced": 60}
    for module, name, value in partition_keys():
        monkeypatch.setattr(module, name, value)
    found, found_rows, run = upserted(catalog, spark, fresh("partitioned"), source, on, old)
    assert run.figures["lookup"] == "in 7 partitions"
    assert (found, found_rows) == (expected, rows)


@pytest.mark.usefixtures("partitioned")
@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ([*range(50), 3, *range(50, 99)], r"1 rows of the source have a key that an earlier row has, such as"),
        ([*range(50), None], r"The key 'int64' is null in 1 rows of the source: leave those rows out"),
    ],
)
def test_partitioned_upsert_refuses_keys_twice_and_null_ones_and_leaves_nothing(
    spark: SparkSession,
    catalog: CatalogConnection,
    fresh: Fresh,
    tmp_path: Path,
    numbers: list[int | None],
    message: str,
) -> None:
    target = create_table(catalog, fresh("refused"), key_rows("int64", list(range(300)), "old"))
    pq.write_table(key_rows("int64", numbers, "new"), tmp_path / "new.parquet")
    files = set(Path(local_path(target.location().uri)).rglob("*"))
    run = LocalRun()
    with pytest.raises(InvalidInputError, match=message):
        upsert(run, catalog, spark, str(tmp_path), target.path[0], on=["int64"])
    assert "partitions" in run.figures["lookup"]
    assert {file for file in Path(local_path(target.location().uri)).rglob("*") if file.is_file()} <= files
    assert target.dataset().version == 1


@pytest.mark.parametrize("is_partitioned", [False, True])
def test_upsert_overtaken_by_rows_of_its_keys_counts_each_key_once(
    spark: SparkSession,
    catalog: CatalogConnection,
    fresh: Fresh,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_partitioned: bool,
) -> None:
    for module, name, value in partition_keys() if is_partitioned else ():
        monkeypatch.setattr(module, name, value)
    target = create_table(catalog, fresh("overtaken"), key_rows("row", list(range(300)), "old"))
    pq.write_table(key_rows("row", list(range(250, 350)), "new"), tmp_path / "new.parquet", row_group_size=20)
    changes: list[Callable[[lance.LanceDataset], Any]] = [
        lambda dataset: dataset.insert(key_rows("row", [260, 320, 500, None], "theirs")),  # one that it has found twice
        lambda dataset: dataset.delete("row = 255 or row = 3"),
        lambda dataset: dataset.optimize.compact_files(),
    ]
    commit = JobTable.commit

    def late(*arguments: Any, **options: Any) -> int:
        if changes:
            changes.pop(0)(target.dataset())
        return commit(*arguments, **options)

    monkeypatch.setattr(JobTable, "commit", late)
    figures = upsert(LocalRun(), catalog, spark, str(tmp_path), target.path[0], on=["row"])
    assert not changes
    # of the keys that the table had, 255 was deleted meanwhile; of the new ones it got 320, and 260 once more
    assert [figures[count] for count in COUNTS] == [100, 50, 50, 51]
    rows = sorted(map(repr, target.dataset().to_table().to_pylist()))
    kept = [number for number in range(250) if number != 3]
    theirs = key_rows("row", [500, None], "theirs")
    expected = pa.concat_tables(
        [key_rows("row", [*kept], "old"), key_rows("row", list(range(250, 350)), "new"), theirs]
    )
    assert rows == sorted(map(repr, expected.to_pylist()))
    assert not folders(target)


@pytest.mark.parametrize("stage", ["partition", "match"])
def test_partitioned_upsert_whose_driver_was_killed_goes_on_beside_other_writers(
    shared_server: ServerProcess,
    environ: dict[str, str],
    spark: SparkSession,
    catalog: CatalogConnection,
    fresh: Fresh,
    tmp_path: Path,
    stage: str,
) -> None:
    target = create_table(catalog, fresh("killed"), key_rows("row", list(range(300)), "old"))
    pq.write_table(key_rows("row", list(range(250, 350)), "new"), tmp_path / "new.parquet", row_group_size=20)
    job_id = killed(
        shared_server, environ, target, "upsert", f"upsert-{stage}-", count=3, source=str(tmp_path), on=["row"]
    )
    target.dataset().insert(key_rows("row", [260, 340, 500], "theirs"))  # in between
    figures, before, after = resumed(target, spark, job_id)
    layout = json.loads(before[partitioned_lookup._LAYOUT])
    assert layout["version"] == 1 and partitioned_lookup._LAYOUT not in after
    done = [key for key in before if key.startswith(f"upsert-{stage}-")]
    assert len(done) >= 3 and not set(done) & set(after), "it has done again what was done"
    assert [figures[count] for count in COUNTS] == ["100", "51", "49", "52"]
    expected = pa.concat_tables(
        [key_rows("row", list(range(250)), "old"), key_rows("row", list(range(250, 350)), "new"),
         key_rows("row", [500], "theirs")]
    )  # fmt: skip
    assert target.dataset().to_table().sort_by("row") == expected
    assert not folders(target)


@pytest.mark.usefixtures("partitioned")
def test_partitioned_upsert_that_goes_on_after_its_version_was_cleaned_up_begins_again(
    spark: SparkSession,
    catalog: CatalogConnection,
    fresh: Fresh,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Stopped(LocalRun):
        def save_checkpoint(self, key: str, value: str) -> None:
            super().save_checkpoint(key, value)
            if key.startswith("upsert-match"):
                self.canceled.set()

    target = create_table(catalog, fresh("cleaned"), key_rows("row", list(range(300)), "old"))
    pq.write_table(key_rows("row", list(range(250, 350)), "new"), tmp_path / "new.parquet")
    run = Stopped()
    with pytest.raises(RunCanceledError):
        upsert(run, catalog, spark, str(tmp_path), target.path[0], on=["row"])
    [first] = folders(target)
    target.dataset().insert(key_rows("row", [500], "theirs"))
    monkeypatch.setattr(upserting, "open_version", lambda *_: None)  # Lance may have it in memory, in this process
    again = LocalRun(run.id, _checkpoints=dict(run.checkpoints()))
    figures = upsert(again, catalog, spark, str(tmp_path), target.path[0], on=["row"])
    assert [figures[count] for count in COUNTS] == [100, 50, 50, 50]
    assert target.dataset().count_rows() == 351
    assert folders(target) == [first], "gc deletes it"


def test_keys_are_partitioned_where_reading_all_in_each_task_is_more_work() -> None:
    assert reason_for_all_keys(4_000_000, 10**10, 2_500) == "a task holds them"
    assert "read them in less time" in reason_for_all_keys(5_000_000, 4_000_000, 2)
    assert not reason_for_all_keys(10**8, 10**10, 2_500)
    assert not reason_for_all_keys(10**10, 10**10, 2_500)
