"""Tasks that train a vector index together: draw samples, cluster them, train centroids by cluster, then a codebook.

    table → samples → coarse centroids → samples sorted by cluster → centroids of each cluster
            centroids, samples sorted by cluster → sums for each centroid → centroids, refined
                                                 samples → residuals by sub-vector → codebook

Each task writes a file of the training's folder, and returns its name with what the next tasks have to know of it. What
it writes depends on the table's version and the plan alone, and not on which process runs it, or how often.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tiltyard.pipeline.indexes import kmeans
from tiltyard.pipeline.indexes.model_files import (
    VALUES,
    IndexModel,
    read_evenly,
    read_matrix,
    to_vectors,
    write_columns,
    write_matrix,
)
from tiltyard.pipeline.indexes.tasks import BuildInput
from tiltyard.pipeline.table_location import TableLocation

if TYPE_CHECKING:
    from lance.fragment import LanceFragment

    from tiltyard.model.columns.vector_columns import Matrix

MAX_TASK_BYTES = 256 << 20
"""Bytes of vectors that a task holds at most; of a larger cluster it reads as many, at even distances."""
MAX_CLUSTER_ITERATIONS = 10
"""Steps by which the centroids of a coarse cluster are trained: all centroids move together afterwards."""
_RUN_BYTES = 64 << 10
"""Bytes of neighbouring vectors that are read at once, by what one request to an object store costs."""
_READ_BYTES = 32 << 20
"""Bytes of vectors of a fragment that are read before it is known how many of them are null."""

Written = list[Any]
"""The file that a task wrote, below the table's folder, and numbers: a list, as checkpoints have it."""


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """What is trained: on which version, how many centroids from how many vectors for each, and of which type.

    `codes` is the number of codes for each of `sub_vectors`; both are 0 where there is no codebook. `tasks` is how many
    run at once, `samples` how many draw; they decide who does what, and not what comes out.
    """

    folder: str
    version: int
    partitions: int
    rate: int
    iterations: int
    is_cosine: bool
    dimension: int
    element: str
    codes: int
    sub_vectors: int
    code_rate: int
    tasks: int
    samples: int
    seed: int

    @property
    def rows(self) -> int:
        """Return how many vectors are drawn."""
        return max(self.partitions * self.rate, self.codes * self.code_rate)

    @property
    def model(self) -> IndexModel:
        """Return the model that the training writes."""
        return IndexModel(self.folder, self.partitions, self.sub_vectors)

    def file(self, stage: str, position: int) -> str:
        """Return the name of the file of a task, below the table's folder."""
        return f"{self.folder}/{stage}-{position}.lance"

    def vectors(self, matrix: Matrix) -> pa.Array:
        """Return rows of a matrix as vectors of the column's type."""
        return to_vectors(matrix, pa.type_for_alias(self.element))


@dataclass(frozen=True, slots=True)
class SampleVectors:
    """A task: draw vectors of some fragments, each with the number that is wanted of it."""

    input: BuildInput
    plan: TrainingPlan
    position: int
    fragments: tuple[tuple[int, int], ...]

    def __call__(self) -> Written:
        """Return the file and its rows: fewer than wanted where vectors are null or not finite."""
        by_id = {fragment.fragment_id: fragment for fragment in self.input.open().get_fragments()}
        parts = [part for number, count in self.fragments for part in self._draw(by_id[number], count)]
        rows = np.concatenate([np.empty((0, self.plan.dimension), np.float32), *parts])
        file = self.plan.file("sample", self.position)
        write_matrix(self.input.location, file, rows)
        return [file, len(rows)]

    def _draw(self, fragment: LanceFragment, count: int) -> Iterator[Matrix]:
        """Yield vectors of runs of rows, in an order drawn for the fragment, until there are as many as wanted."""
        rows, width = fragment.count_rows(), 4 * self.plan.dimension
        run = max(1, min(_RUN_BYTES // width, count))
        runs = np.random.default_rng([self.plan.seed, fragment.fragment_id]).permutation(-(-rows // run))
        at_once = max(1, _READ_BYTES // (width * run))
        first = 0
        while count > 0 and first < len(runs):
            chosen = np.sort(runs[first : first + min(at_once, -(-count // run))])
            first += len(chosen)
            positions = (chosen[:, None] * run + np.arange(run)).reshape(-1)
            table = fragment.take(positions[positions < rows].tolist(), columns=[self.input.spec.column])
            vectors = self._matrix(table.column(0).combine_chunks())[:count]
            count -= len(vectors)
            yield vectors

    def _matrix(self, values: pa.Array) -> Matrix:
        """Return vectors without those that are null or not finite, for cosine of length one."""
        if isinstance(values, pa.ExtensionArray):
            values = values.storage
        while pa.types.is_struct(values.type):  # a path: each struct on it has that one field
            [values] = values.flatten()
        flat = values.drop_null().flatten().to_numpy(zero_copy_only=False)
        rows: Matrix = flat.astype(np.float32).reshape(-1, self.plan.dimension)
        rows = rows[np.isfinite(rows).all(axis=1)]
        if self.plan.is_cosine:
            rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.finfo(np.float32).tiny)
        return rows


@dataclass(frozen=True, slots=True)
class TrainCoarse:
    """A task: train the centroids of the coarse clusters on a part of the samples, each a file with its rows."""

    location: TableLocation
    plan: TrainingPlan
    samples: tuple[tuple[str, int], ...]

    def __call__(self) -> Written:
        """Return the file."""
        plan = self.plan
        wanted = kmeans.coarse_count(plan.partitions) * kmeans.ROWS_PER_CENTROID
        rows = np.concatenate(list(_read_part(self.location, self.samples, wanted)))
        file = plan.file("coarse", 0)
        write_matrix(self.location, file, kmeans.train_coarse(rows, plan.partitions, plan.seed, plan.iterations))
        return [file]


def _read_part(location: TableLocation, samples: tuple[tuple[str, int], ...], count: int) -> Iterator[Matrix]:
    """Yield `count` rows of samples, or all if there are fewer, of each in proportion."""
    total = sum(rows for _, rows in samples)
    for (file, rows), share in zip(
        samples, kmeans.shares([rows for _, rows in samples], min(count, total)), strict=True
    ):
        yield read_evenly(location, file, share, rows=rows)


@dataclass(frozen=True, slots=True)
class SortSample:
    """A task: sort a sample by coarse clusters."""

    location: TableLocation
    plan: TrainingPlan
    position: int
    sample: str
    coarse: str

    def __call__(self) -> Written:
        """Return the file and the number of rows of each cluster."""
        rows, coarse = read_matrix(self.location, self.sample), read_matrix(self.location, self.coarse)
        positions, _ = kmeans.assign(rows, coarse)
        file = self.plan.file("sorted", self.position)
        write_matrix(self.location, file, rows[positions.argsort(kind="stable")])
        return [file, *(int(size) for size in np.bincount(positions, minlength=len(coarse)))]


@dataclass(frozen=True, slots=True)
class Cluster:
    """A coarse cluster: how many centroids it gets, and its rows, as first row and count in each sorted file."""

    number: int
    centroids: int
    ranges: tuple[tuple[str, int, int], ...]

    def read(self, location: TableLocation, dimension: int) -> Matrix:
        """Read its rows, or a part of them at even distances where they are more than a task may hold."""
        total = sum(count for _, _, count in self.ranges)
        most = max(MAX_TASK_BYTES // (4 * dimension), 2 * self.centroids)
        kept = kmeans.shares([count for _, _, count in self.ranges], min(most, total))
        parts = zip(self.ranges, kept, strict=True)
        return np.concatenate(
            [read_evenly(location, file, share, first=first, rows=rows) for (file, first, rows), share in parts]
        )


@dataclass(frozen=True, slots=True)
class TrainClusters:
    """A task: train the centroids of some coarse clusters, one cluster after the other."""

    location: TableLocation
    plan: TrainingPlan
    position: int
    clusters: tuple[Cluster, ...]

    def __call__(self) -> Written:
        """Return the file."""
        plan = self.plan
        parts = [
            kmeans.train(
                cluster.read(self.location, plan.dimension),
                cluster.centroids,
                plan.seed + plan.partitions * (1 + cluster.number),
                min(plan.iterations, MAX_CLUSTER_ITERATIONS),
            )
            for cluster in self.clusters
        ]
        file = plan.file("clusters", self.position)
        write_matrix(self.location, file, np.concatenate(parts))
        return [file]


@dataclass(frozen=True, slots=True)
class AddUpClusters:
    """A task: find the nearest of all centroids for the rows of some coarse clusters, and add these up.

    `centroids` are files whose rows are all centroids in the order of the clusters; `firsts` has the position of each
    cluster's first one.
    """

    location: TableLocation
    plan: TrainingPlan
    stage: str
    position: int
    centroids: tuple[str, ...]
    clusters: tuple[Cluster, ...]
    firsts: tuple[int, ...]

    def __call__(self) -> Written:
        """Return the file."""
        centroids = _read_all(self.location, self.centroids)
        parts = [
            kmeans.add_up(
                cluster.read(self.location, self.plan.dimension),
                centroids,
                kmeans.choose_compared(centroids, first, cluster.centroids),
            )
            for cluster, first in zip(self.clusters, self.firsts, strict=True)
        ]
        file = self.plan.file(self.stage, self.position)
        write_columns(self.location, file, {VALUES: to_vectors(np.concatenate(parts), pa.float64())})
        return [file]


def _read_all(location: TableLocation, files: tuple[str, ...]) -> Matrix:
    return np.concatenate([read_matrix(location, file) for file in files])


@dataclass(frozen=True, slots=True)
class MoveCentroids:
    """A task: move all centroids to the means of their rows, by the sums of the tasks in their order."""

    location: TableLocation
    plan: TrainingPlan
    stage: str
    centroids: tuple[str, ...]
    sums: tuple[str, ...]

    def __call__(self) -> Written:
        """Return the file."""
        moved = kmeans.move(
            _read_all(self.location, self.centroids), (read_matrix(self.location, file) for file in self.sums)
        )
        file = self.plan.file(self.stage, 0)
        write_matrix(self.location, file, moved)
        return [file]


@dataclass(frozen=True, slots=True)
class WriteResiduals:
    """A task: write how far vectors of a sample are from their centroids, a column for each group of sub-vectors."""

    location: TableLocation
    plan: TrainingPlan
    position: int
    sample: tuple[str, int]
    count: int
    groups: int

    def __call__(self) -> Written:
        """Return the file."""
        file, rows = self.sample
        vectors = read_evenly(self.location, file, self.count, rows=rows)
        centroids = self.plan.model.read_centroids(self.location)
        vectors = vectors - centroids[kmeans.assign(vectors, centroids)[0]]
        parts = np.array_split(vectors.reshape(len(vectors), self.plan.sub_vectors, -1), self.groups, axis=1)
        columns = {
            f"group{number}": to_vectors(part.reshape(len(part), -1), pa.float32()) for number, part in enumerate(parts)
        }
        file = self.plan.file("residuals", self.position)
        write_columns(self.location, file, columns)
        return [file]


@dataclass(frozen=True, slots=True)
class TrainCodebook:
    """A task: train the codes of a group of sub-vectors."""

    location: TableLocation
    plan: TrainingPlan
    position: int
    residuals: tuple[str, ...]

    def __call__(self) -> Written:
        """Return the file: for each sub-vector of the group its codes, one after the other."""
        plan, column = self.plan, f"group{self.position}"
        rows = np.concatenate([read_matrix(self.location, file, column) for file in self.residuals])
        split = rows.reshape(len(rows), -1, plan.dimension // plan.sub_vectors)
        codes = [
            kmeans.train(np.ascontiguousarray(split[:, number]), plan.codes, plan.seed, plan.iterations)
            for number in range(split.shape[1])
        ]
        file = plan.file("codes", self.position)
        write_matrix(self.location, file, np.concatenate(codes))
        return [file]


@dataclass(frozen=True, slots=True)
class JoinParts:
    """A task: write what several tasks have trained as one file of the model.

    The centroids by cluster; or the codes by sub-vector, then by code, as Lance has them in a codebook.
    """

    location: TableLocation
    plan: TrainingPlan
    file: str
    parts: tuple[str, ...]

    def __call__(self) -> Written:
        """Return the file."""
        rows = _read_all(self.location, self.parts)
        vectors = self.plan.vectors(rows.reshape(-1, self.plan.dimension))
        write_columns(self.location, self.file, self.plan.model.columns(vectors))
        return [self.file]
