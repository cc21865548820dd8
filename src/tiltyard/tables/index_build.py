"""Building an index: what the worker runs for CreateTableIndex."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from lance.indices import IndexConfig

from tiltyard.context import Context
from tiltyard.ids import Id, display
from tiltyard.index_kinds import IndexType
from tiltyard.index_vectors import VectorColumn, model_of_few
from tiltyard.jobs import Job, JobCanceledError, job
from tiltyard.modes import TransactionStatus
from tiltyard.storage.errors import lance_errors
from tiltyard.tables.fields import arrow_field
from tiltyard.tables.opening import open_to_commit

if TYPE_CHECKING:
    import lance
    from lance.lance.indices import IndexDescription
    from lance.progress import IndexProgress

CREATE_INDEX = "create_index"
INDEX_JOB = "index"
"""The job of the pipeline that builds the indexes of large tables."""

_REPORT_SECONDS = 1.0
_FEWEST = 1
_LANCE_NAMES = {"distance_type": "metric", "max_iterations": "max_iters"}


@dataclass(frozen=True, slots=True)
class IndexOrder:
    """What a transaction's payload says. `replaces` is whether an index had that name when it was ordered."""

    location: str
    branch: str | None
    column: str
    name: str
    index_type: str
    parameters: dict[str, Any] = field(default_factory=dict)
    replaces: bool = False

    @property
    def kind(self) -> IndexType:
        return IndexType(self.index_type)


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
    dataset = open_to_commit(ctx, ctx.store.table_by_id(running.table_id or 0), order.branch)
    built = ctx.store.describe_transaction(running.id).properties.get("index_uuid")
    if not _has_segment(dataset, order.name, built):
        _build(dataset, order, running)
        _undo_if_canceled(ctx, dataset, order, running)
    with lance_errors(dataset):
        found = _catch_up(dataset, order.name)
    return {"progress": "1.0", "num_indexed_rows": str(found)}


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


def _build(dataset: lance.LanceDataset, order: IndexOrder, running: Job) -> None:
    """Train, write and commit. A new identity for each try: two workers never write the same files."""
    column = arrow_field(dataset, order.column)
    uuid = str(uuid4())
    running.progress(index_uuid=uuid, stage="start", progress="0.0")
    progress = _Progress(running)
    common: dict[str, Any] = {"name": order.name, "replace": True, "index_uuid": uuid, "progress_callback": progress}
    try:
        with lance_errors(dataset):
            if order.kind.is_vector:
                options = {_LANCE_NAMES.get(name, name): value for name, value in order.parameters.items()}
                few = _model_of_few(dataset, order, VectorColumn.of(column))
                dataset.create_index(order.column, order.index_type, **{**options, **few, **common})
            else:
                kind: Any = order.index_type
                if order.kind is IndexType.FTS:
                    kind = IndexConfig(index_type="INVERTED", parameters=order.parameters)
                dataset.create_scalar_index(order.column, kind, **common)
    except Exception:
        if progress.canceled:  # what the callback raises comes back from Rust as something else
            raise JobCanceledError(running.id) from None
        raise


def _model_of_few(dataset: lance.LanceDataset, order: IndexOrder, column: VectorColumn) -> dict[str, Any]:
    """A model made here, if the table has fewer vectors than Lance needs to train one; empty tables need none."""
    quantized = order.kind.quantizer == "PQ"
    needed = 1 << order.parameters.get("num_bits", 8) if quantized else _FEWEST
    path = f"`{order.column}`" if order.column in dataset.schema.names else order.column
    sample = dataset.to_table(columns=[order.column], filter=f"{path} IS NOT NULL", limit=needed)
    if sample.num_rows >= needed or dataset.count_rows() == 0:
        return {}
    return model_of_few(column, column.matrix(sample.column(0)), order.parameters)


class _Progress:
    """Hands Lance's progress on to the transaction, now and then; raising in it makes Lance stop."""

    def __init__(self, running: Job) -> None:
        self.canceled = False
        self._running = running
        self._next = 0.0

    def __call__(self, event: IndexProgress) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _REPORT_SECONDS
        fraction = {} if event.fraction is None else {"progress": f"{event.fraction:.3f}"}
        try:
            self._running.progress(stage=event.stage, **fraction)
        except JobCanceledError:
            self.canceled = True
            raise


def _undo_if_canceled(ctx: Context, dataset: lance.LanceDataset, order: IndexOrder, running: Job) -> None:
    """Take a new index away again if it was canceled when Lance had no ear for it any more."""
    if ctx.store.describe_transaction(running.id).status is not TransactionStatus.CANCELED:
        return
    if not order.replaces:
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
