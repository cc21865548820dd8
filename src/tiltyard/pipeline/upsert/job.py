"""Upsert: the rows of a source replace those with the same key, and join the table where there is none. One commit.

    source → fragments (written, not visible) → keys looked up in the table, fragment by fragment → one Lance commit

Keys stay unique beside concurrent writers: the commit goes through `strict`, which looks at everything that was
committed since the lookup before it lets the next version pass.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

import lance
from lance import LanceOperation
from lance_namespace.errors import ConcurrentModificationError, InvalidInputError, TableNotFoundError

from tiltyard.pipeline import catalog_client
from tiltyard.pipeline.catalog_client import Table
from tiltyard.pipeline.ingest.job import for_landing, forgotten, source_recipe, write_source
from tiltyard.pipeline.jobs import job
from tiltyard.pipeline.runs import Run
from tiltyard.pipeline.session import slots
from tiltyard.pipeline.sources.files import TASK_BYTES, Source, Wanted, find_source, look_in_tasks
from tiltyard.pipeline.sources.filesystem import absolute
from tiltyard.pipeline.sources.readers import Format
from tiltyard.pipeline.sources.schema_merge import SchemaMode
from tiltyard.pipeline.spark_tasks import call, run_tasks
from tiltyard.pipeline.table_location import Connection
from tiltyard.pipeline.task_errors import RefusedError
from tiltyard.pipeline.type_names import parse_type
from tiltyard.pipeline.upsert.tasks import KEYS_AT_ONCE, CheckKeys, Keys, Match, Matched, count_keys, share_keys
from tiltyard.pipeline.user_functions import find_code
from tiltyard.pipeline.version_diff import brought, changed_fragments, fragments_of, grouped
from tiltyard.pipeline.writing.casts import Chosen
from tiltyard.pipeline.writing.commit import OvertakenError, StrictTable, checked_columns
from tiltyard.pipeline.writing.fragments import opened
from tiltyard.pipeline.writing.recipes import Asked
from tiltyard.pipeline.writing.target_table import WriteMode, land, without

if TYPE_CHECKING:
    import pyarrow as pa
    from lance.fragment import FragmentMetadata
    from pyspark.sql import SparkSession

_COUNTED = "upserted"

ROWS_OF_A_TASK = 4_000_000
BYTES_IN_THE_DRIVER = 128 << 20
ROWS_IN_THE_DRIVER = 4_000_000
"""A source of so many bytes is written in this process, and keys of so many rows are looked up: Spark starts later."""

ROWS_AT_THE_COMMIT = 500_000
"""How many rows that came in meanwhile are looked through while a commit waits."""


@job("upsert")
def upsert(
    run: Run,
    where: Connection,
    spark: SparkSession,
    source: Annotated[str, "A file, a folder or a pattern (data/*.parquet), local or of an object store."],
    table: Annotated[str, "The table to change."],
    *,
    on: Annotated[list[str], "The key: one or more columns of the table."],
    format: Annotated[  # noqa: A002  # the option's name, as in Spark
        Literal["parquet", "arrow", "csv", "json", "lance"] | None, "What the files are, if not by name."
    ] = None,
    delimiter: Annotated[str | None, "What parts the values of CSV."] = None,
    schema: Annotated[
        Literal["union", "first", "strict"],
        "Of files that differ: all columns in types that hold the values of all (union, the default), those of the "
        "first file, or an error for any difference (strict).",
    ] = "union",
    partitions: Annotated[
        str, "Columns that folders hold: hive (year=2013/…, the default), off, or the names of folders (year/month)."
    ] = "hive",
    null_value: Annotated[list[str], "An unquoted text of CSV that is null (NA), besides the empty one."] = [],  # noqa: B006  # the registry copies it
    multiline: Annotated[bool, "Values of CSV hold line breaks: each file is read by one task."] = False,
    rename: Annotated[dict[str, str], "The new name of a column of the source."] = {},  # noqa: B006  # the same
    cast: Annotated[dict[str, str], "The type of a column: int64, float32[128], decimal(10, 2), …"] = {},  # noqa: B006  # the same
    null: Annotated[list[str], "Columns of the table that the source has not, and that become null."] = [],  # noqa: B006  # the same
    udf: Annotated[str | None, "A function RecordBatch → RecordBatch, as module:function or file.py:function."] = None,
) -> Mapping[str, object]:
    """Replace the rows of a table that have a key of the source, and add those that have none there: one commit.

    A key that is twice in the source, or null, ends the job and nothing is changed.

    \b
    Example:
      tiltyard job upsert --uri http://127.0.0.1:2333 changed.parquet films --on id
    """
    types = {name: parse_type(text) for name, text in cast.items()}
    asked = Asked(WriteMode.APPEND, Chosen((), rename, types, tuple(null)), find_code(udf) if udf else None)
    old_names = {new: old for old, new in rename.items()}
    kind = Format(format) if format else None
    wanted = Wanted(
        absolute(source),
        kind,
        None,
        delimiter,
        {old_names.get(name, name): dtype for name, dtype in types.items()},
        dict(where.storage),
        SchemaMode(schema),
        partitions,
        (),
        tuple(null_value),
        multiline,
    )
    files = find_source(wanted, look_in_tasks(run, spark))
    return _upsert(run, spark, files, catalog_client.table(where, table), asked, on)


def _upsert(
    run: Run, spark: SparkSession, source: Source, table: Table, asked: Asked, on: Sequence[str]
) -> Mapping[str, object]:
    landing = land(run, table, WriteMode.APPEND)
    if landing.schema is None:
        raise TableNotFoundError(f"{table} has no rows yet: ingest into it first.")
    checked_columns(landing.schema, on, "The key")
    if (done := _done(run, StrictTable(table), landing.base)) is not None:
        return done.figures()
    try:
        source = for_landing(run, source, landing, asked)
        recipe = source_recipe(run, spark, source, landing, asked)
        small = asked.udf is None and source.size <= BYTES_IN_THE_DRIVER
        written = write_source(run, None if small else spark, source, recipe, TASK_BYTES)
        fresh = [text for part in written for text in part.fragments]
        return upsert_fragments(run, table, spark, opened(fresh), on, since=landing.base).figures()
    except (RefusedError, InvalidInputError):
        landing.withdraw(forgotten(run))  # not of a run that was stopped: the next driver goes on with its files
        raise


@dataclass(frozen=True, slots=True)
class Upserted:
    """What an upsert did; `version` is that of its commit.

    Of the `rows` of the source, `updated` had a key that the table had, and `inserted` had none. `replaced` counts the
    rows of the table that went: more than `updated` where the table had a key more than once.
    """

    version: int
    rows: int
    updated: int
    inserted: int
    replaced: int

    def figures(self) -> dict[str, object]:
        """For the run."""
        return asdict(self)


def upsert_fragments(
    run: Run,
    table: Table,
    spark: SparkSession | None,
    written: Sequence[FragmentMetadata],
    on: Sequence[str],
    *,
    since: int = 0,
    branch: str | None = None,
) -> Upserted:
    """Upsert the rows of fragments that are written in the table's folder and not committed.

    Done twice it is done once: `since` is the table's version when the run began. Without a session, keys are looked
    up in threads of this process, one for each CPU, with a few million rows at once. Raises RefusedError (a key that is
    null or there twice), InvalidInputError (no such column), ConcurrentModificationError (the schema changed),
    RunCanceledError; nothing is changed then.
    """
    strict = StrictTable(table, branch)
    dataset = strict.latest()
    checked_columns(dataset.schema, on, "The key")
    if not written:
        return Upserted(int(dataset.version), 0, 0, 0, 0)
    keys = Keys.of(table.place(), on, written)
    plan = _Plan(keys, list(written), dataset, branch)
    plan.look(run, spark, check=True)
    plan.keep(run)
    while (done := _done(run, strict, since)) is None:
        try:
            strict.commit(plan.dataset, plan.operation(), run, verify=partial(plan.admits, run))
        except OvertakenError:
            plan.renew(run, spark, strict.latest())
            plan.keep(run)
    return done


def _done(run: Run, strict: StrictTable, since: int) -> Upserted | None:
    """What this run has done, if it has committed: the counts are kept before each try."""
    run.check()
    if _COUNTED not in run.kept() or (version := strict.done(run, since)) is None:
        return None
    rows, updated, *replaced = json.loads(run.kept()[_COUNTED])  # runs of before kept two figures
    return Upserted(version, rows, updated, rows - updated, *(replaced or [updated]))


@dataclass(slots=True)
class _Plan:
    """What is to be committed on top of `dataset`."""

    keys: Keys
    written: list[FragmentMetadata]
    dataset: lance.LanceDataset
    branch: str | None
    matched: dict[int, Matched] = field(default_factory=dict)
    seen: lance.LanceDataset = field(init=False)
    held: list[pa.Table] = field(init=False, default_factory=list)
    """The keys, once a commit has met others: few enough for this process."""

    def __post_init__(self) -> None:
        self.seen = self.dataset

    def keep(self, run: Run) -> None:
        """Remember the counts, for a driver that finds the commit made."""
        updated = count_keys((one.keys for one in self.matched.values()), self.keys.rows)
        replaced = sum(one.rows for one in self.matched.values())
        run.keep(_COUNTED, json.dumps([self.keys.rows, updated, replaced]))

    def operation(self) -> LanceOperation.Update:
        """The commit: rows with the keys go from their fragments, and the source's fragments come."""
        return LanceOperation.Update(
            removed_fragment_ids=[number for number, one in self.matched.items() if one.left is None],
            updated_fragments=[one.left for one in self.matched.values() if one.left is not None],
            new_fragments=self.written,
            fields_modified=[],
            update_mode="rewrite_rows",
        )

    def look(
        self, run: Run, spark: SparkSession | None, numbers: Sequence[int] | None = None, *, check: bool = False
    ) -> None:
        """Find the keys in fragments of `dataset`: these, or all. With `check`, the keys themselves are looked at."""
        there = fragments_of(self.dataset)
        asked = list(there) if numbers is None else list(numbers)
        rows = sum(there[number].num_rows for number in asked)
        run.progress(stage="match", looked=0, looked_total=rows)
        session = spark if max(rows, self.keys.rows) > ROWS_IN_THE_DRIVER else None
        buckets = math.ceil(self.keys.rows / KEYS_AT_ONCE)
        checks = [CheckKeys(self.keys, bucket, buckets) for bucket in range(buckets)] if check else []
        at_once = slots(session)
        groups = grouped({number: there[number].num_rows for number in asked}, ROWS_OF_A_TASK, at_once)
        matches = [Match(self.keys, int(self.dataset.version), self.branch, group) for group in groups]
        looked = 0

        def heard(position: int, _: list[Matched]) -> None:
            nonlocal looked
            looked += sum(there[number].num_rows for number in groups[position]) if position < len(groups) else 0
            run.progress(looked=looked)

        payloads: list[Match | CheckKeys] = [*matches, *checks]
        for found in run_tasks(session, run, call, payloads, on_result=heard, name="upsert: match", wave=at_once + 1):
            self._take(found)

    def _take(self, found: Sequence[Matched]) -> None:
        self.matched.update({one.fragment: one for one in found})

    def admits(self, run: Run, newer: lance.LanceDataset) -> bool:
        """Whether the commit may go behind `newer`: no key of ours came in since, and the schema is the same.

        Nor has another driver of this run committed: its keys may be others, if the source changed. Lance itself has
        refused if both touched one fragment.
        """
        came = brought(self.seen, newer) if without(run, self.seen)(newer) else None
        if came is None:
            return False
        theirs = Keys.of(self.keys.place, self.keys.on, came)
        if theirs.rows > ROWS_AT_THE_COMMIT or self.keys.rows > KEYS_AT_ONCE:
            return False
        if not self.held:
            self.held = list(self.keys.chunks())
        if share_keys(self.held, theirs):
            return False
        self.seen = newer
        return True

    def renew(self, run: Run, spark: SparkSession | None, newer: lance.LanceDataset) -> None:
        """Plan on a newer version: only fragments that changed are looked at again. Raises as `upsert_fragments`."""
        _check_schema(self.dataset, newer)
        changed = changed_fragments(self.dataset, newer)
        for number in (*changed.gone, *changed.came):
            self.matched.pop(number, None)
        self.dataset = self.seen = newer
        self.look(run, spark, list(changed.came))


def _check_schema(old: lance.LanceDataset, new: lance.LanceDataset) -> None:
    """New columns are fine, they are null in our rows; anything else is not. Raises ConcurrentModificationError."""
    if old.schema == new.schema:
        return
    there = {field.name: field for field in new.schema}
    for column in old.schema:
        if column.name not in there or not column.equals(there[column.name]):
            raise ConcurrentModificationError(
                f"The column '{column.name}' was changed while rows for it were written: run the job again."
            )
