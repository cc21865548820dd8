"""Checkpoints of an index build are loaded as long as they are valid: for the same model, and the same values."""

from __future__ import annotations

from pathlib import Path

import lance
import pyarrow as pa
import pytest

from tiltyard.change_feed.table_history import fragments_by_id
from tiltyard.pipeline.indexes.model_files import IndexModel
from tiltyard.pipeline.indexes.segments import IndexCheckpoint
from tiltyard.pipeline.runs import LocalRun
from tiltyard.pipeline.table_location import CatalogConnection, TableLocation

MODEL = IndexModel("_indices/trained", 1, 0)


@pytest.fixture
def dataset(tmp_path: Path) -> lance.LanceDataset:
    """A table of four fragments of 25 rows."""
    return lance.write_dataset(pa.table({"id": range(100)}), str(tmp_path / "t"), max_rows_per_file=25)


@pytest.fixture
def checkpoint(dataset: lance.LanceDataset) -> IndexCheckpoint:
    """The checkpoint of a run that has built a segment without a model, and one with."""
    location = TableLocation(dataset.uri, {}, CatalogConnection("none", ()), ("t",))
    checkpoint = IndexCheckpoint.of(LocalRun(), location, dataset, "id")
    for fragments, model in (([0, 1], None), ([2], MODEL)):
        built = dataset.create_index_uncommitted("id", "BTREE", name="i", replace=True, fragment_ids=fragments)
        checkpoint.save_segment(built, fragments_by_id(dataset), model)
    return checkpoint


def covered(
    checkpoint: IndexCheckpoint, dataset: lance.LanceDataset, model: IndexModel | None = None
) -> list[list[int]]:
    """Return the fragments of the segments that are loaded."""
    return [
        sorted(segment.fragment_ids) for segment in checkpoint.load_segments(dataset, fragments_by_id(dataset), model)
    ]


def test_segments_of_another_model_are_not_loaded(dataset: lance.LanceDataset, checkpoint: IndexCheckpoint) -> None:
    assert covered(checkpoint, dataset) == [[0, 1]]
    assert covered(checkpoint, dataset, MODEL) == [[2]]
    assert covered(checkpoint, dataset, IndexModel("_indices/other", 1, 0)) == []


def test_segments_hold_while_rows_are_deleted_but_not_when_they_come_back(
    dataset: lance.LanceDataset, checkpoint: IndexCheckpoint
) -> None:
    dataset.delete("id = 5")
    later = IndexCheckpoint(LocalRun(), checkpoint.location, checkpoint.fields)
    built = dataset.create_index_uncommitted("id", "BTREE", name="i", replace=True, fragment_ids=[0])
    later.save_segment(built, fragments_by_id(dataset), None)
    assert (covered(checkpoint, dataset), covered(later, dataset)) == ([[0, 1]], [[0]])
    dataset.checkout_version(1).restore()  # type: ignore[no-untyped-call]  # pylance has no annotation here
    assert covered(later, lance.dataset(dataset.uri)) == []


def test_segments_whose_fragments_or_files_are_gone_are_not_loaded(
    dataset: lance.LanceDataset, checkpoint: IndexCheckpoint
) -> None:
    for file in Path(dataset.uri, "_indices").rglob("*.lance"):
        file.unlink()
    assert covered(checkpoint, dataset) == []
    dataset.optimize.compact_files()
    assert covered(checkpoint, lance.dataset(dataset.uri), MODEL) == []


def test_model_whose_file_is_gone_is_not_loaded(dataset: lance.LanceDataset, checkpoint: IndexCheckpoint) -> None:
    MODEL.write(checkpoint.location, pa.FixedSizeListArray.from_arrays(pa.array([0.5, 0.25], pa.float32()), 2))
    checkpoint.save_model(MODEL)
    assert checkpoint.load_model(checkpoint.location) == MODEL
    assert MODEL.arguments(checkpoint.location)["ivf_centroids"].to_pylist() == [[0.5, 0.25]]
    checkpoint.delete_model(checkpoint.location)
    assert checkpoint.load_model(checkpoint.location) is None
