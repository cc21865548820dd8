"""Upsert job: replace the rows of a table that have a key of the source, insert the source's other rows; one commit.

    source → fragments (written, not visible) → keys looked up in the table, fragment by fragment → one Lance commit

Keys stay unique beside concurrent writers: the commit goes through a `JobTable`, which checks everything that was
committed since the lookup before it accepts the next version.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal, Unpack

import lance
from lance import LanceOperation
from lance_namespace.errors import ConcurrentModificationError, InvalidInputError, TableNotFoundError

from tiltyard.model.refusals import RefusedError
from tiltyard.pipeline import catalog_client
from tiltyard.pipeline.catalog_client import Table
from tiltyard.pipeline.functions.call_options import CallOptions
from tiltyard.pipeline.ingest.job import adapt_source, reset_checkpoints, source_write_spec, write_source
from tiltyard.pipeline.jobs import ColumnNames, job
from tiltyard.pipeline.lineage import file_lineage
from tiltyard.pipeline.runs import Run
from tiltyard.pipeline.session import LazySession, started, task_slots
from tiltyard.pipeline.sources.casts import ColumnSelection
from tiltyard.pipeline.sources.discovery import TASK_BYTES, Source, SourceOptions, find_source, spark_inspector
from tiltyard.pipeline.sources.filesystem import absolute_path
from tiltyard.pipeline.sources.readers import Format
from tiltyard.pipeline.sources.spark_formats import read_spark_files, spark_format
from tiltyard.pipeline.sources.types import SchemaMode, parse_type
from tiltyard.pipeline.spark_tasks import call_task, run_tasks
from tiltyard.pipeline.table_location import CatalogConnection
from tiltyard.pipeline.upsert.tasks import (
    MAX_KEYS_IN_MEMORY,
    CheckKeys,
    Keys,
    MatchedFragment,
    MatchFragments,
    SourceKeys,
    count_keys,
    have_common_key,
)
from tiltyard.pipeline.version_diff import diff_fragments, fragments_by_id, fragments_with_new_rows, group_fragments
from tiltyard.pipeline.writing.commit import KEY_ERRORS, CommitConflictError, JobTable, check_column_list
from tiltyard.pipeline.writing.fragments import parse_fragments
from tiltyard.pipeline.writing.options import WriteOptions, parse_function
from tiltyard.pipeline.writing.target_table import WriteMode, prepare_target, verify_run_uncommitted

if TYPE_CHECKING:
    import pyarrow as pa
    from lance.fragment import FragmentMetadata
    from pyspark.sql import SparkSession

    from tiltyard.model.lineage import JobLineage

_CHECKPOINT_KEY = "upserted"

ROWS_PER_TASK = 4_000_000
MAX_DRIVER_BYTES = 128 << 20
MAX_DRIVER_ROWS = 4_000_000
"""A source of up to so many bytes is written in this process, and keys of up to so many rows are looked up in it:
starting Spark's tasks takes longer."""

MAX_ROWS_AT_COMMIT = 500_000
"""How many rows of concurrent writers are searched for the keys while a commit waits."""


@job("upsert", lazy=True)
def upsert(
    run: Run,
    catalog: CatalogConnection,
    spark: SparkSession | LazySession,
    source: Annotated[str, "A file, a folder or a pattern (data/*.parquet), local or on an object store."],
    table: Annotated[str, "The table to change."],
    *,
    on: Annotated[list[str], "The key: one or more columns of the table.", ColumnNames()],
    format: Annotated[  # noqa: A002  # the option's name, as in Spark
        Literal["parquet", "arrow", "csv", "json", "lance", "orc", "avro"] | None,
        "The files' format, if their names do not tell it.",
    ] = None,
    delimiter: Annotated[str | None, "The separator of CSV values."] = None,
    schema: Annotated[
        Literal["union", "first", "strict"],
        "For files that differ: all columns, in types that hold all values (union, the default), the columns of the "
        "first file, or an error for any difference (strict).",
    ] = "union",
    partitions: Annotated[
        str, "Partition columns in folder names: hive (year=2013/…, the default), off, or the columns (year/month)."
    ] = "hive",
    null_value: Annotated[list[str], "An unquoted CSV value that is null (NA), besides the empty one."] = [],  # noqa: B006  # the registry copies it
    multiline: Annotated[
        bool, "One task reads each CSV file, and reads it once; values with line breaks are read without it, too."
    ] = False,
    select: Annotated[list[str], "Only these columns of the source: a,b.", ColumnNames()] = [],  # noqa: B006  # the same
    rename: Annotated[dict[str, str], "The new name of a column of the source."] = {},  # noqa: B006  # the same
    cast: Annotated[dict[str, str], "The type of a column: int64, float32[128], decimal(10, 2), …"] = {},  # noqa: B006  # the same
    null: Annotated[list[str], "Columns of the table that the source lacks; they become null.", ColumnNames()] = [],  # noqa: B006  # the same
    udf: Annotated[str | None, "A function RecordBatch → RecordBatch, as module:function or file.py:function."] = None,
    rejects: Annotated[str | None, "A folder for rows that do not fit; without one, such a row fails the job."] = None,
    **call: Unpack[CallOptions],
) -> Mapping[str, object]:
    """Replace the rows of a table that have a key of the source, and insert the source's other rows: one commit.

    A key that is in the source twice, or null, fails the job, and nothing is changed.

    \b
    Example:
      tiltyard job upsert --uri http://127.0.0.1:2333 changed.parquet films --on id
    """
    types = {name: parse_type(text) for name, text in cast.items()}
    options = WriteOptions(
        WriteMode.APPEND,
        ColumnSelection(tuple(select), rename, types, tuple(null)),
        parse_function(udf, rejects, call),
        rejects=absolute_path(rejects) if rejects else None,
    )
    target_table = catalog_client.table(catalog, table)
    lineage = file_lineage("upsert", absolute_path(source), options.udf)
    if (spark_kind := spark_format(source, format)) is not None:
        own = {"split": None, "delimiter": delimiter, "schema": schema, "partitions": partitions,
               "null_value": null_value, "multiline": multiline}  # fmt: skip
        frame = read_spark_files(started(spark), absolute_path(source), spark_kind, own)
        from tiltyard.pipeline.writing.row_sources import FrameRows, upsert_rows  # noqa: PLC0415  # it uses this module

        return upsert_rows(run, FrameRows(frame), target_table, options, on, lineage)
    old_names = {new: old for old, new in rename.items()}
    kind = Format(format) if format else None
    source_options = SourceOptions(
        absolute_path(source),
        kind,
        None,
        delimiter,
        {old_names.get(name, name): dtype for name, dtype in types.items()},
        dict(catalog.storage),
        SchemaMode(schema),
        partitions,
        (*select, *rename) if select else (),
        tuple(null_value),
        multiline,
    )
    files = find_source(source_options, spark_inspector(run, spark))
    return _upsert(run, spark, files, target_table, options, on, lineage)


def _upsert(
    run: Run,
    spark: SparkSession | LazySession,
    source: Source,
    table: Table,
    options: WriteOptions,
    on: Sequence[str],
    lineage: JobLineage,
) -> Mapping[str, object]:
    landing = prepare_target(run, table, WriteMode.APPEND, lineage)
    if landing.schema is None:
        raise TableNotFoundError(f"{table} has no rows yet: ingest into it first.")
    check_column_list(landing.schema, on, "The key")
    if (earlier := _find_commit(run, JobTable(table, lineage=lineage), landing.base)) is not None:
        return earlier.figures()
    try:
        source = adapt_source(run, source, landing, options)
        recipe = source_write_spec(run, spark, source, landing, options)
        is_small = options.udf is None and source.size <= MAX_DRIVER_BYTES
        written = write_source(run, None if is_small else spark, source, recipe, TASK_BYTES)
        fragments = [text for part in written for text in part.fragments]
        upserted = upsert_fragments(
            run, table, spark, parse_fragments(fragments), on, since=landing.base, lineage=lineage
        )
        rejected = {"rejected": sum(part.rejected for part in written)} if options.rejects else {}
        return {**upserted.figures(), **rejected}
    except (RefusedError, InvalidInputError, *KEY_ERRORS):
        landing.discard_writes(
            reset_checkpoints(run)
        )  # not of a run that was stopped: the next driver resumes with its files
        raise


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
    branch: str | None = None,
    lineage: JobLineage | None = None,
) -> Upserted:
    """Upsert the rows of fragments that are written in the table's folder and not committed.

    Idempotent for a run: `since` is the table's version when the run began. Without a session, keys are looked up in
    threads of this process, one for each CPU, each with a few million rows. Raises RefusedError (a key that is null or
    there twice), InvalidInputError (no such column), KEY_ERRORS (the table's own primary key is another, and broken),
    ConcurrentModificationError (the schema changed), RunCanceledError; nothing is changed then.
    """
    job_table = JobTable(table, branch, lineage)
    dataset = job_table.latest()
    check_column_list(dataset.schema, on, "The key")
    if not written:
        return Upserted(int(dataset.version), 0, 0, 0, 0)
    keys = SourceKeys.of(table.location(), on, written)
    plan = UpsertPlan(keys, list(written), dataset, branch)
    plan.match_keys(run, spark, check=True)
    plan.save_counts(run)
    while (upserted := _find_commit(run, job_table, since)) is None:
        try:
            job_table.commit(plan.dataset, plan.operation(), run, verify=partial(plan.can_commit_after, run))
        except CommitConflictError:
            plan.rebase(run, spark, job_table.latest())
            plan.save_counts(run)
    return upserted


def _find_commit(run: Run, job_table: JobTable, since: int) -> Upserted | None:
    """Return what this run has committed, if it has: the counts are saved before each attempt to commit."""
    run.check()
    if _CHECKPOINT_KEY not in run.checkpoints() or (version := job_table.find_commit(run, since)) is None:
        return None
    rows, updated, *replaced = json.loads(run.checkpoints()[_CHECKPOINT_KEY])  # earlier releases saved two figures
    return Upserted(version, rows, updated, rows - updated, *(replaced or [updated]))


@dataclass(slots=True)
class UpsertPlan:
    """The commit to make on `dataset`; rows that others added up to the version `checked` have none of the keys.

    The rows of `written` are inserted, all that have one of the `keys` deleted.
    """

    keys: Keys
    written: list[FragmentMetadata]
    dataset: lance.LanceDataset
    branch: str | None
    matched: dict[int, MatchedFragment] = field(default_factory=dict)
    checked: lance.LanceDataset = field(init=False)
    loaded_keys: list[pa.Table] = field(init=False, default_factory=list)
    """The keys, in memory once a commit has met others: they are few enough for this process."""

    def __post_init__(self) -> None:
        self.checked = self.dataset

    def save_counts(self, run: Run) -> None:
        """Save the counts in the run's checkpoint, for a driver that finds the commit made."""
        updated = count_keys((fragment.keys for fragment in self.matched.values()), self.keys.rows)
        replaced = sum(fragment.rows for fragment in self.matched.values())
        run.save_checkpoint(_CHECKPOINT_KEY, json.dumps([self.keys.rows, updated, replaced]))

    def operation(self) -> LanceOperation.Update:
        """Return the commit's operation: rows with the keys are deleted, and the source's fragments are added."""
        matched = self.matched.values()
        return LanceOperation.Update(
            removed_fragment_ids=[fragment.fragment_id for fragment in matched if fragment.remaining is None],
            updated_fragments=[fragment.remaining for fragment in matched if fragment.remaining is not None],
            new_fragments=self.written,
            fields_modified=[],
            update_mode="rewrite_rows",
        )

    def match_keys(
        self,
        run: Run,
        spark: SparkSession | LazySession | None,
        numbers: Sequence[int] | None = None,
        *,
        check: bool = False,
    ) -> None:
        """Find the keys in these fragments of `dataset`, or in all; with `check`, also check that they are unique."""
        fragments = fragments_by_id(self.dataset)
        to_match = list(fragments) if numbers is None else list(numbers)
        rows = sum(fragments[number].num_rows for number in to_match)
        run.progress(stage="match", looked=0, looked_total=rows)
        session = spark if max(rows, self.keys.rows) > MAX_DRIVER_ROWS else None
        buckets = math.ceil(self.keys.rows / MAX_KEYS_IN_MEMORY)
        checks = [CheckKeys(self.keys, bucket, buckets) for bucket in range(buckets if check else 0)]
        slots = task_slots(session)
        groups = group_fragments({number: fragments[number].num_rows for number in to_match}, ROWS_PER_TASK, slots)
        matches = [MatchFragments(self.keys, int(self.dataset.version), self.branch, group) for group in groups]
        rows_searched = 0

        def handle_result(position: int, _: list[MatchedFragment]) -> None:
            nonlocal rows_searched
            if position < len(groups):
                rows_searched += sum(fragments[number].num_rows for number in groups[position])
            run.progress(looked=rows_searched)

        tasks: list[MatchFragments | CheckKeys] = [*matches, *checks]
        wave = slots + 1
        for matched in run_tasks(
            session, run, call_task, tasks, on_result=handle_result, name="upsert: match", wave=wave
        ):
            self.matched.update({fragment.fragment_id: fragment for fragment in matched})

    def can_commit_after(self, run: Run, newer: lance.LanceDataset) -> bool:
        """Return whether the commit may follow `newer`: no row with one of the keys was added, the schema is the same.

        Nor has another driver of this run committed: its keys may be others, if the source changed. Lance itself has
        refused if both changed one fragment.
        """
        added = (
            fragments_with_new_rows(self.checked, newer) if verify_run_uncommitted(run, self.checked)(newer) else None
        )
        if added is None:
            return False
        added_keys = SourceKeys.of(self.keys.location, self.keys.on, added)
        if added_keys.rows > MAX_ROWS_AT_COMMIT or self.keys.rows > MAX_KEYS_IN_MEMORY:
            return False
        if not self.loaded_keys:
            self.loaded_keys = list(self.keys.chunks())
        if have_common_key(self.loaded_keys, added_keys):
            return False
        self.checked = newer
        return True

    def rebase(self, run: Run, spark: SparkSession | LazySession | None, newer: lance.LanceDataset) -> None:
        """Plan on a newer version: only fragments that changed are searched again. Raises as `upsert_fragments`."""
        _check_schema(self.dataset, newer)
        changed = diff_fragments(self.dataset, newer)
        for number in (*changed.removed, *changed.changed):
            self.matched.pop(number, None)
        self.dataset = self.checked = newer
        self.match_keys(run, spark, list(changed.changed))


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
