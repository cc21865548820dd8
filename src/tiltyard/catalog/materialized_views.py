"""Operations on materialized views as entries: describe, list and drop them. `tables/schema/views` creates them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from lance_namespace.errors import TableNotFoundError

from tiltyard.access.filtered_lists import list_tables
from tiltyard.access.needs import SEE_NAMESPACE, on_table
from tiltyard.catalog.tables import drop_table
from tiltyard.model.ids import DEFAULT_DELIMITER, namespace_id, table_id
from tiltyard.model.operations import operation
from tiltyard.model.privileges import Privilege
from tiltyard.model.spec import models
from tiltyard.model.views.definitions import ViewDefinition
from tiltyard.tables.opening import find_table, open_for_reading
from tiltyard.tables.schema.view_columns import describe_columns
from tiltyard.tables.schema.view_sources import source_names

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tiltyard.context import Context
    from tiltyard.model.ids import Id

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


@operation(needs=on_table(Privilege.DROP, enforces_policies=True))
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
