"""`tiltyard freshness`: how old tables may be, and which are older."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tiltyard.cli.command_groups import CommandGroup
from tiltyard.cli.output.formats import OutputFormat, format_option, print_records
from tiltyard.cli.session.ids import TABLE, TypedId, format_id
from tiltyard.cli.session.target import catalog_command

if TYPE_CHECKING:
    from tiltyard.calls.caller import Caller


@click.group("freshness", cls=CommandGroup, short_help="Say how old tables may be, and list those that are older.")
def freshness() -> None:
    """Say how old tables and views may be, and list those that are older: stale.

    \b
    Example:
      tiltyard freshness set films 6h
    """


@freshness.command("set", short_help="Say how old a table may be.")
@click.argument("table", type=TABLE)
@click.argument("max_age", metavar="DURATION")
@catalog_command
def set_max_age(catalog: Caller, table: TypedId, max_age: str) -> None:
    """Say how old TABLE may be, counted from its last commit, or of a view from its last refresh; none takes it back.

    \b
    Examples:
      tiltyard freshness set films 6h
      tiltyard freshness set films none
    """
    from tiltyard.model.schedules import parse_duration

    seconds = None if max_age == "none" else parse_duration(max_age)
    catalog.call("SetTableMaxAge", id=list(table), max_age_seconds=seconds)
    click.echo(f"{table} may be of any age" if seconds is None else f"{table} may be {max_age} old")


@freshness.command("list", short_help="List the tables that say how old they may be.")
@click.option("--stale", "is_stale", is_flag=True, help="Only those that are older; the exit status is 1 if there are.")
@format_option
@catalog_command
def list_ages(catalog: Caller, is_stale: bool, form: OutputFormat) -> None:
    """List the tables that say how old they may be, with their ages.

    \b
    Example:
      tiltyard freshness list --stale || echo "somebody should look"
    """
    from tiltyard.model.schedules import format_duration

    tables = catalog.call("ListTableAges", stale=is_stale or None)["tables"]
    records = [
        {
            "table": format_id(each["id"]),
            "max_age": format_duration(each["max_age_seconds"]),
            "age": format_duration(float(int(each["age_seconds"]))),
            "state": "stale" if each["stale"] else "fresh",
        }
        for each in tables
    ]
    print_records(records, ("table", "max_age", "age", "state"), form)
    if is_stale and records:
        raise SystemExit(1)
