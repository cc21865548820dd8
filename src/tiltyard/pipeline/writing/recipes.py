"""What a caller asks of the rows that a job writes, the recipe that tasks make them by, and the end of the job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
from lance_namespace.errors import InvalidInputError

from tiltyard.pipeline.runs import Run
from tiltyard.pipeline.user_functions import Code
from tiltyard.pipeline.writing.casts import Chosen, Column, fitted_columns
from tiltyard.pipeline.writing.fragments import ROWS_PER_FILE, check_types
from tiltyard.pipeline.writing.quality_checks import Check, check_columns, judged
from tiltyard.pipeline.writing.target_table import Landing, WriteMode
from tiltyard.pipeline.writing.tasks import Recipe, Written
from tiltyard.pipeline.writing.unique_keys import duplicates

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Asked:
    """What becomes of rows on their way, and what they must be like in the end; the same for files and DataFrames."""

    mode: WriteMode = WriteMode.CREATE
    chosen: Chosen = field(default_factory=Chosen)
    udf: Code | None = None
    checks: tuple[Check, ...] = ()
    rejects: str | None = None
    rows_per_file: int = ROWS_PER_FILE


def recipe_for(
    run: Run,
    landing: Landing,
    asked: Asked,
    *,
    chosen_schema: pa.Schema,
    columns: tuple[Column, ...],
    storage: Mapping[str, str],
) -> Recipe:
    """The recipe for rows that are chosen, and maybe computed, to have `chosen_schema`. Raises RefusedError."""
    target = landing.target(chosen_schema, asked.rows_per_file)
    landing.check_names(target.schema)
    check_types(target.schema)
    fitted = tuple(fitted_columns(chosen_schema.names, target.schema, asked.chosen.nulls))
    check_columns(asked.checks, target.schema)
    return Recipe(run.id, target, columns, asked.udf, fitted, asked.checks, asked.rejects, storage)


def finish(
    run: Run, spark: SparkSession, landing: Landing, recipe: Recipe, written: Sequence[Written]
) -> Mapping[str, object]:
    """Check what was written, and commit it; the figures of the job. Raises InvalidInputError for a failed check."""
    check_written(spark, landing, recipe, written)
    fragments = [fragment for part in written for fragment in part.fragments]
    version = landing.commit(run, fragments, recipe.target.schema)
    return {**figures(written), "version": version}


def figures(written: Sequence[Written]) -> dict[str, int]:
    """How much was written."""
    return {
        "rows": sum(part.rows for part in written),
        "rejected": sum(part.rejected for part in written),
        "fragments": sum(len(part.fragments) for part in written),
        "bytes": sum(part.size for part in written),
    }


def check_written(spark: SparkSession, landing: Landing, recipe: Recipe, written: Sequence[Written]) -> None:
    """Raise InvalidInputError if rows that were written fail a check."""
    rows, rejected = sum(part.rows for part in written), sum(part.rejected for part in written)
    fragments = [fragment for part in written for fragment in part.fragments]
    failed = judged(recipe.checks, rows, rejected, [part.wrong for part in written])
    old = 0 if recipe.target.fresh else landing.base
    for one in recipe.checks if not failed else ():
        if one.kind == "unique" and (more := duplicates(spark, landing.place, one.columns, fragments, old)):
            failed.append(f"{one.text}: {more} keys are there more than once")
    if failed:
        raise InvalidInputError(f"Nothing was published: {'; '.join(failed)}.")
