"""Spark's jobs and writers against a table with a primary key: the loser says which key, and leaves nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lance_namespace.errors import InvalidTableStateError
from pyspark.errors import PySparkException

from tests.services.server import ServerProcess
from tests.spark.job_processes import transaction, wait_for
from tiltyard.pipeline.catalog_client import Table
from tiltyard.pipeline.catalog_client import table as table_of
from tiltyard.pipeline.driver.catalog_run import CatalogRun, claim_job, drive_job, new_owner, submit_job
from tiltyard.pipeline.ingest.job import ingest, upsert
from tiltyard.pipeline.jobs import find_job
from tiltyard.pipeline.runs import LocalRun
from tiltyard.pipeline.sources.casts import ColumnSelection
from tiltyard.pipeline.writing.commit import DuplicateKeyError, NullKeyError
from tiltyard.pipeline.writing.options import WriteOptions
from tiltyard.pipeline.writing.row_sources import FrameRows
from tiltyard.pipeline.writing.target_table import WriteMode
from tiltyard.pipeline.writing.write_job import write_source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tiltyard.pipeline.table_location import CatalogConnection

pytestmark = pytest.mark.extended

Write = Callable[[list[int]], None]
WRITERS = ["ingest", "upsert", "frame", "data source", "data source upsert", "stream"]
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


def rows(ids: list[int] | list[int | None], prefix: str = "n") -> pa.Table:
    return pa.table({"id": ids, "name": [f"{prefix}{number}" for number in ids]}, schema=SCHEMA)


@pytest.fixture
def target(shared_server: ServerProcess, catalog: CatalogConnection, fresh: Callable[[str], str]) -> Table:
    """A table with the key `id`, its index, and the rows 1 to 3."""
    target = table_of(catalog, fresh("keyed"))
    lance.write_dataset(rows([1, 2, 3]), namespace_client=target.client, table_id=target.id)
    declared = catalog.caller().call("SetTablePrimaryKey", id=target.id, columns=["id"])
    [index] = declared["transaction_ids"]
    wait_for(lambda: transaction(shared_server, index).status == "Succeeded")
    return target


@pytest.fixture
def writers(
    spark: SparkSession, shared_server: ServerProcess, catalog: CatalogConnection, target: Table, tmp_path: Path
) -> Callable[[str], Write]:
    """Return a function that makes a writer of rows with new names; it writes the same again if it is called again."""
    numbers = iter(range(1000))

    def make(kind: str) -> Write:
        name, folder = str(target), tmp_path / f"{kind} {next(numbers)}"
        folder.mkdir()
        options = {"uri": shared_server.url, "table": name}

        def write_stream() -> None:
            source = spark.readStream.schema("id long, name string").parquet(str(folder))
            stream = source.writeStream.format("tiltyard").options(stream=folder.name.replace(" ", "-"), **options)
            query = stream.option("checkpointLocation", f"{folder} seen").trigger(availableNow=True).start()
            query.awaitTermination()

        def write(ids: list[int]) -> None:
            file = folder / "rows.parquet"
            if not file.exists():
                pq.write_table(rows(ids, f"{folder.name} "), file)
            frame = spark.read.parquet(str(file))
            by_source = frame.write.format("tiltyard").options(**options).mode("append")
            if kind == "ingest":
                ingest(LocalRun(), catalog, spark, str(file), name, mode="append")
            elif kind == "upsert":
                upsert(LocalRun(), catalog, spark, str(file), name, on=["name"])
            elif kind == "frame":
                selection = WriteOptions(WriteMode.APPEND, ColumnSelection((), {}, {}, ()))
                write_source(LocalRun(), FrameRows((), frame), table_of(catalog, name), selection)
            elif kind == "data source":
                by_source.save()
            elif kind == "data source upsert":
                by_source.option("on", "name").save()
            else:
                write_stream()

        return write

    return make


def ids(target: Table) -> list[int]:
    return sorted(lance.dataset(target.location().uri).to_table()["id"].to_pylist())


def files(target: Table) -> int:
    return sum(1 for path in (Path(target.location().uri) / "data").iterdir() if path.is_file())


@pytest.mark.parametrize("kind", WRITERS)
def test_write_of_a_key_that_exists_says_which_leaves_nothing_and_can_be_done_again(
    writers: Callable[[str], Write], target: Table, kind: str
) -> None:
    write, version, before = writers(kind), target.dataset().version, files(target)
    for _ in range(2):
        with pytest.raises((DuplicateKeyError, PySparkException), match="Duplicate key: id = 2 exists"):
            write([10, 2, 3])
        assert (ids(target), target.dataset().version) == ([1, 2, 3], version)
        assert files(target) == before
    target.dataset().delete("id IN (2, 3)")
    write([10, 2, 3])
    assert ids(target) == [1, 2, 3, 10]


@pytest.mark.parametrize("kind", ["ingest", "data source"])
def test_write_of_a_key_twice_or_of_null_is_refused(
    spark: SparkSession, writers: Callable[[str], Write], target: Table, kind: str
) -> None:
    before = files(target)
    with pytest.raises((DuplicateKeyError, PySparkException), match="id = 11 comes twice"):
        writers(kind)([10, 11, 12, 11])
    with pytest.raises((NullKeyError, PySparkException), match="no value in 'id'"):
        writers(kind)([10, None])  # type: ignore[list-item]  # this is the point
    assert (ids(target), files(target)) == ([1, 2, 3], before)


def test_writers_of_every_kind_with_one_key_at_once_have_one_winner(
    spark: SparkSession, writers: Callable[[str], Write], target: Table
) -> None:
    """All start together; each loser says which key, and succeeds once the winner's row is gone."""
    outcomes: dict[str, Exception | None] = {}
    made = {kind: writers(kind) for kind in WRITERS}
    start = threading.Barrier(len(made))

    def run(kind: str) -> None:
        spark.createDataFrame([(1,)], "id long")  # Spark finds data sources in threads that have had the session
        start.wait()
        try:
            made[kind]([20, 21])
            outcomes[kind] = None
        except (DuplicateKeyError, PySparkException) as error:
            outcomes[kind] = error

    threads = [threading.Thread(target=run, args=(kind,)) for kind in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ids(target) == [1, 2, 3, 20, 21]
    losers = {kind: error for kind, error in outcomes.items() if error is not None}
    assert len(losers) == len(WRITERS) - 1, outcomes
    assert all("Duplicate key: id = 2" in str(error) for error in losers.values()), losers
    for kind in losers:
        target.dataset().delete("id > 3")
        made[kind]([20, 21])
        assert ids(target) == [1, 2, 3, 20, 21], kind


def test_tracked_job_has_the_key_in_its_message_and_is_resumed_once_it_is_free(
    shared_server: ServerProcess, spark: SparkSession, catalog: CatalogConnection, target: Table, tmp_path: Path
) -> None:
    pq.write_table(rows([10, 2], "new"), tmp_path / "rows.parquet")
    calls, before = catalog.caller(), files(target)
    arguments = {"source": str(tmp_path / "rows.parquet"), "table": str(target), "mode": "append"}
    job_id = submit_job(calls, find_job("ingest"), arguments).id

    def drive() -> None:
        owner = new_owner()
        job = claim_job(calls, job_id, owner)
        run = CatalogRun(calls, job, owner)
        drive_job(run, lambda: job.execute(run, catalog, spark))

    with pytest.raises(DuplicateKeyError, match="id = 2"):
        drive()
    failed = transaction(shared_server, job_id)
    assert failed.status == "Failed"
    assert "Duplicate key: id = 2 exists in this table already" in str(failed.properties)
    assert (ids(target), files(target)) == ([1, 2, 3], before)
    target.dataset().delete("id = 2")
    drive()
    assert ids(target) == [1, 2, 3, 10]
    assert transaction(shared_server, job_id).status == "Succeeded"


def test_upserts_by_the_key_itself_race_and_each_key_is_there_once(
    spark: SparkSession, catalog: CatalogConnection, target: Table, tmp_path: Path
) -> None:
    """An upsert by the key loses no race: it plans again, and replaces the winner's rows."""
    errors: list[BaseException] = []

    def run(number: int) -> None:
        file = tmp_path / f"{number}.parquet"
        pq.write_table(rows([2, 3, 30, 31], f"{number} "), file)
        try:
            upsert(LocalRun(), catalog, spark, str(file), str(target), on=["id"])
        except BaseException as error:  # noqa: BLE001  # none is expected
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert ids(target) == [1, 2, 3, 30, 31]


def test_key_of_another_kind_of_refusal_is_an_error_of_the_table(
    spark: SparkSession, catalog: CatalogConnection, target: Table, tmp_path: Path
) -> None:
    """An overwrite without the key's column is refused as a whole, with the reason."""
    pq.write_table(pa.table({"other": [1]}), tmp_path / "other.parquet")
    before = files(target)
    with pytest.raises(Exception, match="part of this table's primary key") as refused:
        ingest(LocalRun(), catalog, spark, str(tmp_path / "other.parquet"), str(target), mode="overwrite")
    assert not isinstance(refused.value, InvalidTableStateError)
    assert (ids(target), files(target)) == ([1, 2, 3], before)
