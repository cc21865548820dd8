"""The options of a job that writes rows, the specification that its tasks follow, and its checked commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
from lance_namespace.errors import InvalidInputError

from tiltyard.model.refusals import RefusedError
from tiltyard.pipeline.functions.call_options import CallOptions, make_policy
from tiltyard.pipeline.functions.calls import GuardedFunction
from tiltyard.pipeline.runs import Run
from tiltyard.pipeline.session import LazySession, started
from tiltyard.pipeline.sources.casts import ColumnMapping, ColumnSelection, map_to_table
from tiltyard.pipeline.user_functions import parse_user_function
from tiltyard.pipeline.writing.distribution_checks import (
    Profile,
    compare,
    find_last_profiles,
    measure,
    to_properties,
)
from tiltyard.pipeline.writing.fragments import ROWS_PER_FILE, check_lance_types
from tiltyard.pipeline.writing.key_checks import (
    MAX_KEYS_IN_DRIVER,
    ReferencedColumn,
    count_duplicate_keys,
    count_missing_keys,
)
from tiltyard.pipeline.writing.quality_checks import (
    KEY_CHECKS,
    CheckResult,
    QualityCheck,
    judge_counts,
    report_checks,
    validate_checks,
)
from tiltyard.pipeline.writing.target_table import TargetTable, WriteMode
from tiltyard.pipeline.writing.tasks import WriteResult, WriteSpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How rows are selected, transformed, checked and written; the same for files and DataFrames."""

    mode: WriteMode = WriteMode.CREATE
    columns: ColumnSelection = field(default_factory=ColumnSelection)
    udf: GuardedFunction | None = None
    checks: tuple[QualityCheck, ...] = ()
    rejects: str | None = None
    rows_per_file: int = ROWS_PER_FILE


def parse_function(udf: str | None, rejects: str | None, options: CallOptions) -> GuardedFunction | None:
    """Return the function of a job that writes rows; None for none. Raises RefusedError.

    Rows that are parked are written to the folder `rejects`: they are in no table yet.
    """
    policy = make_policy(options, has_function=udf is not None, rejects=rejects)
    if policy.on_error == "park" and rejects is None:
        raise RefusedError("on_error is park: name a folder for such rows (--rejects).")
    return None if udf is None else GuardedFunction(parse_user_function(udf), policy)


def make_write_spec(
    run: Run,
    target_table: TargetTable,
    options: WriteOptions,
    *,
    chosen_schema: pa.Schema,
    columns: tuple[ColumnMapping, ...],
    storage: Mapping[str, str],
) -> WriteSpec:
    """Return the specification for rows that have `chosen_schema` after selection and function. Raises RefusedError."""
    fragment_target = target_table.fragment_target(chosen_schema, options.rows_per_file)
    target_table.check_names(fragment_target.schema)
    check_lance_types(fragment_target.schema)
    table_columns = tuple(map_to_table(chosen_schema.names, fragment_target.schema, options.columns.nulls))
    validate_checks(options.checks, fragment_target.schema)
    for check in options.checks:
        if check.kind == "foreign_key":
            ReferencedColumn.find(check, target_table.table, fragment_target.schema)  # before anything is written
    return WriteSpec(
        run.id, fragment_target, columns, options.udf, table_columns, options.checks, options.rejects, storage
    )


def commit_checked(
    run: Run,
    spark: SparkSession | LazySession | None,
    target: TargetTable,
    spec: WriteSpec,
    results: Sequence[WriteResult],
) -> Mapping[str, object]:
    """Check the written rows and commit them; return the job's figures. Raises InvalidInputError for a failed check."""
    checked = check_written(run, spark, target, spec, results)
    fragments = [fragment for result in results for fragment in result.fragments]
    version = target.commit(run, fragments, spec.target.schema, checked.properties)
    return {**count_written(results), "version": version, **checked.figures}


def count_written(results: Sequence[WriteResult]) -> dict[str, int]:
    """Return totals of the results."""
    return {
        "rows": sum(result.rows for result in results),
        "rejected": sum(result.rejected for result in results),
        "fragments": sum(len(result.fragments) for result in results),
        "bytes": sum(result.size for result in results),
    }


@dataclass(frozen=True, slots=True)
class CheckedRows:
    """What checks say of written rows: the figure of the run, and the properties of the commit that keep measures."""

    figures: dict[str, str]
    properties: dict[str, str]


def check_written(
    run: Run,
    spark: SparkSession | LazySession | None,
    target: TargetTable,
    spec: WriteSpec,
    results: Sequence[WriteResult],
) -> CheckedRows:
    """Check written rows by all checks; few keys and values are looked at here, without Spark.

    Raises InvalidInputError if the rows fail a check that is no warning; the run has the figure then, too.
    """
    rows, rejected = sum(result.rows for result in results), sum(result.rejected for result in results)
    fragments = [fragment for result in results for fragment in result.fragments]
    judged = judge_counts(spec.checks, rows, rejected, [result.failures for result in results])
    judged += [
        _judge_keys(spark, target, spec, check, fragments, rows) for check in spec.checks if check.kind in KEY_CHECKS
    ]
    distributions, profiles = _judge_distributions(spark, target, spec, fragments, rows)
    judged += distributions
    report = report_checks(judged)
    if failed := [result.sentence for result in judged if result.is_failure]:
        run.progress(**report)
        raise InvalidInputError(f"Nothing was published: {'; '.join(failed)}.")
    return CheckedRows(report, to_properties(profiles))


def _judge_distributions(
    spark: SparkSession | LazySession | None,
    target: TargetTable,
    spec: WriteSpec,
    fragments: Sequence[str],
    rows: int,
) -> tuple[list[CheckResult], dict[str, Profile]]:
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
) -> CheckResult:
    """Check the keys of `rows` new rows, by Spark if more than MAX_KEYS_IN_DRIVER are compared."""

    def session(others: int) -> SparkSession | None:
        return started(spark) if spark is not None and others + rows > MAX_KEYS_IN_DRIVER else None

    if check.kind == "unique":
        kept = target.location.open(target.base).count_rows() if target.base and target.schema is not None else 0
        committed = 0 if spec.target.fresh else target.base
        count = count_duplicate_keys(session(kept), target.location, check.columns, fragments, committed)
        return CheckResult(check, f"{check.text}: {count} keys are there more than once" if count else "")
    other = ReferencedColumn.find(check, target.table, spec.target.schema)
    count = count_missing_keys(session(other.dataset.count_rows()), target.location, check.columns[0], fragments, other)
    return CheckResult(check, f"{check.text}: {count} keys are not there" if count else "")
