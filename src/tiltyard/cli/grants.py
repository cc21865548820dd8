"""`tiltyard grant`, `revoke`, `grants`, `whoami`, `can`: on a server, or on the catalog's database."""

from __future__ import annotations

import sys
from typing import Any

import click

from tiltyard.cli.options import catalog_options
from tiltyard.config import Settings

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
def grant(settings: Settings, **arguments: Any) -> None:
    """Grant PRIVILEGES, separated by commas, on the server, a namespace (and all below it) or a table.

    use, read, write, alter, create, drop, manage_grants, run_udfs, create_function,
    manage_secrets, administer; all.

    \b
    Examples:
      tiltyard grant read --on namespace:sales --to role:analysts --root ./data
      tiltyard grant read,write --on 'table:sales$orders' --to ann --url https://lake.example.org
    """
    _change_privileges(settings, "GrantPrivileges", **arguments)


@click.command("revoke", short_help="Revoke privileges.")
@click.argument("privileges")
@object_option
@grantee_option
@catalog_options
def revoke(settings: Settings, **arguments: Any) -> None:
    """Revoke PRIVILEGES that were granted on this object; inherited ones stay.

    \b
    Example:
      tiltyard revoke write --on 'table:sales$orders' --to ann --root ./data
    """
    _change_privileges(settings, "RevokePrivileges", **arguments)


def _change_privileges(
    settings: Settings, operation: str, *, privileges: str, securable: str, grantee: str, url: str, key: str
) -> None:
    """Grant or revoke privileges, and print those that the grantee has on the object now."""
    from tiltyard.cli.client import connect

    with connect(settings, url, key) as calls:
        fields = {**_parse_object(securable), **parse_grantee(grantee)}
        privileges_now = calls.call(operation, **fields, privileges=privileges.split(","))["privileges"]
    click.echo(f"{grantee} has {', '.join(privileges_now) or 'nothing'} on {securable or 'server'}")


@click.command("grants", short_help="List grants.")
@object_option
@click.option("--to", "grantee", default="", metavar="WHO", help="Only grants of this grantee, on all objects.")
@catalog_options
def grants(settings: Settings, securable: str, grantee: str, url: str, key: str) -> None:
    """List the grants on an object, or those of a principal, a role or a group.

    \b
    Examples:
      tiltyard grants --on namespace:sales --root ./data
      tiltyard grants --to role:analysts --root ./data
    """
    from tiltyard.cli.client import connect

    everywhere = grantee and not securable
    with connect(settings, url, key) as calls:
        request = parse_grantee(grantee) if everywhere else {**_parse_object(securable), "grantee": grantee or None}
        for entry in calls.entries("ListGrants", "grants", **request):
            name = f"{entry['grantee_kind']}:{entry['grantee']}"
            click.echo(f"{_format_object(entry)}  {name}  {','.join(entry['privileges'])}  by {entry['granted_by']}")


@click.command("whoami", short_help="Show the principal of a key.")
@catalog_options
def whoami(settings: Settings, url: str, key: str) -> None:
    """Show the principal of a key according to the server, with its groups, roles and privileges on the server.

    \b
    Example:
      tiltyard whoami --url https://lake.example.org
    """
    from tiltyard.cli.client import connect

    with connect(settings, url, key) as calls:
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
def can(
    settings: Settings, principal: str, privileges: str, securable: str, groups: tuple[str, ...], url: str, key: str
) -> None:
    """Check whether WHO has PRIVILEGES on an object; exit with status 0 if so, 3 if not. WHO is `me` for the caller.

    \b
    Examples:
      tiltyard can ann write --on 'table:sales$orders' --root ./data
      tiltyard can me read --on namespace:sales --url https://lake.example.org
    """
    from tiltyard.cli.client import connect

    grantee = {} if principal == "me" else {**parse_grantee(principal), "groups": list(groups) or None}
    with connect(settings, url, key) as calls:
        response = calls.call(
            "CheckPrivileges", **_parse_object(securable), **grantee, privileges=privileges.split(",")
        )
    if response["allowed"]:
        click.echo("yes")
        return
    missing, privileges_there = ", ".join(response["missing"]), ", ".join(response["privileges"])
    click.echo(f"no: {missing} is missing; there is {privileges_there or 'nothing'}")
    sys.exit(NOT_ALLOWED)


def _parse_object(text: str) -> dict[str, Any]:
    """Parse `table:a$b` into fields of a request. Raises InvalidInputError."""
    from tiltyard.model.ids import DEFAULT_DELIMITER, parse_id

    kind, _, name = text.partition(":")
    return {"object_kind": kind or "server", "id": list(parse_id(name, DEFAULT_DELIMITER)) or None}


def _format_object(entry: dict[str, Any]) -> str:
    """Format the object of a grant; one that was dropped, and can be brought back, has no name."""
    from tiltyard.model.ids import Id

    kind, names = entry["object_kind"], entry.get("id")
    if kind == "server":
        return "server"
    return f"{kind}:{'(dropped)' if names is None else Id(names)}"


def parse_grantee(text: str) -> dict[str, Any]:
    """Parse `role:a`, or the name of a principal, into fields of a request."""
    kind, colon, name = text.partition(":")
    if colon and kind in ("role", "group", "principal"):
        return {"grantee_kind": kind, "grantee": name}
    return {"grantee_kind": "principal", "grantee": text}
