"""`tiltyard pipeline run | check`: several tables from one file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec

from tiltyard.cli.jobs import Reach, modes, pairs, reach_options, refusing, run_job
from tiltyard.pipeline.jobs import find_job
from tiltyard.pipeline.plans.plan_file import described, read_plan
from tiltyard.runtime.fatal import Refuse


def pipeline_command(name: str, refuse: Refuse) -> click.Command | None:
    """The command of this name, if there is one."""
    if name not in COMMANDS:
        return None
    function, more = COMMANDS[name]

    def run(file: Path, values: tuple[str, ...], **given: Any) -> None:
        with refusing(refuse):
            function(file, values, **given)

    text = function.__doc__ or ""
    return click.Command(name, callback=run, params=[*_file(), *more()], help=text, short_help=text.split("\n")[0])


def _run(file: Path, values: tuple[str, ...], submit_it: bool, untracked: bool, **given: Any) -> None:
    """Make the tables that a file describes, index them, publish them at once.

    \b
    Examples:
      tiltyard pipeline run docs.yaml --uri http://127.0.0.1:2333
      tiltyard pipeline run docs.yaml --set day=2026-05-01 --submit --uri http://127.0.0.1:2333
    """
    plan = read_plan(file, pairs(values))
    told = {"plan": msgspec.json.encode(plan).decode()}
    arguments = {**told, "udf": plan.functions} if plan.functions else told
    run_job(find_job("pipeline"), arguments, Reach(**given), submit_it=submit_it, untracked=untracked)


def _check(file: Path, values: tuple[str, ...]) -> None:
    """Read a file, and tell what it would do; nothing is touched.

    \b
    Example:
      tiltyard pipeline check docs.yaml
    """
    click.echo("\n".join(described(read_plan(file, pairs(values)))))


def _file() -> list[click.Parameter]:
    return [
        click.Argument(["file"], type=click.Path(path_type=Path)),
        click.Option(["--set", "values"], multiple=True, help="NAME=VALUE: what ${NAME} in the file is."),
    ]


COMMANDS: dict[str, tuple[Callable[..., None], Callable[[], list[click.Parameter]]]] = {
    "run": (_run, lambda: [*modes(), *reach_options(spark=True)]),
    "check": (_check, list),
}
