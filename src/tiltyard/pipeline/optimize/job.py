"""Optimize job: upkeep of a whole table by Spark. Compact fragments, extend indexes, give old versions to `gc`.

Compaction replaces fragments, and another job that computes something for one of those has to do it again: while
another job changes the table, compaction is left out. `gc` keeps tagged versions.

Compacted fragments are kept in the run's checkpoint, by the fragments that they replace, for the next driver, and for
the next attempt when a concurrent commit replaced some of them. An index that is up to date needs no checkpoint.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

from lance.optimize import RewriteResult
from lance_namespace.errors import ConcurrentModificationError, InvalidInputError

from tiltyard.pipeline import catalog_client
from tiltyard.pipeline.catalog_client import Table
from tiltyard.pipeline.indexes.growth import grow_index, plan_growth
from tiltyard.pipeline.jobs import job
from tiltyard.pipeline.optimize.tasks import CompactFragments, ExtendIndex
from tiltyard.pipeline.runs import Run
from tiltyard.pipeline.session import LazySession, task_slots
from tiltyard.pipeline.sources.filesystem import file_exists
from tiltyard.pipeline.spark_tasks import call_task, run_tasks
from tiltyard.pipeline.table_location import CatalogConnection
from tiltyard.upkeep.compaction import commit_compaction, plan_whole_compaction, reason_to_leave_indexes
from tiltyard.upkeep.decision import CHANGING_JOBS
from tiltyard.upkeep.indexing import SMALL_SEGMENT_ROWS, index_states, user_indexes
from tiltyard.upkeep.thresholds import FULL_FRAGMENT_ROWS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tiltyard.calls.caller import Caller

MAX_DRIVER_BYTES = 64 << 20
"""Up to so many bytes are compacted in this process: starting Spark's tasks takes longer."""
MAX_DRIVER_ROWS = FULL_FRAGMENT_ROWS // 8
"""Up to so many rows are added to indexes in this process."""

_MAX_TRIES = 10


@job("optimize", lazy=True)
def optimize(
    run: Run,
    catalog: CatalogConnection,
    spark: SparkSession | LazySession,
    table: Annotated[str, "The table."],
    *,
    rows_per_fragment: Annotated[int, "Fragments with fewer rows are compacted."] = FULL_FRAGMENT_ROWS,
    compact: Annotated[bool, "Compact small fragments, and remove deleted rows."] = True,
    indexes: Annotated[bool, "Add new rows to the indexes."] = True,
    keep_versions_days: Annotated[float | None, "Have gc remove older versions [default: they stay]."] = None,
) -> Mapping[str, object]:
    """Compact small fragments, add new rows to the indexes, and have old versions removed.

    \b
    Example:
      tiltyard job optimize --uri http://127.0.0.1:2333 films --keep-versions-days 7
    """
    if rows_per_fragment < 1:
        raise InvalidInputError("A fragment holds at least one row: set rows_per_fragment to 1 or more.")
    target = catalog_client.table(catalog, table)
    client = catalog.caller()
    figures: dict[str, object] = {}
    merged_rows = rows_per_fragment if compact else SMALL_SEGMENT_ROWS
    if indexes:  # first: Lance compacts only fragments together that the same indexes hold
        figures |= _extend_indexes(run, spark, target, merged_rows)
    if compact:
        if busy := _find_changing_job(client, run, target):
            figures["compaction"] = f"left out: {busy}"
        else:
            figures |= _compact(run, spark, target, rows_per_fragment, extends_indexes=indexes)
    if indexes and figures.get("fragments_removed"):  # some indexes have not followed the compaction
        again = _extend_indexes(run, spark, target, merged_rows)
        figures["rows_indexed"] = int(str(figures["rows_indexed"])) + int(str(again["rows_indexed"]))
    if keep_versions_days is not None:
        run.check()
        response = client.call("CollectTableGarbage", id=target.id, keep_versions_days=keep_versions_days)
        figures["gc"] = response.get("transaction_id")
    return {**figures, "version": int(target.dataset().version)}


def _find_changing_job(client: Caller, run: Run, table: Table) -> str:
    """Describe another job that changes the table now; empty if there is none."""
    for name in sorted(CHANGING_JOBS):
        for entry in client.entries("ListJobs", "jobs", name=name, status="Running"):
            if entry.get("table") == table.id and entry["id"] != run.id:
                return f"{name} {entry['id']} runs"
    return ""


def _compact(
    run: Run, spark: SparkSession | LazySession, table: Table, rows: int, *, extends_indexes: bool
) -> dict[str, object]:
    """Plan the compaction, rewrite in tasks, commit once; plan again if a concurrent commit changed those fragments.

    With `extends_indexes` the commit may leave large indexes as they are; the figure `remap` says why.
    Raises ConcurrentModificationError if that happens each time.
    """
    for _ in range(_MAX_TRIES):
        dataset = table.dataset()
        planned = plan_whole_compaction(dataset, rows)
        location = table.location()
        segments = [segment for index in user_indexes(dataset) for segment in index.segments]
        indexes = tuple(sorted(str(segment.uuid) for segment in segments))
        tasks = [CompactFragments(location, task, indexes) for task in planned.plan.tasks]
        if not tasks:
            return {"fragments_removed": 0, "fragments_added": 0}
        results = _compact_in_tasks(run, spark, tasks)
        run.check()
        try:
            left = reason_to_leave_indexes(dataset, planned, extends_indexes=extends_indexes)
            removed, added = commit_compaction(dataset, planned, results, extends_indexes=extends_indexes)
        except ConcurrentModificationError:
            continue
        why = {"remap": f"left out: {left}"} if left else {}
        return {"fragments_removed": removed, "fragments_added": added, **why}
    raise ConcurrentModificationError(f"{table} changed {_MAX_TRIES} times while it was compacted: run the job again.")


def _compact_in_tasks(
    run: Run, spark: SparkSession | LazySession, tasks: Sequence[CompactFragments]
) -> list[RewriteResult]:
    """Return the results of all tasks, of this attempt or earlier ones, in any order."""
    saved = [_load_checkpoint(run, task) for task in tasks]
    results = [result for result in saved if result is not None]
    missing = [task for task, result in zip(tasks, saved, strict=True) if result is None]

    def handle_result(position: int, result: RewriteResult) -> None:
        _save_checkpoint(run, missing[position], result)
        results.append(result)
        run.progress(stage="compact", tasks=len(results), tasks_total=len(tasks))

    files = [file for task in missing for fragment in task.task.fragments for file in fragment.files]
    size = sum(file.file_size_bytes or 0 for file in files)
    session = None if size <= MAX_DRIVER_BYTES else spark
    run_tasks(session, run, call_task, missing, on_result=handle_result, name="optimize: compact")
    return results


def _checkpoint_key(task: CompactFragments) -> str:
    """Return a key that is the same for the same fragments, with the same rows, under the same indexes.

    A result from before an index was built does not remap its row addresses, and can no longer be committed.
    """
    fragments = [fragment.to_json() for fragment in task.task.fragments]
    identity = json.dumps([fragments, task.indexes], sort_keys=True)
    return f"compacted-{hashlib.sha256(identity.encode()).hexdigest()[:32]}"


def _load_checkpoint(run: Run, task: CompactFragments) -> RewriteResult | None:
    """Return the saved result of a task, if its files still exist: only `gc` deletes them."""
    if (text := run.checkpoints().get(_checkpoint_key(task))) is None:
        return None
    serialized = zlib.decompress(base64.b64decode(text)).decode()
    result: RewriteResult = RewriteResult.from_json(serialized)  # type: ignore[attr-defined]  # not in pylance's stubs
    files = [file.path for fragment in result.new_fragments for file in fragment.files]
    exist = all(file_exists(f"{task.location.uri}/data/{file}", task.location.options) for file in files)
    return result if exist else None


def _save_checkpoint(run: Run, task: CompactFragments, result: RewriteResult) -> None:
    """Save the result of a task, compressed, since it holds the new address of each row."""
    text: str = result.json()  # type: ignore[attr-defined]  # the same
    run.save_checkpoint(_checkpoint_key(task), base64.b64encode(zlib.compress(text.encode())).decode())


def _extend_indexes(run: Run, spark: SparkSession | LazySession, table: Table, rows: int) -> dict[str, object]:
    """Add rows to each index that lacks some; return the figures.

    Segments of up to `rows` are merged, so that the fragments below them can be joined. Fewer rows than the index lacks
    may be added: a PQ index of an empty table waits for the 256 rows that train it.
    """
    before = {state.name: state for state in index_states(table.dataset()) if state.missing}
    run.progress(stage="indexes", indexes=0, indexes_total=len(before))
    session = None if sum(state.missing for state in before.values()) <= MAX_DRIVER_ROWS else spark
    for done, name in enumerate(before, 1):  # in turn: of two index commits at once, one would wait for the other
        reason = _grow_index(run, session, table, name, rows)
        if reason:
            task = ExtendIndex(table.dataset, name, rows)
            [version] = run_tasks(session, run, call_task, [task], name="optimize: index")
            run.progress(indexes=done, version=version, extended=f"{name} in one task: {reason}")
        else:
            run.progress(indexes=done, version=int(table.dataset().version), extended=f"{name} in tasks")
    after = {state.name: state for state in index_states(table.dataset())} if before else {}
    added = (max(0, after[name].indexed - state.indexed) for name, state in before.items() if name in after)
    return {"indexes": len(before), "rows_indexed": sum(added)}


def _grow_index(run: Run, spark: SparkSession | LazySession | None, table: Table, name: str, rows: int) -> str:
    """Add the rows that an index lacks by tasks; or return why one task adds them."""
    if spark is None:
        return "few rows are new"
    for _ in range(_MAX_TRIES):
        dataset = table.dataset()
        state = next((each for each in index_states(dataset) if each.name == name), None)
        if state is None or not state.missing:
            return ""
        growth = plan_growth(dataset, table.location(), state, rows, task_slots(spark))
        if isinstance(growth, str):
            return growth
        if grow_index(run, spark, table.location(), dataset, growth):
            return ""
    raise ConcurrentModificationError(f"{table} changed {_MAX_TRIES} times while rows were added to the index {name}.")
