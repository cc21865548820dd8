"""Training of vector indexes in tasks: recall of one task's, the same centroids each time, resuming, and its choice."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance_namespace.errors import InvalidInputError

from tests.services.server import ServerProcess
from tests.spark.test_killed_drivers import killed, resumed
from tiltyard.pipeline.catalog_client import CatalogConnection, Table, table
from tiltyard.pipeline.indexes import segments, training
from tiltyard.pipeline.indexes.job import index
from tiltyard.pipeline.indexes.model_files import IndexModel
from tiltyard.pipeline.runs import LocalRun

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DIMENSION, ROWS, PARTITIONS = 16, 8000, 20
PARAMETERS = {"num_partitions": str(PARTITIONS), "num_sub_vectors": "8"}
REFINED = tuple(f"{stage}{step}" for step in range(training.REFINEMENTS) for stage in ("sums", "moved"))
STAGES = ("sample", "coarse", "sorted", "clusters", *REFINED, "centroids", "residuals", "codes", "codebook")


def vectors(rows: int, seed: int) -> np.ndarray:
    """Vectors around 60 centres."""
    source = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(size=(60, DIMENSION))
    return (centres[source.integers(0, 60, rows)] + source.normal(size=(rows, DIMENSION)) * 0.3).astype(np.float32)


def as_column(matrix: np.ndarray, element: pa.DataType, *, nulls: int = 0) -> pa.Array:
    """Vectors as a column; every `nulls`-th row has none."""
    flat = pa.array(matrix.reshape(-1).astype(element.to_pandas_dtype()), element)
    mask = pa.array([nulls > 0 and number % nulls == 0 for number in range(len(matrix))])
    return pa.FixedSizeListArray.from_arrays(flat, DIMENSION, mask=mask)


@pytest.fixture(autouse=True)
def _small_samples_in_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "MIN_SAMPLE_BYTES", 1)


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The models of all builds, as they were when the segments had been built."""
    built: list[dict[str, Any]] = []
    build = segments._SegmentBuild.build

    def observed(self: Any, model: IndexModel, groups: Any) -> Any:
        built.append(model.arguments(self.input.location))
        return build(self, model, groups)

    monkeypatch.setattr(segments._SegmentBuild, "build", observed)
    return built


def written(catalog: CatalogConnection, name: str, column: pa.Array) -> Table:
    """A table of four fragments, of which some rows are deleted."""
    target = table(catalog, name)
    rows = pa.table({"id": range(len(column)), "vector": column})
    size = len(column) // 4
    lance.write_dataset(rows, namespace_client=target.client, table_id=target.id, max_rows_per_file=size)
    target.dataset().delete("id % 50 = 1")
    return target


def recall(target: Table, queries: np.ndarray, **options: Any) -> float:
    """The share of the ten nearest that the index finds."""
    dataset, found = target.dataset(), 0
    for query in queries:
        nearest = {"column": "vector", "q": query, "k": 10, "nprobes": 5, **options}
        by_index, exact = (
            set(dataset.to_table(columns=["id", "_distance"], nearest={**nearest, **each})["id"].to_pylist())
            for each in ({}, {"use_index": False})
        )
        found += len(by_index & exact)
    return found / 10 / len(queries)


def overlapping(rows: int, seed: int) -> np.ndarray:
    """Vectors around 2,000 centres that overlap: to find the nearest takes partitions that fit at all their borders."""
    source = np.random.default_rng(seed)
    centres = np.random.default_rng(98).normal(size=(2000, DIMENSION))
    return (centres[source.integers(0, 2000, rows)] + source.normal(size=(rows, DIMENSION)) * 0.5).astype(np.float32)


def test_index_trained_in_tasks_finds_what_one_trained_in_a_task_finds(
    spark: SparkSession, catalog: CatalogConnection, fresh: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lance's training in one task differs each time, by about as much as is allowed here: the mean of two counts."""
    name, partitions = fresh("trained"), {"num_partitions": "300", "num_sub_vectors": "8"}
    target = written(catalog, name, as_column(overlapping(24_000, 1), pa.float32()))
    queries, searched = overlapping(250, 7), {"refine_factor": 20, "nprobes": 8}
    run = LocalRun()
    index(run, catalog, spark, name, "vector", "IVF_PQ", parameters=partitions)
    together = recall(target, queries, **searched)
    monkeypatch.setattr(training, "MIN_SAMPLE_BYTES", 1 << 40)
    alone = []
    for _ in range(2):
        alone_run = LocalRun()
        index(alone_run, catalog, spark, name, "vector", "IVF_PQ", parameters=partitions, replace=True)
        alone.append(recall(target, queries, **searched))
    assert 0.7 < together < 0.99  # a few partitions, which do not hold all neighbours
    assert together >= np.mean(alone) - 0.005, alone
    assert "in one task: its sample of 1 MiB is smaller than" in alone_run.figures["training"]
    assert run.figures["training"] == "codebook"
    saved = {key.rsplit("-", 1)[0].removeprefix("training-") for key in run.checkpoints() if "training-" in key}
    assert saved == set(STAGES)


@pytest.mark.parametrize(
    ("kind", "metric", "element"),
    [("IVF_FLAT", "cosine", pa.float16()), ("IVF_PQ", "l2", pa.float64()), ("IVF_RQ", "l2", pa.float32())],
)
def test_training_in_tasks_is_the_same_each_time_whoever_does_what(
    spark: SparkSession,
    catalog: CatalogConnection,
    fresh: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
    models: list[dict[str, Any]],
    kind: str,
    metric: str,
    element: pa.DataType,
) -> None:
    name = fresh("repeated")
    target = written(catalog, name, as_column(vectors(4000, 2), element, nulls=10))
    parameters = PARAMETERS if kind == "IVF_PQ" else {"num_partitions": str(PARTITIONS)}
    for slots in (2, 7):
        monkeypatch.setattr(training, "task_slots", lambda _, slots=slots: slots)
        index(LocalRun(), catalog, spark, name, "vector", kind, metric=metric, parameters=parameters, replace=True)
    first, second = models
    assert first["ivf_centroids"].type == pa.list_(element, DIMENSION)
    assert len(first["ivf_centroids"]) == PARTITIONS
    assert all(value == second[key] for key, value in first.items())
    centroids = np.stack(first["ivf_centroids"].to_numpy(zero_copy_only=False)).astype(np.float32)
    assert np.isfinite(centroids).all()
    assert (np.linalg.norm(centroids, axis=1) <= 1.001).all() == (metric == "cosine")
    if kind == "IVF_PQ":
        assert (first["num_sub_vectors"], len(first["pq_codebook"])) == (8, 256)
    assert recall(target, vectors(20, 8), refine_factor=10, nprobes=10, metric=metric) > 0.9
    folder = Path(target.dataset().uri.removeprefix("file://"))
    assert not [file for file in folder.glob("_indices/*/*.lance") if "sample" in file.name or "codes" in file.name]


def test_index_within_a_struct_is_trained_in_tasks(
    spark: SparkSession, catalog: CatalogConnection, fresh: Callable[[str], str]
) -> None:
    target = table(catalog, fresh("within"))
    column = as_column(vectors(2000, 3), pa.float32())
    inner = pa.StructArray.from_arrays([column, pa.array(range(2000))], ["vector", "id"])
    outer = pa.StructArray.from_arrays([inner], ["inner"], mask=pa.array([n % 20 == 0 for n in range(2000)]))
    options = {"namespace_client": target.client, "table_id": target.id, "max_rows_per_file": 500}
    lance.write_dataset(pa.table({"st": outer}), **options)
    run = LocalRun()
    index(run, catalog, spark, str(target), "st.inner.vector", "IVF_FLAT", parameters={"num_partitions": "9"})
    assert run.figures["training"] == "centroids"


def test_rows_without_vectors_are_left_to_one_task_where_most_are(
    spark: SparkSession, catalog: CatalogConnection, fresh: Callable[[str], str]
) -> None:
    target = table(catalog, fresh("sparse"))
    options = {"namespace_client": target.client, "table_id": target.id, "mode": "append"}
    empty = pa.table({"vector": as_column(vectors(2000, 4), pa.float32(), nulls=1)})
    lance.write_dataset(empty, **{**options, "mode": "create"})
    for _ in range(3):
        lance.write_dataset(empty, **options)
    lance.write_dataset(pa.table({"vector": as_column(vectors(200, 5), pa.float32())}), **options)
    run = LocalRun()
    index(run, catalog, spark, str(target), "vector", "IVF_FLAT", parameters={"num_partitions": "10"})
    assert run.figures["training"] == "in one task: most rows that were drawn have no vector"
    with pytest.raises(InvalidInputError, match="150 partitions need 300 vectors, and there are 200"):
        index(
            LocalRun(),
            catalog,
            spark,
            str(target),
            "vector",
            "IVF_FLAT",
            name="many",
            parameters={"num_partitions": "150"},
        )


@pytest.mark.parametrize(
    ("options", "slots", "reason"),
    [
        ({}, 1, "one task runs at once"),
        ({"metric": "dot"}, 2, "centroids by the distance 'dot' are no means"),
        ({"parameters": {"num_partitions": "1200"}}, 2, "its sample of 0 MiB is smaller than 0 MiB"),
    ],
)
def test_one_task_trains_where_tasks_cannot_and_says_why(
    spark: SparkSession,
    catalog: CatalogConnection,
    fresh: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    slots: int,
    reason: str,
) -> None:
    name = fresh("alone")
    written(catalog, name, as_column(vectors(2000, 6), pa.float32()))
    monkeypatch.setattr(training, "task_slots", lambda _: slots)
    run = LocalRun()
    arguments = {"parameters": {"num_partitions": "8"}, **options}
    if options.get("parameters"):
        with pytest.raises(InvalidInputError, match="1200 partitions need 2400 vectors"):
            index(run, catalog, spark, name, "vector", "IVF_FLAT", **arguments)
    else:
        index(run, catalog, spark, name, "vector", "IVF_FLAT", **arguments)
    assert run.figures["training"] == f"in one task: {reason}"


@pytest.mark.extended
@pytest.mark.parametrize(("stage", "is_changed"), [("sample-0", False), ("clusters-", False), ("residuals-", True)])
def test_training_whose_driver_was_killed_repeats_no_task(
    shared_server: ServerProcess,
    environ: dict[str, str],
    spark: SparkSession,
    catalog: CatalogConnection,
    fresh: Callable[[str], str],
    models: list[dict[str, Any]],
    stage: str,
    is_changed: bool,
) -> None:
    """Rows that are written between the drivers change no stage but that of drawing."""
    name = fresh("killed")
    target = written(catalog, name, as_column(vectors(4000, 9), pa.float32()))
    index(LocalRun(), catalog, spark, name, "vector", "IVF_PQ", name="expected", parameters=PARAMETERS)
    arguments = {"column": "vector", "type": "IVF_PQ", "parameters": PARAMETERS, "replace": True}
    job_id = killed(shared_server, environ, target, "index", f"training-{stage}", count=1, slots=2, **arguments)
    if is_changed:
        target.dataset().insert(
            pa.table({"id": range(4000, 4100), "vector": as_column(vectors(100, 10), pa.float32())})
        )
    figures, before, after = resumed(target, spark, job_id)
    own = [{key for key in saved if key.startswith("training-")} for saved in (before, after)]
    assert not own[0] & own[1]
    assert {key.split("-")[1] for key in own[0] | own[1]} == set(STAGES)
    assert own[1]
    assert figures["rows"] == str(target.dataset().count_rows())
    expected, resumed_model = models
    assert resumed_model["ivf_centroids"] == expected["ivf_centroids"]
    assert resumed_model["pq_codebook"] == expected["pq_codebook"]
    folder = Path(target.dataset().uri.removeprefix("file://"), json.loads(before["training"])["plan"]["folder"])
    assert list(folder.glob("*.lance")) == []
