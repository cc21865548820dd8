"""Train the model of a vector index: in one task, or in tasks together, as `reason_for_one_task` decides.

In tasks, a sample is drawn from all fragments, and clustered into √partitions coarse clusters; each cluster trains its
share of the centroids by itself. Then all centroids move together, since those of a cluster know nothing of vectors
beyond its borders; and each group of sub-vectors trains its codes. So the work is that of a hierarchical k-means and a
few steps of a whole one, all of it divided but the coarse clusters (√partitions centroids of 256 vectors each). No
process holds more than 256 MiB of vectors and the centroids; rows never pass through the driver.

What a task has written is checkpointed by its stage and position (`training-sorted-3`): a driver that resumes starts
none of these again. Only drawing reads the table, so the training goes on when the table has other versions by then.
"""

from __future__ import annotations

import itertools
import json
import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tiltyard.model.columns.vector_columns import VectorColumn
from tiltyard.pipeline.indexes import kmeans
from tiltyard.pipeline.indexes.model_files import IndexModel
from tiltyard.pipeline.indexes.tasks import ROWS_PER_CENTROID, BuildInput, IndexSpec, TrainModel
from tiltyard.pipeline.indexes.training_tasks import (
    AddUpClusters,
    Cluster,
    JoinParts,
    MoveCentroids,
    SampleVectors,
    SortSample,
    TrainClusters,
    TrainCoarse,
    TrainCodebook,
    TrainingPlan,
    WriteResiduals,
    Written,
)
from tiltyard.pipeline.session import LazySession, task_slots
from tiltyard.pipeline.sources.filesystem import delete_files, file_exists
from tiltyard.pipeline.spark_tasks import call_task, group_neighbors, run_tasks
from tiltyard.pipeline.table_location import TableLocation

if TYPE_CHECKING:
    import lance
    from lance.fragment import FragmentMetadata
    from pyspark.sql import SparkSession

    from tiltyard.pipeline.runs import Run

MIN_SAMPLE_BYTES = 128 << 20
"""Bytes of a sample from which tasks train together: the stages of a smaller one take longer than one task."""
SAMPLE_BYTES_PER_TASK = 128 << 20
"""Bytes that a task draws."""
MAX_SMALL_SAMPLES = 64
"""How many tasks draw, if so many run at once, before each has its bytes: each cluster is read from all their files."""
MIN_DRAWN = 0.25
"""The share of the vectors wanted that has to be drawn: where most are null, one task looks for the others."""
SEED = 1
REFINEMENTS = 4
"""Steps by which all centroids move together, once each coarse cluster has trained its own."""

_PLAN = "training"


def train_model(
    run: Run,
    spark: SparkSession | LazySession | None,
    build_input: BuildInput,
    dataset: lance.LanceDataset,
    fragments: Mapping[int, FragmentMetadata],
    fields: frozenset[int] | None,
) -> IndexModel:
    """Train the model and write it; with `fields`, the column's, what is trained is checkpointed. Raises RefusedError.

    Where a single task trains, the run's figure `training` says why.
    """
    rows = {number: fragment.num_rows for number, fragment in fragments.items()}
    plan = None if fields is None else _load_plan(run, fields, build_input)
    reason = ""
    if plan is None:
        slots = task_slots(spark)
        reason = reason_for_one_task(build_input.spec, dataset, sum(rows.values()), slots)
        plan = None if reason else _make_plan(build_input, dataset, rows, slots)
        if plan is not None and fields is not None:
            run.save_checkpoint(_PLAN, json.dumps({"plan": asdict(plan), "fields": sorted(fields)}))
    if plan is not None:
        training = _Training(run, spark, build_input, plan, is_saved=fields is not None)
        if (model := training.train(rows)) is not None:
            return model
        reason = "most rows that were drawn have no vector"
    run.progress(stage="train", training=f"in one task: {reason}")
    trained: IndexModel = run_tasks(spark, run, call_task, [TrainModel(build_input)], name="index: train")[0]
    return trained


def reason_for_one_task(spec: IndexSpec, dataset: lance.LanceDataset, rows: int, slots: int) -> str:
    """Return why one task trains the model of a table of so many rows; empty if tasks do it together."""
    column = _vector_column(dataset, spec)
    partitions = spec.partitions(rows)
    sample = partitions * _rate(spec, rows, partitions) * column.dimension * 4
    if slots < 2:
        return "one task runs at once"
    if column.is_multivector:
        return "rows have several vectors"
    if spec.distance not in ("l2", "cosine"):
        return f"centroids by the distance '{spec.distance}' are no means"
    if rows < 2 * partitions or sample < MIN_SAMPLE_BYTES:
        return f"its sample of {max(sample, 0) >> 20} MiB is smaller than {MIN_SAMPLE_BYTES >> 20} MiB"
    return ""


def _vector_column(dataset: lance.LanceDataset, spec: IndexSpec) -> VectorColumn:
    field: Any = dataset.lance_schema.field(spec.column)  # pylance's stubs lack it
    column = VectorColumn.from_type(spec.column, field.to_arrow().type)
    assert column is not None, "validate_spec has checked it"
    return column


def _rate(spec: IndexSpec, rows: int, centroids: int) -> int:
    """Return how many vectors are drawn for each centroid, or for each code."""
    return int(min(spec.parameters.get("sample_rate", ROWS_PER_CENTROID), rows // centroids))


def _make_plan(
    build_input: BuildInput, dataset: lance.LanceDataset, rows: Mapping[int, int], slots: int
) -> TrainingPlan:
    spec, total = build_input.spec, sum(rows.values())
    column = _vector_column(dataset, spec)
    partitions = spec.partitions(total)
    has_codes = spec.kind.endswith("_PQ")
    codes = 1 << spec.parameters.get("num_bits", 8) if has_codes else 0
    plan = TrainingPlan(
        folder=f"_indices/{uuid.uuid4()}",
        version=build_input.version,
        partitions=partitions,
        rate=_rate(spec, total, partitions),
        iterations=spec.parameters.get("max_iterations", kmeans.ITERATIONS),
        is_cosine=spec.distance == "cosine",
        dimension=column.dimension,
        element=str(column.element),
        codes=codes,
        sub_vectors=spec.parameters["num_sub_vectors"] if has_codes else 0,
        code_rate=_rate(spec, total, codes) if has_codes else 0,
        tasks=slots,
        samples=0,
        seed=SEED,
    )
    size = plan.rows * plan.dimension * 4
    samples = max(min(slots, MAX_SMALL_SAMPLES), math.ceil(size / SAMPLE_BYTES_PER_TASK))
    return TrainingPlan(**{**asdict(plan), "samples": len(_draws(plan, rows, samples))})


def _draws(plan: TrainingPlan, rows: Mapping[int, int], samples: int) -> list[tuple[tuple[int, int], ...]]:
    """Return the fragments of each task that draws, each with how many vectors are wanted of it."""
    share = min(1.0, plan.rows / max(1, sum(rows.values())))
    wanted = {number: math.ceil(count * share) for number, count in rows.items() if count}
    groups = group_neighbors(wanted.items(), samples)
    return [tuple((number, wanted[number]) for number in group) for group in groups]


def _load_plan(run: Run, fields: frozenset[int], build_input: BuildInput) -> TrainingPlan | None:
    """Return the plan of an earlier driver, if the column is the same one.

    It is of another version than the present one only if all that it draws from the table has been drawn, and is there.
    """
    saved = run.checkpoints()
    entry = json.loads(saved.get(_PLAN, "null"))
    if entry is None or frozenset(entry["fields"]) != fields:
        return None
    plan = TrainingPlan(**entry["plan"])
    if plan.version == build_input.version:
        return plan
    drawn = (_load(saved, "sample", position, build_input.location) for position in range(plan.samples))
    return plan if all(written is not None for written in drawn) else None


def _load(saved: Mapping[str, str], stage: str, position: int, location: TableLocation) -> Written | None:
    """Return what a task of an earlier driver has written; None if that is not there."""
    written: Written | None = json.loads(saved.get(_key(stage, position), "null"))
    is_there = written is not None and file_exists(f"{location.uri}/{written[0]}", location.options)
    return written if is_there else None


def _key(stage: str, position: int) -> str:
    return f"{_PLAN}-{stage}-{position}"


@dataclass(frozen=True, slots=True)
class _Training:
    """A training in progress, in stages of tasks; `is_saved` where what they write is checkpointed."""

    run: Run
    spark: SparkSession | LazySession | None
    input: BuildInput
    plan: TrainingPlan
    is_saved: bool

    def train(self, rows: Mapping[int, int]) -> IndexModel | None:
        """Return the model; None if too few vectors could be drawn. `rows` are those of each fragment."""
        plan, location = self.plan, self.input.location
        draws = self._draws(rows)
        drawn = self._run("sample", [SampleVectors(self.input, plan, *draw) for draw in enumerate(draws)])
        samples = tuple((file, count) for file, count in drawn if count)
        files = [file for file, _ in drawn]
        count = sum(count for _, count in samples)
        if count < max(2 * plan.partitions, 2 * plan.codes, MIN_DRAWN * plan.partitions * plan.rate):
            self._delete(files)
            return None
        [[coarse]] = self._run("coarse", [TrainCoarse(location, plan, samples)])
        tasks = [SortSample(location, plan, *each, coarse) for each in enumerate(file for file, _ in samples)]
        sorted_samples = self._run("sorted", tasks)
        groups = self._clusters(sorted_samples)
        parts = self._run("clusters", [TrainClusters(location, plan, *group) for group in enumerate(groups)])
        files += [coarse, *(file for file, *_ in sorted_samples), *(file for [file] in parts)]
        centroids, unneeded = self._refine(groups, tuple(file for [file] in parts))
        self._run("centroids", [JoinParts(location, plan, plan.model.files[0], centroids)])
        files += unneeded
        if plan.codes:
            files += self._train_codebook(samples, count)
        self._delete(files)
        return plan.model

    def _draws(self, rows: Mapping[int, int]) -> list[tuple[tuple[int, int], ...]]:
        """Return what each task draws; nothing where all is drawn, from a version with other fragments."""
        if self.plan.version != self.input.version:
            return [()] * self.plan.samples
        return _draws(self.plan, rows, self.plan.samples)

    def _clusters(self, sorted_samples: Sequence[Written]) -> list[tuple[Cluster, ...]]:
        """Return the coarse clusters in groups of similar work, each with its centroids and the ranges of its rows."""
        sizes = np.array([counts for _, *counts in sorted_samples], np.int64)
        firsts = sizes.cumsum(axis=1) - sizes
        totals = sizes.sum(axis=0)
        clusters = []
        for number, centroids in enumerate(kmeans.shares(totals, self.plan.partitions)):
            if centroids:
                each = zip(sorted_samples, firsts[:, number], sizes[:, number], strict=True)
                ranges = tuple((str(file), int(first), int(rows)) for (file, *_), first, rows in each if rows)
                clusters.append(Cluster(number, centroids, ranges))
        work = [(cluster, cluster.centroids * int(totals[cluster.number])) for cluster in clusters]
        return group_neighbors(work, min(len(work), 4 * self.plan.tasks))

    def _refine(
        self, groups: Sequence[tuple[Cluster, ...]], centroids: tuple[str, ...]
    ) -> tuple[tuple[str, ...], list[str]]:
        """Move all centroids together; return their files, and those that are needed no longer."""
        plan, location, files = self.plan, self.input.location, []
        numbers = [[cluster.centroids for cluster in group] for group in groups]
        ends = iter(itertools.accumulate(itertools.chain.from_iterable(numbers)))
        firsts = [tuple(next(ends) - number for number in group) for group in numbers]
        for step in range(min(REFINEMENTS, plan.iterations)):
            stages = f"sums{step}", f"moved{step}"
            tasks = [
                AddUpClusters(location, plan, stages[0], position, centroids, *group)
                for position, group in enumerate(zip(groups, firsts, strict=True))
            ]
            sums = tuple(file for [file] in self._run(stages[0], tasks))
            [[moved]] = self._run(stages[1], [MoveCentroids(location, plan, stages[1], centroids, sums)])
            files += [*sums, moved]
            centroids = (moved,)
        return centroids, files

    def _train_codebook(self, samples: Sequence[tuple[str, int]], count: int) -> list[str]:
        """Train the codebook on a part of the samples; return the files that it needs no longer."""
        plan, location = self.plan, self.input.location
        wanted = kmeans.shares([rows for _, rows in samples], min(count, plan.codes * plan.code_rate))
        groups = min(plan.sub_vectors, plan.tasks)
        each = enumerate(zip(samples, wanted, strict=True))
        tasks = [WriteResiduals(location, plan, position, *part, groups) for position, part in each if part[1]]
        residuals = tuple(file for [file] in self._run("residuals", tasks))
        parts = self._run("codes", [TrainCodebook(location, plan, group, residuals) for group in range(groups)])
        codes = tuple(file for [file] in parts)
        self._run("codebook", [JoinParts(location, plan, plan.model.files[1], codes)])
        return [*residuals, *codes]

    def _run(self, stage: str, tasks: Sequence[Callable[[], Written]]) -> list[Written]:
        """Run the tasks of a stage that have not been run by an earlier driver, and return what all have written."""
        location, saved = self.input.location, self.run.checkpoints() if self.is_saved else {}
        results: dict[int, Written] = {}
        for position in range(len(tasks)):
            if (written := _load(saved, stage, position, location)) is not None:
                results[position] = written
        missing = [position for position in range(len(tasks)) if position not in results]
        self.run.progress(stage="train", training=stage, tasks=len(results), tasks_total=len(tasks))

        def handle_result(index: int, written: Written) -> None:
            results[missing[index]] = written
            if self.is_saved:
                self.run.save_checkpoint(_key(stage, missing[index]), json.dumps(written))
            self.run.progress(tasks=len(results))

        payloads = [tasks[position] for position in missing]
        run_tasks(self.spark, self.run, call_task, payloads, on_result=handle_result, name=f"index: train {stage}")
        return [results[position] for position in range(len(tasks))]

    def _delete(self, files: Sequence[str]) -> None:
        location = self.input.location
        delete_files([f"{location.uri}/{file}" for file in files], location.options)
