"""Checkpoint of an index build, kept with its run: the model, and segments, valid as long as their fragments are."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from lance.dataset import Index, IndexFile

from tiltyard.pipeline.indexes.tasks import IndexModel
from tiltyard.pipeline.sources.filesystem import file_exists
from tiltyard.pipeline.version_diff import path_ids

if TYPE_CHECKING:
    import lance
    from lance.fragment import FragmentMetadata

    from tiltyard.pipeline.runs import Run
    from tiltyard.pipeline.table_location import TableLocation

_MODEL = "model"
_SEGMENT = "segment-"


@dataclass(frozen=True, slots=True)
class IndexCheckpoint:
    """What a run has built of a column's index. `fields` are the ids of the column's field and all fields inside it."""

    run: Run
    location: TableLocation
    fields: frozenset[int]

    @classmethod
    def of(cls, run: Run, location: TableLocation, dataset: lance.LanceDataset, column: str) -> IndexCheckpoint:
        """Return the checkpoint for a column of the table, by its path."""
        return cls(run, location, path_ids(dataset, column))

    def load_model(self, location: TableLocation) -> IndexModel | None:
        """Return the trained model; None if there is none, its files are gone, or the column is another one now."""
        entry = json.loads(self.run.checkpoints().get(_MODEL, "null"))
        if entry is None or frozenset(entry["fields"]) != self.fields:
            return None
        model = IndexModel(**entry["model"])
        return model if all(file_exists(f"{location.uri}/{file}", location.options) for file in model.files) else None

    def save_model(self, model: IndexModel) -> None:
        """Save the trained model."""
        self.run.save_checkpoint(_MODEL, json.dumps({"model": asdict(model), "fields": sorted(self.fields)}))

    def save_segment(self, segment: Index, fragments: Mapping[int, FragmentMetadata], model: IndexModel | None) -> None:
        """Save a segment with its model and the state of its fragments, of the version that it was planned on."""
        seen = {number: _fragment_state(fragments[number], self.fields) for number in segment.fragment_ids}
        entry = {"segment": _to_json(segment), "model": model and model.folder, "seen": seen}
        self.run.save_checkpoint(f"{_SEGMENT}{segment.uuid}", json.dumps(entry))

    def load_segments(
        self, dataset: lance.LanceDataset, fragments: Mapping[int, FragmentMetadata], model: IndexModel | None
    ) -> list[Index]:
        """Return the valid segments of this model that do not overlap, the largest first.

        A segment is valid if its fragments have the same values as when it was planned, and its files are there.
        """
        segments: list[Index] = []
        covered: set[int] = set()
        saved = [json.loads(text) for key, text in self.run.checkpoints().items() if key.startswith(_SEGMENT)]
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
