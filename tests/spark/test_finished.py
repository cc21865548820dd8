"""What is kept of an index is found again for as long as it holds: for the same model, and the same values."""

from __future__ import annotations

from pathlib import Path

import lance
import pyarrow as pa
import pytest

from tiltyard.pipeline.indexes.checkpoint import Finished
from tiltyard.pipeline.indexes.tasks import Model
from tiltyard.pipeline.runs import LocalRun
from tiltyard.pipeline.table_location import Connection, Place
from tiltyard.pipeline.version_diff import fragments_of

MODEL = Model("_indices/trained", 1, 0)


@pytest.fixture
def dataset(tmp_path: Path) -> lance.LanceDataset:
    """A table of four fragments of 25 rows."""
    return lance.write_dataset(pa.table({"id": range(100)}), str(tmp_path / "t"), max_rows_per_file=25)


@pytest.fixture
def finished(dataset: lance.LanceDataset) -> Finished:
    """What a run has built: a segment without a model, and one with."""
    place = Place(dataset.uri, {}, Connection("none", ()), ("t",))
    found = Finished.of(LocalRun(), place, dataset, "id")
    for fragments, model in (([0, 1], None), ([2], MODEL)):
        built = dataset.create_index_uncommitted("id", "BTREE", name="i", replace=True, fragment_ids=fragments)
        found.keep(built, fragments_of(dataset), model)
    return found


def covered(finished: Finished, dataset: lance.LanceDataset, model: Model | None = None) -> list[list[int]]:
    """The fragments of the segments that are found."""
    return [sorted(one.fragment_ids) for one in finished.segments(dataset, fragments_of(dataset), model)]


def test_segments_of_another_model_are_not_found(dataset: lance.LanceDataset, finished: Finished) -> None:
    assert covered(finished, dataset) == [[0, 1]]
    assert covered(finished, dataset, MODEL) == [[2]]
    assert covered(finished, dataset, Model("_indices/other", 1, 0)) == []


def test_segments_hold_while_rows_are_deleted_but_not_when_they_come_back(
    dataset: lance.LanceDataset, finished: Finished
) -> None:
    dataset.delete("id = 5")
    later = Finished(LocalRun(), finished.place, finished.fields)
    built = dataset.create_index_uncommitted("id", "BTREE", name="i", replace=True, fragment_ids=[0])
    later.keep(built, fragments_of(dataset), None)
    assert (covered(finished, dataset), covered(later, dataset)) == ([[0, 1]], [[0]])
    dataset.checkout_version(1).restore()  # type: ignore[no-untyped-call]  # pylance has no annotation here
    assert covered(later, lance.dataset(dataset.uri)) == []


def test_segments_whose_fragments_or_files_are_gone_are_not_found(
    dataset: lance.LanceDataset, finished: Finished
) -> None:
    for file in Path(dataset.uri, "_indices").rglob("*.lance"):
        file.unlink()
    assert covered(finished, dataset) == []
    dataset.optimize.compact_files()
    assert covered(finished, lance.dataset(dataset.uri), MODEL) == []


def test_model_whose_file_is_gone_is_not_found(dataset: lance.LanceDataset, finished: Finished) -> None:
    MODEL.write(finished.place, pa.FixedSizeListArray.from_arrays(pa.array([0.5, 0.25], pa.float32()), 2))
    finished.keep_model(MODEL)
    assert finished.model(finished.place) == MODEL
    assert MODEL.arguments(finished.place)["ivf_centroids"].to_pylist() == [[0.5, 0.25]]
    finished.forget_model(finished.place)
    assert finished.model(finished.place) is None
