"""`tiltyard job list | show | cancel | wait | resume`: steering the jobs that a catalog knows."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import click
from lance_namespace.errors import InvalidTableStateError

from tiltyard.cli.bar import progress_bar
from tiltyard.cli.interruption import interruptible
from tiltyard.cli.jobs import Reach, drive_here, reach_options, refusing
from tiltyard.pipeline.driver.lease import claim, new_owner
from tiltyard.pipeline.jobs import find_job
from tiltyard.pipeline.operation_calls import Calls
from tiltyard.runtime.fatal import Refuse

LOOK_SECONDS = 0.5
ENDED = ("Succeeded", "Failed", "Canceled")


def steering_command(name: str, refuse: Refuse) -> click.Command | None:
    """The command of this name, if there is one."""
    if name not in STEERING:
        return None
    function, options, spark = STEERING[name]

    def run(**given: Any) -> None:
        own = {option.name: given.pop(option.name) for option in options if option.name}
        with refusing(refuse):
            function(Reach(**given), **own)

    text, params = inspect.getdoc(function) or "", [*options, *reach_options(spark=spark)]
    return click.Command(name, callback=run, params=params, help=text, short_help=text.split("\n")[0])


def _list(reach: Reach, name: str | None, status: str | None, limit: int) -> None:
    """List jobs, newest first.

    \b
    Example:
      tiltyard job list --uri http://127.0.0.1:2333 --status failed
    """
    told = reach.calls().call("ListJobs", name=name, status=status, limit=limit)
    for job in told["jobs"]:
        begun = datetime.fromtimestamp(job["created_at_millis"] / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
        share = job["properties"].get("progress")
        far = f"{float(share):.0%}" if share else ""
        table = "$".join(job.get("table") or ())
        click.echo(f"{job['id']}  {begun}  {job['name']:<10} {job['status']:<10} {far:>4}  {table}")


def _show(reach: Reach, job_id: str) -> None:
    """Show a job: what was asked for, where it stands, its figures.

    \b
    Example:
      tiltyard job show --uri http://127.0.0.1:2333 6f1c2d3e-…
    """
    job = reach.calls().call("DescribeJob", id=[job_id])["job"]
    _tell(job)


def _cancel(reach: Reach, job_id: str) -> None:
    """Cancel a job: it stops within a second or so, and commits nothing.

    \b
    Example:
      tiltyard job cancel --uri http://127.0.0.1:2333 6f1c2d3e-…
    """
    action = {"setStatusAction": {"status": "Canceled"}}
    reach.calls().call("AlterTransaction", id=[job_id], actions=[action])
    click.echo(f"{job_id}: Canceled")


def _wait(reach: Reach, job_id: str) -> None:
    """Wait until a job has ended, with a bar; the status is 0 if it succeeded.

    \b
    Example:
      tiltyard job wait --uri http://127.0.0.1:2333 6f1c2d3e-…
    """
    job = reach.calls().call("DescribeJob", id=[job_id])["job"]
    calls = Calls(reach.connection())
    with progress_bar(job["name"], lambda: job["properties"]):
        while job["status"] not in ENDED:
            time.sleep(LOOK_SECONDS)
            job = calls.call("DescribeJob", id=[job_id])["job"]
    _tell(job)
    if job["status"] != "Succeeded":
        raise SystemExit(1)


def _resume(reach: Reach, job_id: str) -> None:
    """Go on here with a job whose driver died, or that failed; what was finished is not done again.

    \b
    Example:
      tiltyard job resume --uri http://127.0.0.1:2333 6f1c2d3e-… --master local[4]
    """
    calls, owner = Calls(reach.connection()), new_owner()
    told = reach.calls().call("DescribeJob", id=[job_id])["job"]
    if told["status"] in ("Succeeded", "Canceled"):
        raise InvalidTableStateError(f"The job {job_id} is {told['status']}: there is nothing to resume.")
    job = find_job(told["name"])
    spark = reach.session(job, told.get("spark"))
    with interruptible() as interruption:
        claimed = claim(calls, job_id, owner, check=interruption.check)
        drive_here(job, claimed, owner, reach, spark, interruption)


def _tell(job: Mapping[str, Any]) -> None:
    head = {"job": job["id"], "name": job["name"], "status": job["status"], "attempts": job["attempts"]}
    error = {"error": job["error"]} if job.get("error") else {}
    for name, value in {**head, **error, **job["arguments"], **job["properties"]}.items():
        click.echo(f"{name}: {value}")


_JOB: list[click.Parameter] = [click.Argument(["job_id"], metavar="JOB")]
STEERING: Mapping[str, tuple[Callable[..., None], list[click.Parameter], bool]] = {
    "list": (
        _list,
        [
            click.Option(["--name"], help="Only jobs of this name."),
            click.Option(["--status"], help="Only Queued, Running, Succeeded, Failed or Canceled ones."),
            click.Option(["--limit"], type=int, default=50, show_default=True, help="How many."),
        ],
        False,
    ),
    "show": (_show, _JOB, False),
    "cancel": (_cancel, _JOB, False),
    "wait": (_wait, _JOB, False),
    "resume": (_resume, _JOB, True),
}
