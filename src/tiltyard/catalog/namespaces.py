"""Operations on namespaces: create, list, describe, check and drop them."""

from __future__ import annotations

from lance_namespace.errors import InvalidInputError, NamespaceAlreadyExistsError, NamespaceNotFoundError

from tiltyard.access.filtered_lists import list_namespaces as visible_namespaces
from tiltyard.access.needs import CREATE_NAMESPACE, DROP_NAMESPACE, SEE_NAMESPACE, creator_for, on_namespace
from tiltyard.catalog.garbage import DELETE_FOLDERS
from tiltyard.catalog.mounts import namespaces as mounted_namespaces
from tiltyard.context import Context
from tiltyard.model.ids import Id, namespace_id
from tiltyard.model.modes import CreateMode, DropBehavior, DropMode, parse_mode
from tiltyard.model.modes import TransactionStatus as Status
from tiltyard.model.operations import always, operation
from tiltyard.model.paging import namespaces_scope
from tiltyard.model.principals import Privilege
from tiltyard.model.spec import models
from tiltyard.store import UnitOfWork
from tiltyard.store.repository import namespace_not_found

DROP_KIND = "drop_namespace"
"""The kind of the transaction of a cascading drop whose data is kept for a while."""


@operation(needs=CREATE_NAMESPACE, below_mount=mounted_namespaces.create_namespace)
def create_namespace(ctx: Context, request: models.CreateNamespaceRequest) -> models.CreateNamespaceResponse:
    """Create a namespace below an existing one.

    Overwrite drops the existing one with its contents, which UndropNamespace can restore for a while. Raises
    NamespaceAlreadyExistsError, NamespaceNotFoundError (the parent), InvalidInputError.
    """
    path = namespace_id(request.id)
    mode = parse_mode(CreateMode, request.mode, CreateMode.CREATE)
    if not path:
        if mode is CreateMode.EXIST_OK:
            return models.CreateNamespaceResponse(properties=ctx.store.describe_namespace(path).properties)
        if mode is CreateMode.CREATE:
            raise NamespaceAlreadyExistsError("The root namespace always exists.")
        raise InvalidInputError("The root namespace cannot be overwritten: name a namespace in it.")
    keep_ms, creator = ctx.settings.retention_ms, creator_for(ctx, path.parent)
    parent_id = ctx.resolved_namespace_id(path.parent)

    def work(catalog: UnitOfWork) -> models.CreateNamespaceResponse:
        record = catalog.create_namespace(path, request.properties or {}, mode, keep_ms, creator, parent_id)
        return models.CreateNamespaceResponse(properties=record.properties)

    return ctx.transact(work)


@operation(
    needs=SEE_NAMESPACE,
    inline=always,
    changes=False,
    below_mount=mounted_namespaces.list_namespaces,
)
def list_namespaces(ctx: Context, request: models.ListNamespacesRequest) -> models.ListNamespacesResponse:
    """List the names of the namespaces directly in one; a page goes on after a token, or after a last name.

    Raises NamespaceNotFoundError, InvalidInputError.
    """
    path = namespace_id(request.id)
    names, token = ctx.paging.fetch_page(
        namespaces_scope(path),
        request.page_token,
        request.limit,
        lambda after, count: visible_namespaces(ctx, path, after, count),
        lambda name: name,
        by_name=True,
    )
    return models.ListNamespacesResponse(namespaces=list(names), page_token=token)


@operation(
    needs=on_namespace(Privilege.USE),
    inline=always,
    changes=False,
    below_mount=mounted_namespaces.describe_namespace,
)
def describe_namespace(ctx: Context, request: models.DescribeNamespaceRequest) -> models.DescribeNamespaceResponse:
    """Describe a namespace by its properties. Raises NamespaceNotFoundError, InvalidInputError."""
    path = namespace_id(request.id)
    record = ctx.store.describe_namespace(path)
    if ctx.resolved_namespace_id(path) not in (None, record.id):  # it was replaced after the check
        raise namespace_not_found(path)
    return models.DescribeNamespaceResponse(properties=record.properties)


@operation(needs=SEE_NAMESPACE, inline=always, changes=False, below_mount=mounted_namespaces.namespace_exists)
def namespace_exists(ctx: Context, request: models.NamespaceExistsRequest) -> None:
    """Check that a namespace exists. Raises NamespaceNotFoundError if not, InvalidInputError."""
    ctx.store.describe_namespace(namespace_id(request.id))


@operation(needs=DROP_NAMESPACE, below_mount=mounted_namespaces.drop_namespace, removes=True)
def drop_namespace(ctx: Context, request: models.DropNamespaceRequest) -> models.DropNamespaceResponse:
    """Drop a namespace; Cascade drops its contents, too, at once, and deletes the data in a transaction.

    For `retention_days` UndropNamespace can restore what a Cascade dropped: the data is deleted after that.
    Raises NamespaceNotFoundError (not with Skip), NamespaceNotEmptyError (with Restrict), InvalidInputError.
    """
    path = namespace_id(request.id)
    mode = parse_mode(DropMode, request.mode, DropMode.FAIL)
    behavior = parse_mode(DropBehavior, request.behavior, DropBehavior.RESTRICT, "behavior")
    if not path:
        raise InvalidInputError("The root namespace cannot be dropped.")
    try:
        if behavior is DropBehavior.CASCADE:
            return _drop_cascade(ctx, path)
        return _drop_empty(ctx, path)
    except NamespaceNotFoundError:
        if mode is DropMode.SKIP:
            return models.DropNamespaceResponse()
        raise


def _drop_empty(ctx: Context, path: Id) -> models.DropNamespaceResponse:
    expected_id = ctx.resolved_namespace_id(path)
    return ctx.transact(
        lambda catalog: models.DropNamespaceResponse(
            properties=catalog.drop_namespace(
                path, expected_id=expected_id, approved=ctx.approval is not None
            ).properties
        )
    )


def _drop_cascade(ctx: Context, path: Id) -> models.DropNamespaceResponse:
    """Remove all records and mark the folders in one transaction; a job deletes those, or a sweep once they are due."""
    keep_ms, expected_id = ctx.settings.retention_ms, ctx.resolved_namespace_id(path)

    def work(catalog: UnitOfWork) -> models.DropNamespaceResponse:
        kind, status = (DROP_KIND, Status.SUCCEEDED) if keep_ms else (DELETE_FOLDERS, Status.QUEUED)
        payload = {"namespace": list(path)}
        parent_id = catalog.describe_namespace(path.parent).id
        transaction = catalog.create_transaction(
            kind,
            None,
            payload,
            {},
            status,
            requested_by=ctx.principal.name,
            namespace_id=parent_id,
            is_limited=False,  # it frees what others are full of
        )
        dropped = catalog.drop_namespace(
            path,
            cascade=True,
            transaction_id=transaction.id,
            keep_ms=keep_ms,
            expected_id=expected_id,
            approved=ctx.approval is not None,
        )
        return models.DropNamespaceResponse(properties=dropped.properties, transaction_id=[transaction.id])

    return ctx.transact(work)
