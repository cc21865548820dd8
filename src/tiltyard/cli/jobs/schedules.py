"""`tiltyard schedule`: jobs that the catalog's servers and workers submit by themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tiltyard.cli.command_groups import CommandGroup
from tiltyard.cli.options import confirm, yes_option
from tiltyard.cli.output.cells import format_time
from tiltyard.cli.output.formats import OutputFormat, format_option, print_record, print_records
from tiltyard.cli.session.ids import TABLE, IdType, TypedId, format_id
from tiltyard.cli.session.target import catalog_command

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tiltyard.calls.caller import Caller

SCHEDULE = IdType()
"""The id of a schedule: a name, perhaps in a namespace."""
_COLUMNS = ("schedule", "job", "table", "when", "state", "next", "last", "status")


@click.group("schedule", cls=CommandGroup, short_help="Run jobs at times, or after commits.")
def schedule() -> None:
    """Have jobs submitted by themselves: at times, in an interval, or after commits of tables.

    Servers and workers do so, as whoever has created the schedule; one job of a schedule runs at a time.

    \b
    Examples:
      tiltyard schedule create nightly optimize films --cron "0 3 * * *" --zone Europe/Berlin
      tiltyard schedule list
    """


@schedule.command("create", short_help="Have a job submitted by itself.")
@click.argument("name", type=SCHEDULE)
@click.argument("job")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGUMENT]…")
@click.option("--cron", help='Five fields, or @hourly, @daily, …: "0 3 * * *" is each day at three.')
@click.option("--zone", help="The time zone of --cron, such as Europe/Berlin; UTC by default.")
@click.option("--every", help="An interval instead: 30s, 15m, 6h, 1d.")
@click.option("--on-commit", multiple=True, type=TABLE, help="Instead, after commits of this table; several times.")
@click.option("--debounce", help="How long after the first commit; 5s by default.")
@click.option("--catch-up", is_flag=True, default=None, help="One run makes up for all times that were missed.")
@click.option("--paused", is_flag=True, help="Create it paused.")
@catalog_command
def create(
    catalog: Caller,
    name: TypedId,
    job: str,
    arguments: tuple[str, ...],
    cron: str | None,
    zone: str | None,
    every: str | None,
    on_commit: tuple[TypedId, ...],
    debounce: str | None,
    catch_up: bool | None,
    paused: bool,
) -> None:
    """Have JOB submitted by itself, with the arguments that `tiltyard job JOB` takes; its options follow after --.

    \b
    Examples:
      tiltyard schedule create nightly optimize films --cron "0 3 * * *" --zone Europe/Berlin
      tiltyard schedule create shop.load --every 15m ingest s3://lake/orders shop.orders -- --mode overwrite
      tiltyard schedule create embed backfill films vector --on-commit films --debounce 1m
    """
    from tiltyard.cli.jobs.job import parse_arguments
    from tiltyard.model.schedules import parse_duration
    from tiltyard.pipeline.jobs import find_job

    checked = parse_arguments(job, arguments)
    fields: dict[str, Any] = {
        "table": find_job(job).table(checked) or None,
        "cron": cron,
        "zone": zone,
        "every_seconds": None if every is None else parse_duration(every),
        "on_commit": [list(table) for table in on_commit] or None,
        "debounce_seconds": None if debounce is None else parse_duration(debounce),
        "catch_up": catch_up,
        "paused": paused or None,
    }
    made = catalog.call("CreateSchedule", id=list(name), job=job, arguments=checked, **fields)["schedule"]
    click.echo(f"{format_id(made['id'])}: {_describe_next(made)}")


@schedule.command("list", short_help="List the schedules.")
@click.option("--table", type=TABLE, help="Only those whose job is about this table.")
@format_option
@catalog_command
def list_schedules(catalog: Caller, table: TypedId | None, form: OutputFormat) -> None:
    """List the schedules that you have created, or may submit the jobs of.

    \b
    Example:
      tiltyard schedule list --table films
    """
    wanted = None if table is None else "$".join(table)
    print_records(
        [_record(each) for each in catalog.entries("ListSchedules", "schedules", table=wanted)], _COLUMNS, form
    )


@schedule.command("show", short_help="Show a schedule.")
@click.argument("name", type=SCHEDULE)
@format_option
@catalog_command
def show(catalog: Caller, name: TypedId, form: OutputFormat) -> None:
    """Show a schedule: its job and its arguments, when it runs next, and what became of the last time.

    \b
    Example:
      tiltyard schedule show nightly
    """
    facts = catalog.call("DescribeSchedule", id=list(name))["schedule"]
    rest = ("catch_up", "debounce_seconds", "definer", "last_job_id", "last_error", "refused", "missed", "skipped")
    more = {key: facts[key] for key in rest if facts.get(key) is not None}
    created = {"created": format_time(facts["created_at_millis"])}
    arguments = {key: value for key, value in facts["arguments"].items() if value is not None}
    print_record({**_record(facts), "arguments": arguments, **more, **created}, form)


@schedule.command("pause", short_help="Pause a schedule.")
@click.argument("name", type=SCHEDULE)
@catalog_command
def pause(catalog: Caller, name: TypedId) -> None:
    """Submit the job of a schedule no more, until it is resumed. A job that runs goes on.

    \b
    Example:
      tiltyard schedule pause nightly
    """
    catalog.call("AlterSchedule", id=list(name), paused=True)
    click.echo(f"{name}: Paused")


@schedule.command("resume", short_help="Resume a paused schedule.")
@click.argument("name", type=SCHEDULE)
@catalog_command
def resume(catalog: Caller, name: TypedId) -> None:
    """Submit the job of a paused schedule again, at its next time.

    \b
    Example:
      tiltyard schedule resume nightly
    """
    facts = catalog.call("AlterSchedule", id=list(name), paused=False)["schedule"]
    click.echo(f"{name}: {_describe_next(facts)}")


@schedule.command("run", short_help="Submit the job of a schedule now.")
@click.argument("name", type=SCHEDULE)
@catalog_command
def run(catalog: Caller, name: TypedId) -> None:
    """Submit the job of a schedule now, and print the job's id. Its next time stays.

    \b
    Example:
      tiltyard job wait $(tiltyard schedule run nightly)
    """
    click.echo(catalog.call("RunSchedule", id=list(name))["job"]["id"])


@schedule.command("drop", short_help="Drop a schedule.")
@click.argument("name", type=SCHEDULE)
@yes_option
@catalog_command
def drop(catalog: Caller, name: TypedId, is_confirmed: bool) -> None:
    """Drop a schedule. The jobs that it has submitted stay.

    \b
    Example:
      tiltyard schedule drop nightly --yes
    """
    confirm(f"The schedule {name} is dropped. Go on?", is_confirmed=is_confirmed)
    catalog.call("DropSchedule", id=list(name))
    click.echo(f"The schedule {name} is dropped")


def _record(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a list for a schedule."""
    from tiltyard.model.schedules import describe_timing

    return {
        "schedule": format_id(facts["id"]),
        "job": facts["job"],
        "table": format_id(facts["table"]) if facts.get("table") else "",
        "when": describe_timing(facts),
        "state": facts["state"],
        "next": format_time(facts.get("next_run_millis")),
        "last": format_time(facts.get("last_run_millis")),
        "status": facts.get("last_status") or "",
    }


def _describe_next(facts: Mapping[str, Any]) -> str:
    if facts.get("next_run_millis") is not None:
        return f"next at {format_time(facts['next_run_millis'])} UTC"
    return "Paused" if facts["state"] == "Paused" else "after the next commit"
