"""Optimize adds many new rows to a vector index in tasks, with the index's own model; where it cannot, it says why."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lance
import numpy as np
import pyarrow as pa
import pytest

from tests.services.server import ServerProcess
from tests.spark.test_index import described
from tests.spark.test_killed_drivers import fragments_of, killed, resumed
from tests.spark.test_training import DIMENSION, as_column, recall, vectors
from tiltyard.change_feed.table_history import read_transaction
from tiltyard.pipeline.catalog_client import CatalogConnection, Table, table
from tiltyard.pipeline.indexes import growth
from tiltyard.pipeline.indexes.growth import _read_codebook
from tiltyard.pipeline.indexes.job import index
from tiltyard.pipeline.optimize import job as optimizing
from tiltyard.pipeline.optimize.job import optimize
from tiltyard.pipeline.runs import LocalRun
from tiltyard.upkeep import compaction
from tiltyard.upkeep.indexing import index_states

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FEW = {"num_partitions": "4"}
PARAMETERS = {**FEW, "num_sub_vectors": "8"}


def rows(count: int, seed: int, element: pa.DataType) -> pa.Table:
    """Rows whose ids begin at a thousand times the seed."""
    first = seed * 100_000
    return pa.table({"id": range(first, first + count), "vector": as_column(vectors(count, seed), element)})


@pytest.fixture(autouse=True)
def _few_rows_in_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "MIN_NEW_ROWS", 1)
    monkeypatch.setattr(optimizing, "MAX_DRIVER_ROWS", 0)


def indexed(
    spark: SparkSession, catalog: CatalogConnection, name: str, kind: str, element: pa.DataType, metric: str = "l2"
) -> Table:
    """A table of two fragments with an index, and two fragments that it lacks."""
    target = table(catalog, name)
    options = {"namespace_client": target.client, "table_id": target.id, "max_rows_per_file": 1000}
    lance.write_dataset(rows(2000, 1, element), **options)
    index(
        LocalRun(), catalog, spark, name, "vector", kind, metric=metric, parameters=PARAMETERS if "PQ" in kind else FEW
    )
    target.dataset().insert(rows(1000, 2, element))
    target.dataset().insert(rows(1000, 3, element))
    return target


def segments_of(target: Table) -> list[list[int]]:
    """The fragments of the index's segments."""
    return sorted(sorted(segment.fragment_ids) for segment in described(target, "vector_idx").segments)


@pytest.mark.parametrize(
    ("kind", "element", "metric"),
    [
        ("IVF_PQ", pa.float32(), "l2"),
        ("IVF_PQ", pa.float16(), "cosine"),
        ("IVF_FLAT", pa.float64(), "dot"),
        ("IVF_HNSW_PQ", pa.float32(), "l2"),
    ],
)
def test_new_rows_are_added_in_tasks_with_the_model_of_the_index(
    spark: SparkSession,
    catalog: CatalogConnection,
    fresh: Callable[[str], str],
    kind: str,
    element: pa.DataType,
    metric: str,
) -> None:
    name = fresh("grown")
    target = indexed(spark, catalog, name, kind, element, metric)
    centroids = target.dataset().get_ivf_model("vector_idx").centroids
    before = described(target, "vector_idx").details
    run = LocalRun()
    figures = optimize(run, catalog, spark, name, compact=False)
    assert (figures["indexes"], figures["rows_indexed"]) == (1, 2000)
    assert run.figures["extended"] == "vector_idx in tasks"
    assert segments_of(target) == [[0, 1, 2, 3]]  # the first segment is small beside the new rows
    after = described(target, "vector_idx").details
    assert {key: after[key] for key in ("metric_type", "compression", "hnsw") if key in before} == {
        key: before[key] for key in ("metric_type", "compression", "hnsw") if key in before
    }
    assert target.dataset().get_ivf_model("vector_idx").centroids == centroids
    found = recall(target, vectors(30, 8), metric=metric, nprobes=4, refine_factor=10)
    assert found > 0.95
    folder = Path(target.dataset().uri.removeprefix("file://"))
    assert not list(folder.glob("_indices/*/centroids.lance"))
    assert not list(folder.glob("_indices/*/recall"))


def test_large_segments_stay_and_the_new_one_has_their_codebook(
    spark: SparkSession, catalog: CatalogConnection, fresh: Callable[[str], str]
) -> None:
    name = fresh("beside")
    target = indexed(spark, catalog, name, "IVF_PQ", pa.float32())
    target.dataset().delete("id >= 300000 or (id >= 200000 and id < 200100) or (id >= 200600 and id < 201000)")
    first = described(target, "vector_idx").segments[0].uuid
    optimize(LocalRun(), catalog, spark, name, compact=False)
    assert segments_of(target) == [[0, 1], [2]]
    uuids = [str(segment.uuid) for segment in described(target, "vector_idx").segments]
    assert str(first) in uuids
    old, new = (_read_codebook(target.location(), uuid) for uuid in uuids)
    assert old == new
    assert (old[0], len(old[1]), old[1].type.list_size) == (8, 256, DIMENSION)
    assert target.dataset().count_rows("id >= 200000") == 500
    assert recall(target, vectors(30, 8), nprobes=4, refine_factor=10) > 0.95
    again = optimize(LocalRun(), catalog, spark, name, compact=False)
    assert (again["indexes"], again["rows_indexed"]) == (0, 0)


@pytest.mark.parametrize("kind", ["IVF_PQ", "BTREE"])
def test_compaction_below_a_large_index_leaves_it_and_adds_the_moved_rows_in_the_same_job(
    spark: SparkSession,
    catalog: CatalogConnection,
    fresh: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    monkeypatch.setattr(compaction, "MAX_REMAPPED_ROWS", 1000)
    monkeypatch.setattr(compaction, "MAX_LEFT_SHARE", 0.6)
    name = fresh("left")
    target = indexed(spark, catalog, name, "IVF_PQ", pa.float32())
    column = "vector" if kind == "IVF_PQ" else "id"
    if kind == "BTREE":
        target.dataset().drop_index("vector_idx")
        index(LocalRun(), catalog, spark, name, "id", "BTREE")
    optimize(LocalRun(), catalog, spark, name, compact=False)
    target.dataset().delete("id % 2 = 0 and id >= 200000")  # half of the rows of two fragments of four
    version = int(target.dataset().version)
    figures = optimize(LocalRun(), catalog, spark, name, rows_per_fragment=900)
    assert str(figures["remap"]).startswith("left out: a remap would rewrite 3000 entries of indexes, and 1000 of them")
    assert (figures["fragments_removed"], figures["rows_indexed"]) == (2, 1000)
    [state] = index_states(target.dataset())
    assert (state.indexed, state.missing) == (3000, 0)
    committed = read_transaction(target.dataset(), version + 1)
    assert committed is not None and not list(committed.operation.rewritten_indices)
    if kind == "IVF_PQ":
        assert recall(target, vectors(30, 8), nprobes=4, refine_factor=10) > 0.95
    for first in range(100_000, 301_000, 7_919):
        condition = f"id >= {first} and id < {first + 500}"
        found = target.dataset().to_table(columns=["id"], filter=condition)
        scanned = target.dataset().scanner(columns=["id"], filter=condition, use_scalar_index=False).to_table()
        assert found.sort_by("id") == scanned.sort_by("id"), column


@pytest.mark.parametrize(
    ("kind", "column", "reason"),
    [
        ("IVF_SQ", "vector", "segments of IVF_SQ have each a model of their own"),
        ("IVF_RQ", "vector", "segments of IVF_RQ have each a model of their own"),
        ("BTREE", "id", "it is no index of vectors, but BTree"),
    ],
)
def test_one_task_adds_rows_where_tasks_cannot_and_says_why(
    spark: SparkSession, catalog: CatalogConnection, fresh: Callable[[str], str], kind: str, column: str, reason: str
) -> None:
    name = fresh("alone")
    target = table(catalog, name)
    lance.write_dataset(rows(600, 1, pa.float32()), namespace_client=target.client, table_id=target.id)
    parameters = FEW if column == "vector" else {}
    index(LocalRun(), catalog, spark, name, column, kind, parameters=parameters)
    target.dataset().insert(rows(300, 2, pa.float32()))
    run = LocalRun()
    figures = optimize(run, catalog, spark, name, compact=False)
    assert figures["rows_indexed"] == 300
    assert run.figures["extended"] == f"{column}_idx in one task: {reason}"


def test_few_rows_and_a_single_slot_are_reasons(
    spark: SparkSession, catalog: CatalogConnection, fresh: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = indexed(spark, catalog, fresh("reasons"), "IVF_PQ", pa.float32())
    dataset, location = target.dataset(), target.location()
    [state] = optimizing.index_states(dataset)
    assert growth.plan_growth(dataset, location, state, 1000, 1) == "one task runs at once"
    monkeypatch.setattr(growth, "MIN_NEW_ROWS", 2001)
    assert growth.plan_growth(dataset, location, state, 1000, 2) == "2000 new rows are fewer than 2001"


@pytest.mark.parametrize("writer", ["append", "delete", "extend"])
def test_rows_are_added_beside_another_writer(
    spark: SparkSession,
    catalog: CatalogConnection,
    fresh: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
    writer: str,
) -> None:
    name = fresh("beside")
    target = indexed(spark, catalog, name, "IVF_PQ", pa.float32())
    writers: dict[str, Callable[[lance.LanceDataset], Any]] = {
        "append": lambda dataset: dataset.insert(rows(100, 4, pa.float32())),
        "delete": lambda dataset: dataset.delete("id < 100010"),
        "extend": lambda dataset: dataset.optimize.optimize_indices(num_indices_to_merge=1),
    }
    commit, writes = growth.commit_segments, iter([writers[writer]])

    def late(*arguments: Any) -> bool:
        for write in writes:
            write(target.dataset())
        return commit(*arguments)

    monkeypatch.setattr(growth, "commit_segments", late)
    optimize(LocalRun(), catalog, spark, name, compact=False)
    dataset = target.dataset()
    assert described(target, "vector_idx").num_rows_indexed >= dataset.count_rows() - (100 if writer == "append" else 0)
    assert recall(target, vectors(30, 8), nprobes=4, refine_factor=10) > 0.95


@pytest.mark.extended
def test_growth_whose_driver_was_killed_builds_only_what_is_left(
    shared_server: ServerProcess,
    environ: dict[str, str],
    spark: SparkSession,
    catalog: CatalogConnection,
    fresh: Callable[[str], str],
) -> None:
    target = indexed(spark, catalog, fresh("killed"), "IVF_FLAT", pa.float32())
    job_id = killed(shared_server, environ, target, "optimize", "vector_idx/segment-", count=1, slots=2, compact=False)
    figures, before, after = resumed(target, spark, job_id)
    parts = [[text for key, text in saved.items() if "/segment-" in key] for saved in (before, after)]
    first, second = ([part for part in fragments_of(texts) if len(part) < 4] for texts in parts)
    assert sorted(number for part in first + second for number in part) == [0, 1, 2, 3]
    assert "vector_idx/model" in before
    assert "vector_idx/model" not in after
    assert {json.loads(text)["model"] for texts in parts for text in texts} == {
        json.loads(before["vector_idx/model"])["model"]["folder"]
    }
    assert figures["rows_indexed"] == "2000"
    query = {"column": "vector", "q": np.zeros(DIMENSION, np.float32), "k": 10, "nprobes": 4}
    found = [target.dataset().to_table(nearest={**query, "use_index": use})["_distance"] for use in (True, False)]
    assert found[0].to_pylist() == pytest.approx(found[1].to_pylist(), rel=1e-4)
