"""The recall of merged segments is measured before they are committed, and a merge that loses some is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance.dataset import Index

from tiltyard.pipeline.catalog_client import CatalogConnection, Table, table
from tiltyard.pipeline.indexes import segments, tasks
from tiltyard.pipeline.indexes.job import index
from tiltyard.pipeline.indexes.recall import measure_merge
from tiltyard.pipeline.indexes.tasks import BuildInput, BuildSegment, IndexSpec, Merge, MergeSegments
from tiltyard.pipeline.runs import LocalRun
from tiltyard.pipeline.table_location import TableLocation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DIMENSION = 16


def vectors(rows: int, seed: int, element: pa.DataType | None = None) -> pa.Array:
    """Vectors of random numbers."""
    source, element = np.random.default_rng(seed), element or pa.float32()
    if element == pa.uint8():
        flat: Any = source.integers(0, 256, rows * DIMENSION)
    else:
        flat = source.normal(size=rows * DIMENSION)
    return pa.FixedSizeListArray.from_arrays(pa.array(flat.astype(element.to_pandas_dtype()), element), DIMENSION)


def built(path: Path, column: pa.Array, kind: str, distance: str) -> tuple[BuildInput, list[Index]]:
    """A table of four fragments, and the segments of an index, which share a model."""
    dataset = lance.write_dataset(pa.table({"v": column}), str(path), max_rows_per_file=len(column) // 4)
    if len(column) > 100:
        dataset.delete("_rowid % 40 = 3")
    return segments_on(lance.dataset(path), kind, distance)


def segments_on(dataset: lance.LanceDataset, kind: str, distance: str) -> tuple[BuildInput, list[Index]]:
    """The segments of an index of a table, one for each fragment, which share a model."""
    location = TableLocation(dataset.uri, {}, CatalogConnection("none", ()), ("t",))
    spec = IndexSpec("v", kind, "v_idx", {"num_partitions": 4, "num_sub_vectors": 4, "distance_type": distance})
    build_input = BuildInput(location, int(dataset.version), None, spec)
    model = tasks.TrainModel(build_input)()
    fragments = [fragment.fragment_id for fragment in dataset.get_fragments()]
    return build_input, [BuildSegment(build_input, model, (number,))() for number in fragments]


def measured(build_input: BuildInput, parts: list[Index], merged: Index) -> tuple[float, float]:
    spec = build_input.spec
    return measure_merge(build_input.location, build_input.open(), (spec.column, spec.distance), parts, merged)


@pytest.mark.parametrize(
    ("kind", "distance", "element"),
    [
        ("IVF_PQ", "l2", pa.float32()),
        ("IVF_PQ", "cosine", pa.float16()),
        ("IVF_FLAT", "dot", pa.float64()),
        ("IVF_FLAT", "hamming", pa.uint8()),
        ("IVF_HNSW_FLAT", "l2", pa.float32()),
    ],
)
def test_merge_of_segments_keeps_their_recall_and_leaves_no_clone(
    tmp_path: Path, kind: str, distance: str, element: pa.DataType
) -> None:
    build_input, parts = built(tmp_path / "t", vectors(4000, 1, element), kind, distance)
    files = {file for file in tmp_path.rglob("*") if file.is_file()}
    merge = MergeSegments(build_input, tuple(parts))()
    [merged] = merge.segments
    assert set(merged.fragment_ids) == {0, 1, 2, 3}
    assert merge.recall_before is not None and merge.recall_after is not None
    assert merge.recall_after >= merge.recall_before - 0.005
    assert merge.recall_before > (0.5 if kind == "IVF_PQ" else 0.8)
    assert {file.parent.name for file in tmp_path.rglob("*") if file.is_file() and file not in files} == {merged.uuid}
    assert lance.dataset(tmp_path / "t").describe_indices() == []


@pytest.mark.parametrize("kind", ["IVF_SQ", "IVF_HNSW_SQ"])
def test_merge_of_segments_whose_codes_have_other_ranges_is_refused(tmp_path: Path, kind: str) -> None:
    """pylance 14 gives the merged segment the range of the first one, with the codes of the others as they were."""
    scaled = vectors(4000, 1).flatten().to_numpy() * np.repeat([1, 3, 1, 2], 1000 * DIMENSION)
    column = pa.FixedSizeListArray.from_arrays(pa.array(scaled.astype(np.float32)), DIMENSION)
    build_input, parts = built(tmp_path / "t", column, kind, "l2")
    merge = MergeSegments(build_input, tuple(parts))()
    assert [each.uuid for each in merge.segments] == [each.uuid for each in parts]
    assert merge.recall_before is not None and merge.recall_after is not None
    assert 0.8 < merge.recall_before > merge.recall_after + 0.005


def test_rows_with_several_vectors_are_measured(tmp_path: Path) -> None:
    flat = vectors(8000, 5)
    several = pa.ListArray.from_arrays(pa.array(range(0, 8001, 2), pa.int32()), flat)
    build_input, parts = built(tmp_path / "t", several, "IVF_FLAT", "cosine")
    before, after = measured(build_input, parts, MergeSegments(build_input, tuple(parts))().segments[0])
    assert before == after > 0.3  # pylance looks for each vector's nearest rows alone


def test_merged_segment_that_lost_rows_has_less_recall(tmp_path: Path) -> None:
    build_input, parts = built(tmp_path / "t", vectors(4000, 2), "IVF_FLAT", "l2")
    halved = build_input.open().merge_existing_index_segments(parts[:2])
    before, after = measured(build_input, parts, halved)
    assert before > 0.9
    assert after < 0.7


@pytest.mark.parametrize("is_clone", [True, False], ids=["clone", "stable row ids"])
def test_tables_whose_files_are_elsewhere_or_whose_rows_have_stable_ids_are_measured(
    tmp_path: Path, is_clone: bool
) -> None:
    options: dict[str, Any] = {"max_rows_per_file": 1000, "enable_stable_row_ids": not is_clone}
    dataset = lance.write_dataset(pa.table({"v": vectors(4000, 1)}), str(tmp_path / "t"), **options)
    dataset.delete("_rowid % 40 = 3")
    if is_clone:
        dataset.shallow_clone(str(tmp_path / "c"), int(dataset.version))
        dataset = lance.write_dataset(pa.table({"v": vectors(1000, 2)}), str(tmp_path / "c"), mode="append")
    build_input, parts = segments_on(dataset, "IVF_PQ", "l2")
    merge = MergeSegments(build_input, tuple(parts))()
    assert len(merge.segments) == 1
    assert merge.recall_before == merge.recall_after
    assert merge.recall_before is not None and merge.recall_before > 0.5


def test_few_rows_have_no_recall_to_lose(tmp_path: Path) -> None:
    build_input, parts = built(tmp_path / "t", vectors(8, 3), "IVF_FLAT", "l2")
    assert measured(build_input, parts, parts[0]) == (1.0, 1.0)


@pytest.fixture
def target(catalog: CatalogConnection, fresh: Callable[[str], str]) -> Table:
    """A table of four fragments."""
    target = table(catalog, fresh("merged"))
    options = {"namespace_client": target.client, "table_id": target.id, "max_rows_per_file": 500}
    lance.write_dataset(pa.table({"vector": vectors(2000, 4)}), **options)
    return target


class LossyMerge(MergeSegments):
    """Lance's merge, as if it lost the rows of all segments but the first two."""

    def __call__(self) -> Merge:
        merge = lance.LanceDataset.merge_existing_index_segments
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                lance.LanceDataset, "merge_existing_index_segments", lambda dataset, parts: merge(dataset, parts[:2])
            )
            return super().__call__()


def test_index_whose_merge_loses_recall_keeps_its_segments_and_says_so(
    spark: SparkSession, catalog: CatalogConnection, target: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "MergeSegments", LossyMerge)
    monkeypatch.setattr(segments, "ROWS_PER_SEGMENT", 500)
    run = LocalRun()
    figures = index(run, catalog, spark, str(target), "vector", "IVF_FLAT", parameters={"num_partitions": "4"})
    assert (figures["rows"], figures["segments"]) == (2000, 4)
    assert run.figures["merge_refused"].startswith("recall 0.")
    assert run.figures["merge_refused"].endswith("4 segments stay as they were")
    nearest = {"column": "vector", "q": np.zeros(DIMENSION, np.float32), "k": 10, "nprobes": 4}
    found = [target.dataset().to_table(nearest={**nearest, "use_index": use})["_distance"] for use in (True, False)]
    assert found[0].to_pylist() == pytest.approx(found[1].to_pylist())
