"""The table that a stream writes: fit rows to it, commit each batch with its position, compact small fragments."""

from __future__ import annotations

import hashlib
import json
import logging
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import lance
import pyarrow as pa
import pyarrow.compute as pc
from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    TableAlreadyExistsError,
    TableNotFoundError,
    TableSchemaValidationError,
)

from tiltyard.contracts.checks import QualityCheck, validate_checks
from tiltyard.contracts.row_checks import split_failing
from tiltyard.model.columns.lineage import ReadColumns
from tiltyard.model.lineage import JobLineage
from tiltyard.model.refusals import RefusedError
from tiltyard.model.schemas.column_names import check_new_columns
from tiltyard.model.schemas.nested_types import cast_array
from tiltyard.pipeline.runs import Run
from tiltyard.pipeline.sources.casts import ColumnMapping, cast_batch, check_time_zones
from tiltyard.pipeline.sources.filesystem import delete_files, write_file
from tiltyard.pipeline.sources.text_blocks import RejectedRow
from tiltyard.pipeline.streams.batches import SEQUENCE, Position, StreamBatch
from tiltyard.pipeline.streams.positions import (
    PositionRecord,
    commit_properties,
    find_position,
    find_writer,
)
from tiltyard.pipeline.upsert.plan import UpsertPlan
from tiltyard.pipeline.upsert.tasks import KeysInMemory
from tiltyard.pipeline.writing.commit import KEY_ERRORS, CommitConflictError, JobTable, check_column_list
from tiltyard.pipeline.writing.fragments import (
    FragmentTarget,
    check_lance_types,
    delete_fragment_files,
    parse_fragments,
    write_batches,
)
from tiltyard.pipeline.writing.quality_checks import CheckCounter, rejecting_checks
from tiltyard.pipeline.writing.target_table import TargetTable, WriteMode, prepare_target
from tiltyard.pipeline.writing.tasks import WriteResult, WriteSpec, describe_unfit, encode_rejects, rejects_folder
from tiltyard.pipeline.writing.write_job import check_rows
from tiltyard.runtime.failpoints import Point, reach
from tiltyard.upkeep.compaction import commit_compaction, plan_compaction

if TYPE_CHECKING:
    from tiltyard.pipeline.catalog_client import Table

log = logging.getLogger("tiltyard.pipeline")

FRAGMENTS_TO_COMPACT = 8
"""Fragments are compacted once there are so many small ones; also how many commits pass before they are counted."""
MAX_CONFLICTS = 50


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """How a stream named `name` changes its table: `on` is the key to upsert by, () to append.

    With `evolves`, columns that the table lacks are added; else their rows are rejected. `rejects` is the folder for
    rejected rows; without one such a row ends the stream. Each batch is to pass the `checks`. `lineage` is what its
    commits record as the rows' source.
    """

    name: str
    on: tuple[str, ...] = ()
    evolves: bool = True
    rejects: str | None = None
    storage: Mapping[str, str] = field(default_factory=dict)
    lineage: JobLineage | None = None
    checks: tuple[QualityCheck, ...] = ()


@dataclass(frozen=True, slots=True)
class Applied:
    """What a batch did: `rows` that it wrote, and keys that it deleted, and how many of its rows were `rejected`."""

    rows: int
    rejected: int


@dataclass(slots=True)
class StreamTable:
    """The table of a stream. `position` is what it contains of the source, `version` that of its last commit."""

    run: Run
    table: Table
    options: StreamOptions
    version: int = 0
    position: Position = field(init=False, default_factory=dict)
    _opened_at: Position = field(init=False, default_factory=dict)
    _writer: str = field(init=False, default_factory=lambda: uuid.uuid4().hex)
    _is_writing: bool = field(init=False, default=False)
    _job_table: JobTable | None = field(init=False, default=None)
    _commits: int = field(init=False, default=0)
    _rejecting: tuple[QualityCheck, ...] = field(init=False, default=())

    def open(self) -> Position | None:
        """Return the position that the table has recorded; None for a stream that has not begun.

        Raises InvalidInputError (the table lacks a key column), InvalidTableStateError (the position is not known).
        """
        if not self._exists():
            return None
        self._job_table = JobTable(self.table, lineage=self.options.lineage)
        dataset = self._job_table.latest()
        if self.options.on:
            check_column_list(dataset.schema, self.options.on, "The key (on)")
        found = find_position(dataset, self.options.name)
        self.position = self._opened_at = found or {}
        self.version = int(dataset.version)
        return found

    def begin(self, position: Position) -> None:
        """Set where a new stream begins; if the table exists, record that at once."""
        self.position = dict(position)
        if position and self._job_table is not None:
            self._begin_writing()

    @property
    def schema(self) -> pa.Schema | None:
        """Return the table's columns; None before it exists."""
        return None if self._job_table is None else self._job_table.latest().schema

    def apply(self, batch: StreamBatch) -> Applied:
        """Commit a batch with its position; return what that did.

        Raises RefusedError (a row does not fit, and there is no folder for it), ConcurrentModificationError (another
        process writes the stream), KEY_ERRORS, RunCanceledError; nothing of the batch is committed then.
        """
        rejected = list(batch.rejected)
        if self._job_table is None:
            if not batch.rows:
                self._write_rejects(rejected)
                self.position = {**self.position, **batch.position}
                return Applied(0, len(rejected))
            self._create(batch)
        if not self._is_writing:
            self._begin_writing()
        dataset = self._evolve(batch.rows)
        rows = self._fit(batch, batch.rows, dataset.schema, rejected)
        rows, failed = self._split_failing(rows)
        deleted = None
        if self.options.on:
            on = list(self.options.on)
            key_schema = pa.schema([dataset.schema.field(name).with_nullable(False) for name in on])
            deletes = self._fit(batch, batch.deletes, key_schema, rejected)
            rows, deleted = _last_of_each_key(rows, deletes, on)
        self._write_rejects(rejected, failed)
        rejected += failed
        self._record_columns(batch.rows)
        self._commit(dataset, rows.drop_columns([SEQUENCE]), deleted, batch.position, len(rejected))
        self.position = {**self.position, **batch.position}
        self._commits += 1
        if self._commits % FRAGMENTS_TO_COMPACT == 0:
            self.compact()
        return Applied(rows.num_rows + (0 if deleted is None else deleted.num_rows), len(rejected))

    def _record_columns(self, batches: Sequence[pa.RecordBatch]) -> None:
        """Have the lineage of commits say which columns the stream's first rows have."""
        assert self._job_table is not None
        if (lineage := self._job_table.lineage) is not None and lineage.columns is None:
            names = [name for name in _merge_columns(batches).names if name != SEQUENCE]
            read = ReadColumns.of_source(names)
            self._job_table.lineage = lineage.with_columns(read.origins([(name, name) for name in names]))

    def compact(self) -> None:
        """Compact small fragments of a tier if there are many, unless another writer changes them meanwhile."""
        if self._job_table is None:
            return
        dataset = self.table.dataset()
        if (planned := plan_compaction(dataset, FRAGMENTS_TO_COMPACT)) is None:
            return
        results = []
        for task in planned.plan.tasks:
            self.run.check()
            results.append(task.execute(dataset))
        try:
            commit_compaction(dataset, planned, results)
        except ConcurrentModificationError:
            log.info("%s changed while it was compacted: the next compaction will do it", self.table)

    def record_position(self, live: Position, *, ends: bool = False) -> None:
        """Record the whole position, without parts that the source has no longer; `ends` where no batch follows.

        Raises ConcurrentModificationError if another process has taken the stream over.
        """
        if self._is_writing:
            self._record(live, "" if ends else self._writer)

    def _record(self, position: Position, writer: str) -> None:
        assert self._job_table is not None
        for _ in range(MAX_CONFLICTS):
            dataset = self._latest()
            entries = PositionRecord(int(dataset.version), position, writer).to_config(self.options.name)
            try:
                self._job_table.commit_change(dataset, partial(dataset.update_config, entries))
            except CommitConflictError:
                continue
            self.position, self.version, self._is_writing = position, int(dataset.version), bool(writer)
            return
        raise ConcurrentModificationError(f"{self.table} keeps changing: the stream's position cannot be recorded.")

    def _begin_writing(self) -> None:
        """Take the stream over, before its first commit by this process.

        Raises ConcurrentModificationError if another process has advanced it since it was opened.
        """
        assert self._job_table is not None
        dataset = self._job_table.latest()
        if (find_position(dataset, self.options.name) or {}) != self._opened_at:
            raise self._taken_over()
        entries = PositionRecord(int(dataset.version), self.position, self._writer).to_config(self.options.name)
        try:
            self._job_table.commit_change(dataset, partial(dataset.update_config, entries))
        except CommitConflictError:
            self._begin_writing()
            return
        self._is_writing = True
        self._rejecting = rejecting_checks(self.table, dataset.schema)
        self._remove_uncommitted_rejects()

    # One batch

    def _create(self, batch: StreamBatch) -> None:
        """Create the table, without rows, with the columns of a batch."""
        schema = _merge_columns(batch.rows)
        target = prepare_target(self.run, self.table, WriteMode.CREATE)
        if self.options.on:
            check_column_list(schema, self.options.on, "The key (on)")
        try:
            target.commit(self.run, [], target.fragment_target(schema).schema)
        except TableAlreadyExistsError as error:
            raise ConcurrentModificationError(f"{self.table} was created meanwhile: run the stream again.") from error
        self._job_table = JobTable(self.table, lineage=self.options.lineage)

    def _evolve(self, batches: Sequence[pa.RecordBatch]) -> lance.LanceDataset:
        """Add the columns of the batches that the table lacks, where they have a value; return the newest version."""
        assert self._job_table is not None
        for _ in range(MAX_CONFLICTS):
            dataset = self._latest()
            new = [field for field in _merge_columns(batches) if field.name not in dataset.schema.names]
            added = pa.schema([field for field in new if _has_value(batches, field.name)])
            if not (self.options.evolves and len(added)):
                return dataset
            try:
                self._job_table.commit_change(dataset, partial(dataset.add_columns, added))
            except CommitConflictError:
                continue
            log.info("stream %s: %s has the new columns %s", self.options.name, self.table, ", ".join(added.names))
        raise ConcurrentModificationError(f"{self.table} keeps changing: its columns could not be added.")

    def _fit(
        self, batch: StreamBatch, batches: Sequence[pa.RecordBatch], schema: pa.Schema, rejected: list[RejectedRow]
    ) -> pa.Table:
        """Return rows in these columns, with SEQUENCE; those that do not fit are added to the rejected ones."""
        on = self.options.on
        fields = [field.with_nullable(False) if field.name in on else field for field in schema]
        fields.append(pa.field(SEQUENCE, pa.int64(), nullable=False))
        fitted: list[pa.RecordBatch] = []
        for read in batches:
            matching = _reject_mismatches(batch, read, schema, rejected)
            names = set(matching.schema.names)
            columns = [ColumnMapping(field, field.name if field.name in names else None) for field in fields]
            for result in cast_batch(matching, columns):
                if isinstance(result, RejectedRow):
                    rejected.append(_locate(batch, result))
                else:
                    fitted.append(result)
        return pa.Table.from_batches(fitted, pa.schema(fields))

    def _split_failing(self, rows: pa.Table) -> tuple[pa.Table, list[RejectedRow]]:
        """Return the rows that the table's contract lets in, and those that it rejects. Raises RefusedError.

        The contract is the one that the table had when this process began to write; a later one is held by the commits.
        """
        passing, failed = split_failing(self._rejecting, rows)
        return passing, [
            RejectedRow({name: value for name, value in row.items() if name != SEQUENCE}, reason)
            for reason, row in failed
        ]

    def _commit(
        self, dataset: lance.LanceDataset, rows: pa.Table, deleted: pa.Table | None, advanced: Position, rejected: int
    ) -> None:
        """Write rows, check and commit them with the position; by key, the rows that they replace are deleted."""
        location = self.table.location()
        target = FragmentTarget(location, dataset.schema, False, dataset.data_storage_version)
        validate_checks(self.options.checks, dataset.schema)
        batches = rows.cast(dataset.schema).to_batches()
        fragments = write_batches(target, batches, dataset)
        reach(Point.BEFORE_RECORD)
        try:
            checked = self._check(target, dataset, batches, fragments, rejected, deleted)
            properties = {**checked, **self._properties(advanced)}
            keys = None
            if deleted is not None:
                changed = pa.concat_tables([rows.select(deleted.column_names), deleted])
                keys = KeysInMemory(location, self.options.on, changed)
            version = self._commit_version(dataset, fragments, keys, properties)
        except (RefusedError, InvalidInputError, ConcurrentModificationError, *KEY_ERRORS):
            delete_fragment_files(location, fragments)
            raise
        self.version = version
        reach(Point.AFTER_FINALIZE)

    def _check(
        self,
        target: FragmentTarget,
        dataset: lance.LanceDataset,
        batches: Sequence[pa.RecordBatch],
        fragments: Sequence[str],
        rejected: int,
        deleted: pa.Table | None,
    ) -> Mapping[str, str]:
        """Check a batch; return what its commit keeps of that. Raises InvalidInputError."""
        if not self.options.checks:
            return {}
        counter = CheckCounter(self.options.checks)
        for batch in batches:
            counter.count(batch)
        rows = sum(batch.num_rows for batch in batches)
        spec = WriteSpec(self.run.id, target, (), checks=self.options.checks)
        result = WriteResult(tuple(fragments), rows, rejected, 0, counter.failures)
        found = TargetTable(self.table, target.location, int(dataset.version), False, dataset.schema, None)
        return check_rows(self.run, None, found, spec, [result], self.options.on, deleted).properties

    def _commit_version(
        self,
        dataset: lance.LanceDataset,
        fragments: Sequence[str],
        keys: KeysInMemory | None,
        properties: Mapping[str, str],
    ) -> int:
        """Commit rows, and the deletion of all that have one of the keys; return the version."""
        assert self._job_table is not None
        written = parse_fragments(fragments)
        plan = None if keys is None else UpsertPlan(self.run, None, keys, written, dataset, reports=False)

        def can_follow(newer: lance.LanceDataset) -> bool:
            return self._is_writer(newer) and (plan is None or plan.can_commit_after(newer))

        for _ in range(MAX_CONFLICTS):
            self.run.check()
            operation = lance.LanceOperation.Append(written) if plan is None else plan.operation()
            try:
                return self._job_table.commit(dataset, operation, self.run, verify=can_follow, properties=properties)
            except CommitConflictError:
                dataset = self._latest()
                if plan is not None:
                    plan.rebase(dataset)
        raise ConcurrentModificationError(f"{self.table} keeps changing: {MAX_CONFLICTS} commits conflicted.")

    def _properties(self, advanced: Position) -> dict[str, str]:
        return commit_properties(self.options.name, advanced)

    def _is_writer(self, dataset: lance.LanceDataset) -> bool:
        return find_writer(dataset, self.options.name) == self._writer

    def _latest(self) -> lance.LanceDataset:
        """Return the newest version. Raises ConcurrentModificationError if another process writes the stream."""
        assert self._job_table is not None
        newest = self._job_table.latest()
        if not self._is_writer(newest):
            raise self._taken_over()
        return newest

    def _taken_over(self) -> ConcurrentModificationError:
        return ConcurrentModificationError(
            f"Another process writes the stream '{self.options.name}' into {self.table}, or a restore has taken it "
            "back: run it again, and it goes on where the table says."
        )

    def _exists(self) -> bool:
        try:
            return bool(self.table.latest_version())
        except TableNotFoundError:
            return False

    # Rejected rows

    def _write_rejects(self, rejected: Sequence[RejectedRow], failed: Sequence[RejectedRow] = ()) -> None:
        """Write rejected rows to a file named by the position where their batch begins: a repeat replaces it.

        Those that `failed` the table's contract go to its own folder if there is no other one.
        """
        if rejected and self.options.rejects is None:
            raise describe_unfit(rejected[0])
        if rejected or failed:
            write_file(self._rejects_file(), encode_rejects([*rejected, *failed]), self._rejects_storage())

    def _remove_uncommitted_rejects(self) -> None:
        """Remove the rejected rows of a batch that was not committed: it is read again, and may end elsewhere.

        Its process cannot commit it any more.
        """
        if self.options.rejects is not None or self._rejecting:
            delete_files([self._rejects_file()], self._rejects_storage())

    def _rejects_storage(self) -> Mapping[str, str]:
        return self.table.location().options if self.options.rejects is None else self.options.storage

    def _rejects_file(self) -> str:
        text = json.dumps([str(self.table), self.options.name, sorted(self.position.items())])
        folder = self.options.rejects or rejects_folder(self.table.location())
        return f"{folder}/stream-{hashlib.blake2b(text.encode(), digest_size=16).hexdigest()}.jsonl"


def _last_of_each_key(rows: pa.Table, deletes: pa.Table, on: list[str]) -> tuple[pa.Table, pa.Table]:
    """Return the rows that are the last of their keys, and the keys of which the last is a delete."""
    keys = pa.concat_tables([rows.select([*on, SEQUENCE]), deletes.select([*on, SEQUENCE])])
    last = keys.group_by(on).aggregate([(SEQUENCE, "max")]).column(f"{SEQUENCE}_max")
    kept = rows.filter(pc.is_in(rows.column(SEQUENCE), last))
    return kept, deletes.filter(pc.is_in(deletes.column(SEQUENCE), last)).select(on)


def _merge_columns(batches: Sequence[pa.RecordBatch]) -> pa.Schema:
    """Return all columns that a table can have, each with the type of its first batch."""
    fields: dict[str, pa.Field] = {}
    for batch in batches:
        for column in batch.schema:
            if column.name != SEQUENCE and column.name not in fields and _can_be_column(column):
                fields[column.name] = column.with_nullable(True)
    return pa.schema(list(fields.values()))


def _reject_mismatches(
    batch: StreamBatch, read: pa.RecordBatch, schema: pa.Schema, rejected: list[RejectedRow]
) -> pa.RecordBatch:
    """Return the rows without the columns that cannot be the table's; those with a value in one are rejected."""
    for column in read.schema:
        if column.name != SEQUENCE and (reason := _find_mismatch(column, schema)) is not None:
            has_value = pc.is_valid(read.column(column.name))
            rejected.extend(_locate(batch, RejectedRow(row, reason)) for row in read.filter(has_value).to_pylist())
            read = read.filter(pc.invert(has_value)).drop_columns([column.name])
    return read


def _find_mismatch(field: pa.Field, schema: pa.Schema) -> str | None:
    """Return why values of a column cannot be those of the table's; None if they can."""
    if field.name not in schema.names:
        return f"the table has no column '{field.name}'"
    try:
        check_time_zones(pa.schema([field]), schema)
        cast_array(pa.array([], field.type), schema.field(field.name).type)
    except RefusedError as error:
        return str(error)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        return f"column '{field.name}' is {field.type}, and the table's is {schema.field(field.name).type}"
    return None


def _can_be_column(field: pa.Field) -> bool:
    """Return whether a table can have a column of this name and type."""
    try:
        check_new_columns(pa.schema([field]))
        check_lance_types(pa.schema([field]))
    except (TableSchemaValidationError, RefusedError):
        return False
    return True


def _has_value(batches: Sequence[pa.RecordBatch], name: str) -> bool:
    return any(batch.column(name).null_count < batch.num_rows for batch in batches if name in batch.schema.names)


def _locate(batch: StreamBatch, rejected: RejectedRow) -> RejectedRow:
    """Add the place in the source to the reason of a rejected row."""
    row = dict(rejected.row)
    return RejectedRow(row, f"{batch.describe(row.pop(SEQUENCE))}: {rejected.reason}")
