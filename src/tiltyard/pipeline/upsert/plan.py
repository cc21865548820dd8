"""Upsert: replace the rows of a table that have a key of new rows, and insert the other ones, in one commit.

    fragments (written, not visible) → keys looked up in the table, fragment by fragment → one Lance commit

Few keys are read by each task that searches fragments; many are partitioned by a hash, with those of the table
(`partitioned_lookup`, which decides).

Keys stay unique beside concurrent writers: the commit goes through a `JobTable`, which checks everything that was
committed since the lookup before it accepts the next version.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

import lance
from lance import LanceOperation
from lance_namespace.errors import ConcurrentModificationError, InvalidInputError

from tiltyard.change_feed.table_history import fragments_by_id, open_version
from tiltyard.model.refusals import RefusedError
from tiltyard.pipeline.catalog_client import Table
from tiltyard.pipeline.runs import Run
from tiltyard.pipeline.session import LazySession, task_slots
from tiltyard.pipeline.spark_tasks import call_task, group_for_tasks, run_tasks
from tiltyard.pipeline.upsert.partitioned_lookup import (
    ROWS_PER_TASK,
    Layout,
    PartitionedLookup,
    reason_for_all_keys,
)
from tiltyard.pipeline.upsert.tasks import (
    MAX_KEYS_IN_MEMORY,
    CheckKeys,
    CompleteRows,
    FoundAddresses,
    KeptColumns,
    Keys,
    MatchedFragment,
    MatchFragments,
    ScannedAddresses,
    SourceKeys,
    count_keys,
    have_common_key,
)
from tiltyard.pipeline.version_diff import forget_changed, fragments_with_new_rows
from tiltyard.pipeline.writing.commit import KEY_ERRORS, JobTable, check_column_list
from tiltyard.pipeline.writing.fragments import delete_fragment_files, parse_fragments
from tiltyard.pipeline.writing.target_table import verify_run_uncommitted

if TYPE_CHECKING:
    from lance.fragment import FragmentMetadata
    from pyspark.sql import SparkSession

    from tiltyard.model.lineage import JobLineage
    from tiltyard.pipeline.table_location import TableLocation

_CHECKPOINT_KEY = "upserted"

MAX_DRIVER_ROWS = 4_000_000
"""Keys of up to so many rows are looked up in this process: starting Spark's tasks takes longer."""

MAX_COMPLETED_ROWS = 1_000_000
"""How many rows of the source, about, a task completes by what the table has of them."""
MAX_ROWS_AT_COMMIT = 500_000
"""How many rows of concurrent writers are searched for the keys while a commit waits."""


@dataclass(frozen=True, slots=True)
class Upserted:
    """What an upsert did; `version` is that of its commit.

    Of the `rows` of the source, `updated` had a key that the table had, and `inserted` had none. `replaced` counts the
    rows of the table that are gone: more than `updated` where the table had a key more than once.
    """

    version: int
    rows: int
    updated: int
    inserted: int
    replaced: int

    def figures(self) -> dict[str, object]:
        """Return the figures of the run."""
        return asdict(self)


def upsert_fragments(
    run: Run,
    table: Table,
    spark: SparkSession | LazySession | None,
    written: Sequence[FragmentMetadata],
    on: Sequence[str],
    *,
    since: int = 0,
    lineage: JobLineage | None = None,
    properties: Mapping[str, str] | None = None,
    sync: Callable[[], None] = lambda: None,
    kept: KeptColumns | None = None,
    must_exist: bool = False,
) -> Upserted:
    """Upsert the rows of fragments that are written in the table's folder and not committed.

    Idempotent for a run: `since` is the table's version when the run began. The commit gets the `properties`; before
    it, `sync` is called, which waits until what is written is durable. Rows get what the table has of them in `kept`;
    with `must_exist` a key that it lacks is an InvalidInputError. Without a
    session, keys are looked up in threads of this process, one for each CPU, each with a few million rows. Raises
    RefusedError (a key that is null or there twice), InvalidInputError (no such column), KEY_ERRORS (the table's own
    primary key is another, and broken), ConcurrentModificationError (the schema changed), RunCanceledError; nothing is
    changed then.
    """
    job_table = JobTable(table, lineage=lineage)
    dataset = job_table.latest()
    check_column_list(dataset.schema, on, "The key")
    if not written:
        return Upserted(int(dataset.version), 0, 0, 0, 0)
    keys = SourceKeys.of(table.location(), on, written)
    layout = Layout.load(run, keys)
    searched = None if layout is None else open_version(dataset, layout.version)
    plan = UpsertPlan(
        run, spark, keys, list(written), searched or dataset, sync=sync, kept=kept, must_exist=must_exist,
        layout=layout if searched else None,
    )  # fmt: skip
    try:
        version = job_table.commit_plan(run, since, plan, properties=properties)
    except (RefusedError, InvalidInputError, *KEY_ERRORS):
        plan.delete_key_files()
        raise
    plan.delete_key_files()
    if kept is not None:
        _delete_fragments(keys.location, written)  # in whose place the completed ones are committed
    return _upserted(run, version)


def find_upsert(run: Run, job_table: JobTable, since: int) -> Upserted | None:
    """Return what this run has committed, if it has: the counts are saved before each attempt to commit."""
    if _CHECKPOINT_KEY not in run.checkpoints() or (version := job_table.find_commit(run, since)) is None:
        return None
    return _upserted(run, version)


def _upserted(run: Run, version: int) -> Upserted:
    rows, updated, *replaced = json.loads(run.checkpoints()[_CHECKPOINT_KEY])  # earlier releases saved two figures
    return Upserted(version, rows, updated, rows - updated, *(replaced or [updated]))


@dataclass(slots=True)
class UpsertPlan:
    """The commit to make on `dataset`; rows that others added up to the version `checked` have none of the keys.

    The rows of `written` are inserted, all that have one of the `keys` deleted.
    """

    run: Run
    spark: SparkSession | LazySession | None
    keys: Keys
    written: list[FragmentMetadata]
    dataset: lance.LanceDataset
    reports: bool = True
    """Whether the look-up is progress of the run's, and its counts are a checkpoint of it."""
    sync: Callable[[], None] = lambda: None
    """Waits until what is written is durable, which it becomes while the keys are looked up."""
    kept: KeptColumns | None = None
    must_exist: bool = False
    layout: Layout | None = None
    """That of an earlier driver of the run, whose look-up goes on."""
    lookup: PartitionedLookup | None = field(init=False, default=None)
    """The look-up of keys that are too many for each task."""
    completed: list[FragmentMetadata] | None = field(init=False, default=None)
    """The rows of `written` with what the table has of them in the `kept` columns."""
    to_match: Sequence[int] | None = field(init=False, default=None)
    """The fragments that are to be searched for the keys; None before the first search, which is of all."""
    matched: dict[int, MatchedFragment] = field(default_factory=dict)
    checked: lance.LanceDataset = field(init=False)
    loaded: Keys | None = field(init=False, default=None)
    """The `keys` in memory, where they are few enough for this process."""

    def __post_init__(self) -> None:
        self.checked = self.dataset

    def operation(self) -> LanceOperation.Update:
        """Return the commit's operation: rows with the keys are deleted, and the source's fragments are added."""
        self._match_keys()
        self.sync()
        if self.kept is not None and self.completed is None:
            self.completed = self._complete_rows(self.kept)
        matched = self.matched.values()
        return LanceOperation.Update(
            removed_fragment_ids=[fragment.fragment_id for fragment in matched if fragment.remaining is None],
            updated_fragments=[fragment.remaining for fragment in matched if fragment.remaining is not None],
            new_fragments=self.written if self.completed is None else self.completed,
            fields_modified=[],
            update_mode="rewrite_rows",
        )

    def can_commit_after(self, newer: lance.LanceDataset) -> bool:
        """Return whether the commit may follow `newer`: no row with one of the keys was added, the schema is the same.

        Nor has another driver of this run committed: its keys may be others, if the source changed. Lance itself has
        refused if both changed one fragment.
        """
        added = (
            fragments_with_new_rows(self.checked, newer)
            if verify_run_uncommitted(self.run, self.checked)(newer)
            else None
        )
        if added is None:
            return False
        added_keys = SourceKeys.of(self.keys.location, self.keys.on, added)
        if added_keys.rows > MAX_ROWS_AT_COMMIT or self.keys.rows > MAX_KEYS_IN_MEMORY:
            return False
        if have_common_key(self._load_keys(), added_keys):
            return False
        self.checked = newer
        return True

    def rebase(self, newer: lance.LanceDataset) -> None:
        """Plan on a newer version, of which only fragments that changed are searched. Raises as `upsert_fragments`."""
        _check_schema(self.dataset, newer)
        self.to_match = forget_changed(self.matched, self.dataset, newer)
        if self.completed is not None:
            _delete_fragments(self.keys.location, self.completed)
            self.completed = None
        self.dataset = self.checked = newer

    def _complete_rows(self, kept: KeptColumns) -> list[FragmentMetadata]:
        """Write the rows again, with what the table has of them. Raises RunCanceledError."""
        rows = sum(int(fragment.physical_rows) for fragment in self.written)
        session = self.spark if max(rows, self.dataset.count_rows()) > MAX_DRIVER_ROWS else None
        tasks = [
            CompleteRows(keys, kept, int(self.dataset.version), found)
            for keys, found in self._groups_to_complete(task_slots(session))
        ]
        results = run_tasks(session, self.run, call_task, tasks, name="upsert: complete")
        return parse_fragments([fragment for fragments in results for fragment in fragments])

    def _groups_to_complete(self, slots: int) -> Iterable[tuple[SourceKeys, FoundAddresses]]:
        """Return groups of the source's rows, each with where the rows of the table are that have its keys."""
        if self.lookup is not None:
            return self.lookup.groups_to_complete()
        sizes = [(fragment, int(fragment.physical_rows)) for fragment in self.written]
        found = ScannedAddresses(tuple(self.matched))
        groups = group_for_tasks(sizes, MAX_COMPLETED_ROWS, slots)
        return [(SourceKeys.of(self.keys.location, self.keys.on, group), found) for group in groups]

    def _match_keys(self) -> None:
        """Find the keys in the fragments that are left; the first time, also check that a source has each once."""
        fragments = fragments_by_id(self.dataset)
        to_match = list(fragments) if self.to_match is None else self.to_match
        rows = sum(fragments[number].num_rows for number in to_match)
        session = self.spark if max(rows, self.keys.rows) > MAX_DRIVER_ROWS else None
        if self.to_match is None and isinstance(self.keys, SourceKeys):
            self.lookup = self._plan_partitions(session, self.keys, rows)
        if self.lookup is None:
            self._match_in_each_task(session, to_match, fragments, rows)
        else:
            found = self.lookup.search(self.dataset, to_match)
            self.matched.update({fragment.fragment_id: fragment for fragment in found})
        if self.must_exist and (updated := self._count_updated()) < self.keys.rows:
            raise InvalidInputError(f"{self.keys.rows - updated} keys of the source are not in the table.")
        if self.reports:
            self._save_counts()

    def _plan_partitions(
        self, session: SparkSession | LazySession | None, keys: SourceKeys, rows: int
    ) -> PartitionedLookup | None:
        """Return the look-up by partitions, of an earlier driver or a new one; None where each task reads all keys."""
        slots = task_slots(session)
        if self.layout is None:
            tasks = max(slots, math.ceil(rows / ROWS_PER_TASK))
            if reason := reason_for_all_keys(keys.rows, rows, tasks):
                self.run.progress(lookup=f"all keys in each task: {reason}")
                return None
            completed_rows = MAX_COMPLETED_ROWS if self.kept is not None else 0
            self.layout = Layout.plan(keys, int(self.dataset.version), rows, slots, completed_rows)
            self.layout.save(self.run)
        self.run.progress(lookup=f"in {self.layout.partitions} partitions")
        return PartitionedLookup(self.run, session, keys, self.written, self.layout)

    def _match_in_each_task(
        self,
        session: SparkSession | LazySession | None,
        to_match: Sequence[int],
        fragments: Mapping[int, FragmentMetadata],
        rows: int,
    ) -> None:
        """Find the keys by tasks that each read all of them, or have them."""
        check = self.to_match is None and isinstance(self.keys, SourceKeys)
        if self.reports:
            self.run.progress(stage="match", looked=0, looked_total=rows)
        is_loaded = self.loaded is not None or (session is None and self.keys.rows <= MAX_KEYS_IN_MEMORY)
        keys = self._load_keys() if is_loaded else self.keys
        buckets = math.ceil(keys.rows / MAX_KEYS_IN_MEMORY)
        checks = [CheckKeys(keys, bucket, buckets) for bucket in range(buckets if check else 0)]
        slots = task_slots(session)
        groups = group_for_tasks(((number, fragments[number].num_rows) for number in to_match), ROWS_PER_TASK, slots)
        matches = [MatchFragments(keys, int(self.dataset.version), group) for group in groups]
        rows_searched = 0

        def handle_result(position: int, _: list[MatchedFragment]) -> None:
            nonlocal rows_searched
            if position < len(groups):
                rows_searched += sum(fragments[number].num_rows for number in groups[position])
            if self.reports:
                self.run.progress(looked=rows_searched)

        tasks: list[MatchFragments | CheckKeys] = [*matches, *checks]
        wave = slots + 1
        for matched in run_tasks(
            session, self.run, call_task, tasks, on_result=handle_result, name="upsert: match", wave=wave
        ):
            self.matched.update({fragment.fragment_id: fragment for fragment in matched})

    def _count_updated(self) -> int:
        """Return how many of the keys are in the table."""
        if self.lookup is not None:
            return self.lookup.count_keys()
        return count_keys((fragment.keys for fragment in self.matched.values()), self.keys.rows)

    def delete_key_files(self) -> None:
        """Delete what a look-up by partitions has written. Idempotent."""
        if self.lookup is not None:
            self.lookup.delete()

    def _load_keys(self) -> Keys:
        """Return the keys in memory, read once: they are few enough for this process."""
        if self.loaded is None:
            self.loaded = self.keys.load() if isinstance(self.keys, SourceKeys) else self.keys
        return self.loaded

    def _save_counts(self) -> None:
        """Save the counts in the run's checkpoint, for a driver that finds the commit made."""
        updated = self._count_updated()
        replaced = sum(fragment.rows for fragment in self.matched.values())
        self.run.save_checkpoint(_CHECKPOINT_KEY, json.dumps([self.keys.rows, updated, replaced]))


def _delete_fragments(location: TableLocation, fragments: Sequence[FragmentMetadata]) -> None:
    delete_fragment_files(location, [json.dumps(fragment.to_json()) for fragment in fragments])


def _check_schema(old: lance.LanceDataset, new: lance.LanceDataset) -> None:
    """Raise ConcurrentModificationError unless only columns were added, which are null in the source's rows."""
    if old.schema == new.schema:
        return
    columns = {field.name: field for field in new.schema}
    for column in old.schema:
        if column.name not in columns or not column.equals(columns[column.name]):
            raise ConcurrentModificationError(
                f"The column '{column.name}' was changed while rows for it were written: run the job again."
            )
