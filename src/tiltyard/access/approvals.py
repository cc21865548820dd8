"""Operations that need the approval of a second principal, where that is set on their object or above it.

The first call is refused, and makes a request; another principal with `approve` on the object decides; then the same
call of the same caller runs once. What is the same is the operation, the object (by its id) and every field of the
request. A call that is refused, and so has changed nothing, may be repeated; after any other end it needs
a new approval.
"""

from __future__ import annotations

from contextlib import contextmanager
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import msgspec
from lance_namespace.errors import (
    ErrorCode,
    InvalidInputError,
    InvalidTableStateError,
    LanceNamespaceError,
    NamespaceNotFoundError,
    PermissionDeniedError,
    TableNotFoundError,
)

from tiltyard.model.ids import namespace_id, table_id
from tiltyard.model.modes import ProtectionKind
from tiltyard.model.operations import bound_operations
from tiltyard.model.spec import Shape, operations
from tiltyard.model.text.shown_text import shorten
from tiltyard.store.access.grants import NAMESPACE, TABLE
from tiltyard.store.approvals import NewApproval

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tiltyard.context import Context

MAX_SHOWN_CHARACTERS = 4_000
"""Of a request, an approver reads so many characters."""
_TABLES, _NAMESPACES = ("/table/{id}/", "/view/{id}/", "/materialized_view/{id}/"), "/namespace/{id}/"
_NOT_CALLS = ("identity", "context")
_UNCERTAIN = (ErrorCode.SERVICE_UNAVAILABLE, ErrorCode.INTERNAL)
"""Errors after which a change may have been made."""


def check_approvable(name: str) -> str:
    """Return the name of an operation that can be set to need approval. Raises InvalidInputError."""
    operation, handler = bound_operations().get(name, (None, None))
    if operation is None or handler is None:
        raise InvalidInputError(f"There is no operation '{name}'.")
    on_object = any(route in operation.path for route in (*_TABLES, _NAMESPACES))
    is_plain = handler.batch is None and handler.begin is None and operation.request_shape is not Shape.ARROW
    if not (handler.changes and on_object and is_plain):
        raise InvalidInputError(
            f"{name} cannot need approval: only changes of one table or namespace can that bring no rows, and are no "
            "commits of clients."
        )
    return name


def removes_object(name: str) -> bool:
    """Return whether an operation removes its object."""
    handler = bound_operations()[name][1]
    return handler is not None and handler.removes


@contextmanager
def running_approved(ctx: Context, name: str, request: Any) -> Iterator[Context]:
    """Run a block with the context of a call, once it has the approval that it needs, if it needs one.

    Raises PermissionDeniedError for a call that waits for approval, what the block raises.
    """
    if ProtectionKind.APPROVAL not in ctx.services.protections.kinds():
        yield ctx
        return
    found = _find_object(ctx, name, request)
    if found is None or not _needs_approval(ctx, name, *found):
        yield ctx
        return
    with using_approval(ctx, name, *found, request) as approved:
        yield approved


@contextmanager
def using_approval(
    ctx: Context, name: str, kind: str, namespace: int, object_id: int, request: Any
) -> Iterator[Context]:
    """Run a block as the one use of an approval of this call. Raises as `running_approved` does."""
    new = _describe_call(ctx, name, kind, namespace, object_id, request)
    approval = ctx.store.use_approval(new)
    if approval is None:
        raise _refuse(ctx, new)
    try:
        yield msgspec.structs.replace(ctx, approval=approval)
    except LanceNamespaceError as error:
        if error.code not in _UNCERTAIN:
            ctx.store.release_approval(approval)
        raise


def _find_object(ctx: Context, name: str, request: Any) -> tuple[str, int, int] | None:
    """Return the kind of the object of a call, its namespace's id and its own; None without one that exists."""
    path = operations()[name].path
    try:
        if any(route in path for route in _TABLES):
            table = ctx.find_table(table_id(request.id))
            return TABLE, table.namespace_id, table.id
        if _NAMESPACES in path:
            number = ctx.find_namespace(namespace_id(request.id)).id
            return NAMESPACE, number, number
    except (
        TableNotFoundError,
        NamespaceNotFoundError,
        InvalidInputError,
        InvalidTableStateError,
        PermissionDeniedError,
    ):
        return None  # the operation says so; the last two are of an entry below a mount that cannot be used
    return None


def _needs_approval(ctx: Context, name: str, kind: str, namespace: int, object_id: int) -> bool:
    protections = ctx.store.protections_of(namespace, object_id if kind == TABLE else 0)
    return any(
        each.kind == ProtectionKind.APPROVAL and (each.operation == name or (each.removes and removes_object(name)))
        for each in protections
    )


def _describe_call(ctx: Context, name: str, kind: str, namespace: int, object_id: int, request: Any) -> NewApproval:
    fields = {key: value for key, value in msgspec.to_builtins(request).items() if key not in _NOT_CALLS}
    text = msgspec.json.encode(fields, order="sorted").decode()
    digest = sha256(text.encode()).hexdigest()
    shown = shorten(text, MAX_SHOWN_CHARACTERS)
    return NewApproval(name, kind, object_id, namespace, digest, shown, ctx.principal.name)


def _refuse(ctx: Context, new: NewApproval) -> PermissionDeniedError:
    """Request the approval of a call, unless it is requested already; return the error that says so."""
    asked = ctx.store.request_approval(new)
    if asked.approved is False:
        return PermissionDeniedError(
            f"{asked.decided_by} has denied this {new.operation} (request {asked.id}). It can be requested again a day "
            "after the first time."
        )
    return PermissionDeniedError(
        f"{new.operation} needs the approval of a second principal here. It is requested as {asked.id}: once somebody "
        f"with approve on this object has approved it (`tiltyard protect approve {asked.id}`), call it again, alike."
    )
