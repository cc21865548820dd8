"""Optimize: small fragments become large ones, new rows join the indexes, old versions are given to `gc`.

Compaction replaces fragments, and whoever computes something for one of those has to do it again: while another job
changes the table, it waits for its next turn. Tagged versions are nobody's to remove: `gc` knows them.

What was rewritten is kept with the run, and found again by the fragments that it was made of: by the next driver, or
after a commit that somebody else's spoiled in part. Indexes that have caught up are not behind any more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from lance.optimize import Compaction, RewriteResult
from lance_namespace.errors import ConcurrentModificationError, InvalidInputError

from tiltyard.pipeline import catalog_client
from tiltyard.pipeline.catalog_client import Table
from tiltyard.pipeline.jobs import job
from tiltyard.pipeline.operation_client import OperationClient
from tiltyard.pipeline.optimize.tasks import Rewrite
from tiltyard.pipeline.runs import Run
from tiltyard.pipeline.spark_tasks import call_task, run_tasks
from tiltyard.pipeline.table_location import Connection

if TYPE_CHECKING:
    import lance
    from pyspark.sql import SparkSession

ROWS_OF_A_FRAGMENT = 1 << 20
BYTES_IN_THE_DRIVER = 64 << 20
"""So much is rewritten in this process: Spark starts later."""

_TRIES = 10
_CHANGING = ("backfill", "delete", "index", "upsert")


@dataclass(frozen=True, slots=True)
class _Catch:
    """A task: rows that are in no index yet join one. It commits by itself; twice does no harm.

    It is the one task whose worker needs the namespace client: Lance joins and commits in one.
    """

    table: Table
    index: str

    def __call__(self) -> int:
        dataset = self.table.dataset()
        dataset.optimize.optimize_indices(index_names=[self.index])
        return int(dataset.version)


@job("optimize")
def optimize(
    run: Run,
    catalog: Connection,
    spark: SparkSession,
    table: Annotated[str, "The table."],
    *,
    rows_per_fragment: Annotated[int, "Fragments with fewer rows are put together."] = ROWS_OF_A_FRAGMENT,
    compact: Annotated[bool, "Put small fragments together, and leave out deleted rows."] = True,
    indexes: Annotated[bool, "Bring new rows into the indexes."] = True,
    keep_versions_days: Annotated[float | None, "Give older versions to gc; without it, they stay."] = None,
) -> Mapping[str, object]:
    """Put small fragments together, bring new rows into the indexes, and have old versions removed.

    \b
    Example:
      tiltyard job optimize --uri http://127.0.0.1:2333 films --keep-versions-days 7
    """
    if rows_per_fragment < 1:
        raise InvalidInputError("A fragment holds at least one row: set rows_per_fragment to 1 or more.")
    found = catalog_client.table(catalog, table)
    calls = OperationClient(catalog)
    figures: dict[str, object] = {}
    if indexes:  # first: Lance puts only fragments together that the same indexes hold
        figures |= _catch_up(run, spark, found)
    if compact:
        busy = _busy(calls, run, found)
        figures |= {"compaction": f"left out: {busy}"} if busy else _compact(run, spark, found, rows_per_fragment)
    if keep_versions_days is not None:
        run.check()
        answer = calls.call("CollectTableGarbage", id=found.id, keep_versions_days=keep_versions_days)
        figures["gc"] = answer.get("transaction_id")
    return {**figures, "version": int(found.dataset().version)}


def _busy(calls: OperationClient, run: Run, table: Table) -> str:
    """The job that changes the table now, besides this one; empty if none does."""
    for name in _CHANGING:
        for page in calls.pages("ListJobs", name=name, status="Running"):
            for one in page["jobs"]:
                if one.get("table") == table.id and one["id"] != run.id:
                    return f"{name} {one['id']} runs"
    return ""


def _compact(run: Run, spark: SparkSession, table: Table, rows: int) -> dict[str, object]:
    """Plan, rewrite in tasks, commit once; planned anew if somebody changed those fragments.

    Raises ConcurrentModificationError if that happens each time.
    """
    options: Any = {"target_rows_per_fragment": rows}
    for _ in range(_TRIES):
        dataset = table.dataset()
        plan = Compaction.plan(dataset, options)
        location = table.location()
        indexes = tuple(sorted(str(part.uuid) for one in dataset.describe_indices() for part in one.segments))
        tasks = [Rewrite(location, task, indexes) for task in plan.tasks]
        if not tasks:
            return {"fragments_removed": 0, "fragments_added": 0}
        results = _rewritten(run, spark, tasks)
        run.check()
        try:
            metrics = Compaction.commit(dataset, results, options)
        except (OSError, RuntimeError, ValueError) as error:
            if "conflict" not in str(error).lower():
                raise
            continue
        return {"fragments_removed": metrics.fragments_removed, "fragments_added": metrics.fragments_added}
    raise ConcurrentModificationError(f"{table} changed {_TRIES} times while it was compacted: run the job again.")


def _rewritten(run: Run, spark: SparkSession, tasks: list[Rewrite]) -> list[RewriteResult]:
    """What all of them make, now or before, in any order."""
    before = [task.kept(run) for task in tasks]
    found = [one for one in before if one is not None]
    left = [task for task, one in zip(tasks, before, strict=True) if one is None]

    def heard(position: int, result: RewriteResult) -> None:
        left[position].keep(run, result)
        found.append(result)
        run.progress(stage="compact", tasks=len(found), tasks_total=len(tasks))

    size = sum(file.file_size_bytes or 0 for task in left for one in task.task.fragments for file in one.files)
    session = None if size <= BYTES_IN_THE_DRIVER else spark
    run_tasks(session, run, call_task, left, on_result=heard, name="optimize: compact")
    return found


def _catch_up(run: Run, spark: SparkSession, table: Table) -> dict[str, object]:
    """Bring rows into each index that lacks some; how many rows joined.

    Fewer than the index lacked may join: one of PQ that was made of no rows waits for the 256 that train it.
    """
    dataset = table.dataset()
    rows = dataset.count_rows()
    held = _indexed(dataset)
    behind = {name: rows - indexed for name, indexed in held.items() if indexed < rows}
    tasks = [_Catch(table, name) for name in behind]
    run.progress(stage="indexes", indexes=0, indexes_total=len(tasks))
    session = None if sum(behind.values()) <= ROWS_OF_A_FRAGMENT // 8 else spark
    for done, task in enumerate(tasks, 1):  # in turn: two commits of indexes at once would only wait for each other
        [version] = run_tasks(session, run, call_task, [task], name="optimize: index")
        run.progress(indexes=done, version=version)
    now = _indexed(table.dataset()) if tasks else held
    return {"indexes": len(tasks), "rows_indexed": sum(max(0, now.get(name, 0) - held[name]) for name in behind)}


def _indexed(dataset: lance.LanceDataset) -> dict[str, int]:
    """How many rows each index holds."""
    return {one.name: one.num_rows_indexed for one in dataset.describe_indices()}
