"""Delete job: delete rows by a condition, fragment by fragment in tasks, in one commit.

Rows that concurrent writers add or move are searched too: the commit is planned again on the fragments that changed,
and refused behind any version whose new rows were not searched.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated

import lance
from lance import LanceOperation
from lance_namespace.errors import InvalidInputError

from tiltyard.model.lineage import digest_code
from tiltyard.pipeline import catalog_client
from tiltyard.pipeline.delete.tasks import ChangedFragment, DeleteRows
from tiltyard.pipeline.jobs import Alias, job
from tiltyard.pipeline.lineage import own_rows_lineage
from tiltyard.pipeline.runs import Run
from tiltyard.pipeline.session import LazySession, task_slots
from tiltyard.pipeline.spark_tasks import call_task, run_tasks
from tiltyard.pipeline.table_location import CatalogConnection, TableLocation
from tiltyard.pipeline.task_errors import clean_message
from tiltyard.pipeline.version_diff import diff_fragments, fragments_by_id, fragments_with_new_rows, group_fragments
from tiltyard.pipeline.writing.commit import CommitConflictError, JobTable

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
    job_table.lineage = own_rows_lineage("delete", target, since, None, digest_code(filter))
    check_condition(dataset, filter)
    changed: dict[int, ChangedFragment] = {}
    to_search = list(fragments_by_id(dataset))
    while (version := job_table.find_commit(run, since)) is None:
        results = _search_fragments(run, spark, target.location(), dataset, to_search, filter)
        changed.update({fragment.fragment_id: fragment for fragment in results})
        rows = sum(fragment.rows for fragment in changed.values())
        if not rows:
            return {"version": int(dataset.version), "rows": 0}
        run.save_checkpoint(_CHECKPOINT_KEY, json.dumps({"since": since, "rows": rows}))
        run.check()
        try:
            job_table.commit(
                dataset, _delete_operation(changed, filter), run, verify=partial(_has_no_new_rows, dataset)
            )
        except CommitConflictError:
            newer = job_table.latest()
            difference = diff_fragments(dataset, newer)
            for number in (*difference.removed, *difference.changed):
                changed.pop(number, None)
            dataset, to_search = newer, list(difference.changed)
    return {"version": version, "rows": json.loads(run.checkpoints()[_CHECKPOINT_KEY])["rows"]}


def _search_fragments(
    run: Run,
    spark: SparkSession | LazySession,
    location: TableLocation,
    dataset: lance.LanceDataset,
    numbers: Sequence[int],
    condition: str,
) -> list[ChangedFragment]:
    """Find the rows to delete in these fragments, in Spark's tasks, or in this process if they are few."""
    fragments = fragments_by_id(dataset)
    rows = {number: fragments[number].num_rows for number in numbers}
    session = spark if sum(rows.values()) > MAX_DRIVER_ROWS else None
    groups = group_fragments(rows, ROWS_PER_TASK, task_slots(session))
    tasks = [DeleteRows(location, int(dataset.version), group, condition) for group in groups]
    changed: list[ChangedFragment] = []
    done = itertools.count(1)

    def handle_result(_: int, result: list[ChangedFragment]) -> None:
        changed.extend(result)
        run.progress(rows=sum(fragment.rows for fragment in changed), tasks=next(done), tasks_total=len(tasks))

    run_tasks(session, run, call_task, tasks, on_result=handle_result, name="delete")
    return changed


def _delete_operation(changed: Mapping[int, ChangedFragment], condition: str) -> LanceOperation.Delete:
    return LanceOperation.Delete(
        updated_fragments=[fragment.remaining for fragment in changed.values() if fragment.remaining is not None],
        deleted_fragment_ids=[number for number, fragment in changed.items() if fragment.remaining is None],
        predicate=condition,
    )


def _has_no_new_rows(old: lance.LanceDataset, new: lance.LanceDataset) -> bool:
    """Return whether no row was added or moved since `old`: only then the commit deletes all rows that match."""
    return fragments_with_new_rows(old, new) == []


def check_condition(dataset: lance.LanceDataset, condition: str) -> None:
    """Raise InvalidInputError for a text that is no condition on the table's rows."""
    try:
        dataset.scanner(columns=[], filter=condition, with_row_id=True, limit=1).explain_plan()
    except (ValueError, OSError) as error:
        raise InvalidInputError(
            f"'{condition}' is not a condition on the table's rows: {clean_message(error)}."
        ) from error
