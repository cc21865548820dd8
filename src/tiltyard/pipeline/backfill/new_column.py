"""Add the column of a backfill, or declare one that a function computes: in both cases the code is tried first.

Where a backfill fails, the column that it added is dropped if it is empty: the table has the columns that it had before
the run, and a run that is resumed adds the column again. Values that a checkpoint has committed stay, as they do in a
column that existed before: the next driver resumes from them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
from lance_namespace.errors import (
    InvalidInputError,
    ServiceUnavailableError,
    UnsupportedOperationError,
)

from tiltyard.change_feed.table_history import field_ids
from tiltyard.model.branches import Branch
from tiltyard.model.columns.computed_columns import MAX_CODE_LENGTH, UdfDeclaration
from tiltyard.model.schemas.column_names import check_column_name
from tiltyard.pipeline.backfill.tasks import ColumnFunction, FilledColumn, TryCode
from tiltyard.pipeline.catalog_client import Table
from tiltyard.pipeline.functions.user_functions import PickledFunction
from tiltyard.pipeline.runs import Run, RunCanceledError
from tiltyard.pipeline.session import LazySession
from tiltyard.pipeline.spark_tasks import call_task, run_tasks
from tiltyard.pipeline.writing.commit import JobTable, check_column_list

if TYPE_CHECKING:
    import lance
    from pyspark.sql import SparkSession


log = logging.getLogger("tiltyard.pipeline")

ROWS_SEARCHED = 1 << 20
"""How many rows are searched, at most, for some that match the condition, to try the code on."""

_CHECKPOINT_KEY = "column"


def try_code(
    run: Run, spark: SparkSession | LazySession, job_table: JobTable, function: ColumnFunction, where: str | None
) -> None:
    """Load the code in a task, and call it with a few rows; nothing is written. Raises RefusedError."""
    dataset = job_table.latest()
    task = TryCode(
        job_table.table.location(), int(dataset.version), job_table.branch, _first_fragments(dataset), where, function
    )
    run_tasks(spark, run, call_task, [task], name=f"backfill {function.name}: try", resources=function.policy.resources)


def _first_fragments(dataset: lance.LanceDataset) -> tuple[int, ...]:
    numbers: list[int] = []
    rows = 0
    for fragment in dataset.get_fragments():
        if rows >= ROWS_SEARCHED:
            break
        numbers.append(fragment.fragment_id)
        rows += fragment.metadata.num_rows
    return tuple(numbers)


@dataclass(slots=True)
class NewColumn:
    """A column that the run may add: `fields` are its field ids once it has, None as long as it has not."""

    run: Run
    job_table: JobTable
    name: str
    fields: frozenset[int] | None = None

    @classmethod
    def load(cls, run: Run, job_table: JobTable, name: str) -> NewColumn:
        """Load what an earlier driver of this run has added, if one did."""
        fields: Sequence[int] | None = json.loads(run.checkpoints().get(_CHECKPOINT_KEY, "null"))
        return cls(run, job_table, name, None if fields is None else frozenset(fields))

    def add(self, field: pa.Field) -> None:
        """Add the column, without values. Raises RunCanceledError, what Lance raises."""
        self.run.check()
        self.job_table.table.dataset(branch=self.job_table.branch).add_columns(field)
        self.fields = field_ids(self.job_table.latest(), self.name)
        self.run.save_checkpoint(_CHECKPOINT_KEY, json.dumps(sorted(self.fields)))

    @contextmanager
    def dropped_if_empty(self) -> Iterator[None]:
        """Drop the column again if the block fails, or is canceled, before any value was committed."""
        try:
            yield
        except Exception as error:
            self._drop_if_empty(may_be_replaced=isinstance(error, ServiceUnavailableError))
            raise

    def _drop_if_empty(self, *, may_be_replaced: bool) -> None:
        """Drop the column if it has no values; log why it could not be.

        `may_be_replaced` after an outage, in which another driver may have claimed the job: then the column is its.
        """
        if self.fields is None:
            return
        try:
            if may_be_replaced:
                self.run.check()
            if self._drop():
                with suppress(RunCanceledError):  # a canceled run is not resumed
                    self.run.save_checkpoint(_CHECKPOINT_KEY, "null")
        except Exception as error:  # noqa: BLE001  # the error to report is the one that the job failed with
            log.warning("the column '%s', which holds no values, was not dropped again: %s", self.name, error)

    def _drop(self) -> bool:
        """Drop the column if it is this run's and has no values, on exactly the version checked; whether it is gone."""

        def plan(dataset: lance.LanceDataset) -> Callable[[], object] | None:
            if field_ids(dataset, self.name) != self.fields or _has_values(dataset, self.name, self.fields):
                return None
            return partial(dataset.drop_columns, [self.name])

        return self.job_table.change_latest(plan)


def _has_values(dataset: lance.LanceDataset, name: str, fields: frozenset[int]) -> bool:
    """Return whether a column has a value in any row; one that no file holds has none."""
    has_file = any(
        not fields.isdisjoint(file.fields) for fragment in dataset.get_fragments() for file in fragment.metadata.files
    )
    return has_file and (
        dataset.scanner(columns=[], filter=f"`{name}` IS NOT NULL", limit=1, with_row_id=True).count_rows() > 0
    )


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
    _add_declared(job_table, field.with_metadata(declaration.metadata()))
    return int(job_table.latest().version)


def _add_declared(job_table: JobTable, field: pa.Field) -> None:
    """Add the column, on top of whatever others commit meanwhile. Raises as `declare_column` does."""
    try:
        job_table.change_latest(lambda dataset: partial(dataset.add_columns, field))
    except UnsupportedOperationError as error:
        raise UnsupportedOperationError(
            f"{error} Or give the function to each backfill: backfill('{field.name}', function, inputs=…, type=…)."
        ) from error
