"""What the reader of a query may read of a table: which columns, and its rows as DataFusion gets them.

Rows that a function returns, as those that policies leave, are datasets of pyarrow to DataFusion, of which this module
implements as much as it calls, when the query runs and not before. It never gets to pass one of these a filter: they
are put below a limit that no table reaches, which no optimizer moves a filter through. So what a query computes is
computed for the rows that the function returns, and for no others: that holds where a policy hides rows, and an error
or the duration of a filter on hidden rows would disclose them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset
from lance_namespace.errors import (
    InternalError,
    LanceNamespaceError,
    ServiceUnavailableError,
    ThrottlingError,
)

from tiltyard.access.authorization import effective_policy_of
from tiltyard.model.ids import Id
from tiltyard.model.spec import models
from tiltyard.model.views.plain_views import PlainView
from tiltyard.sql.read_grounds import authorize_reading
from tiltyard.tables.opening import open_for_reading
from tiltyard.tables.query.query import query_table
from tiltyard.tables.query.response_sizes import NO_LIMIT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import lance
    from datafusion import SessionContext

    from tiltyard.context import Context, OpenTable


def visible_schema(ctx: Context, path: Id) -> pa.Schema:
    """Return the columns of a table that the principal may read; none of one that it may not, or that has no data.

    Raises ThrottlingError, ServiceUnavailableError, InternalError.
    """
    try:
        return readable_schema(authorize_reading(ctx, path), path)
    except (ThrottlingError, ServiceUnavailableError, InternalError):
        raise
    except LanceNamespaceError:
        return pa.schema([])


def readable_schema(ctx: Context, path: Id) -> pa.Schema:
    """Return the columns of a table that its reader, who is authorized, may read."""
    if (view := PlainView.from_properties(ctx.find_table(path).properties)) is not None:
        return view.schema if ctx.principal.administrator else _view_schema(ctx, path)
    opened = open_for_reading(ctx, path, by_catalog=True)
    policy = effective_policy_of(ctx, opened.record)
    return opened.dataset.schema if policy is None else restricted_source(ctx, path, opened).schema


def _view_schema(ctx: Context, path: Id) -> pa.Schema:
    """Return the columns of a view that policies leave its reader. Raises what planning the view raises."""
    from tiltyard.sql.engine import infer_view_schema  # the engine reads tables by this module

    return infer_view_schema(ctx, path)


def restricted_source(ctx: Context, path: Id, table: OpenTable) -> RowsOnDemand:
    """Return the rows and columns that policies leave the reader of a table, read as QueryTable reads them.

    They are those of the open snapshot, the latest version when it was opened, whatever is committed meanwhile.
    """
    ctx = ctx.with_open_table(path, table, ctx.check_deadline)
    schema = query_table(ctx, models.QueryTableRequest(id=list(path), vector=None, k=0)).schema

    def read(columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        requested = models.QueryTableColumns(column_names=list(columns))
        request = models.QueryTableRequest(id=list(path), vector=None, k=NO_LIMIT, columns=requested)
        yield from query_table(ctx, request).batches

    return RowsOnDemand(schema, read)


_NO_LIMIT = 2**63 - 1


@dataclass(frozen=True, slots=True)
class RowsOnDemand:
    """Rows by demand: `read(columns)` yields batches that have at least these columns of `schema`.

    `read` is called in a thread of DataFusion, as often as the query refers to the table.
    """

    schema: pa.Schema
    read: Callable[[Sequence[str]], Iterator[pa.RecordBatch]]


class _Scan:
    """A scanner, as far as DataFusion uses it."""

    def __init__(self, source: RowsOnDemand, columns: Sequence[str]) -> None:
        self._source = source
        self._columns = list(columns)
        self.projected_schema = pa.schema([source.schema.field(name) for name in columns])

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        for batch in self._source.read(self._columns or self._source.schema.names[:1]):
            yield batch.select(self._columns)


class _SourceDataset(pa.dataset.Dataset):  # type: ignore[misc]  # pyarrow ships no types
    """A dataset of one fragment, as far as DataFusion uses it."""

    def __init__(self, source: RowsOnDemand) -> None:
        self._source = source

    @property
    def schema(self) -> pa.Schema:
        return self._source.schema

    def scanner(self, *_: Any, columns: Sequence[str] | None = None, **__: Any) -> _Scan:
        return _Scan(self._source, self._source.schema.names if columns is None else columns)

    def get_fragments(self, *_: Any) -> list[_SourceDataset]:
        return [self]


def to_table(context: SessionContext, source: RowsOnDemand) -> Any:
    """Return a table of DataFusion for a source, which no filter of a query reaches."""
    return context.read_table(_SourceDataset(source)).limit(_NO_LIMIT).into_view()


class _JsonDataset(_SourceDataset):
    """A dataset with columns of JSON, which Lance's own table for DataFusion hands over in bytes of Lance's."""

    def __init__(self, dataset: lance.LanceDataset) -> None:
        self._dataset = dataset

    @property
    def schema(self) -> pa.Schema:
        return self._dataset.schema

    def scanner(self, *_: Any, columns: Sequence[str] | None = None, **options: Any) -> Any:
        names = self.schema.names if columns is None else list(columns)
        return self._dataset.scanner(names, filter=options.get("filter"), batch_size=options.get("batch_size"))


def json_table(context: SessionContext, dataset: lance.LanceDataset) -> Any:
    """Return a table of DataFusion for a dataset, whose JSON are texts; Lance applies plain filters of a query."""
    return context.read_table(_JsonDataset(dataset)).into_view()


def has_json(schema: pa.Schema) -> bool:
    """Return whether a column of a table, or a field in one, is of Lance's type JSON."""
    return any(_is_json(field.type) for field in schema)


def _is_json(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return kind.extension_name in ("arrow.json", "lance.json")
    return any(_is_json(kind.field(at).type) for at in range(kind.num_fields))
