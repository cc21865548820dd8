"""Jobs whose tasks run on Spark: their driver is killed at each of its writes, or a Python worker at each of its own.

What makes work small enough for threads of the driver is set to nothing, so that a few rows take tasks. A driver that
is killed is followed by another one, a worker by Spark itself, which gives the task to a new one. In the end the table
is as without a kill, and a collection has removed all files but those that its versions need.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import replace

import lance
import pyarrow as pa
import pyarrow.parquet as pq

import tiltyard
from tests.faults.sweep.installation import Installation, create_table, insert, rows, work_off
from tests.faults.sweep.jobs import Check, Content, drive, make_delete, of_version, prepare, row
from tests.faults.sweep.jobs import finish as finish_job
from tests.faults.sweep.operation import Begin, SweptOperation
from tests.faults.sweep.spark import SharedSpark, attached_session
from tests.services.wire import stream
from tiltyard.pipeline.delete import job as deleting
from tiltyard.pipeline.indexes import segments
from tiltyard.pipeline.optimize import job as optimizing
from tiltyard.pipeline.session import LazySession
from tiltyard.pipeline.upsert import plan as upserting
from tiltyard.pipeline.views import planning
from tiltyard.pipeline.writing import row_sources

ROWS_PER_SEGMENT, VECTORS, DIMENSION = 100, 300, 4


def _take_tasks() -> None:
    """Have Spark's tasks do what threads of the driver would."""
    row_sources.MAX_DRIVER_BYTES = upserting.MAX_DRIVER_ROWS = segments.MAX_DRIVER_ROWS = 0
    deleting.MAX_DRIVER_ROWS = 0
    optimizing.MAX_DRIVER_BYTES = optimizing.MAX_DRIVER_ROWS = 0
    planning.ROWS_PER_PART, segments.ROWS_PER_SEGMENT = 1, ROWS_PER_SEGMENT


def drive_on_spark(installation: Installation, begin: Begin = lambda: None) -> None:
    """Drive the queued job to its end, in tasks of Spark."""
    _take_tasks()
    drive(installation, begin, LazySession(attached_session))


def finish(table: str, expected: Content, check: Check = lambda _: None) -> Callable[[Installation], None]:
    """Return what `jobs.finish` does, with a driver that takes the job over on Spark."""

    def check_and_wait(dataset: lance.LanceDataset) -> None:
        check(dataset)
        SharedSpark(attached_session()).stop_tasks()  # a task of the killed driver may be writing still

    return finish_job(table, expected, check_and_wait, drive_on_spark)


def _write_files(installation: Installation, *parts: pa.Table) -> str:
    """Write a folder of Parquet files."""
    folder = installation.folder / "source"
    folder.mkdir()
    for number, part in enumerate(parts):
        pq.write_table(part, folder / f"{number}.parquet")
    return str(folder)


def make_ingest(installation: Installation, namespace: tiltyard.Namespace) -> Mapping[str, object]:
    create_table(namespace, ["t"], 1)
    return {"source": _write_files(installation, rows(2, 3), rows(4)), "table": "t", "mode": "append"}


def make_upsert(installation: Installation, namespace: tiltyard.Namespace) -> Mapping[str, object]:
    create_table(namespace, ["t"], 1, 2)
    parts = [pa.table({"id": pa.array([number], pa.int64()), "value": pa.array([7])}) for number in (2, 3)]
    return {"source": _write_files(installation, *parts), "table": "t", "on": ["id"]}


def _create_fragments(namespace: tiltyard.Namespace, name: str) -> None:
    """Create a table of four fragments, one of which has a deleted row."""
    create_table(namespace, [name], 1, 2)
    for number in (3, 4, 5):
        insert(namespace, [name], number)
    namespace.call("DeleteFromTable", {"id": [name], "predicate": "id = 2"})


def make_backfill(_: Installation, namespace: tiltyard.Namespace) -> Mapping[str, object]:
    """A column that the table lacks, of a function."""
    _create_fragments(namespace, "t")
    code = {"udf": "tests.spark.functions:doubled", "inputs": ["id"], "type": "int64"}
    return {"table": "t", "column": "twice", "rows_per_task": 1, **code}


def make_deduplicate(_: Installation, namespace: tiltyard.Namespace) -> Mapping[str, object]:
    """Equal values, in two fragments."""
    create_table(namespace, ["t"], 1, 2)
    insert(namespace, ["t"], 3, 4)
    namespace.call("UpdateTable", {"id": ["t"], "predicate": "id > 2", "updates": [["value", "7"]]})
    return {"table": "t", "on": "value", "method": "exact", "id": "id"}


def make_optimize(_: Installation, namespace: tiltyard.Namespace) -> Mapping[str, object]:
    """An index that lacks rows, and small fragments."""
    _create_fragments(namespace, "t")
    namespace.call("CreateTableScalarIndex", {"id": ["t"], "column": "id", "index_type": "BTREE"})
    work_off(namespace)
    insert(namespace, ["t"], 6)
    return {"table": "t"}


def _check_optimized(dataset: lance.LanceDataset) -> None:
    assert len(dataset.get_fragments()) == 1
    assert dataset.to_table(filter="id = 6").num_rows == 1
    _check_covered(dataset)


def make_index(_: Installation, namespace: tiltyard.Namespace) -> Mapping[str, object]:
    """Vectors in three fragments."""
    for start in range(0, VECTORS, ROWS_PER_SEGMENT):
        ids = pa.array(range(start, start + ROWS_PER_SEGMENT), pa.int64())
        numbers = [float(number) for row_id in ids.to_pylist() for number in range(row_id, row_id + DIMENSION)]
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(numbers, pa.float32()), DIMENSION)
        operation = "InsertIntoTable" if start else "CreateTable"
        namespace.call(operation, {"id": ["t"]}, stream(pa.table({"id": ids, "vector": vectors})))
    return {"table": "t", "column": "vector", "type": "IVF_FLAT", "parameters": {"num_partitions": "2"}}


def _check_index(dataset: lance.LanceDataset) -> None:
    [index] = dataset.describe_indices()
    covered = [number for part in index.segments for number in part.fragment_ids]
    assert sorted(covered) == [fragment.fragment_id for fragment in dataset.get_fragments()]
    nearest = {"column": "vector", "q": [7.5] * DIMENSION, "k": 5, "nprobes": 2}
    found = [dataset.to_table(nearest={**nearest, "use_index": use})["id"].to_pylist() for use in (True, False)]
    assert sorted(found[0]) == sorted(found[1])


def prepare_refresh(**definition: object) -> Callable[[Installation], None]:
    """Return what makes a view that is up to date, and changes its source: rows that come, that go, and a new value."""

    def run(installation: Installation) -> None:
        with installation.namespace() as namespace:
            create_table(namespace, ["t"], 1, 2)
            insert(namespace, ["t"], 3, 4)
            output = base64.b64encode(rows(1).schema.serialize().to_pybytes()).decode()
            view = {"kind": "query", "source_query": "SELECT id, value FROM t", "output_schema": output, **definition}
            namespace.call("CreateMaterializedView", {"id": ["v"], **view})
        prepare("refresh", lambda *_: {"table": "v"})(installation)
        drive_on_spark(installation)
        with installation.namespace() as namespace:
            namespace.call("DeleteFromTable", {"id": ["t"], "predicate": "id = 1"})
            namespace.call("UpdateTable", {"id": ["t"], "predicate": "id = 3", "updates": [["value", "7"]]})
            insert(namespace, ["t"], 5)
        prepare("refresh", lambda *_: {"table": "v"})(installation)

    return run


def _check_covered(dataset: lance.LanceDataset) -> None:
    [index] = dataset.describe_indices()
    assert index.num_rows_indexed == dataset.count_rows()


INGESTED, UPSERTED = [row(each) for each in (1, 2, 3, 4)], [row(1), row(2, 7), row(3, 7)]
FILLED = [{"id": each, "twice": 2 * each} for each in (1, 3, 4, 5)]
GROUPED = [{"id": each, "duplicate_of": first} for each, first in ((1, None), (2, 1), (3, None), (4, 3))]
REFRESHED = [row(2), row(3, 7), row(4), row(5)]
COMPACTED, INDEXED = [row(each) for each in (1, 3, 4, 5, 6)], [{"id": each} for each in range(VECTORS)]
DRIVERS: dict[str, SweptOperation] = {
    "spark-ingest": SweptOperation(
        prepare("ingest", make_ingest), drive_on_spark, finish("t", INGESTED, of_version(2))
    ),
    "spark-upsert": SweptOperation(
        prepare("upsert", make_upsert), drive_on_spark, finish("t", UPSERTED, of_version(2))
    ),
    "spark-backfill": SweptOperation(prepare("backfill", make_backfill), drive_on_spark, finish("t", FILLED)),
    "spark-deduplicate": SweptOperation(prepare("deduplicate", make_deduplicate), drive_on_spark, finish("t", GROUPED)),
    "spark-delete": SweptOperation(
        prepare("delete", make_delete), drive_on_spark, finish("t", [row(1), row(4)], of_version(3))
    ),
    "spark-refresh": SweptOperation(prepare_refresh(), drive_on_spark, finish("v", REFRESHED, of_version(3))),
    "spark-refresh-indexed": SweptOperation(
        prepare_refresh(indexes=[{"column": "id", "index_type": "BTREE", "name": "ids"}]),
        drive_on_spark,
        finish("v", REFRESHED, _check_covered),
    ),
    "spark-optimize": SweptOperation(
        prepare("optimize", make_optimize), drive_on_spark, finish("t", COMPACTED, _check_optimized)
    ),
    "spark-index": SweptOperation(prepare("index", make_index), drive_on_spark, finish("t", INDEXED, _check_index)),
}
SAME_TASKS = ("spark-delete", "spark-refresh-indexed")
"""Jobs whose tasks make nothing durable, which their commit does, or are those of another one."""
SPARK_JOBS: dict[str, SweptOperation] = {
    **DRIVERS,
    **{
        f"{name}-task": replace(operation, in_tasks=True)
        for name, operation in DRIVERS.items()
        if name not in SAME_TASKS
    },
}
