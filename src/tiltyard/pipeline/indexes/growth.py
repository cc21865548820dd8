"""Add new rows to a vector index in tasks: build segments of them with the index's own model, merge these, commit.

    the index's model → a segment for each group of new fragments → merged → a commit beside the segments that are there

A merged segment of codes cannot be merged again (pylance refuses it). So where the last segments are to become one
with the new rows, as `count_segments_to_merge` says, their fragments are built again, in the same tasks: a row is built
a few times in all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
from lance.file import LanceFileReader

from tiltyard.change_feed.table_history import fragments_by_id
from tiltyard.pipeline.indexes.model_files import IndexModel
from tiltyard.pipeline.indexes.segments import (
    ROWS_PER_MERGE,
    IndexCheckpoint,
    build_segments,
    commit_segments,
)
from tiltyard.pipeline.indexes.tasks import VECTOR_TYPES, IndexSpec
from tiltyard.upkeep.indexing import IndexState, count_segments_to_merge

if TYPE_CHECKING:
    import lance
    from lance.lance.indices import IndexDescription
    from pyspark.sql import SparkSession

    from tiltyard.pipeline.runs import Run
    from tiltyard.pipeline.session import LazySession
    from tiltyard.pipeline.table_location import TableLocation

MIN_NEW_ROWS = 1 << 20
"""New rows from which tasks build segments: one task takes less time for fewer."""
_GROWN_TYPES = frozenset({"IVF_FLAT", "IVF_PQ", "IVF_HNSW_FLAT", "IVF_HNSW_PQ"})
"""Those whose segments share all of their model: IVF_SQ has ranges by segment, IVF_RQ rotations."""
_FLOATS = {2: pa.float16(), 4: pa.float32(), 8: pa.float64()}


@dataclass(frozen=True, slots=True)
class Growth:
    """An index to which tasks add rows: what it is, its centroids, its codebook for PQ, and the fragments to build."""

    spec: IndexSpec
    arrays: tuple[pa.Array, ...]
    sub_vectors: int
    fragments: frozenset[int]


def plan_growth(
    dataset: lance.LanceDataset, location: TableLocation, state: IndexState, small_segment_rows: int, slots: int
) -> Growth | str:
    """Return what tasks build to add the rows that an index lacks, or why one task adds them. Raises OSError."""
    [index] = [each for each in dataset.describe_indices() if each.name == state.name]
    if index.index_type not in VECTOR_TYPES:
        return f"it is no index of vectors, but {index.index_type}"
    if index.index_type not in _GROWN_TYPES:
        return f"segments of {index.index_type} have each a model of their own"
    if state.missing < MIN_NEW_ROWS:
        return f"{state.missing} new rows are fewer than {MIN_NEW_ROWS}"
    if slots < 2:
        return "one task runs at once"
    if not state.indexed:
        return "it has no rows yet"
    if any(segment.base_id is not None for segment in index.segments):
        return "its segments are those of another table"
    fragments = _fragments(dataset, index, state, small_segment_rows)
    if not fragments:
        return "its segments have all fragments"
    arrays: tuple[pa.Array, ...] = (dataset.get_ivf_model(state.name).centroids,)
    sub_vectors = 0
    if index.index_type.endswith("_PQ"):
        codebooks = [_read_codebook(location, str(segment.uuid)) for segment in index.segments]
        if any(codebook != codebooks[0] for codebook in codebooks):
            return "its segments have codebooks of their own"
        sub_vectors, codebook = codebooks[0]
        arrays = (*arrays, codebook)
    return Growth(_spec(index), arrays, sub_vectors, fragments)


def _fragments(
    dataset: lance.LanceDataset, index: IndexDescription, state: IndexState, small_segment_rows: int
) -> frozenset[int]:
    """Return the fragments that the index lacks, and those of the last segments that become one with them."""
    count = count_segments_to_merge(state.segments, state.missing, small_segment_rows)
    while count and state.missing + sum(state.segments[-count:]) > ROWS_PER_MERGE:
        count -= 1
    kept = index.segments[: len(index.segments) - count]
    covered = {number for segment in kept for number in segment.fragment_ids}
    return frozenset(fragments_by_id(dataset)) - covered


def _spec(index: IndexDescription) -> IndexSpec:
    """Return the index with the parameters that its segments are built with."""
    details = index.details
    parameters: dict[str, Any] = {"distance_type": details["metric_type"].lower()}
    if index.index_type.endswith("_PQ"):
        parameters["num_bits"] = details["compression"]["num_bits"]
    if (graph := details.get("hnsw")) is not None:
        parameters |= {"m": graph["max_connections"], "ef_construction": graph["construction_ef"]}
    return IndexSpec(index.field_names[0], index.index_type, index.name, parameters)


def _read_codebook(location: TableLocation, segment: str) -> tuple[int, pa.Array]:
    """Return the number of sub-vectors and the codebook of a segment: pylance has no call for it, tested with 14.0.2.

    The file's metadata has the position of a buffer, which ends with the numbers of all codes. Raises OSError.
    """
    reader = LanceFileReader(
        f"{location.uri}/_indices/{segment}/auxiliary.idx",
        dict(location.options) or None,
        **location.refresh_arguments,
    )
    [text] = json.loads(reader.metadata().schema.metadata[b"storage_metadata"])
    storage: Mapping[str, int] = json.loads(text)
    dimension, codes = storage["dimension"], 1 << storage["nbits"]
    buffer = bytes(reader.read_global_buffer(storage["codebook_position"]))
    count = dimension * codes
    width = len(buffer) // count
    numbers = pa.Array.from_buffers(_FLOATS[width], count, [None, pa.py_buffer(buffer[-count * width :])])
    return storage["num_sub_vectors"], pa.FixedSizeListArray.from_arrays(numbers, dimension)


def grow_index(
    run: Run, spark: SparkSession | LazySession, location: TableLocation, dataset: lance.LanceDataset, growth: Growth
) -> bool:
    """Build the segments of a growth, and commit them; False if that collides with another commit.

    What is built is checkpointed by the index's name, as long as the index has that model. Raises RefusedError.
    """
    spec = growth.spec
    checkpoint = IndexCheckpoint.of(run, location, dataset, spec.column, f"{spec.name}/")
    model = checkpoint.load_model(location)
    if model is None or model.sub_vectors != growth.sub_vectors or not _is_of(model, location, growth):
        model = IndexModel(f"_indices/{uuid4()}", len(growth.arrays[0]), growth.sub_vectors)
        model.write(location, *growth.arrays)
        checkpoint.save_model(model)
    segments = build_segments(run, spark, location, dataset, None, spec, checkpoint, growth.fragments)
    run.check()
    is_committed = commit_segments(dataset, spec, segments)
    if is_committed:
        checkpoint.delete_model(location)
    return is_committed


def _is_of(model: IndexModel, location: TableLocation, growth: Growth) -> bool:
    """Return whether a model that was saved is that of the index now."""
    saved = model.arguments(location)
    return all(saved[key] == array for key, array in zip(("ivf_centroids", "pq_codebook"), growth.arrays, strict=False))
