"""The segments of an index: a model trained once, a segment for each group of fragments, a few made of all of them.

    sample → model (a file) → a segment for each group of fragments → merged ones, of up to 256 million rows

What is finished may be kept (`finished`): who goes on, after a driver that died or beside others that replaced
fragments, builds the rest alone.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import lance
import pyarrow as pa
from lance.file import LanceFileReader, LanceFileWriter
from lance.indices import IndexConfig, IndicesBuilder

from tiltyard.pipeline.session import slots
from tiltyard.pipeline.sources.filesystem import delete_files
from tiltyard.pipeline.spark_tasks import call, run_tasks
from tiltyard.pipeline.table_location import Place
from tiltyard.pipeline.task_errors import RefusedError
from tiltyard.pipeline.version_diff import fragments_of, grouped

if TYPE_CHECKING:
    from lance.fragment import FragmentMetadata
    from pyspark.sql import SparkSession

    from tiltyard.pipeline.indexes.checkpoint import Finished
    from tiltyard.pipeline.runs import Run

ROWS_IN_THE_DRIVER = 4_000_000
"""Light indexes of so many rows are built in this process: Spark starts later."""

ROWS_OF_A_SEGMENT = 16 << 20
"""Most rows of a task: what is lost if it fails."""

ROWS_OF_A_MERGE = 256 << 20
"""Most rows of a merged segment: one task rewrites it, and holds its vectors' codes on its disk."""

LIGHT = frozenset({"BTREE", "BITMAP", "ZONEMAP", "BLOOMFILTER"})
_LIGHT_BLOCK = 256 << 10

VECTOR = frozenset({"IVF_FLAT", "IVF_SQ", "IVF_PQ", "IVF_RQ", "IVF_HNSW_FLAT", "IVF_HNSW_SQ", "IVF_HNSW_PQ"})
_APART = frozenset({"IVF_RQ"})
"""Whose segments stay apart: each has a random rotation of its own, and cannot be merged with another."""
_ROWS_OF_A_CENTROID = 256


@dataclass(frozen=True, slots=True)
class Order:
    """What is built, with parameters by the names that CreateTableIndex gives them; `column` is a path (`a.b`)."""

    column: str
    kind: str
    name: str
    parameters: Mapping[str, Any]

    @property
    def distance(self) -> str:
        """The distance of a vector index."""
        return str(self.parameters.get("distance_type", "l2"))

    def options(self, model: Mapping[str, Any]) -> dict[str, Any]:
        """What pylance is given to build a segment."""
        if self.kind not in VECTOR:
            return dict(self.parameters)
        own = {key: self.parameters[key] for key in ("num_bits", "m", "ef_construction") if key in self.parameters}
        return {"metric": self.distance, **own, **model}

    def not_null(self, schema: pa.Schema) -> str:
        """A condition, in Lance's SQL: the column has a value."""
        return f"{_quoted(self.column, schema)} IS NOT NULL"


def _quoted(path: str, schema: pa.Schema) -> str:
    """A path in Lance's SQL: a column's own name is quoted, for it may be a word of SQL."""
    return f"`{path}`" if path in schema.names else path


def block_size(kind: str) -> int | None:
    """The block size, in bytes, to open a table with that is to be indexed; None: Lance's own choice.

    Lance reads a quarter as many rows at once as a block has bytes. Its 8,192 spare memory where rows are wide; a light
    index reads one narrow column, and is built a quarter sooner of 65,536.
    """
    return _LIGHT_BLOCK if kind in LIGHT else None


@dataclass(frozen=True, slots=True)
class Model:
    """What all segments of a vector index share, in Lance files of a folder of its own below the table's.

    A file, since a hundred thousand centroids are 50 MB: too much for each task to be sent. `folder` is where garbage
    collection looks for what no index refers to. `sub_vectors` is 0 where there is no codebook.
    """

    folder: str
    partitions: int
    sub_vectors: int

    @property
    def files(self) -> list[str]:
        """Its files, below the table's folder."""
        return [f"{self.folder}/{name}.lance" for name in ("centroids", *(["codebook"] if self.sub_vectors else []))]

    def write(self, place: Place, *arrays: pa.Array) -> None:
        """Write centroids and codebook. Raises OSError."""
        for file, array in zip(self.files, arrays, strict=True):
            rows = pa.record_batch([array], ["values"])
            path, options = f"{place.uri}/{file}", dict(place.options) or None
            with LanceFileWriter(path, rows.schema, storage_options=options, **place.refreshes) as writer:
                writer.write_batch(rows)

    def arguments(self, place: Place) -> dict[str, Any]:
        """It, as arguments of pylance. Raises OSError."""
        arrays = [_values(place, file) for file in self.files]
        found = {"num_partitions": self.partitions, "ivf_centroids": arrays[0]}
        return {**found, "num_sub_vectors": self.sub_vectors, "pq_codebook": arrays[1]} if self.sub_vectors else found

    def delete(self, place: Place) -> None:
        """Delete its files."""
        delete_files([f"{place.uri}/{file}" for file in self.files], place.options)


def _values(place: Place, file: str) -> pa.Array:
    reader = LanceFileReader(f"{place.uri}/{file}", dict(place.options) or None, ["values"], **place.refreshes)
    return reader.read_all().to_table().column("values").combine_chunks()


@dataclass(frozen=True, slots=True)
class _Seen:
    """What all tasks of an index work on: a version of a table; `dataset` is it, for tasks of this process."""

    place: Place
    version: int
    branch: str | None
    order: Order
    dataset: lance.LanceDataset | None = None

    def open(self) -> lance.LanceDataset:
        return self.dataset or self.place.open(self.version, self.branch, block_size(self.order.kind))


class _Trainer(IndicesBuilder):
    """Trains models; pylance's own class knows no columns within structs, while what it calls does."""

    def __init__(self, dataset: lance.LanceDataset, path: str) -> None:
        field: Any = dataset.lance_schema.field(path)  # pylance's stubs lack it
        self.dataset, self.column = dataset, [path]
        self.dimension = self._vector_dimension(field.to_arrow().type)  # type: ignore[no-untyped-call]  # pylance's own


@dataclass(frozen=True, slots=True)
class _Train:
    """A task: a model of the vectors, that all segments share."""

    seen: _Seen

    def __call__(self) -> Model:
        """Centroids and codebook, written. Raises RefusedError for too few rows."""
        dataset, order = self.seen.open(), self.seen.order
        given, rows = order.parameters, dataset.count_rows(order.not_null(dataset.schema))
        size = given.get("target_partition_size")
        partitions = given.get("num_partitions") or max(1, rows // size if size else round(math.sqrt(rows)))
        rate = min(given.get("sample_rate", _ROWS_OF_A_CENTROID), rows // partitions)
        if rate < 2:
            raise RefusedError(f"{partitions} partitions need {2 * partitions} vectors, and there are {rows}.")
        rounds = {"max_iters": given["max_iterations"]} if "max_iterations" in given else {}
        builder = _Trainer(dataset, order.column)
        ivf = builder.train_ivf(partitions, distance_type=order.distance, sample_rate=rate, **rounds)
        folder = f"_indices/{uuid.uuid4()}"
        if not order.kind.endswith("_PQ"):
            model = Model(folder, partitions, 0)
            model.write(self.seen.place, ivf.centroids)
            return model
        bits = given.get("num_bits", 8)
        rate = min(given.get("sample_rate", _ROWS_OF_A_CENTROID), rows >> bits)
        if rate < 2:
            raise RefusedError(f"{order.kind} needs {2 << bits} vectors, and there are {rows}: take IVF_FLAT.")
        pq = builder.train_pq(ivf, given.get("num_sub_vectors"), sample_rate=rate, num_bits=bits, **rounds)
        model = Model(folder, partitions, pq.num_subvectors)
        model.write(self.seen.place, ivf.centroids, pq.codebook)
        return model


@dataclass(frozen=True, slots=True)
class _Build:
    """A task: the segment of some fragments."""

    seen: _Seen
    model: Model | None
    fragments: tuple[int, ...]

    def __call__(self) -> Any:
        """The segment, as pylance describes it."""
        order, place = self.seen.order, self.seen.place
        return self.seen.open().create_index_uncommitted(
            order.column,
            order.kind,
            name=order.name,
            replace=True,
            fragment_ids=list(self.fragments),
            **order.options(self.model.arguments(place) if self.model else {}),
        )


@dataclass(frozen=True, slots=True)
class _Merge:
    """A task: one segment of several."""

    seen: _Seen
    segments: tuple[Any, ...]

    def __call__(self) -> Any:
        """The segment."""
        return self.seen.open().merge_existing_index_segments(list(self.segments))


def commit_empty_index(dataset: lance.LanceDataset, order: Order, uuid: str) -> None:
    """Commit the index of a table without rows, as a segment `uuid`; rows that come in later can join it.

    Raises RefusedError for an index that they could not join, and what Lance raises.
    """
    options: dict[str, Any] = {"name": order.name, "replace": True, "index_uuid": uuid}
    if order.kind in VECTOR:
        shape = {key: order.parameters[key] for key in ("num_partitions", "num_sub_vectors") if key in order.parameters}
        dataset.create_index(order.column, order.kind, **order.options(shape), **options)
        return
    if order.kind != "INVERTED" and order.column not in dataset.schema.names:
        # pylance 14 makes it, and fails then on each attempt to bring rows in: "No column with name …".
        raise RefusedError(f"An index of {order.column}, which is within a struct, needs rows: write some first.")
    kind: Any = order.kind
    dataset.create_scalar_index(
        order.column, IndexConfig(kind, dict(order.parameters)) if order.parameters else kind, **options
    )


def built_segments(
    run: Run,
    spark: SparkSession,
    place: Place,
    dataset: lance.LanceDataset,
    branch: str | None,
    order: Order,
    finished: Finished | None = None,
) -> list[Any]:
    """Build all segments, and merge them; nothing names them yet. Raises RefusedError.

    What `finished` holds is not built again, and what is built goes into it; its model stays.
    """
    there = fragments_of(dataset)
    rows = sum(one.num_rows for one in there.values())
    light = order.kind in LIGHT and rows <= ROWS_IN_THE_DRIVER
    seen = _Seen(place, int(dataset.version), branch, order, dataset if light else None)
    work = _Building(run, None if light else spark, seen, there, finished)
    model = work.model() if order.kind in VECTOR else None
    segments = finished.segments(dataset, there, model) if finished else []
    covered = {number for one in segments for number in one.fragment_ids}
    left = {number: one.num_rows for number, one in there.items() if number not in covered}
    groups = grouped(left, ROWS_OF_A_SEGMENT, 1 if light else slots(work.spark))
    segments = work.merged([*segments, *work.built(model, groups)], model)
    if model is not None and finished is None:
        model.delete(place)
    return segments


@dataclass(frozen=True, slots=True)
class _Building:
    """An index at work: its tasks run on Spark, or in this process where `spark` is None."""

    run: Run
    spark: SparkSession | None
    seen: _Seen
    there: Mapping[int, FragmentMetadata]
    finished: Finished | None

    def model(self) -> Model:
        """The model, trained now or before. Raises RefusedError."""
        if self.finished is not None and (kept := self.finished.model(self.seen.place)) is not None:
            return kept
        self.run.progress(stage="train")
        found: Model = run_tasks(self.spark, self.run, call, [_Train(self.seen)], name="index: train")[0]
        if self.finished is not None:
            self.finished.keep_model(found)
        return found

    def built(self, model: Model | None, groups: Sequence[tuple[int, ...]]) -> list[Any]:
        """A segment for each group of fragments."""
        built = len(self.there) - sum(len(group) for group in groups)

        def heard(_: int, segment: Any) -> None:
            nonlocal built
            built += len(segment.fragment_ids)
            self._keep(segment, model)
            self.run.progress(stage="build", fragments=built, fragments_total=len(self.there))

        builds = [_Build(self.seen, model, group) for group in groups]
        return run_tasks(self.spark, self.run, call, builds, on_result=heard, name="index: build")

    def merged(self, segments: Sequence[Any], model: Model | None) -> list[Any]:
        """As few segments as there may be."""
        if self.seen.order.kind in _APART:
            return list(segments)
        rows = {at: sum(self.there[number].num_rows for number in one.fragment_ids) for at, one in enumerate(segments)}
        groups = [[segments[at] for at in group] for group in grouped(rows, ROWS_OF_A_MERGE, 1)]
        alone = [group[0] for group in groups if len(group) == 1]
        merges = [_Merge(self.seen, tuple(group)) for group in groups if len(group) > 1]
        if merges:
            self.run.progress(stage="merge")

        def heard(_: int, segment: Any) -> None:
            self._keep(segment, model)

        return [*alone, *run_tasks(self.spark, self.run, call, merges, on_result=heard, name="index: merge")]

    def _keep(self, segment: Any, model: Model | None) -> None:
        if self.finished is not None:
            self.finished.keep(segment, self.there, model)
