"""Read plain views as SQL reads them, for their reader, and search their rows as those of a table are searched.

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
from tiltyard.model.ids import table_id
from tiltyard.model.operations import ArrowAnswer
from tiltyard.model.views.plain_views import PlainView
from tiltyard.sql.process_messages import ViewRead
from tiltyard.storage.version_cache import Snapshot
from tiltyard.tables.opening import find_table
from tiltyard.tables.query.plan import NO_LIMIT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import TypeAlias

    from tiltyard.context import Context
    from tiltyard.model.spec import models

    ViewRequest: TypeAlias = models.QueryTableRequest | models.CountTableRowsRequest

VIEW_BYTES = 64 << 20
"""Bytes of a view's rows that are held for one query."""
VIEW_VERSION = 1
"""The version that a view says it has: its rows are those of now."""


def find_view(ctx: Context, names: Sequence[str] | None) -> PlainView | None:
    """Return the view that has a name; None if a table has it. Raises TableNotFoundError, NamespaceNotFoundError."""
    return PlainView.from_properties(find_table(ctx, names).properties)


def scan_view(ctx: Context, request: models.QueryTableRequest) -> ArrowAnswer | None:
    """Return the rows of a plain scan of a view, streamed; None for a query that is more than that.

    Raises UnsupportedOperationError for a branch or a version, InvalidInputError for a column that the view does not
    have for its reader, and what the engine's `read_view` raises.
    """
    names = None if request.columns is None else request.columns.column_names
    has_expressions = request.columns is not None and names is None
    vector = request.vector
    has_vector = vector is not None and (vector.single_vector or vector.multi_vector)
    others = (has_vector, request.full_text_query, request.filter, request.order_by, request.with_row_id)
    if any(others) or has_expressions:
        return None
    limit = None if request.k >= NO_LIMIT else max(0, request.k)
    columns = None if names is None else tuple(names)
    answer = _read(ctx, request, ViewRead((), columns, request.offset or 0, limit))
    if names is None:
        return answer
    if missing := [name for name in names if name not in answer.schema.names]:
        _close(answer)
        raise InvalidInputError(f"The view has no column '{missing[0]}' that you can read.")
    schema = pa.schema([answer.schema.field(name) for name in names])
    return ArrowAnswer(schema, _selected(answer, names))


def _selected(answer: ArrowAnswer, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    try:
        for batch in answer.batches:
            yield batch.select(list(names))
    finally:
        _close(answer)


def load_view(ctx: Context, request: ViewRequest) -> Snapshot:
    """Return a view's rows as a dataset in memory. Raises as `scan_view`, InvalidInputError if they are too many."""
    answer = _read(ctx, request, ViewRead(()))
    rows, size = [], 0
    try:
        for batch in answer.batches:
            size += batch.nbytes
            if size > VIEW_BYTES:
                raise InvalidInputError(
                    f"The view has more than {VIEW_BYTES >> 20} MiB, too much to search: scan it, put the filter into "
                    "its query, or create it as a materialized view."
                )
            rows.append(batch)
    finally:
        _close(answer)
    return Snapshot(lance.write_dataset(pa.Table.from_batches(rows, answer.schema), "memory://"))


def count_view(ctx: Context, request: models.CountTableRowsRequest) -> int:
    """Return how many rows a view has. Raises as `scan_view` does."""
    (batch,) = _read(ctx, request, ViewRead((), is_count=True)).batches
    count: int = batch.column(0)[0].as_py()
    return count


def _read(ctx: Context, request: ViewRequest, read: ViewRead) -> ArrowAnswer:
    """Read the view that a request names, as its reader. Raises as `scan_view` does."""
    from tiltyard.sql.engine import read_view  # noqa: PLC0415  # the engine reads tables by this package

    if not Branch.parse(request.branch).is_main or request.version not in (None, VIEW_VERSION):
        raise UnsupportedOperationError("A view has no branches and no versions: its rows are those of now.")
    return read_view(ctx, msgspec.structs.replace(read, path=tuple(table_id(request.id))))


def _close(answer: ArrowAnswer) -> None:
    close = getattr(answer.batches, "close", None)
    if close is not None:
        close()
