"""Delete job: delete rows by a condition, fragment by fragment in tasks, in one commit.

Rows that concurrent writers add or move are searched too: the commit is planned again on the fragments that changed,
and refused behind any version whose new rows were not searched.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import lance
from lance import LanceOperation
from lance_namespace.errors import InvalidInputError

from tiltyard.change_feed.table_history import fragments_by_id
from tiltyard.model.lineage import digest_code
from tiltyard.pipeline import catalog_client
from tiltyard.pipeline.delete.tasks import ChangedFragment, DeleteRows
from tiltyard.pipeline.jobs import Alias, job
from tiltyard.pipeline.lineage import own_rows_lineage
from tiltyard.pipeline.runs import Run
from tiltyard.pipeline.session import LazySession, task_slots
from tiltyard.pipeline.spark_tasks import call_task, group_for_tasks, run_tasks
from tiltyard.pipeline.table_location import CatalogConnection, TableLocation
from tiltyard.pipeline.task_errors import clean_message
from tiltyard.pipeline.version_diff import forget_changed, fragments_with_new_rows
from tiltyard.pipeline.writing.commit import JobTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS_PER_TASK = 4_000_000
MAX_DRIVER_ROWS = 1_000_000
"""Up to so many rows are searched in this process: starting Spark's tasks takes longer."""

_CHECKPOINT_KEY = "delete"


@job("delete", lazy=True)
def delete(
    run: Run,
    catalog: CatalogConnection,
    spark: SparkSession | LazySession,
    table: Annotated[str, "The table to delete from."],
    *,
    filter: Annotated[str, 'SQL condition: rows that meet it are deleted ("year < 1950").', Alias("where")],  # noqa: A002  # Lance's own name
) -> Mapping[str, object]:
    """Delete the rows of a table that meet a condition, in one commit.

    \b
    Example:
      tiltyard job delete --uri http://127.0.0.1:2333 films --filter "year < 1950"
    """
    target = catalog_client.table(catalog, table)
    job_table = JobTable(target)
    dataset = job_table.latest()
    if _CHECKPOINT_KEY not in run.checkpoints():
        run.save_checkpoint(_CHECKPOINT_KEY, json.dumps({"since": int(dataset.version), "rows": 0}))
    since = int(json.loads(run.checkpoints()[_CHECKPOINT_KEY])["since"])
    job_table.lineage = own_rows_lineage("delete", target, since, None, digest_code(filter), columns=())
    check_condition(dataset, filter)
    plan = _DeletePlan(run, spark, target.location(), dataset, filter, since, list(fragments_by_id(dataset)))
    version = job_table.commit_plan(run, since, plan)
    return {"version": version, "rows": json.loads(run.checkpoints()[_CHECKPOINT_KEY])["rows"]}


@dataclass(slots=True)
class _DeletePlan:
    """The commit to make on `dataset`, whose fragments are to be without the rows that meet the condition."""

    run: Run
    spark: SparkSession | LazySession
    location: TableLocation
    dataset: lance.LanceDataset
    condition: str
    since: int
    to_search: Sequence[int]
    changed: dict[int, ChangedFragment] = field(default_factory=dict)

    def operation(self) -> LanceOperation.Delete | None:
        """Return the commit's operation; None where no row meets the condition."""
        self._search_fragments()
        changed = self.changed.values()
        if not changed:
            return None
        return LanceOperation.Delete(
            updated_fragments=[fragment.remaining for fragment in changed if fragment.remaining is not None],
            deleted_fragment_ids=[fragment.fragment_id for fragment in changed if fragment.remaining is None],
            predicate=self.condition,
        )

    def can_commit_after(self, newer: lance.LanceDataset) -> bool:
        """Return whether no row was added or moved: only then the commit deletes all rows that match."""
        return fragments_with_new_rows(self.dataset, newer) == []

    def rebase(self, newer: lance.LanceDataset) -> None:
        """Let the fragments of a newer version be searched that have changed."""
        self.to_search = forget_changed(self.changed, self.dataset, newer)
        self.dataset = newer

    def _search_fragments(self) -> None:
        """Find the rows to delete in the fragments that are left; in Spark's tasks, or here if they are few."""
        fragments = fragments_by_id(self.dataset)
        rows = {number: fragments[number].num_rows for number in self.to_search}
        session = self.spark if sum(rows.values()) > MAX_DRIVER_ROWS else None
        groups = group_for_tasks(rows.items(), ROWS_PER_TASK, task_slots(session))
        tasks = [DeleteRows(self.location, int(self.dataset.version), group, self.condition) for group in groups]
        done = itertools.count(1)

        def handle_result(_: int, result: list[ChangedFragment]) -> None:
            self.changed.update({fragment.fragment_id: fragment for fragment in result})
            self.run.progress(rows=self._count_rows(), tasks=next(done), tasks_total=len(tasks))

        run_tasks(session, self.run, call_task, tasks, on_result=handle_result, name="delete")
        self.run.save_checkpoint(_CHECKPOINT_KEY, json.dumps({"since": self.since, "rows": self._count_rows()}))

    def _count_rows(self) -> int:
        return sum(fragment.rows for fragment in self.changed.values())


def check_condition(dataset: lance.LanceDataset, condition: str) -> None:
    """Raise InvalidInputError for a text that is no condition on the table's rows."""
    try:
        dataset.scanner(columns=[], filter=condition, with_row_id=True, limit=1).explain_plan()
    except (ValueError, OSError) as error:
        raise InvalidInputError(
            f"'{condition}' is not a condition on the table's rows: {clean_message(error)}."
        ) from error
