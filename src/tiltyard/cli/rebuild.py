"""`tiltyard rebuild`: what has to be made again if a table or a file was wrong, and making it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tiltyard.cli.options import confirm, yes_option
from tiltyard.cli.output.formats import OutputFormat, format_option, print_records
from tiltyard.cli.session.failures import exit_on_failure
from tiltyard.cli.session.job_target import JobTarget, job_target_options
from tiltyard.runtime.process import refuse

if TYPE_CHECKING:
    from datetime import datetime

    from tiltyard.lake.operations.rebuild_plan import RebuildStep

_COLUMNS = ("step", "table", "what", "column", "detail", "status")
_PARAMETERS: list[click.Parameter] = [
    click.Argument(["source"], metavar="TABLE"),
    click.Option(
        ["--since"],
        help="The first version that was wrong, by number or tag, or a time (2026-05-01T00:00:00Z); of a file a time.",
    ),
    click.Option(["--column"], help="Only what was made from one column."),
    click.Option(["--run", "runs"], is_flag=True, help="Do it, after a question."),
    click.Option(["--submit", "submits"], is_flag=True, help="Let the server's workers run the jobs."),
    click.Option(
        ["--state"], type=click.Path(path_type=Path), help="A file that says how far it is: the same command goes on."
    ),
    click.Option(["--done"], multiple=True, metavar="TABLE", help="What a person has made again; repeatable."),
]


@click.command(
    "rebuild",
    short_help="Make again what was made from a table or a file that was wrong.",
    params=[*_PARAMETERS, *job_target_options(spark=True)],
)
@yes_option
@format_option
def rebuild(
    source: str,
    since: str | None,
    column: str | None,
    runs: bool,
    is_confirmed: bool,
    submits: bool,
    state: Path | None,
    done: tuple[str, ...],
    form: OutputFormat,
    **target: Any,
) -> None:
    """Show what has to be made again, in order, if TABLE was wrong; with --run do it, as far as it takes no person.

    TABLE may be a file or folder, as a path with a slash or a URI.

    \b
    Examples:
      tiltyard rebuild library.books
      tiltyard rebuild library.books --since 12 --run --state rebuild.json
      tiltyard rebuild ./books.csv --run --yes
    """
    from tiltyard.cli.jobs.job import refusing

    with refusing(refuse), exit_on_failure():
        plan = (
            JobTarget(**target)
            .lake()
            .rebuild(source, since=_parse_since(since), column=column, state=state, done=list(done))
        )
        records = [
            {"step": number, "table": step.table, "what": step.action, "column": step.column, "detail": step.detail}
            | {"status": step.status}
            for number, step in enumerate(plan.steps, 1)
        ]
        print_records(records, _COLUMNS, form, numbers=("step",))
        if plan.is_truncated:
            click.echo("There is more than lineage tells at once: this is not all, and cannot be run.", err=True)
        if not runs:
            return
        to_do = [step for step in plan.steps if not step.is_by_hand and step.status != "done"]
        if to_do and not plan.is_truncated:
            confirm(f"{len(to_do)} steps are run, one after the other. Go on?", is_confirmed=is_confirmed)
        plan.run(submit=submits or None, state=state, on_step=lambda step: _show(plan.steps, step))
        left = [step for step in plan.steps if step.status != "done"]
        if left:
            names = ", ".join(dict.fromkeys(step.table or "tables that you cannot see" for step in left))
            click.echo(f"To be done yet, by hand or after that: {names}. Then name them by --done.", err=True)


def _show(steps: list[RebuildStep], step: RebuildStep) -> None:
    what = f"{step.action} {step.table}{f' {step.column}' if step.column else ''}"
    click.echo(f"{steps.index(step) + 1} of {len(steps)}: {what}: {step.status}", err=True)


def _parse_since(text: str | None) -> int | str | datetime | None:
    """Return a version, a time, or else the name of a tag."""
    from datetime import datetime

    if text is None or text.isdecimal():
        return None if text is None else int(text)
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return text
