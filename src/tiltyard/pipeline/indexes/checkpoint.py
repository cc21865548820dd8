"""What is finished of an index, kept with the run: its model, and segments that hold as long as their fragments do."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from lance.dataset import Index, IndexFile

from tiltyard.pipeline.indexes.tasks import Model
from tiltyard.pipeline.sources.filesystem import exists
from tiltyard.pipeline.version_diff import path_ids

if TYPE_CHECKING:
    import lance
    from lance.fragment import FragmentMetadata

    from tiltyard.pipeline.runs import Run
    from tiltyard.pipeline.table_location import Place

_MODEL = "model"
_SEGMENT = "segment-"


@dataclass(frozen=True, slots=True)
class Finished:
    """What this run has finished of the index of a column. `fields` are the ids of the column and of all inside it."""

    run: Run
    place: Place
    fields: frozenset[int]

    @classmethod
    def of(cls, run: Run, place: Place, dataset: lance.LanceDataset, column: str) -> Finished:
        """For a column that the table has, by its path."""
        return cls(run, place, path_ids(dataset, column))

    def model(self, place: Place) -> Model | None:
        """The model, if it was trained, for a column that is still the same."""
        told = json.loads(self.run.kept().get(_MODEL, "null"))
        if told is None or frozenset(told["fields"]) != self.fields:
            return None
        found = Model(**told["model"])
        return found if all(exists(f"{place.uri}/{file}", place.options) for file in found.files) else None

    def keep_model(self, model: Model) -> None:
        """Remember it."""
        self.run.keep(_MODEL, json.dumps({"model": asdict(model), "fields": sorted(self.fields)}))

    def keep(self, segment: Index, there: Mapping[int, FragmentMetadata], model: Model | None) -> None:
        """Remember a segment, its model, and what its fragments were when it was planned."""
        seen = {number: _mark(there[number], self.fields) for number in segment.fragment_ids}
        told = {"segment": _told(segment), "model": model and model.folder, "seen": seen}
        self.run.keep(f"{_SEGMENT}{segment.uuid}", json.dumps(told))

    def segments(
        self, dataset: lance.LanceDataset, there: Mapping[int, FragmentMetadata], model: Model | None
    ) -> list[Index]:
        """Segments of one model, and of fragments that are still what they were, each in one at most: the largest."""
        found: list[Index] = []
        covered: set[int] = set()
        kept = [json.loads(text) for key, text in self.run.kept().items() if key.startswith(_SEGMENT)]
        told = [one for one in kept if one["model"] == (model and model.folder)]
        for one in sorted(told, key=lambda one: len(one["seen"]), reverse=True):
            seen = {int(number): mark for number, mark in one["seen"].items()}
            segment = _segment(one["segment"])
            if covered.isdisjoint(seen) and self._holds(seen, there) and self._is_there(segment, dataset):
                found.append(segment)
                covered |= seen.keys()
        return found

    def forget_model(self, place: Place) -> None:
        """Delete the model: the index is in the table."""
        if (found := self.model(place)) is not None:
            found.delete(place)

    def _holds(self, seen: Mapping[int, list[Any]], there: Mapping[int, FragmentMetadata]) -> bool:
        """Whether the fragments have the same values; a version that was restored may have rows again that had none."""
        now = {number: _mark(there[number], self.fields) for number in seen if number in there}
        return len(now) == len(seen) and all(
            now[number][0] == files and now[number][1] >= deletions for number, (files, deletions) in seen.items()
        )

    def _is_there(self, segment: Index, dataset: lance.LanceDataset) -> bool:
        """Whether its files are: garbage collection takes what no version names for a week."""
        first = (segment.files or [])[:1]
        folder = f"{dataset.uri}/_indices/{segment.uuid}"
        return all(exists(f"{folder}/{file.path}", self.place.options) for file in first)


def _mark(fragment: FragmentMetadata, fields: frozenset[int]) -> list[Any]:
    """What the values of a fragment are made of: a digest of the files, and how many rows are deleted."""
    files = sorted(str(file.path) for file in fragment.files if not fields.isdisjoint(file.fields))
    return [hashlib.sha256(json.dumps(files).encode()).hexdigest()[:16], fragment.num_deletions]


def _told(segment: Index) -> dict[str, Any]:
    """A segment as JSON holds it."""
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


def _segment(told: dict[str, Any]) -> Index:
    details = told["index_details"]
    return Index(
        **{
            **told,
            "fragment_ids": set(told["fragment_ids"]),
            "created_at": told["created_at"] and datetime.fromisoformat(told["created_at"]),
            "files": [IndexFile(path, size) for path, size in told["files"]] or None,
            "index_details": details and (details[0], base64.b64decode(details[1])),
        }
    )
