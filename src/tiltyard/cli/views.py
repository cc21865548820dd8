"""`tiltyard view create`: a materialized view of a query, whose columns Spark infers."""

from __future__ import annotations

from typing import Any

import click

from tiltyard.cli.jobs import refusing
from tiltyard.cli.session.ids import TABLE_OF_JOB
from tiltyard.cli.session.job_target import JobTarget, job_target_options
from tiltyard.runtime.fatal import refuse


def list_commands() -> list[str]:
    """Return the names of the commands."""
    return ["create"]


def find_command(name: str) -> click.Command | None:
    """Return the command of this name, if there is one."""
    if name not in list_commands():
        return None
    params = [
        click.Argument(["name"], type=TABLE_OF_JOB),
        click.Option(["--sql"], required=True, help="The query, in Spark's SQL; tables by their ids: `shop$orders`."),
        click.Option(["--refresh"], is_flag=True, help="Compute the rows at once."),
        *job_target_options(spark=True),
    ]
    help_text = _create.__doc__ or ""
    return click.Command(name, callback=_create, params=params, help=help_text, short_help=help_text.split("\n")[0])


def _create(name: str, sql: str, refresh: bool, **options: Any) -> None:
    """Create a materialized view: a table that a query computes.

    Spark infers the columns now, so a wrong query is an error now; the rows come with a refresh.

    \b
    Example:
      tiltyard view create late --sql "SELECT id, title FROM films WHERE year >= 2000" --uri http://127.0.0.1:2333
    """
    target = JobTarget(**options)
    with refusing(refuse):
        view = target.lake().create_view(name, sql)
        click.echo(f"{view.name}: {', '.join(f'{field.name} {field.type}' for field in view.schema)}")
        if refresh:
            for figure, value in view.refresh().figures.items():
                click.echo(f"{figure}: {value}")
