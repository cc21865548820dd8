"""Jobs, the data source and publications on tables below a mount, alone and beside tables of the catalog."""

# ruff: noqa: PT012 - what raises is the end of a block, whatever it holds

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lance
import lancedb
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lance.fragment import write_fragments
from lance_namespace.errors import LanceNamespaceError
from pyspark.errors import PySparkException

import tiltyard
from tests.services.hive import hive_metastore
from tests.services.server import ServerProcess
from tests.spark.views import create_view, numbers
from tests.tables.commits.test_commit import stage
from tiltyard.pipeline.backfill.job import backfill
from tiltyard.pipeline.catalog_client import CatalogConnection, Table, connection, table
from tiltyard.pipeline.delete.job import delete
from tiltyard.pipeline.driver.catalog_run import CatalogRun, drive_job, new_owner, submit_job
from tiltyard.pipeline.export.job import export
from tiltyard.pipeline.indexes.job import index
from tiltyard.pipeline.ingest.job import ingest, upsert
from tiltyard.pipeline.jobs import find_job
from tiltyard.pipeline.optimize.job import optimize
from tiltyard.pipeline.optimize.needed_jobs import Thresholds, queue_needed_jobs
from tiltyard.pipeline.plans.job import pipeline
from tiltyard.pipeline.plans.plan_file import read_plan
from tiltyard.pipeline.runs import LocalRun
from tiltyard.pipeline.views.job import refresh
from tiltyard.pipeline.writing.commit import CommitConflictError, JobTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Fresh = Callable[[str], str]

ROWS = numbers(10, 15)
UNMANAGED, MANAGED = "lake$a", "kept$a"
"""A namespace below a mount whose commits go to the storage, and one below a mount whose go through the catalog."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with two folders mounted."""
    root = tmp_path_factory.mktemp("mounting")
    mounts: dict[str, Mapping[str, object]] = {}
    for name in ("lake", "kept"):
        (root / name).mkdir()
        mounts[name] = {"kind": "dir", "root": str(root / name), "managed_versioning": name == "kept"}
    running = ServerProcess(root / "own", environ={"TILTYARD_MOUNTS": json.dumps(mounts)})
    calls = connection(running.url).caller()
    for namespace in (UNMANAGED, MANAGED):
        calls.call("CreateNamespace", id=namespace.split("$"))
    yield running
    running.stop()


@pytest.fixture
def mounted(server: ServerProcess) -> CatalogConnection:
    """A connection to it."""
    return connection(server.url)


@pytest.fixture(params=[UNMANAGED, MANAGED])
def name(request: pytest.FixtureRequest, fresh: Fresh) -> str:
    """The name of a table that is not there yet."""
    return f"{request.param}${fresh('films')}"


@pytest.fixture
def target(mounted: CatalogConnection, name: str) -> Table:
    """A table of four fragments."""
    return write(mounted, name, numbers(0, 1000), max_rows_per_file=250)


def write(catalog: CatalogConnection, name: str, rows: pa.Table, mode: str = "create", **options: Any) -> Table:
    """Write rows by stock pylance."""
    written = table(catalog, name)
    lance.write_dataset(rows, namespace_client=written.client, table_id=written.id, mode=mode, **options)
    return written


def plain(target: Table) -> lance.LanceDataset:
    """Open a table at its location, without the catalog."""
    return lance.dataset(target.location().uri)


def parquet(folder: Path, rows: pa.Table) -> str:
    file = folder / "rows.parquet"
    pq.write_table(rows, file)
    return str(file)


def test_ingest_creates_and_appends(mounted: CatalogConnection, spark: SparkSession, name: str, tmp_path: Path) -> None:
    source = parquet(tmp_path, numbers(0, 500))
    ingest(LocalRun(), mounted, spark, source, name)
    ingest(LocalRun(), mounted, spark, parquet(tmp_path, numbers(500, 700)), name, mode="append")
    assert sorted(plain(table(mounted, name)).to_table()["id"].to_pylist()) == list(range(700))
    ingest(LocalRun(), mounted, spark, source, name, mode="overwrite")
    assert plain(table(mounted, name)).count_rows() == table(mounted, name).dataset().count_rows() == 200


@pytest.mark.extended
def test_upsert_delete_backfill_and_export(
    mounted: CatalogConnection, spark: SparkSession, target: Table, tmp_path: Path
) -> None:
    changed = pa.table({"id": range(900, 1100), "text": ["changed"] * 200}, numbers(0, 1).schema)
    upsert(LocalRun(), mounted, spark, parquet(tmp_path, changed), str(target), on=["id"])
    assert plain(target).count_rows() == 1100
    assert plain(target).count_rows("text = 'changed'") == 200
    delete(LocalRun(), mounted, spark, str(target), where="id < 100")
    assert plain(target).count_rows() == 1000
    backfill(
        LocalRun(), mounted, spark, str(target), "twice", udf="tests.spark.functions:doubled", inputs=["id"],
        type="int64",
    )  # fmt: skip
    assert plain(target).count_rows("twice = id * 2") == 1000
    export(LocalRun(), mounted, spark, str(target), str(tmp_path / "out"))
    assert pq.read_table(tmp_path / "out").num_rows == 1000


@pytest.mark.extended
def test_index_and_optimize_and_maintain(mounted: CatalogConnection, spark: SparkSession, target: Table) -> None:
    index(LocalRun(), mounted, spark, str(target), "id", "BTREE")
    index(LocalRun(), mounted, spark, str(target), "text", "FTS")
    write(mounted, str(target), numbers(1000, 1100), "append")
    calls = mounted.caller()
    (needed,) = queue_needed_jobs(calls, [str(target)], Thresholds(small_fragments=4, unindexed=0.05), dry_run=True)
    assert (needed.table, needed.job) == (str(target), "optimize")
    optimize(LocalRun(), mounted, spark, str(target))
    assert len(plain(target).get_fragments()) == 1
    assert {entry["name"] for entry in plain(target).list_indices()} == {"id_idx", "text_idx"}
    assert plain(target).stats.index_stats("id_idx")["num_unindexed_rows"] == 0
    assert plain(target).to_table(filter="id = 1050").num_rows == 1


@pytest.mark.extended
@pytest.mark.parametrize(("source_in", "view_in"), [(UNMANAGED, ""), ("", UNMANAGED), (UNMANAGED, MANAGED)])
def test_refresh_whose_source_or_view_is_below_a_mount(
    mounted: CatalogConnection, spark: SparkSession, fresh: Fresh, source_in: str, view_in: str
) -> None:
    source, view = (f"{place}${fresh(stem)}".strip("$") for place, stem in ((source_in, "source"), (view_in, "view")))
    write(mounted, source, numbers(0, 100))
    create_view(mounted, view, f"SELECT id, upper(text) AS text FROM `{source}` WHERE id % 2 = 0")
    assert refresh(LocalRun(), mounted, spark, view)["mode"] == "full"
    write(mounted, source, numbers(100, 120), "append")
    again = refresh(LocalRun(), mounted, spark, view)
    assert (again["mode"], again["rows"]) == ("incremental", 10)
    assert sorted(plain(table(mounted, view)).to_table()["id"].to_pylist()) == list(range(0, 120, 2))
    assert refresh(LocalRun(), mounted, spark, view)["mode"] == "unchanged"


@pytest.mark.extended
def test_tracked_job_has_its_table_and_succeeds(mounted: CatalogConnection, spark: SparkSession, target: Table) -> None:
    calls, owner = mounted.caller(), new_owner()
    arguments = {"table": str(target), "where": "id >= 500"}
    queued = submit_job(calls, find_job("delete"), arguments, owner=owner)
    run = CatalogRun(calls, queued, owner)
    drive_job(run, lambda: queued.execute(run, mounted, spark))
    job = calls.call("DescribeJob", id=[queued.id])["job"]
    assert (job["status"], job["table"]) == ("Succeeded", target.id)
    assert plain(target).count_rows() == 500


def test_data_source_writes_reads_upserts_and_streams(
    server: ServerProcess, spark: SparkSession, name: str, mounted: CatalogConnection, tmp_path: Path
) -> None:
    options = {"uri": server.url, "table": name}
    frame = spark.range(100).selectExpr("id", "concat('row ', id) AS text")
    frame.write.format("tiltyard").options(**options).mode("append").save()
    frame.selectExpr("id + 50 AS id", "'changed' AS text").write.format("tiltyard").options(**options, on="id").mode(
        "append"
    ).save()
    read = spark.read.format("tiltyard").options(**options).load()
    assert (read.count(), read.where("text = 'changed'").count()) == (150, 100)
    assert plain(table(mounted, name)).count_rows() == 150
    stream = spark.readStream.format("tiltyard").options(**options).load()
    copy = f"{name}_copy"
    writing = (
        stream.writeStream.format("tiltyard")
        .options(uri=server.url, table=copy, stream=copy, checkpointLocation=str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    writing.awaitTermination()
    assert plain(table(mounted, copy)).count_rows() == 150


def test_data_source_of_a_missing_table_is_one_sentence(server: ServerProcess, spark: SparkSession) -> None:
    with pytest.raises(PySparkException, match="nowhere"):
        spark.read.format("tiltyard").options(uri=server.url, table=f"{UNMANAGED}$nowhere").load()


def pair(mounted: CatalogConnection, fresh: Fresh, namespace: str) -> tuple[Table, Table]:
    """A table below a mount, and one of the catalog."""
    theirs, own = f"{namespace}${fresh('batch')}", fresh("batch")
    return write(mounted, theirs, numbers(0, 10)), write(mounted, own, numbers(0, 10))


def test_publication_with_a_managed_mounted_table_is_exact(mounted: CatalogConnection, fresh: Fresh) -> None:
    theirs, own = pair(mounted, fresh, MANAGED)
    with tiltyard.publish(mounted.client()) as tables:
        for target in (theirs, own):
            lance.write_dataset(ROWS, namespace_client=tables, table_id=target.id, mode="append")
        assert [plain(target).count_rows() for target in (theirs, own)] == [10, 10]
    assert [plain(target).count_rows() for target in (theirs, own)] == [15, 15]
    assert [target.latest_version() for target in (theirs, own)] == [2, 2]


def test_publication_with_an_unmanaged_mounted_table_is_refused_and_leaves_nothing(
    mounted: CatalogConnection, fresh: Fresh
) -> None:
    theirs, own = pair(mounted, fresh, UNMANAGED)
    with pytest.raises(LanceNamespaceError, match="managed"), tiltyard.publish(mounted.client()) as tables:
        for target in (own, theirs):
            lance.write_dataset(ROWS, namespace_client=tables, table_id=target.id, mode="append")
    assert [plain(target).count_rows() for target in (theirs, own)] == [10, 10]
    assert [target.dataset().version for target in (theirs, own)] == [1, 1]


def test_raw_batch_with_an_unmanaged_mounted_table_is_refused_before_anything_is_recorded(
    mounted: CatalogConnection, fresh: Fresh, tmp_path: Path
) -> None:
    theirs, own = pair(mounted, fresh, UNMANAGED)
    staged = [
        {"id": target.id, "version": 2, "manifest_path": stage(Path(target.location().uri), 2, tmp_path, ROWS)}
        for target in (own, theirs)
    ]
    calls = mounted.caller()
    with pytest.raises(LanceNamespaceError, match="below a mount"):
        calls.call("BatchCommitTables", operations=[{"create_table_version": each} for each in staged])
    with pytest.raises(LanceNamespaceError, match="below a mount"):
        calls.call("BatchCreateTableVersions", entries=staged)
    assert [plain(target).count_rows() for target in (theirs, own)] == [10, 10]
    assert [target.latest_version() for target in (theirs, own)] == [1, 1]


def test_write_around_a_managed_mount_is_noticed_by_repair(mounted: CatalogConnection, fresh: Fresh) -> None:
    target = write(mounted, f"{MANAGED}${fresh('around')}", numbers(0, 10))
    write(mounted, str(target), numbers(10, 20), "append")
    calls = mounted.caller()
    assert calls.call("RepairTable", id=target.id)["findings"] == []
    lance.write_dataset(numbers(20, 30), target.location().uri, mode="append")
    (finding,) = calls.call("RepairTable", id=target.id)["findings"]
    assert finding["kind"] == "unrecorded versions"
    assert "3" in finding["found"] and "bypassing" in finding["found"]
    assert calls.call("RepairTable", id=target.id)["findings"] == []
    write(mounted, str(target), numbers(30, 40), "append")
    assert plain(target).count_rows() == target.dataset().count_rows() == 40


def test_stock_clients_over_a_managed_mount(server: ServerProcess, mounted: CatalogConnection, fresh: Fresh) -> None:
    name, place = fresh("stock"), MANAGED.split("$")
    for connected in (
        lancedb.connect("db://any", api_key="none", host_override=server.url),
        lancedb.connect_namespace("rest", {"uri": server.url}),
    ):
        each = f"{name}{type(connected).__name__.lower()}"
        opened = connected.create_table(each, numbers(0, 100), namespace_path=place)
        opened.add(numbers(100, 120))
        opened.delete("id < 20")
        assert opened.count_rows() == 100
        target = table(mounted, (*place, each))
        assert target.describe().managed_versioning
        assert plain(target).count_rows() == 100
        assert mounted.caller().call("RepairTable", id=target.id)["findings"] == []


@pytest.mark.extended
def test_commit_of_a_job_gives_way_to_one_that_bypassed_the_catalog(mounted: CatalogConnection, target: Table) -> None:
    job_table = JobTable(target)
    before, place = job_table.latest(), target.location().uri
    lance.write_dataset(numbers(1000, 1010), place, mode="append")
    append = lance.LanceOperation.Append(write_fragments(numbers(2000, 2005), place, schema=before.schema))
    with pytest.raises(CommitConflictError):
        job_table.commit(before, append, LocalRun())
    assert plain(target).count_rows() == 1010
    assert job_table.commit(job_table.latest(), append, LocalRun()) == plain(target).version == 3
    assert plain(target).count_rows() == 1015


def run_plan(
    mounted: CatalogConnection, spark: SparkSession, file: Path, tables: dict[str, Any], reads: Mapping[str, str] = {}
) -> None:
    """Run a pipeline here."""
    escaped = {name: source.replace("$", "$$") for name, source in reads.items()}
    file.write_text(json.dumps({"tables": tables, **({"reads": escaped} if reads else {})}))
    plan = msgspec.json.encode(read_plan(file, {})).decode()
    pipeline(LocalRun(), mounted, spark, plan)


@pytest.mark.extended
def test_pipeline_reads_mounted_tables_and_writes_those_that_are_there_and_managed(
    mounted: CatalogConnection, spark: SparkSession, fresh: Fresh, tmp_path: Path
) -> None:
    source = write(mounted, f"{UNMANAGED}${fresh('source')}", numbers(0, 100))
    own, kept = fresh("own"), write(mounted, f"{MANAGED}${fresh('target')}", numbers(0, 10))
    query = {"sql": "SELECT id, text FROM films WHERE id < 20"}
    tables = {own: query, str(kept): {**query, "mode": "overwrite"}}
    run_plan(mounted, spark, tmp_path / "a.yaml", tables, {"films": str(source)})
    assert [plain(target).count_rows() for target in (table(mounted, own), kept)] == [20, 20]


@pytest.mark.parametrize("is_there", [True, False])
def test_pipeline_that_cannot_publish_a_mounted_table_says_so_and_leaves_nothing(
    mounted: CatalogConnection, spark: SparkSession, fresh: Fresh, tmp_path: Path, is_there: bool
) -> None:
    own, theirs = fresh("own"), f"{UNMANAGED}${fresh('target')}"
    write(mounted, own, numbers(0, 10))
    if is_there:
        write(mounted, theirs, numbers(0, 10))
    files = parquet(tmp_path, numbers(10, 30))
    mode = "append" if is_there else "create"
    tables = {own: {"files": files, "mode": "append"}, theirs: {"files": files, "mode": mode}}
    with pytest.raises(LanceNamespaceError, match=r"below a mount|only managed tables can be published"):
        run_plan(mounted, spark, tmp_path / "a.yaml", tables)
    assert plain(table(mounted, own)).count_rows() == 10
    assert table(mounted, own).latest_version() == 1
    if is_there:
        assert plain(table(mounted, theirs)).count_rows() == 10
    else:
        assert (
            not mounted.caller()
            .call("ListTables", id=UNMANAGED.split("$"), limit=1000)["tables"]
            .count(theirs.rpartition("$")[2])
        )


@pytest.mark.extended
def test_jobs_over_a_hive_metastore(spark: SparkSession, fresh: Fresh, tmp_path: Path) -> None:
    folder = tmp_path / "hive"
    folder.mkdir()
    with hive_metastore(folder) as metastore:
        mount = {"kind": "hive", "uri": metastore.uri, "timeout": 60, "allowed_locations": [str(folder)]}
        server = ServerProcess(tmp_path / "own", environ={"TILTYARD_MOUNTS": json.dumps({"hive": mount})})
        try:
            hive = connection(server.url)
            hive.caller().call("CreateNamespace", id=["hive", "films"])
            source, view = "hive$films$source", "hive$films$view"
            ingest(LocalRun(), hive, spark, parquet(tmp_path, numbers(0, 500)), source)
            upsert(LocalRun(), hive, spark, parquet(tmp_path, numbers(400, 600)), source, on=["id"])
            index(LocalRun(), hive, spark, source, "id", "BTREE")
            optimize(LocalRun(), hive, spark, source)
            create_view(hive, view, f"SELECT id, upper(text) AS text FROM `{source}` WHERE id % 2 = 0")
            refresh(LocalRun(), hive, spark, view)
            read = spark.read.format("tiltyard").options(uri=server.url, table=view).load()
            assert (plain(table(hive, source)).count_rows(), read.count()) == (600, 300)
        finally:
            server.stop()
