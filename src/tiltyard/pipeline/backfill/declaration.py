"""Declare a column that a function computes: the code is tried first, then stored in the column's field metadata."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
from lance_namespace.errors import ConcurrentModificationError, InvalidInputError, UnsupportedOperationError

from tiltyard.model.branches import Branch
from tiltyard.model.columns.computed_columns import MAX_CODE_LENGTH, UdfDeclaration
from tiltyard.model.schemas.column_names import check_column_name
from tiltyard.pipeline.backfill.new_column import try_code
from tiltyard.pipeline.backfill.tasks import ColumnFunction, FilledColumn
from tiltyard.pipeline.catalog_client import Table
from tiltyard.pipeline.functions.user_functions import PickledFunction
from tiltyard.pipeline.runs import Run
from tiltyard.pipeline.session import LazySession
from tiltyard.pipeline.writing.commit import CommitConflictError, JobTable, check_column_list

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MAX_TRIES = 20


def declare_column(
    run: Run,
    table: Table,
    spark: SparkSession | LazySession,
    field: pa.Field,
    declaration: UdfDeclaration,
    branch: str | None = None,
) -> int:
    """Add a column without values, which the next backfill computes by the declared code; return the version.

    The code is loaded and called with a few rows in a task. Raises InvalidInputError (the name, the inputs, the code),
    RefusedError (the code fails, or returns what does not fit), UnsupportedOperationError (the server stores no code),
    ConcurrentModificationError, what Lance raises.
    """
    job_table = JobTable(table, Branch.parse(branch).lance_name)
    schema = job_table.latest().schema
    if field.name in schema.names:
        raise InvalidInputError(f"The table has a column '{field.name}' already: drop it first, or name another.")
    check_column_name(field.name)
    check_column_list(schema, declaration.inputs, "inputs")
    if len(declaration.code) > MAX_CODE_LENGTH:
        raise InvalidInputError(
            f"The function has {len(declaration.code)} characters once it is pickled, and {MAX_CODE_LENGTH} at most "
            "are stored: let it load what is large by itself, or name it as module:function in each backfill."
        )
    advice = (
        "have the function return null for such rows, or leave this column out and give the function to each backfill: "
        f"backfill('{field.name}', function, inputs=…, type=…, on_error='park') makes them null, and keeps their errors"
    )
    function = ColumnFunction(
        (FilledColumn(field),), declaration.inputs, PickledFunction(declaration.code), advice=advice
    )
    try_code(run, spark, job_table, function, None)
    _add(job_table, field.with_metadata(declaration.metadata()))
    return int(job_table.latest().version)


def _add(job_table: JobTable, field: pa.Field) -> None:
    """Add the column, on top of whatever others commit meanwhile. Raises as `declare_column` does."""
    for _ in range(_MAX_TRIES):
        dataset = job_table.latest()
        try:
            job_table.commit_change(dataset, partial(dataset.add_columns, field))
        except CommitConflictError:
            continue
        except UnsupportedOperationError as error:
            raise UnsupportedOperationError(
                f"{error} Or give the function to each backfill: backfill('{field.name}', function, inputs=…, type=…)."
            ) from error
        return
    raise ConcurrentModificationError(f"{job_table.table} keeps changing: add the column again.")
