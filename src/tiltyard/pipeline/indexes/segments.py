"""Build the segments of an index: train a model once, build a segment for each group of fragments, merge them.

    sample → model (a file) → a segment for each group of fragments → merged segments, of up to 256 million rows

With a checkpoint, a build that resumes (after a driver that died, or beside others that replaced fragments) builds only
what is missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import lance
from lance.indices import IndexConfig

from tiltyard.pipeline.indexes.checkpoint import IndexCheckpoint
from tiltyard.pipeline.indexes.tasks import (
    LIGHT_TYPES,
    VECTOR_TYPES,
    BuildInput,
    BuildSegment,
    IndexModel,
    IndexSpec,
    MergeSegments,
    TrainModel,
)
from tiltyard.pipeline.session import task_slots
from tiltyard.pipeline.spark_tasks import call_task, run_tasks
from tiltyard.pipeline.table_location import TableLocation
from tiltyard.pipeline.task_errors import RefusedError
from tiltyard.pipeline.version_diff import fragments_by_id, group_fragments

if TYPE_CHECKING:
    from lance.fragment import FragmentMetadata
    from pyspark.sql import SparkSession

    from tiltyard.pipeline.runs import Run

MAX_ROWS_IN_DRIVER = 4_000_000
"""Light indexes of up to so many rows are built in this process: starting Spark's tasks takes longer."""

ROWS_PER_SEGMENT = 16 << 20
"""Most rows of a task: what is lost if it fails."""

ROWS_PER_MERGE = 256 << 20
"""Most rows of a merged segment: one task rewrites it, and holds its vectors' codes on its disk."""

_UNMERGEABLE_TYPES = frozenset({"IVF_RQ"})
"""Each segment has a random rotation of its own, and cannot be merged with another."""


def build_segments(
    run: Run,
    spark: SparkSession,
    location: TableLocation,
    dataset: lance.LanceDataset,
    branch: str | None,
    spec: IndexSpec,
    checkpoint: IndexCheckpoint | None = None,
) -> list[Any]:
    """Build all segments, and merge them; nothing is committed. Raises RefusedError.

    What the checkpoint holds is not built again, and what is built is added to it; its model stays.
    """
    fragments = fragments_by_id(dataset)
    rows = sum(fragment.num_rows for fragment in fragments.values())
    in_driver = spec.kind in LIGHT_TYPES and rows <= MAX_ROWS_IN_DRIVER
    build_input = BuildInput(location, int(dataset.version), branch, spec, dataset if in_driver else None)
    build = _SegmentBuild(run, None if in_driver else spark, build_input, fragments, checkpoint)
    model = build.train_model() if spec.kind in VECTOR_TYPES else None
    segments = checkpoint.load_segments(dataset, fragments, model) if checkpoint else []
    covered = {number for segment in segments for number in segment.fragment_ids}
    missing = {number: fragment.num_rows for number, fragment in fragments.items() if number not in covered}
    groups = group_fragments(missing, ROWS_PER_SEGMENT, 1 if in_driver else task_slots(build.spark))
    segments = build.merge([*segments, *build.build(model, groups)], model)
    if model is not None and checkpoint is None:
        model.delete(location)
    return segments


@dataclass(frozen=True, slots=True)
class _SegmentBuild:
    """A build in progress: its tasks run on Spark, or in this process where `spark` is None."""

    run: Run
    spark: SparkSession | None
    input: BuildInput
    fragments: Mapping[int, FragmentMetadata]
    checkpoint: IndexCheckpoint | None

    def train_model(self) -> IndexModel:
        """Train the model, or load it from the checkpoint. Raises RefusedError."""
        if self.checkpoint is not None and (saved := self.checkpoint.load_model(self.input.location)) is not None:
            return saved
        self.run.progress(stage="train")
        model: IndexModel = run_tasks(self.spark, self.run, call_task, [TrainModel(self.input)], name="index: train")[0]
        if self.checkpoint is not None:
            self.checkpoint.save_model(model)
        return model

    def build(self, model: IndexModel | None, groups: Sequence[tuple[int, ...]]) -> list[Any]:
        """Build a segment for each group of fragments."""
        done = len(self.fragments) - sum(len(group) for group in groups)

        def handle_result(_: int, segment: Any) -> None:
            nonlocal done
            done += len(segment.fragment_ids)
            self._save(segment, model)
            self.run.progress(stage="build", fragments=done, fragments_total=len(self.fragments))

        tasks = [BuildSegment(self.input, model, group) for group in groups]
        return run_tasks(self.spark, self.run, call_task, tasks, on_result=handle_result, name="index: build")

    def merge(self, segments: Sequence[Any], model: IndexModel | None) -> list[Any]:
        """Merge the segments into as few as may be."""
        if self.input.spec.kind in _UNMERGEABLE_TYPES:
            return list(segments)
        rows = {
            position: sum(self.fragments[number].num_rows for number in segment.fragment_ids)
            for position, segment in enumerate(segments)
        }
        groups = [[segments[position] for position in group] for group in group_fragments(rows, ROWS_PER_MERGE, 1)]
        single = [group[0] for group in groups if len(group) == 1]
        tasks = [MergeSegments(self.input, tuple(group)) for group in groups if len(group) > 1]
        if tasks:
            self.run.progress(stage="merge")

        def handle_result(_: int, segment: Any) -> None:
            self._save(segment, model)

        return [
            *single,
            *run_tasks(self.spark, self.run, call_task, tasks, on_result=handle_result, name="index: merge"),
        ]

    def _save(self, segment: Any, model: IndexModel | None) -> None:
        if self.checkpoint is not None:
            self.checkpoint.save_segment(segment, self.fragments, model)


def commit_empty_index(dataset: lance.LanceDataset, spec: IndexSpec, uuid: str) -> None:
    """Commit the index of a table without rows, as a segment `uuid`, to which later rows can be added.

    Raises RefusedError for an index to which they could not, and what Lance raises.
    """
    options: dict[str, Any] = {"name": spec.name, "replace": True, "index_uuid": uuid}
    if spec.kind in VECTOR_TYPES:
        shape = {key: spec.parameters[key] for key in ("num_partitions", "num_sub_vectors") if key in spec.parameters}
        dataset.create_index(spec.column, spec.kind, **spec.options(shape), **options)
        return
    if spec.kind != "INVERTED" and spec.column not in dataset.schema.names:
        # pylance 14 creates it, and fails then on each attempt to add rows to it: "No column with name …".
        raise RefusedError(f"An index of {spec.column}, which is within a struct, needs rows: write some first.")
    kind: Any = spec.kind
    dataset.create_scalar_index(
        spec.column, IndexConfig(kind, dict(spec.parameters)) if spec.parameters else kind, **options
    )
