"""Operations on roles, named sets of principals and groups. A role has no roles as members: one look-up is enough."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lance_namespace.errors import InvalidInputError

from tiltyard.access.grantees import Grantee, GranteeKind, parse_grantee
from tiltyard.access.needs import ADMINISTRATORS
from tiltyard.model.ids import check_name
from tiltyard.model.operations import operation
from tiltyard.model.spec import models

if TYPE_CHECKING:
    from tiltyard.context import Context


@operation(needs=ADMINISTRATORS)
def create_role(ctx: Context, request: models.CreateRoleRequest) -> models.CreateRoleResponse:
    """Create a role without members. Raises InvalidInputError (there is one of this name)."""
    if not ctx.store.add_role(check_name(request.role, "role's name")):
        raise InvalidInputError(f"There is a role '{request.role}' already.")
    return models.CreateRoleResponse()


@operation(needs=ADMINISTRATORS)
def drop_role(ctx: Context, request: models.DropRoleRequest) -> models.DropRoleResponse:
    """Drop a role and all grants to it. Raises InvalidInputError (there is none)."""
    if not ctx.store.drop_role(request.role):
        raise InvalidInputError(f"There is no role '{request.role}'.")
    ctx.rights_cache.refresh_next()
    return models.DropRoleResponse()


@operation(needs=ADMINISTRATORS, changes=False)
def list_roles(ctx: Context, request: models.ListRolesRequest) -> models.ListRolesResponse:
    """List the roles by name, with their members. Raises InvalidInputError."""
    names, token = ctx.paging.fetch_page(
        "roles", request.page_token, request.limit, ctx.store.list_roles, lambda name: name
    )
    roles = [models.RoleEntry(name=name, members=_members(ctx, name)) for name in names]
    return models.ListRolesResponse(roles=roles, page_token=token)


def _members(ctx: Context, role: str) -> list[models.RoleMember]:
    members = map(Grantee.from_text, ctx.store.members_of(role))
    return [models.RoleMember(name=member.name, kind=member.kind) for member in members]


@operation(needs=ADMINISTRATORS)
def add_role_member(ctx: Context, request: models.AddRoleMemberRequest) -> models.AddRoleMemberResponse:
    """Add a principal or a group to a role. Raises InvalidInputError (no such role, a member already)."""
    if not ctx.store.add_member(request.role, _member(request.member, request.member_kind)):
        raise InvalidInputError(f"'{request.member}' is in the role '{request.role}' already.")
    ctx.rights_cache.refresh_next()
    return models.AddRoleMemberResponse()


@operation(needs=ADMINISTRATORS)
def remove_role_member(ctx: Context, request: models.RemoveRoleMemberRequest) -> models.RemoveRoleMemberResponse:
    """Remove a principal or a group from a role. Raises InvalidInputError (it is no member)."""
    if not ctx.store.drop_member(request.role, _member(request.member, request.member_kind)):
        raise InvalidInputError(f"'{request.member}' is not in the role '{request.role}'.")
    ctx.rights_cache.refresh_next()
    return models.RemoveRoleMemberResponse()


def _member(name: str, kind: str | None) -> str:
    member = parse_grantee(name, kind)
    if member.kind is GranteeKind.ROLE:
        raise InvalidInputError("A role cannot be in a role: add its members.")
    return str(member)
