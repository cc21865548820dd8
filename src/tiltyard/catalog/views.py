"""Operations on views as entries: plain ones, which are queries with a name, and materialized ones.

`tables/views/materialized_views` creates materialized ones. A plain view has no rows: each read runs its query for the
reader, under the reader's own grants and policies (`tables/query/routes/view`). Its name is one of a table, so that
grants, renaming and lists work as for tables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from lance_namespace.errors import InvalidInputError, TableNotFoundError, UnsupportedOperationError

from tiltyard.access.filtered_lists import list_tables
from tiltyard.access.needs import DECLARE_VIEW, SEE_NAMESPACE, creator_for, on_table
from tiltyard.catalog.tables import drop_table
from tiltyard.context import Context
from tiltyard.model.ids import DEFAULT_DELIMITER, Id, namespace_id, table_id
from tiltyard.model.operations import operation
from tiltyard.model.principals import Privilege
from tiltyard.model.schemas.arrow_compat import check_names
from tiltyard.model.schemas.arrow_json import to_json
from tiltyard.model.spec import models
from tiltyard.model.views.definitions import MAX_QUERY_LENGTH, ViewDefinition
from tiltyard.model.views.plain_views import PlainView
from tiltyard.sql.engine import infer_schema
from tiltyard.tables.name_conflicts import prefer_name_conflict
from tiltyard.tables.opening import find_table, open_for_reading
from tiltyard.tables.views.view_columns import describe_columns
from tiltyard.tables.views.view_sources import source_names

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


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
        created_by=ctx.principal.name,
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


@operation(needs=on_table(Privilege.DROP, enforces_policies=True), removes=True)
def drop_view(ctx: Context, request: models.DropViewRequest) -> models.DropViewResponse:
    """Drop a view; the tables that it reads stay. Raises TableNotFoundError, NamespaceNotFoundError."""
    path = table_id(request.id)
    _find_view(ctx, path)
    dropped = drop_table(ctx, models.DropTableRequest(id=list(path)))
    return models.DropViewResponse(transaction_id=dropped.transaction_id or "")


_NAMES_AT_ONCE = 500


@operation(needs=on_table(Privilege.USE), changes=False)
def describe_materialized_view(
    ctx: Context, request: models.DescribeMaterializedViewRequest
) -> models.DescribeMaterializedViewResponse:
    """Describe a materialized view by its query; another one of the same name has another `incarnation`.

    With its query, the columns that refreshes compute besides, the indexes that they extend, and when they begin.

    Raises TableNotFoundError (also for a table that is no view), NamespaceNotFoundError.
    """
    path = table_id(request.id)
    table = open_for_reading(ctx, path)
    definition = ViewDefinition.from_metadata(table.dataset.schema.metadata)
    if definition is None:
        raise TableNotFoundError(f"The table '{path}' is no materialized view.")
    return models.DescribeMaterializedViewResponse(
        source_table=", ".join(_within(ctx.database, name) for name in source_names(definition)),
        query=definition.query,
        kind=definition.kind,
        incarnation=str(table.record.id),
        columns=describe_columns(definition, table.dataset.schema) or None,
        indexes=[msgspec.convert(each, models.CreateTableIndexRequest) for each in definition.index_requests] or None,
        auto_refresh=definition.auto_refresh or None,
        auto_refresh_interval_seconds=definition.refresh_seconds or None,
    )


def _within(database: Id, name: str) -> str:
    """Return the id of a table relative to the request's database, where it is in that."""
    return name.removeprefix(f"{database}{DEFAULT_DELIMITER}") if database else name


@operation(needs=SEE_NAMESPACE, changes=False)
def list_materialized_views(
    ctx: Context, request: models.ListMaterializedViewsRequest
) -> models.ListMaterializedViewsResponse:
    """List the names of the materialized views directly in a namespace. Raises NamespaceNotFoundError."""
    names, token = page_of_views(ctx, request, "materialized views", ctx.store.views_among)
    return models.ListMaterializedViewsResponse(views=names, page_token=token)


def page_of_views(
    ctx: Context,
    request: models.ListMaterializedViewsRequest | models.ListViewsRequest,
    kind: str,
    select: Callable[[int, Sequence[str]], set[str]],
) -> tuple[list[str], str | None]:
    """Return a page of the visible views of a kind directly in a namespace, in the order of their names, and the token
    of the next page, for which the last name is as good.

    `select(namespace id, names)` picks the views among names of tables. Raises NamespaceNotFoundError,
    InvalidInputError.
    """
    path = namespace_id(request.id)
    names, token = ctx.paging.fetch_page(
        f"{kind} {path!r}",
        request.page_token,
        request.limit,
        lambda after, count: _visible_among(ctx, path, after, count, select),
        lambda name: name,
        by_name=True,
    )
    return list(names), token


def _visible_among(
    ctx: Context, path: Id, after: str | None, count: int, select: Callable[[int, Sequence[str]], set[str]]
) -> list[str]:
    """Return up to `count` names of visible tables of a namespace that `select(namespace id, names)` picks."""
    namespace = ctx.store.describe_namespace(path).id
    names: list[str] = []
    while len(names) < count:
        candidates = list_tables(ctx, path, after, _NAMES_AT_ONCE, declared=True)
        selected = select(namespace, candidates)
        names += [name for name in candidates if name in selected]
        if len(candidates) < _NAMES_AT_ONCE:
            break
        after = candidates[-1]
    return names[:count]


@operation(needs=on_table(Privilege.DROP, enforces_policies=True), removes=True)
def drop_materialized_view(
    ctx: Context, request: models.DropMaterializedViewRequest
) -> models.DropMaterializedViewResponse:
    """Drop a materialized view and its rows, as DropTable drops a table; UndropTable can restore it for a while.

    Raises TableNotFoundError (also for a table that is no view), NamespaceNotFoundError, ServiceUnavailableError.
    """
    path = table_id(request.id)
    if ctx.store.describe_view(find_table(ctx, path).id) is None:
        raise TableNotFoundError(f"The table '{path}' is no materialized view.")
    dropped = drop_table(ctx, models.DropTableRequest(id=list(path)))
    return models.DropMaterializedViewResponse(transaction_id=dropped.transaction_id or "")
