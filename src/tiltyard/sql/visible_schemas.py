"""What a reader may read of a table: authorization, and its columns within the policies that bind the reader."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from lance_namespace.errors import InternalError, LanceNamespaceError, ServiceUnavailableError, ThrottlingError

from tiltyard.access.authorization import effective_policy_of
from tiltyard.model.spec import models
from tiltyard.model.views.plain_views import PlainView
from tiltyard.sql.read_grounds import authorize_reading
from tiltyard.sql.row_sources import RowSource
from tiltyard.tables.opening import open_for_reading
from tiltyard.tables.query.plan import NO_LIMIT
from tiltyard.tables.query.query import query_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tiltyard.context import Context
    from tiltyard.model.ids import Id


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
    return opened.dataset.schema if policy is None else restricted_source(ctx, path).schema


def _view_schema(ctx: Context, path: Id) -> pa.Schema:
    """Return the columns of a view that policies leave its reader. Raises what planning the view raises."""
    from tiltyard.sql.engine import infer_view_schema  # the engine reads tables by this module

    return infer_view_schema(ctx, path)


def restricted_source(ctx: Context, path: Id) -> RowSource:
    """Return the rows and columns of a table that policies leave its reader, read as QueryTable reads them."""
    schema = query_table(ctx, models.QueryTableRequest(id=list(path), vector=None, k=0)).schema

    def read(columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        requested = models.QueryTableColumns(column_names=list(columns))
        request = models.QueryTableRequest(id=list(path), vector=None, k=NO_LIMIT, columns=requested)
        yield from query_table(ctx, request).batches

    return RowSource(schema, read)
