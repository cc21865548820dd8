"""Build the segments of an index: train a model once, build a segment for each group of fragments, merge them.

    sample → model (a file) → a segment for each group of fragments → merged segments, of up to 256 million rows

With a checkpoint (the model, and segments that are valid as long as their fragments are), a build that resumes, after a
driver that died, or beside others that replaced fragments, builds only what is missing.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import lance
from lance.dataset import Index, IndexFile
from lance.indices import IndexConfig

from tiltyard.change_feed.table_history import fragments_by_id
from tiltyard.model.columns.index_types import IndexType
from tiltyard.model.refusals import RefusedError
from tiltyard.pipeline.indexes.model_files import IndexModel
from tiltyard.pipeline.indexes.tasks import (
    LIGHT_TYPES,
    VECTOR_TYPES,
    BuildInput,
    BuildSegment,
    IndexSpec,
    Merge,
    MergeSegments,
)
from tiltyard.pipeline.indexes.training import train_model
from tiltyard.pipeline.session import LazySession, task_slots
from tiltyard.pipeline.sources.filesystem import file_exists
from tiltyard.pipeline.spark_tasks import call_task, group_for_tasks, run_tasks
from tiltyard.pipeline.table_location import TableLocation
from tiltyard.pipeline.version_diff import path_ids

if TYPE_CHECKING:
    from lance.fragment import FragmentMetadata
    from pyspark.sql import SparkSession

    from tiltyard.pipeline.runs import Run

MAX_DRIVER_ROWS = 4_000_000
"""Light indexes of up to so many rows are built in this process: starting Spark's tasks takes longer."""

ROWS_PER_SEGMENT = 16 << 20
"""Most rows of a task: what is lost if it fails."""

ROWS_PER_MERGE = 256 << 20
"""Most rows of a merged segment: one task rewrites it, and holds its vectors' codes on its disk."""

MIN_ROWS_PER_SEGMENT = 2 << 20
"""The least bound that a caller may set: `optimize` joins segments of up to a full fragment's rows, and a search reads
some of each segment."""

_UNMERGEABLE_TYPES = frozenset({"IVF_RQ"})
"""Each segment has a random rotation of its own, and cannot be merged with another."""

_RANGED_TYPES = frozenset({"IVF_SQ", "IVF_HNSW_SQ"})
"""Each segment has a range of values of its own, and pylance 14 merges them as if it were one: only where that is
measured."""

_GRAPH_TYPES = frozenset({"IVF_HNSW_FLAT", "IVF_HNSW_SQ", "IVF_HNSW_PQ"})
"""A merge builds the graph anew, which takes as long as all segments took: one task builds as many rows as it may."""


def build_segments(
    run: Run,
    spark: SparkSession | LazySession,
    location: TableLocation,
    dataset: lance.LanceDataset,
    branch: str | None,
    spec: IndexSpec,
    checkpoint: IndexCheckpoint | None = None,
    only: frozenset[int] | None = None,
    rows_per_segment: int = ROWS_PER_MERGE,
) -> list[Any]:
    """Build the segments of all fragments, or of some, and merge them; nothing is committed. Raises RefusedError.

    A segment has at most `rows_per_segment` rows, but at least a fragment. What the checkpoint holds is not built
    again, and what is built is added to it; its model stays.
    """
    fragments = {key: each for key, each in fragments_by_id(dataset).items() if only is None or key in only}
    rows = sum(fragment.num_rows for fragment in fragments.values())
    in_driver = spec.kind in LIGHT_TYPES and rows <= MAX_DRIVER_ROWS
    build_input = BuildInput(location, int(dataset.version), branch, spec, dataset if in_driver else None)
    build = _SegmentBuild(run, None if in_driver else spark, build_input, fragments, checkpoint, rows_per_segment)
    model = build.train_model(dataset) if spec.kind in VECTOR_TYPES else None
    segments = checkpoint.load_segments(dataset, fragments, model) if checkpoint else []
    covered = {number for segment in segments for number in segment.fragment_ids}
    missing = {number: fragment.num_rows for number, fragment in fragments.items() if number not in covered}
    slots = 1 if in_driver or spec.kind in _GRAPH_TYPES else task_slots(build.spark)
    groups = group_for_tasks(missing.items(), min(ROWS_PER_SEGMENT, rows_per_segment), slots)
    segments = build.merge([*segments, *build.build(model, groups)], model)
    if model is not None and checkpoint is None:
        model.delete(location)
    return segments


@dataclass(frozen=True, slots=True)
class _SegmentBuild:
    """A build in progress: its tasks run on Spark, or in this process where `spark` is None."""

    run: Run
    spark: SparkSession | LazySession | None
    input: BuildInput
    fragments: Mapping[int, FragmentMetadata]
    checkpoint: IndexCheckpoint | None
    rows_per_segment: int

    def train_model(self, dataset: lance.LanceDataset) -> IndexModel:
        """Train the model, or load it from the checkpoint. Raises RefusedError."""
        if self.checkpoint is not None and (saved := self.checkpoint.load_model(self.input.location)) is not None:
            return saved
        fields = self.checkpoint.fields if self.checkpoint is not None else None
        model = train_model(self.run, self.spark, self.input, dataset, self.fragments, fields)
        if self.checkpoint is not None:
            self.checkpoint.save_model(model)
        return model

    def build(self, model: IndexModel | None, groups: Sequence[tuple[int, ...]]) -> list[Any]:
        """Build a segment for each group of fragments."""
        done = len(self.fragments) - sum(len(group) for group in groups)
        self.run.progress(stage="build", fragments=done, fragments_total=len(self.fragments))

        def handle_result(_: int, segment: Any) -> None:
            nonlocal done
            done += len(segment.fragment_ids)
            self._save(segment, model)
            self.run.progress(fragments=done)

        tasks = [BuildSegment(self.input, model, group) for group in groups]
        return run_tasks(self.spark, self.run, call_task, tasks, on_result=handle_result, name="index: build")

    def merge(self, segments: Sequence[Any], model: IndexModel | None) -> list[Any]:
        """Merge the segments into as few as may be, of up to `rows_per_segment` rows."""
        kind = self.input.spec.kind
        if kind in _UNMERGEABLE_TYPES or (kind in _RANGED_TYPES and not self.input.can_measure_recall):
            return list(segments)
        rows = {
            position: sum(self.fragments[number].num_rows for number in segment.fragment_ids)
            for position, segment in enumerate(segments)
        }
        most_rows = min(self.rows_per_segment, ROWS_PER_SEGMENT if kind in _GRAPH_TYPES else ROWS_PER_MERGE)
        groups = [[segments[position] for position in group] for group in group_for_tasks(rows.items(), most_rows, 1)]
        kept = [group[0] for group in groups if len(group) == 1]
        tasks = [MergeSegments(self.input, tuple(group)) for group in groups if len(group) > 1]
        merged = 0
        if tasks:
            self.run.progress(stage="merge", merged=merged, merged_total=len(tasks))

        def handle_result(_: int, merge: Merge) -> None:
            nonlocal merged
            kept.extend(merge.segments)
            if len(merge.segments) == 1:
                merged += 1
                self._save(merge.segments[0], model)
            self.run.progress(merged=merged, **_recall_figures(merge))

        run_tasks(self.spark, self.run, call_task, tasks, on_result=handle_result, name="index: merge")
        return kept

    def _save(self, segment: Any, model: IndexModel | None) -> None:
        if self.checkpoint is not None:
            self.checkpoint.save_segment(segment, self.fragments, model)


def _recall_figures(merge: Merge) -> dict[str, str]:
    """Return the figures of a run that say what a merge did to the recall."""
    if merge.recall_before is None or merge.recall_after is None:
        return {}
    recall = f"{merge.recall_after:.4f}, and {merge.recall_before:.4f} before"
    if len(merge.segments) == 1:
        return {"merge_recall": recall}
    return {"merge_refused": f"recall {recall}: {len(merge.segments)} segments stay as they were"}


def create_whole_index(dataset: lance.LanceDataset, spec: IndexSpec, uuid: str) -> None:
    """Build and commit an index in this process, of a type that Lance has no segments of. Raises what Lance raises."""
    kind: Any = IndexConfig(index_type=spec.kind, parameters={}) if spec.kind == IndexType.FM else spec.kind
    dataset.create_scalar_index(spec.column, kind, name=spec.name, replace=True, index_uuid=uuid)


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


def commit_segments(dataset: lance.LanceDataset, spec: IndexSpec, segments: Sequence[Any]) -> bool:
    """Commit the segments, and move the dataset to that version; False if that collides with another commit.

    Those of the index that cover none of their fragments stay. Raises what Lance raises.
    """
    return try_commit(lambda: dataset.commit_existing_index_segments(spec.name, spec.column, list(segments)))


def try_commit(commit: Callable[[], object]) -> bool:
    """Commit; False if that collides with another commit: of these fragments, or of segments with some of them."""
    try:
        commit()
    except (OSError, RuntimeError, ValueError) as error:
        if not any(word in str(error).lower() for word in ("conflict", "would orphan")):
            raise
        return False
    return True


_MODEL = "model"
_SEGMENT = "segment-"


@dataclass(frozen=True, slots=True)
class IndexCheckpoint:
    """What a run has built of a column's index. `fields` are the ids of the column's field and all fields inside it.

    `prefix` begins its keys, where a run builds several indexes.
    """

    run: Run
    location: TableLocation
    fields: frozenset[int]
    prefix: str = ""

    @classmethod
    def of(
        cls, run: Run, location: TableLocation, dataset: lance.LanceDataset, column: str, prefix: str = ""
    ) -> IndexCheckpoint:
        """Return the checkpoint for a column of the table, by its path."""
        return cls(run, location, path_ids(dataset, column), prefix)

    def load_model(self, location: TableLocation) -> IndexModel | None:
        """Return the trained model; None if there is none, its files are gone, or the column is another one now."""
        entry = json.loads(self.run.checkpoints().get(f"{self.prefix}{_MODEL}", "null"))
        if entry is None or frozenset(entry["fields"]) != self.fields:
            return None
        model = IndexModel(**entry["model"])
        return model if all(file_exists(f"{location.uri}/{file}", location.options) for file in model.files) else None

    def save_model(self, model: IndexModel) -> None:
        """Save the trained model."""
        entry = {"model": asdict(model), "fields": sorted(self.fields)}
        self.run.save_checkpoint(f"{self.prefix}{_MODEL}", json.dumps(entry))

    def save_segment(self, segment: Index, fragments: Mapping[int, FragmentMetadata], model: IndexModel | None) -> None:
        """Save a segment with its model and the state of its fragments, of the version that it was planned on."""
        seen = {number: _fragment_state(fragments[number], self.fields) for number in segment.fragment_ids}
        entry = {"segment": _to_json(segment), "model": model and model.folder, "seen": seen}
        self.run.save_checkpoint(f"{self.prefix}{_SEGMENT}{segment.uuid}", json.dumps(entry))

    def load_segments(
        self, dataset: lance.LanceDataset, fragments: Mapping[int, FragmentMetadata], model: IndexModel | None
    ) -> list[Index]:
        """Return the valid segments of this model that do not overlap, the largest first.

        A segment is valid if its fragments have the same values as when it was planned, and its files are there.
        """
        segments: list[Index] = []
        covered: set[int] = set()
        prefix = f"{self.prefix}{_SEGMENT}"
        saved = [json.loads(text) for key, text in self.run.checkpoints().items() if key.startswith(prefix)]
        entries = [entry for entry in saved if entry["model"] == (model and model.folder)]
        for entry in sorted(entries, key=lambda entry: len(entry["seen"]), reverse=True):
            states = {int(number): state for number, state in entry["seen"].items()}
            segment = _from_json(entry["segment"])
            if covered.isdisjoint(states) and self._is_valid(states, fragments) and self._has_files(segment, dataset):
                segments.append(segment)
                covered |= states.keys()
        return segments

    def delete_model(self, location: TableLocation) -> None:
        """Delete the model's files: the index is committed."""
        if (model := self.load_model(location)) is not None:
            model.delete(location)

    def _is_valid(self, states: Mapping[int, list[Any]], fragments: Mapping[int, FragmentMetadata]) -> bool:
        """Return whether the fragments have the same values; rows may have been deleted since.

        A version that was restored may have rows again that were deleted when the segment was planned.
        """
        current = {number: _fragment_state(fragments[number], self.fields) for number in states if number in fragments}
        return len(current) == len(states) and all(
            current[number][0] == files and current[number][1] >= deletions
            for number, (files, deletions) in states.items()
        )

    def _has_files(self, segment: Index, dataset: lance.LanceDataset) -> bool:
        """Return whether a segment's files are there: garbage collection removes what no version names after a week."""
        first = (segment.files or [])[:1]
        folder = f"{dataset.uri}/_indices/{segment.uuid}"
        return all(file_exists(f"{folder}/{file.path}", self.location.options) for file in first)


def _fragment_state(fragment: FragmentMetadata, fields: frozenset[int]) -> list[Any]:
    """Return what the indexed values depend on: a digest of the files' names, and the number of deleted rows."""
    files = sorted(str(file.path) for file in fragment.files if not fields.isdisjoint(file.fields))
    return [hashlib.sha256(json.dumps(files).encode()).hexdigest()[:16], fragment.num_deletions]


def _to_json(segment: Index) -> dict[str, Any]:
    """Return a segment in types of JSON."""
    kind, details = segment.index_details or (None, b"")
    return {
        "uuid": str(segment.uuid),
        "name": segment.name,
        "fields": list(segment.fields),
        "dataset_version": segment.dataset_version,
        "fragment_ids": sorted(segment.fragment_ids),
        "index_version": segment.index_version,
        "created_at": segment.created_at and segment.created_at.isoformat(),
        "base_id": segment.base_id,
        "files": [[file.path, file.size_bytes] for file in segment.files or []],
        "index_details": kind and [kind, base64.b64encode(details).decode()],
        "covering_fields": list(segment.covering_fields),
    }


def _from_json(values: dict[str, Any]) -> Index:
    """Return the segment that `_to_json` has serialized."""
    details = values["index_details"]
    return Index(
        **{
            **values,
            "fragment_ids": set(values["fragment_ids"]),
            "created_at": values["created_at"] and datetime.fromisoformat(values["created_at"]),
            "files": [IndexFile(path, size) for path, size in values["files"]] or None,
            "index_details": details and (details[0], base64.b64decode(details[1])),
        }
    )
