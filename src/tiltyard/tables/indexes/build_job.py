"""Building an index: what the worker runs for CreateTableIndex."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from tiltyard.context import Context
from tiltyard.model.ids import Id, display
from tiltyard.model.jobs import Job, JobCanceledError, job
from tiltyard.model.modes import TransactionStatus
from tiltyard.storage.errors import lance_errors
from tiltyard.tables.indexes.build_process import IndexProcess
from tiltyard.tables.indexes.builder import IndexOrder, ProcessOrder, build
from tiltyard.tables.opening import open_to_commit

if TYPE_CHECKING:
    import lance
    from lance.lance.indices import IndexDescription

CREATE_INDEX = "create_index"
INDEX_JOB = "index"
"""The job of the pipeline that builds the indexes of large tables."""

_ROWS_IN_PROCESS = 50_000
"""Rows of a table up to which an index is built in this process, in seconds: starting another one takes a second."""


def index_job(order: IndexOrder, path: Id) -> dict[str, Any]:
    """What the pipeline's job is told, besides the order: it answers under the same transaction."""
    arguments = {
        "table": display(path),
        "column": order.column,
        "type": order.index_type,
        "name": order.name,
        "branch": order.branch,
        "replace": True,  # whether it may be was asked when it was ordered
        "parameters": {name: _as_text(value) for name, value in order.parameters.items()},
    }
    given = {name: value for name, value in arguments.items() if value not in (None, {})}
    return {"arguments": given, "table": list(path), "spark": {}}


def _as_text(value: Any) -> str:
    """A text as it is, all else as JSON: options of a command are such."""
    return value if isinstance(value, str) else json.dumps(value)


@job(CREATE_INDEX)
def build_index(ctx: Context, running: Job) -> Mapping[str, str]:
    """Build and commit an index; done twice, for a worker may die in between, it is done once.

    A newer order of the same name makes this one pointless. Raises TableColumnNotFoundError (the column was dropped
    meanwhile), ConcurrentModificationError (the worker tries again), JobCanceledError.
    """
    order = IndexOrder(**running.payload)
    if newer := _newer_order(ctx, running, order):
        return {"superseded_by": newer}
    if not _has_segment(_open(ctx, order, running), order.name, _built_uuid(ctx, running)):
        try:
            _build(ctx, order, running)
        finally:  # also where the build was ended: it may have committed by then
            _undo_if_canceled(ctx, order, running)
    dataset = _open(ctx, order, running)
    with lance_errors(dataset):
        found = _catch_up(dataset, order.name)
    return {"progress": "1.0", "num_indexed_rows": str(found)}


def _open(ctx: Context, order: IndexOrder, running: Job) -> lance.LanceDataset:
    return open_to_commit(ctx, ctx.store.table_by_id(running.table_id or 0), order.branch)


def _built_uuid(ctx: Context, running: Job) -> str | None:
    """The identity of the index that the last try has built, or was building."""
    return ctx.store.describe_transaction(running.id).properties.get("index_uuid")


def _newer_order(ctx: Context, running: Job, order: IndexOrder) -> str | None:
    """The last transaction that will build an index of the same name, if it is another one."""
    same = [
        record.id
        for record in ctx.store.unfinished_transactions(running.table_id or 0, CREATE_INDEX)
        if (record.payload["name"], record.payload["branch"]) == (order.name, order.branch)
    ]
    return same[-1] if same and same[-1] != running.id else None


def describe(dataset: lance.LanceDataset, name: str) -> IndexDescription | None:
    """What Lance knows of an index, without reading it."""
    return next((found for found in dataset.describe_indices() if found.name == name), None)


def _has_segment(dataset: lance.LanceDataset, name: str, uuid: str | None) -> bool:
    found = describe(dataset, name)
    return found is not None and any(segment.uuid == uuid for segment in found.segments)


def _build(ctx: Context, order: IndexOrder, running: Job) -> None:
    """Build and commit. A new identity for each try: two workers never write the same files.

    A small table's index is built in this process: a new one takes longer to start. Raises what `build_index` does.
    """
    record = ctx.store.table_by_id(running.table_id or 0)
    commit_route = ctx.commit_route(record, durable=False)
    dataset = ctx.storage.datasets.open_for_writing(
        record.location, ctx.storage.options(record.location), order.branch, commit_route
    )
    uuid = str(uuid4())
    running.progress(index_uuid=uuid, stage="build", progress="0.0")
    if dataset.count_rows() <= _ROWS_IN_PROCESS:
        build(dataset, order, uuid)
        return
    options = dict(ctx.storage.options(record.location))
    table_id = None if commit_route is None else list(commit_route.table_id)
    told = ProcessOrder({**asdict(order), "location": record.location}, uuid, dataset.version, options, table_id)
    begun = time.monotonic()
    with IndexProcess(told, commit_route) as process:
        process.wait(
            lambda: running.progress(build_seconds=round(time.monotonic() - begun)), ctx.settings.index_stall_timeout
        )


def _undo_if_canceled(ctx: Context, order: IndexOrder, running: Job) -> None:
    """Take a new index away again if it was committed behind a cancel. Raises JobCanceledError if there was one."""
    if ctx.store.describe_transaction(running.id).status is not TransactionStatus.CANCELED:
        return
    dataset = _open(ctx, order, running)
    if not order.replaces and _has_segment(dataset, order.name, _built_uuid(ctx, running)):
        with lance_errors(dataset):
            dataset.drop_index(order.name)
    raise JobCanceledError(running.id)


def _catch_up(dataset: lance.LanceDataset, name: str) -> int:
    """Index the rows that came in during the build, so that waiting for the index ends; how many it holds then."""
    found = describe(dataset, name)
    if found is not None and found.num_rows_indexed < dataset.count_rows():
        dataset.optimize.optimize_indices(index_names=[name])
        found = describe(dataset, name)
    return found.num_rows_indexed if found else 0
