"""Grants: grant, revoke and list privileges; check them, and tell the caller its own identity.

Privileges are granted on securables: the server, namespaces and tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import InvalidInputError, PermissionDeniedError

from tiltyard.access.authorization import (
    authorize_namespace,
    authorize_server,
    authorize_table,
    caller_rights,
    is_administrator,
)
from tiltyard.access.grantees import Grantee, GranteeKind, parse_grantee
from tiltyard.access.needs import ANY_CALLER
from tiltyard.access.rights import Rights
from tiltyard.model.ids import Id, namespace_id, table_id
from tiltyard.model.modes import parse_mode
from tiltyard.model.operations import Needs, operation
from tiltyard.model.principals import ALL, Principal, Privilege, parse_privileges, privilege_names, with_implied
from tiltyard.model.spec import models

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tiltyard.context import Context
    from tiltyard.store import GrantRecord


class ObjectKind(StrEnum):
    """The kinds of securables."""

    SERVER = "server"
    NAMESPACE = "namespace"
    TABLE = "table"


@dataclass(frozen=True, slots=True)
class Securable:
    """An existing object: its id, and for a table that of its namespace, else 0."""

    kind: ObjectKind
    id: int
    parent_id: int
    path: Id

    def privileges(self, rights: Rights) -> int:
        """Return the privileges on it in these rights, as bits."""
        if self.kind is ObjectKind.TABLE:
            return rights.on_table(self.id, self.parent_id)
        return rights.on_namespace(self.id) if self.kind is ObjectKind.NAMESPACE else rights.server

    def __str__(self) -> str:
        return "the server" if self.kind is ObjectKind.SERVER else f"the {self.kind} {self.path}"


def find_securable(ctx: Context, kind: str | None, names: Sequence[str] | None) -> Securable:
    """Return the object that an authorized request names. Raises InvalidInputError, …NotFoundError."""
    match parse_mode(ObjectKind, kind, ObjectKind.SERVER, "kind of object"):
        case ObjectKind.TABLE:
            table = ctx.find_table(table_id(names))
            return Securable(ObjectKind.TABLE, table.id, table.namespace_id, table_id(names))
        case ObjectKind.NAMESPACE:
            path = namespace_id(names)
            resolved_id = ctx.resolved_namespace_id(path)
            return Securable(ObjectKind.NAMESPACE, resolved_id or ctx.find_namespace(path).id, 0, path)
        case ObjectKind.SERVER if names:
            raise InvalidInputError("The server has no id: leave it out, or set the kind to table or namespace.")
        case _:
            return Securable(ObjectKind.SERVER, 0, 0, Id())


def caller_privileges(ctx: Context, securable: Securable) -> int:
    """Return the caller's privileges on an object, as bits."""
    return ALL if ctx.principal.administrator else securable.privileges(caller_rights(ctx))


def _authorize(ctx: Context, request: Any, required: int) -> Context:
    match parse_mode(ObjectKind, request.object_kind, ObjectKind.SERVER, "kind of object"):
        case ObjectKind.TABLE:
            path = table_id(request.id)
            record = authorize_table(ctx, path, required, enforces_policies=True)  # grants show no rows
            return ctx.with_resolved({path: record})
        case ObjectKind.NAMESPACE:
            path = namespace_id(request.id)
            return ctx.with_resolved({}, {path: authorize_namespace(ctx, path, required)})
        case ObjectKind.SERVER if required:
            authorize_server(ctx, required)
    return ctx


def _manage_grants(ctx: Context, request: Any) -> Context:
    return _authorize(ctx, request, Privilege.MANAGE_GRANTS.value)


def _list_grants(ctx: Context, request: Any) -> Context:
    is_about_caller = request.object_kind is None and not request.id and request.grantee == ctx.principal.name
    if is_about_caller and request.grantee_kind in (None, "principal"):
        return ctx
    return _authorize(ctx, request, Privilege.MANAGE_GRANTS.value)


def _check_privileges(ctx: Context, request: Any) -> Context:
    is_about_others = request.grantee or request.grantee_kind or request.groups
    return _authorize(ctx, request, Privilege.MANAGE_GRANTS.value if is_about_others else 0)


MANAGE_GRANTS = Needs("`manage_grants` on the object, and there what is granted", _manage_grants)
LIST_GRANTS = Needs("`manage_grants` on the object, or on the server; nothing for the caller's own", _list_grants)
CHECK_PRIVILEGES = Needs("to see the object; about others, `manage_grants` on it", _check_privileges)


@operation(needs=MANAGE_GRANTS)
def grant_privileges(ctx: Context, request: models.GrantPrivilegesRequest) -> models.GrantPrivilegesResponse:
    """Grant privileges on the server, a namespace or a table to a principal, a group or a role.

    A grant on a namespace covers all below it. A caller can grant only privileges that it has itself. Raises
    NamespaceNotFoundError, TableNotFoundError, PermissionDeniedError, InvalidInputError (no such privilege or role).
    """
    securable, grantee, bits = _parse(ctx, request)
    if missing := bits & ~caller_privileges(ctx, securable):
        raise PermissionDeniedError(
            f"Only principals with {' and '.join(privilege_names(missing))} on {securable} may grant it."
        )
    if grantee.kind is GranteeKind.ROLE and not ctx.store.has_role(grantee.name):
        raise InvalidInputError(f"There is no role '{grantee.name}': create it first.")
    ctx.store.grant(str(grantee), securable.kind, securable.id, bits, ctx.principal.name)
    ctx.rights_cache.refresh_next()
    return models.GrantPrivilegesResponse(privileges=_granted_privileges(ctx, securable, grantee))


@operation(needs=MANAGE_GRANTS)
def revoke_privileges(ctx: Context, request: models.RevokePrivilegesRequest) -> models.RevokePrivilegesResponse:
    """Revoke privileges that were granted on this very object; inherited ones stay (see CheckPrivileges).

    Returns those that are still granted on it. Raises NamespaceNotFoundError, TableNotFoundError, InvalidInputError.
    """
    securable, grantee, bits = _parse(ctx, request)
    ctx.store.revoke(str(grantee), securable.kind, securable.id, ALL & ~bits)
    ctx.rights_cache.refresh_next()
    return models.RevokePrivilegesResponse(privileges=_granted_privileges(ctx, securable, grantee))


def _parse(
    ctx: Context, request: models.GrantPrivilegesRequest | models.RevokePrivilegesRequest
) -> tuple[Securable, Grantee, int]:
    grantee = parse_grantee(request.grantee, request.grantee_kind)
    bits = parse_privileges(request.privileges)
    return find_securable(ctx, request.object_kind, request.id), grantee, bits


def _granted_privileges(ctx: Context, securable: Securable, grantee: Grantee) -> list[str]:
    """Return the privileges that a grantee was granted on this very object."""
    return privilege_names(ctx.store.privileges_on(securable.kind, securable.id, [str(grantee)]))


@operation(needs=LIST_GRANTS, changes=False)
def list_grants(ctx: Context, request: models.ListGrantsRequest) -> models.ListGrantsResponse:
    """List the grants on an object, or without one those of a grantee, wherever they are.

    Raises NamespaceNotFoundError, TableNotFoundError, InvalidInputError.
    """
    if request.object_kind is None and not request.id:
        return _list_grants_to(ctx, request, parse_grantee(request.grantee, request.grantee_kind))
    if request.grantee:
        raise InvalidInputError("Name an object or a grantee, not both.")
    securable = find_securable(ctx, request.object_kind, request.id)
    records, token = ctx.paging.fetch_page(
        f"grants on {securable.kind} {securable.id}",
        request.page_token,
        request.limit,
        lambda after, count: ctx.store.grants_on(securable.kind, securable.id, after, count),
        lambda record: record.grantee,
    )
    return models.ListGrantsResponse(grants=[_to_model(record, securable.path) for record in records], page_token=token)


def _list_grants_to(ctx: Context, request: models.ListGrantsRequest, grantee: Grantee) -> models.ListGrantsResponse:
    records, token = ctx.paging.fetch_page(
        f"grants to {grantee}",
        request.page_token,
        request.limit,
        lambda after, count: ctx.store.grants_to(str(grantee), after, count),
        lambda record: (record.kind, record.object_id),
    )
    paths = ((record, ctx.store.object_path(record.kind, record.object_id)) for record in records)
    return models.ListGrantsResponse(grants=[_to_model(record, path) for record, path in paths], page_token=token)


def _to_model(record: GrantRecord, path: Sequence[str] | None) -> models.Grant:
    """Convert a grant for a response; without an id where the object was dropped, and can be restored."""
    grantee = Grantee.from_text(record.grantee)
    return models.Grant(
        grantee=grantee.name,
        grantee_kind=grantee.kind,
        object_kind=record.kind,
        id=None if path is None else list(path),
        privileges=privilege_names(record.privileges),
        granted_by=record.granted_by,
        granted_at_millis=record.granted_at,
    )


@operation(needs=CHECK_PRIVILEGES, changes=False)
def check_privileges(ctx: Context, request: models.CheckPrivilegesRequest) -> models.CheckPrivilegesResponse:
    """Check the privileges of the caller, or of a named grantee, on an object, against those of the request.

    Raises NamespaceNotFoundError, TableNotFoundError, PermissionDeniedError, InvalidInputError.
    """
    securable = find_securable(ctx, request.object_kind, request.id)
    required = parse_privileges(request.privileges) if request.privileges else 0
    if request.grantee or request.grantee_kind or request.groups:
        grantee = parse_grantee(request.grantee, request.grantee_kind)
        bits = _privileges_of(ctx, securable, grantee, tuple(request.groups or ()))
    else:
        bits = caller_privileges(ctx, securable)
    missing = required & ~bits
    return models.CheckPrivilegesResponse(
        allowed=not missing, privileges=privilege_names(bits), missing=privilege_names(missing)
    )


def _privileges_of(ctx: Context, securable: Securable, grantee: Grantee, groups: tuple[str, ...]) -> int:
    """Return a grantee's privileges on an object, as bits; of a role or a group those that are granted to itself."""
    if grantee.kind is GranteeKind.PRINCIPAL:
        record = ctx.store.describe_principal(grantee.name)
        if record is not None and record.administrator:
            return ALL
        return securable.privileges(Rights(ctx.store, Principal(grantee.name, groups)))
    parent_id = securable.parent_id if securable.kind is ObjectKind.TABLE else securable.id
    bits = ctx.store.privileges_on(ObjectKind.SERVER, 0, [str(grantee)])
    if securable.kind is not ObjectKind.SERVER:
        bits |= ctx.store.privileges_above(parent_id, [str(grantee)])  # including a namespace itself
    if securable.kind is ObjectKind.TABLE:
        bits |= ctx.store.privileges_on(securable.kind, securable.id, [str(grantee)])
    return with_implied(bits)


@operation(needs=ANY_CALLER, changes=False)
def who_am_i(ctx: Context, request: models.WhoAmIRequest) -> models.WhoAmIResponse:
    """Describe the caller as this server knows it; `privileges` are those on the whole server."""
    rights = ctx.rights_cache.get(ctx.principal)
    administrator = is_administrator(ctx)
    return models.WhoAmIResponse(
        principal=ctx.principal.name,
        groups=list(ctx.principal.groups),
        roles=list(rights.roles),
        administrator=administrator,
        method=ctx.principal.method,
        privileges=privilege_names(ALL if administrator else rights.server),
    )
