"""Operations on tables as entries of the catalog: declare, register, describe, list, rename, deregister and drop."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import msgspec
from lance_namespace.errors import (
    InvalidTableStateError,
    TableVersionNotFoundError,
)

from tiltyard.access.authorization import effective_policy_of
from tiltyard.access.filtered_lists import inline_unless_many_namespaces
from tiltyard.access.filtered_lists import list_all_tables as all_visible_tables
from tiltyard.access.filtered_lists import list_tables as visible_tables
from tiltyard.access.needs import (
    ANY_CALLER,
    DECLARE_TABLE,
    REGISTER_TABLE,
    RENAME_TABLE,
    SEE_NAMESPACE,
    creator_for,
    on_table,
    target_namespace,
)
from tiltyard.catalog.garbage import delete_dropped_table
from tiltyard.catalog.mounts import tables as mounted_tables
from tiltyard.context import Context
from tiltyard.model.branches import Branch
from tiltyard.model.ids import DEFAULT_DELIMITER, Id, namespace_id, table_id
from tiltyard.model.modes import RegisterMode, TransactionStatus, parse_mode
from tiltyard.model.operations import always, operation
from tiltyard.model.paging import fetch_chosen, tables_scope
from tiltyard.model.principals import Privilege
from tiltyard.model.schemas.arrow_json import to_json
from tiltyard.model.schemas.fields import metadata_texts
from tiltyard.model.spec import models
from tiltyard.model.views.plain_views import QUERY_PROPERTY, PlainView
from tiltyard.storage.locations import is_relative
from tiltyard.store import ListedTable, TableRecord, UnitOfWork
from tiltyard.tables.credentials import may_call_provider, storage_options
from tiltyard.tables.name_conflicts import prefer_name_conflict
from tiltyard.tables.opening import find_table, open_for_reading
from tiltyard.tables.query.routes.view import VIEW_VERSION
from tiltyard.tables.schema.stats import basic_stats
from tiltyard.tables.versions.records import new_is_managed, registered_is_managed
from tiltyard.tables.views.view_sources import source_version_properties
from tiltyard.upkeep.thresholds import upkeep_options

DROP_TABLE = "drop_table"
"""The kind of the transactions that record drops."""


@operation(needs=DECLARE_TABLE, below_mount=mounted_tables.declare_table)
def declare_table(ctx: Context, request: models.DeclareTableRequest) -> models.DeclareTableResponse:
    """Reserve a name and a location; the table has no data yet.

    Raises TableAlreadyExistsError, NamespaceNotFoundError, InvalidInputError (a location outside the roots, or taken).
    """
    path = table_id(request.id)
    requested = request.location
    with prefer_name_conflict(ctx, path):
        location = ctx.storage.check_location(requested) if requested else ctx.storage.new_location(path)
        managed = new_is_managed(ctx, path, request.properties)
        upkeep_options(request.properties or {}, ctx.settings.keep_versions_days)
    record = ctx.store.insert_table(
        path,
        location,
        request.properties or {},
        managed=managed,
        declared=True,
        registered=bool(requested),
        creator=creator_for(ctx, path.parent),
        created_by=ctx.principal.name,
        expected_parent_id=ctx.resolved_namespace_id(path.parent),
    )
    return models.DeclareTableResponse(
        location=record.location,
        storage_options=storage_options(ctx, record, request.vend_credentials),
        properties=record.properties,
        managed_versioning=record.managed,
    )


@operation(needs=DECLARE_TABLE, below_mount=mounted_tables.create_empty_table)
def create_empty_table(ctx: Context, request: models.CreateEmptyTableRequest) -> models.CreateEmptyTableResponse:
    """Declare a table: the older name of DeclareTable."""
    response = declare_table(ctx, msgspec.convert(request, models.DeclareTableRequest, from_attributes=True))
    return models.CreateEmptyTableResponse(
        location=response.location, storage_options=response.storage_options, properties=response.properties
    )


@operation(needs=REGISTER_TABLE, below_mount=mounted_tables.register_table)
def register_table(ctx: Context, request: models.RegisterTableRequest) -> models.RegisterTableResponse:
    """Register a table that exists at a location, which may be relative to the server's root.

    The response has a relative location as the request has it. Raises TableAlreadyExistsError (not with Overwrite,
    which points the name at the new location and leaves the old data), NamespaceNotFoundError, InvalidInputError (no
    table there, outside the roots, or taken by another name; or its files are outside the roots), what opening a table
    raises.
    """
    path = table_id(request.id)
    mode = parse_mode(RegisterMode, request.mode, RegisterMode.CREATE)
    properties, creator, parent_id = (
        request.properties or {},
        creator_for(ctx, path.parent),
        ctx.resolved_namespace_id(path.parent),
    )
    with prefer_name_conflict(ctx, path) if mode is RegisterMode.CREATE else nullcontext():
        location, bases = ctx.storage.check_table(request.location)
        managed = registered_is_managed(properties)

    def work(catalog: UnitOfWork) -> models.RegisterTableResponse:
        if mode is RegisterMode.OVERWRITE:
            keep_ms = ctx.settings.retention_ms
            record = catalog.replace_registration(
                path,
                location,
                properties,
                managed=managed,
                keep_ms=keep_ms,
                creator=creator,
                created_by=ctx.principal.name,
                expected_parent_id=parent_id,
            )
        else:
            record = catalog.insert_table(
                path,
                location,
                properties,
                managed=managed,
                registered=True,
                creator=creator,
                created_by=ctx.principal.name,
                expected_parent_id=parent_id,
            )
        for base in bases:
            catalog.add_clone(record.id, base)
        location_shown = request.location if is_relative(request.location) else record.location
        return models.RegisterTableResponse(location=location_shown, properties=record.properties)

    return ctx.transact(work)


def _reads_catalog_only(ctx: Context, request: models.DescribeTableRequest) -> bool:
    """Return whether a description needs nothing from storage."""
    return not (
        request.load_detailed_metadata
        or request.check_declared
        or request.version is not None
        or request.tag
        or request.branch
    )


def _inline_description(ctx: Context, request: models.DescribeTableRequest) -> Context | None:
    """Return the context, as `inline`, for a description that takes only a few reads of the catalog."""
    return ctx if _reads_catalog_only(ctx, request) and not may_call_provider(ctx, request.vend_credentials) else None


@operation(needs=on_table(Privilege.USE, enforces_policies=True), inline=_inline_description, changes=False)
def describe_table(ctx: Context, request: models.DescribeTableRequest) -> models.DescribeTableResponse:
    """Describe a table's location and properties; with details its version, schema and statistics, too.

    Details are read where `load_detailed_metadata` is set, or a version, tag or branch is named. A table that is only
    declared has none. Raises NamespaceNotFoundError, TableNotFoundError, TableVersionNotFoundError,
    TableTagNotFoundError, TableBranchNotFoundError, InvalidInputError.
    """
    path = table_id(request.id)
    record = ctx.find_table(path)
    view = PlainView.from_properties(record.properties) if QUERY_PROPERTY in record.properties else None
    if view is not None:
        return _view_description(path, record, view)
    response = models.DescribeTableResponse(
        table=path.name,
        namespace=list(path.parent),
        location=record.location,
        table_uri=ctx.storage.table_uri(record.location) if request.with_table_uri else None,
        storage_options=storage_options(ctx, record, request.vend_credentials),
        properties=record.properties,
        managed_versioning=record.managed,
    )
    if not _reads_catalog_only(ctx, request):
        response.is_only_declared = _is_only_declared(ctx, record)
        if not response.is_only_declared and (request.load_detailed_metadata or not request.check_declared):
            _add_details(ctx, request, response)
        elif request.version is not None or request.tag or request.branch:
            raise TableVersionNotFoundError("This table has no versions yet: it is only declared.")
    return response


def _view_description(path: Id, record: TableRecord, view: PlainView) -> models.DescribeTableResponse:
    """Describe a view as a table that has no location: clients read it by the server alone."""
    return models.DescribeTableResponse(
        table=path.name,
        namespace=list(path.parent),
        version=VIEW_VERSION,
        schema=to_json(view.schema),
        properties=record.properties,
    )


def _is_only_declared(ctx: Context, record: TableRecord) -> bool:
    """Return whether a table has no data; a declared one may have been written to, at its location, since then."""
    if not record.declared:
        return False
    if not ctx.storage.has_table(record.location):
        return True
    ctx.store.mark_written(record.id)
    return False


def _add_details(ctx: Context, request: models.DescribeTableRequest, response: models.DescribeTableResponse) -> None:
    branch = Branch.parse(request.branch)
    table = open_for_reading(ctx, request.id, branch=branch, version=request.version, tag=request.tag)
    dataset = table.dataset
    response.version = dataset.version
    response.schema = to_json(dataset.schema)
    if effective_policy_of(ctx, table.record) is None:
        response.stats = basic_stats(dataset)  # which disclose rows
    response.metadata = metadata_texts(dataset.schema.metadata)
    sources = source_version_properties(ctx, table.record, branch, table.snapshot)
    response.properties = {**(response.properties or {}), **sources}


def _inline_without_version(ctx: Context, request: models.TableExistsRequest) -> Context | None:
    """Return the context, as `inline`, for a request without a version, which takes a look at storage."""
    return ctx if request.version is None else None


@operation(needs=on_table(Privilege.USE, enforces_policies=True), inline=_inline_without_version, changes=False)
def table_exists(ctx: Context, request: models.TableExistsRequest) -> None:
    """Check that a table exists, at a version if one is named.

    Raises NamespaceNotFoundError, TableNotFoundError, TableVersionNotFoundError, InvalidInputError.
    """
    if request.version is None:
        find_table(ctx, request.id)
        return
    try:
        open_for_reading(ctx, request.id, version=request.version)
    except InvalidTableStateError as error:
        raise TableVersionNotFoundError("This table has no versions yet: it is only declared.") from error


@operation(
    needs=SEE_NAMESPACE,
    inline=always,
    changes=False,
    below_mount=mounted_tables.list_tables,
)
def list_tables(ctx: Context, request: models.ListTablesRequest) -> models.ListTablesResponse:
    """List the names of the tables directly in a namespace; a page goes on after a token, or after a last name.

    Raises NamespaceNotFoundError, InvalidInputError.
    """
    path = namespace_id(request.id)
    declared = request.include_declared is not False
    names, token = ctx.paging.fetch_page(
        tables_scope(path),
        request.page_token,
        request.limit,
        lambda after, count: visible_tables(ctx, path, after, count, declared),
        lambda name: name,
        by_name=True,
    )
    return models.ListTablesResponse(tables=list(names), page_token=token)


def _inline_without_database(ctx: Context, request: models.ListAllTablesRequest) -> Context | None:
    """Return the context, as `inline`, for a list of all tables: for those of a database all are read."""
    return None if ctx.database else inline_unless_many_namespaces(ctx, request)


@operation(needs=ANY_CALLER, inline=_inline_without_database, changes=False)
def list_all_tables(ctx: Context, request: models.ListAllTablesRequest) -> models.ListTablesResponse:
    """List the full ids of all tables, or of those in a database, their names joined by `delimiter`.

    Raises InvalidInputError.
    """
    declared = request.include_declared is not False
    entries, token = ctx.paging.fetch_page(
        f"all tables {ctx.database}" if ctx.database else "all tables",
        request.page_token,
        request.limit,
        lambda after, count: _tables_of_database(ctx, after, count, declared),
        _key_of,
    )
    delimiter = request.delimiter or DEFAULT_DELIMITER
    return models.ListTablesResponse(
        tables=[delimiter.join((*entry.namespace[len(ctx.database) :], entry.name)) for entry in entries],
        page_token=token,
    )


def _tables_of_database(
    ctx: Context, after: tuple[int, str] | None, count: int, declared: bool
) -> Sequence[ListedTable]:
    """Return the next tables of the request's database."""
    depth = len(ctx.database)
    return fetch_chosen(
        lambda after, count: all_visible_tables(ctx, after, count, declared),
        after,
        count,
        _key_of,
        lambda page: (entry for entry in page if entry.namespace[:depth] == ctx.database),
    )


def _key_of(entry: ListedTable) -> tuple[int, str]:
    return entry.namespace_id, entry.name


@operation(needs=RENAME_TABLE, below_mount=mounted_tables.rename_table)
def rename_table(ctx: Context, request: models.RenameTableRequest) -> models.RenameTableResponse:
    """Give a table another name, and another namespace if one is named; its data stays where it is.

    Raises TableNotFoundError, NamespaceNotFoundError, TableAlreadyExistsError, InvalidInputError.
    """
    path = table_id(request.id)
    parent = target_namespace(path, request.new_namespace_id)
    new_path = table_id([*parent, request.new_table_name])
    mounted_tables.check_rename(ctx, new_path)
    expected_id, expected_parent_id = ctx.resolved_table_id(path), ctx.resolved_namespace_id(parent)

    def work(catalog: UnitOfWork) -> models.RenameTableResponse:
        catalog.rename_table(path, new_path, expected_id=expected_id, expected_parent_id=expected_parent_id)
        return models.RenameTableResponse()

    response = ctx.transact(work)
    ctx.rights_cache.refresh_next()
    return response


@operation(
    needs=on_table(Privilege.DROP, enforces_policies=True), below_mount=mounted_tables.deregister_table, removes=True
)
def deregister_table(ctx: Context, request: models.DeregisterTableRequest) -> models.DeregisterTableResponse:
    """Remove a table from the catalog and leave its data; UndropTable can restore the entry for a while.

    Raises NamespaceNotFoundError, TableNotFoundError.
    """
    path = table_id(request.id)
    expected_id, keep_ms = ctx.resolved_table_id(path), ctx.settings.retention_ms

    def work(catalog: UnitOfWork) -> models.DeregisterTableResponse:
        record = catalog.remove_table(
            path, delete_folder=False, keep_ms=keep_ms, expected_id=expected_id, approved=ctx.approval is not None
        )
        return models.DeregisterTableResponse(id=list(path), location=record.location, properties=record.properties)

    response = ctx.transact(work)
    ctx.storage.datasets.evict(str(response.location))
    return response


@operation(needs=on_table(Privilege.DROP, enforces_policies=True), below_mount=mounted_tables.drop_table, removes=True)
def drop_table(ctx: Context, request: models.DropTableRequest) -> models.DropTableResponse:
    """Drop a table and delete its data: at once, or after `retention_days`, in which UndropTable can restore it.

    The record is removed first, and the folder marked: what a crash leaves is deleted by the next sweep. Raises
    NamespaceNotFoundError, TableNotFoundError, ServiceUnavailableError (the storage does not answer; the table is
    dropped, its data is deleted later).
    """
    path = table_id(request.id)
    expected_id, keep_ms = ctx.resolved_table_id(path), ctx.settings.retention_ms

    def work(catalog: UnitOfWork) -> models.DropTableResponse:
        record = catalog.remove_table(
            path, delete_folder=True, keep_ms=keep_ms, expected_id=expected_id, approved=ctx.approval is not None
        )
        properties = {"table": str(path)}
        dropped = catalog.create_transaction(
            DROP_TABLE,
            None,
            {},
            properties,
            TransactionStatus.SUCCEEDED,
            requested_by=ctx.principal.name,
            namespace_id=record.namespace_id,
        )
        return models.DropTableResponse(
            transaction_id=dropped.id, id=list(path), location=record.location, properties=record.properties
        )

    response = ctx.transact(work)
    location = str(response.location)
    if keep_ms:
        ctx.storage.datasets.evict(location)
    else:
        delete_dropped_table(ctx, location)
    return response
