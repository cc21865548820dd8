"""Policies of tables from the command line: the same operations, on a server or in this process."""

from __future__ import annotations

from typing import Any

import click

from tiltyard.cli.access import reaching
from tiltyard.config import Settings
from tiltyard.model.ids import DEFAULT_DELIMITER, parse_id
from tiltyard.runtime.fatal import Refuse


def _names(table: str) -> list[str]:
    return list(parse_id(table, DEFAULT_DELIMITER))


def _mask(text: str, refuse: Refuse) -> dict[str, str]:
    column, parted, expression = text.partition("=")
    if not parted:
        refuse(f"A mask is COLUMN=SQL, and this is '{text}'.")
    return {"column": column, "mask": "expression", "expression": expression}


def run_set(
    settings: Settings,
    refuse: Refuse,
    *,
    table: str,
    name: str,
    rows: str | None,
    hide: tuple[str, ...],
    null: tuple[str, ...],
    mask: tuple[str, ...],
    exempt: tuple[str, ...],
    url: str,
    key: str,
) -> None:
    """Set a policy, and show all that the table has now."""
    masks = [{"column": column, "mask": "hide"} for column in hide]
    masks += [{"column": column, "mask": "null"} for column in null]
    masks += [_mask(text, refuse) for text in mask]
    asked = {"name": name, "filter": rows, "masks": masks, "exempt_roles": list(exempt)}
    with reaching(settings, refuse, url, key) as call:
        _show(call("SetTablePolicy", id=_names(table), **asked)["policies"])


def run_list(settings: Settings, refuse: Refuse, *, table: str, url: str, key: str) -> None:
    """List the policies of a table."""
    with reaching(settings, refuse, url, key) as call:
        _show(call("ListTablePolicies", id=_names(table))["policies"])


def run_drop(settings: Settings, refuse: Refuse, *, table: str, name: str, url: str, key: str) -> None:
    """Drop a policy, and show those that are left."""
    with reaching(settings, refuse, url, key) as call:
        _show(call("DropTablePolicy", id=_names(table), name=name)["policies"])


def _show(policies: list[dict[str, Any]]) -> None:
    for policy in policies:
        parts = [f"rows where {policy['filter']}"] if policy.get("filter") is not None else []
        parts += [f"{mask['column']}: {mask.get('expression') or mask['mask']}" for mask in policy["masks"]]
        exempt = f"  but for {', '.join(policy['exempt_roles'])}" if policy["exempt_roles"] else ""
        click.echo(f"{policy['name']}  {'; '.join(parts)}{exempt}  by {policy['set_by']}")
