"""`tiltyard grant`, `revoke`, `grants`, `whoami`, `can`, `role …`: on a server, or on the catalog's database."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from tiltyard.cli.options import DATABASE, settings_options
from tiltyard.config import Settings
from tiltyard.runtime.fatal import refuse

Command = Callable[..., None]


def reaching(command: Command) -> Command:
    """Options for where: the command gets `settings`, and the `url` and `key` of a server, if one is named."""
    command = settings_options(*DATABASE)(command)
    for name, text in (("key", "An API key for the server; better in TILTYARD_KEY."), ("url", "Ask this server.")):
        command = click.option(f"--{name}", envvar=f"TILTYARD_{name.upper()}", default="", help=text)(command)
    return command


ON = click.option(
    "--on",
    "what",
    default="",
    metavar="OBJECT",
    help="server, namespace:NAME$…, table:NAME$NAME$… [default: server]",
)
TO = click.option("--to", "whom", required=True, metavar="WHO", help="NAME of a principal, role:NAME or group:NAME.")


@click.command("grant", short_help="Grant privileges.")
@click.argument("privileges")
@ON
@TO
@reaching
def grant(settings: Settings, **asked: Any) -> None:
    """Grant PRIVILEGES, parted by commas, on the server, a namespace (and all below it) or a table.

    use, read, write, alter, create, drop, manage_grants, run_udfs, administer; all.

    \b
    Examples:
      tiltyard grant read --on namespace:sales --to role:analysts --root ./data
      tiltyard grant read,write --on 'table:sales$orders' --to ann --url https://lake.example.org
    """
    from tiltyard.cli.access import run_change

    run_change(settings, refuse, "GrantPrivileges", **asked)


@click.command("revoke", short_help="Take privileges back.")
@click.argument("privileges")
@ON
@TO
@reaching
def revoke(settings: Settings, **asked: Any) -> None:
    """Take PRIVILEGES back that were granted on this very object; what is inherited stays.

    \b
    Example:
      tiltyard revoke write --on 'table:sales$orders' --to ann --root ./data
    """
    from tiltyard.cli.access import run_change

    run_change(settings, refuse, "RevokePrivileges", **asked)


@click.command("grants", short_help="List grants.")
@ON
@click.option("--to", "whom", default="", metavar="WHO", help="Those of one grantee, wherever they are.")
@reaching
def grants(settings: Settings, **asked: Any) -> None:
    """List the grants on an object, or those of a principal, a role or a group.

    \b
    Examples:
      tiltyard grants --on namespace:sales --root ./data
      tiltyard grants --to role:analysts --root ./data
    """
    from tiltyard.cli.access import run_list

    run_list(settings, refuse, **asked)


@click.command("whoami", short_help="Say as whom one is known.")
@reaching
def whoami(settings: Settings, **asked: Any) -> None:
    """Say as whom the server knows the key, with groups, roles and what holds on the whole server.

    \b
    Example:
      tiltyard whoami --url https://lake.example.org
    """
    from tiltyard.cli.access import run_whoami

    run_whoami(settings, refuse, **asked)


@click.command("can", short_help="Say whether somebody may do something.")
@click.argument("whom", metavar="WHO")
@click.argument("privileges")
@ON
@click.option("--group", "groups", multiple=True, help="A group that the token of WHO names; may be given again.")
@reaching
def can(settings: Settings, **asked: Any) -> None:
    """Say whether WHO has PRIVILEGES on an object, and end with status 0 if so, 3 if not; WHO is `me` for oneself.

    \b
    Examples:
      tiltyard can ann write --on 'table:sales$orders' --root ./data
      tiltyard can me read --on namespace:sales --url https://lake.example.org
    """
    from tiltyard.cli.access import run_can

    run_can(settings, refuse, **asked)


@click.group("role", short_help="Roles: names that stand for principals and groups.")
def role() -> None:
    """Look after roles.

    \b
    Example:
      tiltyard role add analysts ann group:night --root ./data
    """


@role.command("list", short_help="List roles with their members.")
@reaching
def list_roles(settings: Settings, **asked: Any) -> None:
    """List roles with their members.

    \b
    Example:
      tiltyard role list --root ./data
    """
    from tiltyard.cli.access import run_roles

    run_roles(settings, refuse, **asked)


def _members(name: str, help_: str, text: str) -> None:
    """A command on a role and members of it."""

    @click.argument("name", metavar="ROLE")
    @click.argument("members", nargs=-1)
    @reaching
    def command(settings: Settings, **asked: Any) -> None:
        from tiltyard.cli.access import run_members

        run_members(settings, refuse, name, **asked)

    command.__doc__ = text
    role.command(name, short_help=help_)(command)


_members(
    "add",
    "Add a role, or members to it.",
    """Add members to a role, which is made if there is none: principals by name, groups as group:NAME.

    \b
    Example:
      tiltyard role add analysts ann group:night --root ./data
    """,
)
_members(
    "remove",
    "Take members out of a role, or drop it.",
    """Take members out of a role; without members, drop it with all that was granted to it.

    \b
    Example:
      tiltyard role remove analysts ann --root ./data
    """,
)
