"""Index: trained once, built by groups of fragments in tasks, merged, committed.

    sample → model → a segment for each group of fragments → one segment → a commit

Rows that come in meanwhile are not in it: `optimize` brings them in.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import lance
from lance.indices import IndicesBuilder
from lance_namespace.errors import ConcurrentModificationError, InvalidInputError

from tiltyard.pipeline import connecting
from tiltyard.pipeline.changes import fragments_of, grouped
from tiltyard.pipeline.jobs import job
from tiltyard.pipeline.places import Connection, Place
from tiltyard.pipeline.refusing import RefusedError
from tiltyard.pipeline.runs import Run
from tiltyard.pipeline.session import slots
from tiltyard.pipeline.strict import checked_columns
from tiltyard.pipeline.tasks import run_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS_IN_THE_DRIVER = 4_000_000
"""Light indexes of so many rows are built in this process: Spark starts later."""

_LIGHT = frozenset({"BTREE", "BITMAP", "ZONEMAP", "BLOOMFILTER"})
_SCALAR = _LIGHT | {"LABEL_LIST", "NGRAM", "INVERTED"}
_VECTOR = frozenset({"IVF_FLAT", "IVF_SQ", "IVF_PQ", "IVF_RQ", "IVF_HNSW_FLAT", "IVF_HNSW_SQ", "IVF_HNSW_PQ"})
_SYNONYMS = {"FTS": "INVERTED"}
_APART = frozenset({"IVF_RQ"})
"""Whose segments stay apart: each has a random rotation of its own, and cannot be merged with another."""
_TRIES = 5
_ROWS_OF_A_CENTROID = 256
_BUILT = "index"


@dataclass(frozen=True, slots=True)
class Order:
    """What is built, with parameters by the names that CreateTableIndex gives them."""

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
        if self.kind not in _VECTOR:
            return dict(self.parameters)
        own = {key: self.parameters[key] for key in ("num_bits", "m", "ef_construction") if key in self.parameters}
        return {"metric": self.distance, **own, **model}


@dataclass(frozen=True, slots=True)
class _Train:
    """A task: a model of the vectors, that all segments share."""

    place: Place
    version: int
    branch: str | None
    order: Order

    def __call__(self) -> dict[str, Any]:
        """Centroids and codebook, as arguments of pylance. Raises RefusedError for too few rows."""
        dataset = self.place.open(self.version, self.branch)
        given, rows = self.order.parameters, dataset.count_rows(f"`{self.order.column}` IS NOT NULL")
        size = given.get("target_partition_size")
        partitions = given.get("num_partitions") or max(1, rows // size if size else round(math.sqrt(rows)))
        rate = min(given.get("sample_rate", _ROWS_OF_A_CENTROID), rows // partitions)
        if rate < 2:
            raise RefusedError(f"{partitions} partitions need {2 * partitions} vectors, and there are {rows}.")
        rounds = {"max_iters": given["max_iterations"]} if "max_iterations" in given else {}
        builder = IndicesBuilder(dataset, self.order.column)
        ivf = builder.train_ivf(partitions, distance_type=self.order.distance, sample_rate=rate, **rounds)
        model = {"num_partitions": partitions, "ivf_centroids": ivf.centroids}
        if not self.order.kind.endswith("_PQ"):
            return model
        bits = given.get("num_bits", 8)
        rate = min(given.get("sample_rate", _ROWS_OF_A_CENTROID), rows >> bits)
        if rate < 2:
            raise RefusedError(f"{self.order.kind} needs {2 << bits} vectors, and there are {rows}: take IVF_FLAT.")
        pq = builder.train_pq(ivf, given.get("num_sub_vectors"), sample_rate=rate, num_bits=bits, **rounds)
        return {**model, "num_sub_vectors": pq.num_subvectors, "pq_codebook": pq.codebook}


@dataclass(frozen=True, slots=True)
class _Build:
    """A task: the segment of some fragments."""

    place: Place
    version: int
    branch: str | None
    order: Order
    model: Mapping[str, Any]
    fragments: tuple[int, ...]

    def __call__(self) -> Any:
        """The segment, as pylance describes it."""
        dataset = self.place.open(self.version, self.branch)
        order = self.order
        return dataset.create_index_uncommitted(
            order.column,
            order.kind,
            name=order.name,
            replace=True,
            fragment_ids=list(self.fragments),
            **order.options(self.model),
        )


@dataclass(frozen=True, slots=True)
class _Merge:
    """A task: one segment of several."""

    place: Place
    version: int
    branch: str | None
    segments: tuple[Any, ...]

    def __call__(self) -> Any:
        """The segment."""
        return self.place.open(self.version, self.branch).merge_existing_index_segments(list(self.segments))


@job("index")
def index(
    run: Run,
    catalog: Connection,
    spark: SparkSession,
    table: Annotated[str, "The table."],
    column: Annotated[str, "The column to index."],
    type: Annotated[str, "BTREE, BITMAP, LABEL_LIST, NGRAM, ZONEMAP, BLOOMFILTER, FTS, IVF_PQ, IVF_HNSW_SQ, …"],  # noqa: A002  # the argument's name
    *,
    name: Annotated[str | None, "The index's name; else the column's with _idx."] = None,
    replace: Annotated[bool, "Replace an index of that name."] = False,
    parameters: Annotated[dict[str, str], "As of CreateTableIndex: num_partitions=256, distance_type=cosine, …"] = {},  # noqa: B006  # the registry copies it
    branch: Annotated[str | None, "A branch of the table."] = None,
) -> Mapping[str, object]:
    """Build an index of a column, on all of the cluster.

    \\b
    Examples:
      tiltyard job index --uri http://127.0.0.1:2333 films id BTREE
      tiltyard job index --uri http://127.0.0.1:2333 films vector IVF_PQ --parameters num_partitions=256
    """
    order = find_order(column, type, name, {key: _value(text) for key, text in parameters.items()})
    found = connecting.table(catalog, table)
    dataset = found.dataset(branch=branch)
    checked_columns(dataset.schema, [column], "The column")
    if (done := _done(run, dataset, order)) is not None:
        return done
    if not replace and any(one.name == order.name for one in dataset.describe_indices()):
        raise InvalidInputError(f"{table} has an index '{order.name}': name another one, or say --replace.")
    for _ in range(_TRIES):
        dataset = found.dataset(branch=branch)
        try:
            segments = built_segments(run, spark, found.place(), dataset, branch, order)
        except RefusedError as refusal:
            raise InvalidInputError(str(refusal)) from refusal
        run.keep(_BUILT, json.dumps(sorted(str(one.uuid) for one in segments)))
        run.check()
        if _commit(dataset, order, segments) and (done := _done(run, found.dataset(branch=branch), order)) is not None:
            return done
    raise ConcurrentModificationError(
        f"Others replaced fragments of {table} {_TRIES} times meanwhile: build when no compaction runs."
    )


def find_order(column: str, type: str, name: str | None, parameters: Mapping[str, Any]) -> Order:  # noqa: A002  # as the job's argument
    """What is built. Raises InvalidInputError for a type that there is not."""
    kind = _SYNONYMS.get(type.upper(), type.upper())
    if kind not in _SCALAR | _VECTOR:
        there = ", ".join(sorted(_SCALAR | _VECTOR))
        raise InvalidInputError(f"There is no index type '{type}': choose one of {there}.")
    return Order(column, kind, name or f"{column}_idx", parameters)


def built_segments(
    run: Run, spark: SparkSession, place: Place, dataset: lance.LanceDataset, branch: str | None, order: Order
) -> list[Any]:
    """Build all segments, and merge them; nothing names them yet. Raises RefusedError."""
    rows = {number: one.num_rows for number, one in fragments_of(dataset).items()}
    light = order.kind in _LIGHT and sum(rows.values()) <= ROWS_IN_THE_DRIVER
    session = None if light else spark
    version = int(dataset.version)
    model: dict[str, Any] = {}
    if order.kind in _VECTOR:
        run.progress(stage="train")
        model = run_tasks(session, run, _work, [_Train(place, version, branch, order)], name="index: train")[0]
    groups = grouped(rows, sum(rows.values()), 1 if light else slots(session))
    builds = [_Build(place, version, branch, order, model, group) for group in groups]
    built = 0

    def heard(_: int, segment: Any) -> None:
        nonlocal built
        built += len(segment.fragment_ids)
        run.progress(stage="build", fragments=built, fragments_total=len(rows))

    segments = run_tasks(session, run, _work, builds, on_result=heard, name="index: build", wave=len(builds))
    if len(segments) < 2 or order.kind in _APART:
        return segments
    run.progress(stage="merge")
    return run_tasks(session, run, _work, [_Merge(place, version, branch, tuple(segments))], name="index: merge")


def _work(task: Any) -> Any:
    return task()


def _commit(dataset: lance.LanceDataset, order: Order, segments: Sequence[Any]) -> bool:
    """Publish the segments; False if fragments that they cover were replaced meanwhile."""
    try:
        dataset.commit_existing_index_segments(order.name, order.column, list(segments))
    except (OSError, RuntimeError, ValueError) as error:
        if "conflict" not in str(error).lower():
            raise
        return False
    return True


def _done(run: Run, dataset: lance.LanceDataset, order: Order) -> Mapping[str, object] | None:
    """The figures, if what this run has built is in the table."""
    built = set(json.loads(run.kept().get(_BUILT, "[]")))
    for one in dataset.describe_indices():
        there = {str(segment.uuid) for segment in one.segments}
        if one.name == order.name and built and built <= there:
            return {
                "version": int(dataset.version),
                "index": order.name,
                "rows": one.num_rows_indexed,
                "segments": len(there),
            }
    return None


def _value(text: str) -> Any:
    """A parameter from an option: numbers, true and lists are JSON, all else is text."""
    try:
        return json.loads(text)
    except ValueError:
        return text
