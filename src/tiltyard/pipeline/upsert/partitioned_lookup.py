"""Look the keys of an upsert up in a table by partitions, so that the work is keys + rows and not keys × tasks.

What the tasks of the first search have written is checkpointed: a driver that goes on starts none of them again. It
searches the version that the first one has searched, and what was committed since as after any lost commit.
"""

from __future__ import annotations

import hashlib
import json
import math
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from itertools import accumulate, count
from typing import TYPE_CHECKING, TypeVar

from tiltyard.change_feed.table_history import fragments_by_id
from tiltyard.pipeline.session import LazySession
from tiltyard.pipeline.sources.filesystem import delete_folders, file_exists
from tiltyard.pipeline.spark_tasks import call_task, group_for_tasks, run_tasks
from tiltyard.pipeline.upsert.partition_tasks import (
    MAX_PARTITIONS,
    Bounds,
    CountKeys,
    DeletePairs,
    MatchPartition,
    PairedAddresses,
    Pairs,
    PartitionMatches,
    PartitionRows,
    PartitionSource,
    SortedFile,
    ranges_by_number,
)
from tiltyard.pipeline.upsert.tasks import MAX_KEYS_IN_MEMORY, MatchedFragment, SourceKeys
from tiltyard.runtime.pool import run_together

if TYPE_CHECKING:
    import lance
    from lance.fragment import FragmentMetadata
    from pyspark.sql import SparkSession

    from tiltyard.pipeline.runs import Run
    from tiltyard.pipeline.table_location import TableLocation

T = TypeVar("T")
W = TypeVar("W", SortedFile, PartitionMatches)

PARTITIONED_COST = 4
"""How many times as long a key takes to be written and read by its partition as to be read by a task that reads all:
3.3, as `bench.spark.upserting` measures it, and many small reads.
"""
ROWS_PER_TASK = 4_000_000
"""Rows whose keys a task reads."""
MIN_ROWS_OF_READ = 16_384
"""Rows of a file that a partition has, on average: reads of fewer cost more requests than slots that wait cost time."""
_CHECKS_AT_ONCE = 16
_LAYOUT = "upsert-layout"


def reason_for_all_keys(keys: int, rows: int, tasks: int) -> str:
    """Return why each of these tasks reads all keys, to look them up in so many rows; empty where they are partitioned.

    Those that check a source's keys read all of them, too, each for the keys that it holds.
    """
    if keys <= MAX_KEYS_IN_MEMORY:
        return "a task holds them"
    checks = math.ceil(keys / MAX_KEYS_IN_MEMORY)
    if (tasks + checks) * keys <= PARTITIONED_COST * (keys + rows):
        return f"{tasks} tasks read them in less time than it takes to partition them"
    return ""


def count_partitions(keys: int, rows: int, tasks: int) -> int:
    """Return how many partitions there are: one for each of the tasks that run at once, or fewer of rows enough.

    There are more where a task could not hold the keys of one.
    """
    files = max(1, tasks, math.ceil(rows / ROWS_PER_TASK))
    filling = min(tasks, rows // files // MIN_ROWS_OF_READ)
    return min(MAX_PARTITIONS, max(1, filling, math.ceil(keys / MAX_KEYS_IN_MEMORY)))


@dataclass(frozen=True, slots=True)
class Layout:
    """How keys are partitioned: into files of `folder`, `tasks` at once, of a table at a `version`.

    `rows_per_task` rows are read by a task, and `completed_rows` of the source completed by one, 0: none are. `source`
    is a digest of the source's files, and of what hashes the keys.
    """

    folder: str
    version: int
    partitions: int
    tasks: int
    rows_per_task: int
    completed_rows: int
    source: str

    @classmethod
    def plan(cls, keys: SourceKeys, version: int, rows: int, tasks: int, completed_rows: int) -> Layout:
        """Return one for these keys and as many rows of the table.

        The folder lies where garbage collection looks for files of no index.
        """
        partitions = count_partitions(keys.rows, rows, tasks)
        folder = f"_indices/{uuid.uuid4()}"
        return cls(folder, version, partitions, tasks, ROWS_PER_TASK, completed_rows, _digest(keys))

    @classmethod
    def load(cls, run: Run, keys: SourceKeys) -> Layout | None:
        """Return that of an earlier driver of the run, if it was of this source."""
        saved = json.loads(run.checkpoints().get(_LAYOUT, "null"))
        layout = None if saved is None else cls(**saved)
        return layout if layout is not None and layout.source == _digest(keys) else None

    def key(self, stage: str, position: int) -> str:
        """Return the key of the checkpoint of what a task has written: that of another layout is none of this one."""
        return f"upsert-{stage}-{self.folder[-12:]}-{position}"

    def save(self, run: Run) -> None:
        """Save it for a driver that goes on."""
        run.save_checkpoint(_LAYOUT, json.dumps(asdict(self)))


def _digest(keys: SourceKeys) -> str:
    return hashlib.sha256(json.dumps([keys.on, keys.files, version("pandas")]).encode()).hexdigest()


@dataclass(slots=True)
class _Search:
    """What was found by partition, as far as it lies in these `fragments`."""

    fragments: set[int]
    partitions: list[tuple[int, PartitionMatches]]


@dataclass(slots=True)
class PartitionedLookup:
    """The look-up of a source's keys, whose fragments are `written`."""

    run: Run
    spark: SparkSession | LazySession | None
    keys: SourceKeys
    written: Sequence[FragmentMetadata]
    layout: Layout
    _source: list[SortedFile] = field(init=False, default_factory=list)
    _searches: list[_Search] = field(init=False, default_factory=list)

    def search(self, dataset: lance.LanceDataset, numbers: Sequence[int]) -> list[MatchedFragment]:
        """Find the keys in these fragments of a version; what was found earlier in others that are there still holds.

        The first time, the keys of the source are checked. Raises RefusedError, RunCanceledError.
        """
        fragments = fragments_by_id(dataset)
        for search in self._searches:
            search.fragments = (search.fragments & fragments.keys()) - set(numbers)
        sizes = {number: int(fragments[number].num_rows) for number in sorted(numbers)}
        groups = group_for_tasks(sizes.items(), self.layout.rows_per_task, self.layout.tasks)
        partitions = self._match(int(dataset.version), groups, is_first=not self._searches)
        self._searches.append(_Search(set(numbers), partitions))
        pairs = ranges_by_number([found.by_group for _, found in partitions])
        tasks = [DeletePairs(self._location, int(dataset.version), Pairs(group)) for group in pairs if group.rows]
        return [fragment for part in self._run("delete", tasks) for fragment in part]

    def count_keys(self) -> int:
        """Return how many keys are in the table, each once. Raises RunCanceledError."""
        if len(self._searches) == 1:
            return sum(found.keys for _, found in self._searches[0].partitions)
        by_partition: dict[int, list[Pairs]] = {}
        for search in self._searches:
            for number, found in search.partitions:
                if found.rows:
                    pairs = Pairs(found.by_group.all(), tuple(sorted(search.fragments)))
                    by_partition.setdefault(number, []).append(pairs)
        return sum(self._run("count", [CountKeys(self._location, tuple(each)) for each in by_partition.values()]))

    def groups_to_complete(self) -> Iterator[tuple[SourceKeys, PairedAddresses]]:
        """Yield groups of the source's rows, each with where the rows of the table are that have its keys."""
        is_changed = len(self._searches) > 1
        found = [
            (tuple(sorted(search.fragments)) if is_changed else None, list(ranges_by_number(_by_position(search))))
            for search in self._searches
        ]
        for number, (first, keys) in enumerate(self._source_groups(self.layout.completed_rows)):
            pairs = tuple(Pairs(ranges[number], fragments) for fragments, ranges in found if ranges)
            yield keys, PairedAddresses(pairs, first)

    def delete(self) -> None:
        """Delete the files. Idempotent."""
        delete_folders([f"{self._location.uri}/{self.layout.folder}"], self._location.options)

    @property
    def _location(self) -> TableLocation:
        return self.keys.location

    def _source_groups(self, rows: int) -> list[tuple[int, SourceKeys]]:
        """Return the source's keys in groups of about so many, each with the position of its first one."""
        sizes = [(fragment, int(fragment.physical_rows)) for fragment in self.written]
        groups = group_for_tasks(sizes, rows, self.layout.tasks)
        keys = [SourceKeys.of(self._location, self.keys.on, group) for group in groups]
        return list(zip(accumulate((each.rows for each in keys), initial=0), keys, strict=False))

    def _match(
        self, table_version: int, groups: Sequence[tuple[int, ...]], *, is_first: bool
    ) -> list[tuple[int, PartitionMatches]]:
        """Return what is in each partition in which something can be, by its number."""
        layout, on = self.layout, self.keys.on
        of_source = [
            PartitionSource(keys, first, layout.folder, layout.partitions)
            for first, keys in (self._source_groups(layout.rows_per_task) if is_first else ())
        ]
        of_table = [
            PartitionRows(self._location, on, table_version, group, layout.folder, layout.partitions)
            for group in groups
        ]
        written = self._run_saved("partition", [*of_source, *of_table], SortedFile, is_saved=is_first)
        if is_first:
            self._source = written[: len(of_source)]
        source, table = ranges_by_number(self._source), ranges_by_number(written[len(of_source) :])
        fragment_groups = Bounds.of([group[0] for group in groups])
        completed = [first for first, _ in self._source_groups(layout.completed_rows)] if layout.completed_rows else []
        numbers = [
            place for place, keys in enumerate(source) if keys.rows and (is_first or (table and table[place].rows))
        ]
        tasks = [
            MatchPartition(
                self._location, on, source[place], table[place] if table else None, layout.folder, fragment_groups,
                Bounds.of(completed) if completed else None, checks_keys=is_first,
            )
            for place in numbers
        ]  # fmt: skip
        return list(zip(numbers, self._run_saved("match", tasks, PartitionMatches, is_saved=is_first), strict=True))

    def _run(self, stage: str, tasks: Sequence[Callable[[], T]]) -> list[T]:
        """Run the tasks of a stage; return their results."""
        self.run.progress(stage=stage, tasks=0, tasks_total=len(tasks))
        ended = count(1)
        return run_tasks(
            self.spark, self.run, call_task, tasks, name=f"upsert: {stage}",
            on_result=lambda *_: self.run.progress(tasks=next(ended)),
        )  # fmt: skip

    def _run_saved(self, stage: str, tasks: Sequence[Callable[[], W]], kind: type[W], *, is_saved: bool) -> list[W]:
        """Run the tasks of a stage that no earlier driver has run; return what all have written."""
        results = self._load(stage, len(tasks), kind) if is_saved else {}
        missing = [position for position in range(len(tasks)) if position not in results]
        self.run.progress(stage=stage, tasks=len(results), tasks_total=len(tasks))

        def handle_result(index: int, written: W) -> None:
            results[missing[index]] = written
            if is_saved:
                self.run.save_checkpoint(self.layout.key(stage, missing[index]), json.dumps(written.to_json()))
            self.run.progress(tasks=len(results))

        payloads = [tasks[position] for position in missing]
        run_tasks(self.spark, self.run, call_task, payloads, on_result=handle_result, name=f"upsert: {stage}")
        return [results[position] for position in range(len(tasks))]

    def _load(self, stage: str, tasks: int, kind: type[W]) -> dict[int, W]:
        """Return what tasks of an earlier driver have written, by their positions, as far as it is there."""
        saved, location = self.run.checkpoints(), self._location
        keys = {position: self.layout.key(stage, position) for position in range(tasks)}
        texts = {position: saved[key] for position, key in keys.items() if key in saved}
        written = {position: kind.from_json(json.loads(text)) for position, text in texts.items()}

        def is_there(position: int) -> bool:
            return all(file_exists(f"{location.uri}/{path}", location.options) for path in written[position].paths())

        positions = list(written)
        exist = run_together(is_there, positions, _CHECKS_AT_ONCE)
        return {position: written[position] for position, exists in zip(positions, exist, strict=True) if exists}


def _by_position(search: _Search) -> list[SortedFile]:
    return [found.by_position for _, found in search.partitions if found.by_position is not None]
