"""Read plain views as SQL reads them, for their reader, and search their rows as those of a table are searched.

A plain scan is streamed. For any other query (a filter, an order, a vector, full text, expressions) the view's rows are
held in memory, as a dataset, which bounds them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import lance
import msgspec
import pyarrow as pa
from lance_namespace.errors import InvalidInputError, UnsupportedOperationError

from tiltyard.model.branches import Branch
from tiltyard.model.ids import table_id
from tiltyard.model.operations import ArrowAnswer
from tiltyard.model.views.plain_views import PlainView
from tiltyard.sql.processes import ViewRead
from tiltyard.storage.caches.version_cache import CachedVersion
from tiltyard.tables.opening import find_table
from tiltyard.tables.query.plan import plan_search
from tiltyard.tables.query.response import query_errors
from tiltyard.tables.query.response_sizes import NO_LIMIT
from tiltyard.tables.query.routes.route import Cost, CountOffer, CountQuery, Offer, Query, Refused
from tiltyard.tables.query.routes.scan import Scan, ask_scan_count

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


_NO_VIEW = Refused("it is a table, and no view")
_NO_CACHES = Refused("no cache holds rows of a view")


def find_view(ctx: Context, names: Sequence[str] | None) -> PlainView | None:
    """Return the view that has a name; None if a table has it. Raises TableNotFoundError, NamespaceNotFoundError."""
    return PlainView.from_properties(find_table(ctx, names).properties)


@dataclass(slots=True)
class ExpandedView(Offer):
    """A query of a view. `answer` raises UnsupportedOperationError for a branch, a version, and text,

    InvalidInputError for a column that the view does not have for its reader and for too many rows, and what the
    engine's `read_view` raises.
    """

    name: ClassVar[str] = "view"
    cost = Cost.TABLE
    request: models.QueryTableRequest

    @classmethod
    def ask(cls, query: Query) -> Refused:
        """Refuse a query of a table."""
        return _NO_VIEW

    def describe(self) -> str:
        if self._is_scan:
            return "SQL reads the view for you, and its rows are streamed"
        return "SQL reads the view for you, and Lance searches its rows in memory"

    def answer(self, ctx: Context) -> ArrowAnswer:
        if self._is_scan:
            return _scan(ctx, self.request)
        self._check_text()
        snapshot = _load(ctx, self.request)
        with query_errors(snapshot.dataset):
            return self._search(snapshot).answer(ctx)

    def plan(self, ctx: Context, *, is_verbose: bool) -> str:
        """Return what Lance would run on the view's rows, of which none is read; "" for a scan."""
        request = self.request
        if self._is_scan:
            _close(_scan(ctx, msgspec.structs.replace(request, k=0)))
            return ""
        self._check_text()
        answer = _read(ctx, request, ViewRead((), limit=0))
        _close(answer)
        snapshot = _in_memory([], answer.schema)
        with query_errors(snapshot.dataset):
            return self._search(snapshot).plan(ctx, is_verbose=is_verbose)

    @property
    def _is_scan(self) -> bool:
        """Whether all that is asked for is some columns of some rows, one after the other."""
        request = self.request
        vector, columns = request.vector, request.columns
        has_vector = vector is not None and (vector.single_vector or vector.multi_vector)
        others = (has_vector, self._is_by_text, request.filter, request.order_by, request.with_row_id)
        return not any(others) and (columns is None or columns.column_names is not None)

    @property
    def _is_by_text(self) -> bool:
        return self.request.full_text_query is not None or self.request.minhash_query is not None

    def _check_text(self) -> None:
        if self._is_by_text:
            raise UnsupportedOperationError("A view has no index of text: search its table, or a materialized view.")

    def _search(self, snapshot: CachedVersion) -> Scan:
        search = plan_search(snapshot, self.request)
        return Scan(Query(replace(search, memory_bytes=search.memory_bytes + VIEW_BYTES), _NO_CACHES))


def ask_view_count(ctx: Context, request: models.CountTableRowsRequest) -> CountOffer:
    """Return the count of a view's rows, or of those that a predicate selects."""

    def count() -> int:
        if request.predicate is None:
            (batch,) = _read(ctx, request, ViewRead((), is_count=True)).batches
            number: int = batch.column(0)[0].as_py()
            return number
        snapshot = _load(ctx, request)
        with query_errors(snapshot.dataset):
            return ask_scan_count(CountQuery(snapshot, request.predicate, _NO_CACHES)).count()

    return CountOffer(ExpandedView.name, count)


def _scan(ctx: Context, request: models.QueryTableRequest) -> ArrowAnswer:
    """Return the rows of a plain scan of a view, streamed."""
    names = None if request.columns is None else request.columns.column_names
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


def _load(ctx: Context, request: ViewRequest) -> CachedVersion:
    """Return a view's rows as a dataset in memory. Raises InvalidInputError if they are too many."""
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
    return _in_memory(rows, answer.schema)


def _in_memory(rows: list[pa.RecordBatch], schema: pa.Schema) -> CachedVersion:
    return CachedVersion(lance.write_dataset(pa.Table.from_batches(rows, schema), "memory://"))


def _read(ctx: Context, request: ViewRequest, read: ViewRead) -> ArrowAnswer:
    """Read the view that a request names, as its reader. Raises UnsupportedOperationError, and what the engine does."""
    from tiltyard.sql.engine import read_view  # noqa: PLC0415  # the engine reads tables by this package

    if not Branch.parse(request.branch).is_main or request.version not in (None, VIEW_VERSION):
        raise UnsupportedOperationError("A view has no branches and no versions: its rows are those of now.")
    return read_view(ctx, msgspec.structs.replace(read, path=tuple(table_id(request.id))))


def _close(answer: ArrowAnswer) -> None:
    close = getattr(answer.batches, "close", None)
    if close is not None:
        close()
