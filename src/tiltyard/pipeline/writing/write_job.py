"""The write job: rows of a source become rows of a table, whatever they come from, in one commit.

    source (files, a DataFrame, an Arrow stream) → fragments, not visible → checks → one Lance commit, or an upsert

A source says what it yields, and writes it by its runner: Spark's tasks, or threads here. All else is here: the plan of
what rows become, what is rejected, the checks, the lineage, what a driver that goes on finds, and what is deleted.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa
from lance_namespace.errors import InvalidInputError, TableAlreadyExistsError, TableNotFoundError

from tiltyard.contracts.checks import KEY_CHECKS, QualityCheck, validate_checks
from tiltyard.model.columns.lineage import ReadColumns, rows_function_origins
from tiltyard.model.lineage import JobLineage, LineageSource
from tiltyard.model.refusals import RefusedError
from tiltyard.pipeline.catalog_client import Table
from tiltyard.pipeline.lineage import function_digest
from tiltyard.pipeline.runs import Run, RunCanceledError
from tiltyard.pipeline.session import LazySession, started
from tiltyard.pipeline.sources.casts import check_time_zones, find_kept_columns, map_to_table, select_columns
from tiltyard.pipeline.upsert.plan import find_upsert, upsert_fragments
from tiltyard.pipeline.upsert.tasks import KeptColumns
from tiltyard.pipeline.writing.commit import KEY_ERRORS, JobTable, check_column_list
from tiltyard.pipeline.writing.distribution_checks import (
    ColumnProfile,
    compare,
    find_last_profiles,
    measure,
    to_properties,
)
from tiltyard.pipeline.writing.fragments import check_lance_types, parse_fragments
from tiltyard.pipeline.writing.key_checks import (
    MAX_KEYS_IN_DRIVER,
    ReferencedColumn,
    count_duplicate_keys,
    count_missing_keys,
)
from tiltyard.pipeline.writing.options import WriteOptions
from tiltyard.pipeline.writing.quality_checks import (
    CheckResult,
    judge_counts,
    rejecting_checks,
    report_checks,
)
from tiltyard.pipeline.writing.target_table import TargetTable, forget_location, prepare_target
from tiltyard.pipeline.writing.tasks import WriteResult, WriteSpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WITHDRAWN = "withdrawn"
"""The value of a checkpoint whose files were deleted."""
PIECES_PREFIX = "share-"
"""What the keys of checkpoints begin with that hold the results of pieces of files."""
_FIGURES_KEY = "figures"
_REFUSALS = (RefusedError, InvalidInputError, TableAlreadyExistsError, *KEY_ERRORS)
"""Errors after which nothing is visible, nor will be; after any other one, a commit may have happened."""


@dataclass(slots=True)
class RowSource(ABC):
    """Rows to write. `made_from` names them in the lineage.

    With `can_resume` a driver that goes on finds what an earlier one has written, and reads the other rows again; else
    they can be read once.
    """

    can_resume: ClassVar[bool] = False
    made_from: tuple[LineageSource, ...]

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """Return the columns that it yields."""

    @property
    def columns(self) -> ReadColumns:
        """Return what its columns are made from: by default, those of its one source."""
        return ReadColumns.of_source(self.schema.names)

    @property
    @abstractmethod
    def session(self) -> SparkSession | LazySession:
        """Return the session of checks of more keys than this process holds."""

    @property
    def lookup(self) -> SparkSession | LazySession | None:
        """Return the session that looks the keys of an upsert up in a large table; None for threads of this process."""
        return self.session

    def adapt(self, table: pa.Schema, options: WriteOptions) -> None:  # noqa: B027  # the types of most are known
        """Read text in the types of the table that the rows are added to."""

    @abstractmethod
    def try_function(self, run: Run, trial: WriteSpec) -> pa.Schema | None:
        """Return the columns that a user's function makes of the first rows; None if it takes none of them."""

    @abstractmethod
    def write(self, run: Run, spec: WriteSpec) -> list[WriteResult]:
        """Write the rows, without a version that names them. Raises RefusedError, RunCanceledError."""

    def figures(self) -> dict[str, object]:
        """Return what it says of its rows, besides their number."""
        return {}


@dataclass(frozen=True, slots=True)
class WrittenRows:
    """Rows that are written and checked, and not visible: `properties` are those of their commit.

    `lineage` is that of the commit, with the columns; None for that of the target.
    """

    results: list[WriteResult]
    schema: pa.Schema
    figures: dict[str, object]
    properties: dict[str, str]
    kept: KeptColumns | None = None
    lineage: JobLineage | None = None

    @property
    def fragments(self) -> list[str]:
        """Return all fragments."""
        return fragments_of(self.results)

    def sync(self) -> None:
        """Wait until all fragments are durable. Raises BrokenFileError, OSError, RunCanceledError."""
        for result in self.results:
            if result.sync is not None:
                result.sync.result()


def write_source(
    run: Run, source: RowSource, table: Table, options: WriteOptions, kind: str = "ingest"
) -> Mapping[str, object]:
    """Write the rows of a source to a table in one commit, checked; return the figures. `kind` is that of the lineage.

    Raises InvalidInputError, RunCanceledError, what `prepare_target`, the source and the commit raise; nothing is
    visible then.
    """
    run.check()
    lineage = JobLineage(kind, source.made_from, function_digest(options.udf))
    target = prepare_target(run, table, options.mode, lineage)
    if options.on:
        if target.schema is None:
            raise TableNotFoundError(f"{table} has no rows yet: ingest into it first.")
        check_column_list(target.schema, options.on, "The key (on)")
    if (earlier := _find_commit(run, target, options)) is not None:
        return earlier
    results: list[WriteResult] = []
    with discarding(run, target, results, can_resume=source.can_resume):
        written = write_uncommitted(run, source, target, options, results, may_sync_later=bool(options.on))
    with discarding(run, target, results, can_resume=source.can_resume, is_committing=True):
        return commit_rows(run, target, written, options, source.lookup)


def write_uncommitted(
    run: Run,
    source: RowSource,
    target: TargetTable,
    options: WriteOptions,
    results: list[WriteResult],
    *,
    may_sync_later: bool = False,
) -> WrittenRows:
    """Write the rows of a source and check them; no version names them. Adds to `results` what is written.

    With `may_sync_later` files may become durable while the caller goes on: it calls `sync` before it commits.

    Raises RefusedError, InvalidInputError for a failed check, RunCanceledError.
    """
    if target.schema is not None and options.udf is None:
        source.adapt(target.schema, options)
    run.progress(**source.figures())
    spec = plan_rows(run, source.schema, target, options, partial(source.try_function, run))
    results.extend(source.write(run, replace(spec, may_sync_later=may_sync_later)))
    show_written(run, results)
    written = check_rows(run, source.session, target, spec, results, options.on)
    lineage = target.lineage and lineage_of_columns(target.lineage, spec, source.columns, options)
    return replace(written, figures={**written.figures, **source.figures()}, lineage=lineage)


def lineage_of_columns(lineage: JobLineage, spec: WriteSpec, read: ReadColumns, options: WriteOptions) -> JobLineage:
    """Return the lineage of a job with what the columns that it writes are made from; `read` has those of its rows."""
    if options.udf is None:
        named = [(column.field.name, column.source) for column in spec.columns if column.source is not None]
        return lineage.with_columns(read.origins(named, options.columns.types or ()), read.why_unknown)
    made = [column.source for column in spec.table_columns or () if column.source is not None]
    code = function_digest(options.udf)
    return lineage.with_columns(rows_function_origins(made, len(lineage.sources), code))


def plan_rows(
    run: Run,
    rows: pa.Schema,
    target: TargetTable,
    options: WriteOptions,
    try_function: Callable[[WriteSpec], pa.Schema | None] | None = None,
) -> WriteSpec:
    """Return how rows of these columns become rows of a table; `try_function` tells what a user's function makes.

    Raises RefusedError, TableNotFoundError (that a key refers to).
    """
    columns = tuple(select_columns(rows, options.columns))
    schema = pa.schema([column.field for column in columns])
    storage = dict(target.table.connection.storage)
    if options.udf is not None and try_function is not None:
        trial = WriteSpec(
            run.id, target.fragment_target(schema), columns, options.udf, rejects=options.rejects, storage=storage
        )
        inferred = try_function(trial)
        if inferred is None:
            raise RefusedError("The UDF takes none of the first rows of the source.")
        schema = inferred
    fragment_target = target.fragment_target(schema, options.rows_per_file)
    target.check_names(fragment_target.schema)
    check_lance_types(fragment_target.schema)
    nulls = options.columns.nulls
    kept = find_kept_columns(schema.names, fragment_target.schema, nulls, options.on) if options.on else ()
    table_columns = tuple(map_to_table(schema.names, fragment_target.schema, (*nulls, *kept)))
    if options.udf is None:
        check_time_zones(schema, fragment_target.schema)
    validate_checks(options.checks, fragment_target.schema)
    for check in options.checks:
        if missing := set(check.columns_of(fragment_target.schema)) & set(kept):
            raise RefusedError(f"The check {check.text} is of {min(missing)}, which the source lacks: leave it out.")
        if check.kind == "foreign_key":
            ReferencedColumn.find(check, target.table, fragment_target.schema)  # before anything is written
    keys = options.on if options.rejects else ()
    rejecting = rejecting_checks(target.table, fragment_target.schema) if target.base else ()
    if kept:  # a check of what rows keep is the commit's: here it would see nulls
        rejecting = tuple(check for check in rejecting if not set(check.columns_of(fragment_target.schema)) & set(kept))
    return WriteSpec(
        run.id, fragment_target, columns, options.udf, table_columns, options.checks, options.rejects, storage, keys,
        rejecting=rejecting, kept=kept,
    )  # fmt: skip


def commit_rows(
    run: Run,
    target: TargetTable,
    written: WrittenRows,
    options: WriteOptions,
    lookup: SparkSession | LazySession | None,
) -> Mapping[str, object]:
    """Make written rows visible, once in the life of the run; return its figures. Raises what the commit raises."""
    run.save_checkpoint(_FIGURES_KEY, json.dumps(written.figures))
    target = replace(target, lineage=written.lineage or target.lineage)
    if not options.on:
        return {**written.figures, "version": target.commit(run, written.fragments, written.schema, written.properties)}
    fragments, properties = parse_fragments(written.fragments), written.properties
    upserted = upsert_fragments(
        run, target.table, lookup, fragments, options.on, since=target.base, lineage=target.lineage,
        properties=properties, sync=written.sync, kept=written.kept, must_exist=options.must_exist,
    )  # fmt: skip
    return {**written.figures, **upserted.figures()}


def _find_commit(run: Run, target: TargetTable, options: WriteOptions) -> Mapping[str, object] | None:
    """Return the figures of what an earlier driver of this run has committed; None if none has.

    One of an earlier release kept the results of pieces alone: were its commit not found, they could be deleted for
    those of a source that has changed.
    """
    figures, saved = json.loads(run.checkpoints().get(_FIGURES_KEY, "null")), list(saved_results(run).values())
    if figures is None and not saved:
        return None
    figures = figures or count_written(saved)
    if options.on:
        upserted = find_upsert(run, JobTable(target.table, lineage=target.lineage), target.base)
        return None if upserted is None else {**figures, **upserted.figures()}
    version = target.find_commit(run)
    return None if version is None else {**figures, "version": version}


@contextmanager
def discarding(
    run: Run, target: TargetTable, results: Sequence[WriteResult], *, can_resume: bool, is_committing: bool = False
) -> Iterator[None]:
    """Delete what the block has written if it fails, with the table that this run has declared.

    Of a source that can be read again, a stopped run keeps its files: the next driver goes on with them, and gc deletes
    those of a canceled one. So does any whose commit may have happened. A RefusedError becomes InvalidInputError.
    """
    try:
        yield
    except BaseException as error:
        wait([result.sync for result in results if result.sync is not None])
        is_over = not can_resume and (not is_committing or isinstance(error, RunCanceledError))
        if is_over or isinstance(error, _REFUSALS):
            target.discard_writes(list(dict.fromkeys([*fragments_of(results), *withdraw_results(run)])))
        if isinstance(error, RefusedError):
            raise InvalidInputError(str(error)) from error
        raise


def withdraw_results(run: Run) -> list[str]:
    """Invalidate the checkpoints of what was written, so that a resumed run writes it anew; return their fragments.

    The caller deletes the fragments.
    """
    saved = saved_results(run)
    for key in saved:
        run.save_checkpoint(key, WITHDRAWN)
    forget_location(run)
    return [fragment for result in saved.values() for fragment in result.fragments]


def saved_results(run: Run) -> dict[str, WriteResult]:
    """Return the results of pieces of files that earlier drivers of the run have written, by the checkpoints' keys."""
    return {
        key: WriteResult.from_json(text)
        for key, text in run.checkpoints().items()
        if key.startswith(PIECES_PREFIX) and text != WITHDRAWN
    }


def fragments_of(results: Sequence[WriteResult]) -> list[str]:
    """Return the fragments of results, in order."""
    return [fragment for result in results for fragment in result.fragments]


def count_written(results: Sequence[WriteResult]) -> dict[str, int]:
    """Return totals of the results."""
    return {
        "rows": sum(result.rows for result in results),
        "rejected": sum(result.rejected for result in results),
        "fragments": sum(len(result.fragments) for result in results),
        "bytes": sum(result.size for result in results),
    }


def show_written(run: Run, results: Sequence[WriteResult], **more: int) -> None:
    """Show as the run's progress what is written by now, and `more`."""
    counts = count_written(results)
    run.progress(rows=counts["rows"], fragments=counts["fragments"], bytes=counts["bytes"], **more)


def check_rows(
    run: Run,
    spark: SparkSession | LazySession | None,
    target: TargetTable,
    spec: WriteSpec,
    results: Sequence[WriteResult],
    on: Sequence[str] = (),
    deleted: pa.Table | None = None,
) -> WrittenRows:
    """Check written rows by all checks; few keys and values are looked at here, without Spark.

    Rows of the table that have one of the keys `on` of the new rows are to be replaced, those that have one of the keys
    `deleted` are to be deleted: a change that deletes rows is checked without Spark. Raises InvalidInputError if the
    rows fail a check that is no warning; the run has the figure `checks` then, too.
    """
    counts, fragments = count_written(results), fragments_of(results)
    rows = counts["rows"]
    judged = judge_counts(spec.checks, rows, counts["rejected"], [result.failures for result in results])
    of_keys = [check for check in spec.checks if check.kind in KEY_CHECKS]
    judged += [_judge_keys(spark, target, spec, check, fragments, rows, on, deleted) for check in of_keys]
    distributions, profiles = _judge_distributions(spark, target, spec, fragments, rows)
    judged += distributions
    report = report_checks(judged)
    if failed := [result.sentence for result in judged if result.is_failure]:
        run.progress(**report)
        raise InvalidInputError(f"Nothing was published: {'; '.join(failed)}.")
    kept = KeptColumns(spec.kept, replace(spec.target, syncs_later=False)) if spec.kept else None
    return WrittenRows(list(results), spec.target.schema, {**counts, **report}, to_properties(profiles), kept)


def _judge_distributions(
    spark: SparkSession | LazySession | None,
    target: TargetTable,
    spec: WriteSpec,
    fragments: Sequence[str],
    rows: int,
) -> tuple[list[CheckResult], dict[str, ColumnProfile]]:
    """Compare columns with the last runs; return the results, and what was measured, by column."""
    checks = [check for check in spec.checks if check.kind == "distribution"]
    last = find_last_profiles(target) if checks else {}
    session = started(spark) if checks and spark is not None and rows > MAX_KEYS_IN_DRIVER else None
    columns = dict.fromkeys(check.arguments[0] for check in checks)
    profiles = {column: measure(session, target.location, column, fragments) for column in columns}
    results = [
        CheckResult(check, compare(check, profiles[check.arguments[0]], last.get(check.arguments[0])))
        for check in checks
    ]
    return results, profiles


def _judge_keys(
    spark: SparkSession | LazySession | None,
    target: TargetTable,
    spec: WriteSpec,
    check: QualityCheck,
    fragments: Sequence[str],
    rows: int,
    on: Sequence[str],
    deleted: pa.Table | None,
) -> CheckResult:
    """Check the keys of `rows` new rows, by Spark if more than MAX_KEYS_IN_DRIVER are compared."""

    def session(others: int) -> SparkSession | None:
        return started(spark) if spark is not None and others + rows > MAX_KEYS_IN_DRIVER else None

    if check.kind == "unique":
        kept = target.location.open(target.base).count_rows() if target.base and target.schema is not None else 0
        committed = 0 if spec.target.fresh else target.base
        count = count_duplicate_keys(session(kept), target.location, check.columns, fragments, committed, on, deleted)
        return CheckResult(check, f"{check.text}: {count} keys are there more than once" if count else "")
    other = ReferencedColumn.find(check, target.table, spec.target.schema)
    count = count_missing_keys(session(other.dataset.count_rows()), target.location, check.columns[0], fragments, other)
    return CheckResult(check, f"{check.text}: {count} keys are not there" if count else "")
