"""Authorize the caller on namespaces and tables. An object that the caller cannot see does not exist, word for word.

A caller sees an object on which, or on a namespace above which, it has any privilege. It sees the namespaces on the
path to such an object, too: their names, and no more. Every caller sees the root namespace.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lance_namespace.errors import (
    InvalidTableStateError,
    LanceNamespaceError,
    NamespaceNotFoundError,
    PermissionDeniedError,
    TableNotFoundError,
)
from msgspec import structs

from tiltyard.access.policies import policy_denial
from tiltyard.model.decisions import asked_object
from tiltyard.model.principals import ALL, Privilege, privilege_names
from tiltyard.store.access.grants import NAMESPACE, SERVER, TABLE
from tiltyard.store.repository import ROOT, namespace_not_found, table_not_found

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tiltyard.access.policies import EffectivePolicy
    from tiltyard.access.rights import Rights
    from tiltyard.context import Context
    from tiltyard.model.ids import Id
    from tiltyard.model.principals import Principal
    from tiltyard.store import TableRecord

_ALL_PRIVILEGES = Privilege(ALL)
_USE = Privilege.USE.value


def caller_rights(ctx: Context) -> Rights:
    """Return the caller's rights; not for administrators, who have all. Raises ServiceUnavailableError."""
    rights: Rights = ctx.rights_cache.get(ctx.principal)
    return rights


def is_administrator(ctx: Context) -> bool:
    """Return whether the caller has all privileges: as an administrator, or by a grant on the server."""
    return ctx.principal.administrator or bool(caller_rights(ctx).server & Privilege.ADMINISTER)


def effective_policy_of(ctx: Context, record: TableRecord) -> EffectivePolicy | None:
    """Return the row filter and column masks that bind the caller on a table; None where no policy does.

    Raises ServiceUnavailableError, PermissionDeniedError (a policy that cannot be applied).
    """
    if ctx.principal.administrator:
        return None
    return caller_rights(ctx).effective_policy(record.id)


def table_privileges(ctx: Context, record: TableRecord) -> Privilege:
    """Return the caller's privileges on a table. Raises ServiceUnavailableError."""
    if ctx.principal.administrator:
        return _ALL_PRIVILEGES
    return Privilege(caller_rights(ctx).on_table(record.id, record.namespace_id))


def require_decision(ctx: Context, kind: str, path: Sequence[str], privileges: int) -> None:
    """Check that services outside, if there are any, allow privileges that the caller has on an object by its rights.

    Raises PermissionDeniedError, ServiceUnavailableError.
    """
    if ctx.services.decisions is not None:
        ctx.services.decisions.require(ctx, kind, path, privileges)


def allowed_outside(ctx: Context, kind: str, paths: Sequence[Sequence[str]], privileges: int = _USE) -> list[bool]:
    """Return on which objects services outside, if there are any, allow privileges: all are asked about in one go.

    Raises ServiceUnavailableError.
    """
    return are_objects_allowed(ctx, [(kind, path) for path in paths], privileges)


def are_objects_allowed(
    ctx: Context, objects: Sequence[tuple[str, Sequence[str]]], privileges: int = _USE
) -> list[bool]:
    """Return the same for objects by their kinds and paths."""
    if ctx.services.decisions is None:
        return [True] * len(objects)
    return ctx.services.decisions.allowed(ctx, [asked_object(kind, tuple(path), privileges) for kind, path in objects])


def are_allowed_outside(ctx: Context, kind: str, object_ids: Sequence[int], privileges: int = _USE) -> list[bool]:
    """Return the same for objects by their ids, which are not allowed where they have no name any more."""
    if ctx.services.decisions is None:
        return [True] * len(object_ids)
    paths = [ctx.store.object_path(kind, object_id) for object_id in object_ids]
    allowed = iter(allowed_outside(ctx, kind, [path for path in paths if path is not None], privileges))
    return [path is not None and next(allowed) for path in paths]


def is_allowed_outside(ctx: Context, kind: str, object_id: int, privileges: int = _USE) -> bool:
    """Return the same for one object."""
    return are_allowed_outside(ctx, kind, [object_id], privileges)[0]


def refresh_principal(ctx: Context, principal: Principal) -> Principal:
    """Return the principal of an earlier request as it is now: it may be no administrator any more.

    Its name stays, and so do its groups, which only a token can change. Raises PermissionDeniedError for a principal
    that was disabled.
    """
    record = ctx.store.describe_principal(principal.name)
    if record is None:
        return principal
    if record.disabled:
        raise PermissionDeniedError(f"The principal '{principal.name}' is disabled.")
    return structs.replace(principal, administrator=record.administrator)


def missing_privileges(missing: int, where: str) -> PermissionDeniedError:
    """Return the error for privileges that the caller lacks somewhere."""
    return PermissionDeniedError(
        f"This needs {' and '.join(privilege_names(missing))} on {where}: ask for a grant of it."
    )


def authorize_table(ctx: Context, path: Id, required: int, *, enforces_policies: bool = False) -> TableRecord:
    """Return a table on which the caller has all `required` privileges; with 0, one that it can see.

    Where policies of the table bind the caller, the operation is denied, unless it `enforces_policies` itself. Raises
    TableNotFoundError, NamespaceNotFoundError (none that the caller can see), PermissionDeniedError.
    """
    try:
        record = ctx.look_up_table(path)
    except (TableNotFoundError, NamespaceNotFoundError):
        raise table_not_visible(ctx, path) from None
    except (InvalidTableStateError, PermissionDeniedError):  # below a mount: its entry cannot be used
        if not can_see_namespace(ctx, path.parent):
            raise namespace_not_found(path.parent) from None
        raise
    authorize_record(ctx, path, record, required, enforces_policies=enforces_policies)
    return record


def authorize_record(
    ctx: Context, path: Id, record: TableRecord, required: int, *, enforces_policies: bool = False
) -> None:
    """Check what `authorize_table` checks, for a table that was looked up already; raises the same."""
    required |= _USE
    rights = caller_rights(ctx)
    if rights.allow(record, required):
        if not enforces_policies and rights.effective_policy(record.id) is not None:
            raise policy_denial(f"the table {path}")
        require_decision(ctx, TABLE, path, required)
        return
    bits = rights.on_table(record.id, record.namespace_id)
    if not bits:
        raise table_not_visible(ctx, path)
    raise missing_privileges(required & ~bits, f"the table {path}")


def table_not_visible(ctx: Context, path: Id) -> LanceNamespaceError:
    """Return the error for a table that does not exist or is not visible: both take the same steps."""
    return table_not_found(path) if can_see_namespace(ctx, path.parent) else namespace_not_found(path.parent)


def authorize_namespace(ctx: Context, path: Id, required: int) -> int:
    """Return the id of a namespace on which the caller has all `required` privileges; with 0, of one that it can see.

    Raises NamespaceNotFoundError (none that the caller can see), PermissionDeniedError.
    """
    if not path and not required:
        return ROOT
    try:
        record = ctx.find_namespace(path)
    except NamespaceNotFoundError:
        _can_see_id(ctx, 0)
        raise
    authorize_namespace_id(ctx, path, record.id, required)
    return record.id


def authorize_namespace_id(ctx: Context, path: Id, namespace_id: int, required: int) -> None:
    """Check what `authorize_namespace` checks, for a namespace that was looked up already; raises the same."""
    bits = caller_rights(ctx).on_namespace(namespace_id)
    if not (required and bits & required == required):
        if not (bits or not path or _can_see_id(ctx, namespace_id)):
            raise namespace_not_found(path)
        if required:
            raise missing_privileges(required & ~bits, f"the namespace {path}" if path else "the root namespace")
    if path or required:  # all see the root
        require_decision(ctx, NAMESPACE, path, required)


def can_see_namespace(ctx: Context, path: Id) -> bool:
    """Return whether a namespace exists and the caller can see it."""
    if not path:
        return True
    try:
        namespace_id = ctx.find_namespace(path).id
    except NamespaceNotFoundError:
        namespace_id = 0  # which no namespace has: the same queries run for it
    return _can_see_id(ctx, namespace_id)


def _can_see_id(ctx: Context, namespace_id: int) -> bool:
    rights = caller_rights(ctx)
    return bool(rights.on_namespace(namespace_id)) or ctx.store.has_grant_at_or_below(namespace_id, rights.grantees)


def authorize_server(ctx: Context, required: int, where: str = "the server") -> None:
    """Raise PermissionDeniedError unless the caller has all `required` privileges on the whole server."""
    bits = caller_rights(ctx).server
    if bits & required != required:
        raise missing_privileges(required & ~bits, where)
    require_decision(ctx, SERVER, (), required)
