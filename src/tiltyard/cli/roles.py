"""`tiltyard role list | add | remove`: on a server, or on the catalog's database."""

from __future__ import annotations

import click

from tiltyard.cli.grants import parse_grantee
from tiltyard.cli.options import catalog_options
from tiltyard.config import Settings


@click.group("role", short_help="Manage roles: named sets of principals and groups.")
def role() -> None:
    """Manage roles.

    \b
    Example:
      tiltyard role add analysts ann group:night --root ./data
    """


@role.command("list", short_help="List roles with their members.")
@catalog_options
def list_roles(settings: Settings, url: str, key: str) -> None:
    """List roles with their members.

    \b
    Example:
      tiltyard role list --root ./data
    """
    from tiltyard.cli.client import connect

    with connect(settings, url, key) as calls:
        for entry in calls.entries("ListRoles", "roles"):
            members = (f"{member['kind']}:{member['name']}" for member in entry["members"])
            click.echo(f"{entry['name']}  {' '.join(members)}".rstrip())


@role.command("add", short_help="Add members to a role, or create it.")
@click.argument("name", metavar="ROLE")
@click.argument("members", nargs=-1)
@catalog_options
def add(settings: Settings, name: str, members: tuple[str, ...], url: str, key: str) -> None:
    """Add members to a role, which is created if missing: principals by name, groups as group:NAME.

    \b
    Example:
      tiltyard role add analysts ann group:night --root ./data
    """
    from tiltyard.cli.client import connect

    with connect(settings, url, key) as calls:
        if not any(entry["name"] == name for entry in calls.entries("ListRoles", "roles")):
            calls.call("CreateRole", role=name)
        if not members:
            click.echo(f"{name} is a role.")
        for member in members:
            grantee = parse_grantee(member)
            calls.call("AddRoleMember", role=name, member=grantee["grantee"], member_kind=grantee["grantee_kind"])
            click.echo(f"{member} is in {name}.")


@role.command("remove", short_help="Remove members from a role, or drop it.")
@click.argument("name", metavar="ROLE")
@click.argument("members", nargs=-1)
@catalog_options
def remove(settings: Settings, name: str, members: tuple[str, ...], url: str, key: str) -> None:
    """Remove members from a role; without members, drop the role with its grants.

    \b
    Example:
      tiltyard role remove analysts ann --root ./data
    """
    from tiltyard.cli.client import connect

    with connect(settings, url, key) as calls:
        if not members:
            calls.call("DropRole", role=name)
            click.echo(f"{name} is dropped.")
        for member in members:
            grantee = parse_grantee(member)
            calls.call("RemoveRoleMember", role=name, member=grantee["grantee"], member_kind=grantee["grantee_kind"])
            click.echo(f"{member} is no longer in {name}.")
