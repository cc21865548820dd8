"""Tasks of an index build: train the model of a vector index, build the segment of some fragments, merge segments."""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import lance
import pyarrow as pa
from lance.indices import IndicesBuilder

from tiltyard.model.refusals import RefusedError
from tiltyard.pipeline.indexes.model_files import IndexModel, quoted_path
from tiltyard.pipeline.indexes.recall import MAX_RECALL_LOSS, measure_merge
from tiltyard.pipeline.table_location import TableLocation

LIGHT_TYPES = frozenset({"BTREE", "BITMAP", "ZONEMAP", "BLOOMFILTER"})
_LIGHT_BLOCK_BYTES = 256 << 10

VECTOR_TYPES = frozenset({"IVF_FLAT", "IVF_SQ", "IVF_PQ", "IVF_RQ", "IVF_HNSW_FLAT", "IVF_HNSW_SQ", "IVF_HNSW_PQ"})
ROWS_PER_CENTROID = 256
"""How many rows the training samples for each centroid, if the request does not say."""


@dataclass(frozen=True, slots=True)
class IndexSpec:
    """The index to build, with the parameters as CreateTableIndex names them; `column` is a path (`a.b`)."""

    column: str
    kind: str
    name: str
    parameters: Mapping[str, Any]

    @property
    def distance(self) -> str:
        """Return the distance type of a vector index."""
        return str(self.parameters.get("distance_type", "l2"))

    @property
    def training_rows(self) -> int:
        """Return how many vectors the model of a vector index needs at least, whatever the table has."""
        codebook = 2 << int(self.parameters.get("num_bits", 8)) if self.kind.endswith("_PQ") else 0
        return max(codebook, 2 * int(self.parameters.get("num_partitions", 1)))

    def partitions(self, rows: int) -> int:
        """Return how many partitions a vector index of so many rows has."""
        size = self.parameters.get("target_partition_size")
        asked = self.parameters.get("num_partitions")
        return int(asked or max(1, rows // size if size else round(math.sqrt(rows))))

    def options(self, model: Mapping[str, Any]) -> dict[str, Any]:
        """Return pylance's options to build a segment, with those of a vector index's model."""
        if self.kind not in VECTOR_TYPES:
            return dict(self.parameters)
        names = ("num_bits", "m", "ef_construction")
        parameters = {name: self.parameters[name] for name in names if name in self.parameters}
        return {"metric": self.distance, **parameters, **model}

    def not_null_condition(self, schema: pa.Schema) -> str:
        """Return the condition, in Lance's SQL, that the column has a value."""
        return f"{quoted_path(self.column, schema)} IS NOT NULL"


def block_size(kind: str) -> int | None:
    """Return the block size, in bytes, with which to open a table for an index build; None is Lance's default.

    Lance reads a quarter as many rows at once as a block has bytes. Its default of 8,192 rows saves memory where rows
    are wide; a light index reads one narrow column, and its build takes a quarter less time with 65,536 rows.
    """
    return _LIGHT_BLOCK_BYTES if kind in LIGHT_TYPES else None


@dataclass(frozen=True, slots=True)
class BuildInput:
    """The version of a table that all tasks of a build read; `dataset` is set if they run in this process."""

    location: TableLocation
    version: int
    branch: str | None
    spec: IndexSpec
    dataset: lance.LanceDataset | None = None

    @property
    def can_measure_recall(self) -> bool:
        """Return whether merges can be measured: pylance clones published versions of the main branch."""
        return self.spec.kind in VECTOR_TYPES and self.branch is None and self.location.is_published

    def open(self) -> lance.LanceDataset:
        """Open the table at the version."""
        return self.dataset or self.location.open(self.version, self.branch, block_size(self.spec.kind))


class _Trainer(IndicesBuilder):
    """Train models, also of columns within structs, which pylance's own class refuses and the code it calls accepts."""

    def __init__(self, dataset: lance.LanceDataset, path: str) -> None:
        field: Any = dataset.lance_schema.field(path)  # pylance's stubs lack it
        self.dataset, self.column = dataset, [path]
        self.dimension = self._vector_dimension(field.to_arrow().type)  # type: ignore[no-untyped-call]  # pylance's own


@dataclass(frozen=True, slots=True)
class TrainModel:
    """A task: train the model of a vector index, and write it."""

    input: BuildInput

    def __call__(self) -> IndexModel:
        """Return the model: centroids, and a codebook for PQ. Raises RefusedError for too few rows."""
        dataset, spec = self.input.open(), self.input.spec
        parameters, rows = spec.parameters, dataset.count_rows(spec.not_null_condition(dataset.schema))
        partitions = spec.partitions(rows)
        rate = min(parameters.get("sample_rate", ROWS_PER_CENTROID), rows // partitions)
        if rate < 2:
            raise RefusedError(f"{partitions} partitions need {2 * partitions} vectors, and there are {rows}.")
        iterations = {"max_iters": parameters["max_iterations"]} if "max_iterations" in parameters else {}
        builder = _Trainer(dataset, spec.column)
        ivf = builder.train_ivf(partitions, distance_type=spec.distance, sample_rate=rate, **iterations)
        folder = f"_indices/{uuid.uuid4()}"
        if not spec.kind.endswith("_PQ"):
            model = IndexModel(folder, partitions, 0)
            model.write(self.input.location, ivf.centroids)
            return model
        bits = parameters.get("num_bits", 8)
        rate = min(parameters.get("sample_rate", ROWS_PER_CENTROID), rows >> bits)
        if rate < 2:
            raise RefusedError(f"{spec.kind} needs {2 << bits} vectors, and there are {rows}: take IVF_FLAT.")
        sub_vectors = parameters.get("num_sub_vectors")
        pq = builder.train_pq(ivf, sub_vectors, sample_rate=rate, num_bits=bits, **iterations)
        model = IndexModel(folder, partitions, pq.num_subvectors)
        model.write(self.input.location, ivf.centroids, pq.codebook)
        return model


@dataclass(frozen=True, slots=True)
class BuildSegment:
    """A task: build the segment of some fragments; nothing is committed."""

    input: BuildInput
    model: IndexModel | None
    fragments: tuple[int, ...]

    def __call__(self) -> Any:
        """Return the segment, as pylance describes it."""
        spec, location = self.input.spec, self.input.location
        segment = self.input.open().create_index_uncommitted(
            spec.column,
            spec.kind,
            name=spec.name,
            replace=True,
            fragment_ids=list(self.fragments),
            **spec.options(self.model.arguments(location) if self.model else {}),
        )
        location.make_durable([f"_indices/{segment.uuid}/"])
        return segment


@dataclass(frozen=True, slots=True)
class Merge:
    """What a merge has made: the merged segment, or the segments as they were, and the recall of both if it is known.

    It is known where `can_measure_recall` says so. `segments` is more than one where the merge was refused.
    """

    segments: tuple[Any, ...]
    recall_before: float | None = None
    recall_after: float | None = None


@dataclass(frozen=True, slots=True)
class MergeSegments:
    """A task: merge several segments into one, unless that loses recall; nothing is committed."""

    input: BuildInput
    segments: tuple[Any, ...]

    def __call__(self) -> Merge:
        """Return the merged segment, or those that are there."""
        location, spec, dataset = self.input.location, self.input.spec, self.input.open()
        merged = dataset.merge_existing_index_segments(list(self.segments))
        location.make_durable([f"_indices/{merged.uuid}/"])
        if not self.input.can_measure_recall:
            return Merge((merged,))
        before, after = measure_merge(location, dataset, (spec.column, spec.distance), self.segments, merged)
        is_lossy = after < before - MAX_RECALL_LOSS
        return Merge(self.segments if is_lossy else (merged,), before, after)
