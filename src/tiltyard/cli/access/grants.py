"""`tiltyard grant`, `revoke`, `grants`, `whoami`, `can`, `role …`, `policy …`: on a server, or on the database."""

from __future__ import annotations

import sys
from typing import Any

import click

from tiltyard.cli.command_groups import CommandGroup
from tiltyard.cli.options import catalog_options
from tiltyard.cli.session.target import CatalogTarget, opened_catalog
from tiltyard.model.text.typed_ids import parse_grantee
from tiltyard.runtime.process import refuse

NOT_ALLOWED = 3
"""The exit status of `can` where a privilege is missing."""

object_option = click.option(
    "--on",
    "securable",
    default="",
    metavar="OBJECT",
    help="server, namespace:NAME$…, table:NAME$NAME$… [default: server]",
)
grantee_option = click.option(
    "--to", "grantee", required=True, metavar="WHO", help="NAME of a principal, role:NAME or group:NAME."
)


@click.command("grant", short_help="Grant privileges.")
@click.argument("privileges")
@object_option
@grantee_option
@catalog_options
def grant(target: CatalogTarget, **arguments: Any) -> None:
    """Grant PRIVILEGES, separated by commas, on the server, a namespace (and all below it) or a table.

    use, read, write, alter, create, drop, manage_grants, run_udfs, create_function,
    manage_secrets, classify, legal_hold, approve, administer; all.

    \b
    Examples:
      tiltyard grant read --on namespace:sales --to role:analysts --root ./data
      tiltyard grant read,write --on 'table:sales$orders' --to ann --url https://lake.example.org
    """
    _change_privileges(target, "GrantPrivileges", **arguments)


@click.command("revoke", short_help="Revoke privileges.")
@click.argument("privileges")
@object_option
@grantee_option
@catalog_options
def revoke(target: CatalogTarget, **arguments: Any) -> None:
    """Revoke PRIVILEGES that were granted on this object; inherited ones stay.

    \b
    Example:
      tiltyard revoke write --on 'table:sales$orders' --to ann --root ./data
    """
    _change_privileges(target, "RevokePrivileges", **arguments)


def _change_privileges(target: CatalogTarget, operation: str, *, privileges: str, securable: str, grantee: str) -> None:
    """Grant or revoke privileges, and print those that the grantee has on the object now."""
    with opened_catalog(target) as calls:
        fields = {**parse_object(securable), **parse_grantee(grantee)}
        privileges_now = calls.call(operation, **fields, privileges=privileges.split(","))["privileges"]
    click.echo(f"{grantee} has {', '.join(privileges_now) or 'nothing'} on {securable or 'server'}")


@click.command("grants", short_help="List grants.")
@object_option
@click.option("--to", "grantee", default="", metavar="WHO", help="Only grants of this grantee, on all objects.")
@catalog_options
def grants(target: CatalogTarget, securable: str, grantee: str) -> None:
    """List the grants on an object, or those of a principal, a role or a group.

    \b
    Examples:
      tiltyard grants --on namespace:sales --root ./data
      tiltyard grants --to role:analysts --root ./data
    """
    everywhere = grantee and not securable
    with opened_catalog(target) as calls:
        request = parse_grantee(grantee) if everywhere else {**parse_object(securable), "grantee": grantee or None}
        for entry in calls.entries("ListGrants", "grants", **request):
            name = f"{entry['grantee_kind']}:{entry['grantee']}"
            click.echo(f"{format_object(entry)}  {name}  {','.join(entry['privileges'])}  by {entry['granted_by']}")


@click.command("whoami", short_help="Show the principal of a key.")
@catalog_options
def whoami(target: CatalogTarget) -> None:
    """Show the principal of a key according to the server, with its groups, roles and privileges on the server.

    \b
    Example:
      tiltyard whoami --url https://lake.example.org
    """
    with opened_catalog(target) as calls:
        identity = calls.call("WhoAmI")
    click.echo(f"principal:  {identity['principal']}{', an administrator' if identity['administrator'] else ''}")
    click.echo(f"known by:   {identity['method']}")
    for name in ("groups", "roles"):
        click.echo(f"{name + ':':<12}{', '.join(identity[name]) or 'none'}")
    click.echo(f"everywhere: {', '.join(identity['privileges']) or 'nothing'}")


@click.command("can", short_help="Check whether a principal has privileges.")
@click.argument("principal", metavar="WHO")
@click.argument("privileges")
@object_option
@click.option("--group", "groups", multiple=True, help="A group in the token of WHO; repeatable.")
@catalog_options
def can(target: CatalogTarget, principal: str, privileges: str, securable: str, groups: tuple[str, ...]) -> None:
    """Check whether WHO has PRIVILEGES on an object; exit with status 0 if so, 3 if not. WHO is `me` for the caller.

    \b
    Examples:
      tiltyard can ann write --on 'table:sales$orders' --root ./data
      tiltyard can me read --on namespace:sales --url https://lake.example.org
    """
    grantee = {} if principal == "me" else {**parse_grantee(principal), "groups": list(groups) or None}
    with opened_catalog(target) as calls:
        response = calls.call("CheckPrivileges", **parse_object(securable), **grantee, privileges=privileges.split(","))
    if response["allowed"]:
        click.echo("yes")
        return
    missing, privileges_there = ", ".join(response["missing"]), ", ".join(response["privileges"])
    click.echo(f"no: {missing} is missing; there is {privileges_there or 'nothing'}")
    sys.exit(NOT_ALLOWED)


def parse_object(text: str) -> dict[str, Any]:
    """Parse `table:a$b` into fields of a request. Raises InvalidInputError."""
    from tiltyard.model.ids import parse_id

    kind, _, name = text.partition(":")
    return {"object_kind": kind or "server", "id": list(parse_id(name)) or None}


def format_object(entry: dict[str, Any]) -> str:
    """Format the object of a grant; one that was dropped, and can be brought back, has no name."""
    from tiltyard.model.ids import Id

    kind, names = entry["object_kind"], entry.get("id")
    if kind == "server":
        return "server"
    return f"{kind}:{'(dropped)' if names is None else Id(names)}"


@click.group("role", cls=CommandGroup, short_help="Manage roles: named sets of principals and groups.")
def role() -> None:
    """Manage roles.

    \b
    Example:
      tiltyard role add analysts ann group:night --root ./data
    """


@role.command("list", short_help="List roles with their members.")
@catalog_options
def list_roles(target: CatalogTarget) -> None:
    """List roles with their members.

    \b
    Example:
      tiltyard role list --root ./data
    """
    with opened_catalog(target) as calls:
        for entry in calls.entries("ListRoles", "roles"):
            members = (f"{member['kind']}:{member['name']}" for member in entry["members"])
            click.echo(f"{entry['name']}  {' '.join(members)}".rstrip())


@role.command("add", short_help="Add members to a role, or create it.")
@click.argument("name", metavar="ROLE")
@click.argument("members", nargs=-1)
@catalog_options
def add(target: CatalogTarget, name: str, members: tuple[str, ...]) -> None:
    """Add members to a role, which is created if missing: principals by name, groups as group:NAME.

    \b
    Example:
      tiltyard role add analysts ann group:night --root ./data
    """
    with opened_catalog(target) as calls:
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
def remove(target: CatalogTarget, name: str, members: tuple[str, ...]) -> None:
    """Remove members from a role; without members, drop the role with its grants.

    \b
    Example:
      tiltyard role remove analysts ann --root ./data
    """
    with opened_catalog(target) as calls:
        if not members:
            calls.call("DropRole", role=name)
            click.echo(f"{name} is dropped.")
        for member in members:
            grantee = parse_grantee(member)
            calls.call("RemoveRoleMember", role=name, member=grantee["grantee"], member_kind=grantee["grantee_kind"])
            click.echo(f"{member} is no longer in {name}.")


@click.group("policy", cls=CommandGroup, short_help="Manage row filters and column masks.")
def policy() -> None:
    """Restrict the rows and columns of tables for all principals except administrators and exempt roles.

    \b
    Examples:
      tiltyard policy set 'hr$people' teams --filter "team = principal() OR in_group('chiefs')" --root ./data
      tiltyard policy set 'hr$people' private --hide face --null pay --exempt auditors --root ./data
      tiltyard policy list 'hr$people' --root ./data
    """


@policy.command("set", short_help="Set a policy; replaces one of the same name.")
@click.argument("table")
@click.argument("name")
@click.option(
    "--filter", "row_filter", help="SQL condition on the visible rows; it may call principal() and in_group('x')."
)
@click.option("--hide", "hidden", multiple=True, metavar="COLUMN", help="Leave this column out; repeatable.")
@click.option("--null", "nulled", multiple=True, metavar="COLUMN", help="Show nulls in this column; repeatable.")
@click.option(
    "--mask", "masked", multiple=True, metavar="COLUMN=SQL", help="Show this expression in the column; repeatable."
)
@click.option(
    "--exempt",
    "exempt_roles",
    multiple=True,
    metavar="ROLE",
    help="A role that the policy does not restrict; repeatable.",
)
@catalog_options
def set_policy(
    target: CatalogTarget,
    table: str,
    name: str,
    row_filter: str | None,
    hidden: tuple[str, ...],
    nulled: tuple[str, ...],
    masked: tuple[str, ...],
    exempt_roles: tuple[str, ...],
) -> None:
    """Restrict TABLE by a policy NAME for all principals except administrators and exempt roles.

    \b
    Example:
      tiltyard policy set 'hr$people' private --mask "ssn=concat('***', right(ssn, 1))" --url https://lake.example.org
    """
    masks = [{"column": column, "mask": "hide"} for column in hidden]
    masks += [{"column": column, "mask": "null"} for column in nulled]
    masks += [_parse_mask(text) for text in masked]
    fields = {"name": name, "filter": row_filter, "masks": masks, "exempt_roles": list(exempt_roles)}
    _print_policies(target, "SetTablePolicy", table, **fields)


@policy.command("list", short_help="List the policies of a table.")
@click.argument("table")
@catalog_options
def list_policies(target: CatalogTarget, table: str) -> None:
    """List the policies of TABLE.

    \b
    Example:
      tiltyard policy list 'hr$people' --root ./data
    """
    _print_policies(target, "ListTablePolicies", table)


@policy.command("drop", short_help="Drop a policy.")
@click.argument("table")
@click.argument("name")
@catalog_options
def drop(target: CatalogTarget, table: str, name: str) -> None:
    """Drop the policy NAME of TABLE: what it hid becomes visible to the principals it restricted.

    \b
    Example:
      tiltyard policy drop 'hr$people' private --root ./data
    """
    _print_policies(target, "DropTablePolicy", table, name=name)


def _parse_mask(text: str) -> dict[str, str]:
    column, equals, expression = text.partition("=")
    if not equals:
        refuse(f"A mask is COLUMN=SQL, not '{text}'.")
    return {"column": column, "mask": "expression", "expression": expression}


def _print_policies(target: CatalogTarget, operation: str, table: str, **fields: Any) -> None:
    """Run an operation on a table's policies, and print all that the table has now."""
    from tiltyard.model.ids import parse_id

    with opened_catalog(target) as calls:
        policies = calls.call(operation, id=list(parse_id(table)), **fields)["policies"]
        for policy in policies:
            parts = [f"rows where {policy['filter']}"] if policy.get("filter") is not None else []
            parts += [f"{mask['column']}: {mask.get('expression') or mask['mask']}" for mask in policy["masks"]]
            exempt = f"  but for {', '.join(policy['exempt_roles'])}" if policy["exempt_roles"] else ""
            click.echo(f"{policy['name']}  {'; '.join(parts)}{exempt}  by {policy['set_by']}")
