"""What a caller asks of the rows that a job writes, the recipe that tasks make them by, and the end of the job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
from lance_namespace.errors import InvalidInputError

from tiltyard.pipeline.runs import Run
from tiltyard.pipeline.user_functions import UserFunction
from tiltyard.pipeline.writing.casts import ColumnMapping, ColumnSelection, map_to_table
from tiltyard.pipeline.writing.fragments import ROWS_PER_FILE, check_lance_types
from tiltyard.pipeline.writing.quality_checks import (
    QualityCheck,
    count_duplicate_keys,
    find_failed_checks,
    validate_checks,
)
from tiltyard.pipeline.writing.target_table import TargetTable, WriteMode
from tiltyard.pipeline.writing.tasks import WriteResult, WriteSpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """What becomes of rows on their way, and what they must be like in the end; the same for files and DataFrames."""

    mode: WriteMode = WriteMode.CREATE
    chosen: ColumnSelection = field(default_factory=ColumnSelection)
    udf: UserFunction | None = None
    checks: tuple[QualityCheck, ...] = ()
    rejects: str | None = None
    rows_per_file: int = ROWS_PER_FILE


def make_write_spec(
    run: Run,
    landing: TargetTable,
    asked: WriteOptions,
    *,
    chosen_schema: pa.Schema,
    columns: tuple[ColumnMapping, ...],
    storage: Mapping[str, str],
) -> WriteSpec:
    """The recipe for rows that are chosen, and maybe computed, to have `chosen_schema`. Raises RefusedError."""
    target = landing.target(chosen_schema, asked.rows_per_file)
    landing.check_names(target.schema)
    check_lance_types(target.schema)
    fitted = tuple(map_to_table(chosen_schema.names, target.schema, asked.chosen.nulls))
    validate_checks(asked.checks, target.schema)
    return WriteSpec(run.id, target, columns, asked.udf, fitted, asked.checks, asked.rejects, storage)


def commit_checked(
    run: Run, spark: SparkSession, landing: TargetTable, recipe: WriteSpec, written: Sequence[WriteResult]
) -> Mapping[str, object]:
    """Check what was written, and commit it; the figures of the job. Raises InvalidInputError for a failed check."""
    check_written(spark, landing, recipe, written)
    fragments = [fragment for part in written for fragment in part.fragments]
    version = landing.commit(run, fragments, recipe.target.schema)
    return {**count_written(written), "version": version}


def count_written(written: Sequence[WriteResult]) -> dict[str, int]:
    """How much was written."""
    return {
        "rows": sum(part.rows for part in written),
        "rejected": sum(part.rejected for part in written),
        "fragments": sum(len(part.fragments) for part in written),
        "bytes": sum(part.size for part in written),
    }


def check_written(spark: SparkSession, landing: TargetTable, recipe: WriteSpec, written: Sequence[WriteResult]) -> None:
    """Raise InvalidInputError if rows that were written fail a check."""
    rows, rejected = sum(part.rows for part in written), sum(part.rejected for part in written)
    fragments = [fragment for part in written for fragment in part.fragments]
    failed = find_failed_checks(recipe.checks, rows, rejected, [part.wrong for part in written])
    old = 0 if recipe.target.fresh else landing.base
    for one in recipe.checks if not failed else ():
        if one.kind == "unique" and (
            more := count_duplicate_keys(spark, landing.location, one.columns, fragments, old)
        ):
            failed.append(f"{one.text}: {more} keys are there more than once")
    if failed:
        raise InvalidInputError(f"Nothing was published: {'; '.join(failed)}.")
