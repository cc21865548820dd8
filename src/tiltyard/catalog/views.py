"""Operations on plain views: create, describe, list and drop queries that have a name.

A view has no rows: each read runs its query for the reader, under the reader's own grants and policies
(`tables/query/view_rows`). Its name is one of a table, so that grants, renaming and lists work as for tables.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
from lance_namespace.errors import InvalidInputError, TableNotFoundError, UnsupportedOperationError

from tiltyard.access.needs import DECLARE_VIEW, SEE_NAMESPACE, creator_for, on_table
from tiltyard.catalog.materialized_views import page_of_views
from tiltyard.catalog.tables import drop_table
from tiltyard.context import Context
from tiltyard.model.ids import Id, table_id
from tiltyard.model.operations import operation
from tiltyard.model.privileges import Privilege
from tiltyard.model.schemas.arrow_compat import check_names
from tiltyard.model.schemas.arrow_json import to_json
from tiltyard.model.spec import models
from tiltyard.model.views.definitions import MAX_QUERY_LENGTH
from tiltyard.model.views.plain_views import PlainView
from tiltyard.sql.engine import infer_schema
from tiltyard.tables.name_conflicts import prefer_name_conflict
from tiltyard.tables.opening import find_table


@operation(needs=DECLARE_VIEW)
def create_view(ctx: Context, request: models.CreateViewRequest) -> models.CreateViewResponse:
    """Give a query a name. It reads tables and other views, and is planned for the caller, to infer its schema.

    Raises NamespaceNotFoundError, TableAlreadyExistsError, InvalidInputError, UnsupportedOperationError (below a mount;
    a query that does more than read), TableNotFoundError and PermissionDeniedError for the tables of the query.
    """
    path = table_id(request.id)
    with prefer_name_conflict(ctx, path):
        if ctx.services.mounts.find(path) is not None:
            raise UnsupportedOperationError("Views are not created below a mount: create them in this catalog.")
        view = PlainView(request.query, _infer_schema(ctx, request.query), ctx.database)
    ctx.store.insert_table(
        path,
        ctx.storage.new_location(path),
        view.properties(),
        declared=True,
        creator=creator_for(ctx, path.parent),
        expected_parent_id=ctx.resolved_namespace_id(path.parent),
    )
    return models.CreateViewResponse(**_description(path, view))


def _infer_schema(ctx: Context, query: str) -> pa.Schema:
    """Return the schema of a query's rows. Raises as `create_view` does."""
    if len(query) > MAX_QUERY_LENGTH:
        raise InvalidInputError(f"A view's query has at most {MAX_QUERY_LENGTH} characters, not {len(query)}.")
    schema = infer_schema(msgspec.structs.replace(ctx, resolved=None), query, is_view=True)
    if len(set(schema.names)) < len(schema.names) or not schema.names:
        raise InvalidInputError("The columns of a view have names of their own: write `… AS name`.")
    check_names(schema)
    return schema


def _description(path: Id, view: PlainView) -> dict[str, Any]:
    return {
        "name": path.name,
        "namespace": list(path.parent),
        "query": view.query,
        "default_database": str(view.database) if view.database else "",
        "default_namespace": [],
        "schema": to_json(view.schema),
    }


def _find_view(ctx: Context, path: Id) -> PlainView:
    """Return a view. Raises TableNotFoundError, also for a table that is no view."""
    view = PlainView.from_properties(find_table(ctx, path).properties)
    if view is None:
        raise TableNotFoundError(f"The table '{path}' is no view.")
    return view


@operation(needs=on_table(Privilege.USE), changes=False)
def describe_view(ctx: Context, request: models.DescribeViewRequest) -> models.DescribeViewResponse:
    """Describe a view by its query, and the schema that it had when it was created.

    Raises TableNotFoundError (also for a table that is no view), NamespaceNotFoundError.
    """
    path = table_id(request.id)
    return models.DescribeViewResponse(**_description(path, _find_view(ctx, path)))


@operation(needs=SEE_NAMESPACE, changes=False)
def list_views(ctx: Context, request: models.ListViewsRequest) -> models.ListViewsResponse:
    """List the names of the views directly in a namespace. Raises NamespaceNotFoundError."""
    names, token = page_of_views(ctx, request, "views", ctx.store.plain_views_among)
    return models.ListViewsResponse(views=names, page_token=token)


@operation(needs=on_table(Privilege.DROP, enforces_policies=True))
def drop_view(ctx: Context, request: models.DropViewRequest) -> models.DropViewResponse:
    """Drop a view; the tables that it reads stay. Raises TableNotFoundError, NamespaceNotFoundError."""
    path = table_id(request.id)
    _find_view(ctx, path)
    dropped = drop_table(ctx, models.DropTableRequest(id=list(path)))
    return models.DropViewResponse(transaction_id=dropped.transaction_id or "")
