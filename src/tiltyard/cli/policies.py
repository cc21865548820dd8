"""`tiltyard policy set | list | drop`: on a server, or on the catalog's database."""

from __future__ import annotations

from typing import Any

import click

from tiltyard.cli.options import catalog_options
from tiltyard.config import Settings
from tiltyard.runtime.fatal import refuse


@click.group("policy", short_help="Manage row filters and column masks.")
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
    settings: Settings,
    table: str,
    name: str,
    row_filter: str | None,
    hidden: tuple[str, ...],
    nulled: tuple[str, ...],
    masked: tuple[str, ...],
    exempt_roles: tuple[str, ...],
    url: str,
    key: str,
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
    _print_policies(settings, url, key, "SetTablePolicy", table, **fields)


@policy.command("list", short_help="List the policies of a table.")
@click.argument("table")
@catalog_options
def list_policies(settings: Settings, table: str, url: str, key: str) -> None:
    """List the policies of TABLE.

    \b
    Example:
      tiltyard policy list 'hr$people' --root ./data
    """
    _print_policies(settings, url, key, "ListTablePolicies", table)


@policy.command("drop", short_help="Drop a policy.")
@click.argument("table")
@click.argument("name")
@catalog_options
def drop(settings: Settings, table: str, name: str, url: str, key: str) -> None:
    """Drop the policy NAME of TABLE: what it hid becomes visible to the principals it restricted.

    \b
    Example:
      tiltyard policy drop 'hr$people' private --root ./data
    """
    _print_policies(settings, url, key, "DropTablePolicy", table, name=name)


def _parse_mask(text: str) -> dict[str, str]:
    column, equals, expression = text.partition("=")
    if not equals:
        refuse(f"A mask is COLUMN=SQL, not '{text}'.")
    return {"column": column, "mask": "expression", "expression": expression}


def _print_policies(settings: Settings, url: str, key: str, operation: str, table: str, **fields: Any) -> None:
    """Run an operation on a table's policies, and print all that the table has now."""
    from tiltyard.cli.client import connect
    from tiltyard.model.ids import DEFAULT_DELIMITER, parse_id

    with connect(settings, url, key) as calls:
        policies = calls.call(operation, id=list(parse_id(table, DEFAULT_DELIMITER)), **fields)["policies"]
        for policy in policies:
            parts = [f"rows where {policy['filter']}"] if policy.get("filter") is not None else []
            parts += [f"{mask['column']}: {mask.get('expression') or mask['mask']}" for mask in policy["masks"]]
            exempt = f"  but for {', '.join(policy['exempt_roles'])}" if policy["exempt_roles"] else ""
            click.echo(f"{policy['name']}  {'; '.join(parts)}{exempt}  by {policy['set_by']}")
