"""`tiltyard policy set`, `list`, `drop`: on a server, or on the catalog's database."""

from __future__ import annotations

from typing import Any

import click

from tiltyard.cli.access_commands import reaching
from tiltyard.config import Settings
from tiltyard.runtime.fatal import refuse


@click.group("policy", short_help="Row filters and column masks.")
def policy() -> None:
    """Narrow tables: which rows and columns they have for all but administrators and exempt roles.

    \b
    Examples:
      tiltyard policy set 'hr$people' teams --filter "team = principal() OR in_group('chiefs')" --root ./data
      tiltyard policy set 'hr$people' private --hide face --null pay --exempt auditors --root ./data
      tiltyard policy list 'hr$people' --root ./data
    """


@policy.command("set", short_help="Set a policy, in the place of one of its name.")
@click.argument("table")
@click.argument("name")
@click.option("--filter", "rows", help="SQL that holds for the rows to be seen; principal() and in_group('x') in it.")
@click.option("--hide", multiple=True, metavar="COLUMN", help="Leave this column out; may be given again.")
@click.option("--null", multiple=True, metavar="COLUMN", help="Show nulls in this column; may be given again.")
@click.option("--mask", multiple=True, metavar="COLUMN=SQL", help="Show this expression in it; may be given again.")
@click.option("--exempt", multiple=True, metavar="ROLE", help="A role that is not bound; may be given again.")
@reaching
def set_(settings: Settings, **asked: Any) -> None:
    """Narrow TABLE by a policy NAME for all but administrators and the exempt roles.

    \b
    Example:
      tiltyard policy set 'hr$people' private --mask "ssn=concat('***', right(ssn, 1))" --url https://lake.example.org
    """
    from tiltyard.cli.policies import run_set

    run_set(settings, refuse, **asked)


@policy.command("list", short_help="List the policies of a table.")
@click.argument("table")
@reaching
def list_(settings: Settings, **asked: Any) -> None:
    """List the policies of TABLE.

    \b
    Example:
      tiltyard policy list 'hr$people' --root ./data
    """
    from tiltyard.cli.policies import run_list

    run_list(settings, refuse, **asked)


@policy.command("drop", short_help="Drop a policy.")
@click.argument("table")
@click.argument("name")
@reaching
def drop(settings: Settings, **asked: Any) -> None:
    """Drop the policy NAME of TABLE: those whom it bound see what it kept from them.

    \b
    Example:
      tiltyard policy drop 'hr$people' private --root ./data
    """
    from tiltyard.cli.policies import run_drop

    run_drop(settings, refuse, **asked)
