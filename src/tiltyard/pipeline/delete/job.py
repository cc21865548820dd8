"""Delete: rows by a condition, fragment by fragment in tasks, with one commit.

Rows that come in or are moved meanwhile are looked at too: the commit is planned again on what changed, and refused
behind any version that it has not seen.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import lance
from lance import LanceOperation
from lance_namespace.errors import InvalidInputError

from tiltyard.pipeline import catalog_client
from tiltyard.pipeline.jobs import job
from tiltyard.pipeline.runs import Run
from tiltyard.pipeline.session import slots
from tiltyard.pipeline.spark_tasks import call, run_tasks
from tiltyard.pipeline.table_location import Connection, Place
from tiltyard.pipeline.task_errors import in_words
from tiltyard.pipeline.upsert.tasks import Matched, Search
from tiltyard.pipeline.version_diff import brought, changed_fragments, fragments_of, grouped
from tiltyard.pipeline.writing.commit import OvertakenError, StrictTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS_OF_A_TASK = 4_000_000
ROWS_IN_THE_DRIVER = 1_000_000
"""Fragments of so many rows are looked through in this process: Spark starts later."""

_KEPT = "delete"


@job("delete")
def delete(
    run: Run,
    catalog: Connection,
    spark: SparkSession,
    table: Annotated[str, "The table to delete from."],
    *,
    where: Annotated[str, 'SQL: the rows for which it is true go ("year < 1950").'],
) -> Mapping[str, object]:
    """Delete the rows of a table for which a condition holds: one commit.

    \b
    Example:
      tiltyard job delete --uri http://127.0.0.1:2333 films --where "year < 1950"
    """
    found = catalog_client.table(catalog, table)
    strict = StrictTable(found)
    dataset = strict.latest()
    if _KEPT not in run.kept():
        run.keep(_KEPT, json.dumps({"since": int(dataset.version), "rows": 0}))
    since = int(json.loads(run.kept()[_KEPT])["since"])
    check_condition(dataset, where)
    matched: dict[int, Matched] = {}
    search = _Searching(run, spark, found.place(), where)
    asked = list(fragments_of(dataset))
    while (version := strict.done(run, since)) is None:
        matched.update({one.fragment: one for one in search(dataset, asked)})
        rows = sum(one.rows for one in matched.values())
        if not rows:
            return {"version": int(dataset.version), "rows": 0}
        run.keep(_KEPT, json.dumps({"since": since, "rows": rows}))
        run.check()
        try:
            strict.commit(dataset, _operation(matched, where), run, verify=_nothing_new(dataset))
        except OvertakenError:
            newer = strict.latest()
            changed = changed_fragments(dataset, newer)
            for number in (*changed.gone, *changed.came):
                matched.pop(number, None)
            dataset, asked = newer, list(changed.came)
    return {"version": version, "rows": json.loads(run.kept()[_KEPT])["rows"]}


@dataclass(frozen=True, slots=True)
class _Searching:
    """Looks for rows to delete, in tasks or here."""

    run: Run
    spark: SparkSession
    place: Place
    condition: str

    def __call__(self, dataset: lance.LanceDataset, numbers: Sequence[int]) -> list[Matched]:
        there = fragments_of(dataset)
        rows = {number: there[number].num_rows for number in numbers}
        session = self.spark if sum(rows.values()) > ROWS_IN_THE_DRIVER else None
        groups = grouped(rows, ROWS_OF_A_TASK, slots(session))
        tasks = [Search(self.place, int(dataset.version), group, self.condition) for group in groups]
        found: list[Matched] = []
        done = itertools.count(1)

        def heard(_: int, some: list[Matched]) -> None:
            found.extend(some)
            self.run.progress(rows=sum(one.rows for one in found), tasks=next(done), tasks_total=len(tasks))

        run_tasks(session, self.run, call, tasks, on_result=heard, name="delete")
        return found


def _operation(matched: Mapping[int, Matched], condition: str) -> LanceOperation.Delete:
    return LanceOperation.Delete(
        updated_fragments=[one.left for one in matched.values() if one.left is not None],
        deleted_fragment_ids=[number for number, one in matched.items() if one.left is None],
        predicate=condition,
    )


def _nothing_new(dataset: lance.LanceDataset) -> Callable[[lance.LanceDataset], bool]:
    """Whether no row came in since `dataset`: only then the commit deletes all that the condition holds for."""
    return lambda newer: brought(dataset, newer) == []


def check_condition(dataset: lance.LanceDataset, condition: str) -> None:
    """Raise InvalidInputError for a condition that is none."""
    try:
        dataset.scanner(columns=[], filter=condition, with_row_id=True, limit=1).explain_plan()
    except (ValueError, OSError) as error:
        raise InvalidInputError(f"'{condition}' is no condition on the table's rows: {in_words(error)}.") from error
