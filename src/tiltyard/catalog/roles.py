"""Roles: names that stand for principals and groups. A role holds no roles, so who is in it is seen at one look."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lance_namespace.errors import InvalidInputError

from tiltyard.access import Privilege
from tiltyard.access.grantees import Grantee, GranteeKind, parse_grantee
from tiltyard.access.needs import on_server
from tiltyard.model.ids import check_name
from tiltyard.model.operations import operation
from tiltyard.model.spec import models

if TYPE_CHECKING:
    from tiltyard.context import Context

ADMINISTRATORS = on_server(Privilege.ADMINISTER)


@operation(needs=ADMINISTRATORS)
def create_role(ctx: Context, request: models.CreateRoleRequest) -> models.CreateRoleResponse:
    """Create a role without members. Raises InvalidInputError (there is one of this name)."""
    if not ctx.store.add_role(check_name(request.role, "role's name")):
        raise InvalidInputError(f"There is a role '{request.role}' already.")
    return models.CreateRoleResponse()


@operation(needs=ADMINISTRATORS)
def drop_role(ctx: Context, request: models.DropRoleRequest) -> models.DropRoleResponse:
    """Drop a role with all that was granted to it. Raises InvalidInputError (there is none)."""
    if not ctx.store.drop_role(request.role):
        raise InvalidInputError(f"There is no role '{request.role}'.")
    ctx.access.changed()
    return models.DropRoleResponse()


@operation(needs=ADMINISTRATORS, changes=False)
def list_roles(ctx: Context, request: models.ListRolesRequest) -> models.ListRolesResponse:
    """List the roles by name, with their members. Raises InvalidInputError."""
    names, token = ctx.paging.fetch_page("roles", request.page_token, request.limit, ctx.store.list_roles, lambda name: name)
    roles = [models.RoleEntry(name=name, members=_members(ctx, name)) for name in names]
    return models.ListRolesResponse(roles=roles, page_token=token)


def _members(ctx: Context, role: str) -> list[models.RoleMember]:
    members = map(Grantee.of, ctx.store.members_of(role))
    return [models.RoleMember(name=member.name, kind=member.kind) for member in members]


@operation(needs=ADMINISTRATORS)
def add_role_member(ctx: Context, request: models.AddRoleMemberRequest) -> models.AddRoleMemberResponse:
    """Let a principal, or whoever is in a group, be in a role. Raises InvalidInputError (no such role; it is one)."""
    if not ctx.store.add_member(request.role, _member(request.member, request.member_kind)):
        raise InvalidInputError(f"'{request.member}' is in the role '{request.role}' already.")
    ctx.access.changed()
    return models.AddRoleMemberResponse()


@operation(needs=ADMINISTRATORS)
def remove_role_member(ctx: Context, request: models.RemoveRoleMemberRequest) -> models.RemoveRoleMemberResponse:
    """Take a principal or a group out of a role. Raises InvalidInputError (it is not in it)."""
    if not ctx.store.drop_member(request.role, _member(request.member, request.member_kind)):
        raise InvalidInputError(f"'{request.member}' is not in the role '{request.role}'.")
    ctx.access.changed()
    return models.RemoveRoleMemberResponse()


def _member(name: str, kind: str | None) -> str:
    member = parse_grantee(name, kind)
    if member.kind is GranteeKind.ROLE:
        raise InvalidInputError("A role cannot be in a role: add its members.")
    return str(member)
