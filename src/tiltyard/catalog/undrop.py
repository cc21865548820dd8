"""List and restore dropped tables and namespaces, for as long as they are kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lance_namespace.errors import InvalidInputError

from tiltyard.access.filtered_lists import inline_unless_many_grants, list_removed_namespaces, list_removed_tables
from tiltyard.access.needs import ANY_CALLER, UNDROP_NAMESPACE, UNDROP_TABLE, target_namespace
from tiltyard.catalog.mounts.tables import refuse_undrop
from tiltyard.model.ids import namespace_id, table_id
from tiltyard.model.operations import operation
from tiltyard.model.spec import models

if TYPE_CHECKING:
    from tiltyard.context import Context
    from tiltyard.store import UnitOfWork

DROPPED, DEREGISTERED = "dropped", "deregistered"


@operation(needs=ANY_CALLER, inline=inline_unless_many_grants, changes=False)
def list_dropped_tables(ctx: Context, request: models.ListDroppedTablesRequest) -> models.ListDroppedTablesResponse:
    """List the tables that UndropTable can restore, newest first. Raises InvalidInputError."""
    removals, token = ctx.paging.fetch_page(
        "dropped tables",
        request.page_token,
        request.limit,
        lambda before, count: list_removed_tables(ctx, before, count),
        lambda removed: (removed.removed_at, removed.id),
    )
    tables = [
        models.DroppedTable(
            id=[*removed.namespace, removed.name],
            dropped_id=removed.id,
            kind=DROPPED if removed.dropped else DEREGISTERED,
            location=removed.location,
            removed_at_millis=removed.removed_at,
            due_at_millis=removed.due_at,
        )
        for removed in removals
    ]
    return models.ListDroppedTablesResponse(tables=tables, page_token=token)


@operation(needs=ANY_CALLER, inline=inline_unless_many_grants, changes=False)
def list_dropped_namespaces(
    ctx: Context, request: models.ListDroppedNamespacesRequest
) -> models.ListDroppedNamespacesResponse:
    """List the namespaces that UndropNamespace can restore, newest first. Raises InvalidInputError."""
    removals, token = ctx.paging.fetch_page(
        "dropped namespaces",
        request.page_token,
        request.limit,
        lambda before, count: list_removed_namespaces(ctx, before, count),
        lambda removed: (removed.removed_at, removed.id),
    )
    namespaces = [
        models.DroppedNamespace(
            id=list(removed.path),
            dropped_id=removed.id,
            removed_at_millis=removed.removed_at,
            due_at_millis=removed.due_at,
        )
        for removed in removals
    ]
    return models.ListDroppedNamespacesResponse(namespaces=namespaces, page_token=token)


@operation(needs=UNDROP_TABLE, below_mount=refuse_undrop)
def undrop_table(ctx: Context, request: models.UndropTableRequest) -> models.UndropTableResponse:
    """Restore a table that was dropped, deregistered or replaced: its data, properties, versions, under its name.

    Of several tables of the name it is the one removed last, unless `dropped_id` says which. Raises TableNotFoundError
    (none is kept, or no longer), NamespaceNotFoundError, TableAlreadyExistsError (the name is taken: give
    another), InvalidInputError (its location was registered again).
    """
    path = table_id(request.id)
    parent = target_namespace(path, request.new_namespace_id)
    name = path.name if request.new_table_name is None else request.new_table_name
    new_path = table_id([*parent, name])
    expected_parent_id = ctx.resolved_namespace_id(parent)

    def work(catalog: UnitOfWork) -> models.UndropTableResponse:
        record = catalog.restore_table(path, new_path, request.dropped_id, expected_parent_id=expected_parent_id)
        return models.UndropTableResponse(id=list(new_path), location=record.location, properties=record.properties)

    response = ctx.transact(work)
    ctx.rights_cache.refresh_next()
    ctx.storage.datasets.evict(response.location)
    return response


@operation(needs=UNDROP_NAMESPACE, below_mount=refuse_undrop)
def undrop_namespace(ctx: Context, request: models.UndropNamespaceRequest) -> models.UndropNamespaceResponse:
    """Restore a namespace that was dropped by Cascade, or overwritten, with its contents.

    `new_namespace_id` gives it another name or parent. Raises NamespaceNotFoundError (none is kept, or no longer, or
    its parent is missing), NamespaceAlreadyExistsError (the name is taken), InvalidInputError (the root).
    """
    path = namespace_id(request.id)
    new_path = path if request.new_namespace_id is None else namespace_id(request.new_namespace_id)
    if not path or not new_path:
        raise InvalidInputError("The root namespace is never dropped: name a namespace in it.")
    parent_id = ctx.resolved_namespace_id(new_path.parent)

    def work(catalog: UnitOfWork) -> models.UndropNamespaceResponse:
        record, tables = catalog.restore_namespace(path, new_path, request.dropped_id, expected_parent_id=parent_id)
        return models.UndropNamespaceResponse(id=list(new_path), properties=record.properties, tables=tables)

    return ctx.transact(work)
