"""The worker's job for CreateTableIndex: build an index and commit it."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from tiltyard.context import Context
from tiltyard.model.branches import Branch
from tiltyard.model.ids import Id
from tiltyard.model.jobs import Job, JobCanceledError, job
from tiltyard.model.modes import TransactionStatus
from tiltyard.storage.errors import lance_errors
from tiltyard.tables.indexes.build_process import LanceProcess
from tiltyard.tables.indexes.builder import BuildRequest, IndexSpec, build
from tiltyard.tables.opening import finishing_direct_commits, open_to_commit

if TYPE_CHECKING:
    import lance
    from lance.lance.indices import IndexDescription

CREATE_INDEX = "create_index"
INDEX_JOB = "index"
"""The Spark job that builds the indexes of large tables."""

MAX_ROWS_HERE = 50_000
"""Rows of a table up to which an index is built in this process, within seconds: starting another takes a second."""


def spark_job_payload(spec: IndexSpec, path: Id) -> dict[str, Any]:
    """Return what the Spark job's payload has besides the specification: it runs under the same transaction."""
    arguments = {
        "table": str(path),
        "column": spec.column,
        "type": spec.index_type,
        "name": spec.name,
        "branch": spec.branch,
        "replace": True,  # whether it may be replaced was checked when the build was queued
        "parameters": {name: _as_text(value) for name, value in spec.parameters.items()},
    }
    arguments = {name: value for name, value in arguments.items() if value not in (None, {})}
    return {"arguments": arguments, "table": list(path), "spark": {}}


def _as_text(value: Any) -> str:
    """Return a text as it is, and anything else as JSON, as options of a command are written."""
    return value if isinstance(value, str) else json.dumps(value)


@job(CREATE_INDEX)
def build_index(ctx: Context, running: Job) -> Mapping[str, str]:
    """Build and commit an index. Idempotent, for a worker may die in between.

    A newer build of the same name supersedes this one. Raises TableColumnNotFoundError (the column was dropped
    meanwhile), ConcurrentModificationError (the worker tries again), JobCanceledError.
    """
    spec = IndexSpec(**running.payload)
    if newer := _newer_build(ctx, running, spec):
        return {"superseded_by": newer}
    dataset, uuid = _open(ctx, spec, running), _last_uuid(ctx, running)
    is_built = _has_segment(dataset, spec.name, uuid)  # by an attempt whose worker has died
    since = _version_before(dataset, spec.name) if is_built else None
    record = ctx.store.table_by_id(running.table_id or 0)
    with finishing_direct_commits(ctx, record, Branch.parse(spec.branch), since):
        if not is_built:
            try:
                train_index(ctx, spec, running)
            finally:  # also where the build was ended: it may have committed by then
                _undo_if_canceled(ctx, spec, running)
        dataset = _open(ctx, spec, running)
        with lance_errors(dataset):
            num_indexed_rows = index_new_rows(dataset, spec.name)
    return {"progress": "1.0", "num_indexed_rows": str(num_indexed_rows)}


def _open(ctx: Context, spec: IndexSpec, running: Job) -> lance.LanceDataset:
    return open_to_commit(ctx, ctx.store.table_by_id(running.table_id or 0), Branch.parse(spec.branch))


def _last_uuid(ctx: Context, running: Job) -> str | None:
    """Return the UUID of the index that the last attempt has built, or was building."""
    return ctx.store.describe_transaction(running.id).properties.get("index_uuid")


def _newer_build(ctx: Context, running: Job, spec: IndexSpec) -> str | None:
    """Return the last unfinished transaction for an index of the same name, if it is another one."""
    builds = [
        record.id
        for record in ctx.store.unfinished_transactions(running.table_id or 0, CREATE_INDEX)
        if (record.payload["name"], record.payload["branch"]) == (spec.name, spec.branch)
    ]
    return builds[-1] if builds and builds[-1] != running.id else None


def describe(dataset: lance.LanceDataset, name: str) -> IndexDescription | None:
    """Return Lance's description of an index, without reading it; None if there is no such index."""
    return next((index for index in dataset.describe_indices() if index.name == name), None)


def _has_segment(dataset: lance.LanceDataset, name: str, uuid: str | None) -> bool:
    index = describe(dataset, name)
    return index is not None and any(segment.uuid == uuid for segment in index.segments)


def _version_before(dataset: lance.LanceDataset, name: str) -> int:
    """Return the version that an index, which there is, was built on."""
    index = describe(dataset, name)
    segments = [] if index is None else index.segments
    return min((int(segment.dataset_version_at_last_update) for segment in segments), default=int(dataset.version))


def train_index(ctx: Context, spec: IndexSpec, running: Job) -> None:
    """Build and commit, under a new UUID for each attempt: two workers never write the same files.

    A small table's index is built in this process: a new one takes longer to start. Raises what `build_index` raises.
    """
    record = ctx.store.table_by_id(running.table_id or 0)
    commit_route = ctx.commit_route(record, durable=False)
    dataset = ctx.storage.datasets.open_for_writing(record.location, Branch.parse(spec.branch), commit_route)
    uuid = str(uuid4())
    running.progress(index_uuid=uuid, stage="build", progress="0.0")
    if dataset.count_rows() <= MAX_ROWS_HERE:
        build(dataset, spec, uuid)
        return
    options = dict(ctx.storage.options(record.location))
    table_id = None if commit_route is None else list(commit_route.table_id)
    request = BuildRequest({**asdict(spec), "location": record.location}, uuid, dataset.version, options, table_id)
    start = time.monotonic()
    with LanceProcess(request, commit_route) as process:
        process.wait(
            lambda: running.progress(build_seconds=round(time.monotonic() - start)), ctx.settings.index_stall_timeout
        )


def _undo_if_canceled(ctx: Context, spec: IndexSpec, running: Job) -> None:
    """Drop a new index that was committed after its build was canceled. Raises JobCanceledError if it was."""
    if ctx.store.describe_transaction(running.id).status is not TransactionStatus.CANCELED:
        return
    dataset = _open(ctx, spec, running)
    if not spec.replaces and _has_segment(dataset, spec.name, _last_uuid(ctx, running)):
        with lance_errors(dataset):
            dataset.drop_index(spec.name)
    raise JobCanceledError(running.id)


def index_new_rows(dataset: lance.LanceDataset, name: str) -> int:
    """Index the rows that came in during the build; return how many the index has then.

    Clients wait for an index until no row is left out.
    """
    index = describe(dataset, name)
    if index is not None and index.num_rows_indexed < dataset.count_rows():
        dataset.optimize.optimize_indices(index_names=[name])
        index = describe(dataset, name)
    return index.num_rows_indexed if index else 0
