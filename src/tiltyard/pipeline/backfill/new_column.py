"""The column that a backfill adds to the table: the code is tried first, and an empty column is dropped on failure.

With the column dropped, the table has the columns that it had before the run; a run that is resumed adds the column
again. Values that a checkpoint has committed stay, as they do in a column that existed before: the next driver resumes
from them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lance_namespace.errors import ServiceUnavailableError

from tiltyard.change_feed.table_history import field_ids
from tiltyard.pipeline.backfill.tasks import ColumnFunction, TryCode
from tiltyard.pipeline.runs import Run, RunCanceledError
from tiltyard.pipeline.session import LazySession
from tiltyard.pipeline.spark_tasks import call_task, run_tasks
from tiltyard.pipeline.writing.commit import CommitConflictError, JobTable

if TYPE_CHECKING:
    import lance
    import pyarrow as pa
    from pyspark.sql import SparkSession

log = logging.getLogger("tiltyard.pipeline")

ROWS_SEARCHED = 1 << 20
"""How many rows are searched, at most, for some that match the condition, to try the code on."""

_CHECKPOINT_KEY = "column"
_MAX_TRIES = 20


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
        for _ in range(_MAX_TRIES):
            dataset = self.job_table.latest()
            if field_ids(dataset, self.name) != self.fields or _has_values(dataset, self.name, self.fields):
                return False
            try:
                self.job_table.commit_change(dataset, lambda latest=dataset: latest.drop_columns([self.name]))  # type: ignore[misc]
            except CommitConflictError:
                continue
            return True
        return False


def _has_values(dataset: lance.LanceDataset, name: str, fields: frozenset[int]) -> bool:
    """Return whether a column has a value in any row; one that no file holds has none."""
    has_file = any(
        not fields.isdisjoint(file.fields) for fragment in dataset.get_fragments() for file in fragment.metadata.files
    )
    return has_file and (
        dataset.scanner(columns=[], filter=f"`{name}` IS NOT NULL", limit=1, with_row_id=True).count_rows() > 0
    )
