"""Grants: give, take, list; who one is, and what one may do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lance_namespace.errors import InvalidInputError, PermissionDeniedError

from tiltyard.access import is_administrator
from tiltyard.access.grantees import Grantee, GranteeKind, parse_grantee
from tiltyard.access.needs import ANYBODY
from tiltyard.access.rights import Rights
from tiltyard.access.securables import (
    ASKING,
    LISTING_GRANTS,
    MANAGING_GRANTS,
    ObjectKind,
    Target,
    find_object,
    own_privileges,
)
from tiltyard.model.operations import operation
from tiltyard.model.principals import Principal
from tiltyard.model.privileges import ALL, parse_privileges, privilege_names, with_implied
from tiltyard.model.spec import models

if TYPE_CHECKING:
    from tiltyard.context import Context
    from tiltyard.model.ids import Id
    from tiltyard.store import GrantRecord


@operation(needs=MANAGING_GRANTS)
def grant_privileges(ctx: Context, request: models.GrantPrivilegesRequest) -> models.GrantPrivilegesResponse:
    """Grant privileges on the server, a namespace or a table to a principal, a group or a role.

    What is granted on a namespace holds for all below it. Nobody grants what they have not themselves. Raises
    NamespaceNotFoundError, TableNotFoundError, PermissionDeniedError, InvalidInputError (no such privilege or role).
    """
    target, whom, bits = _asked(ctx, request)
    if lacking := bits & ~own_privileges(ctx, target):
        raise PermissionDeniedError(f"Only who has {' and '.join(privilege_names(lacking))} on {target} may grant it.")
    if whom.kind is GranteeKind.ROLE and not ctx.store.has_role(whom.name):
        raise InvalidInputError(f"There is no role '{whom.name}': create it first.")
    ctx.store.grant(str(whom), target.kind, target.number, bits, ctx.principal.name)
    ctx.access.changed()
    return models.GrantPrivilegesResponse(privileges=_granted(ctx, target, whom))


@operation(needs=MANAGING_GRANTS)
def revoke_privileges(ctx: Context, request: models.RevokePrivilegesRequest) -> models.RevokePrivilegesResponse:
    """Take privileges back that were granted on this very object; what is inherited stays (CheckPrivileges tells it).

    Answers what is left. Raises NamespaceNotFoundError, TableNotFoundError, InvalidInputError.
    """
    target, whom, bits = _asked(ctx, request)
    ctx.store.revoke(str(whom), target.kind, target.number, ALL & ~bits)
    ctx.access.changed()
    return models.RevokePrivilegesResponse(privileges=_granted(ctx, target, whom))


def _asked(
    ctx: Context, request: models.GrantPrivilegesRequest | models.RevokePrivilegesRequest
) -> tuple[Target, Grantee, int]:
    whom = parse_grantee(request.grantee, request.grantee_kind)
    bits = parse_privileges(request.privileges)
    return find_object(ctx, request.object_kind, request.id), whom, bits


def _granted(ctx: Context, target: Target, whom: Grantee) -> list[str]:
    """What somebody was granted on this very object."""
    return privilege_names(ctx.store.privileges_on(target.kind, target.number, [str(whom)]))


@operation(needs=LISTING_GRANTS, changes=False)
def list_grants(ctx: Context, request: models.ListGrantsRequest) -> models.ListGrantsResponse:
    """List the grants on an object, or without one those of a grantee, wherever they are.

    Raises NamespaceNotFoundError, TableNotFoundError, InvalidInputError.
    """
    if request.object_kind is None and not request.id:
        return _grants_of(ctx, request, parse_grantee(request.grantee, request.grantee_kind))
    if request.grantee:
        raise InvalidInputError("Name an object or a grantee, not both.")
    target = find_object(ctx, request.object_kind, request.id)
    found, token = ctx.paging.fetch_page(
        f"grants on {target.kind} {target.number}",
        request.page_token,
        request.limit,
        lambda after, count: ctx.store.grants_on(target.kind, target.number, after, count),
        lambda record: record.grantee,
    )
    return models.ListGrantsResponse(grants=[_told(record, target.path) for record in found], page_token=token)


def _grants_of(ctx: Context, request: models.ListGrantsRequest, whom: Grantee) -> models.ListGrantsResponse:
    found, token = ctx.paging.fetch_page(
        f"grants to {whom}",
        request.page_token,
        request.limit,
        lambda after, count: ctx.store.grants_to(str(whom), tuple(after) if after else None, count),
        lambda record: (record.kind, record.object_id),
    )
    paths = ((record, ctx.store.object_path(record.kind, record.object_id)) for record in found)
    return models.ListGrantsResponse(grants=[_told(record, path) for record, path in paths], page_token=token)


def _told(record: GrantRecord, path: Id | None) -> models.Grant:
    """A grant, as clients are told of it; without an id on what was dropped, and can be brought back."""
    whom = Grantee.of(record.grantee)
    return models.Grant(
        grantee=whom.name,
        grantee_kind=whom.kind,
        object_kind=record.kind,
        id=None if path is None else list(path),
        privileges=privilege_names(record.privileges),
        granted_by=record.granted_by,
        granted_at_millis=record.granted_at,
    )


@operation(needs=ASKING, changes=False)
def check_privileges(ctx: Context, request: models.CheckPrivilegesRequest) -> models.CheckPrivilegesResponse:
    """Tell what somebody may do with an object, and whether that is enough; about oneself, unless a grantee is named.

    Raises NamespaceNotFoundError, TableNotFoundError, PermissionDeniedError, InvalidInputError.
    """
    target = find_object(ctx, request.object_kind, request.id)
    wanted = parse_privileges(request.privileges) if request.privileges else 0
    if request.grantee or request.grantee_kind or request.groups:
        whom = parse_grantee(request.grantee, request.grantee_kind)
        bits = _privileges_of(ctx, target, whom, tuple(request.groups or ()))
    else:
        bits = own_privileges(ctx, target)
    missing = wanted & ~bits
    return models.CheckPrivilegesResponse(
        allowed=not missing, privileges=privilege_names(bits), missing=privilege_names(missing)
    )


def _privileges_of(ctx: Context, target: Target, whom: Grantee, groups: tuple[str, ...]) -> int:
    """What another may do with an object, as bits; a role or a group alone counts by what was granted to it."""
    if whom.kind is GranteeKind.PRINCIPAL:
        known = ctx.store.describe_principal(whom.name)
        if known is not None and known.administrator:
            return ALL
        return target.privileges(Rights(ctx.store, Principal(whom.name, groups)))
    above = target.home if target.kind is ObjectKind.TABLE else target.number
    bits = ctx.store.privileges_on(ObjectKind.SERVER, 0, [str(whom)])
    if target.kind is not ObjectKind.SERVER:
        bits |= ctx.store.privileges_above(above, [str(whom)])  # a namespace itself is among them
    if target.kind is ObjectKind.TABLE:
        bits |= ctx.store.privileges_on(target.kind, target.number, [str(whom)])
    return with_implied(bits)


@operation(needs=ANYBODY, changes=False)
def who_am_i(ctx: Context, request: models.WhoAmIRequest) -> models.WhoAmIResponse:
    """Tell who asks, as this server knows it; `privileges` are those on the whole server."""
    rights = ctx.access.of(ctx.principal)
    administrator = is_administrator(ctx)
    return models.WhoAmIResponse(
        principal=ctx.principal.name,
        groups=list(ctx.principal.groups),
        roles=list(rights.roles),
        administrator=administrator,
        method=ctx.principal.method,
        privileges=privilege_names(ALL if administrator else rights.server),
    )
