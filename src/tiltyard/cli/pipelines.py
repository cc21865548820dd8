"""`tiltyard pipeline run | check`: several tables from one file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec

from tiltyard.cli.jobs import execution_options, refusing, run_job
from tiltyard.cli.options import parse_pairs
from tiltyard.cli.session.job_target import JobTarget, job_target_options
from tiltyard.pipeline.jobs import find_job
from tiltyard.pipeline.plans.plan_file import describe_plan, read_plan
from tiltyard.runtime.fatal import refuse


def list_commands() -> list[str]:
    """Return the names of the commands."""
    return list(_COMMANDS)


def find_command(name: str) -> click.Command | None:
    """Return the command of this name, if there is one."""
    if name not in _COMMANDS:
        return None
    function, make_options = _COMMANDS[name]

    def run(file: Path, values: tuple[str, ...], **options: Any) -> None:
        with refusing(refuse):
            function(file, values, **options)

    help_text = function.__doc__ or ""
    params = [*_plan_parameters(), *make_options()]
    return click.Command(name, callback=run, params=params, help=help_text, short_help=help_text.split("\n")[0])


def _run(file: Path, values: tuple[str, ...], submit_it: bool, untracked: bool, **target: Any) -> None:
    """Create the tables that a file describes, index them, and publish them at once.

    \b
    Examples:
      tiltyard pipeline run docs.yaml --uri http://127.0.0.1:2333
      tiltyard pipeline run docs.yaml --set day=2026-05-01 --submit --uri http://127.0.0.1:2333
    """
    plan = read_plan(file, parse_pairs(values))
    arguments: dict[str, Any] = {"plan": msgspec.json.encode(plan).decode()}
    if plan.functions:
        arguments["udf"] = plan.functions
    run_job(find_job("pipeline"), arguments, JobTarget(**target), submit_it=submit_it, untracked=untracked)


def _check(file: Path, values: tuple[str, ...]) -> None:
    """Read a file, and show what it would do; nothing is changed.

    \b
    Example:
      tiltyard pipeline check docs.yaml
    """
    click.echo("\n".join(describe_plan(read_plan(file, parse_pairs(values)))))


def _plan_parameters() -> list[click.Parameter]:
    return [
        click.Argument(["file"], type=click.Path(path_type=Path)),
        click.Option(
            ["--set", "values"], multiple=True, help="NAME=VALUE, the value of ${NAME} in the file; repeatable."
        ),
    ]


_COMMANDS: dict[str, tuple[Callable[..., None], Callable[[], list[click.Parameter]]]] = {
    "run": (_run, lambda: [*execution_options(), *job_target_options(spark=True)]),
    "check": (_check, list),
}
