"""Read plain views: run the query of a view for its reader, and search what it returns as a table is searched.

A plain scan is streamed. For any other query (a filter, an order, a vector, full text, expressions) the view's rows are
held in memory, as a dataset, which bounds them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import lance
import msgspec
import pyarrow as pa
from lance_namespace.errors import InvalidInputError, UnsupportedOperationError

from tiltyard.model.branches import Branch
from tiltyard.model.operations import ArrowAnswer
from tiltyard.model.views.plain_views import PlainView
from tiltyard.storage.version_cache import Snapshot
from tiltyard.tables.opening import find_table
from tiltyard.tables.query.plan import NO_LIMIT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tiltyard.context import Context
    from tiltyard.model.spec import models

VIEW_BYTES = 64 << 20
"""Bytes of a view's rows that are held for one query."""
VIEW_VERSION = 1
"""The version that a view says it has: its rows are those of now."""


def find_view(ctx: Context, names: Sequence[str] | None) -> PlainView | None:
    """Return the view that has a name; None if a table has it. Raises TableNotFoundError, NamespaceNotFoundError."""
    return PlainView.from_properties(find_table(ctx, names).properties)


def run_view(
    ctx: Context, view: PlainView, branch: str | None, version: int | None, limit: int | None = None
) -> ArrowAnswer:
    """Run the query of a view, as its reader, up to `limit` rows.

    Raises UnsupportedOperationError for a branch or a version, and what the engine's `run` raises.
    """
    from tiltyard.sql.engine import run  # noqa: PLC0415  # the engine reads tables by this package

    if not Branch.parse(branch).is_main or version not in (None, VIEW_VERSION):
        raise UnsupportedOperationError("A view has no branches and no versions: its rows are those of now.")
    ctx = msgspec.structs.replace(ctx, resolved=None, database=view.database)
    return run(ctx, view.query, is_view=True, limit=limit)


def scan_view(ctx: Context, view: PlainView, request: models.QueryTableRequest) -> ArrowAnswer | None:
    """Return the rows of a plain scan of a view, streamed; None for a query that is more than that."""
    columns = request.columns
    names = view.schema.names if columns is None else columns.column_names
    others = (request.vector, request.full_text_query, request.filter, request.order_by, request.with_row_id)
    if any(others) or names is None or not set(names) <= set(view.schema.names):
        return None
    rows = (request.offset or 0) + max(0, request.k)
    answer = run_view(ctx, view, request.branch, request.version, rows if rows < NO_LIMIT else None)
    schema = pa.schema([answer.schema.field(name) for name in names])
    return ArrowAnswer(schema, _slice(answer, names, request.offset or 0, request.k))


def _slice(answer: ArrowAnswer, names: Sequence[str], offset: int, limit: int) -> Iterator[pa.RecordBatch]:
    """Yield some columns of the rows from an offset on, and end the query when there are enough of them."""
    batches = iter(answer.batches)
    try:
        for batch in batches:
            if limit <= 0:
                return
            part = batch.slice(offset, limit)
            offset = max(0, offset - batch.num_rows)
            limit -= part.num_rows
            if part.num_rows:
                yield part.select(list(names))
    finally:
        _close(batches)


def load_view(ctx: Context, view: PlainView, branch: str | None, version: int | None) -> Snapshot:
    """Return a view's rows as a dataset in memory. Raises InvalidInputError if they are too many."""
    answer = run_view(ctx, view, branch, version)
    batches = iter(answer.batches)
    rows, size = [], 0
    try:
        for batch in batches:
            size += batch.nbytes
            if size > VIEW_BYTES:
                raise InvalidInputError(
                    f"The view has more than {VIEW_BYTES >> 20} MiB, too much to search: scan it, put the filter into "
                    "its query, or create it as a materialized view."
                )
            rows.append(batch)
    finally:
        _close(batches)
    return Snapshot(lance.write_dataset(pa.Table.from_batches(rows, answer.schema), "memory://"))


def count_view(ctx: Context, view: PlainView, request: models.CountTableRowsRequest) -> int:
    """Return how many rows a view has. Raises as `run_view` does."""
    batches = iter(run_view(ctx, view, request.branch, request.version).batches)
    try:
        return sum(batch.num_rows for batch in batches)
    finally:
        _close(batches)


def _close(batches: Iterator[pa.RecordBatch]) -> None:
    close = getattr(batches, "close", None)
    if close is not None:
        close()
